"""Holds: while there is one, nothing of a session is purged."""

from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations.archive.audit import AuditEvent, AuditOrigin, note_of, record
from conversations.archive.sessions import lock_session
from conversations.domain.audit import HOLD, RELEASE
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.text import one_line, storable
from conversations.models import Hold, Session, Workspace

REASON_LIMIT = 500


def clean_reason(text: str) -> str:
    """Raises Rejected for an empty one."""
    reason = one_line(storable(text), limit=REASON_LIMIT)
    if not reason:
        raise Rejected("Enter a reason; it is kept on record.", code="reason_empty")
    return reason


def hold_session(session: Session, *, origin: AuditOrigin, reason: str) -> Hold:
    """Keep a session from being purged. Raises Rejected without a reason, NotFound where
    it is gone."""
    with transaction.atomic():
        lock_session(session.pk)  # a purge that has begun ends first
        return _set(origin, note_of(session, HOLD), reason=reason, session=session)


def hold_workspace(workspace: Workspace, *, origin: AuditOrigin, reason: str) -> Hold:
    """Keep all sessions of a workspace from being purged, those to come too."""
    with transaction.atomic():
        Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)
        note = AuditEvent(action=HOLD, workspace=workspace.slug)
        return _set(origin, note, reason=reason, workspace=workspace)


def _set(origin: AuditOrigin, note: AuditEvent, *, reason: str, **of: Session | Workspace) -> Hold:
    reason = clean_reason(reason)
    hold = Hold.objects.create(**of, reason=reason, actor=origin.user, created_at=timezone.now())
    note.metadata.update(hold=hold.pk, reason=reason)
    record(origin, note)
    return hold


def release_hold(pk: int, *, origin: AuditOrigin, now: datetime | None = None) -> None:
    """End a hold. Raises NotFound, Conflict when it is released already."""
    with transaction.atomic():
        hold = Hold.objects.select_related("session__workspace", "workspace").filter(pk=pk).first()
        if hold is None:
            raise NotFound("There is no such hold.")
        released = Hold.objects.filter(pk=pk, released_at=None).update(
            released_at=now or timezone.now(), released_by=origin.user
        )
        if not released:
            raise Conflict("This hold is already released.", code="hold_released")
        record(origin, _release_note(hold))


def _release_note(hold: Hold) -> AuditEvent:
    if hold.session is not None:
        return note_of(hold.session, RELEASE, hold=hold.pk)
    slug = hold.workspace.slug if hold.workspace else ""
    return AuditEvent(action=RELEASE, workspace=slug, metadata={"hold": hold.pk})


def holds_on(session: Session) -> QuerySet[Hold]:
    """The holds that are in force for a session, its own and its workspace's."""
    return Hold.objects.filter(
        Q(session=session.pk) | Q(workspace=session.workspace_id), released_at=None
    ).order_by("-pk")


def refuse_held(session: Session) -> None:
    """Raises Conflict for a session that is on hold."""
    hold = holds_on(session).first()
    if hold is not None:
        what = "This session" if hold.session_id else "Its workspace"
        raise Conflict(f"{what} is on hold: {hold.reason}", code="session_held")


def list_holds(*, before: int | None = None, limit: int) -> list[Hold]:
    """Holds in force, the latest first."""
    holds = Hold.objects.filter(released_at=None).select_related(
        "session__workspace", "workspace", "actor"
    )
    if before is not None:
        holds = holds.filter(pk__lt=before)
    return list(holds.order_by("-pk")[:limit])
