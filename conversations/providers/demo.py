"""A scripted model that needs no key, for trying the product out.

It streams like a real one, with blocks of the same shapes, says in every answer
what it is, and answers the same words with the same text.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from conversations.domain.errors import ProviderError
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.stream import (
    Block,
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    ModelInfo,
    ModelRequest,
    StreamItem,
    Usage,
)
from conversations.domain.windows import HEADINGS, TASK, is_added

# What the demo model says: a table of keywords and the texts that they call up.


CONNECT = "To connect a real model, set `ANTHROPIC_API_KEY` and restart the server."
LONG_ANSWER_WORDS = 2_000
MAX_ECHO = 200
MAX_QUOTE = 600
MAX_KEYWORD_WORDS = 4

LABEL = "*I am the built-in demo model: my answers are scripted.*"

HELP = f"""## What the demo model can do

{LABEL} Send one of these words:

- **help**: this overview
- **long**: an answer of about 2,000 words
- **table**: a table
- **code**: a block of code
- **think**: an answer with its thinking
- **files**, **read README.md**, **search roses**: what lies in the workspace
- **write notes.md**, **edit notes.md**: a change of a file, for which you may be asked, and
  which you can take back
- **run**: a command that takes three seconds
- **tool**: a call of the first tool on offer; name a tool to call that one
- **recall**: a look into this session's archive, or **recall beans** for a word in it
- **fail**: an overloaded provider

{CONNECT}"""

TABLE = f"""## A table

{LABEL}

| part | holds | grows |
| :--- | :--- | ---: |
| archive | every word | always |
| window | what the model is given | never beyond its limit |
| draft | an answer that is still streaming | until it completes |

{CONNECT}"""

CODE = f"""## Some Python

{LABEL} The numbers of Fibonacci below a limit:

```python
def fibonacci(limit: int) -> list[int]:
    numbers, following = [0], 1
    while following < limit:
        numbers.append(following)
        following = numbers[-2] + numbers[-1]
    return numbers


print(fibonacci(100))
```

1. It starts with `0` and `1`.
2. It adds the last two until the limit is reached.

{CONNECT}"""

THINK = f"""## An answer after thinking

{LABEL} What stands above this answer is a thinking block; a real model puts there
what it considered before it answered.

{CONNECT}"""

NO_TOOL = f"""{LABEL} I would call a tool now, but this workspace does not offer it.

{CONNECT}"""

THOUGHT = (
    "The person would like to see what thinking looks like. A few steps will do:\n"
    "1. Read the message.\n2. See which of the scripted answers fits.\n"
    "3. Say plainly that this is a demo.\n"
)

PARAGRAPHS = (
    "A session lasts for months, while the window of a model holds a day or two of it. What"
    " falls out of the window is not gone: it stays in the archive, word for word, and can be"
    " looked up by the model and by the people who take part.",
    "Nothing in the archive is rewritten. An edited message, an answer that was made again and"
    " a summary are all additions, so that the way to a result can be followed later, with its"
    " detours.",
    "An answer arrives in small pieces. They are shown as they come, and kept beside the"
    " archive until the answer is complete; then one row takes their place.",
    "When the model calls a tool, the call and its result stay together, since neither means"
    " anything without the other.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One scripted answer."""

    text: str
    thinking: str = ""


def make_long_text() -> str:
    """About LONG_ANSWER_WORDS words under numbered headings."""
    parts = ["## A long answer", LABEL]
    words = 0
    while words < LONG_ANSWER_WORDS:
        number = len(parts) - 1
        paragraph = PARAGRAPHS[number % len(PARAGRAPHS)]
        parts.append(f"### Part {number}\n\n{paragraph}")
        words += len(paragraph.split())
    return "\n\n".join([*parts, CONNECT])


SCRIPTS: dict[str, Callable[[], Script]] = {
    "help": lambda: Script(text=HELP),
    "long": lambda: Script(text=make_long_text()),
    "table": lambda: Script(text=TABLE),
    "code": lambda: Script(text=CODE, thinking=THOUGHT),
    "think": lambda: Script(text=THINK, thinking=THOUGHT),
}


def find_keyword(text: str, keywords: set[str]) -> str | None:
    """The first of ``keywords`` in a short message; long ones are not commands."""
    words = [bare_word(word) for word in text.split()]
    if len(words) > MAX_KEYWORD_WORDS:
        return None
    return next((word for word in words if word in keywords), None)


def is_keyword(word: str, keywords: set[str]) -> bool:
    return bare_word(word) in keywords


