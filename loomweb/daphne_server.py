"""Daphne, with what the product needs of it: back-pressure and a clean end."""

import asyncio
import logging
import socket
from contextlib import suppress
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
from twisted.web.http import HTTPChannel
from zope.interface import implementer

from conversations.api.middleware import is_known
from conversations.runtime.current import current_runtime, stop_current_runtime

from .server import (
    CLOSE_SECONDS,
    MAX_FRAME_SENT_BYTES,
    MAX_HEAD_BYTES,
    MAX_WAITING_CHARS,
    TOO_LARGE,
    UPLOADS,
    max_request_bytes,
    max_upload_bytes,
    token_in,
)

logger = logging.getLogger(__name__)


def refuse(transport: Any, status: bytes) -> None:
    """The connection ends: what the browser still sends is not taken."""
    transport.write(
        b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(TOO_LARGE), TOO_LARGE)
    )
    transport.loseConnection()


@implementer(IPushProducer)
class OutboundBuffer:
    """How much a socket has to send to a page that reads slowly.

    Twisted pauses a producer when the transport's buffer is full; what is handed
    over while paused waits in memory.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._paused = False
        self._waiting = 0
        # Until the upgrade the HTTP channel was the transport's producer.
        protocol.transport.unregisterProducer()
        protocol.transport.registerProducer(self, True)

    def write(self, text: str) -> bool:
        """Send without what every message of an application goes through, which would cost as
        much again. False: too much waits already."""
        if self._paused:
            self._waiting += len(text)
            if self._waiting > MAX_WAITING_CHARS:
                return False
        if self._protocol.state == WebSocketProtocol.STATE_OPEN:  # else the page has left
            message = PreparedMessage(
                text.encode(), isBinary=False, applyMask=False, doNotCompress=True
            )
            self._send(message.payloadHybi)
        return True

    def _send(self, data: bytes) -> None:
        # Twisted would first wait until the loop has found that the socket takes data, which
        # nearly every socket does, and Autobahn makes a line for the log that nobody reads:
        # together a tenth of what a word costs.
        transport = self._protocol.transport
        if transport.connected and not (transport.dataBuffer or transport._tempDataBuffer):
            sent = transport.writeSomeData(data)
            # An error comes again to the transport itself, which ends the connection then.
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
    """Set while a browser reads fast enough: who writes an answer in pieces waits for it."""

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
    """Refuses a request that is too large before it is read, or as soon as it is; gives
    an answer in pieces as fast as it is read."""

    backpressure: Backpressure | None = None
    is_refused = False
    is_known: bool | None = None
    """Whether somebody sends it who is signed in or has a token; None: nobody has asked yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Forms are read by Django. Twisted would hold a whole upload in memory besides,
        # and answer one that it cannot read by an empty 400.
        super().__init__(*args, **kwargs | {"parsePOSTFormSubmission": False})

    def process(self) -> Any:
        """Daphne decodes this header, and takes what it cannot decode for its own fault."""
        protocols = self.requestHeaders.getRawHeaders(b"sec-websocket-protocol", [])
        if all(value.isascii() for value in protocols):
            return super().process()
        self.basic_error(400, b"Bad Request", "Invalid header value")
        return None

    def handle_exception(self, exception: BaseException) -> None:
        """Daphne would begin another answer: that fails, and the connection stays open."""
        if not self._response_started:
            super().handle_exception(exception)
        elif self.channel is not None:
            # Without an end, so that nobody takes what came for the whole.
            self.channel.transport.abortConnection()

    async def wait_writable(self) -> None:
        """Wait until what was written so far is on its way, or the browser has left."""
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
        if not self.is_refused:
            super().handleContentChunk(data)

    def _check(self, size: int) -> None:
        # Refuse what is too large. What is large, and may be if it comes from somebody who is
        # signed in or has a token, waits until that is known.
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
            self.is_known = True  # meant well until it is found out; nothing more is read
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
        if getattr(self, "channel", None) is None:  # it is answered, or the browser has left
            return
        if self.is_known:
            self.channel._networkProducer.resumeProducing()
        else:
            self._refuse()

    def _refuse(self) -> None:
        self.is_refused = True
        refuse(self.channel.transport, b"413 Content Too Large")


class LoomChannel(HTTPChannel):
    """Takes longer addresses than Twisted does, which says nothing when it ends a connection."""

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
        # After this Autobahn resets the connection, and a browser that has not read the reason by
        # then never does. It counts to the beginning of a second: up to one less than is said.
        self.closeHandshakeTimeout = CLOSE_SECONDS + 1


# Daphne has no other way to choose them.
daphne.server.HTTPFactory, daphne.server.WebSocketFactory = LoomHTTPFactory, LoomWebSocketFactory


class LoomServer(Server):  # type: ignore[misc]
    """Starts the runtime before the first page is served, so that this one shows
    what a crash has left as it is; stops it before the reactor ends."""

    def run(self) -> None:
        loop = reactor._asyncioEventloop
        asyncio.set_event_loop(loop)
        loop.run_until_complete(current_runtime())
        super().run()

    def kill_all_applications(self) -> "defer.Deferred[Any]":
        """The runtime first: those who follow something are told its end, and their
        answers are whole, before what is left is cut off."""
        ending = asyncio.ensure_future(stop_current_runtime(for_good=True))
        stopping = defer.Deferred.fromFuture(ending)
        return stopping.addCallback(lambda _: super(LoomServer, self).kill_all_applications())

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        if scope["type"] == "websocket" and getattr(protocol, "transport", None) is not None:
            scope["outbound"] = OutboundBuffer(protocol)
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        with suppress(Disconnected):  # the page has left; the consumer hears of it soon
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
        # Autobahn applies these to what is sent as well, and the draft of a very
        # long answer is one frame; what comes in is checked by the consumer.
        websocket_max_message_size=largest,
        websocket_max_frame_size=largest,
        application_close_timeout=30,
    )
    server.run()
    asyncio.set_event_loop(None)
