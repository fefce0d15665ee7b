"""Holds, orders to purge, receipts, and the retention policies of workspaces.

Between an order and the purge is a grace period, in which the session is archived and the order can
be cancelled. A session that is on hold is not purged.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import batched
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from conversations.access import Access, access_context_of, get_session_for
from conversations.archive.append import lock_session, walk_by_key
from conversations.archive.audit import AuditEvent, AuditOrigin, record, session_event
from conversations.archive.messages import refuse_busy
from conversations.archive.purge import PurgeRequest, digest_of_receipt, purge
from conversations.archive.rights import WRITE
from conversations.archive.sessions import get_session
from conversations.archive.workspaces import get_workspace, lock_workspace
from conversations.domain import audit
from conversations.domain.errors import Conflict, NotFound, NotPermitted, Rejected, require_found
from conversations.domain.messages import say
from conversations.domain.text import load_json, one_line, storable
from conversations.models import AuditEntry, PurgeOrder, Receipt, Session, Workspace

from .models import Hold

MAX_REASON_CHARS = 500
PAGE_ROWS = 200


def clean_reason(text: str) -> str:
    """Return the reason as one line. Raise Rejected if it is empty."""
    reason = one_line(storable(text), limit=MAX_REASON_CHARS)
    if not reason:
        raise Rejected("Enter a reason; it is kept on record.", code="reason_empty")
    return reason


# Holds


def find_for_hold(name: str) -> Session | Workspace:
    """Return the session with this uuid, or the workspace with this slug.

    Raise NotFound if it does not exist. The caller checks that the person may place holds.
    """
    try:
        uuid = UUID(name)
    except ValueError:
        return get_workspace(name)
    return get_session(uuid)


def place_hold(target: Session | Workspace, *, origin: AuditOrigin, reason: str) -> Hold:
    """Keep a session, or all present and future sessions of a workspace, from being purged.

    Raise Rejected if the reason is empty, and NotFound if the session or workspace is gone.
    """
    reason = clean_reason(reason)
    with transaction.atomic():
        if isinstance(target, Session):
            lock_session(target.pk)  # a purge that has begun ends first
            event = session_event(target, audit.HOLD)
        else:
            lock_workspace(target)
            event = AuditEvent(action=audit.HOLD, workspace=target.slug)
        hold = Hold.objects.create(
            session=target if isinstance(target, Session) else None,
            workspace=target if isinstance(target, Workspace) else None,
            reason=reason,
            actor=origin.user,
            created_at=timezone.now(),
        )
        event.metadata.update(hold=hold.pk, reason=reason)
        record(origin, event)
    return hold


def release_hold(pk: int, *, origin: AuditOrigin) -> Hold:
    """End a hold. Raise NotFound if it does not exist, and Conflict if it has ended already."""
    with transaction.atomic():
        rows = Hold.objects.select_related("session__workspace", "workspace").filter(pk=pk)
        hold = require_found(rows.first(), "This hold does not exist.")
        hold.released_at, hold.released_by = timezone.now(), origin.user
        released = Hold.objects.filter(pk=pk, released_at=None).update(
            released_at=hold.released_at, released_by=origin.user
        )
        if not released:
            raise Conflict("This hold is already released.", code="hold_released")
        if hold.session is not None:
            record(origin, session_event(hold.session, audit.RELEASE, hold=pk))
        else:
            slug = hold.workspace.slug if hold.workspace else ""
            record(origin, AuditEvent(action=audit.RELEASE, workspace=slug, metadata={"hold": pk}))
    return hold


def holds_on(session: Session) -> QuerySet[Hold]:
    """Return the holds that are in force on a session or on its workspace."""
    return Hold.objects.filter(
        Q(session=session.pk) | Q(workspace=session.workspace_id), released_at=None
    ).order_by("-pk")


def holds_in_force() -> QuerySet[Hold]:
    holds = Hold.objects.filter(released_at=None).order_by("-pk")
    return holds.select_related("session__workspace", "workspace", "actor")


def refuse_kept(session: Session) -> None:
    """Raise Conflict if the session is on hold."""
    hold = holds_on(session).first()
    if hold is not None:
        if hold.session_id:
            message = say("This session is on hold: %(reason)s", reason=hold.reason)
        else:
            message = say("The session's workspace is on hold: %(reason)s", reason=hold.reason)
        raise Conflict(message, code="session_held")


# Permissions to purge


def may_purge(session: Session, access: Access, user: User) -> bool:
    """Return whether the person may purge the session.

    Owners of the workspace may purge every session in it. Other members may purge their own
    sessions if the workspace allows that.
    """
    is_own = session.owner_id == user.pk and access.can_write
    return access.can_manage or (is_own and session.workspace.members_may_purge)


def may_call_off(session: Session, access: Access, user: User, order: PurgeOrder) -> bool:
    """Return whether the person may cancel the order to purge the session.

    Everybody who may purge a session may also cancel an order. The session's owner may cancel an
    order that the workspace's policy has given.
    """
    is_own = session.owner_id == user.pk and access.can_write
    return may_purge(session, access, user) or (is_own and order.by_policy)


def get_purgeable(request: HttpRequest, user: User, uuid: UUID) -> Session:
    """Return the session. Raise NotPermitted if this person may not purge it."""
    session, access = get_session_for(request, uuid, to=WRITE)
    if not may_purge(session, access, user):
        raise NotPermitted("Only owners of this workspace can permanently delete its sessions.")
    return session


def call_off_for(request: HttpRequest, user: User, uuid: UUID) -> None:
    """Cancel an order to purge for a person.

    Raise NotPermitted if the person may not cancel it, and the errors of :func:`call_off_purge`.
    """
    session, access = get_session_for(request, uuid, to=WRITE)
    order = find_order(session)
    if order is not None and not may_call_off(session, access, user, order):
        raise NotPermitted("Only owners of this workspace can cancel this deletion.")
    call_off_purge(session, origin=access_context_of(request).origin, now=timezone.now())


# Orders


def grace_period() -> timedelta:
    return timedelta(days=settings.LOOM.purge_grace_days)


def order_purge(
    session: Session,
    *,
    origin: AuditOrigin,
    reason: str,
    now: datetime,
    grace: timedelta | None = None,
    by_policy: bool = False,
    idle_since: datetime | None = None,
) -> PurgeOrder:
    """Order the purge of a session after the grace period, and archive it until then.

    If ``grace`` is None, the installation's grace period applies. Raise Rejected if the reason is
    empty. Raise Conflict if the session is on hold or busy, if a purge is ordered already, or if
    the session was used after ``idle_since``. Raise NotFound if the session is gone.
    """
    reason = clean_reason(reason)
    with transaction.atomic():
        lock_session(session.pk)
        session.refresh_from_db()
        refuse_kept(session)
        refuse_busy(session.pk)
        if idle_since is not None and session.last_active_at > idle_since:
            raise Conflict("The session was used in the meantime.", code="session_used")
        if PurgeOrder.objects.filter(session=session.pk).exists():
            raise Conflict("This session is already scheduled for deletion.", code="purge_ordered")
        order = PurgeOrder.objects.create(
            session=session,
            ordered_by=origin.user,
            ordered_at=now,
            reason=reason,
            due_at=now + (grace_period() if grace is None else grace),
            by_policy=by_policy,
            was_archived=session.archived_at is not None,
        )
        Session.objects.filter(pk=session.pk, archived_at=None).update(archived_at=now)
        due = {"due_at": order.due_at.isoformat(), "by_policy": by_policy}
        record(origin, session_event(session, audit.PURGE_ORDERED, reason=reason, **due))
    return order


def call_off_purge(session: Session, *, origin: AuditOrigin, now: datetime) -> None:
    """Cancel an order to purge, and undo the archiving that it caused.

    If the policy gave the order because the session was idle for too long, and it still is, the
    session counts as used now. Raise Conflict if no purge is ordered.
    """
    with transaction.atomic():
        lock_session(session.pk)
        order = find_order(session)
        if order is None:
            raise Conflict("This session is not scheduled for deletion.", code="no_purge_ordered")
        order.delete()
        sessions = Session.objects.filter(pk=session.pk)
        if not order.was_archived:
            sessions.update(archived_at=None)
        if order.by_policy and is_idle(session, now):
            sessions.update(last_active_at=now)
        record(origin, session_event(session, audit.PURGE_CALLED_OFF))


def execute_order(order: PurgeOrder, *, origin: AuditOrigin, now: datetime) -> Receipt:
    """Purge the session of an order that is due. Errors are those of ``archive.purge.purge``."""
    request = PurgeRequest(
        pk=order.pk,
        reason=order.reason,
        by=order.ordered_by,
        by_name="" if order.ordered_by else "expire_sessions",
        by_policy=order.by_policy,
    )
    return purge(order.session, order=request, origin=origin, now=now)


def find_order(session: Session) -> PurgeOrder | None:
    return PurgeOrder.objects.select_related("ordered_by").filter(session=session.pk).first()


def due_orders(now: datetime) -> Iterator[PurgeOrder]:
    due = PurgeOrder.objects.filter(due_at__lte=now)
    return walk_by_key(due.select_related("session__workspace", "session__owner", "ordered_by"))


def is_idle(session: Session, now: datetime) -> bool:
    """Return whether the session has been idle for as long as its workspace allows."""
    days = session.workspace.retention_days
    return days is not None and session.last_active_at <= now - timedelta(days=days)


def idle_sessions(now: datetime) -> Iterator[Session]:
    """Yield sessions that were idle for as long as their workspace allows.

    Sessions whose purge is ordered already are left out.
    """
    for workspace in Workspace.objects.filter(retention_days__isnull=False).order_by("pk"):
        idle = Session.objects.filter(
            workspace=workspace,
            last_active_at__lte=now - timedelta(days=workspace.retention_days or 0),
            purge_order=None,
        )
        yield from walk_by_key(idle.select_related("workspace", "owner"))


def change_policies(
    workspace: Workspace, *, origin: AuditOrigin, **policies: int | bool | None
) -> None:
    """Set the workspace's fields that say how long its sessions are kept.

    Changes are recorded in the audit log. The expiry of existing sessions does not change.
    """
    with transaction.atomic():
        locked_workspace = lock_workspace(workspace)
        changed = {
            name: value
            for name, value in policies.items()
            if getattr(locked_workspace, name) != value
        }
        if not changed:
            return
        Workspace.objects.filter(pk=workspace.pk).update(**changed)
        before = {name: getattr(locked_workspace, name) for name in changed}
        metadata = {"before": before, "after": changed}
        event = AuditEvent(action=audit.RETENTION, workspace=workspace.slug, metadata=metadata)
        record(origin, event)


def call_off_unwanted(workspace: Workspace, *, origin: AuditOrigin) -> None:
    """Cancel the orders that the workspace's policy gave and that it no longer asks for.

    Do not call this in the transaction that changes the policy. That transaction locks the
    workspace, but a purge locks the session before its workspace, so this could deadlock.
    """
    now = timezone.now()
    orders = PurgeOrder.objects.filter(session__workspace=workspace.pk, by_policy=True)
    for order in orders.select_related("session__workspace").order_by("pk"):
        if not is_idle(order.session, now):
            with suppress(Conflict, NotFound):  # already cancelled or purged in the meantime
                call_off_purge(order.session, origin=origin, now=now)


# Receipts of purged sessions: finding them, and comparing them with the audit log


def get_receipt(uuid: UUID) -> Receipt:
    """Return a receipt. Raise NotFound if it does not exist."""
    return require_found(Receipt.objects.filter(uuid=uuid).first(), "This receipt does not exist.")


def find_receipts(query: str) -> QuerySet[Receipt]:
    """Return receipts, the latest first.

    ``query`` limits them to a session (its uuid), a workspace or an owner.
    """
    receipts = Receipt.objects.order_by("-pk")
    if not query:
        return receipts
    try:
        return receipts.filter(session=UUID(query))
    except ValueError:
        of_workspace = receipts.filter(workspace=query)
        return of_workspace if of_workspace.exists() else receipts.filter(owner=query)


def verify_receipts() -> tuple[int, list[str]]:
    """Return the number of receipts, and a line for each problem.

    A receipt has a problem if it was changed after it was written, if the audit log has no entry
    for it, or if only the audit log has it.
    """
    count = 0
    problems: list[str] = []
    for page in batched(walk_by_key(Receipt.objects.all()), PAGE_ROWS, strict=False):
        sessions = [receipt.session for receipt in page]
        entries = AuditEntry.objects.filter(session__in=sessions, action=audit.PURGED)
        entered = dict(map(_entered, entries.order_by("number").values_list("metadata", flat=True)))
        for receipt in page:
            count += 1
            if receipt.digest != digest_of_receipt(receipt):
                problems.append(f"the receipt {receipt.uuid} differs from what was written")
            elif entered.get(str(receipt.uuid)) != receipt.digest:
                problems.append(f"the audit log has no entry for the receipt {receipt.uuid}")
    purged = AuditEntry.objects.filter(action=audit.PURGED)
    for entries_page in batched(walk_by_key(purged, key="number"), PAGE_ROWS, strict=False):
        named = {_entered(entry.metadata)[0] for entry in entries_page}
        stored = Receipt.objects.filter(uuid__in=named).values_list("uuid", flat=True)
        missing = sorted(named - {str(uuid) for uuid in stored})
        problems += [f"the receipt {uuid} is missing" for uuid in missing]
    return count, problems


def _entered(metadata: str) -> tuple[str, str]:
    data = load_json(metadata, default={})
    return str(data.get("receipt")), str(data.get("digest"))
