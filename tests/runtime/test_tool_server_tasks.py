"""Calls that run as tasks of a tool server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversations.models import Session
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config
from tests.runtime.test_tool_questions import garden_auto
from tests.runtime.tool_stories import answers, require_whole, results
from tests.tools.test_mcp import QUICK
from tests.wire.server import WireThread

__all__ = ["garden_auto"]

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]


async def until(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():  # noqa: ASYNC240
            await asyncio.sleep(0.02)


async def begin(
    start_runtime: Start, wire: WireThread, session: Session, server: HttpServer
) -> Runtime:
    made = config(beds={"url": server.url, "trust_hints": True})
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    wire.enqueue(*answers(("mcp__beds__grow", {})))
    await runtime.send(session, client_id="client-1", text="go", user_pk=session.owner_id)
    return runtime


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_task_survives_the_loss_of_its_connection(
    start_runtime: Start, wire: WireThread, garden_auto: Session, tmp_path: Path, is_lost: bool
) -> None:
    with HttpServer("tasks_server.py", FOLDER=str(tmp_path)) as server:
        runtime = await begin(start_runtime, wire, garden_auto, server)
        await until(tmp_path / "begun")
        if is_lost:
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.start, port=server.port)
        (tmp_path / "go").touch()
        await runtime.wait_idle(garden_auto.pk)
    assert await results(garden_auto) == ["They are grown."]
    await require_whole(garden_auto)


async def test_a_stop_cancels_the_task(
    start_runtime: Start, wire: WireThread, garden_auto: Session, tmp_path: Path
) -> None:
    with HttpServer("tasks_server.py", FOLDER=str(tmp_path)) as server:
        runtime = await begin(start_runtime, wire, garden_auto, server)
        await until(tmp_path / "begun")
        await asyncio.sleep(0.7)
        await runtime.stop_run(garden_auto)
        await runtime.wait_idle(garden_auto.pk)
        assert (tmp_path / "cancelled").exists()
        (tmp_path / "go").touch()
    [result] = await results(garden_auto)
    assert "They grow." in result, "the status of the task, as far as it was shown"
