"""Helpers for tests of tool calls: scripted answers and the contents of a session."""

import asyncio
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from conversations.archive.journal import walk_events
from conversations.archive.verify import verify_session
from conversations.domain.events import Info, ToolCallCompleted, ToolCallStarted
from conversations.models import Session, ToolCall
from tests.archive.turns import read_turns
from tests.runtime.conftest import fresh
from tests.runtime.sample_tools import witness
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall


def answers(*calls: tuple[str, dict[str, Any]], prefix: str = "toolu") -> tuple[Scenario, Scenario]:
    """Return an answer with these calls and the following answer to their results.

    ``prefix`` begins the ids of the calls, which must be unique in a session.
    """
    tools = tuple(
        WireCall(name=name, input=arguments, id=f"{prefix}_{number}")
        for number, (name, arguments) in enumerate(calls)
    )
    return Scenario(text="I do it.", tools=tools), Scenario(text="Done.")


async def endings(session: Session) -> list[ToolCallCompleted]:
    events = await sync_to_async(walk_events)(session.pk, start=None, limit=500)
    return [e.payload for e in events if isinstance(e.payload, ToolCallCompleted)]


async def results(session: Session) -> list[str]:
    turns = await sync_to_async(read_turns)(session.pk)
    return [turn.content for turn in turns if turn.role == "tool"]


async def calls_of(session: Session) -> list[ToolCall]:
    return [call async for call in ToolCall.objects.filter(session=session.pk).order_by("pk")]


async def require_whole(session: Session) -> None:
    """Assert that every call has ended once with a turn and a row, and verify the archive."""
    events = [
        e.payload for e in await sync_to_async(walk_events)(session.pk, start=None, limit=500)
    ]
    started = [e.call for e in events if isinstance(e, ToolCallStarted)]
    completed = [e.call for e in events if isinstance(e, ToolCallCompleted)]
    calls = await calls_of(session)
    assert sorted(started) == sorted(completed) == sorted(str(call.uuid) for call in calls)
    turns = [call.result_turn for call in calls]
    assert None not in turns
    assert len(set(turns)) == len(turns) == len(await results(session))
    assert not [call for call in calls if call.state in ("started", "waiting_approval", "running")]
    assert (await sync_to_async(verify_session)(await fresh(session))).problem == ""


async def until_done(folder: Path, line: str) -> None:
    async with asyncio.timeout(60):
        while line not in witness(folder):
            await asyncio.sleep(0.01)


async def notices(session: Session, code: str) -> list[Info]:
    events = await sync_to_async(walk_events)(session.pk, start=None, limit=500)
    return [e.payload for e in events if isinstance(e.payload, Info) and e.payload.code == code]


async def until_waiting(session: Session, count: int = 1) -> list[ToolCall]:
    """Wait until the run waits for a person with ``count`` calls, and return these calls."""
    async with asyncio.timeout(60):
        while True:
            calls = [call for call in await calls_of(session) if call.state == "waiting_approval"]
            run = await session.runs.order_by("-pk").afirst()
            if len(calls) == count and run is not None and run.state == "waiting_approval":
                return calls
            await asyncio.sleep(0.01)
