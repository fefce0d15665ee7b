"""Orders to purge: given, called off, found when they are due.

Between the order and the purge there is a grace period, in which the session is
archived and everything can be undone.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from conversations.archive.audit import AuditEvent, AuditOrigin, note_of, record
from conversations.archive.messages import refuse_busy
from conversations.archive.sessions import lock_session
from conversations.domain.audit import PURGE_CALLED_OFF, PURGE_ORDERED, RETENTION
from conversations.domain.errors import Conflict
from conversations.domain.runs import ACTIVE_STATES, QUEUED
from conversations.models import PurgeOrder, Run, Session, Workspace

from .holds import clean_reason, refuse_held

CHUNK = 200


def order_purge(
    session: Session,
    *,
    origin: AuditOrigin,
    reason: str,
    now: datetime,
    grace: timedelta,
    by_policy: bool = False,
    keeps_copy: bool = False,
    idle_since: datetime | None = None,
) -> PurgeOrder:
    """Have a session purged after the grace period; until then it is archived.

    Raises Rejected without a reason; Conflict while the session is on hold or an answer
    is being written, where a purge is ordered already, and where it was used after
    ``idle_since``; NotFound when it is gone.
    """
    reason = clean_reason(reason)
    with transaction.atomic():
        lock_session(session.pk)
        session.refresh_from_db()
        refuse_held(session)
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
            due_at=now + grace,
            by_policy=by_policy,
            was_archived=session.archived_at is not None,
            keeps_copy=keeps_copy,
        )
        Session.objects.filter(pk=session.pk, archived_at=None).update(archived_at=now)
        due = {"due_at": order.due_at.isoformat(), "by_policy": by_policy}
        record(origin, note_of(session, PURGE_ORDERED, reason=reason, **due))
    return order


def call_off_purge(session: Session, *, origin: AuditOrigin, now: datetime) -> None:
    """Take an order back: the session is as it was before. Where it was idle for too
    long, that counts as using it. Raises Conflict where no purge is ordered."""
    with transaction.atomic():
        lock_session(session.pk)
        order = find_order(session)
        if order is None:
            raise Conflict("This session is not scheduled for deletion.", code="no_purge_ordered")
        order.delete()
        sessions = Session.objects.filter(pk=session.pk)
        if not order.was_archived:
            sessions.update(archived_at=None)
        if order.by_policy:
            sessions.update(last_active_at=now)
        record(origin, note_of(session, PURGE_CALLED_OFF))


def find_order(session: Session) -> PurgeOrder | None:
    """The order to purge this session, if there is one."""
    return PurgeOrder.objects.select_related("ordered_by").filter(session=session.pk).first()


def due_orders(now: datetime) -> Iterator[PurgeOrder]:
    """Orders whose grace period is over, in the order in which they are due."""
    last: tuple[datetime, int] | None = None
    due = PurgeOrder.objects.filter(due_at__lte=now).order_by("due_at", "pk")
    due = due.select_related("session__workspace", "session__owner", "ordered_by")
    while page := list((due if last is None else due.filter(_after(*last)))[:CHUNK]):
        yield from page
        last = page[-1].due_at, page[-1].pk


def _after(due_at: datetime, pk: int) -> Q:
    return Q(due_at__gt=due_at) | Q(due_at=due_at, pk__gt=pk)


def idle_sessions(now: datetime) -> Iterator[Session]:
    """The sessions that were idle for as long as their workspace allows, in which
    nothing runs or waits and of which no purge is ordered yet."""
    workspaces = Workspace.objects.filter(retention_days__isnull=False).order_by("pk")
    for workspace in workspaces:
        idle_since = now - timedelta(days=workspace.retention_days or 0)
        yield from _idle_in(workspace, idle_since)


def _idle_in(workspace: Workspace, since: datetime) -> Iterator[Session]:
    last = 0
    while page := list(_idle(workspace, since).filter(pk__gt=last).order_by("pk")[:CHUNK]):
        yield from page
        last = page[-1].pk


def _idle(workspace: Workspace, since: datetime) -> QuerySet[Session]:
    busy = Run.objects.filter(state__in=(*ACTIVE_STATES, QUEUED)).values("session")
    return (
        Session.objects.filter(workspace=workspace, last_active_at__lte=since, purge_order=None)
        .exclude(pk__in=busy)
        .select_related("workspace", "owner")
    )


def change_policies(
    workspace: Workspace,
    *,
    origin: AuditOrigin,
    expire_after_hours: int | None,
    retention_days: int | None,
    members_may_purge: bool,
    uses_cold_storage: bool,
) -> None:
    """Set how long the workspace's sessions are kept; entered in the audit log where it
    changes. Sessions that there are expire as they would have."""
    values = {
        "expire_after_hours": expire_after_hours,
        "retention_days": retention_days,
        "members_may_purge": members_may_purge,
        "uses_cold_storage": uses_cold_storage,
    }
    with transaction.atomic():
        known = Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)
        changed = {name: value for name, value in values.items() if getattr(known, name) != value}
        if not changed:
            return
        Workspace.objects.filter(pk=workspace.pk).update(**values)
        before = {name: getattr(known, name) for name in changed}
        note = AuditEvent(
            action=RETENTION,
            workspace=workspace.slug,
            metadata={"before": before, "after": changed},
        )
        record(origin, note)
