"""The audit log: the one place that writes it, and its readers.

An entry is committed before what it is about is shown or done: a reading that cannot
be recorded does not happen.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.audit import FIRST, READINGS, SERVER, DigestedColumns, entry_digest
from conversations.domain.text import dump_json, one_line, storable
from conversations.models import AuditEntry, AuditHead, Session

HEAD_PK = 1  # There is one head.

BATCH_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOrigin:
    """Who does something, and from where. ``user`` is None for a command on the server
    and for the scheduler, which ``name`` then names."""

    user: User | None = None
    name: str = ""
    place: str = ""
    address: str = ""
    agent: str = ""
    reason: str = ""

    @property
    def actor_name(self) -> str:
        if self.user is None:
            return self.name or SERVER
        return self.user.get_username()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """What is to be entered. ``metadata`` is what else should be known (plain JSON);
    the ``reason`` is the origin's where it has none of its own."""

    action: str
    session: UUID | None = None
    workspace: str = ""
    reason: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def session_event(session: Session, action: str, **metadata: Any) -> AuditEvent:
    """An entry about this session."""
    return AuditEvent(
        action=action, session=session.uuid, workspace=session.workspace.slug, metadata=metadata
    )


def record(origin: AuditOrigin, *notes: AuditEvent) -> list[AuditEntry]:
    """Add entries, in one transaction: that of the caller, where there is one. Until it
    ends nobody else can add any."""
    if not notes:
        return []
    with transaction.atomic():
        head = lock_log()
        entries = [_next_entry(head, origin, note, at=timezone.now()) for note in notes]
        AuditEntry.objects.bulk_create(entries)
        AuditHead.objects.filter(pk=HEAD_PK).update(number=head.number, digest=head.digest)
    return entries


def lock_log() -> AuditHead:
    """Until the caller's transaction ends nobody else can add entries: acts that decide by
    what they find, and are entered, follow each other. Before any other lock."""
    heads = AuditHead.objects.select_for_update()
    if found := heads.filter(pk=HEAD_PK).first():
        return found
    AuditHead.objects.get_or_create(pk=HEAD_PK, defaults={"digest": FIRST})
    return heads.get(pk=HEAD_PK)


def _next_entry(
    head: AuditHead, origin: AuditOrigin, note: AuditEvent, *, at: datetime
) -> AuditEntry:
    entry = AuditEntry(
        number=head.number + 1,
        at=at,
        action=note.action,
        actor=origin.user,
        actor_name=one_line(storable(origin.actor_name), limit=200),
        session=note.session,
        workspace=note.workspace,
        place=one_line(storable(origin.place), limit=500),
        address=origin.address[:45],
        agent=one_line(storable(origin.agent), limit=200),
        reason=one_line(storable(note.reason or origin.reason), limit=500),
        metadata=dump_json(note.metadata),
    )
    entry.digest = entry_digest(head.digest, _chained(entry))
    head.number, head.digest = entry.number, entry.digest
    return entry


def _chained(entry: AuditEntry) -> DigestedColumns:
    own: dict[str, Any] = {"actor": entry.actor_id, "session": str(entry.session or "")}
    names = [name for name in DigestedColumns._fields if name not in own]
    return DigestedColumns(**{name: getattr(entry, name) for name in names}, **own)


def readings_of(session_uuid: UUID) -> QuerySet[AuditEntry]:
    """Access log session, the latest first. They are most of its entries, so a
    page of them costs what it shows."""
    return AuditEntry.objects.filter(session=session_uuid, action__in=READINGS).order_by("-number")


def verify_audit() -> tuple[int, str]:
    """How many entries are as they were written, and what is wrong with the next one;
    an empty text when all are. In constant memory; entries may be added meanwhile."""
    head = AuditHead.objects.filter(pk=HEAD_PK).first() or AuditHead(number=0, digest=FIRST)
    digest, count = FIRST, 0
    while batch := list(
        AuditEntry.objects.filter(number__gt=count).order_by("number")[:BATCH_ROWS]
    ):
        for entry in batch:
            if entry.number != count + 1:
                return count, f"audit entry {count + 1} is missing"
            digest = entry_digest(digest, _chained(entry))
            if digest != entry.digest:
                return count, f"audit entry {entry.number} differs from what was written"
            count = entry.number
            if count == head.number and digest != head.digest:
                return count, f"the end of the audit log is not at entry {count}"
    if count < head.number:
        return count, f"audit entry {count + 1} is missing"
    return count, ""
