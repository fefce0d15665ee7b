"""What personal tokens may do: one string by which a program acts as its person."""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations.archive.workspaces import digest_of
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.messages import say
from conversations.domain.text import one_line, storable
from conversations.models import ApiToken

PREFIX = "loom_"  # how every token begins, so that people and scanners know one when they see it

READ, WRITE, APPROVE, DELETE, HOOKS, FEED = "read", "write", "approve", "delete", "hooks", "feed"
MANAGE, REVIEW, AUDIT = "manage", "review", "audit"

SCOPES = {
    READ: say("read workspaces, sessions and transcripts, usage and budgets"),
    WRITE: say(
        "create, change, import and share sessions, send messages, undo file changes, "
        "edit workspace memory"
    ),
    APPROVE: say("approve and deny tool calls, answer what tool servers ask"),
    DELETE: say("schedule the deletion of sessions"),
    HOOKS: say("set up webhooks"),
    FEED: say("read feeds, also through a URL that contains the token"),
    MANAGE: say(
        "manage workspaces, members, groups, invitations and budgets; place and release holds"
    ),
    REVIEW: say("read the review queue, write notes, flags and marks"),
    AUDIT: say("read the audit log"),
}
"""Scope → what it is for. A token never grants more than its owner may do."""


def missing_scope(scope: str, has: frozenset[str]) -> str:
    """Why that does not suffice; empty where it does."""
    return "" if scope in has else f"The token does not have the scope “{scope}”."


MAX_TOKENS_PER_USER = 100  # tokens that a person may have at once

SEEN_INTERVAL = timedelta(minutes=1)  # A busy program costs a write a minute.


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request, and what for. ``token_pk`` is None for a browser that is signed in,
    which has all scopes."""

    user: User
    token_pk: int | None
    scopes: frozenset[str]


def create_token(
    user: User, *, name: str, scopes: Collection[str], lifetime: timedelta | None
) -> str:
    """The new token, which nobody can show again. Raises Rejected."""
    chosen = one_line(storable(name), limit=120)
    if not chosen:
        raise Rejected("Enter a name for the token.", code="name_empty")
    wanted = [scope for scope in SCOPES if scope in scopes]
    if not wanted or len(wanted) != len(set(scopes)):
        raise Rejected(
            "A token needs at least one of these scopes: %(scopes)s.",
            scopes=", ".join(SCOPES),
            code="scopes",
        )
    if _working(user.pk).count() >= MAX_TOKENS_PER_USER:
        raise Rejected(
            "You already have %(count)s tokens. Revoke some first.",
            count=MAX_TOKENS_PER_USER,
            code="too_many_tokens",
        )
    token, now = PREFIX + secrets.token_urlsafe(32), timezone.now()
    ApiToken.objects.create(
        digest=digest_of(token),
        hint=token[: len(PREFIX) + 4],
        user=user,
        name=chosen,
        scopes=" ".join(wanted),
        created_at=now,
        expires_at=now + lifetime if lifetime else None,
    )
    return token


def list_tokens(user_pk: int) -> list[ApiToken]:
    """Those that work, the latest first."""
    return list(_working(user_pk).order_by("-pk")[:MAX_TOKENS_PER_USER])


def revoke_token(user_pk: int, *, token_pk: int) -> None:
    """It signs nobody in any more. Raises NotFound."""
    if not _working(user_pk).filter(pk=token_pk).update(revoked_at=timezone.now()):
        raise NotFound("This token does not exist.")


def revoke_tokens(user_pk: int) -> int:
    """All of a person. Returns how many there were."""
    return _working(user_pk).update(revoked_at=timezone.now())


def find_token(token: str) -> ApiToken | None:
    """None for one that works no more."""
    if not token.startswith(PREFIX):
        return None
    found = _working().select_related("user").filter(digest=digest_of(token)).first()
    return found if found is not None and found.user.is_active else None


def find_caller(token: str, *, address: str) -> Caller | None:
    """Whom the token speaks for now; None for one that works no more."""
    found = find_token(token)
    if found is None:
        return None
    now = timezone.now()
    if found.last_used_at is None or now - found.last_used_at >= SEEN_INTERVAL:
        ApiToken.objects.filter(pk=found.pk).update(last_used_at=now, last_address=address[:45])
    return Caller(user=found.user, token_pk=found.pk, scopes=frozenset(found.scopes.split()))


def is_working(token_pk: int) -> bool:
    return _working().filter(pk=token_pk).exists()


def _working(user_pk: int | None = None) -> QuerySet[ApiToken]:
    in_time = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    tokens = ApiToken.objects.filter(in_time, revoked_at=None)
    return tokens if user_pk is None else tokens.filter(user=user_pk)
