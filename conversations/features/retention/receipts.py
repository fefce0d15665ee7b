"""Receipts: looked up, verified, and held against a copy of what was purged."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, BinaryIO
from uuid import UUID

from django.db.models import QuerySet

from conversations.archive.append import event_digest, turn_digest
from conversations.archive.audit import AuditOrigin, note_of, record
from conversations.archive.expiry import is_over
from conversations.archive.purge import digest_of_receipt
from conversations.domain.audit import PURGED, RESTORED
from conversations.domain.digest import first_digest
from conversations.domain.errors import NotFound
from conversations.domain.text import load_json
from conversations.features.interchange.fields import (
    Unusable,
    parse_object,
    read_attachment,
    read_event,
    read_lines,
    read_session,
    read_turn,
)
from conversations.models import AuditEntry, Receipt, Session

CHUNK = 200


def get_receipt(uuid: UUID) -> Receipt:
    """Raises NotFound."""
    found = Receipt.objects.filter(uuid=uuid).first()
    if found is None:
        raise NotFound("There is no such receipt.")
    return found


def receipts_of(session: UUID) -> QuerySet[Receipt]:
    """Those of a session, the latest first: one that was brought back can be purged
    again."""
    return Receipt.objects.filter(session=session).order_by("-pk")


def list_receipts(*, query: str = "", before: int | None = None, limit: int) -> list[Receipt]:
    """Receipts, the latest first; those of a session's uuid, a workspace or an owner."""
    receipts = Receipt.objects.order_by("-pk")
    if query:
        receipts = receipts.filter(**_asked(query))
    if before is not None:
        receipts = receipts.filter(pk__lt=before)
    return list(receipts[:limit])


def _asked(query: str) -> dict[str, Any]:
    try:
        return {"session": UUID(query)}
    except ValueError:
        found = Receipt.objects.filter(workspace=query).exists()
        return {"workspace": query} if found else {"owner": query}


def record_restored(
    session: Session, receipt: Receipt, *, origin: AuditOrigin, now: datetime
) -> None:
    """The session is back: in use from now on, and on record. One that had expired and
    given its key free has done so still."""
    sessions = Session.objects.filter(pk=session.pk)
    sessions.update(archived_at=None, last_active_at=now)
    if session.key is None:
        sessions.filter(is_over(now)).update(expired_at=now, former_key=receipt.key or None)
    record(origin, note_of(session, RESTORED, receipt=str(receipt.uuid)))


def verify_receipts() -> tuple[int, list[str]]:
    """How many receipts there are, and what is wrong with those that are not as they
    were written, or of which the audit log knows nothing."""
    count, problems, last = 0, list[str](), 0
    while page := list(Receipt.objects.filter(pk__gt=last).order_by("pk")[:CHUNK]):
        entered = _entered([receipt.session for receipt in page])
        for receipt in page:
            count += 1
            if receipt.digest != digest_of_receipt(receipt):
                problems.append(f"the receipt {receipt.uuid} is not what was written")
            elif entered.get(str(receipt.uuid)) != receipt.digest:
                problems.append(f"the audit log has no entry of the receipt {receipt.uuid}")
        last = page[-1].pk
    return count, problems + [f"the receipt {uuid} is missing" for uuid in _missing()]


def _entered(sessions: list[UUID]) -> dict[str, str]:
    """Receipt → digest, as the audit log has them of these sessions."""
    entries = AuditEntry.objects.filter(session__in=sessions, action=PURGED).order_by("number")
    return dict(map(_receipt_of, entries.values_list("metadata", flat=True)))


def _receipt_of(metadata: str) -> tuple[str, str]:
    known = load_json(metadata, default={})
    return str(known.get("receipt")), str(known.get("digest"))


