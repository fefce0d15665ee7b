"""What the demo model says: a table of keywords and the texts that they call up."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.windows import HEADINGS

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
