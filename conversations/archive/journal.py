"""The journal: what the person saw, event by event, for exact replay."""

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


def walk_events(
    session_pk: int, *, start: int | None, is_back: bool = False, limit: int
) -> list[StoredEvent]:
    """Events above ``start`` (None: from the first), or with ``is_back`` below it, the
    nearest first."""
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
    """A stored turn's rows; a turn that cannot be read gives one fallback row."""
    try:
        return list(synthesise_rows(turn))
    except MalformedTurn as error:
        return [Fallback(reason=str(error), raw=turn.content)]


def read_payload(event_type: str, text: str) -> Payload | Fallback:
    """A stored payload, or the structured fallback that stands for a damaged one."""
    try:
        return parse_payload(event_type, text)
    except MalformedPayload as error:
        return Fallback(reason=str(error), raw=text)


def append_draft_chunks(chunks: Sequence[DraftChunk]) -> None:
    """Keep pieces of any number of answers in one transaction. A piece that is there
    already stays as it is."""
    if not chunks:
        return
    with joined_transaction(), connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO conversations_draftchunk (run_id, ordinal, part, kind, text)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (run_id, ordinal) DO NOTHING",
            [(c.run_id, c.ordinal, c.part, c.kind, storable(c.text)) for c in chunks],
        )


def read_draft(run_pk: int, *, after_ordinal: int = -1) -> list[DraftChunk]:
    """The kept pieces of a running answer, in order."""
    chunks = DraftChunk.objects.filter(run=run_pk, ordinal__gt=after_ordinal)
    return list(chunks.order_by("ordinal"))
