"""The journal: what the person saw, event by event, for exact replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Q

from conversations.domain.errors import Rejected
from conversations.domain.events import (
    Fallback,
    Malformed,
    Payload,
    event_type_of,
    parse_payload,
)
from conversations.domain.text import load_json, storable
from conversations.domain.turns import MalformedTurn, synthesise_rows
from conversations.models import ChatEvent, DraftChunk, Session, Turn

from .append import NewEvent, Row, append, joined_transaction
from .turns import page_limit, stored_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as read. A payload that cannot be read is a Fallback."""

    seq: int
    event_type: str
    payload: Payload | Fallback
    turn: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEvent:
    """An event as it is stored. ``payload`` is None where it is damaged."""

    seq: int
    event_type: str
    payload: dict[str, Any] | None
    damage: Fallback | None
    turn: int | None
    created_at: datetime

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        damage = self.damage
        return {
            "seq": self.seq,
            "event_type": self.event_type,
            "payload": self.payload,
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
    rows = append(
        session.pk, session_uuid=session.uuid, events=[NewEvent(payload=payload, turn=turn)]
    ).rows
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
    events = events.order_by("seq" if ascending else "-seq")[: page_limit(limit)]
    rows = [
        StoredEvent(
            seq=seq,
            event_type=event_type,
            payload=read_payload(event_type, payload),
            turn=turn,
            created_at=created_at,
        )
        for seq, event_type, payload, turn, created_at in events.values_list(
            "seq", "event_type", "payload", "turn_number", "created_at"
        )
    ]
    return rows if ascending else rows[::-1]


def read_raw_events(
    session_pk: int, *, start: int | None, is_back: bool = False, limit: int
) -> list[RawEvent]:
    """Events above ``start`` (None: from the first), or with ``is_back`` below it, the
    nearest first."""
    events = ChatEvent.objects.filter(session=session_pk)
    if start is not None:
        events = events.filter(Q(seq__lt=start) if is_back else Q(seq__gt=start))
    columns = ("seq", "event_type", "payload", "turn_number", "created_at")
    rows = events.order_by("-seq" if is_back else "seq").values_list(*columns)
    return [_raw_event(*row) for row in rows[:limit]]


def _raw_event(
    seq: int, event_type: str, payload: str, turn: int | None, created_at: datetime
) -> RawEvent:
    read = read_payload(event_type, payload)
    is_damaged = isinstance(read, Fallback)
    return RawEvent(
        seq=seq,
        event_type=event_type,
        payload=None if is_damaged else load_json(payload, default={}),
        damage=read if isinstance(read, Fallback) else None,
        turn=turn,
        created_at=created_at,
    )


def get_last_chat_seq(session: Session) -> int:
    """The seq of the last event, 0 if there is none."""
    return int(Session.objects.values_list("next_seq", flat=True).get(pk=session.pk)) - 1


def synthesize_chat_events_from_turns(
    session: Session, *, before_turn: int | None = None, limit: int = 250
) -> list[SynthesisedEvent]:
    """The rows of the newest turns before a turn, in order, for a session without
    a journal. ``limit`` counts turns, so no turn's rows are ever cut apart."""
    turns = Turn.objects.filter(session=session.pk)
    if before_turn is not None:
        turns = turns.filter(number__lt=before_turn)
    newest = stored_turns(turns.order_by("-number")[: page_limit(limit)])
    return [event for turn in reversed(newest) for event in synthesise_events(turn)]


def synthesise_events(turn: Any) -> list[SynthesisedEvent]:
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


# The text of answers that are still streaming, kept a few times a second.


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
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
