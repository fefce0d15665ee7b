"""What tool servers were granted by their authorization servers, and sign-ins under way.

A grant belongs to a server as it is configured: the installation's (``workspace`` empty) or one
workspace's own, by its slug. What is secret is unreadable without the server's secret key.
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
    """A server with an address; ``workspace`` is the slug of the one whose own it is."""

    workspace: str
    name: str
    url: str


def read_secrets(key: ServerKey) -> dict[str, Any]:
    """What is kept of a server's grant; empty where nothing is, or where it was made for another
    address or with another secret key."""
    found = ToolServerGrant.objects.filter(workspace=key.workspace, server=key.name).first()
    if found is None or found.url != key.url:
        return {}
    return _decrypt(found.secrets)


def save_secrets(key: ServerKey, **changed: Any) -> None:
    """Keep these beside what is kept already."""
    with transaction.atomic():
        found = _locked(key)
        found.secrets = _encrypt({**_decrypt(found.secrets), **changed})
        found.save(update_fields=["secrets"])


def replace_tokens(key: ServerKey, before: Any, **changed: Any) -> None:
    """Keep these where the tokens are still those of ``before``: somebody may have signed out
    meanwhile, or somebody else in."""
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
    """Expect the answer of the authorization server with this ``state``, by this person, who
    began in the workspace ``slug``."""
    with transaction.atomic():
        found = _locked(key)
        found.state_digest, found.answer, found.problem = _digest(state), "", ""
        found.asked_by_id, found.asked_at, found.asked_in = user_pk, timezone.now(), slug
        found.save()


def save_answer(answer: Mapping[str, str], *, user_pk: int) -> int:
    """Keep an authorization server's answer for whoever waits for it, in whatever process.
    It counts once, and from the browser of the person who began. The key of the row, for
    ``read_outcome``. Raises Rejected."""
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
    """The answer, once it is there. Raises Rejected where another sign-in has begun."""
    found = _signing_in(key, state).first()
    if found is None:
        raise Rejected(_IS_OVER, code="sign_in_over")
    return _decrypt(found.answer) if found.answer else None


def save_sign_in(key: ServerKey, state: str, granted: Mapping[str, Any]) -> None:
    """Keep what was granted, as that of the person who began. Raises Rejected where another sign-in
    has begun, or somebody has signed out."""
    with transaction.atomic():
        found = _signing_in(key, state).select_for_update().first()
        if found is None:
            raise Rejected(_IS_OVER, code="sign_in_over")
        found.secrets = _encrypt({**_decrypt(found.secrets), **granted})
        found.granted_by_id, found.granted_at = found.asked_by_id, timezone.now()
        found.save(update_fields=["secrets", "granted_by", "granted_at"])


def finish_sign_in(key: ServerKey, state: str, *, problem: str) -> None:
    """No answer is expected any more; without a ``problem`` what was asked for is there."""
    _signing_in(key, state).update(state_digest="", answer="", problem=problem)


def _signing_in(key: ServerKey, state: str) -> QuerySet[ToolServerGrant]:
    return ToolServerGrant.objects.filter(
        workspace=key.workspace, server=key.name, url=key.url, state_digest=_digest(state)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInOutcome:
    """``slug`` is the workspace where it began."""

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
    """By the names of the servers: those of a workspace, and the installation's."""
    found = ToolServerGrant.objects.filter(workspace__in=["", workspace], granted_at__isnull=False)
    return {one.server: one for one in found.select_related("granted_by").order_by("workspace")}


def _locked(key: ServerKey) -> ToolServerGrant:
    rows = ToolServerGrant.objects.select_for_update()
    found, _ = rows.get_or_create(
        workspace=key.workspace, server=key.name, defaults={"url": key.url}
    )
    if found.url != key.url:  # the configuration names another address now
        found.url, found.secrets, found.granted_at = key.url, "", None
        found.save(update_fields=["url", "secrets", "granted_at"])
    return found


def _digest(state: str) -> str:
    return sha256(state.encode()).hexdigest()  # of no state too: empty where none is expected


def _encrypt(data: Mapping[str, Any]) -> str:
    text = dump_json(dict(data))
    return encrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)


def _decrypt(text: str) -> dict[str, Any]:
    if not text:
        return {}
    words = decrypt_secret(text, purpose=PURPOSE, secret_key=settings.SECRET_KEY)
    found: dict[str, Any] = load_json(words or "{}")  # people sign in again with another key
    return found
