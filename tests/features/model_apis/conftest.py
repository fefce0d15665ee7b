"""Fixtures: the unmodified anthropic SDK with the installation as its server."""

from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User

from loomweb.asgi import application
from tests.api.conftest import (  # noqa: F401 (fixtures)
    fresh_rates,
    provider,
    runtime_ends,
    token_of,
)
from tests.runtime.test_kinds_of_models import make_providers
from tests.wire.server import WireThread

MODEL = "claude-haiku-5-5"

type MakeClient = Callable[..., AsyncAnthropic]


@pytest.fixture
async def make_client(provider: WireThread) -> AsyncIterator[MakeClient]:  # noqa: F811
    opened: list[AsyncAnthropic] = []

    def make(
        token: str, *, slug: str = "garden", key: str = "", retries: int = 0
    ) -> AsyncAnthropic:
        client = AsyncAnthropic(
            base_url=f"http://testserver/api/v1/anthropic/{slug}",
            auth_token=token,
            default_headers={"Loom-Session-Key": key} if key else {},
            max_retries=retries,
            http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(app=application)),
        )
        opened.append(client)
        return client

    yield make
    for client in opened:
        await client.close()


@pytest.fixture
def several(provider: WireThread, monkeypatch: pytest.MonkeyPatch) -> WireThread:  # noqa: F811
    """The provider under three more names: ``second``, ``chat`` and ``responses``."""
    monkeypatch.setattr(settings.LOOM, "providers", make_providers(provider))
    return provider


@pytest.fixture
async def client(make_client: MakeClient, user: User) -> AsyncAnthropic:
    return make_client(await sync_to_async(token_of)(user), key="sdk:default")
