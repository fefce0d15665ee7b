"""The server: HTTP/1.1 by asyncio streams, the routes, and its command line.

``WireServer`` runs in an event loop. ``WireThread`` runs a server in its own thread, so that
any test can use it, whatever event loop the test has. The command prints the server's URL on
one line and serves until it is stopped::

    python -m tests.wire.server --port 8300
"""

import argparse
import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from itertools import count
from typing import Any

from conversations.providers.config import ANTHROPIC, ProviderConfig
from tests.wire.blocks import cut_blocks, make_blocks
from tests.wire.connection import Connection, Exchange, HttpRequest, load_json, read_request
from tests.wire.directive import DIRECTIVE, BadDirective, parse_directive
from tests.wire.frames import Frame
from tests.wire.openai_protocols import (
    make_chat_document,
    make_chat_frames,
    make_response_document,
    make_response_frames,
    read_chat,
    read_responses,
)
from tests.wire.playback import ERROR_TYPES, ClientLeft, Ended, Playback
from tests.wire.prompt_cache import PromptCache
from tests.wire.reply import Answer
from tests.wire.request_body import count_rounds, find_last_texts, make_default_text
from tests.wire.rules.errors import ApiError, refuse
from tests.wire.rules.prompt import count_tokens
from tests.wire.rules.request import ModelRow, check_request
from tests.wire.scenario import Scenario, without_fault

KEY = "sk-wire-0123456789abcdef"
MAX_BODY = 32 * 1024 * 1024
HTML_PAGE = "<!doctype html><html><head><title>Welcome</title></head><body>Hello</body></html>"
MODELS = (
    ModelRow(
        id="claude-opus-5-5", display_name="Claude Opus 5.5", created_at="2026-10-21T00:00:00Z"
    ),
    ModelRow(
        id="claude-sonnet-5-5", display_name="Claude Sonnet 5.5", created_at="2026-10-01T00:00:00Z"
    ),
    ModelRow(
        id="claude-haiku-5-5", display_name="Claude Haiku 5.5", created_at="2026-09-15T00:00:00Z"
    ),
    ModelRow(
        id="claude-haiku-4-5",
        display_name="Claude Haiku 4.5",
        created_at="2025-10-15T00:00:00Z",
        max_input_tokens=200_000,
        max_tokens=64_000,
        takes_sampling=True,
    ),
)

