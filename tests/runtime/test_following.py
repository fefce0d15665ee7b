"""All followers of a run get the same events, after any reconnect and in any process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.append import NewEvent, append
from conversations.archive.run_transcript import find_run, read_run
from conversations.archive.sessions import create_session
from conversations.domain.errors import NotFound
from conversations.domain.events import Info
from conversations.domain.run_transcript import (
    DELTA,
    END,
    ROW,
    StreamCursor,
    StreamEvent,
    parse_stream_cursor,
)
from conversations.models import DraftChunk, Run, Session
from conversations.runtime import publish
from conversations.runtime.following import (
    RunReader,
    SessionReader,
    follow,
    wait_for_end,
)
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

from .conftest import ask

pytestmark = pytest.mark.django_db(transaction=True)


class Reader:
    """A client that follows a run and reconnects after every few events."""

    def __init__(self, runtime: Runtime, run: Run, *, every: int = 10**6) -> None:
        self.events: list[StreamEvent] = []
        self._runtime, self._run, self._every = runtime, run, every

    async def read(self) -> list[StreamEvent]:
        async with asyncio.timeout(30):
            while not self.events or self.events[-1].kind != END:
                place = parse_stream_cursor(self.events[-1].id) if self.events else StreamCursor()
                await self._read_some(RunReader(self._run.pk, place))
        return self.events

    async def _read_some(self, reader: RunReader) -> None:
        following = follow(self._runtime, self._run.session_id, reader, heartbeat=60)
        got = 0
        async for event in following:
            assert event is not None
            self.events.append(event)
            got += 1
            if got == self._every:
                await following.aclose()
                return


async def begin(runtime: Runtime, session: Session, text: str = "Go") -> Run:
    accepted = await runtime.send(session, client_id="client-01", text=text, user_pk=None)
    return await Run.objects.aget(pk=accepted.run_pk)


STORY = (
    Scenario(
        text="Let me look at both.\n\n" * 3,
        thinking=12,
        tools=(WireCall(name="look", input={"a": 1}), WireCall(name="look", input={"a": 2})),
        rate=400,
    ),
    Scenario(words=30, thinking="So.", rate=400),
)


async def test_all_followers_of_a_run_get_the_same_events(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(*STORY)
    runtime = await start_runtime()
    other = await start_runtime(supervise=False)
    run = await begin(runtime, garden)
    readers = [
        Reader(runtime, run),
        Reader(runtime, run, every=1),
        Reader(runtime, run, every=7),
        Reader(other, run, every=3),
    ]
    first, *others = await asyncio.gather(*(reader.read() for reader in readers))
    assert [other == first for other in others] == [True] * 3
    assert await Reader(other, run).read() == first  # after the run has ended
    assert await Reader(runtime, run, every=2).read() == first
    assert [runtime.hub.listener_count, other.hub.listener_count] == [0, 0]
    assert first[-1].data == {"run": str(run.uuid), "state": "completed", "error_code": ""}
    types = [event.data["event_type"] for event in first if event.kind == ROW]
    assert types == [
        "user_message",
        "assistant_text",
        "tool_call_started",
        "tool_call_started",
        "tool_call_completed",
        "tool_call_completed",
        "assistant_text",
        "turn_separator",
    ]
    assert said(first) == [
        STORY[0].text,
        *(e.data["payload"]["text"] for e in first if e.kind == ROW and e.data["seq"] == 7),
    ]


def said(events: list[StreamEvent]) -> list[str]:
    """Return the texts of the deltas, joined for each answer."""
    texts = [""]
    for event in events:
        if event.kind == DELTA and event.data["kind"] == "text":
            texts[-1] += event.data["text"]
        elif texts[-1]:
            texts.append("")
    return [text for text in texts if text]


async def test_a_follower_in_the_same_process_reads_only_rows_from_the_disk(
    runtime: Runtime, wire: WireThread, garden: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft chunks are handed over in memory. A listener that is too slow reads them itself."""
    reads = []
    read_on = RunReader.read_on

    def counted(reader: RunReader) -> list[StreamEvent]:
        reads.append(reader)
        return read_on(reader)

    monkeypatch.setattr(RunReader, "read_on", counted)
    for most in (200, 0):
        monkeypatch.setattr(publish, "MAX_CHUNKS", most)
        reads.clear()
        wire.enqueue(Scenario(words=120, rate=200))
        accepted = await runtime.send(garden, client_id=f"client-{most}", text="Go", user_pk=None)
        run = await Run.objects.aget(pk=accepted.run_pk)
        live = await Reader(runtime, run).read()
        assert (len(reads) < 15) is bool(most)
        assert live == await Reader(runtime, run).read()


async def test_a_stopped_answer_keeps_all_deltas_that_were_sent(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=400, thinking=20, rate=100))
    run = await begin(runtime, garden)
    reading = asyncio.create_task(Reader(runtime, run, every=2).read())
    while await DraftChunk.objects.acount() < 3:
        await asyncio.sleep(0.01)
    await runtime.stop_run(garden)
    live = await reading
    assert live == await Reader(runtime, run).read()
    assert live[-1].data["state"] == "stopped"
    [row] = [e for e in live if e.kind == ROW and e.data["event_type"] == "assistant_text"]
    assert row.data["payload"]["partial"] is True
    told = [e.data["text"] for e in live if e.kind == DELTA and e.data["kind"] == "text"]
    assert "".join(told) == row.data["payload"]["text"]


