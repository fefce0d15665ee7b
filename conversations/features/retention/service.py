"""Holds, orders to purge, receipts, and how long a workspace keeps its sessions.

Between an order and the purge there is a grace period, in which the session is archived
and everything can be undone. While there is a hold, nothing is purged.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from conversations.access import Access, access_context_of, get_session_for
from conversations.archive.append import lock_session
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
    """Raises Rejected for an empty one."""
    reason = one_line(storable(text), limit=MAX_REASON_CHARS)
    if not reason:
        raise Rejected("Enter a reason; it is kept on record.", code="reason_empty")
    return reason


# Holds


def find_for_hold(name: str) -> Session | Workspace:
    """The session of this uuid, or the workspace of this slug. Raises NotFound. To be asked
    by keepers only, who see nothing of what was said."""
    try:
        uuid = UUID(name)
    except ValueError:
        return get_workspace(name)
    return get_session(uuid)


def place_hold(of: Session | Workspace, *, origin: AuditOrigin, reason: str) -> Hold:
    """Keep a session, or all those of a workspace, those to come too, from being purged.
    Raises Rejected without a reason, NotFound where it is gone."""
    reason, target = clean_reason(reason), {"session": of}
    with transaction.atomic():
        if isinstance(of, Session):
            lock_session(of.pk)  # a purge that has begun ends first
            note = session_event(of, audit.HOLD)
        else:
            lock_workspace(of)
            note, target = AuditEvent(action=audit.HOLD, workspace=of.slug), {"workspace": of}
        hold = Hold.objects.create(
            **target, reason=reason, actor=origin.user, created_at=timezone.now()
        )
        note.metadata.update(hold=hold.pk, reason=reason)
        record(origin, note)
    return hold


def release_hold(pk: int, *, origin: AuditOrigin) -> Hold:
    """End a hold. Raises NotFound, Conflict when it is released already."""
    with transaction.atomic():
        known = Hold.objects.select_related("session__workspace", "workspace").filter(pk=pk)
        hold = require_found(known.first(), "This hold does not exist.")
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
    """The holds that are in force for a session, its own and its workspace's."""
    return Hold.objects.filter(
        Q(session=session.pk) | Q(workspace=session.workspace_id), released_at=None
    ).order_by("-pk")


def holds_in_force() -> QuerySet[Hold]:
    holds = Hold.objects.filter(released_at=None).order_by("-pk")
    return holds.select_related("session__workspace", "workspace", "actor")


def refuse_kept(session: Session) -> None:
    """Raises Conflict for a session that is on hold."""
    hold = holds_on(session).first()
    if hold is not None:
        if hold.session_id:
            said = say("This session is on hold: %(reason)s", reason=hold.reason)
        else:
            said = say("Its workspace is on hold: %(reason)s", reason=hold.reason)
        raise Conflict(said, code="session_held")


# Who may purge


def may_purge(session: Session, access: Access, user: User) -> bool:
    """Owners of the workspace; others sessions of their own, where it allows that."""
    is_own = session.owner_id == user.pk and access.can_write
    return access.can_manage or (is_own and session.workspace.members_may_purge)


def may_call_off(session: Session, access: Access, user: User, order: PurgeOrder) -> bool:
    """Who may order it; what the policy has ordered, the session's owner too."""
    is_own = session.owner_id == user.pk and access.can_write
    return may_purge(session, access, user) or (is_own and order.by_policy)


def get_purgeable(request: HttpRequest, user: User, uuid: UUID) -> Session:
    """The session, which this person may purge. Raises NotPermitted."""
    session, access = get_session_for(request, uuid, to=WRITE)
    if not may_purge(session, access, user):
        raise NotPermitted("Only owners of this workspace can permanently delete its sessions.")
    return session


