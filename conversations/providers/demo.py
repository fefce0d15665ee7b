"""A scripted model that needs no key, for trying out the product.

It streams like a real model, with blocks of the same shapes. Every answer says that it is scripted,
and the same message gets the same text.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from conversations.domain.errors import ProviderError
from conversations.domain.messages import say
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
from conversations.domain.windows import ADDED, HEADINGS, TASK

CONNECT = "To connect a real model, open *Models* in the account menu."
LONG_ANSWER_WORDS = 2_000
MAX_ECHO_CHARS = 200
MAX_QUOTE_CHARS = 600
MAX_KEYWORD_WORDS = 4
MAX_SUMMED_UP_MESSAGES = 5

DELTA_CHARS = 4  # About a token
CHARACTERS_PER_TOKEN = 4
DEFAULT_DELAY_SECONDS = 0.02  # Between deltas: about 50 tokens a second
DEMO_MODEL = ModelInfo(
    id="demo", name="Demo model", max_input_tokens=200_000, max_output_tokens=8_192
)

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
- **tool**: a call of the first available tool; name a tool to call that one
- **recall**: a look into this session's archive, or **recall beans** for a word in it
- **fail**: an overloaded provider

{CONNECT}"""

TABLE = f"""## A table

{LABEL}

| part | contents | grows |
| :--- | :--- | ---: |
| archive | every word | always |
| window | the model's context | up to its limit |
| draft | an answer that is still streaming | until it completes |

{CONNECT}"""

CODE = f"""## Some Python

{LABEL} Fibonacci numbers below a limit:

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

{LABEL} The block above this answer shows thinking; a real model shows its reasoning
there.

{CONNECT}"""

NO_TOOL = f"""{LABEL} I would call a tool now, but this workspace does not offer it.

{CONNECT}"""

THOUGHT = (
    "The person wants to see what thinking looks like. A few steps are enough:\n"
    "1. Read the message.\n2. Choose the scripted answer that fits.\n"
    "3. Say plainly that this is a demo.\n"
)

PARAGRAPHS = (
    "A session can last for months, while a model's context holds a day or two of it. Older"
    " messages are not lost: they stay in the archive, word for word, where the model and the"
    " people in the session can look them up.",
    "Nothing in the archive is rewritten. An edited message, a regenerated answer and a summary"
    " are all additions, so that the path to a result, including its detours, can be followed"
    " later.",
    "An answer arrives in small pieces. They are shown as they arrive and saved beside the"
    " archive until the answer is complete; then one row replaces them.",
    "When the model calls a tool, the call and its result stay together, because neither makes"
    " sense without the other.",
)


def make_long_text() -> str:
    parts = ["## A long answer", LABEL]
    word_count = 0
    while word_count < LONG_ANSWER_WORDS:
        number = len(parts) - 1
        paragraph = PARAGRAPHS[number % len(PARAGRAPHS)]
        parts.append(f"### Part {number}\n\n{paragraph}")
        word_count += len(paragraph.split())
    return "\n\n".join([*parts, CONNECT])


# Keyword → the text of the answer, and the thinking before it
SCRIPTS = {
    "help": (HELP, ""),
    "long": (make_long_text(), ""),
    "table": (TABLE, ""),
    "code": (CODE, THOUGHT),
    "think": (THINK, THOUGHT),
}


def find_keyword(text: str, keywords: set[str]) -> str | None:
    """Return the first of ``keywords`` in a short message; a long message is not a command."""
    words = [bare_word(word) for word in text.split()]
    if len(words) > MAX_KEYWORD_WORDS:
        return None
    return next((word for word in words if word in keywords), None)


def bare_word(word: str) -> str:
    """Return a word in lower case, without the punctuation around it."""
    return word.strip(".,:;!?\"'`*()").lower()


def make_echo(text: str) -> str:
    quoted = shorten(" ".join(text.split()), MAX_ECHO_CHARS)
    intro = f"You wrote:\n\n> {quoted}\n\n" if quoted else ""
    return (
        f"## Hello from the demo model\n\n{LABEL} {intro}A real model would answer this. I can show"
        " what it could do: the buttons of the tour, above the box for messages, run the real tools"
        f" in this workspace. Send `help` for more. {CONNECT}"
    )


