"""Daphne with back-pressure, limits for requests and a clean shutdown."""

import asyncio
import logging
import socket
from contextlib import suppress
from io import BytesIO
from typing import Any

import daphne.server
from autobahn.exception import Disconnected
from autobahn.websocket.protocol import PreparedMessage, WebSocketProtocol
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketFactory
from django.conf import settings
from twisted.internet import defer, reactor
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.web.http import HTTPChannel
from zope.interface import implementer

from conversations.api.middleware import is_known
from conversations.runtime.current import current_runtime, stop_current_runtime

from .server import (
    CLOSE_SECONDS,
    LINGER_SECONDS,
    MAX_FRAME_SENT_BYTES,
    MAX_HEAD_BYTES,
    MAX_LINGER_BYTES,
    MAX_WAITING_CHARS,
    TOO_LARGE,
    UPLOADS,
    full_disk_text,
    max_request_bytes,
    max_upload_bytes,
    token_in,
)

logger = logging.getLogger(__name__)


def refuse(transport: Any, status: bytes, text: bytes = TOO_LARGE) -> None:
    """Send an error and close the connection. Data that the browser still sends is dropped."""
    transport.write(
        b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(text), text)
    )
    transport.loseWriteConnection()
    transport.protocol = RefusedClient(transport)
    transport.resumeProducing()  # reading may be paused


class RefusedClient(Protocol):
    """A connection that drops what the client sends, until the client or a limit ends it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._replaced = transport.protocol
        self._received = 0
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LINGER_SECONDS, transport.loseConnection)

    def dataReceived(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > MAX_LINGER_BYTES:
            self._transport.loseConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._timer.cancel()
        self._replaced.connectionLost(reason)


@implementer(IPushProducer)
class OutboundBuffer:
    """A counter of the text that waits in memory for a page that reads slowly.

    Twisted pauses a producer when the transport's buffer is full. Text that is written while
    paused waits in memory.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._paused = False
        self._waiting = 0
        # The HTTP channel was the transport's producer until the upgrade.
        protocol.transport.unregisterProducer()
        protocol.transport.registerProducer(self, True)

    def write(self, text: str) -> bool:
        """Send a text frame, or return False if too much text waits already.

        This bypasses the steps that every message of an application goes through, which would
        double the cost.
        """
        if self._paused:
            self._waiting += len(text)
            if self._waiting > MAX_WAITING_CHARS:
                return False
        if self._protocol.state == WebSocketProtocol.STATE_OPEN:  # else the page is gone
            message = PreparedMessage(
                text.encode(), isBinary=False, applyMask=False, doNotCompress=True
            )
            self._send(message.payloadHybi)
        return True

    def _send(self, data: bytes) -> None:
        # Write directly to the socket. Twisted would first wait until the loop reports that it is
        # writable, which it nearly always is, and Autobahn would format a log line that is not
        # used. Both together are a tenth of the cost of a word.
        transport = self._protocol.transport
        if transport.connected and not (transport.dataBuffer or transport._tempDataBuffer):
            sent = transport.writeSomeData(data)
            # After an error the transport meets the same error and closes the connection.
            data = data[sent if isinstance(sent, int) else 0 :]
        if data:
            transport.write(data)

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._waiting = 0

    def stopProducing(self) -> None:
        self._paused = False