def _missing() -> Iterator[str]:
    """Receipts that the audit log has and the table has not."""
    last = 0
    purged = AuditEntry.objects.filter(action=PURGED).order_by("number")
    while page := list(purged.filter(number__gt=last).values_list("number", "metadata")[:CHUNK]):
        named = [_receipt_of(metadata)[0] for _, metadata in page]
        found = Receipt.objects.filter(uuid__in=named).values_list("uuid", flat=True)
        yield from sorted(set(named) - {str(uuid) for uuid in found})
        last = page[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A session of a file, held against its receipt. ``problem`` is empty where the
    file has what was purged, to the byte; ``receipt`` None: there is none."""

    session: UUID
    turns: int
    events: int
    receipt: UUID | None
    problem: str


@dataclass(slots=True, kw_only=True)
class _Chains:
    session: UUID
    created_at: datetime | None
    turn_digest: str
    event_digest: str
    turns: int = 0
    events: int = 0
    damage: list[str] = field(default_factory=list)


def check_copy(stream: BinaryIO) -> Iterator[Checked]:
    """Compute the digests of each session of an interchange file anew, and compare them
    with the receipt. Constant memory."""
    chains: _Chains | None = None
    for number, raw in read_lines(stream):
        try:
            value = parse_object(raw)
            if value.get("type") == "session":
                if chains is not None:
                    yield _compare(chains)
                chains = _begin(value)
            elif chains is not None:
                _follow(chains, value)
        except Unusable as error:
            if chains is not None:
                chains.damage.append(f"line {number}: {error}")
    if chains is not None:
        yield _compare(chains)


def _begin(value: dict[str, Any]) -> _Chains:
    header = read_session(value)
    if header.uuid is None:
        raise Unusable("a session without a uuid")
    return _Chains(
        session=header.uuid,
        created_at=header.columns["created_at"],
        turn_digest=first_digest(header.uuid, chain="turns"),
        event_digest=first_digest(header.uuid, chain="events"),
    )


def _follow(chains: _Chains, value: dict[str, Any]) -> None:
    kind = value.get("type")
    if kind == "turn":
        _follow_turn(chains, value)
    elif kind == "event":
        _follow_event(chains, value)
    elif kind == "attachment":
        _check_attachment(chains, value)


def _follow_turn(chains: _Chains, value: dict[str, Any]) -> None:
    line = read_turn(value)
    created_at = line.turn.created_at or chains.created_at
    if created_at is None:
        raise Unusable("a turn without a time")
    chains.turns += 1
    chains.turn_digest = turn_digest(
        chains.turn_digest, line.turn, number=chains.turns, created_at=created_at
    )


def _follow_event(chains: _Chains, value: dict[str, Any]) -> None:
    line = read_event(value)
    created_at = line.created_at or chains.created_at
    if created_at is None:
        raise Unusable("an event without a time")
    chains.events += 1
    chains.event_digest = event_digest(
        chains.event_digest,
        seq=chains.events,
        event_type=line.event_type,
        payload=line.payload,
        turn=line.turn,
        created_at=created_at,
    )


def _check_attachment(chains: _Chains, value: dict[str, Any]) -> None:
    line = read_attachment(value)
    for data, digest in ((line.data, line.digest), (line.sent_data, line.sent_digest)):
        try:
            is_whole = not data or sha256(base64.b64decode(data)).hexdigest() == digest
        except binascii.Error:
            is_whole = False
        if not is_whole:
            chains.damage.append(
                f"the attachment {line.columns['name']} is not what its digest says"
            )


def _compare(chains: _Chains) -> Checked:
    receipts = list(receipts_of(chains.session))
    same = [
        receipt
        for receipt in receipts
        if (receipt.turn_digest, receipt.event_digest) == (chains.turn_digest, chains.event_digest)
    ]
    problem = chains.damage[0] if chains.damage else ""
    if not receipts:
        problem = "there is no receipt of it"
    elif not same:
        [newest, *_] = receipts
        problem = (
            f"not what was purged: {chains.turns} turns and {chains.events} events, the"
            f" receipt says {newest.turns} and {newest.events}, with other digests"
        )
    return Checked(
        session=chains.session,
        turns=chains.turns,
        events=chains.events,
        receipt=(same or receipts)[0].uuid if receipts else None,
        problem=problem,
    )
