"""uvicorn's treatment of misbehaving connections, without the application."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any
from unittest.mock import AsyncMock

import pytest
from uvicorn import Config, Server
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from loomweb import uvicorn_server
from loomweb.server import MAX_HEAD_BYTES
from loomweb.uvicorn_server import LoomServer, RequestSizeLimit, make_config

SECONDS = 0.2  # instead of a minute


async def _echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config: Config = make_config(_echo)
    config.timeout_keep_alive = SECONDS  # type: ignore[assignment]
    server = Server(config)
    serving = asyncio.ensure_future(server._serve([listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: local",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
async def test_a_stalled_request_closes_its_connection(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_head_that_arrives_in_one_piece_has_a_limit() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/", "raw_path": b"/", "headers": [(b"host", b"localhost")]}
    application = RequestSizeLimit(_echo)
    for length, status in ((20_000, 204), (MAX_HEAD_BYTES, 431)):
        sent.clear()
        await application({**scope, "query_string": b"x" * length}, receive, send)
        assert sent[0]["status"] == status


async def test_a_silent_socket_stays_open(port: int) -> None:
    async with connect(f"ws://127.0.0.1:{port}/") as socket:
        await asyncio.sleep(3 * SECONDS)
        await socket.send("still here")
        assert await socket.recv() == "still here"


async def test_malformed_requests_and_frames_are_not_logged(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for sent, answer in (
        (b"\x00 no request\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", b" 204 "),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(sent)
            assert answer in await reader.readline()
    async with connect(f"ws://127.0.0.1:{port}/") as socket:
        await socket.send(b"\xff", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert not caplog.records


async def _download(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _piece in range(50):
        await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})
    await send({"type": "http.response.body"})


async def test_a_download_that_nobody_reads_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(uvicorn_server, "END_SECONDS", SECONDS)
    for name in ("current_runtime", "stop_current_runtime"):
        monkeypatch.setattr(uvicorn_server, name, AsyncMock())
    listener = socket.create_server(("127.0.0.1", 0))
    server = LoomServer(make_config(_download))
    serving = asyncio.ensure_future(server._serve([listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1)
    with closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readexactly(1)
        server.should_exit = True
        await asyncio.wait_for(serving, 10)
    assert not caplog.records
