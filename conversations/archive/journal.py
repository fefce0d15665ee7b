"""The journal: what the person saw, event by event, for exact replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from conversations.domain.errors import Rejected
from conversations.domain.events import (
    Fallback,
    Malformed,
    Payload,
    event_type_of,
    parse_payload,
)
from conversations.domain.text import load_json, storable
from conversations.domain.turns import MalformedTurn, StoredTurn, synthesise_rows
from conversations.models import ChatEvent, DraftChunk, Session

from .append import NewEvent, Row, append, joined_transaction
from .turns import page_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as read; ``text`` is its payload as it is stored. A payload that cannot be
    read is a Fallback."""

    seq: int
    event_type: str
    payload: Payload | Fallback
    text: str
    turn: int | None
    created_at: datetime

    def as_data(self) -> dict[str, Any]:
        """For programs. The payload is the stored one: what an older version wrote besides
        is in it too."""
        damage = self.payload if isinstance(self.payload, Fallback) else None
        return {
            "seq": self.seq,
            "event_type": self.event_type,
            "payload": None if damage else load_json(self.text, default={}),
            "fallback": damage and {"reason": damage.reason, "raw": damage.raw},
            "turn": self.turn,
            "created_at": self.created_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisedEvent:
    """A row that stands for (part of) a turn without events."""

    turn: int
    part: int
    event_type: str
    payload: Payload | Fallback
    created_at: datetime


def append_chat_event(session: Session, payload: Payload, *, turn: int | None = None) -> Row | None:
    """Append one event; None when it could not be stored (which is logged)."""
    event = NewEvent(payload=payload, turn=turn)
    rows = append(session.pk, session_uuid=session.uuid, events=[event]).rows
    return rows[0] if rows else None


def get_chat_events(
    session: Session,
    *,
    before_seq: int | None = None,
    after_seq: int | None = None,
    limit: int = 250,
) -> list[StoredEvent]:
    """Events in order: the newest ones before ``before_seq``, or the oldest ones
    after ``after_seq``, at most 500. Raises Rejected for a bound that is no seq."""
    for bound in (before_seq, after_seq):
        if bound is not None and bound < 0:
            raise Rejected("A seq is not negative.", code="bad_cursor")
    events = ChatEvent.objects.filter(session=session.pk)
    if before_seq is not None:
        events = events.filter(seq__lt=before_seq)
    if after_seq is not None:
        events = events.filter(seq__gt=after_seq)
    ascending = after_seq is not None and before_seq is None
    rows = _read(events.order_by("seq" if ascending else "-seq")[: page_limit(limit)])
    return rows if ascending else rows[::-1]


def walk_events(
    session_pk: int, *, start: int | None, is_back: bool = False, limit: int
) -> list[StoredEvent]:
    """Events above ``start`` (None: from the first), or with ``is_back`` below it, the
    nearest first."""
    events = ChatEvent.objects.filter(session=session_pk)
    if start is not None:
        events = events.filter(Q(seq__lt=start) if is_back else Q(seq__gt=start))
    return _read(events.order_by("-seq" if is_back else "seq")[:limit])


def _read(events: QuerySet[ChatEvent]) -> list[StoredEvent]:
    columns = ("seq", "event_type", "payload", "turn_number", "created_at")
    return [
        StoredEvent(
            seq=seq,
            event_type=event_type,
            payload=read_payload(event_type, text),
            text=text,
            turn=turn,
            created_at=created_at,
        )
        for seq, event_type, text, turn, created_at in events.values_list(*columns)
    ]


def synthesise_events(turn: StoredTurn) -> list[SynthesisedEvent]:
    """A stored turn's rows; a turn that cannot be read gives one fallback row."""
    payloads: list[Payload | Fallback]
    try:
        payloads = list(synthesise_rows(turn))
    except MalformedTurn as error:
        payloads = [Fallback(reason=str(error), raw=turn.content)]
    return [
        SynthesisedEvent(
            turn=turn.number,
            part=part,
            event_type="fallback" if isinstance(payload, Fallback) else event_type_of(payload),
            payload=payload,
            created_at=turn.created_at,
        )
        for part, payload in enumerate(payloads)
    ]


def read_payload(event_type: str, text: str) -> Payload | Fallback:
    """A stored payload, or the structured fallback that stands for a damaged one."""
    try:
        return parse_payload(event_type, text)
    except Malformed as error:
        return Fallback(reason=str(error), raw=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the text of an answer that is still streaming; kept a few times a second."""

    run_pk: int
    ordinal: int
    part: int
    kind: str
    text: str


def append_draft_chunks(chunks: Sequence[Chunk]) -> None:
    """Keep pieces of any number of answers in one transaction. A piece that is there
    already stays as it is."""
    if not chunks:
        return
    with joined_transaction(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO conversations_draftchunk (run_id, ordinal, part, kind, text)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, ordinal) DO NOTHING",
            [(c.run_pk, c.ordinal, c.part, c.kind, storable(c.text)) for c in chunks],
        )


def read_draft(run_pk: int, *, after_ordinal: int = -1) -> list[Chunk]:
    """The kept pieces of a running answer, in order."""
    rows = DraftChunk.objects.filter(run=run_pk, ordinal__gt=after_ordinal).order_by("ordinal")
    return [
        Chunk(run_pk=run_pk, ordinal=ordinal, part=part, kind=kind, text=text)
        for ordinal, part, kind, text in rows.values_list("ordinal", "part", "kind", "text")
    ]
