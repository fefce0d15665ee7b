"""The one runtime of a process, which is not started again when the process ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conversations.domain.errors import Unavailable
from conversations.runtime import current
from conversations.runtime.current import current_runtime, started_runtime, stop_current_runtime
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


async def test_no_runtime_starts_after_one_was_stopped_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(current, "_is_over", False)
    first = await current_runtime()
    assert await current_runtime() is first
    await stop_current_runtime()
    assert await current_runtime() is not first
    await stop_current_runtime(for_good=True)
    with pytest.raises(Unavailable):
        await current_runtime()
    assert started_runtime() is None


async def test_the_provider_client_is_loaded_at_start_without_a_request(
    wire: WireThread, start_runtime: Callable[..., Any]
) -> None:
    runtime = await start_runtime()
    [state] = runtime.models.states.values()
    async with asyncio.timeout(30):
        while state.provider._client is None:
            await asyncio.sleep(0.01)
    assert not wire.server.exchanges