def quote(text: str) -> str:
    """Return ``text`` as a code block that backticks in the text cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def make_summary(text: str) -> str:
    """Return a summary of quoted turns: their first and last messages, under the headings."""
    quoted = re.findall(r"^\[turn (\d+), person[^\]]*\]\n(.*)", text, re.M)
    lines = [f"- turn {number}: {text[:MAX_ECHO_CHARS]}" for number, text in quoted]
    if len(lines) > MAX_SUMMED_UP_MESSAGES:
        left_out = f"- … {len(lines) - MAX_SUMMED_UP_MESSAGES + 1} more"
        lines = [*lines[:2], left_out, *lines[3 - MAX_SUMMED_UP_MESSAGES :]]
    sections = {"What was done": "\n".join(lines) or "None.", "Goal": f"{LABEL} I cannot tell."}
    return "\n\n".join(f"## {heading}\n{sections.get(heading, 'None.')}" for heading in HEADINGS)


# The tools that the demo model calls, and their arguments. They show a person without a key tools
# at work, a question for approval, and how a change is taken back.

NOTES = "demo-notes.md"
HEADING = "# Notes of the demo model"
CONTENT = f"{HEADING}\n\n- A real model would write something useful here.\n"

# Keyword → the tool
CALLS = {
    "files": "list_files",
    "read": "read_file",
    "search": "search_files",
    "write": "write_file",
    "edit": "edit_file",
    "run": "shell_execute",
    "recall": RECALL_TOOL,
}

# Keywords that count anywhere in a short message; the others have to begin it
ANYWHERE = {"tool", "recall"}

# The tour through the product: the messages that its buttons send, and the answers to them


@dataclass(frozen=True, slots=True, kw_only=True)
class TourStep:
    """A message of the person, and the tool calls that answer it.

    ``before`` and ``after`` are the texts before and after the calls. ``failed`` replaces ``after``
    if a call failed or was denied."""

    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    before: str
    after: str
    failed: str = (
        "That did not work; the row above says why. Nothing is lost, and you can try again."
    )


LOOK_AROUND = TourStep(
    text=say("Look around"),
    calls=(("list_files", {"path": "."}), ("read_file", {"path": "README.md"})),
    before="I list the folder of this workspace and read its README.",
    after="Each call is one line above: open it for what I asked and what came back. Reading"
    " asks for no permission.",
)
WRITE_FILE = TourStep(
    text=say("Write a file"),
    calls=(("write_file", {"path": NOTES, "content": CONTENT}),),
    before=f"I write `{NOTES}`. That changes something, so you are asked first.",
    after="The file is there. What a model changes can be taken back: *Undo a change* below.",
    failed="Nothing was written. A model is told that you denied it, with your reason if you give"
    " one, and goes on from there.",
)
RUN_COMMAND = TourStep(
    text=say("Run a command"),
    calls=(("shell_execute", {"command": "for step in 1 2 3; do echo step $step; sleep 1; done"}),),
    before="I run a command that takes three seconds. It runs in a sandbox, without a network.",
    after="Its output came while it ran, and *Stop* would have ended it.",
)
LOOK_BACK = TourStep(
    text=say("What is the code of the greenhouse lock?"),
    calls=((RECALL_TOOL, {"action": "search", "query": "code greenhouse lock"}),),
    before="That was said long ago. I look it up in the archive.",
    after="The archive has every word, however long a session becomes. I found this:",
)
TOUR = {step.text.lower(): step for step in (LOOK_AROUND, WRITE_FILE, RUN_COMMAND, LOOK_BACK)}
MAX_FOUND_CHARS = 200  # Limit for the line that LOOK_BACK quotes


def answer_tour(
    step: TourStep, results: list[Block], request: ModelRequest, digest: str
) -> list[Block]:
    """Return the calls of the step, or the text after them if there are results."""
    if not results:
        offered = {tool["name"] for tool in request.tools}
        calls = [(name, arguments) for name, arguments in step.calls if name in offered]
        if not calls:
            return [make_text(NO_TOOL)]
        blocks = [
            {"type": "tool_use", "id": f"toolu_demo_{digest}_{n}", "name": name, "input": arguments}
            for n, (name, arguments) in enumerate(calls)
        ]
        return [make_text(step.before), *blocks]
    has_failed = any(result.get("is_error") for result in results)
    parts = [f"{LABEL} {step.failed if has_failed else step.after}"]
    if step is LOOK_BACK and not has_failed:
        lines = [line for result in results for line in read_text(result).splitlines()]
        match = next((line for line in lines if "lock" in line and "opens" in line), "")
        parts.append(f"> {shorten(match.strip(), MAX_FOUND_CHARS)}" if match else "Nothing, here.")
    return [make_text("\n\n".join([*parts, CONNECT]))]


def read_text(result: Block) -> str:
    return "\n".join(part.get("text") or f"[{part['type']}]" for part in read_blocks(result))


# Values for required arguments of a tool, by their type in its schema
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
    """Return the tool to call and its arguments, or None if the text asks for no tool on offer.

    A keyword in the text chooses the tool. With the keyword "tool" it is the tool that the text
    names, or the first one."""
    keyword = find_call_word(text)
    if keyword is None or not tools:
        return None
    if keyword != "tool":
        name = CALLS[keyword]
        args = [word for word in text.split() if bare_word(word) not in {keyword, name}]
        is_offered = any(tool["name"] == name for tool in tools)
        return (name, make_arguments(keyword, args)) if is_offered else None
    words = text.lower().split()
    tool = next((tool for tool in tools if tool["name"].lower() in words), tools[0])
    if tool["name"] == RECALL_TOOL:
        args = [word for word in text.split() if bare_word(word) not in {*ANYWHERE, RECALL_TOOL}]
        return RECALL_TOOL, make_arguments("recall", args)
    return tool["name"], make_input(tool.get("input_schema") or {}, text)


def find_call_word(text: str) -> str | None:
    first = bare_word(text.split()[0]) if text.split() else ""
    if first in CALLS and not find_keyword(text, set(SCRIPTS)):
        return find_keyword(text, {first})
    return find_keyword(text, ANYWHERE)


def make_arguments(keyword: str, args: list[str]) -> dict[str, Any]:
    words = (word.strip("`'\",;!?") for word in args)
    path = next((word for word in words if "." in bare_word(word) or "/" in word), "")
    match keyword:
        case "files":
            return {"path": path or "."}
        case "read":
            return {"path": path or "README.md"}
        case "search":
            return {
                "pattern": " ".join(args) or "TODO",
                "literal": True,
                "ignore_case": True,
            }
        case "write":
            return {"path": path or NOTES, "content": CONTENT}
        case "edit":
            return {"path": path or NOTES, "old_text": HEADING, "new_text": f"{HEADING}, edited"}
        case "run":
            return {"command": "for step in 1 2 3; do echo step $step; sleep 1; done"}
    return {"action": "search", "query": " ".join(args)} if args else {"action": "summary"}


def make_input(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return arguments that satisfy a simple schema; only its required properties."""
    values: dict[str, Any] = {}
    for name in schema.get("required") or []:
        schema_of_property = (schema.get("properties") or {}).get(name) or {}
        kind = schema_of_property.get("type", "string")
        if "default" in schema_of_property:
            values[name] = schema_of_property["default"]
        elif schema_of_property.get("enum"):
            values[name] = schema_of_property["enum"][0]
        elif kind == "string":
            values[name] = SAMPLE_STRINGS.get(name, text)
        else:
            values[name] = SAMPLE_VALUES.get(kind, text) if isinstance(kind, str) else text
    return values


