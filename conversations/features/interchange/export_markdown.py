"""A session as Markdown, for reading; the interchange file is for keeping."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from conversations.archive.row_sql import walk_rows
from conversations.archive.transcript_plan import RewoundRange, rewound_ranges
from conversations.archive.turns import COLUMNS
from conversations.domain.text import one_line
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    attached_names,
    read_blocks,
    read_metadata,
    read_tool_calls,
)
from conversations.models import Session, Turn

SPEAKERS = {USER: "You", ASSISTANT: "Assistant", TOOL: "Tool", SYSTEM: "System"}

_BACKTICKS = re.compile(r"`{3,}")
_MARKUP = re.compile(r"([\\`*_\[\]<>#])")


def session_markdown(session: Session) -> Iterator[str]:
    """The session in pieces: a heading for each turn, tool calls and outputs as
    code. Replaced turns and answers that were cut off are marked as such."""
    yield _head(session)
    rewound = rewound_ranges(session, source="turn")
    turns = Turn.objects.filter(session=session.pk, number__lt=session.next_turn)
    for row in walk_rows(turns, *COLUMNS, key="number"):
        turn = StoredTurn(**row)
        yield _turn(turn, is_replaced=_is_in(rewound, turn.number))


def _head(session: Session) -> str:
    facts = [
        f"- Workspace: {_plain(session.workspace.name)}",
        f"- Session: {session.uuid}",
        f"- Model: {_plain(session.model)}" if session.model else "",
        f"- Begun: {_moment(session.created_at)}",
        f"- Last active: {_moment(session.last_active_at)}",
        f"- Turns: {session.turn_count}",
    ]
    title = _plain(session.title) or "Untitled session"
    return f"# {title}\n\n" + "\n".join(fact for fact in facts if fact) + "\n"


def _turn(turn: StoredTurn, *, is_replaced: bool) -> str:
    marks = [
        f"turn {turn.number}",
        _moment(turn.created_at),
        "replaced" if is_replaced else "",
        "" if turn.complete else "cut off",
    ]
    speaker = SPEAKERS[turn.role]
    if turn.role == TOOL and turn.tool_name:
        speaker = f"Tool: {_plain(turn.tool_name)}"
    parts = [f"## {speaker}", f"*{', '.join(mark for mark in marks if mark)}*", *_body(turn)]
    return "\n" + "\n\n".join(parts) + "\n"


def _body(turn: StoredTurn) -> Iterator[str]:
    for name in attached_names(turn):
        yield f"Attached: {_plain(name)}"
    if turn.role == TOOL:
        if read_metadata(turn).get("ok") is False:
            yield "Failed."
        yield fenced(turn.content)
        return
    thinking = _thinking(turn)
    if thinking:
        yield "Thinking:"
        yield fenced(thinking)
    if turn.content.strip():
        yield turn.content.rstrip()
    for call in _calls(turn):
        yield f"Tool call `{_code_span(str(call.get('name') or 'tool'))}`:"
        yield fenced(_pretty(call.get("input")), language="json")


def _thinking(turn: StoredTurn) -> str:
    try:
        blocks = read_blocks(turn) or []
    except MalformedTurn:
        return ""
    parts = [str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking"]
    return "\n\n".join(parts).strip() or str(read_metadata(turn).get("thinking") or "")


def _calls(turn: StoredTurn) -> list[dict[str, Any]]:
    if turn.role != ASSISTANT:
        return []
    try:
        return read_tool_calls(turn)
    except MalformedTurn:
        return []


def _pretty(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text.encode("utf-8", "backslashreplace").decode()


def fenced(text: str, *, language: str = "") -> str:
    """The text as a code block, with a fence longer than any inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip('\n')}\n{fence}"


def _code_span(text: str) -> str:
    return one_line(text.replace("`", "'"), limit=120)


def _plain(text: str) -> str:
    """Text on one line that no reader takes for markup."""
    return _MARKUP.sub(r"\\\1", one_line(text, limit=200))


def _is_in(ranges: list[RewoundRange], number: int) -> bool:
    return any(rewound.low <= number <= rewound.high for rewound in ranges)


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
