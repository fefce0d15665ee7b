"""The SDK's connections, straight on asyncio.

A model sends each token by itself, so a stream is thousands of tiny reads, and the
usual network layer of the SDK's HTTP library spends more CPU on each than all that
follows. This one goes in where that library lets a network backend be given. Where
the environment names a proxy the usual layer is used.

Importing this imports the HTTP library, so only opening a client does it.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, override
from urllib.request import getproxies

import httpcore2
import httpx2

MAX_CONNECTIONS = 1_000
MAX_IDLE_CONNECTIONS = 100
IDLE_SECONDS = 60.0
"""Longer than most tools take, so that a run's next call finds the connection."""
HAPPY_EYEBALLS_DELAY = 0.25
"""As RFC 8305 recommends."""
MAX_UNREAD = 262_144
"""Bytes at which the sender is made to wait."""


def make_http_client(timeout: httpx2.Timeout) -> httpx2.AsyncClient | None:
    """A client for the SDK; None where there is a proxy, which its own one knows."""
    if any(name in getproxies() for name in ("http", "https", "all")):
        return None
    return httpx2.AsyncClient(transport=Transport(), timeout=timeout, follow_redirects=True)


class Transport(httpx2.AsyncHTTPTransport):
    """HTTP/1.1 over a pool whose connections come from :class:`Backend`."""

    def __init__(self) -> None:
        context = httpx2.create_ssl_context()
        super().__init__(verify=context)
        # The library has no argument for this; without it all works, only slower.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
            network_backend=Backend(),
        )


class Backend(httpcore2.AsyncNetworkBackend):
    """Makes connections in the running asyncio loop."""

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        with translated(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            async with asyncio.timeout(timeout):
                transport, wire = await loop.create_connection(
                    Wire,
                    host,
                    port,
                    local_addr=(local_address, 0) if local_address else None,
                    happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY,
                )
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return Stream(wire)

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Stream(httpcore2.AsyncNetworkStream):
    """One connection as the HTTP library wants it. ``timeout`` is in seconds."""

    def __init__(self, wire: "Wire") -> None:
        self._wire = wire

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        wire = self._wire
        with translated(httpcore2.ReadTimeout, httpcore2.ReadError):
            if not wire.has_news:
                async with asyncio.timeout(timeout):
                    await wire.wait_for_news()
            return wire.take(max_bytes)

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with translated(httpcore2.WriteTimeout, httpcore2.WriteError):
            async with asyncio.timeout(timeout):
                await self._wire.write(buffer)

    @override
    async def aclose(self) -> None:
        # A farewell of TLS could wait for the other side, for an answer that
        # nobody wants any more.
        self._wire.transport.abort()

    @override
    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        wire = self._wire
        loop = asyncio.get_running_loop()
        try:
            with translated(httpcore2.ConnectTimeout, httpcore2.ConnectError):
                async with asyncio.timeout(timeout):
                    transport = await loop.start_tls(
                        wire.transport, wire, ssl_context, server_hostname=server_hostname
                    )
        except BaseException:
            wire.transport.abort()
            raise
        assert transport is not None
        wire.transport = transport
        return self

    @override
    def get_extra_info(self, info: str) -> Any:
        names = {"server_addr": "peername", "client_addr": "sockname"}
        if info == "is_readable":
            # On an idle connection any news is bad news.
            return self._wire.has_news
        return self._wire.transport.get_extra_info(names.get(info, info))


class Wire(asyncio.Protocol):
    """What has arrived on a connection and was not taken yet."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._has_ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    @property
    def has_news(self) -> bool:
        return bool(self._received) or self._has_ended

    async def wait_for_news(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def take(self, max_bytes: int) -> bytes:
        """What has arrived; b"" at the end. Raises OSError where it broke."""
        received = self._received
        if received:
            if len(received) >= MAX_UNREAD:
                self.transport.resume_reading()
            data = bytes(received[:max_bytes])
            del received[:max_bytes]
            return data
        if self._error is not None:
            raise self._error
        return b""

    async def write(self, data: bytes) -> None:
        if self._has_ended:
            raise self._error or ConnectionResetError("the other side has closed")
        self.transport.write(data)
        await self._can_write.wait()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) >= MAX_UNREAD:
            self.transport.pause_reading()
        self._wake()

    @override
    def eof_received(self) -> None:
        self._end(None)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    @override
    def pause_writing(self) -> None:
        self._can_write.clear()

    @override
    def resume_writing(self) -> None:
        self._can_write.set()

    def _end(self, error: Exception | None) -> None:
        self._has_ended = True
        self._error = self._error or error
        self._can_write.set()
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)


@contextmanager
def translated(
    timeout: type[Exception], failure: type[Exception]
) -> Iterator[None]:
    """Raise the HTTP library's errors in place of asyncio's."""
    try:
        yield
    except TimeoutError as error:
        raise timeout(str(error)) from error
    except OSError as error:
        raise failure(str(error)) from error