def bare_word(word: str) -> str:
    """A word in lower case, without the punctuation around it."""
    return word.strip(".,:;!?\"'`*()").lower()


def choose_script(text: str) -> Script:
    keyword = find_keyword(text, set(SCRIPTS))
    return SCRIPTS[keyword]() if keyword else Script(text=make_echo(text))


def make_echo(text: str) -> str:
    """The default answer: the person's words, and what this is."""
    words = shorten(" ".join(text.split()), MAX_ECHO)
    said = f"You wrote:\n\n> {words}\n\n" if words else ""
    return (
        f"## Hello from the demo model\n\n{LABEL} {said}A real model would answer this;"
        " I can only show how an answer looks here:\n\n"
        "- it **streams** in small pieces,\n- it may hold lists, tables and `code`,\n"
        f"- it is kept in the archive, word for word.\n\nSend `help` for more. {CONNECT}"
    )


def make_tool_answer(results: list[tuple[str, bool]]) -> str:
    """The answer to tool results, given as texts with whether each is an error."""
    parts = [f"{LABEL} The tool has answered:"]
    for text, is_error in results:
        head = "It failed with:" if is_error else "It said:"
        parts.append(f"{head}\n\n{quote(shorten(text, MAX_QUOTE))}")
    return "\n\n".join([*parts, f"A real model would go on from here. {CONNECT}"])


def quote(text: str) -> str:
    """``text`` as a block of code that its own backticks cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


SUMMED_UP = 5
"""Messages that a summary of the demo model names."""


def make_summary(text: str) -> str:
    """A summary of quoted turns: their first and last messages, under the headings."""
    quoted = re.findall(r"^\[turn (\d+), person[^\]]*\]\n(.*)", text, re.M)
    named = [f"- turn {number}: {words[:MAX_ECHO]}" for number, words in quoted]
    if len(named) > SUMMED_UP:
        named = [*named[:2], f"- … {len(named) - SUMMED_UP + 1} more", *named[3 - SUMMED_UP :]]
    said = {"What was done": "\n".join(named) or "None.", "Goal": f"{LABEL} I cannot tell."}
    return "\n\n".join(f"## {heading}\n{said.get(heading, 'None.')}" for heading in HEADINGS)


# Which tool the demo model calls, and with what: so that a person without a key sees tools at
# work, a question for approval, and how a change is taken back.


NOTES = "demo-notes.md"
HEADING = "# Notes of the demo model"
CONTENT = f"{HEADING}\n\n- A real model would write something useful here.\n"
COMMAND = "for step in 1 2 3; do echo step $step; sleep 1; done"

ANY_TOOL = "tool"


def _read(rest: list[str]) -> dict[str, Any]:
    return {"path": _path(rest, default="README.md")}


def _list(rest: list[str]) -> dict[str, Any]:
    return {"path": _path(rest, default=".")}


def _find(rest: list[str]) -> dict[str, Any]:
    return {"pattern": " ".join(rest) or "TODO", "literal": True, "ignore_case": True}


def _write(rest: list[str]) -> dict[str, Any]:
    return {"path": _path(rest, default=NOTES), "content": CONTENT}


def _edit(rest: list[str]) -> dict[str, Any]:
    path = _path(rest, default=NOTES)
    return {"path": path, "old_text": HEADING, "new_text": f"{HEADING}, edited"}


def _run(rest: list[str]) -> dict[str, Any]:
    return {"command": COMMAND}


def _recall(rest: list[str]) -> dict[str, Any]:
    """Looks for the words, or sums the session up where there are none."""
    return {"action": "search", "query": " ".join(rest)} if rest else {"action": "summary"}


CALLS: dict[str, tuple[str, Callable[[list[str]], dict[str, Any]]]] = {
    "files": ("list_files", _list),
    "read": ("read_file", _read),
    "search": ("search_files", _find),
    "write": ("write_file", _write),
    "edit": ("edit_file", _edit),
    "run": ("shell_execute", _run),
    "recall": (RECALL_TOOL, _recall),
}
"""Keyword → the tool, and its arguments from the other words of the message."""

ANYWHERE = {ANY_TOOL, "recall"}
"""Keywords that count wherever they stand in a short message; the others begin it."""

# Values for the required arguments of a tool, by their type in its schema.
SAMPLE_VALUES: dict[str, Any] = {
    "integer": 1,
    "number": 1,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}
SAMPLE_STRINGS = {"path": ".", "directory": ".", "folder": ".", "pattern": "*"}


def choose_call(text: str, tools: list[dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """The tool to call, and its arguments: the one whose keyword the text has, the one
    that it names, or the first. None: the text asks for none, or it is not on offer."""
    keyword = find_call_word(text)
    if keyword is None or not tools:
        return None
    if keyword != ANY_TOOL:
        name, make_arguments = CALLS[keyword]
        rest = [word for word in text.split() if not is_keyword(word, {keyword, name})]
        return (name, make_arguments(rest)) if _is_offered(name, tools) else None
    words = text.lower().split()
    tool = next((tool for tool in tools if tool["name"].lower() in words), tools[0])
    return tool["name"], _make_sample(tool, text)


def find_call_word(text: str) -> str | None:
    """The keyword of a message that asks for a tool."""
    first = bare_word(text.split()[0]) if text.split() else ""
    if first in CALLS and not find_keyword(text, set(SCRIPTS)):
        return find_keyword(text, {first})
    return find_keyword(text, ANYWHERE)


def _make_sample(tool: dict[str, Any], text: str) -> dict[str, Any]:
    """Arguments that satisfy the tool that was asked for by its name."""
    if tool["name"] == RECALL_TOOL:
        return _recall([word for word in text.split() if not is_keyword(word, _NAMING)])
    return make_input(tool.get("input_schema") or {}, text)


_NAMING = {ANY_TOOL, "recall", RECALL_TOOL}


def _is_offered(name: str, tools: list[dict[str, Any]]) -> bool:
    return any(tool["name"] == name for tool in tools)


def _path(rest: list[str], *, default: str) -> str:
    """The first word that looks like a path."""
    words = (word.strip("`'\",;!?") for word in rest)
    return next((word for word in words if "." in bare_word(word) or "/" in word), default)


def make_input(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Arguments that satisfy a simple schema: its required properties only."""
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    return {name: _make_value(name, properties.get(name) or {}, text) for name in required}


