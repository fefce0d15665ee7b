"""Runs that a process leaves when it dies, and how the next process handles them."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction
from django.utils import timezone

from conversations.agent.window.manifest import rebuild_request
from conversations.agent.window.messages import CONTINUE_TEXT
from conversations.archive.journal import append_draft_chunks, walk_events
from conversations.archive.messages import accept_message
from conversations.archive.runs import interrupt_run
from conversations.archive.verify import verify_session
from conversations.domain.events import Info
from conversations.domain.text import load_json
from conversations.models import DraftChunk, ModelCall, Run, Session
from conversations.runtime.ownership import Owner
from conversations.runtime.service import Runtime
from tests.archive.turns import read_turns
from tests.runtime.conftest import Page, ask, fresh, run_state
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


def leave_orphan(session: Session, *, owner: str, text: str = "half an ans") -> Run:
    """Create a run that a process was executing, with a draft on disk."""
    accepted = accept_message(
        session, client_id=uuid4().hex, text="hello", user_pk=None, max_queued=9, owner=owner
    )
    append_draft_chunks(
        [
            DraftChunk(run_id=accepted.run_pk, ordinal=n, part=0, kind="text", text=piece)
            for n, piece in enumerate([text[:4], text[4:]])
        ]
    )
    return Run.objects.get(pk=accepted.run_pk)


async def test_a_run_of_a_dead_process_is_interrupted_at_the_next_start(
    start_runtime: Callable[..., Any], garden: Session, tmp_path: Path
) -> None:
    dead = Owner(tmp_path / "run")
    await sync_to_async(leave_orphan)(garden, owner=dead.id)
    dead._file.close()  # as the kernel does when a process is killed
    await start_runtime()
    assert await run_state(garden) == "interrupted"
    turns = await sync_to_async(read_turns)(garden.pk)
    assert [(t.role, t.content, t.complete) for t in turns] == [
        ("user", "hello", True),
        ("assistant", "half an ans", False),
    ]
    notices = [e.payload for e in await sync_to_async(walk_events)(garden.pk, start=None, limit=99)]
    [notice] = [payload for payload in notices if isinstance(payload, Info)]
    assert (notice.kind, notice.action) == ("interrupted", "continue")
    assert (await sync_to_async(verify_session)(await fresh(garden))).problem == ""


async def test_continue_of_an_answer_without_text_answers_the_message(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    """There is no partial answer to continue, and the answer before is complete."""
    wire.enqueue(Scenario(text="The end."), Scenario(text="Two euros."))
    await ask(runtime, garden, "a tale")
    orphan = await sync_to_async(leave_orphan)(garden, owner="gone", text="")
    await sync_to_async(interrupt_run)(orphan.pk, owner="gone")
    await runtime.continue_run(garden, client_id="continue1", user_pk=None)
    await runtime.wait_idle(garden.pk)
    assert CONTINUE_TEXT not in json.dumps(wire.requests[-1]["messages"])
    await asyncio.gather(*runtime.database.background)
    call = await ModelCall.objects.alatest("pk")
    assert (await sync_to_async(rebuild_request)(call.pk)).matches
    assert load_json(call.manifest)["go_on"] is False


async def test_a_living_process_keeps_its_run(
    start_runtime: Callable[..., Any], garden: Session, tmp_path: Path
) -> None:
    living = Owner(tmp_path / "run")
    await sync_to_async(leave_orphan)(garden, owner=living.id)
    runtime = await start_runtime()
    await runtime.queue.recover()
    assert await run_state(garden) == "running"
    living.close()


async def test_an_owner_of_another_host_is_judged_by_its_heartbeat(
    start_runtime: Callable[..., Any], garden: Session
) -> None:
    run = await sync_to_async(leave_orphan)(garden, owner="elsewhere")
    runtime = await start_runtime()
    assert await run_state(garden) == "running"
    await Run.objects.filter(pk=run.pk).aupdate(heartbeat_at=timezone.now() - timedelta(hours=1))
    await runtime.queue.recover()
    assert await run_state(garden) == "interrupted"


async def test_a_run_is_interrupted_only_once(
    start_runtime: Callable[..., Any], garden: Session
) -> None:
    run = await sync_to_async(leave_orphan)(garden, owner="elsewhere")
    first = await sync_to_async(interrupt_run)(run.pk, owner="elsewhere")
    assert len(first) == 3
    assert await sync_to_async(interrupt_run)(run.pk, owner="elsewhere") == []


async def test_a_run_that_another_process_owns_by_now_is_not_interrupted(
    start_runtime: Callable[..., Any], garden: Session
) -> None:
    run = await sync_to_async(leave_orphan)(garden, owner="elsewhere")
    assert await sync_to_async(interrupt_run)(run.pk, owner="gone") == []
    assert await run_state(garden) == "running"


async def test_a_queued_message_is_answered_after_a_crash(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, tmp_path: Path
) -> None:
    dead = Owner(tmp_path / "run")
    await sync_to_async(leave_orphan)(garden, owner=dead.id)
    await sync_to_async(accept_message)(
        garden, client_id="waiting-1", text="and then?", user_pk=None, max_queued=9, owner=dead.id
    )
    dead._file.close()
    wire.enqueue(Scenario(text="then this"))
    runtime = await start_runtime()
    async with asyncio.timeout(60):
        while await Run.objects.filter(state="completed").acount() == 0:
            await asyncio.sleep(0.02)
    await runtime.wait_idle(garden.pk)
    turns = await sync_to_async(read_turns)(garden.pk)
    assert [t.content for t in turns] == ["hello", "half an ans", "and then?", "then this"]


def test_the_database_allows_one_active_run_in_a_session(garden: Session) -> None:
    leave_orphan(garden, owner="a")
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.create(
            session=garden, client_id="second-01", state="running", created_at=timezone.now()
        )


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_a_message_during_shutdown_is_answered_by_the_next_server(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, steps: int
) -> None:
    """The server stops before the message's run is claimed or during the claim."""
    first = await start_runtime()
    sending = asyncio.create_task(
        first.send(garden, client_id="client-1", text="hello", user_pk=None)
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    await first.stop()
    await sending
    wire.enqueue(Scenario(text="hi"))
    second = await start_runtime()
    await second.wait_idle(garden.pk)
    assert await run_state(garden) == "completed"
    turns = await sync_to_async(read_turns)(garden.pk)
    assert [t.content for t in turns] == ["hello", "hi"]


async def test_a_run_claimed_during_shutdown_is_left_to_the_next_server(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="a"))
    first = await start_runtime()
    await ask(first, garden, "one")
    regenerated = await first.regenerate(garden, client_id="again-1", turn=None, user_pk=None)
    await asyncio.sleep(0)  # the worker begins to claim the run
    await first.stop()
    assert (await Run.objects.aget(pk=regenerated.run_pk)).owner == ""
    wire.enqueue(Scenario(text="b"))
    second = await start_runtime()
    await second.wait_idle(garden.pk)
    assert await run_state(garden) == "completed"


