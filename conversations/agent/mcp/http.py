"""HTTP requests to a tool server, and to hosts that it names for a sign-in."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpcore2
import httpx2

from conversations.agent.tools.web_client import is_private_host, is_public
from conversations.domain.messages import say

from .config import ServerConfig, ServerFailed
from .program import MAX_LINE_BYTES

MAX_FOREIGN_RESPONSE_BYTES = 1_000_000
END_SECONDS = 5.0  # Timeout for telling a server that a session ends

EVENTS = "text/event-stream"


def require_secure(url: str, config: ServerConfig) -> None:
    """Require that an address that a server names uses https. Raise ServerFailed otherwise.

    http is allowed if the server itself is on a private network. A host name without a dot counts
    as private.
    """
    parts = urlsplit(url)
    own = urlsplit(config.url).hostname or ""
    is_allowed = parts.scheme == "https" or (
        parts.scheme == "http" and (is_private_host(own) or not set(".:") & set(own.rstrip(".")))
    )
    if not is_allowed or not parts.hostname:
        raise ServerFailed(
            say("%(host)s is not an address of https.", host=parts.hostname or url[:80])
        )


class ServerTransport(httpx2.AsyncHTTPTransport):
    """A transport that limits the size of responses and the hosts of requests.

    The SDK limits the size of a session's events. Hosts that a server names must be public, unless
    the server itself is in this network.
    """

    def __init__(self, config: ServerConfig) -> None:
        super().__init__()
        self._config = config
        own = httpx2.URL(config.url)  # In the form of requests, without a default port
        self._own = own.scheme, own.netloc
        pool: Any = self._pool
        pool._network_backend = _CheckedHostBackend(own.raw_host.decode())

    def is_own(self, request: httpx2.Request) -> bool:
        """Return whether the request is to the server itself."""
        return (request.url.scheme, request.url.netloc) == self._own

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_own = self.is_own(request)
        if is_own:  # Also requests of a sign-in, which the SDK makes without the client's headers
            for name, value in self._config.headers.items():
                request.headers.setdefault(name, value)
        else:
            require_secure(str(request.url), self._config)
        if request.method == "DELETE":  # The end of a session
            request.extensions["timeout"] = httpx2.Timeout(END_SECONDS).as_dict()
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("an unexpectedly compressed response")
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            # By the protocol this response means that the session has ended, whatever its body
            # says. The SDK would pass on an error in JSON instead.
            response.headers["content-type"] = "text/plain"
        # Responses are limited in size because they are read to the end. Only the events of a
        # session are not, unless the response is an error or the request did not accept events.
        is_session = is_own and response.is_success and EVENTS in request.headers.get("accept", "")
        kind = response.headers.get("content-type", "").lower()
        if not is_session or not kind.startswith(EVENTS):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            max_bytes = MAX_LINE_BYTES if is_own else MAX_FOREIGN_RESPONSE_BYTES
            response.stream = _SizeLimitedStream(response.stream, max_bytes)
        return response


class _SizeLimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > self._max_bytes:
                raise httpx2.ReadError(f"a response of more than {self._max_bytes:,} bytes")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CheckedHostBackend(httpcore2.AnyIOBackend):
    """A backend that connects to the configured host, wherever it is, and to public hosts."""

    def __init__(self, own: str) -> None:
        super().__init__()
        self._own = own

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        if host == self._own:
            return await super().connect_tcp(host, port, *args, **options)
        addresses = await _find_addresses(host, port)
        if not all(map(is_public, addresses)):
            own = await _find_addresses(self._own, port)
            if all(map(is_public, own)):
                raise httpcore2.ConnectError("private address")
        # Use the checked addresses, without another lookup of the name
        for address in addresses[:-1]:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return await super().connect_tcp(address, port, *args, **options)
        return await super().connect_tcp(addresses[-1], port, *args, **options)


async def _find_addresses(host: str, port: int) -> list[str]:
    try:
        infos = await anyio.getaddrinfo(host, port)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return [str(address[0]) for *_, address in infos]
