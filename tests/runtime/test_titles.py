"""Titles by a model: written once after the first answer, never replacing a person's title."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.window.manifest import rebuild_request
from conversations.archive.model_calls import find_newest_call
from conversations.archive.sessions import rename_session
from conversations.models import ModelCall, Session
from conversations.runtime.service import Runtime
from conversations.runtime.titles import read_title
from tests.runtime.conftest import Page, ask, fresh
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def titling(start_runtime: Callable[..., Any]) -> Runtime:
    started: Runtime = await start_runtime(title_model="auto")
    await started.models.wait_until_listed()
    return started


async def background(runtime: Runtime) -> None:
    while tasks := [task for task in runtime.database.background if not task.done()]:
        await asyncio.wait(tasks, timeout=5)


async def test_a_title_is_written_after_the_first_answer(
    titling: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    page = open_page(titling)
    wire.enqueue(Scenario(text="In May."), Scenario(text="“Planting beans”\n"), Scenario(text="b"))
    before = (await fresh(garden)).last_active_at
    await ask(titling, garden, "When do I plant the beans?")
    shown = await fresh(garden)
    await background(titling)
    titled = await fresh(garden)
    assert titled.title == "Planting beans"
    assert page.of_type("title")[-1]["title"] == "Planting beans"
    # The session list keeps its order, and the panel shows the answer's call, not the title's.
    assert titled.last_active_at == shown.last_active_at != before
    call = await sync_to_async(find_newest_call)(garden.pk)
    assert call is not None
    assert call.turn_number == 2
    asked = wire.requests[1]
    assert asked["model"] == "claude-haiku-5-5"
    assert "When do I plant" in str(asked["messages"])
    assert "In May." in str(asked["messages"])
    recorded = await ModelCall.objects.filter(session=garden.pk).order_by("-pk").afirst()
    assert recorded is not None
    assert recorded.input_tokens
    assert (await sync_to_async(rebuild_request)(recorded.pk)).matches
    await ask(titling, await fresh(garden), "and the peas?")
    await background(titling)
    assert len(wire.requests) == 3


async def test_a_title_chosen_by_a_person_is_kept(
    titling: Runtime, wire: WireThread, garden: Session
) -> None:
    await sync_to_async(rename_session)(garden, title="Mine")
    await ask(titling, await fresh(garden), "hello")
    await background(titling)
    assert (await fresh(garden)).title == "Mine"
    assert len(wire.requests) == 1


async def test_a_title_chosen_while_the_model_writes_one_is_kept(
    titling: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="a"), Scenario(text="Late", delay=0.5))
    await ask(titling, garden, "hello")
    async with asyncio.timeout(10):
        while len(wire.requests) < 2:
            await asyncio.sleep(0.01)
    await sync_to_async(rename_session)(garden, title="Mine")
    await background(titling)
    assert (await fresh(garden)).title == "Mine"
    assert len(await sync_to_async(list)(ModelCall.objects.filter(session=garden.pk))) == 2


@pytest.mark.parametrize("status", [400, 404])
async def test_the_sessions_model_writes_the_title_if_the_title_model_refuses(
    titling: Runtime, wire: WireThread, garden: Session, status: int
) -> None:
    wire.enqueue(Scenario(text="a"), Scenario(status=status), Scenario(text="Beans"))
    await ask(titling, garden, "hello")
    await background(titling)
    assert (await fresh(garden)).title == "Beans"
    own, _, last = wire.requests
    assert last["model"] == own["model"]
    calls = [call async for call in ModelCall.objects.order_by("pk")]
    assert [bool(call.error_code) for call in calls] == [False, True, False]


@pytest.mark.parametrize(
    ("scenario", "used"),
    [
        (Scenario(status=500), 0),
        (Scenario(text="word " * 100), 100),
        (Scenario(words=100, error_after=50), 40),
        (Scenario(empty=True), 0),
        (Scenario(text="Okay, they want a title", stop_reason="max_tokens"), 0),
    ],
)
async def test_the_first_words_stay_the_title_if_the_model_writes_none(
    titling: Runtime, wire: WireThread, garden: Session, scenario: Scenario, used: int
) -> None:
    wire.enqueue(Scenario(text="a"), scenario)
    await ask(titling, garden, "hello there")
    await background(titling)
    assert (await fresh(garden)).title == "hello there"
    *_, call = [call async for call in ModelCall.objects.order_by("pk")]
    assert (call.output_tokens or 0) >= used


async def test_titles_can_be_turned_off(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(title_model="off")
    await ask(runtime, garden, "hello there")
    await background(runtime)
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Title: Planting beans.", "Planting beans"),
        ("\n**Planting beans**\nmore", "Planting beans"),
        ("„Bohnen pflanzen“", "Bohnen pflanzen"),
        ("**Title:** Mend `parse_date`", "Mend parse_date"),
        ("", ""),
        ("x" * 90, ""),
        ("What's up?", "What's up?"),
    ],
)
def test_text_and_markup_around_a_title_are_removed(text: str, title: str) -> None:
    assert read_title(text) == title