async def take_for_dead(run_pk: int, runtime: Runtime) -> None:
    """Interrupt the run as another host would, once a part of its draft is on disk.

    The process that executes the run lives on.
    """
    async with asyncio.timeout(20):
        while not await DraftChunk.objects.filter(run=run_pk).aexists():
            await asyncio.sleep(0.02)
    await sync_to_async(interrupt_run)(run_pk, owner=runtime.owner.id)


async def test_a_process_presumed_dead_adds_nothing_to_its_answer(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    wire.enqueue(Scenario(words=60, rate=200))
    runtime = await start_runtime(heartbeat=60)  # too long to notice the interruption in time
    page = open_page(runtime)
    accepted = await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await take_for_dead(accepted.run_pk, runtime)
    await runtime.wait_idle(garden.pk)
    turns = await sync_to_async(read_turns)(garden.pk)
    assert [(t.role, t.complete) for t in turns] == [("user", True), ("assistant", False)]
    assert await run_state(garden) == "interrupted"
    assert await ModelCall.objects.acount() == 0
    assert not await DraftChunk.objects.aexists()
    await page.until(lambda: "turn_separator" in page.row_types)
    assert page.row_types.count("assistant_text") == 1
    assert str(accepted.run) in [frame.get("ends_draft") for frame in page.frames]
    assert (await sync_to_async(verify_session)(await fresh(garden))).problem == ""


async def test_a_process_presumed_dead_stops_at_its_next_heartbeat(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=400, hang_after=50))
    runtime = await start_runtime(provider_timeout=60.0)
    accepted = await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await take_for_dead(accepted.run_pk, runtime)
    async with asyncio.timeout(20):
        await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "interrupted"


