"""Which tool the demo model calls, and with what: so that a person without a key sees
tools at work, a question for approval, and how a change is taken back."""

from collections.abc import Callable
from typing import Any

from conversations.domain.searchable import RECALL_TOOL

from .demo_script import SCRIPTS, bare_word, find_keyword, is_keyword

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
