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
_IS_OVER = say("This sign-in is over or belongs to somebody else. Start it again.")


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
    found = ToolServerGrant.objects.filter(workspace=key.workspace, server=key.name).first()
    if found is None or found.url != key.url:
        return {}
    return _decrypt(found.secrets)


def save_secrets(key: ServerKey, **changed: Any) -> None:
    """Store these values in addition to those that are already stored."""
    with transaction.atomic():
        found = _locked(key)
        found.secrets = _encrypt({**_decrypt(found.secrets), **changed})
        found.save(update_fields=["secrets"])


def replace_tokens(key: ServerKey, before: Any, **changed: Any) -> None:
    """Store these values if the stored tokens are still ``before``.

    The tokens differ if somebody has signed out, or another person has signed in, in the meantime.
    """
    with transaction.atomic():
        rows = ToolServerGrant.objects.select_for_update()
        found = rows.filter(workspace=key.workspace, server=key.name, url=key.url).first()
        kept = _decrypt(found.secrets) if found is not None else {}
        if found is not None and kept.get("tokens") == before:
            found.secrets = _encrypt({**kept, **changed})
            found.save(update_fields=["secrets"])


def forget_grant(key: ServerKey) -> None:
    ToolServerGrant.objects.filter(workspace=key.workspace, server=key.name).delete()


def begin_sign_in(key: ServerKey, *, state: str, user_pk: int, slug: str) -> None:
    """Start a sign-in by this person, who began it in the workspace ``slug``.

    The authorization server's answer must have this ``state``.
    """
    with transaction.atomic():
        found = _locked(key)
        found.state_digest, found.answer, found.problem = _digest(state), "", ""
        found.asked_by_id, found.asked_at, found.asked_in = user_pk, timezone.now(), slug
        found.save()


def save_answer(answer: Mapping[str, str], *, user_pk: int) -> int:
    """Store an authorization server's answer for the process that waits for it.

    An answer is accepted once, and only from the person who began the sign-in. Return the primary
    key for :func:`read_outcome`. Raise Rejected if the answer is not accepted.
    """
    digest, words = _digest(answer.get("state", "")), dump_json(dict(answer))
    with transaction.atomic():
        waiting = ToolServerGrant.objects.select_for_update().filter(
            state_digest=digest,
            answer="",
            asked_by=user_pk,
            asked_at__gt=timezone.now() - MAX_SIGN_IN_AGE,
        )
        found = waiting.first() if len(words) <= MAX_ANSWER_CHARS else None
        if found is None:
            raise Rejected(_IS_OVER, code="sign_in_over")
        found.answer = _encrypt(dict(answer))
        found.save(update_fields=["answer"])
    return found.pk


def read_answer(key: ServerKey, state: str) -> dict[str, Any] | None:
    """Return the answer, or None if it has not arrived.

    Raise Rejected if another sign-in has begun.
    """
    found = _signing_in(key, state).first()
    if found is None:
        raise Rejected(_IS_OVER, code="sign_in_over")
    return _decrypt(found.answer) if found.answer else None


def save_sign_in(key: ServerKey, state: str, granted: Mapping[str, Any]) -> None:
    """Store the grant on behalf of the person who began the sign-in.

    Raise Rejected if another sign-in has begun or somebody has signed out.
    """
    with transaction.atomic():
        found = _signing_in(key, state).select_for_update().first()
        if found is None:
            raise Rejected(_IS_OVER, code="sign_in_over")
        found.secrets = _encrypt({**_decrypt(found.secrets), **granted})
        found.granted_by_id, found.granted_at = found.asked_by_id, timezone.now()
        found.save(update_fields=["secrets", "granted_by", "granted_at"])


def finish_sign_in(key: ServerKey, state: str, *, problem: str) -> None:
    """End a sign-in. An empty ``problem`` means that it succeeded."""
    _signing_in(key, state).update(state_digest="", answer="", problem=problem)


def _signing_in(key: ServerKey, state: str) -> QuerySet[ToolServerGrant]:
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
    found = ToolServerGrant.objects.get(pk=pk)
    return SignInOutcome(
        server=found.server,
        slug=found.asked_in,
        problem=found.problem,
        is_over=not found.state_digest,
    )


def list_grants(workspace: str) -> dict[str, ToolServerGrant]:
    """Return the grants of the workspace and of the installation by server name."""
    found = ToolServerGrant.objects.filter(workspace__in=["", workspace], granted_at__isnull=False)
    return {one.server: one for one in found.select_related("granted_by").order_by("workspace")}


def _locked(key: ServerKey) -> ToolServerGrant:
    rows = ToolServerGrant.objects.select_for_update()
    found, _ = rows.get_or_create(
        workspace=key.workspace, server=key.name, defaults={"url": key.url}
    )
    if found.url != key.url:  # the configured URL has changed
        found.url, found.secrets, found.granted_at = key.url, "", None
        found.save(update_fields=["url", "secrets", "granted_at"])
    return found


def _digest(state: str) -> str:
    # The digest of an empty state is not empty, so it never matches a row without a sign-in.
    return sha256(state.encode()).hexdigest()


def _encrypt(data: Mapping[str, Any]) -> str:
    text = dump_json(dict(data))
    return encrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)


def _decrypt(text: str) -> dict[str, Any]:
    if not text:
        return {}
    words = decrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)
    found: dict[str, Any] = load_json(words or "{}")  # empty if the secret key has changed
    return found
