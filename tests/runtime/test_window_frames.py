"""Frames that tell a page where the window starts and how full it is."""

import asyncio
import re
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.model_calls import read_window_mark
from conversations.models import Session
from conversations.rendering.messages import fill_marks
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import ask, fresh

pytestmark = pytest.mark.django_db(transaction=True)


async def test_each_model_call_says_how_full_the_window_is(
    runtime: Runtime, garden: Session, wire: WireThread, open_page: Any
) -> None:
    page = open_page(runtime)
    wire.enqueue(
        Scenario(text="I look.", tools=(ToolCall(name="look"),)), Scenario(text="A bean field.")
    )
    await ask(runtime, garden, "What is here?")
    frames = page.of_type("window")
    assert len({frame["key"] for frame in frames}) == 2  # the watcher may repeat the last frame
    session = await fresh(garden)
    assert frames[-1]["tokens"] == session.context_tokens > frames[0]["tokens"] > 0
    assert frames[-1]["limit"] == session.context_limit
    assert frames[-1]["line"] == ""
    assert "of the context" in frames[-1]["meter"]


async def test_a_page_is_told_when_the_floor_moves(
    start_runtime: Any, garden: Session, wire: WireThread, open_page: Any
) -> None:
    runtime: Runtime = await start_runtime(max_input_tokens=2_500)
    page = open_page(runtime)
    for number in range(6):
        wire.enqueue(Scenario(words=300))
        await ask(runtime, garden, f"Question {number}")
    frame = page.of_type("window")[-1]
    session = await fresh(garden)
    assert frame["floor"] == session.floor_turn > 1
    assert frame["left_out"] == session.floor_turn - 1
    assert re.sub("<[^>]+>", "", fill_marks(frame["line"])) == (
        f"Context starts here: {frame['left_out']} earlier turns are in the archive,"
        " where the model can look them up"
    )


async def test_a_newly_opened_page_gets_the_same_frame_as_an_open_page(
    runtime: Runtime, garden: Session, wire: WireThread, open_page: Any
) -> None:
    page = open_page(runtime)
    wire.enqueue(Scenario(text="Yes."))
    await ask(runtime, garden, "Go")
    caught, _ = await runtime.catch_up(garden.uuid, cursor=None, rewinds=None, hello=True)
    [window] = [f for f in caught if f["type"] == "window"]
    assert window == page.of_type("window")[-1]


async def test_a_model_call_of_another_process_updates_the_page(
    start_runtime: Any, garden: Session, wire: WireThread, open_page: Any
) -> None:
    watching, answering = await start_runtime(), await start_runtime()
    page = open_page(watching)
    async with asyncio.timeout(60):
        while garden.pk not in watching.watcher._windows:
            await asyncio.sleep(0.01)
    wire.enqueue(Scenario(text="Yes."))
    await ask(answering, garden, "Go")
    mark = await sync_to_async(read_window_mark)(garden.pk)
    await page.until(lambda: [f for f in page.of_type("window") if f["key"] == mark.key])


async def test_a_rewound_turn_is_not_counted_as_left_out(
    start_runtime: Any, garden: Session, wire: WireThread
) -> None:
    runtime: Runtime = await start_runtime(max_input_tokens=2_500)
    wire.enqueue(Scenario(words=20), Scenario(words=20))
    await ask(runtime, garden, "First")
    accepted = await runtime.edit(
        await fresh(garden), client_id="client-edit", turn=1, text="Better", user_pk=None
    )
    await runtime.wait_idle(garden.pk)
    assert accepted.turn == 3
    for number in range(5):
        wire.enqueue(Scenario(words=300))
        await ask(runtime, garden, f"Question {number}")
    mark = await sync_to_async(read_window_mark)(garden.pk)
    assert mark.left_out == mark.floor - 3