type Handler = Callable[["HttpRequest", "Connection"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """A protocol of the server. ``read`` converts a request to one of the Messages API."""

    read: Callable[[Any], Any]
    frames: Callable[[Answer], Iterator[Frame]]
    document: Callable[[Answer], dict[str, Any]]


MESSAGES = WireProtocol(lambda body: body, Answer.make_frames, Answer.make_message)
CHAT = WireProtocol(read_chat, make_chat_frames, make_chat_document)
RESPONSES = WireProtocol(read_responses, make_response_frames, make_response_document)


@dataclass(slots=True)
class WireServer:
    """The server.

    ``requests`` holds the bodies of messages that were posted, in order, as each protocol has
    them. ``exchanges`` holds every request with its outcome. The server answers no message
    while ``answering`` is not set.
    """

    key: str = KEY
    models: dict[str, ModelRow] = field(
        default_factory=lambda: {model.id: model for model in MODELS}
    )
    cache: PromptCache = field(default_factory=PromptCache)
    requests: list[dict[str, Any]] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    models_reply: tuple[int, Any] | None = None  # replaces the answer of /v1/models
    # Pages that only some servers have, by path. Each function takes the request's body and
    # returns the response or an awaitable of it. A string is sent as plain text, not as JSON.
    pages: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    url: str = ""
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    _queue: deque[Scenario] = field(default_factory=deque)
    _happened: Counter[str] = field(default_factory=Counter)
    _ids: Iterator[int] = field(default_factory=lambda: count(1))
    _server: asyncio.Server | None = None

    def __post_init__(self) -> None:
        self.answering.set()

    def enqueue(self, *scenarios: Scenario) -> None:
        """Answer each of the next calls with one of the scenarios.

        A scenario with ``times`` answers that many calls with failures and one more with
        success.
        """
        self._queue.extend(scenarios)

    def forget(self) -> None:
        """Drop the enqueued scenarios and the recorded requests and exchanges."""
        self._queue.clear()
        self.requests.clear()
        self.exchanges.clear()

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start to listen and return the base URL."""
        self._server = await asyncio.start_server(self._serve, host, port, backlog=1024)
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server.close_clients()
            await self._server.wait_closed()

    # HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request and return whether the connection can take another one."""
        exchange = Exchange(
            path=request.path,
            headers=request.headers,
            body=load_json(request.content),
            started=time.monotonic(),
            client_port=writer.get_extra_info("peername")[1],
        )
        self.exchanges.append(exchange)
        connection = Connection(reader, writer, exchange, f"req_wire_{next(self._ids):06d}")
        try:
            await self._dispatch(request, connection)
        except ApiError as error:
            await self._send_error(connection, error)
        except ClientLeft:
            exchange.client_left = time.monotonic()
            connection.is_open = False
        exchange.ended = time.monotonic()
        return connection.is_open

    async def _dispatch(self, request: HttpRequest, connection: Connection) -> None:
        if page := self.pages.get(request.path):
            body = page(connection.exchange.body)
            if isawaitable(body):
                body = await body
            if isinstance(body, str):
                await connection.send_text(200, body, "text/plain")
            else:
                await connection.send_json(200, body)
            return
        handler, methods = self._find_route(request.path)
        if handler is None:
            raise ApiError(404, "not_found_error", "Not found")
        if request.method != methods:
            raise ApiError(405, "invalid_request_error", "Method Not Allowed")
        self._check_head(request)
        await handler(request, connection)

    def _find_route(self, path: str) -> tuple[Handler | None, str]:
        if path.startswith("/v1/models/"):
            return self._get_model, "GET"
        routes: dict[str, tuple[Handler, str]] = {
            "/v1/messages": (self._post_message, "POST"),
            "/v1/chat/completions": (self._post_chat, "POST"),
            "/v1/responses": (self._post_responses, "POST"),
            "/v1/messages/count_tokens": (self._count_tokens, "POST"),
            "/v1/models": (self._list_models, "GET"),
        }
        return routes.get(path, (None, ""))

    def _check_head(self, request: HttpRequest) -> None:
        if self.key and not request.api_key:
            raise ApiError(401, "authentication_error", "x-api-key header is required")
        if self.key and request.api_key != self.key:
            raise ApiError(401, "authentication_error", "invalid x-api-key")
        is_messages = request.path.startswith("/v1/messages")
        if is_messages and "anthropic-version" not in request.headers:
            raise refuse("anthropic-version: header is required")
        if len(request.content) > MAX_BODY:
            raise ApiError(413, "request_too_large", "Request exceeds the maximum size")

    async def _send_error(
        self, connection: Connection, error: ApiError, headers: Mapping[str, str] | None = None
    ) -> None:
        connection.exchange.error = error.message
        body = {"type": "error", "error": {"type": error.type, "message": error.message}}
        await connection.send_json(
            error.status, {**body, "request_id": connection.request_id}, headers
        )

    # Routes

    async def _post_message(self, request: HttpRequest, connection: Connection) -> None:
        await self._answer_in(MESSAGES, request, connection)

    async def _post_chat(self, request: HttpRequest, connection: Connection) -> None:
        await self._answer_in(CHAT, request, connection)

    async def _post_responses(self, request: HttpRequest, connection: Connection) -> None:
        await self._answer_in(RESPONSES, request, connection)

    async def _answer_in(
        self, protocol: "WireProtocol", request: HttpRequest, connection: Connection
    ) -> None:
        body = connection.exchange.body
        if isinstance(body, dict):
            self.requests.append(body)
        body = protocol.read(body)
        check_request(body, self.models)
        scenario = self._choose_scenario(body)
        await self.answering.wait()
        playback = Playback(
            connection.reader, connection.writer, scenario, is_chat=protocol is CHAT
        )
        if scenario.delay:
            await playback.pause(scenario.delay)
        if await self._fail_early(scenario, connection):
            return
        answer = self._make_answer(body, scenario, request.api_key)
        connection.exchange.cache = answer.cache
        if not body.get("stream") or scenario.body == "whole":
            await connection.send_json(200, protocol.document(answer))
            return
        connection.start(200, {"content-type": "text/event-stream; charset=utf-8"})
        try:
            await playback.play(protocol.frames(answer))
        except Ended as end:
            connection.is_open = end.is_open

    async def _count_tokens(self, request: HttpRequest, connection: Connection) -> None:
        check_request(connection.exchange.body, self.models, needs_output=False)
        await connection.send_json(200, {"input_tokens": count_tokens(connection.exchange.body)})

    async def _list_models(self, request: HttpRequest, connection: Connection) -> None:
        if self.models_reply is not None:
            status, body = self.models_reply
            if isinstance(body, str):
                await connection.send_text(status, body, "text/html")
            else:
                await connection.send_json(status, body)
            return
        await connection.send_json(200, make_page(list(self.models.values()), request.query))

    async def _get_model(self, request: HttpRequest, connection: Connection) -> None:
        name = request.path.removeprefix("/v1/models/")
        if name not in self.models:
            raise ApiError(404, "not_found_error", f"model: {name}")
        await connection.send_json(200, describe_model(self.models[name]))

    # Scenarios

    def _choose_scenario(self, body: dict[str, Any]) -> Scenario:
        offered = {tool.get("name") for tool in body.get("tools") or ()} | {""}
        for place, scenario in enumerate(self._queue):
            if scenario.needs_tool in offered:
                return self._take_from_queue(place)
        text = next((text for text in find_last_texts(body)[1] if DIRECTIVE in text), "")
        try:
            scenario = parse_directive(text) or Scenario()
        except BadDirective as error:
            raise refuse(f"wire directive: {error}") from error
        if count_rounds(body) >= scenario.rounds:
            scenario = replace(scenario, tools=(), cut_tool=False, stop_reason=None)
        return self._count_fault(scenario, text)

    def _take_from_queue(self, place: int) -> Scenario:
        scenario = self._queue[place]
        if not (scenario.times and scenario.fails):
            del self._queue[place]
            return scenario
        self._queue[place] = replace(scenario, times=scenario.times - 1)
        if scenario.times == 1:
            self._queue[place] = without_fault(scenario)
        return scenario

    def _count_fault(self, scenario: Scenario, key: str) -> Scenario:
        if not (scenario.times and scenario.fails):
            return scenario
        self._happened[key] += 1
        return without_fault(scenario) if self._happened[key] > scenario.times else scenario

    async def _fail_early(self, scenario: Scenario, connection: Connection) -> bool:
        """Send the fault that replaces the stream, and return whether there was one."""
        if scenario.refuse:
            connection.is_open = False
        elif scenario.status:
            kind = scenario.error_type or ERROR_TYPES.get(scenario.status, "api_error")
            error = ApiError(scenario.status, kind, scenario.error_message or "Something is wrong")
            waiting = {"retry-after": scenario.retry_after} if scenario.retry_after else {}
            await self._send_error(connection, error, {**scenario.headers, **waiting})
        elif scenario.body == "html":
            await connection.send_text(200, HTML_PAGE, "text/html; charset=utf-8")
        elif scenario.body == "json":
            await connection.send_json(200, {"hello": "world"})
        else:
            return False
        return True

    def _make_answer(self, body: dict[str, Any], scenario: Scenario, key: str) -> Answer:
        blocks = make_blocks(
            scenario,
            model=body["model"],
            default_text=make_default_text(body),
            call_ids=self._ids,
        )
        blocks, matched = cut_blocks(blocks, body.get("stop_sequences") or [])
        return Answer(
            message_id=f"msg_wire_{next(self._ids):06d}",
            model=scenario.answers_as or body["model"],
            scenario=scenario,
            blocks=blocks,
            cache=self.cache.use(key, body),
            stop_sequence=matched,
        )


class WireThread:
    """A server in a thread with its own event loop.

    Any thread may read ``server`` and call ``enqueue``.
    """

    def __init__(self, server: WireServer | None = None) -> None:
        self.server = server or WireServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def key(self) -> str:
        return self.server.key

    @property
    def provider(self) -> ProviderConfig:
        """Return this server's configuration as the environment would give it."""
        return ProviderConfig(
            name="anthropic", kind=ANTHROPIC, url=self.url, api_key=self.key, is_plain=True
        )

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self.server.requests

    @property
    def exchanges(self) -> list[Exchange]:
        return self.server.exchanges

    def enqueue(self, *scenarios: Scenario) -> None:
        self.server.enqueue(*scenarios)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Answer no message until the context ends."""
        self._loop.call_soon_threadsafe(self.server.answering.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self.server.answering.set)

    def start(self, *, port: int = 0) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(port=port), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _shut_down(self) -> None:
        await self.server.stop()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def make_page(models: list[ModelRow], query: dict[str, str]) -> dict[str, Any]:
    """Return a page of the model list, newest first."""
    ids = [model.id for model in models]
    start = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
    page = models[start : start + int(query.get("limit", 20))]
    return {
        "data": [describe_model(model) for model in page],
        "has_more": start + len(page) < len(models),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def describe_model(model: ModelRow) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.display_name,
        "created_at": model.created_at,
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": model.max_input_tokens if model.lists_limits else None,
        "max_tokens": model.max_tokens if model.lists_limits else None,
        "capabilities": None,
    }


async def serve(*, host: str, port: int, key: str) -> None:
    server = WireServer(key=key)
    print(await server.start(host=host, port=port), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A local server of the Messages API's protocol.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--key", default=KEY, help=f"the API key to accept (default {KEY})")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(host=options.host, port=options.port, key=options.key))


if __name__ == "__main__":
    main()