def _make_value(name: str, schema: dict[str, Any], text: str) -> Any:
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if kind == "string":
        return SAMPLE_STRINGS.get(name, text)
    return SAMPLE_VALUES.get(kind, text) if isinstance(kind, str) else text


# Where an answer of the demo model ends early, as a real one's would.


CHARACTERS_PER_TOKEN = 4


class Cut(NamedTuple):
    """The blocks that are left, why, and at which text."""

    blocks: list[Block]
    stop_reason: str
    stop_sequence: str | None = None


def cut_answer(blocks: list[Block], request: ModelRequest) -> Cut:
    """``stop_reason`` is empty where nothing is cut."""
    found = _cut_at(blocks, request.choices.get("stop_sequences") or ())
    return _cut_after(found, request.max_tokens * CHARACTERS_PER_TOKEN)


def _cut_at(blocks: list[Block], sequences: Any) -> Cut:
    for place, block in enumerate(blocks):
        text = block.get("text", "")
        if found := [one for one in sequences if one in text]:
            first = min(found, key=text.index)
            return Cut(_until(blocks, place, text.index(first)), "stop_sequence", first)
    return Cut(blocks, "")


def _cut_after(cut: Cut, most: int) -> Cut:
    for place, block in enumerate(cut.blocks):
        size = len(block.get("text", "")) + len(block.get("thinking", ""))
        if size > most:
            return Cut(_until(cut.blocks, place, most), "max_tokens")
        most -= size
    return cut


def _until(blocks: list[Block], place: int, length: int) -> list[Block]:
    """Those before, and the beginning of that one if it is a text."""
    text = blocks[place].get("text", "")[:length]
    return [*blocks[:place], *([{**blocks[place], "text": text}] if text else [])]


CHUNK = 4
"""Characters in a delta: about a token."""
DEFAULT_DELAY = 0.02
"""Seconds between deltas: about 50 tokens a second."""
DEMO_MODEL = ModelInfo(
    id="demo", name="Demo model", max_input_tokens=200_000, max_output_tokens=8_192
)


class DemoProvider:
    """Answers by script. ``delay`` is the pause between deltas in seconds."""

    name = "demo"
    is_demo = True

    def __init__(self, *, delay: float = DEFAULT_DELAY) -> None:
        self._delay = delay
        self._calls = count(1)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """See :meth:`conversations.domain.stream.Provider.stream`."""
        if is_asked_to_fail(request):
            raise ProviderError(
                "The demo provider pretends to be overloaded.", code="overloaded", transient=True
            )
        answer = DemoAnswer(request, number=next(self._calls))
        for item in answer.make_items():
            if isinstance(item, BlockDelta):
                await asyncio.sleep(self._delay)
            yield item

    async def list_models(self) -> list[ModelInfo]:
        return [DEMO_MODEL]

    async def close(self) -> None:
        return None


