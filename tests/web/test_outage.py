"""Outages of the database: for an instant under load, and for longer than a run waits.

The outages are not simulated: a real PostgreSQL ends its connections or refuses new ones.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import AsyncClient

from conversations.archive.sessions import create_session
from conversations.archive.verify import verify_sessions
from conversations.domain.runs import COMPLETED, FINAL_STATES, INTERRUPTED
from conversations.models import ChatEvent, Run, Session, Workspace
from conversations.web.errors import TRY_AGAIN_LATER
from loomweb.asgi import django_application
from tests.api.conftest import Program, token_of
from tests.archive.turns import read_turns

from .sockets import Socket, SocketClosed, open_socket, session_cookie

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("transactional_db", "runtime_ends"),
]

AWAY = "database_unavailable"
TIMES = 5


class Server:
    """The database server, controlled by a connection to another of its databases."""

    def __init__(self) -> None:
        params = connection.get_connection_params()
        self._name = params["dbname"]
        names = ("user", "password", "host", "port")
        given = {name: params[name] for name in names if params.get(name)}
        self._connection = psycopg.connect(dbname="postgres", autocommit=True, **given)

    def end_connections(self) -> int:
        ended = self._connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s",
            [self._name],
        ).fetchone()
        return ended[0] if ended else 0

    def connections(self) -> set[int]:
        """Return the ids of the server processes, which serve one connection each."""
        rows = self._connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s", [self._name]
        )
        return {pid for (pid,) in rows}

    def let_in(self, *, is_open: bool) -> None:
        word = "true" if is_open else "false"
        name = connection.ops.quote_name(self._name)
        self._connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {word}".encode())

    @contextmanager
    def away(self) -> Iterator[None]:
        self.let_in(is_open=False)
        self.end_connections()
        try:
            yield
        finally:
            self.let_in(is_open=True)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def sessions(workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    for name, value in {"demo_delay": 0.01, "heartbeat_seconds": 0.2, "watch_seconds": 0.1}.items():
        monkeypatch.setattr(settings.LOOM, name, value)
    return [create_session(workspace, owner=user) for _ in range(3)]


@pytest.fixture
def token(user: User) -> str:
    return token_of(user)


@pytest.fixture
def database(sessions: list[Session], token: str) -> Iterator[Server]:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no connections to lose")
    connection.close()  # the test's own connection, so that it is not among those that are ended
    server = Server()
    yield server
    server.close()


@pytest.fixture
async def reader(database: Server, user: User) -> AsyncClient:
    client = AsyncClient(raise_request_exception=False)
    name, _, value = (await sync_to_async(session_cookie)(user)).partition("=")
    client.cookies[name] = value
    return client


@pytest.fixture
def program(token: str) -> AsyncClient:
    made = Program(token)
    made.raise_request_exception = False
    return made


def check_answer(path: str, answer: Any) -> None:
    """Assert that the answer is a success or the documented 503."""
    if answer.status_code in (200, 201, 202):
        return
    assert answer.status_code == 503, (path, answer.status_code, answer.content[:300])
    assert int(answer["Retry-After"]) > 0
    kind = answer["Content-Type"].partition(";")[0]
    if path.startswith("/api/v1/"):
        assert kind == "application/problem+json"
        assert answer.json()["code"] == AWAY
    else:
        assert kind == "text/html"
        assert b"The database is not responding" in answer.content


@dataclass
class Load:
    """People and programs that send requests until ``is_over`` is set, and the answers they got."""

    reader: AsyncClient
    program: AsyncClient
    is_over: bool = False
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The acknowledged messages: client_id → text."""
    answers: list[int] = field(default_factory=list)
    refused: int = 0

    async def read_pages(self, session: Session) -> None:
        paths = ["/", f"/s/{session.uuid}/", "/search/?q=rose", "/account/"]
        paths += [f"/api/v1/sessions/{session.uuid}/turns", "/api/v1/workspaces"]
        while not self.is_over:
            for path in paths:
                client = self.program if path.startswith("/api/") else self.reader
                await self.keep(path, await client.get(path))

    async def keep(self, path: str, answer: Any) -> bool:
        check_answer(path, answer)
        self.answers.append(answer.status_code)
        return bool(answer.status_code < 300)

    async def call(self, session: Session) -> None:
        path = f"/api/v1/sessions/{session.uuid}/messages"
        while not self.is_over:
            client_id = uuid4().hex
            body, key = {"text": f"Said by a program: {client_id}"}, {"Idempotency-Key": client_id}
            while not await self.keep(
                path,
                await self.program.post(path, body, content_type="application/json", headers=key),
            ):
                self.refused += 1
            self.acknowledged[client_id] = body["text"]
            await asyncio.sleep(0.3)

    async def chat(self, session: Session, person: User) -> None:
        """Send messages by a socket as a page does.

        If the socket is closed, open it again and repeat the message that was not acknowledged.
        """
        client_id = ""
        while client_id or not self.is_over:
            socket = await open_socket(session, person)
            try:
                while client_id or not self.is_over:
                    client_id = client_id or uuid4().hex
                    await self.say(socket, client_id)
                    client_id = ""
                    await socket.until("state", where=lambda frame: frame["run_state"] == "idle")
            except SocketClosed as closed:
                if closed.code != TRY_AGAIN_LATER:
                    raise
                self.refused += 1
            else:
                await socket.close()

    async def say(self, socket: Socket, client_id: str = "") -> None:
        """Send a message until it is acknowledged."""
        client_id = client_id or uuid4().hex
        text = f"Said on a page: {client_id}"
        while True:
            await socket.send({"type": "send", "client_id": client_id, "text": text})
            told = await socket.until(
                "ack", "error", where=lambda frame: frame.get("client_id") == client_id
            )
            if told["type"] == "ack":
                self.acknowledged[client_id] = text
                return
            assert told["code"] == AWAY, told
            self.refused += 1


