"""The audit log: the only code that writes it, and its readers.

An entry is committed before the content it is about is shown or the action is done. If a reading
cannot be recorded, it is refused.
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

from .append import walk_by_key

HEAD_PK = 1  # The table has only one row.


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOrigin:
    """The person or process that does something, and where the request came from.

    ``user`` is None for a command on the server and for the scheduler; ``name`` then names the
    command or the scheduler.
    """

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
    """An entry to be written to the audit log.

    ``metadata`` holds further facts as plain JSON. If ``reason`` is empty, the origin's reason is
    used.
    """

    action: str
    session: UUID | None = None
    workspace: str = ""
    reason: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def session_event(session: Session, action: str, **metadata: Any) -> AuditEvent:
    """Return an event about this session."""
    return AuditEvent(
        action=action, session=session.uuid, workspace=session.workspace.slug, metadata=metadata
    )


def record(origin: AuditOrigin, *events: AuditEvent) -> list[AuditEntry]:
    """Add entries in one transaction, or in the caller's transaction if there is one.

    Other writers wait until that transaction ends.
    """
    if not events:
        return []
    with transaction.atomic():
        head = lock_log()
        entries = [_next_entry(head, origin, event, at=timezone.now()) for event in events]
        AuditEntry.objects.bulk_create(entries)
        AuditHead.objects.filter(pk=HEAD_PK).update(number=head.number, digest=head.digest)
    return entries


def lock_log() -> AuditHead:
    """Lock the audit log until the caller's transaction ends.

    While the log is locked, other transactions cannot add entries. Actions that check the current
    state and then add an entry are therefore serialised. Take this lock before any other lock.
    """
    heads = AuditHead.objects.select_for_update()
    head = heads.filter(pk=HEAD_PK).first()
    if head is not None:
        return head
    AuditHead.objects.get_or_create(pk=HEAD_PK, defaults={"digest": FIRST})
    return heads.get(pk=HEAD_PK)


def _next_entry(
    head: AuditHead, origin: AuditOrigin, event: AuditEvent, *, at: datetime
) -> AuditEntry:
    entry = AuditEntry(
        number=head.number + 1,
        at=at,
        action=event.action,
        actor=origin.user,
        actor_name=one_line(storable(origin.actor_name), limit=200),
        session=event.session,
        workspace=event.workspace,
        place=one_line(storable(origin.place), limit=500),
        address=origin.address[:45],
        agent=one_line(storable(origin.agent), limit=200),
        reason=one_line(storable(event.reason or origin.reason), limit=500),
        metadata=dump_json(event.metadata),
    )
    entry.digest = entry_digest(head.digest, _digested_columns(entry))
    head.number, head.digest = entry.number, entry.digest
    return entry


def _digested_columns(entry: AuditEntry) -> DigestedColumns:
    own: dict[str, Any] = {"actor": entry.actor_id, "session": str(entry.session or "")}
    names = [name for name in DigestedColumns._fields if name not in own]
    return DigestedColumns(**{name: getattr(entry, name) for name in names}, **own)


def readings_of(session_uuid: UUID) -> QuerySet[AuditEntry]:
    """Return the readings of a session, the latest first.

    Most entries of a session are readings, so reading one page is fast.
    """
    return AuditEntry.objects.filter(session=session_uuid, action__in=READINGS).order_by("-number")


def verify_audit() -> tuple[int, str]:
    """Return how many entries are intact, and a description of the first error, or an empty text.

    The check uses constant memory. Entries may be added while it runs.
    """
    head = AuditHead.objects.filter(pk=HEAD_PK).first() or AuditHead(number=0, digest=FIRST)
    digest, count = FIRST, 0
    for entry in walk_by_key(AuditEntry.objects.all(), key="number"):
        if entry.number != count + 1:
            return count, f"audit entry {count + 1} is missing"
        digest = entry_digest(digest, _digested_columns(entry))
        if digest != entry.digest:
            return count, f"audit entry {entry.number} differs from what was written"
        count = entry.number
        if count == head.number and digest != head.digest:
            return count, f"the end of the audit log is not at entry {count}"
    if count < head.number:
        return count, f"audit entry {count + 1} is missing"
    return count, ""
