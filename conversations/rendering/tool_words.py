"""What a person reads of a tool call: its name, its telling argument, its state."""

import re
import shlex
from typing import Any
from uuid import UUID

from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.text import dump_json, load_json, one_line, storable
from conversations.domain.tool_calls import (
    ALWAYS,
    COMPLETED,
    DENIED,
    DENY,
    INTERRUPTED,
    ONCE,
    RUNNING,
    STARTED,
    STOPPED,
    WAITING,
)

# Rows of the recall tool: what was looked up, and links to the turns it quotes.


RECALL_LINE_CHARS = 100

_HEAD = re.compile(r"^\[(?:Turn (?P<turn>\d{1,15})|Session (?P<session>[0-9a-f-]{36}))\]", re.M)
"""How a quoted turn, and turns of another session, begin. No quoted text begins a line
like that, because the tool indents it."""


def recall_line(arguments: Any) -> str:
    """What was looked up, on one line: ``search "auth token"``, ``range 41–57``."""
    if not isinstance(arguments, dict):
        return ""
    parts = [_text(arguments, "action"), _text(arguments, "tool_name"), _turns(arguments)]
    if query := _text(arguments, "query"):
        parts.append(f'"{query}"')
    if session := _text(arguments, "session"):
        parts.append(f"in {session[:8]}")
    return one_line(storable(" ".join(part for part in parts if part)), limit=RECALL_LINE_CHARS)


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    return value if isinstance(value, str) else ""


def _turns(arguments: dict[str, Any]) -> str:
    ends = [arguments.get(name) for name in ("start_turn", "end_turn")]
    return "–".join(dict.fromkeys(str(end) for end in ends if isinstance(end, int | str)))


def session_at(text: str, place: int, session: UUID) -> UUID:
    """The session whose turns are quoted at that place of an output; ``session`` is the
    row's own."""
    start = text.rfind("\n[Session ", 0, place) + 1
    named = _HEAD.match(text, start) if start else None
    return UUID(named["session"]) if named and named["session"] else session


def link_turns(html: str, session: UUID) -> str:
    """The escaped output with each quoted turn's head as a link to it. ``session`` is
    the row's own, to which turns belong until another one is named."""
    current = str(session)

    def link(head: re.Match[str]) -> str:
        nonlocal current
        current = head["session"] or current
        place = f"t/{head['turn']}/" if head["turn"] else ""
        return f'<a href="/s/{current}/{place}">{head[0]}</a>'

    return _HEAD.sub(link, html)


LINE_CHARS = 160

TOOLS: dict[str, tuple[str, str]] = {
    RECALL_TOOL: ("Recall", "recall"),
    "load_skill": ("Skill", "read"),
    "session_state": ("Session state", "list"),
    "read_file": ("Read", "read"),
    "list_files": ("List", "list"),
    "glob_files": ("Find files", "search"),
    "search_files": ("Search", "search"),
    "write_file": ("Write", "edit"),
    "edit_file": ("Edit", "edit"),
    "delete_file": ("Delete", "remove"),
    "move_file": ("Move", "edit"),
    "shell_execute": ("Run", "run"),
    "git_command": ("Git", "run"),
    "fetch_url": ("Fetch", "web"),
}
"""The word and the icon of each tool that is ours."""

STATES: dict[str, tuple[str, str]] = {
    STARTED: ("started", "Started"),
    WAITING: ("waiting", "Waiting"),
    RUNNING: ("running", "Running"),
    DENIED: ("denied", "Denied"),
    STOPPED: ("stopped", "Stopped"),
    INTERRUPTED: ("interrupted", "Interrupted"),
}
"""The mark and the word of each state; ``completed`` is told by the outcome."""

_OUTCOMES = {True: ("done", "Done"), False: ("failed", "Failed"), None: ("unknown", "Unknown")}

_OF_SERVER = re.compile(r"mcp__(.+?)__(.+)", re.DOTALL)
_TELLING = ("command", "pattern", "query", "path", "file_path", "url", "name", "text")
_EDITED = ("content", "old_text", "new_text", "old_string", "new_string", "edits", "replace_all")


def tool_word(name: str) -> tuple[str, str]:
    """What the tool is called on the page, and its icon."""
    if name in TOOLS:
        return TOOLS[name]
    server = _OF_SERVER.fullmatch(name)
    word = f"{server[1]}: {server[2]}" if server else name
    return storable(word) or "tool", "tool"


def state_word(state: str, ok: bool | None) -> tuple[str, str]:
    """The mark of a state and its word."""
    if state in ("", COMPLETED):
        return _OUTCOMES[ok] if ok is not None else ("unknown", "Outcome unknown")
    return STATES.get(state, ("unknown", state))


def decision_text(decision: str, *, by: str, reason: str, kind: str = "") -> str:
    """Who let a call run, or did not; empty where the policy did."""
    person = f" by {by}" if by else ""
    because = f": {reason}" if reason else ""
    if decision == DENY:
        return f"Denied{person}{because}"
    if decision == ONCE:
        return f"Allowed once{person}{because}"
    if decision == ALWAYS:
        return f"Always allowed{person}{f': {kind}' if kind else ''}"
    return ""


def read_arguments(arguments: Any) -> Any:
    """The arguments as an object, where they are the text of one."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
        return arguments
    try:
        return load_json(arguments)
    except ValueError:
        return arguments


def telling_argument(name: str, arguments: Any) -> str:
    """What says most about a call, on one line."""
    if isinstance(arguments, str):
        return _line(arguments)
    if not isinstance(arguments, dict) or not arguments:
        return ""
    if name == RECALL_TOOL:
        return recall_line(arguments)
    if name == "move_file":
        return _line(" → ".join(value for value in arguments.values() if isinstance(value, str)))
    found = next((key for key in _TELLING if isinstance(arguments.get(key), str)), "")
    if not found:
        return _line(_as_text(next(iter(arguments.values()))))
    where = arguments.get("path") if found == "pattern" else None
    return _line(f"{arguments[found]} in {where}" if where else arguments[found])


def arguments_text(arguments: Any, *, without_texts: bool) -> str:
    """The arguments, one a line. ``without_texts``: a diff shows what was written."""
    if isinstance(arguments, str):
        return storable(arguments)
    if not isinstance(arguments, dict):
        return "" if arguments is None else storable(dump_json(arguments))
    shown = {k: v for k, v in arguments.items() if not (without_texts and k in _EDITED)}
    return storable("\n".join(f"{name}: {_as_text(value)}" for name, value in shown.items()))


def _line(text: str) -> str:
    return one_line(storable(text), limit=LINE_CHARS)


def _as_text(value: Any) -> str:
    """Words of a command as a person would type them, other values as JSON."""
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else dump_json(value)