async def test_two_processes_never_run_one_session_at_the_same_time(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=40, rate=400), Scenario(text="b"))
    first, second = await start_runtime(), await start_runtime(supervise=False)
    await first.send(garden, client_id="client-1", text="1", user_pk=None)
    await second.send(garden, client_id="client-2", text="2", user_pk=None)
    await first.wait_idle(garden.pk)
    async with asyncio.timeout(60):
        while await Run.objects.filter(state="completed").acount() < 2:
            await asyncio.sleep(0.02)
    turns = await sync_to_async(read_turns)(garden.pk)
    assert [t.role for t in turns] == ["user", "assistant", "user", "assistant"]


async def test_a_page_of_another_process_gets_the_answer(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    wire.enqueue(Scenario(words=120, rate=150))
    here, there = await start_runtime(), await start_runtime()
    page = open_page(there)
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: len(page.rows) >= 3)
    assert page.row_types == ["user_message", "assistant_text", "turn_separator"]
    assert page.of_type("draft")
    offset = 0
    for frame in page.of_type("draft"):
        assert frame["offset"] == offset
        offset += len(frame["text"])


async def test_a_page_sees_the_end_of_a_run_that_ends_elsewhere_right_after_it_connects(
    start_runtime: Callable[..., Any], garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    runtime = await start_runtime(supervise=False, watch_interval=600)
    run = await sync_to_async(leave_orphan)(garden, owner="elsewhere")
    page = open_page(runtime)
    frames, _ = await runtime.catch_up(garden.uuid, cursor=None, rewinds=None, hello=True)
    assert [frame["run_state"] for frame in frames if frame["type"] == "state"] == ["running"]
    await sync_to_async(interrupt_run)(run.pk, owner="elsewhere")
    await runtime.watcher._check([garden.pk])
    assert [frame["ends_draft"] for frame in page.of_type("rows")] == [str(run.uuid)]
    assert [frame["run_state"] for frame in page.of_type("state")] == ["idle"]


async def test_a_stop_reaches_the_process_that_executes_the_run(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=900, rate=100))
    here, there = await start_runtime(), await start_runtime()
    await here.send(garden, client_id="client-1", text="go", user_pk=None)
    await there.stop_run(garden)
    async with asyncio.timeout(60):
        await here.wait_idle(garden.pk)
    assert await run_state(garden) == "stopped"


@pytest.mark.parametrize("stops_one", [False, True])
async def test_a_stop_right_after_a_message_reaches_the_executing_process(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session, stops_one: bool
) -> None:
    """The process that is asked to stop the run is just about to claim the next run."""
    wire.enqueue(Scenario(words=900, rate=100), Scenario(text="b"))
    here, there = await start_runtime(), await start_runtime()
    first = await here.send(garden, client_id="client-1", text="1", user_pk=None)
    await there.send(garden, client_id="client-2", text="2", user_pk=None)
    there.queue.begin(garden.pk)
    await there.queue.stop_run(garden.pk, only=first.run if stops_one else None)
    async with asyncio.timeout(60):
        while (run := await Run.objects.aget(pk=first.run_pk)).state == "running":
            await asyncio.sleep(0.02)
    assert run.state == "stopped"


async def test_the_draft_is_on_disk_within_a_quarter_of_a_second(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    from conversations.archive.journal import read_draft

    wire.enqueue(Scenario(words=400, hang_after=50))
    runtime = await start_runtime(draft_interval=0.1, provider_timeout=30.0)
    page = open_page(runtime)
    accepted = await runtime.send(garden, client_id="client-1", text="go", user_pk=None)

    def shown() -> str:
        return "".join(frame["text"] for frame in page.of_type("draft"))

    await page.until(lambda: len(shown()) >= 200)
    await asyncio.sleep(0.25)
    kept = "".join(c.text for c in await sync_to_async(read_draft)(accepted.run_pk))
    assert kept == shown()
    await runtime.stop_run(garden)