def call_off_for(request: HttpRequest, user: User, uuid: UUID) -> None:
    """Take back the order for a person. Raises NotPermitted, and as :func:`call_off_purge`."""
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
    """Have a session purged after the grace period (None: the installation's); until then it is
    archived.

    Raises Rejected without a reason; Conflict while the session is on hold or an answer
    is being written, where a purge is ordered already, and where it was used after
    ``idle_since``; NotFound when it is gone.
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
    """Take an order back: the session is as it was before. Where it was idle for too
    long, and still is, that counts as using it. Raises Conflict where no purge is ordered."""
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
    """Purge the session of an order that is due. Raises as :func:`archive.purge.purge`."""
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
    due = PurgeOrder.objects.filter(due_at__lte=now).order_by("due_at", "pk")
    due = due.select_related("session__workspace", "session__owner", "ordered_by")
    page = due[:PAGE_ROWS]
    while orders := list(page):
        yield from orders
        due_at, pk = orders[-1].due_at, orders[-1].pk
        page = due.filter(Q(due_at__gt=due_at) | Q(due_at=due_at, pk__gt=pk))[:PAGE_ROWS]


def is_idle(session: Session, now: datetime) -> bool:
    """Whether the session was idle for as long as its workspace allows."""
    days = session.workspace.retention_days
    return days is not None and session.last_active_at <= now - timedelta(days=days)


def idle_sessions(now: datetime) -> Iterator[Session]:
    """The sessions that were idle for as long as their workspace allows, and of which no
    purge is ordered yet."""
    for workspace in Workspace.objects.filter(retention_days__isnull=False).order_by("pk"):
        idle = Session.objects.filter(
            workspace=workspace,
            last_active_at__lte=now - timedelta(days=workspace.retention_days or 0),
            purge_order=None,
        )
        idle = idle.select_related("workspace", "owner").order_by("pk")
        last = 0
        while sessions := list(idle.filter(pk__gt=last)[:PAGE_ROWS]):
            yield from sessions
            last = sessions[-1].pk


def change_policies(
    workspace: Workspace, *, origin: AuditOrigin, **policies: int | bool | None
) -> None:
    """Set the workspace's columns that say how long its sessions are kept; entered in the
    audit log where it changes. Sessions that there are expire as they would have."""
    with transaction.atomic():
        known = lock_workspace(workspace)
        changed = {name: value for name, value in policies.items() if getattr(known, name) != value}
        if not changed:
            return
        Workspace.objects.filter(pk=workspace.pk).update(**changed)
        before = {name: getattr(known, name) for name in changed}
        metadata = {"before": before, "after": changed}
        note = AuditEvent(action=audit.RETENTION, workspace=workspace.slug, metadata=metadata)
        record(origin, note)


def call_off_unwanted(workspace: Workspace, *, origin: AuditOrigin) -> None:
    """Call off what a policy has ordered that is no longer there. Not in the transaction that
    changes it: a purge locks the session before its workspace."""
    now = timezone.now()
    orders = PurgeOrder.objects.filter(session__workspace=workspace.pk, by_policy=True)
    for order in orders.select_related("session__workspace").order_by("pk"):
        if not is_idle(order.session, now):
            with suppress(Conflict, NotFound):  # somebody else was faster, or a purge
                call_off_purge(order.session, origin=origin, now=now)


# Receipts of purged sessions: looked up, and compared with the audit log


def get_receipt(uuid: UUID) -> Receipt:
    """Raises NotFound."""
    return require_found(Receipt.objects.filter(uuid=uuid).first(), "This receipt does not exist.")


def find_receipts(query: str = "") -> QuerySet[Receipt]:
    """Receipts, the latest first; those of a session's uuid, a workspace or an owner."""
    receipts = Receipt.objects.order_by("-pk")
    if not query:
        return receipts
    try:
        return receipts.filter(session=UUID(query))
    except ValueError:
        of_workspace = receipts.filter(workspace=query)
        return of_workspace if of_workspace.exists() else receipts.filter(owner=query)


def verify_receipts() -> tuple[int, list[str]]:
    """How many receipts there are, and what is wrong with those that are not as they
    were written, or of which the audit log knows nothing, or that it alone has."""
    count, problems, last = 0, list[str](), 0
    while page := list(Receipt.objects.filter(pk__gt=last).order_by("pk")[:PAGE_ROWS]):
        sessions = [receipt.session for receipt in page]
        entries = AuditEntry.objects.filter(session__in=sessions, action=audit.PURGED)
        entered = dict(map(_entered, entries.order_by("number").values_list("metadata", flat=True)))
        for receipt in page:
            count += 1
            if receipt.digest != digest_of_receipt(receipt):
                problems.append(f"the receipt {receipt.uuid} differs from what was written")
            elif entered.get(str(receipt.uuid)) != receipt.digest:
                problems.append(f"the audit log has no entry for the receipt {receipt.uuid}")
        last = page[-1].pk
    purged, last = AuditEntry.objects.filter(action=audit.PURGED).order_by("number"), 0
    while rows := list(
        purged.filter(number__gt=last).values_list("number", "metadata")[:PAGE_ROWS]
    ):
        named = {_entered(metadata)[0] for _, metadata in rows}
        there = Receipt.objects.filter(uuid__in=named).values_list("uuid", flat=True)
        missing = sorted(named - {str(uuid) for uuid in there})
        problems += [f"the receipt {uuid} is missing" for uuid in missing]
        last = rows[-1][0]
    return count, problems


def _entered(metadata: str) -> tuple[str, str]:
    known = load_json(metadata, default={})
    return str(known.get("receipt")), str(known.get("digest"))
