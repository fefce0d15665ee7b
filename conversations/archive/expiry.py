"""Expiry: from a moment on a session is not gone on with, and a stored answer not given again.
Nothing of a session is removed.

That follows from the clock alone (:func:`is_over`), whether or not anybody took note.
Taking note frees the session's key, so that another session can begin under it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from conversations.models import ApiAnswer, Session, Workspace

CHUNK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A session that has expired. ``key`` is the one that is free again, if any."""

    session: UUID
    workspace: str
    title: str
    expires_at: datetime
    key: str


def expiry_of(workspace: Workspace, now: datetime) -> datetime | None:
    """When a session that begins now expires, as its workspace has it."""
    hours = workspace.expire_after_hours
    return now + timedelta(hours=hours) if hours else None


def is_over(now: datetime) -> Q:
    """Of sessions that have expired by then."""
    return Q(expires_at__lte=now)


def is_current(now: datetime) -> Q:
    """Of sessions that have not expired by then. (The negation of :func:`is_over` would
    leave out those that never expire.)"""
    return Q(expires_at=None) | Q(expires_at__gt=now)


def list_due(now: datetime) -> Iterator[Expired]:
    """The expired sessions of which nobody took note yet, in order."""
    last = 0
    columns = ("pk", "uuid", "workspace__slug", "title", "expires_at", "key")
    due = Session.objects.filter(is_over(now), expired_at=None).order_by("pk")
    while page := list(due.filter(pk__gt=last).values_list(*columns)[:CHUNK]):
        for _, uuid, slug, title, expires_at, key in page:
            yield Expired(
                session=uuid, workspace=slug, title=title, expires_at=expires_at, key=key or ""
            )
        last = page[-1][0]


def take_note(session: UUID, *, now: datetime) -> bool:
    """Free the key of a session that has expired. False: it has not, or that was done."""
    with transaction.atomic():
        sessions = Session.objects.filter(is_over(now), uuid=session, expired_at=None)
        return bool(
            sessions.update(expired_at=now, former_key=Coalesce("key", "former_key"), key=None)
        )


def last_of_key(workspace: Workspace, key: str) -> Session | None:
    """The session that had this key last, and has it no more."""
    sessions = Session.objects.filter(workspace=workspace, former_key=key)
    return sessions.order_by("-pk").first()


def oldest_answer(now: datetime) -> datetime:
    """From when on an answer to a request with an idempotency key is given again."""
    return now - timedelta(hours=settings.LOOM.idempotency_hours)


def forget_answers(now: datetime) -> int:
    """Remove the answers that are given no more. Returns how many."""
    removed = 0
    old = ApiAnswer.objects.filter(created_at__lt=oldest_answer(now)).order_by("pk")
    while keys := list(old.values_list("pk", flat=True)[:CHUNK]):
        removed += ApiAnswer.objects.filter(pk__in=keys).delete()[0]
    return removed
