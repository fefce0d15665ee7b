"""Answers to requests with an idempotency key: claimed, kept, given again.

A claim is on disk before anything is done. The answer is kept with what the request has
made, in one transaction where that is possible: a process that dies in between leaves
neither, and the claim, which somebody else takes over after a while.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from conversations.archive.purge import oldest_answer
from conversations.domain.errors import Conflict, Rejected
from conversations.models import ApiAnswer

LEASE = timedelta(minutes=1)
"""How long a request that nobody has answered counts as being carried out."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The request is the caller's to carry out."""

    pk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """``body`` is JSON, as it was sent. ``session``: what it is about."""

    status: int
    location: str
    body: str
    session: UUID | None = None


class StillAnswering(Conflict):
    """The same request is being carried out just now."""

    code = "idempotency_busy"


class OtherRequest(Rejected):
    """The key belongs to another request."""

    code = "idempotency_mismatch"
    status = 422


def claim_request(user: User, *, key: str, fingerprint: str) -> Claim | KeptAnswer:
    """A claim for a new request, or what the same one was answered. Raises StillAnswering
    and OtherRequest."""
    now = timezone.now()
    kept = ApiAnswer.objects.select_related("session").filter(user=user, key=key)
    try:
        with transaction.atomic():
            kept.filter(created_at__lt=oldest_answer(now)).delete()
            found = kept.first()
            if found is not None:
                return _settle(found, fingerprint, now)
            made = ApiAnswer.objects.create(
                user=user, key=key, fingerprint=fingerprint, created_at=now
            )
            return Claim(made.pk)
    except IntegrityError:  # another request was a moment earlier
        return _settle(kept.get(), fingerprint, now)


def _settle(found: ApiAnswer, fingerprint: str, now: datetime) -> Claim | KeptAnswer:
    if found.fingerprint != fingerprint:
        raise OtherRequest("This Idempotency-Key was sent with another request before.")
    if found.status is not None:
        return KeptAnswer(
            status=found.status,
            location=found.location,
            body=found.body,
            session=found.session.uuid if found.session else None,
        )
    left = ApiAnswer.objects.filter(pk=found.pk, status=None, created_at__lt=now - LEASE)
    if not left.update(created_at=now):
        raise StillAnswering("The same request is being carried out. Ask again in a moment.")
    return Claim(found.pk)


def save_answer(claim: Claim, answer: KeptAnswer, *, session_pk: int | None) -> None:
    """It is given again from now on. ``session_pk``: with what session it goes."""
    ApiAnswer.objects.filter(pk=claim.pk).update(
        status=answer.status, location=answer.location, body=answer.body, session=session_pk
    )


def drop_claim(claim: Claim) -> None:
    """The request was refused: the same one may be sent again."""
    ApiAnswer.objects.filter(pk=claim.pk, status=None).delete()
