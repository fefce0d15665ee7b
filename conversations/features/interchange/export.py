"""In which formats a session is exported, and all sessions of a person."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.contrib.auth.models import User

from conversations.archive.append import walk_rows
from conversations.archive.rights import workspaces_of
from conversations.archive.session_messages import walk_messages
from conversations.archive.transcript_plan import RewoundRange, rewound_ranges
from conversations.archive.turns import COLUMNS
from conversations.domain.formats import ANTHROPIC, OPENAI, Message
from conversations.domain.formats.messages_api import split_system
from conversations.domain.text import dump_json, instant, one_line
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

from .export_sessions import session_lines

# A session as Markdown, for reading; the interchange file is for keeping.


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


def session_messages(session: Session, *, format: str) -> Iterator[str]:
    """The session as one line of JSON, in pieces: what it is, then ``messages`` (and
    before them ``system``, where the format has that apart)."""
    facts = {
        "session": str(session.uuid),
        "workspace": session.workspace.slug,
        "key": session.key,
        "title": session.title,
        "model": session.model,
        "created_at": instant(session.created_at),
    }
    head = dump_json({name: value for name, value in facts.items() if value})
    messages = (message for _, message in walk_messages(session, format=format))
    if format == ANTHROPIC:
        system, first = _take_system(messages)
        yield head[:-1] + (f',"system":{dump_json(system)}' if system else "")
    else:
        first = next(messages, None)
        yield head[:-1]
    yield ',"messages":['
    if first is not None:
        yield dump_json(first)
    for message in messages:
        yield "," + dump_json(message)
    yield "]}\n"


def _take_system(messages: Iterator[Message]) -> tuple[list[Any], Message | None]:
    """The system messages in front, and the one after them."""
    front: list[Message] = []
    for message in messages:
        if message["role"] != SYSTEM:
            return split_system(front)[0], message
        front.append(message)
    return split_system(front)[0], None


def session_text(session: Session) -> Iterator[str]:
    """The interchange lines with their ends."""
    return (line + "\n" for line in session_lines(session))


def own_session_text(user: User) -> Iterator[bytes]:
    """One interchange file of a person's sessions, the oldest first. Memory does not grow
    with their number or length."""
    # What somebody has left is not theirs to read any more.
    own = Session.objects.filter(owner=user, workspace__in=workspaces_of(user.pk))
    for row in walk_rows(own, "pk", key="pk"):
        of_key = Session.objects.select_related("workspace", "owner", "parent")
        for found in of_key.filter(pk=row["pk"]):  # none, where it was purged meanwhile
            for line in session_text(found):
                yield line.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """``says`` what it is good for; ``ending`` is how the file's name ends."""

    says: str
    write: Callable[[Session], Iterator[str]]
    ending: str
    content_type: str


FORMATS = {
    "markdown": ExportFormat(
        "Markdown, for reading", session_markdown, "md", "text/markdown; charset=utf-8"
    ),
    "jsonl": ExportFormat(
        "JSON lines, with everything", session_text, "jsonl", "application/jsonl; charset=utf-8"
    ),
    **{
        name: ExportFormat(
            says, partial(session_messages, format=name), f"{name}.json", "application/json"
        )
        for name, says in (
            (ANTHROPIC, "Messages of the Messages API"),
            (OPENAI, "Messages of OpenAI's chat completions"),
        )
    },
}
"""The first is what one gets without saying a format."""
