"""uvicorn with the same limits, back-pressure and clean shutdown as Daphne."""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import uvloop
from django.conf import settings
from django.http import parse_cookie
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from conversations.api.middleware import is_known
from conversations.runtime.current import current_runtime, stop_current_runtime

from .server import (
    CLOSE_SECONDS,
    MAX_FRAME_SENT_BYTES,
    MAX_HEAD_BYTES,
    MAX_WAITING_CHARS,
    TOO_LARGE,
    UPLOADS,
    Receive,
    Send,
    max_request_bytes,
    max_upload_bytes,
    refuse,
    token_in,
)

logger = logging.getLogger(__name__)

ANYBODYS = frozenset(
    {
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
        "Invalid UTF-8 sequence received from client.",
    }
)
"""Messages with which any client could flood the log. Daphne logs nothing in these cases."""

UNFINISHED = frozenset({h11.IDLE, h11.SEND_BODY})  # states in which the client has to send more

END_SECONDS = 2.0
"""Time that the remaining requests have when the server ends."""

type Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


def is_logged(record: logging.LogRecord) -> bool:
    return record.msg not in ANYBODYS


class LoomHttpProtocol(H11Protocol):
    """A protocol that closes a connection if a request does not arrive completely.

    uvicorn has such a timeout only after a response.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.await_more()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # There is no timeout if a WebSocket has taken over the transport, or if a complete request
        # waits for its response.
        if self.transport.get_protocol() is self and self.conn.their_state in UNFINISHED:
            self.await_more()

    def await_more(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.close_waiting
        )

    def close_waiting(self) -> None:
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # received data has not been consumed yet
            self.await_more()
        else:
            self.transport.close()


class LoomSocketProtocol(WebSocketsSansIOProtocol):
    """A protocol whose ``write`` limits how much text waits for a page that reads slowly."""

    waiting = 0

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:  # the consumer starts in the next iteration of the loop
            self.scope["outbound"] = self  # type: ignore[typeddict-unknown-key]

    def resume_writing(self) -> None:
        super().resume_writing()
        self.waiting = 0

    def write(self, text: str) -> bool:
        """Send a text frame, or return False if too much text waits already."""
        if not self.writable.is_set():
            self.waiting += len(text)
            if self.waiting > MAX_WAITING_CHARS:
                self.end_soon()
                return False
        if not (self.disconnected or self.close_sent or self.transport.is_closing()):
            self.conn.send_text(text.encode())
            self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.end_soon()

    def end_soon(self) -> None:
        """Abort the connection after CLOSE_SECONDS.

        Without this a closed transport would keep unsent data until it is read, possibly for ever.
        """
        self.loop.call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        if self.disconnected:
            return
        if line := self.transport.get_extra_info("socket"):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class RequestSizeLimit:
    """An ASGI middleware that refuses a request as soon as it is too large.

    A request with a Content-Length is refused before its body is read.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        # h11 limits a head only while it is incomplete. A head that arrives at once has no limit.
        head_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        head_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
        if head_bytes > MAX_HEAD_BYTES:
            text = b"The request's address or headers are too long.\n"
            return await refuse(receive, send, 431, text)
        headers = dict(scope["headers"])
        is_chunked = b"transfer-encoding" in headers
        if is_chunked and b"content-length" in headers:
            # A proxy may use the other header and take a part of the body for the next request.
            return await refuse(receive, send, 400, b"A request has one length.\n")
        length = int(headers.get(b"content-length", 0))
        is_large = length > max_request_bytes() or is_chunked
        max_bytes = await max_accepted_bytes(scope) if is_large else max_request_bytes()
        if length > max_bytes:
            return await refuse(receive, send, 413, TOO_LARGE)
        received = 0
        is_refused = False

        async def receive_limited() -> dict[str, Any]:
            nonlocal received, is_refused
            message = await receive()
            received += len(message.get("body", b""))
            if received <= max_bytes:
                return message
            if not is_refused:
                is_refused = True
                await refuse(receive, send, 413, TOO_LARGE)
            return {"type": "http.disconnect"}

        return await self._application(scope, receive_limited, send)


async def max_accepted_bytes(scope: dict[str, Any]) -> int:
    """Return the limit for a request in bytes.

    It is higher for uploads by clients who are signed in or have a token.
    """
    if not UPLOADS.fullmatch(scope["path"]):
        return max_request_bytes()
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
    # Django's parser is used, because Python's SimpleCookie stops at an unusual name.
    key = parse_cookie("; ".join(lines)).get(settings.SESSION_COOKIE_NAME, "")
    token = token_in(scope["headers"])
    try:
        runtime = await current_runtime()
        is_allowed = await runtime.readers.read(is_known, key, token)
    except Exception as error:
        fields = {"error_class": type(error).__name__}
        logger.warning("upload_not_let_in", extra={"fields": fields})
        return max_request_bytes()
    return max_upload_bytes() if is_allowed else max_request_bytes()


class LoomServer(Server):
    """A server that starts the runtime before it serves pages and stops it before connections end.

    The first page therefore already shows the true state of runs that a crash has interrupted.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await current_runtime()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The runtime ends open sockets and streams properly, so that their responses are complete.
        # The remaining connections are cut off afterwards.
        await stop_current_runtime(for_good=True)
        # uvicorn would wait for a slow download or upload, and cancel it with a traceback.
        asyncio.get_running_loop().call_later(END_SECONDS, self.cut_off)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # otherwise uvicorn would raise the signal again

    def cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_config(application: Application) -> Config:
    logging.getLogger("uvicorn.error").addFilter(is_logged)
    return Config(
        application,
        # h11 is the only parser that limits the size of headers.
        http=LoomHttpProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws=LoomSocketProtocol,
        interface="asgi3",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        headers=[("server", "loom-web")],
        log_config=None,
        access_log=False,
        # The same as with Daphne: 60 seconds, and 20 seconds between two pings.
        timeout_keep_alive=60,
        ws_ping_interval=20.0,
        ws_ping_timeout=30.0,
        ws_per_message_deflate=False,
        ws_max_size=MAX_FRAME_SENT_BYTES + settings.LOOM.max_frame_bytes,
        timeout_graceful_shutdown=30,
    )


def serve(application: Application, listener: socket.socket) -> None:
    """Serve until the process is told to end."""
    config = make_config(RequestSizeLimit(application))
    uvloop.run(LoomServer(config).serve(sockets=[listener]))
