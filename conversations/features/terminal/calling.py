"""Calls of a server's API: problem details become errors, and streams go on where they
broke. A server that does not answer is asked again for a while: it may be starting."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from conversations.domain.errors import (
    Conflict,
    LoomError,
    NotFound,
    NotPermitted,
    Rejected,
    Unavailable,
)
from conversations.domain.text import dump_json, load_json
from conversations.providers.sse import SseParser

# Seconds before each further try; after a minute it is given up.
WAITS = (0.2, 0.5, 1.0, *(2.0,) * 10, *(5.0,) * 8)

# For an answer; between two lines of a stream, which says something now and then.
ANSWER_SECONDS, SILENCE_SECONDS = 30.0, 90.0

# Kinds of events: the server's last one, and ours when it does not answer.
END, LOST = "end", "lost"

_ERRORS: dict[int, type[LoomError]] = {
    401: NotPermitted,
    403: NotPermitted,
    404: NotFound,
    409: Conflict,
}
_BUSY = (429, 502, 503, 504)
_HERE = re.compile(r"localhost|127\.[0-9.]+|::1")


def is_readable_on_the_way(server: str) -> bool:
    """Whether what goes to this server, on another machine, is not encrypted."""
    address = urlsplit(server)
    return address.scheme == "http" and not _HERE.fullmatch(address.hostname or "")


class _Busy(Exception):
    """The server asks to come again, after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__("busy")
        self.seconds = seconds


BROKEN = (ClientError, TimeoutError, OSError, _Busy)


class Api:
    """``server`` is its address, such as ``https://chat.example.org``. Redirects are not
    followed: the token is for this server alone."""

    def __init__(self, server: str, token: str) -> None:
        address = urlsplit(server)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise Rejected("The address of a server begins with https:// (or http://).")
        self.server = server.rstrip("/") + "/"
        self._root = urljoin(self.server, "api/v1/")
        self._session = ClientSession(headers={"Authorization": f"Bearer {token}"})

    async def close(self) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Whether the server is there and knows us. Raises at once where not."""
        await self._ask("GET", "workspaces", params={"limit": 1}, waits=())

    async def get(self, path: str, **query: str | int) -> dict[str, Any]:
        return await self._ask("GET", path, params=query)

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str = ""
    ) -> dict[str, Any]:
        """What may be carried out once only has a key, the same for all tries."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data = dump_json(body or {}).encode()
        return await self._ask(method, path, data=data, headers=headers)

    async def stream(
        self, path: str, *, after: str = ""
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The kinds and the data of the events after an id, up to that of the kind ``end``."""
        timeout = ClientTimeout(connect=ANSWER_SECONDS, sock_read=SILENCE_SECONDS)
        url, waits = urljoin(self._root, path), iter(WAITS)
        while True:
            broken: Exception | None = None
            headers = {"Accept": "text/event-stream"}
            if after:
                headers["Last-Event-ID"] = after
            try:
                async with self._session.get(
                    url, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    await _check(response)
                    if response.status == 204:
                        return
                    parser = SseParser()
                    async for chunk in response.content.iter_any():
                        for name, data, last_id in parser.feed(chunk):
                            waits, after = iter(WAITS), last_id or after
                            yield name, _read_object(data)
                            if name == END:
                                return
            except BROKEN as error:
                broken = error
            yield LOST, {}  # also where it has ended without the last event: it comes back
            await _wait(waits, broken)

    async def _ask(
        self, method: str, path: str, *, waits: Sequence[float] | None = None, **options: Any
    ) -> dict[str, Any]:
        left = iter(WAITS if waits is None else waits)
        url, timeout = urljoin(self._root, path), ClientTimeout(total=ANSWER_SECONDS)
        while True:
            try:
                async with self._session.request(
                    method, url, timeout=timeout, allow_redirects=False, **options
                ) as response:
                    await _check(response)
                    text = await response.text()
                    if text and not (found := _read_object(text)):
                        raise Rejected("That server is not Loom Web.")
                    return found if text else {}
            except BROKEN as error:
                await _wait(left, error)


async def _wait(waits: Iterator[float], error: Exception | None) -> None:
    """Before the next try. Raises Unavailable where it has taken too long."""
    seconds = next(waits, None)
    if seconds is None:
        raise Unavailable("The server is not responding.") from error
    await asyncio.sleep(max(seconds, error.seconds if isinstance(error, _Busy) else 0))


async def _check(response: ClientResponse) -> None:
    """Raises what a refusal says."""
    if response.status < 300:
        return
    if response.status in _BUSY:
        wait = response.headers.get("Retry-After", "")
        raise _Busy(min(60.0, float(wait)) if wait.isdigit() else 0.0)
    problem = _read_object(await response.text(errors="replace"))
    said = problem.get("detail")
    message = said if isinstance(said, str) else f"The server answered {response.status}."
    code = problem.get("code")
    kind = _ERRORS.get(response.status, Rejected)
    raise kind(message, code=code if isinstance(code, str) else None)


def _read_object(text: str) -> dict[str, Any]:
    """Nothing where it is no object: other servers answer what they like."""
    try:
        found = load_json(text, default={})
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
