"""A real runtime on the test's loop, against a real server of the wire protocol."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from conversations.archive.sessions import create_session, get_session
from conversations.archive.workspaces import create_workspace
from conversations.models import Run, Session
from conversations.runtime.options import RuntimeOptions, read_options
from conversations.runtime.publish import Subscriber
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import SDK_SERVER, HttpServer
from tests.starting import forked_starts
from tests.wire.server import WireThread

type HttpServers = Callable[..., HttpServer]


@pytest.fixture(scope="session")
def http_servers() -> Iterator[HttpServers]:
    """Yield a factory of HTTP tool servers, forked from a process that has loaded the SDK."""
    with forked_starts(SDK_SERVER) as starts:
        yield partial(HttpServer, popen=starts.popen)


@pytest.fixture
def options(wire: WireThread, tmp_path: Path) -> RuntimeOptions:
    return replace(
        read_options(supervise=True),
        data_dir=tmp_path,
        providers=(wire.provider,),
        provider_retries=2,
        provider_timeout=10.0,
        heartbeat=0.3,
        watch_interval=0.1,
        draft_interval=0.03,
        delta_interval=0.01,
    )


@pytest.fixture
async def start_runtime(
    transactional_db: None, options: RuntimeOptions
) -> AsyncIterator[Callable[..., Any]]:
    started: list[Runtime] = []

    async def start(**changes: Any) -> Runtime:
        runtime = Runtime(replace(options, **changes))
        started.append(runtime)
        await runtime.start()
        return runtime

    yield start
    for runtime in started:
        await runtime.stop()


@pytest.fixture
async def runtime(start_runtime: Callable[..., Any]) -> Runtime:
    started: Runtime = await start_runtime()
    return started


@pytest.fixture
def garden(transactional_db: None, tmp_path: Path) -> Session:
    """Return a committed session, which every thread and connection can read."""
    user = User.objects.create_user("ann")
    workspace = create_workspace(root=tmp_path, name="Garden", owner=user)
    return create_session(workspace, owner=user)


def change_options(runtime: Runtime, **changes: Any) -> None:
    """Change options that take effect with the runtime's next run."""
    context = runtime.queue._context
    runtime.queue._context = replace(context, options=replace(context.options, **changes))


class Page:
    """A subscriber to a session that collects the frames which an open page would get."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.frames: list[dict[str, Any]] = []
        self._runtime = runtime
        self._subscriber = Subscriber(
            session_pk=session.pk, deliver=self._take, reached=session.last_seq, held=False
        )
        runtime.hub.add(self._subscriber)
        self._changed = asyncio.Event()

    def _take(self, text: str) -> None:
        self.frames.append(json.loads(text))
        self._changed.set()

    def close(self) -> None:
        self._runtime.hub.remove(self._subscriber)

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == kind]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for frame in self.of_type("rows") for row in frame["rows"]]

    @property
    def row_types(self) -> list[str]:
        return [row["event_type"] for row in self.rows]

    async def settled(self, runtime: Runtime) -> None:
        """Wait until the relay has joined the group of this page's session."""
        async with asyncio.timeout(60):
            while self._subscriber.session_pk not in runtime.relay.joined:
                await asyncio.sleep(0.01)

    async def until(self, condition: Callable[[], Any], *, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def open_page(garden: Session) -> Callable[[Runtime], Page]:
    return lambda runtime: Page(runtime, garden)


async def ask(runtime: Runtime, session: Session, text: str, **fields: Any) -> Run:
    """Send a message and wait until its run has ended."""
    client_id = fields.get("client_id", f"client-{text[:20].encode().hex()}")
    accepted = await runtime.send(session, client_id=client_id, text=text, user_pk=session.owner_id)
    await runtime.wait_idle(session.pk)
    return await Run.objects.aget(pk=accepted.run_pk)


async def run_state(session: Session) -> str:
    run = await Run.objects.filter(session=session.pk).order_by("-pk").afirst()
    assert run is not None
    return run.state


async def fresh(session: Session) -> Session:
    return await sync_to_async(get_session)(session.uuid)