async def test_events_of_other_writers_are_not_part_of_the_run(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=60, rate=200))
    run = await begin(runtime, garden)
    reading = asyncio.create_task(Reader(runtime, run).read())
    while not await DraftChunk.objects.aexists():
        await asyncio.sleep(0.01)
    notice = NewEvent(payload=Info(text="Nearly used up."))
    await sync_to_async(append)(garden.pk, session_uuid=garden.uuid, events=[notice])
    live = await reading
    assert live == await Reader(runtime, run, every=5).read()
    assert "info" not in {e.data.get("event_type") for e in live}


async def test_runs_of_every_kind_have_their_own_rows(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="One."), Scenario(text="Two."), Scenario(text="Three."))
    first = await ask(runtime, garden, "first")
    again = await runtime.regenerate(garden, client_id="again-01", turn=None, user_pk=None)
    await runtime.wait_idle(garden.pk)
    edited = await runtime.edit(garden, client_id="edit-001", turn=1, text="new", user_pk=None)
    await runtime.wait_idle(garden.pk)
    for pk, text, count in (
        (first.pk, "One.", 3),
        (again.run_pk, "Two.", 2),
        (edited.run_pk, "Three.", 3),
    ):
        events = await Reader(runtime, await Run.objects.aget(pk=pk)).read()
        assert said(events) == [text]
        assert len([event for event in events if event.kind == ROW]) == count


async def test_withdrawing_a_message_ends_its_stream(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(hang_after=1))
    await begin(runtime, garden)
    accepted = await runtime.send(garden, client_id="client-02", text="Later", user_pk=None)
    waiting = await Run.objects.aget(pk=accepted.run_pk)
    reading = asyncio.create_task(Reader(runtime, waiting).read())
    await asyncio.sleep(0.05)
    await runtime.withdraw(garden, run=waiting.uuid, user_pk=garden.owner_id)
    [end] = await reading
    assert end.data["state"] == "stopped"
    await runtime.stop_run(garden)


async def test_a_stream_ends_when_its_process_stops(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(hang_after=1))
    runtime, other = await start_runtime(), await start_runtime(supervise=False)
    run = await begin(runtime, garden)

    async def listen() -> list[Any]:
        reader = RunReader(run.pk, StreamCursor())
        return [e async for e in follow(other, garden.pk, reader, heartbeat=60)]

    following = asyncio.create_task(listen())
    facts = await sync_to_async(read_run)(run.pk)
    waiting = asyncio.create_task(wait_for_end(other, facts, seconds=60))
    async with asyncio.timeout(60):
        while other.hub.listener_count < 2:
            await asyncio.sleep(0.01)
        other.hub.close_listeners()
        assert [event.kind for event in await following] == [ROW]
        assert await waiting is False


async def test_a_heartbeat_is_sent_while_there_are_no_events(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(hang_after=1))
    run = await begin(runtime, garden)
    following = follow(runtime, garden.pk, RunReader(run.pk, StreamCursor()), heartbeat=0.02)
    got = [await anext(following) for _ in range(4)]
    assert got[0] is not None
    assert got[2:] == [None, None]
    await following.aclose()
    await runtime.stop_run(garden)


async def test_a_follower_of_a_session_gets_rows_and_rewinds_in_order(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    async def read(every: int, count: int) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        while len(events) < count:
            place = parse_stream_cursor(events[-1].id) if events else StreamCursor()
            following = follow(runtime, garden.pk, SessionReader(garden.pk, place), heartbeat=60)
            for _ in range(min(every, count - len(events))):
                event = await anext(following)
                assert event is not None
                events.append(event)
            await following.aclose()
        return events

    live = asyncio.create_task(read(1, 9))
    await ask(runtime, garden, "first")
    await runtime.regenerate(garden, client_id="again-01", turn=None, user_pk=None)
    await runtime.wait_idle(garden.pk)
    await runtime.regenerate(garden, client_id="again-02", turn=None, user_pk=None)
    await runtime.wait_idle(garden.pk)
    async with asyncio.timeout(60):
        events = await live
    assert [event.id for event in events] == ["1", "2", "3", "3.1.0", "4", "5", "5.1.0", "6", "7"]
    assert [e.data["from_seq"] for e in events if e.kind == "rewound"] == [2, 2]
    assert await read(4, 9) == events == await read(100, 9)


def test_a_run_of_another_session_is_not_found(garden: Session) -> None:
    run = Run.objects.create(
        session=garden, client_id="client-01", state="completed", created_at=garden.created_at
    )
    other = create_session(garden.workspace, owner=garden.owner)
    assert find_run(garden, run.uuid).pk == run.pk
    with pytest.raises(NotFound):
        find_run(other, run.uuid)
