"""Comparing the sessions of an interchange file with the receipts of purged sessions."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import IO, Any, Self
from uuid import UUID

from conversations.domain.text import first_digest
from conversations.models import Receipt

from .fields import (
    UnusableLine,
    parse_object,
    read_attachment,
    read_event,
    read_lines,
    read_session,
    read_turn,
)
from .import_rows import link_event, link_turn


def check_copy(stream: IO[bytes]) -> Iterator["CheckedCopy"]:
    """Compare each session of an interchange file with its receipts, in constant memory."""
    copy: CheckedCopy | None = None
    for number, raw in read_lines(stream):
        try:
            value = parse_object(raw)
            if value.get("type") == "session":
                if copy is not None:
                    yield copy.compare()
                copy = CheckedCopy(value)
            elif copy is not None:
                copy.follow(value)
        except UnusableLine as error:
            if copy is not None:
                copy.damage.append(f"line {number}: {error}")
    if copy is not None:
        yield copy.compare()


class CheckedCopy:
    """A session in a file that is compared with its receipt.

    ``problem`` is empty if the file has exactly the turns and events that were purged. ``receipt``
    is the uuid of the matching receipt, else of the newest one; None if there is no receipt."""

    receipt: UUID | None = None
    problem = ""

    def __init__(self, value: dict[str, Any]) -> None:
        header = read_session(value)
        if header.uuid is None:
            raise UnusableLine("a session without a UUID")
        self.session = header.uuid
        self.created_at: datetime | None = header.columns["created_at"]
        self.turn_digest = first_digest(header.uuid, chain="turns")
        self.event_digest = first_digest(header.uuid, chain="events")
        self.turns = self.events = 0
        self.damage: list[str] = []

    def follow(self, value: dict[str, Any]) -> None:
        """Add the next line of the session. Raise UnusableLine."""
        kind = value.get("type")
        if kind == "turn":
            _, turn, _ = read_turn(value)
            self.turns += 1
            turn = replace(turn, created_at=self._time(turn.created_at, "a turn without a time"))
            self.turn_digest = link_turn(self.turn_digest, self.turns, turn)
        elif kind == "event":
            _, event, _ = read_event(value)
            self.events += 1
            event.created_at = self._time(event.created_at, "an event without a time")
            self.event_digest = link_event(self.event_digest, self.events, event)
        elif kind == "attachment":
            file = read_attachment(value)
            for data, digest in (("data", "digest"), ("sent_data", "sent_digest")):
                try:
                    content = base64.b64decode(file[data])
                    is_whole = not file[data] or sha256(content).hexdigest() == file[digest]
                except ValueError:
                    is_whole = False
                if not is_whole:
                    name = file["name"]
                    self.damage.append(f"the attachment {name} does not match its digest")

    def _time(self, row_time: datetime | None, problem: str) -> datetime:
        time = row_time or self.created_at
        if time is None:
            raise UnusableLine(problem)
        return time

    def compare(self) -> Self:
        # A session can have several receipts: it may have been imported and purged again.
        receipts = list(Receipt.objects.filter(session=self.session).order_by("-pk"))
        same = [
            receipt
            for receipt in receipts
            if (receipt.turn_digest, receipt.event_digest) == (self.turn_digest, self.event_digest)
        ]
        self.problem = self.damage[0] if self.damage else ""
        if not receipts:
            self.problem = "no receipt exists for it"
        elif not same:
            [newest, *_] = receipts
            self.problem = (
                f"not what was purged: {self.turns} turns and {self.events} events; the receipt "
                f"says {newest.turns} and {newest.events}, with other digests"
            )
        self.receipt = (same or receipts)[0].uuid if receipts else None
        return self