@implementer(IPushProducer)
class Backpressure(asyncio.Event):
    """An event that is set while the browser reads fast enough. Streamed responses wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.set()

    def pauseProducing(self) -> None:
        self.clear()

    def resumeProducing(self) -> None:
        self.set()

    def stopProducing(self) -> None:
        self.set()


class LoomRequest(WebRequest):  # type: ignore[misc]
    """A request that is refused as soon as it is too large, and a response with back-pressure.

    A request with a Content-Length is refused before its body is read.
    """

    content: Any  # the file that stores the body
    backpressure: Backpressure | None = None
    is_refused = False
    is_known: bool | None = None
    """Whether the client is signed in or has a token. None if this has not been checked yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Django parses forms. Twisted would also hold a whole upload in memory, and would respond
        # to a form that it cannot parse with an empty 400.
        super().__init__(*args, **kwargs | {"parsePOSTFormSubmission": False})

    def process(self) -> Any:
        """Refuse a subprotocol header that is not ASCII, which Daphne treats as its own error."""
        if self.is_refused:  # by the last bytes of its body
            return None
        protocols = self.requestHeaders.getRawHeaders(b"sec-websocket-protocol", [])
        if all(value.isascii() for value in protocols):
            return super().process()
        self.basic_error(400, b"Bad Request", "Invalid header value")
        return None

    def handle_reply(self, message: dict[str, Any]) -> None:
        # Daphne bypasses the method with which Twisted drops the body of a response to HEAD. A
        # client or a proxy would take the body for the next response of the connection.
        if self.method == b"HEAD" and "body" in message:
            message = message | {"body": b""}
        super().handle_reply(message)

    def handle_exception(self, exception: BaseException) -> None:
        """Abort the connection if a response has been started.

        Daphne would start a second response, which fails and leaves the connection open.
        """
        if not self._response_started:
            super().handle_exception(exception)
        elif self.channel is not None:
            # The response must not be ended, or the client would take it for complete.
            self.channel.transport.abortConnection()

    async def wait_writable(self) -> None:
        """Wait until the written data is sent or the browser has disconnected."""
        if self.backpressure is None:
            if self.finished or self.channel is None:
                return
            self.backpressure = Backpressure()
            self.registerProducer(self.backpressure, True)
        await self.backpressure.wait()

    def finish(self) -> None:
        if self.backpressure is not None and self.channel is not None:
            self.unregisterProducer()
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        if self.backpressure is not None:
            self.backpressure.stopProducing()
        super().connectionLost(reason)

    def gotLength(self, length: int | None) -> None:
        self.received = 0
        super().gotLength(length)
        self._check(length or 0)

    def handleContentChunk(self, data: bytes) -> None:
        self.received += len(data)
        self._check(self.received)
        if self.is_refused:
            return
        try:
            super().handleContentChunk(data)
            self.content.flush()  # otherwise the end of the body would be written later
        except OSError as error:  # the folder for temporary files is full
            with suppress(OSError):
                self.content.close()
            self.content = BytesIO()
            text = full_disk_text(error, method=self.channel._command.decode())
            self._refuse(b"507 Insufficient Storage", text)

    def _check(self, size: int) -> None:
        # Refuse requests that are too large. A large upload is allowed if the client is signed in
        # or has a token, so reading pauses until that is known.
        if self.is_refused or size <= max_request_bytes():
            return
        key = token = ""
        path = bytes(getattr(self.channel, "_path", b"")).split(b"?")[0]
        if UPLOADS.fullmatch(path.decode("latin-1")):
            cookie = self.received_cookies.get(settings.SESSION_COOKIE_NAME.encode(), b"")
            key = cookie.decode("latin-1")
            headers = self.requestHeaders.getAllRawHeaders()
            token = token_in((name, values[-1]) for name, values in headers)
        if size > max_upload_bytes() or not (key or token) or self.is_known is False:
            self._refuse()
        elif self.is_known is None:
            self.is_known = True  # assumed during the check, while reading is paused
            self.channel._networkProducer.pauseProducing()
            self.asking = asyncio.ensure_future(self._ask(key, token))

    async def _ask(self, session_key: str, token: str) -> None:
        try:
            runtime = await current_runtime()
            self.is_known = await runtime.readers.read(is_known, session_key, token)
        except Exception as error:
            self.is_known = False
            fields = {"error_class": type(error).__name__}
            logger.warning("upload_not_let_in", extra={"fields": fields})
        if getattr(self, "channel", None) is None:  # finished, or the browser has disconnected
            return
        if self.is_known:
            self.channel._networkProducer.resumeProducing()
        else:
            self._refuse()

    def _refuse(self, status: bytes = b"413 Content Too Large", text: bytes = TOO_LARGE) -> None:
        self.is_refused = True
        refuse(self.channel.transport, status, text)


class LoomChannel(HTTPChannel):
    """A channel that accepts longer URLs than Twisted and responds with an error to longer ones.

    Twisted closes the connection without a response.
    """

    MAX_LENGTH = totalHeadersSize = MAX_HEAD_BYTES

    def lineLengthExceeded(self, line: bytes) -> None:
        refuse(self.transport, b"431 Request Header Fields Too Large")


class LoomHTTPFactory(HTTPFactory):  # type: ignore[misc]
    protocol = LoomChannel

    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = LoomRequest
        return protocol


class LoomWebSocketFactory(WebSocketFactory):  # type: ignore[misc]
    def resetProtocolOptions(self) -> None:
        super().resetProtocolOptions()
        # After this time Autobahn resets the connection, and a browser that has not read the
        # reason by then never gets it. Autobahn counts to the beginning of a second, so the time
        # can be up to one second shorter than the value.
        self.closeHandshakeTimeout = CLOSE_SECONDS + 1


# Daphne has no other way to set the factories.
daphne.server.HTTPFactory, daphne.server.WebSocketFactory = LoomHTTPFactory, LoomWebSocketFactory


class LoomServer(Server):  # type: ignore[misc]
    """A server that starts the runtime before it serves pages and stops it before the reactor.

    The first page therefore already shows the true state of runs that a crash has interrupted.
    """

    def run(self) -> None:
        loop = reactor._asyncioEventloop
        asyncio.set_event_loop(loop)
        loop.run_until_complete(current_runtime())
        super().run()

    def kill_all_applications(self) -> "defer.Deferred[Any]":
        """Stop the runtime, and then cut off the remaining connections.

        The runtime ends open sockets and streams properly, so that their responses are complete.
        """
        ending = asyncio.ensure_future(stop_current_runtime(for_good=True))
        stopping = defer.Deferred.fromFuture(ending)
        return stopping.addCallback(lambda _: super(LoomServer, self).kill_all_applications())

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        if scope["type"] == "websocket" and getattr(protocol, "transport", None) is not None:
            scope["outbound"] = OutboundBuffer(protocol)
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        with suppress(Disconnected):  # the page is gone; the consumer is informed soon
            await super().handle_reply(protocol, message)
            if message.get("more_body"):
                await protocol.wait_writable()


def serve(application: Any, listener: socket.socket) -> None:
    """Serve until the process is told to end."""
    largest = MAX_FRAME_SENT_BYTES + settings.LOOM.max_frame_bytes
    server = LoomServer(
        application,
        endpoints=[f"fd:fileno={listener.fileno()}"],
        server_name="loom-web",
        websocket_timeout=-1,
        # Autobahn applies these limits to sent frames too, and the draft of a very long answer
        # is one frame. The consumer checks the size of received frames.
        websocket_max_message_size=largest,
        websocket_max_frame_size=largest,
        application_close_timeout=30,
    )
    server.run()
    asyncio.set_event_loop(None)
