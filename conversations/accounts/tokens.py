"""Personal tokens: strings with which a program acts as a person, within scopes."""

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

PREFIX = "loom_"  # every token begins with it, so that people and scanners recognise tokens

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
"""Scope → the acts that it allows. A token never grants more than its owner may do."""


def missing_scope(scope: str, has: frozenset[str]) -> str:
    """Return an error message if ``has`` lacks the scope, otherwise an empty string."""
    return "" if scope in has else f"The token does not have the scope “{scope}”."


MAX_TOKENS_PER_USER = 100  # tokens that a person may have at once

SEEN_INTERVAL = timedelta(minutes=1)  # limits a busy program to one write per minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The person who sends a request, and the scopes of the request.

    ``token_pk`` is None for a browser that is signed in, which has all scopes.
    """

    user: User
    token_pk: int | None
    scopes: frozenset[str]


def create_token(
    user: User, *, name: str, scopes: Collection[str], lifetime: timedelta | None
) -> str:
    """Create and return a token, which cannot be shown again. Raise Rejected."""
    clean_name = one_line(storable(name), limit=120)
    if not clean_name:
        raise Rejected("Enter a name for the token.", code="name_empty")
    chosen_scopes = [scope for scope in SCOPES if scope in scopes]
    if not chosen_scopes or len(chosen_scopes) != len(set(scopes)):
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
        name=clean_name,
        scopes=" ".join(chosen_scopes),
        created_at=now,
        expires_at=now + lifetime if lifetime else None,
    )
    return token


def list_tokens(user_pk: int) -> list[ApiToken]:
    """Return the working tokens of a person, the latest first."""
    return list(_working(user_pk).order_by("-pk")[:MAX_TOKENS_PER_USER])


def revoke_token(user_pk: int, *, token_pk: int) -> None:
    """Revoke a token. Raise NotFound."""
    if not _working(user_pk).filter(pk=token_pk).update(revoked_at=timezone.now()):
        raise NotFound("This token does not exist.")


def revoke_tokens(user_pk: int) -> int:
    """Revoke all tokens of a person. Return how many there were."""
    return _working(user_pk).update(revoked_at=timezone.now())


def find_token(token: str) -> ApiToken | None:
    """Return the token, or None if it does not work (any more)."""
    if not token.startswith(PREFIX):
        return None
    api_token = _working().select_related("user").filter(digest=digest_of(token)).first()
    return api_token if api_token is not None and api_token.user.is_active else None


def find_caller(token: str, *, address: str) -> Caller | None:
    """Return the caller whom the token stands for, or None if it does not work (any more)."""
    api_token = find_token(token)
    if api_token is None:
        return None
    now = timezone.now()
    if api_token.last_used_at is None or now - api_token.last_used_at >= SEEN_INTERVAL:
        ApiToken.objects.filter(pk=api_token.pk).update(last_used_at=now, last_address=address[:45])
    return Caller(
        user=api_token.user, token_pk=api_token.pk, scopes=frozenset(api_token.scopes.split())
    )


def is_working(token_pk: int) -> bool:
    return _working().filter(pk=token_pk).exists()


def _working(user_pk: int | None = None) -> QuerySet[ApiToken]:
    in_time = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    tokens = ApiToken.objects.filter(in_time, revoked_at=None)
    return tokens if user_pk is None else tokens.filter(user=user_pk)
