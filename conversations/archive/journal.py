"""The journal: the events that the person saw, stored for exact replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Q

from conversations.domain.events import Fallback, MalformedPayload, Payload, parse_payload
from conversations.domain.text import load_json, storable
from conversations.domain.turns import MalformedTurn, StoredTurn, synthesise_rows
from conversations.models import ChatEvent, DraftChunk

from .append import joined_transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as it was read from the database.

    ``text`` is the stored payload. ``payload`` is a Fallback if the stored payload cannot be read.
    """

    seq: int
    event_type: str
    payload: Payload | Fallback
    text: str
    turn: int | None
    created_at: datetime

    def as_data(self) -> dict[str, Any]:
        """Return the event as plain data for programs.

        The payload is the stored one, so it includes keys that only older versions wrote.
        """
        damage = self.payload if isinstance(self.payload, Fallback) else None
        return {
            "seq": self.seq,
            "event_type": self.event_type,
            "payload": None if damage else load_json(self.text, default={}),
            "fallback": damage and {"reason": damage.reason, "raw": damage.raw},
            "turn": self.turn,
            "created_at": self.created_at,
        }


def walk_events(
    session_pk: int, *, start: int | None, is_back: bool = False, limit: int
) -> list[StoredEvent]:
    """Return events after ``start``, or from the first event if ``start`` is None.

    With ``is_back``, return events before ``start``. The nearest event comes first.
    """
    events = ChatEvent.objects.filter(session=session_pk)
    if start is not None:
        events = events.filter(Q(seq__lt=start) if is_back else Q(seq__gt=start))
    events = events.order_by("-seq" if is_back else "seq")[:limit]
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


def synthesise_events(turn: StoredTurn) -> list[Payload | Fallback]:
    """Return the rows of a stored turn, or one fallback row if the turn cannot be read."""
    try:
        return list(synthesise_rows(turn))
    except MalformedTurn as error:
        return [Fallback(reason=str(error), raw=turn.content)]


def read_payload(event_type: str, text: str) -> Payload | Fallback:
    """Return a stored payload, or a Fallback with its text if the payload is damaged."""
    try:
        return parse_payload(event_type, text)
    except MalformedPayload as error:
        return Fallback(reason=str(error), raw=text)


def append_draft_chunks(chunks: Sequence[DraftChunk]) -> None:
    """Store pieces of the drafts of any number of runs in one transaction.

    Pieces that are already stored stay as they are.
    """
    if not chunks:
        return
    with joined_transaction(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO conversations_draftchunk (run_id, ordinal, part, kind, text)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, ordinal) DO NOTHING",
            [(c.run_id, c.ordinal, c.part, c.kind, storable(c.text)) for c in chunks],
        )


def read_draft(run_pk: int, *, after_ordinal: int = -1) -> list[DraftChunk]:
    """Return the stored pieces of a run's draft, in order."""
    chunks = DraftChunk.objects.filter(run=run_pk, ordinal__gt=after_ordinal)
    return list(chunks.order_by("ordinal"))
