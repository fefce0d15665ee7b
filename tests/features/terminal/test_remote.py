"""Requests to a server that refuses, is busy, breaks off or is not Loom Web."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from conversations.domain.errors import Conflict, LoomError, NotPermitted, Rejected, Unavailable
from conversations.features.terminal import remote
from conversations.features.terminal.remote import END, LOST, ApiClient, is_readable_on_the_way
from tests.typist import PATIENCE

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_route("*", "/api/v1/{rest:.*}", handler)
    async with TestServer(app) as server:
        api = ApiClient(str(server.make_url("/")), "loom_x")
        try:
            yield api
        finally:
            await api.close()


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRY_DELAYS_SECONDS", (0.0,) * 6)


async def test_a_broken_stream_resumes_after_the_last_event() -> None:
    asked: list[str] = []

    async def break_off(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        first = int(asked[-1] or 0) + 1
        await response.write(b"retry: 2000\n:\n\n")
        for number in (first, first + 1):
            kind = "end" if number == 6 else "delta"
            text = f'id: {number}\r\nevent: {kind}\ndata: {{"number":\ndata: {number}}}\n\n'
            for piece in (text[:9], text[9:]):
                await response.write(piece.encode())
        await response.write(b'id: 9\nevent: delta\ndata: {"cut":')
        return response

    async with serving(break_off) as api:
        events = [event async for event in api.stream("runs/1/stream")]
    assert [data.get("number") for kind, data in events if kind != LOST] == [*range(1, 7)]
    assert [kind for kind, _ in events].count(LOST) == 2
    assert events[-1][0] == END
    assert asked == ["", "2", "4"]


async def test_a_request_to_a_busy_server_is_retried_with_the_same_key() -> None:
    keys: list[str] = []

    async def be_busy(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) < 3:
            return web.Response(status=429 if len(keys) == 1 else 503)
        return web.json_response({"said": (await request.json())["text"]})

    async with serving(be_busy) as api:
        assert await api.send("POST", "x", {"text": "é"}, key="once") == {"said": "é"}
    assert keys == ["once"] * 3


@pytest.mark.parametrize(
    ("status", "kind"), [(401, NotPermitted), (403, NotPermitted), (409, Conflict), (422, Rejected)]
)
async def test_a_refusal_raises_an_error_with_its_reason(
    status: int, kind: type[LoomError]
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        problem = {"detail": "It is so.", "code": "because"}
        return web.json_response(problem, status=status)

    async with serving(refuse) as api:
        with pytest.raises(kind, match="It is so") as refused:
            await api.get("x")
        assert refused.value.code == "because"
        with pytest.raises(kind):
            _ = [event async for event in api.stream("x")]


async def test_a_server_that_is_not_loom_web_is_rejected() -> None:
    greetings = ["<html>Hello</html>", '{"hello": "world"}', '{"items": {}}']

    async def greet(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("moved"):
            raise web.HTTPFound("https://elsewhere.example/")
        return web.Response(text=greetings.pop())

    async with serving(greet) as api:
        while greetings:
            with pytest.raises(Rejected, match="not Loom Web"):
                await api.check()
        with pytest.raises(Rejected, match="302"):
            await api.get("moved")


async def test_requests_to_an_unreachable_server_raise_unavailable() -> None:
    api = ApiClient("http://127.0.0.1:9", "loom_x")
    try:
        with pytest.raises(Unavailable, match="not responding"):
            await api.check()
        with pytest.raises(Unavailable):
            _ = [event async for event in api.stream("x")]
    finally:
        await api.close()


async def test_requests_to_a_hanging_server_end_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "RETRY_DELAYS_SECONDS", (0.0,) * 200)
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(remote, "MAX_RETRY_SECONDS", 0.5)
    tries: list[str] = []

    async def hang(request: web.Request) -> web.StreamResponse:
        tries.append(request.path)
        await asyncio.sleep(PATIENCE)
        return web.Response()

    async with serving(hang) as api:
        with pytest.raises(Unavailable, match="not responding"):
            await api.get("x")
    assert len(tries) < 100


@pytest.mark.parametrize("address", ["chat.example.org", "ftp://chat.example.org", "https://"])
async def test_an_address_without_http_or_host_is_refused(address: str) -> None:
    with pytest.raises(Rejected, match="https://"):
        ApiClient(address, "loom_x")


@pytest.mark.parametrize(
    ("server", "readable"),
    [
        ("http://chat.example.org", True),
        ("http://127.0.0.1.example.org", True),
        ("https://chat.example.org", False),
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:8000", False),
        ("", False),
    ],
)
def test_unencrypted_connections_to_other_hosts_are_recognised(server: str, readable: bool) -> None:
    assert is_readable_on_the_way(server) is readable
