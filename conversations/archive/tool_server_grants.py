"""Grants of authorization servers to tool servers, and sign-ins in progress.

A grant belongs to a tool server as it is configured, either for the installation (``workspace`` is
empty) or for one workspace, by its slug. Secrets can only be read with the server's secret key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.secrets import decrypt_secret, encrypt_secret
from conversations.domain.text import dump_json, load_json
from conversations.models import ToolServerGrant

MAX_SIGN_IN_AGE = timedelta(minutes=10)  # From the button to the authorization server's answer
MAX_ANSWER_CHARS = 4_000

PURPOSE = "tool_server"
_IS_OVER = say("This sign-in has expired or belongs to someone else. Start again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """A tool server. ``workspace`` is the slug of the workspace that configures it, or empty."""

    workspace: str
    name: str
    url: str


def read_secrets(key: ServerKey) -> dict[str, Any]:
    """Return the stored secrets of a server's grant.

    Return an empty dict if there is no grant, or if it was made for another URL or encrypted with
    another secret key.
    """
    grant = ToolServerGrant.objects.filter(workspace=key.workspace, server=key.name).first()
    if grant is None or grant.url != key.url:
        return {}
    return _decrypt(grant.secrets)


def save_secrets(key: ServerKey, **changed: Any) -> None:
    """Store these values in addition to those that are already stored."""
    with transaction.atomic():
        grant = _lock_grant(key)
        grant.secrets = _encrypt({**_decrypt(grant.secrets), **changed})
        grant.save(update_fields=["secrets"])


def replace_tokens(key: ServerKey, before: Any, **changed: Any) -> None:
    """Store these values if the stored tokens are still ``before``.

    The tokens differ if somebody has signed out, or another person has signed in, in the meantime.
    """
    with transaction.atomic():
        rows = ToolServerGrant.objects.select_for_update()
        grant = rows.filter(workspace=key.workspace, server=key.name, url=key.url).first()
        secrets = _decrypt(grant.secrets) if grant is not None else {}
        if grant is not None and secrets.get("tokens") == before:
            grant.secrets = _encrypt({**secrets, **changed})
            grant.save(update_fields=["secrets"])


def forget_grant(key: ServerKey) -> None:
    ToolServerGrant.objects.filter(workspace=key.workspace, server=key.name).delete()


def begin_sign_in(key: ServerKey, *, state: str, user_pk: int, slug: str) -> None:
    """Start a sign-in by this person, who began it in the workspace ``slug``.

    The authorization server's answer must have this ``state``.
    """
    with transaction.atomic():
        grant = _lock_grant(key)
        grant.state_digest, grant.answer, grant.problem = _digest(state), "", ""
        grant.asked_by_id, grant.asked_at, grant.asked_in = user_pk, timezone.now(), slug
        grant.save()


def save_answer(answer: Mapping[str, str], *, user_pk: int) -> int:
    """Store an authorization server's answer for the process that waits for it.

    An answer is accepted once, and only from the person who began the sign-in. Return the primary
    key for :func:`read_outcome`. Raise Rejected if the answer is not accepted.
    """
    digest, text = _digest(answer.get("state", "")), dump_json(dict(answer))
    with transaction.atomic():
        waiting = ToolServerGrant.objects.select_for_update().filter(
            state_digest=digest,
            answer="",
            asked_by=user_pk,
            asked_at__gt=timezone.now() - MAX_SIGN_IN_AGE,
        )
        grant = waiting.first() if len(text) <= MAX_ANSWER_CHARS else None
        if grant is None:
            raise Rejected(_IS_OVER, code="sign_in_over")
        grant.answer = _encrypt(dict(answer))
        grant.save(update_fields=["answer"])
    return grant.pk


def read_answer(key: ServerKey, state: str) -> dict[str, Any] | None:
    """Return the answer, or None if it has not arrived.

    Raise Rejected if another sign-in has begun.
    """
    grant = _grants_in_sign_in(key, state).first()
    if grant is None:
        raise Rejected(_IS_OVER, code="sign_in_over")
    return _decrypt(grant.answer) if grant.answer else None


def save_sign_in(key: ServerKey, state: str, granted: Mapping[str, Any]) -> None:
    """Store the grant on behalf of the person who began the sign-in.

    Raise Rejected if another sign-in has begun or somebody has signed out.
    """
    with transaction.atomic():
        grant = _grants_in_sign_in(key, state).select_for_update().first()
        if grant is None:
            raise Rejected(_IS_OVER, code="sign_in_over")
        grant.secrets = _encrypt({**_decrypt(grant.secrets), **granted})
        grant.granted_by_id, grant.granted_at = grant.asked_by_id, timezone.now()
        grant.save(update_fields=["secrets", "granted_by", "granted_at"])


def finish_sign_in(key: ServerKey, state: str, *, problem: str) -> None:
    """End a sign-in. An empty ``problem`` means that it succeeded."""
    _grants_in_sign_in(key, state).update(state_digest="", answer="", problem=problem)


def _grants_in_sign_in(key: ServerKey, state: str) -> QuerySet[ToolServerGrant]:
    return ToolServerGrant.objects.filter(
        workspace=key.workspace, server=key.name, url=key.url, state_digest=_digest(state)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInOutcome:
    """The outcome of a sign-in. ``slug`` is the workspace in which it began."""

    server: str
    slug: str
    problem: str
    is_over: bool


def read_outcome(pk: int) -> SignInOutcome:
    grant = ToolServerGrant.objects.get(pk=pk)
    return SignInOutcome(
        server=grant.server,
        slug=grant.asked_in,
        problem=grant.problem,
        is_over=not grant.state_digest,
    )


def list_grants(workspace: str) -> dict[str, ToolServerGrant]:
    """Return the grants of the workspace and of the installation by server name."""
    grants = ToolServerGrant.objects.filter(workspace__in=["", workspace], granted_at__isnull=False)
    return {g.server: g for g in grants.select_related("granted_by").order_by("workspace")}


def _lock_grant(key: ServerKey) -> ToolServerGrant:
    rows = ToolServerGrant.objects.select_for_update()
    grant, _ = rows.get_or_create(
        workspace=key.workspace, server=key.name, defaults={"url": key.url}
    )
    if grant.url != key.url:  # the configured URL has changed
        grant.url, grant.secrets, grant.granted_at = key.url, "", None
        grant.save(update_fields=["url", "secrets", "granted_at"])
    return grant


def _digest(state: str) -> str:
    # The digest of an empty state is not empty, so it never matches a row without a sign-in.
    return sha256(state.encode()).hexdigest()


def _encrypt(data: Mapping[str, Any]) -> str:
    text = dump_json(dict(data))
    return encrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)


def _decrypt(text: str) -> dict[str, Any]:
    if not text:
        return {}
    decrypted = decrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)
    data: dict[str, Any] = load_json(decrypted or "{}")  # empty if the secret key has changed
    return data
