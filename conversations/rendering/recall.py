"""Rows of the recall tool: what was looked up, and links to the turns it quotes."""

import re
from typing import Any
from uuid import UUID

from conversations.domain.text import one_line, storable

LINE_CHARS = 100

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
    return one_line(storable(" ".join(part for part in parts if part)), limit=LINE_CHARS)


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
