"""A session as messages of another program's format (``domain.formats``), streamed.

What is on the active path, in order; what was rewound is in the interchange file. Files
that were attached are in the messages as base64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from conversations.archive.attachments import content_opener
from conversations.archive.row_sql import walk_rows
from conversations.archive.transcript_plan import rewound_ranges
from conversations.archive.turns import COLUMNS
from conversations.domain.digest import instant
from conversations.domain.formats import ANTHROPIC, FORMATS, Message
from conversations.domain.formats.messages_api import split_system
from conversations.domain.text import dump_json
from conversations.domain.turns import SYSTEM, AnyTurn, NewTurn, StoredTurn
from conversations.models import Session, Turn


def walk_messages(
    session: Session, *, format: str, from_turn: int = 0
) -> Iterator[tuple[int, Message]]:
    """Messages on the active path with the numbers of their first turns; from a turn on
    that begins one. From 0 on, the session's own instructions are a system message in
    front, unless one is there. One message's contents are held at a time."""
    turns: Iterator[AnyTurn] = _walk_active(session, from_turn=from_turn)
    if from_turn == 0 and session.instructions:
        turns = _with_instructions(session.instructions, turns)
    return FORMATS[format].write(turns, content_opener(session.pk))


def _with_instructions(instructions: str, turns: Iterator[AnyTurn]) -> Iterator[AnyTurn]:
    first = next(turns, None)
    if first is None or first.role != SYSTEM:
        yield NewTurn(role=SYSTEM, content=instructions)
    if first is not None:
        yield first
    yield from turns


def _walk_active(session: Session, *, from_turn: int) -> Iterator[StoredTurn]:
    turns = Turn.objects.filter(
        session=session.pk, number__gte=from_turn, number__lt=session.next_turn
    )
    for gone in rewound_ranges(session, source="turn"):
        turns = turns.exclude(number__range=(gone.low, gone.high))
    return (StoredTurn(**row) for row in walk_rows(turns, *COLUMNS, key="number"))


def session_messages(session: Session, *, format: str) -> Iterator[str]:
    """The session as one line of JSON, in pieces: what it is, then ``messages`` (and
    before them ``system``, where the format has that apart)."""
    head = dump_json(_head(session))
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


def _head(session: Session) -> dict[str, Any]:
    values = {
        "session": str(session.uuid),
        "workspace": session.workspace.slug,
        "key": session.key,
        "title": session.title,
        "model": session.model,
        "created_at": instant(session.created_at),
    }
    return {name: value for name, value in values.items() if value}


def _take_system(messages: Iterator[Message]) -> tuple[list[Any], Message | None]:
    """The system messages in front, and the one after them."""
    front: list[Message] = []
    for message in messages:
        if message["role"] != SYSTEM:
            return split_system(front)[0], message
        front.append(message)
    return split_system(front)[0], None


WRITERS: dict[str, Callable[[Session], Iterator[str]]] = {
    name: partial(session_messages, format=name) for name in FORMATS
}
"""By the format's name: what writes a session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """``next_turn`` is where the next page begins; None: this is the last."""

    messages: list[Message]
    next_turn: int | None


def read_messages(session: Session, *, format: str, from_turn: int = 0, limit: int) -> MessagePage:
    """So many messages from a turn on that begins one."""
    taken: list[Message] = []
    for number, message in walk_messages(session, format=format, from_turn=from_turn):
        if len(taken) == limit:
            return MessagePage(messages=taken, next_turn=number)
        taken.append(message)
    return MessagePage(messages=taken, next_turn=None)
