"""The workspace's memory: rules and preferences that stand in the state of its sessions.

What is for the workspace stands in all of them, what is for a person in those that this
person owns and that only members read.
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

MAX_ENTRIES = 20  # For the workspace, and for each person in it.
SCOPES = (FOR_PERSON, FOR_WORKSPACE)


def read_kept(workspace_pk: int, owner_pk: int | None) -> tuple[KeptItem, ...]:
    """What stands there in a session of this person (None: one that others than members
    read)."""
    entries = _entries_in_force(workspace_pk, owner_pk).only("uuid", "kind", "text", "owner")
    return tuple(KeptItem(str(one.uuid), one.kind, one.text, one.scope) for one in entries)


def list_entries(workspace: Workspace, user_pk: int | None) -> list[MemoryEntry]:
    """The entries for the workspace and for this person, with their sources."""
    return list(
        _entries_in_force(workspace.pk, user_pk).select_related("session__workspace", "created_by")
    )


def find_entry(workspace: Workspace, uuid: UUID, *, user_pk: int | None) -> MemoryEntry:
    """An entry for the workspace or for this person. Raises NotFound."""
    return require_found(_entries_in_force(workspace.pk, user_pk).filter(uuid=uuid).first(), _GONE)


_GONE = say("This is not in the workspace's memory.")


def _entries_in_force(workspace_pk: int, owner_pk: int | None) -> QuerySet[MemoryEntry]:
    whose = Q(owner=None) if owner_pk is None else Q(owner=None) | Q(owner=owner_pk)
    found = MemoryEntry.objects.filter(whose, workspace=workspace_pk, is_declined=False)
    return found.order_by("pk")


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
    """Keep a rule or a preference, unless the same one is kept already. Raises
    Rejected; Conflict where there are too many."""
    if kind not in (RULE, PREFERENCE):
        raise Rejected("Only rules and preferences can be kept.", code="memory_kind_unknown")
    if scope not in SCOPES:
        raise Rejected("Choose for whom to keep it.", code="memory_scope_unknown")
    text, owner = _checked(text), by if scope == FOR_PERSON else None
    session, item = source or (None, None)
    with transaction.atomic():
        # Two at once cannot both be the last for which there is room.
        lock_workspace(workspace)
        known = MemoryEntry.objects.filter(workspace=workspace, owner=owner, is_declined=False)
        for entry in known.order_by("pk"):
            if entry.kind == kind and entry.text.casefold() == text.casefold():
                return entry
        if known.count() >= MAX_ENTRIES:
            raise Conflict(
                "%(count)s are kept already. Remove one first.",
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
    """Give it another wording. Raises Rejected, and NotFound where it was removed meanwhile."""
    text = _checked(text)
    if text == entry.text:
        return
    with transaction.atomic():
        entry.text, entry.changed_at = text, timezone.now()
        found = MemoryEntry.objects.filter(pk=entry.pk)
        if not found.update(text=text, changed_at=entry.changed_at):
            raise NotFound(_GONE)
        _record(entry, "changed", origin)


def remove_entry(entry: MemoryEntry, *, origin: AuditOrigin) -> None:
    """Raises NotFound where it was removed meanwhile."""
    with transaction.atomic():
        if not MemoryEntry.objects.filter(pk=entry.pk).delete()[0]:
            raise NotFound(_GONE)
        _record(entry, "removed", origin)


def decline_item(session: Session, item: StateItem, *, by: User) -> None:
    """The person does not want to keep it: it is not offered to them again."""
    with transaction.atomic():
        lock_workspace(session.workspace)  # of several at once one enters it
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
    """The items of the session that this person did not want to keep."""
    declined = MemoryEntry.objects.filter(session=session, owner=user_pk, is_declined=True)
    return frozenset(declined.order_by("pk").values_list("item", flat=True))


def _checked(text: str) -> str:
    text = one_line(storable(text), limit=MAX_ITEM_CHARS + 1)
    if not text or len(text) > MAX_ITEM_CHARS:
        raise Rejected(
            "Write 1 to %(limit)s characters.", limit=MAX_ITEM_CHARS, code="memory_text_length"
        )
    return text


def _record(entry: MemoryEntry, change: str, origin: AuditOrigin) -> None:
    metadata = {"change": change, "entry": str(entry.uuid), "kind": entry.kind}
    metadata["scope"] = entry.scope
    # What is a person's own is not told to those who read the log.
    if entry.owner_id is None:
        metadata["text"] = entry.text
    event = AuditEvent(action=MEMORY, workspace=entry.workspace.slug, metadata=metadata)
    record(origin, event)
