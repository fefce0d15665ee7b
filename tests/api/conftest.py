"""Fixtures: clients that call the API with a person's token."""

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from conversations.accounts.tokens import SCOPES, create_token
from conversations.api import middleware
from tests.web.conftest import make_person, runtime_ends  # noqa: F401 (fixtures)
from tests.wire.server import WireThread

type MakeCaller = Callable[..., Client]


def token_of(person: User, *, scopes: Collection[str] = tuple(SCOPES)) -> str:
    return create_token(person, name="A program", scopes=scopes, lifetime=timedelta(days=1))


def caller_of(person: User | None, *, scopes: Collection[str] = tuple(SCOPES)) -> Client:
    """Return a client with a new token of the person, or without a token if there is none."""
    headers: dict[str, Any] = {}
    if person is not None:
        headers["Authorization"] = f"Bearer {token_of(person, scopes=scopes)}"
    return Client(headers=headers)


@pytest.fixture(autouse=True)
def fresh_rates() -> None:
    """Forget the calls that the rate limiter has counted."""
    middleware._limiter.cache_clear()


@pytest.fixture
def owner(user: User) -> Client:
    return caller_of(user)


@pytest.fixture
async def provider(
    transactional_db: None,
    runtime_ends: None,  # noqa: F811 (the fixture)
    wire: WireThread,
    monkeypatch: pytest.MonkeyPatch,
) -> WireThread:
    """Make the wire server the provider of the runtime that the test's requests start."""
    for name, value in {
        "providers": (wire.provider,),
        "provider_retries": 0,
        "draft_interval_ms": 10,
        "watch_seconds": 0.05,
        "heartbeat_seconds": 0.2,
    }.items():
        monkeypatch.setattr(settings.LOOM, name, value)
    return wire


class Program(AsyncClient):
    """An asynchronous client that sends a token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def generic(self, *args: Any, headers: Any = None, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} | (headers or {})
        return super().generic(*args, headers=headers, **more)


@pytest.fixture
async def program(provider: WireThread, user: User) -> Program:
    """Return a program with a token of the workspace's owner."""
    return Program(await sync_to_async(token_of)(user))
