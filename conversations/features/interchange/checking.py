"""A file that holds sessions, compared with the receipts of those that were purged."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, BinaryIO
from uuid import UUID

from conversations.archive.append import event_digest, turn_digest
from conversations.domain.digest import first_digest
from conversations.models import Receipt

from .fields import (
    Unusable,
    parse_object,
    read_attachment,
    read_event,
    read_lines,
    read_session,
    read_turn,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCopy:
    """A session of a file, held against its receipt. ``problem`` is empty where the
    file has what was purged, to the byte; ``receipt`` None: there is none."""

    session: UUID
    turns: int
    events: int
    receipt: UUID | None
    problem: str


def check_copy(stream: BinaryIO) -> Iterator[CheckedCopy]:
    """Compute the digests of each session of an interchange file anew, and compare them
    with the receipt. Constant memory."""
    chains: _Chains | None = None
    for number, raw in read_lines(stream):
        try:
            value = parse_object(raw)
            if value.get("type") == "session":
                if chains is not None:
                    yield chains.compare()
                chains = _Chains(value)
            elif chains is not None:
                chains.follow(value)
        except Unusable as error:
            if chains is not None:
                chains.damage.append(f"line {number}: {error}")
    if chains is not None:
        yield chains.compare()


class _Chains:
    """Both chains of digests of a session, as far as the file was read."""

    def __init__(self, value: dict[str, Any]) -> None:
        """Raises Unusable."""
        header = read_session(value)
        if header.uuid is None:
            raise Unusable("a session without a uuid")
        self.session = header.uuid
        self.created_at: datetime | None = header.columns["created_at"]
        self.turn_digest = first_digest(header.uuid, chain="turns")
        self.event_digest = first_digest(header.uuid, chain="events")
        self.turns = self.events = 0
        self.damage: list[str] = []

    def follow(self, value: dict[str, Any]) -> None:
        """The next line of the session. Raises Unusable."""
        kind = value.get("type")
        if kind == "turn":
            _, turn, _ = read_turn(value)
            self.turns += 1
            self.turn_digest = turn_digest(
                self.turn_digest,
                turn,
                number=self.turns,
                created_at=self._time(turn.created_at, "a turn"),
            )
        elif kind == "event":
            _, event, _ = read_event(value)
            self.events += 1
            self.event_digest = event_digest(
                self.event_digest,
                seq=self.events,
                event_type=event.event_type,
                payload=event.payload,
                turn=event.turn_number,
                created_at=self._time(event.created_at, "an event"),
            )
        elif kind == "attachment":
            file = read_attachment(value)
            for data, digest in (("data", "digest"), ("sent_data", "sent_digest")):
                try:
                    content = base64.b64decode(file[data])
                    is_whole = not file[data] or sha256(content).hexdigest() == file[digest]
                except binascii.Error:
                    is_whole = False
                if not is_whole:
                    name = file["name"]
                    self.damage.append(f"the attachment {name} is not what its digest says")

    def _time(self, given: datetime | None, what: str) -> datetime:
        time = given or self.created_at
        if time is None:
            raise Unusable(f"{what} without a time")
        return time

    def compare(self) -> CheckedCopy:
        # One that was imported again can have been purged more than once.
        receipts = list(Receipt.objects.filter(session=self.session).order_by("-pk"))
        same = [
            receipt
            for receipt in receipts
            if (receipt.turn_digest, receipt.event_digest) == (self.turn_digest, self.event_digest)
        ]
        problem = self.damage[0] if self.damage else ""
        if not receipts:
            problem = "there is no receipt of it"
        elif not same:
            [newest, *_] = receipts
            problem = (
                f"not what was purged: {self.turns} turns and {self.events} events, the"
                f" receipt says {newest.turns} and {newest.events}, with other digests"
            )
        return CheckedCopy(
            session=self.session,
            turns=self.turns,
            events=self.events,
            receipt=(same or receipts)[0].uuid if receipts else None,
            problem=problem,
        )