def cut_answer(blocks: list[Block], request: ModelRequest) -> tuple[list[Block], str, str | None]:
    """Return the blocks up to a stop sequence or the token limit, the stop reason and the sequence.

    The reason is empty if nothing is cut."""
    stop_reason, stop_sequence = "", None
    sequences = request.choices.get("stop_sequences") or ()
    for index, block in enumerate(blocks):
        text = block.get("text", "")
        matches = [sequence for sequence in sequences if sequence in text]
        if matches:
            stop_reason = "stop_sequence"
            stop_sequence = min(matches, key=text.index)
            blocks = cut_at(blocks, index, text.index(stop_sequence))
            break
    room = request.max_tokens * CHARACTERS_PER_TOKEN
    for index, block in enumerate(blocks):
        size = len(block.get("text", "")) + len(block.get("thinking", ""))
        if size > room:
            return cut_at(blocks, index, room), "max_tokens", None
        room -= size
    return blocks, stop_reason, stop_sequence


def cut_at(blocks: list[Block], index: int, length: int) -> list[Block]:
    """Return the blocks before ``index``, and the beginning of that block if it is a text."""
    text = blocks[index].get("text", "")[:length]
    return [*blocks[:index], *([{**blocks[index], "text": text}] if text else [])]


class DemoProvider:
    """Answers by a script; ``delay`` is the pause between deltas in seconds."""

    is_demo = True

    def __init__(self, *, delay: float = DEFAULT_DELAY_SECONDS) -> None:
        self._delay = delay
        self._calls = count(1)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem]:
        """See :meth:`conversations.domain.stream.Provider.stream`."""
        if find_keyword(read_last_text(request), {"fail"}):
            raise ProviderError(
                "The demo provider pretends to be overloaded.", code="overloaded", transient=True
            )
        for item in make_items(request, number=next(self._calls)):
            if isinstance(item, BlockDelta):
                await asyncio.sleep(self._delay)
            yield item

    async def list_models(self) -> list[ModelInfo]:
        return [DEMO_MODEL]

    async def warm_up(self) -> None:
        return None

    async def close(self) -> None:
        return None


