"""The runtime of a process: one, and none when the process ends."""

import pytest

from conversations.domain.errors import Unavailable
from conversations.runtime import current
from conversations.runtime.current import current_runtime, started_runtime, stop_current_runtime

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_process_that_ends_begins_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_is_over", False)
    first = await current_runtime()
    assert await current_runtime() is first
    await stop_current_runtime()
    assert await current_runtime() is not first
    await stop_current_runtime(for_good=True)
    with pytest.raises(Unavailable):
        await current_runtime()
    assert started_runtime() is None
