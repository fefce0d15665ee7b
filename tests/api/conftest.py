"""Programs that call the API as somebody."""

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.api import middleware
from conversations.archive.tokens import create_token
from conversations.domain.tokens import SCOPES
from tests.web.conftest import make_person  # noqa: F401 (a fixture)

type MakeCaller = Callable[..., Client]


def token_of(person: User, *, scopes: Collection[str] = tuple(SCOPES)) -> str:
    return create_token(person, name="A program", scopes=scopes, lifetime=timedelta(days=1))


def caller_of(person: User | None, *, scopes: Collection[str] = tuple(SCOPES)) -> Client:
    """A program with a new token of the person; without one for nobody."""
    headers: dict[str, Any] = {}
    if person is not None:
        headers["Authorization"] = f"Bearer {token_of(person, scopes=scopes)}"
    return Client(headers=headers)


@pytest.fixture(autouse=True)
def fresh_rates() -> None:
    """Nobody has called before."""
    middleware._limiter.cache_clear()


@pytest.fixture
def owner(user: User) -> Client:
    return caller_of(user)