class DemoAnswer:
    """One answer: the blocks that the script wants, and the items they make."""

    def __init__(self, request: ModelRequest, *, number: int) -> None:
        self._request = request
        self._digest = digest_request(request, number)
        self._cut = cut_answer(self._make_blocks(), request)
        self._blocks = self._cut.blocks

    def make_items(self) -> Iterator[StreamItem]:
        usage = Usage(input_tokens=estimate_tokens(self._request.messages), output_tokens=1)
        yield MessageStarted(message_id=self._message_id, model=DEMO_MODEL.id, usage=usage)
        for index, block in enumerate(self._blocks):
            yield from make_block_items(index, block)
        yield self._complete(usage)

    @property
    def _message_id(self) -> str:
        return f"msg_demo_{self._digest}"

    def _make_blocks(self) -> list[Block]:
        if is_summary_request(self._request):
            return [make_text(make_summary(read_last_text(self._request)))]
        results = read_tool_results(self._request)
        if results:
            return [make_text(make_tool_answer(results))]
        text = read_last_text(self._request)
        call = choose_call(text, self._request.tools)
        if call is not None:
            return [make_text(f"{LABEL} I call `{call[0]}`."), self._make_call(*call)]
        if find_call_word(text):
            return [make_text(NO_TOOL)]
        script = choose_script(text)
        thinking = [make_thinking(script.thinking)] if script.thinking else []
        return [*thinking, make_text(script.text)]

    def _make_call(self, name: str, arguments: dict[str, Any]) -> Block:
        call_id = f"toolu_demo_{self._digest}"
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def _complete(self, usage: Usage) -> MessageCompleted:
        calls = any(block["type"] == "tool_use" for block in self._blocks)
        return MessageCompleted(
            blocks=self._blocks,
            stop_reason=self._cut.stop_reason or ("tool_use" if calls else "end_turn"),
            stop_sequence=self._cut.stop_sequence,
            usage=Usage(
                input_tokens=usage.input_tokens, output_tokens=estimate_tokens(self._blocks)
            ),
            model=DEMO_MODEL.id,
            message_id=self._message_id,
        )


def make_text(text: str) -> Block:
    return {"type": "text", "text": text}


def make_thinking(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": "demo"}


def make_block_items(index: int, block: Block) -> Iterator[StreamItem]:
    """A block's start, its deltas and its end, as the API would stream it."""
    kind = block["type"]
    key = "input" if kind == "tool_use" else kind
    empty: Any = {} if kind == "tool_use" else ""
    text = json.dumps(block["input"]) if kind == "tool_use" else block[key]
    start = {**block, key: empty} | ({"signature": ""} if kind == "thinking" else {})
    yield BlockStarted(index=index, kind=kind, block=start)
    for at in range(0, len(text), CHUNK):
        yield BlockDelta(index=index, kind=kind, text=text[at : at + CHUNK])
    yield BlockCompleted(index=index, block=block)


def digest_request(request: ModelRequest, number: int) -> str:
    """Tells one answer of a session from the others; the same on every machine."""
    text = json.dumps([number, request.messages[-8:]], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def estimate_tokens(blocks: list[Block]) -> int:
    return len(json.dumps(blocks, ensure_ascii=False, default=str)) // CHARACTERS_PER_TOKEN


def is_asked_to_fail(request: ModelRequest) -> bool:
    return find_keyword(read_last_text(request), {"fail"}) is not None


def is_summary_request(request: ModelRequest) -> bool:
    return any(str(block.get("text", "")).startswith(TASK) for block in request.system)


def read_blocks(message: dict[str, Any]) -> list[Block]:
    content = message.get("content")
    return [make_text(content)] if isinstance(content, str) else list(content or [])


def read_last_text(request: ModelRequest) -> str:
    """What the person wrote last, in the last message that has a text of theirs."""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            texts = [
                block["text"]
                for block in read_blocks(message)
                if block["type"] == "text" and not is_added(block["text"])
            ]
            if texts:
                return str(texts[0])
    return ""


def read_tool_results(request: ModelRequest) -> list[tuple[str, bool]]:
    """The results in the last message, as texts with whether each is an error."""
    last = read_blocks(request.messages[-1]) if request.messages else []
    return [
        (read_result_text(block), bool(block.get("is_error")))
        for block in last
        if block["type"] == "tool_result"
    ]


def read_result_text(result: Block) -> str:
    parts = read_blocks(result)
    return "\n".join(part.get("text") or f"[{part['type']}]" for part in parts)
