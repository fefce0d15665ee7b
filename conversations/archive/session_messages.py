"""A session as messages of another program's format (``domain.formats``), streamed.

What is on the active path, in order. Files that were attached are in the messages as
base64; one message's contents are held at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from conversations.archive.append import walk_rows
from conversations.archive.attachments import content_opener
from conversations.archive.transcript_plan import rewound_ranges
from conversations.archive.turns import COLUMNS
from conversations.domain.formats import FORMATS, Message
from conversations.domain.turns import SYSTEM, AnyTurn, NewTurn, StoredTurn
from conversations.models import Session, Turn


def walk_messages(
    session: Session, *, format: str, from_turn: int = 0
) -> Iterator[tuple[int, Message]]:
    """Messages on the active path with the numbers of their first turns; from a turn on
    that begins one. From 0 on, the session's own instructions are a system message in
    front, unless one is there."""
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