async def status_of(path: str, user_cookie: str) -> int:
    """Return the status that the server's own application answers, on one of its threads."""
    headers = [(b"host", b"127.0.0.1"), (b"cookie", user_cookie.encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    request = ApplicationCommunicator(django_application, scope)
    await request.send_input({"type": "http.request"})
    answer = await request.receive_output(10)
    while (await request.receive_output(10)).get("more_body"):
        pass
    await request.wait(10)
    return int(answer["status"])


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    while django_application.idle:
        django_application.idle.pop().end().result(10)


@pytest.mark.usefixtures("threads")
async def test_connection_is_reused_and_opened_again_after_it_is_lost(
    database: Server, user: User
) -> None:
    cookie = await sync_to_async(session_cookie)(user)
    await sync_to_async(connections.close_all)()
    assert await status_of("/account/", cookie) == 200
    kept = database.connections()
    assert kept
    for _ in range(3):
        assert await status_of("/account/", cookie) == 200
    assert database.connections() == kept
    database.end_connections()
    assert await status_of("/account/", cookie) == 200
    with database.away():
        assert await status_of("/account/", cookie) == 503
    assert await status_of("/account/", cookie) == 200


async def wait_for_runs(seconds: float = 60) -> list[Run]:
    """Wait until all runs have ended, and return them."""
    await sync_to_async(connections.close_all)()  # the test's own connection is lost as well
    async with asyncio.timeout(seconds):
        while True:
            runs = [run async for run in Run.objects.order_by("pk")]
            if all(run.state in FINAL_STATES for run in runs):
                return runs
            await asyncio.sleep(0.1)


def texts_of(session: Session) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in read_turns(session.pk)]


def notices_of(session: Session) -> list[str]:
    events = ChatEvent.objects.filter(session=session, event_type="info").order_by("seq")
    return [str(event.payload) for event in events]


async def test_connections_that_end_under_load_lose_no_message_and_no_run(
    database: Server,
    reader: AsyncClient,
    program: AsyncClient,
    sessions: list[Session],
    user: User,
) -> None:
    first, second, third = sessions
    load = Load(reader, program)
    work = [
        asyncio.create_task(one)
        for one in (
            load.chat(first, user),
            load.chat(second, user),
            load.call(third),
            load.read_pages(first),
        )
    ]
    ended = 0
    try:
        for _ in range(TIMES):
            await asyncio.sleep(0.7)
            ended += await asyncio.to_thread(database.end_connections)
    finally:
        load.is_over = True
        await asyncio.gather(*work)
    assert ended > TIMES  # connections were really ended
    runs = await wait_for_runs()
    assert {run.state for run in runs} == {COMPLETED}
    assert len(runs) == len(load.acknowledged)
    said = []
    for session in sessions:
        turns = await sync_to_async(texts_of)(session)
        assert [role for role, _ in turns] == ["user", "assistant"] * (len(turns) // 2)
        said += [text for role, text in turns if role == "user"]
    assert sorted(said) == sorted(load.acknowledged.values())
    verified = await sync_to_async(lambda: list(verify_sessions()))()
    assert [one.problem for one in verified if one.problem] == []


async def test_run_waits_for_the_database_while_requests_are_refused(
    database: Server,
    reader: AsyncClient,
    program: AsyncClient,
    sessions: list[Session],
    user: User,
) -> None:
    session, other, _ = sessions
    socket, idle = await open_socket(session, user), await open_socket(other, user)
    load = Load(reader, program)
    await load.say(socket)
    await socket.until("draft")
    paths = ["/", f"/s/{session.uuid}/", "/search/?q=rose"]
    paths += ["/api/v1/workspaces"]
    with database.away():
        for path in paths:
            client = program if path.startswith("/api/") else reader
            answer = await client.get(path)
            check_answer(path, answer)
            assert answer.status_code == 503
        part = await reader.get("/", headers={"HX-Request": "true"})
        assert (part.status_code, part["Content-Type"].partition(";")[0]) == (503, "text/plain")
        assert (await reader.get("/healthz")).status_code == 200
        ready = await reader.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "database not available")
        figures = await reader.get("/metrics")
        assert (figures.status_code, "\nloom_process_sockets 2\n" in figures.text) == (200, True)
        assert "loom_runs_queued" not in figures.text
        client_id = uuid4().hex
        await idle.send({"type": "send", "client_id": client_id, "text": "Is somebody there?"})
        error = await idle.until("error")
        assert (error["code"], error["client_id"]) == (AWAY, client_id)
        late = await open_socket_as_it_is(session, program, reader)
        assert await late.close_code() == 1013
    await idle.send({"type": "send", "client_id": client_id, "text": "Is somebody there?"})
    await idle.until("ack")
    runs = await wait_for_runs()
    assert [run.state for run in runs] == [COMPLETED, COMPLETED]
    for opened in (socket, idle):
        await opened.close()


async def open_socket_as_it_is(
    session: Session, program: AsyncClient, reader: AsyncClient
) -> Socket:
    """Open a socket with the cookie that the browser has, because nobody can sign in now."""
    cookies = "; ".join(f"{name}={one.value}" for name, one in reader.cookies.items())
    return await open_socket(session, None, headers={"cookie": cookies})


async def test_run_interrupted_by_an_outage_keeps_the_text_shown(
    database: Server,
    reader: AsyncClient,
    program: AsyncClient,
    sessions: list[Session],
    user: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "database_wait_seconds", 0.3)
    socket = await open_socket(sessions[0], user)
    await Load(reader, program).say(socket)
    shown = (await socket.until("draft"))["text"]
    with database.away(), suppress(TimeoutError):
        async with asyncio.timeout(3):
            while True:
                shown += (await socket.until("draft")).get("text", "")
    [run] = await wait_for_runs()
    assert run.state == INTERRUPTED
    turns = await sync_to_async(texts_of)(sessions[0])
    assert turns[-1][0] == "assistant"
    assert shown.strip()
    assert shown.strip() in turns[-1][1]
    notices = await sync_to_async(notices_of)(sessions[0])
    assert "The database could not be reached during this answer" in notices[-1]
    await socket.close()
