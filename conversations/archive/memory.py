"""The workspace memory: rules and preferences that stand in the state of its sessions.

Entries for the workspace stand in all of its sessions. Entries for a person stand in the sessions
that this person owns and that only members can read.
"""

from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations.domain.audit import MEMORY
from conversations.domain.errors import Conflict, NotFound, Rejected, require_found
from conversations.domain.messages import say
from conversations.domain.session_state import (
    FOR_PERSON,
    FOR_WORKSPACE,
    MAX_ITEM_CHARS,
    PREFERENCE,
    RULE,
    KeptItem,
    StateItem,
)
from conversations.domain.text import one_line, storable
from conversations.models import MemoryEntry, Session, Workspace

from .audit import AuditEvent, AuditOrigin, record
from .workspaces import lock_workspace

MAX_ENTRIES = 20  # Per workspace, and per person in it
SCOPES = (FOR_PERSON, FOR_WORKSPACE)

_GONE = say("This entry is not in the workspace's memory.")


def read_kept(workspace_pk: int, owner_pk: int | None) -> tuple[KeptItem, ...]:
    """Return the entries for the state of a session that this person owns.

    ``owner_pk`` is None if other people than members can read the session.
    """
    entries = _entries_in_force(workspace_pk, owner_pk).only("uuid", "kind", "text", "owner")
    return tuple(KeptItem(str(e.uuid), e.kind, e.text, e.scope) for e in entries)


def list_entries(workspace: Workspace, user_pk: int | None) -> list[MemoryEntry]:
    """Return the entries for the workspace and for this person, with their sources."""
    return list(
        _entries_in_force(workspace.pk, user_pk).select_related("session__workspace", "created_by")
    )


def find_entry(workspace: Workspace, uuid: UUID, *, user_pk: int | None) -> MemoryEntry:
    """Return an entry for the workspace or for this person. Raise NotFound if there is none."""
    return require_found(_entries_in_force(workspace.pk, user_pk).filter(uuid=uuid).first(), _GONE)


def _entries_in_force(workspace_pk: int, owner_pk: int | None) -> QuerySet[MemoryEntry]:
    owners = Q(owner=None) if owner_pk is None else Q(owner=None) | Q(owner=owner_pk)
    entries = MemoryEntry.objects.filter(owners, workspace=workspace_pk, is_declined=False)
    return entries.order_by("pk")


def add_entry(
    workspace: Workspace,
    *,
    kind: str,
    text: str,
    scope: str,
    by: User,
    origin: AuditOrigin,
    source: tuple[Session, StateItem] | None = None,
) -> MemoryEntry:
    """Store a rule or a preference, or return the entry that already has the same text.

    Raise Rejected if a value is not valid, and Conflict if there are too many entries.
    """
    if kind not in (RULE, PREFERENCE):
        raise Rejected(
            "Only rules and preferences can be kept in the workspace's memory.",
            code="memory_kind_unknown",
        )
    if scope not in SCOPES:
        raise Rejected(
            "Choose whether this applies to you or to everyone.", code="memory_scope_unknown"
        )
    text = _checked_text(text)
    owner = by if scope == FOR_PERSON else None
    session, item = source or (None, None)
    with transaction.atomic():
        # The lock keeps two concurrent requests from both taking the last free place.
        lock_workspace(workspace)
        entries = MemoryEntry.objects.filter(workspace=workspace, owner=owner, is_declined=False)
        for entry in entries.order_by("pk"):
            if entry.kind == kind and entry.text.casefold() == text.casefold():
                return entry
        if entries.count() >= MAX_ENTRIES:
            raise Conflict(
                "The workspace's memory already has %(count)s entries. Remove one first.",
                count=MAX_ENTRIES,
                code="memory_full",
            )
        entry = MemoryEntry.objects.create(
            workspace=workspace,
            owner=owner,
            kind=kind,
            text=text,
            session=session,
            turn=item.turn if item else None,
            item=item.id if item else "",
            created_by=by,
            created_at=timezone.now(),
        )
        _record(entry, "kept", origin)
    return entry


def change_entry(entry: MemoryEntry, *, text: str, origin: AuditOrigin) -> None:
    """Change the entry's text.

    Raise Rejected if the text is not valid, and NotFound if the entry has been removed.
    """
    text = _checked_text(text)
    if text == entry.text:
        return
    with transaction.atomic():
        entry.text, entry.changed_at = text, timezone.now()
        entries = MemoryEntry.objects.filter(pk=entry.pk)
        if not entries.update(text=text, changed_at=entry.changed_at):
            raise NotFound(_GONE)
        _record(entry, "changed", origin)


def remove_entry(entry: MemoryEntry, *, origin: AuditOrigin) -> None:
    """Remove the entry. Raise NotFound if it has already been removed."""
    with transaction.atomic():
        if not MemoryEntry.objects.filter(pk=entry.pk).delete()[0]:
            raise NotFound(_GONE)
        _record(entry, "removed", origin)


def decline_item(session: Session, item: StateItem, *, by: User) -> None:
    """Record that the person declined to keep the item, so that it is not offered to them again."""
    with transaction.atomic():
        lock_workspace(session.workspace)  # so that concurrent requests create only one entry
        if item.id in list_declined(session, by.pk):
            return
        MemoryEntry.objects.create(
            workspace_id=session.workspace_id,
            owner=by,
            session=session,
            item=item.id,
            is_declined=True,
            kind=item.kind,
            text=item.text,
            turn=item.turn,
            created_by=by,
            created_at=timezone.now(),
        )


def list_declined(session: Session, user_pk: int) -> frozenset[str]:
    """Return the ids of the session's items that this person declined to keep."""
    declined = MemoryEntry.objects.filter(session=session, owner=user_pk, is_declined=True)
    return frozenset(declined.order_by("pk").values_list("item", flat=True))


def _checked_text(text: str) -> str:
    text = one_line(storable(text), limit=MAX_ITEM_CHARS + 1)
    if not text or len(text) > MAX_ITEM_CHARS:
        raise Rejected(
            "Enter 1 to %(limit)s characters.", limit=MAX_ITEM_CHARS, code="memory_text_length"
        )
    return text


def _record(entry: MemoryEntry, change: str, origin: AuditOrigin) -> None:
    metadata = {"change": change, "entry": str(entry.uuid), "kind": entry.kind}
    metadata["scope"] = entry.scope
    # Do not show the text of a personal entry to readers of the audit log.
    if entry.owner_id is None:
        metadata["text"] = entry.text
    event = AuditEvent(action=MEMORY, workspace=entry.workspace.slug, metadata=metadata)
    record(origin, event)
