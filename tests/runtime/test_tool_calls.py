"""Calls that are executed: in order, shown while they run, stopped, ended once."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.journal import walk_events
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.events import ContentIndicator
from conversations.models import Session, Workspace
from conversations.runtime.execution import FrameThrottle
from conversations.runtime.service import Runtime
from tests.runtime.conftest import Page, ask, run_state
from tests.runtime.sample_tools import sample_tools, witness
from tests.runtime.tool_stories import (
    answers,
    calls_of,
    endings,
    require_whole,
    results,
    until_done,
)
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tools")]


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


@pytest.fixture
def folder(garden: Session) -> Path:
    """Return the workspace's folder. Calls in the workspace need no approval."""
    Workspace.objects.update(tool_policy="auto")
    return Path(garden.workspace.root)


async def test_calls_are_executed_in_order_and_stored(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(
        *answers(
            ("add", {"line": "one"}),
            ("add", {"line": "two", "after": "one"}),
            ("peek", {"picture": True}),
            ("peek", {"fail": True}),
            ("peek", {"refuse": True}),
            ("dig", {}),
        )
    )
    run = await ask(runtime, garden, "go")
    assert run.state == "completed"
    assert sorted(await results(garden)) == [
        "Added.",
        "Added.",
        "The tool failed: ZeroDivisionError.",
        "There is no such thing.",
        "There is no tool named 'dig'.",
        "one,two",
    ]
    [first, *_] = await endings(garden)
    assert (first.diff, first.decision, first.decided_by) == ("+one", "policy", "")
    events = await sync_to_async(walk_events)(garden.pk, start=None, limit=500)
    [picture] = [e.payload for e in events if isinstance(e.payload, ContentIndicator)]
    assert (picture.label, picture.call_id) == ("bean.png", "toolu_2")
    assert picture.attachment
    await require_whole(garden)


async def test_adjacent_calls_that_only_read_run_in_parallel(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    reading = {"effect": "reads", "lines": 0}
    wire.enqueue(
        *answers(
            ("work", reading | {"name": "a"}),
            ("work", reading | {"name": "b"}),
            ("add", {"line": "last"}),
        )
    )
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin b")
    assert sorted(witness(folder)) == ["begin a", "begin b"]
    (folder / "go").touch()
    await runtime.wait_idle(garden.pk)
    assert witness(folder)[-1] == "last"
    await require_whole(garden)


async def test_results_of_parallel_calls_are_stored_in_call_order(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    reading = {"effect": "reads", "lines": 0}
    wire.enqueue(*answers(("work", reading | {"name": "slow"}), ("peek", {"refuse": True})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin slow")
    (folder / "go").touch()
    await runtime.wait_idle(garden.pk)
    assert [ending.name for ending in await endings(garden)] == ["work", "peek"]


async def test_a_long_output_is_whole_in_the_turn_and_shortened_in_the_row(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    (folder / "go").touch()
    wire.enqueue(*answers(("work", {"size": 50_000, "exit_code": 3})))
    await ask(runtime, garden, "go")
    [ending] = await endings(garden)
    assert (len(ending.output), ending.output_chars) == (20_000, 50_000)
    assert (ending.ok, ending.exit_code, ending.error) == (False, 3, "")
    assert [len(text) for text in await results(garden)] == [50_000]


async def test_output_is_shown_while_a_call_runs(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    wire.enqueue(*answers(("work", {"lines": 50})))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)

    def shown() -> str:
        text = ""
        for frame in page.of_type("call"):
            if "text" in frame:
                assert frame["offset"] == len(text)
                text += frame["text"]
        return text

    await page.until(lambda: "line 49\n" in shown())
    execution = runtime.queue.execution_of(garden.pk)
    assert execution is not None
    [snapshot] = [frame for frame in execution.snapshots() if frame["type"] == "call"]
    assert (snapshot["reset"], snapshot["offset"], snapshot["text"]) == (True, 0, shown())
    assert (snapshot["state"], snapshot["call_id"]) == ("running", "toolu_0")
    (folder / "go").touch()
    await runtime.wait_idle(garden.pk)


async def test_the_state_frame_says_that_tools_are_running(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    (folder / "go").touch()
    reading = ("work", {"effect": "reads"})
    wire.enqueue(*answers(("work", {}), reading, reading, ("peek", {"refuse": True})))
    page = open_page(runtime)
    await ask(runtime, garden, "go")
    assert [(frame["run_state"], frame["text"]) for frame in page.of_type("state")] == [
        ("running", ""),
        ("running", "A tool is running"),
        ("running", "Tools are running"),
        ("running", ""),
        ("idle", ""),
    ]


async def test_pages_get_a_bounded_part_of_a_flood_of_output(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    folder: Path,
    open_page: Callable[[Runtime], Page],
) -> None:
    runtime = await start_runtime(delta_interval=0.0)
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return monotonic()

    throttle = FrameThrottle(shortest=0.0, clock=clock)
    runtime.queue._context = replace(runtime.queue._context, throttle=throttle)
    wire.enqueue(*answers(("work", {"lines": 30_000, "flood": 2_000_000})))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: any("xxx" in f.get("text", "") for f in page.of_type("call")))
    assert sum(len(frame.get("text", "")) for frame in page.of_type("call")) < 300_000
    assert page.of_type("call")[-1]["reset"]
    assert looks < 200  # how often a frame was due
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    [text] = await results(garden)
    assert text.startswith("Stopped before it ended; changes made until then stay.\n\n[")
    assert len(text) < 101_000


async def test_one_call_is_stopped_and_the_run_goes_on(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("work", {}), ("add", {"line": "after"})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin ")
    first, _ = await calls_of(garden)
    await runtime.cancel_call(garden, call=first.uuid, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert witness(folder) == ["begin ", "after"]
    stopped, added = await results(garden)
    assert re.fullmatch(r"Stopped by ann after \d s\.\n\nline 0\n", stopped)
    assert added == "Added."
    assert [ending.state for ending in await endings(garden)] == ["stopped", ""]
    assert await run_state(garden) == "completed"
    with pytest.raises(Conflict, match="has already ended"):
        await runtime.cancel_call(garden, call=first.uuid, user_pk=garden.owner_id)
    await require_whole(garden)


async def test_a_call_is_stopped_from_another_process(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    here, there = await start_runtime(), await start_runtime()
    wire.enqueue(*answers(("work", {})))
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin ")
    [call] = await calls_of(garden)
    await there.cancel_call(garden, call=call.uuid, user_pk=None)
    await here.wait_idle(garden.pk)
    [text] = await results(garden)
    assert text.startswith("Stopped by a command after")


async def test_stopping_the_run_ends_every_call_and_keeps_its_output(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(*answers(("work", {"name": "a"}), ("add", {"line": "never"})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin a")
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "stopped"
    assert await results(garden) == [
        "Stopped before it ended; changes made until then stay.\n\nline 0\n",
        "Stopped before it started. Nothing was done.",
    ]
    assert witness(folder) == ["begin a"]
    await require_whole(garden)
    wire.enqueue(Scenario(text="Gladly."))
    assert (await ask(runtime, garden, "go on")).state == "completed"


async def test_results_state_that_the_server_stopped(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, folder: Path
) -> None:
    runtime = await start_runtime()
    wire.enqueue(*answers(("work", {"name": "a"}), ("add", {"line": "never"})))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin a")
    await runtime.stop()
    assert await run_state(garden) == "interrupted"
    assert await results(garden) == [
        "The server stopped during this call; changes made until then stay. The call is not "
        "repeated.\n\nline 0\n",
        "The server stopped before this call started. Nothing was done.",
    ]
    await require_whole(garden)


async def test_a_call_that_completes_despite_a_stop_keeps_its_result(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    wire.enqueue(
        *answers(("work", {"name": "a", "sees_through": True}), ("add", {"line": "never"}))
    )
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until_done(folder, "begin a")
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "stopped"
    assert await results(garden) == ["y" * 10, "Stopped before it started. Nothing was done."]
    assert [call.ok for call in await endings(garden)] == [True, False]
    assert witness(folder) == ["begin a", "end a"]
    await require_whole(garden)


async def test_a_read_only_workspace_refuses_changing_calls(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    await Workspace.objects.aupdate(tool_policy="read_only")
    wire.enqueue(*answers(("add", {"line": "a"}), ("work", {})))
    await ask(runtime, garden, "go")
    offered = [tool["name"] for tool in wire.requests[0]["tools"]]
    assert "add" not in offered
    assert "work" in offered
    assert (
        await results(garden) == ["This workspace is read-only: tools cannot change anything."] * 2
    )
    assert witness(folder) == []


async def test_a_call_of_another_session_is_not_found(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    with pytest.raises(NotFound):
        await runtime.cancel_call(garden, call=garden.uuid, user_pk=None)


async def test_calls_of_an_answer_that_was_cut_off_are_not_executed(
    runtime: Runtime, wire: WireThread, garden: Session, folder: Path
) -> None:
    call = WireCall(name="add", input={"line": "half"})
    wire.enqueue(Scenario(text="I", tools=(call,), stop_reason="max_tokens"))
    await ask(runtime, garden, "go")
    assert witness(folder) == []
    assert await results(garden) == [
        "Not run: the answer was cut off before the call was complete."
    ]
    await require_whole(garden)


@pytest.mark.parametrize("value", [float("nan"), reduce(lambda inner, _: [inner], range(900), [])])
async def test_arguments_that_cannot_be_sent_do_not_break_the_session(
    runtime: Runtime, wire: WireThread, garden: Session, value: Any
) -> None:
    wire.enqueue(*answers(("peek", {"a": value})), Scenario(text="Seen."))
    assert (await ask(runtime, garden, "look")).state == "completed"
    assert (await ask(runtime, garden, "and again")).state == "completed"
    json.dumps(wire.requests[-1], allow_nan=False)
    assert "_unparsed" in str(wire.requests[-1])