def make_items(request: ModelRequest, *, number: int) -> Iterator[StreamItem]:
    """Yield one answer as the API would stream it.

    ``number`` distinguishes it from other answers. The ids depend only on ``number`` and the last
    messages, so they are the same on every machine."""
    text = json.dumps([number, request.messages[-8:]], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    message_id = f"msg_demo_{digest}"
    blocks, stop_reason, stop_sequence = cut_answer(make_blocks(request, digest), request)
    size = estimate_tokens(request.messages)
    usage = Usage(input_tokens=size, output_tokens=1)
    yield MessageStarted(message_id=message_id, model=DEMO_MODEL.id, usage=usage)
    for index, block in enumerate(blocks):
        kind = block["type"]
        is_call = kind == "tool_use"
        key, empty = ("input", {}) if is_call else (kind, "")
        start = {**block, key: empty} | ({"signature": ""} if kind == "thinking" else {})
        yield BlockStarted(index=index, kind=kind, block=start)
        text = json.dumps(block["input"]) if is_call else block[key]
        for offset in range(0, len(text), DELTA_CHARS):
            yield BlockDelta(index=index, kind=kind, text=text[offset : offset + DELTA_CHARS])
        yield BlockCompleted(index=index, block=block)
    calls = any(block["type"] == "tool_use" for block in blocks)
    yield MessageCompleted(
        blocks=blocks,
        stop_reason=stop_reason or ("tool_use" if calls else "end_turn"),
        stop_sequence=stop_sequence,
        usage=Usage(input_tokens=size, output_tokens=estimate_tokens(blocks)),
        model=DEMO_MODEL.id,
        message_id=message_id,
    )


def make_blocks(request: ModelRequest, digest: str) -> list[Block]:
    text = read_last_text(request)
    if any(str(block.get("text", "")).startswith(TASK) for block in request.system):
        return [make_text(make_summary(text))]
    last = read_blocks(request.messages[-1]) if request.messages else []
    results = [block for block in last if block["type"] == "tool_result"]
    if step := TOUR.get(text.strip().lower()):
        return answer_tour(step, results, request, digest)
    if results:
        parts = [f"{LABEL} The tool has answered:"]
        for result in results:
            result_text = read_text(result)
            head = "It failed with:" if result.get("is_error") else "It said:"
            parts.append(f"{head}\n\n{quote(shorten(result_text, MAX_QUOTE_CHARS))}")
        parts.append(f"A real model would go on from here. {CONNECT}")
        return [make_text("\n\n".join(parts))]
    if call := choose_call(text, request.tools):
        name, arguments = call
        block = {"type": "tool_use", "id": f"toolu_demo_{digest}", "name": name, "input": arguments}
        return [make_text(f"{LABEL} I call `{name}`."), block]
    if find_call_word(text):
        return [make_text(NO_TOOL)]
    keyword = find_keyword(text, set(SCRIPTS))
    answer, thinking = SCRIPTS[keyword] if keyword else (make_echo(text), "")
    thought = {"type": "thinking", "thinking": thinking, "signature": "demo"}
    return [*([thought] if thinking else []), make_text(answer)]


def make_text(text: str) -> Block:
    return {"type": "text", "text": text}


def estimate_tokens(blocks: list[Block]) -> int:
    return len(json.dumps(blocks, ensure_ascii=False, default=str)) // CHARACTERS_PER_TOKEN


def read_blocks(message: dict[str, Any]) -> list[Block]:
    content = message.get("content")
    return [make_text(content)] if isinstance(content, str) else list(content or [])


def read_last_text(request: ModelRequest) -> str:
    """Return the last text that the person wrote."""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            for block in read_blocks(message):
                if block["type"] == "text" and not block["text"].startswith(ADDED):
                    return str(block["text"])
    return ""
