"""Clients that act like a browser: pages over one connection, and the socket of a session."""

import asyncio
import gzip
import http.client
import json
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic_ns, perf_counter
from typing import Any
from uuid import UUID, uuid4

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from .wire import SentAnswer


class Unexpected(Exception):
    """The server gave a response with which the measurement cannot continue."""


class PageReader:
    """A client that sends GET requests over one connection and times them to the last byte."""

    def __init__(self, *, port: int, cookie: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._cookie = cookie
        self.html = ""
        self.size = 0

    def read(self, path: str, *, gzipped: bool = False, fragment: bool = False) -> float:
        """Read a page and return the seconds that it took.

        ``html`` then holds the page, and ``size`` the number of bytes as sent.
        """
        headers = {"Cookie": self._cookie}
        if gzipped:
            headers["Accept-Encoding"] = "gzip"
        if fragment:
            headers["HX-Request"] = "true"
        started = perf_counter()
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        body = response.read()
        took = perf_counter() - started
        if response.status != http.client.OK:
            raise Unexpected(f"GET {path}: status {response.status}")
        self.size = len(body)
        is_zipped = response.headers.get("Content-Encoding") == "gzip"
        self.html = (gzip.decompress(body) if is_zipped else body).decode()
        return took

    def close(self) -> None:
        self._connection.close()


class PageSocket:
    """A page that watches one session.

    ``received`` holds its frames as text, each with the time on the monotonic clock in
    nanoseconds. Draft frames are parsed only by ``drafts``.
    """

    def __init__(self, *, port: int, cookie: str, session: UUID) -> None:
        self.session = session
        self.received: list[tuple[int, str]] = []
        self._port = port
        self._cookie = cookie
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._hello = asyncio.Event()
        self._idle = asyncio.Event()
        self._busy = asyncio.Event()
        self.is_busy = False
        self._has_ended = False
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def open(self) -> None:
        """Connect, and return when the session's state has arrived."""
        address = f"127.0.0.1:{self._port}"
        self._socket = await connect(
            f"ws://{address}/ws/s/{self.session}/",
            additional_headers={"Cookie": self._cookie, "Origin": f"http://{address}"},
            compression=None,
            max_size=None,
            ping_interval=None,
            open_timeout=60,
        )
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(60):
            await self._hello.wait()

    async def send(self, text: str, *, client_id: str = "") -> dict[str, Any]:
        """Send a message and return the ``ack`` or ``error`` for it.

        Raise ConnectionError if the socket closes first.
        """
        return await self.request({"type": "send", "text": text}, client_id=client_id)

    async def tell(self, frame: dict[str, Any]) -> None:
        """Send a frame that gets no response."""
        assert self._socket is not None
        await self._socket.send(json.dumps(frame))

    async def request(self, frame: dict[str, Any], *, client_id: str = "") -> dict[str, Any]:
        assert self._socket is not None
        client_id = client_id or uuid4().hex
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[client_id] = answer
        self._idle.clear()
        self._busy.clear()
        try:
            await self._socket.send(json.dumps(frame | {"client_id": client_id}))
        except ConnectionClosed as error:
            raise ConnectionError("the socket is closed") from error
        return await answer

    async def wait_until_busy(self, *, seconds: float) -> None:
        """Return when the session has started to work on the last request."""
        async with asyncio.timeout(seconds):
            await self._busy.wait()

    async def wait_until_idle(self, *, seconds: float) -> None:
        """Return when the session has finished the work on the last request.

        Raise ConnectionError if the socket closes first.
        """
        async with asyncio.timeout(seconds):
            await self._idle.wait()
        if self._has_ended:
            raise ConnectionError("the socket ended")

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        assert self._socket is not None
        with suppress(ConnectionClosed):
            while True:
                text = await self._socket.recv(decode=True)
                assert isinstance(text, str)
                self.received.append((monotonic_ns(), text))
                if '"type":"draft"' not in text[:40]:
                    self._take(json.loads(text))
        self._has_ended = True
        self._idle.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the socket ended"))

    def _take(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind in ("ack", "error") and frame.get("client_id") in self._answers:
            answer = self._answers.pop(frame["client_id"])
            if not answer.done():
                answer.set_result(frame)
        elif kind == "state":
            self._hello.set()
            was_busy, self.is_busy = self.is_busy, frame["run_state"] != "idle"
            if self.is_busy:
                self._busy.set()
            elif was_busy:
                self._idle.set()

    def drafts(self, *, since: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the draft frames of answer text, from an index of ``received`` on."""
        frames = [
            (at, json.loads(text))
            for at, text in self.received[since:]
            if '"type":"draft"' in text[:40]
        ]
        return [(at, frame) for at, frame in frames if frame["kind"] == "text"]


def delivered_text(drafts: Sequence[tuple[int, dict[str, Any]]]) -> str:
    """Return the text of a page after these frames of one part.

    Raise Unexpected if they leave a gap.
    """
    pieces: list[str] = []
    length = 0
    for _, frame in drafts:
        if frame.get("reset"):
            pieces, length = [], 0
        if frame["offset"] != length:
            raise Unexpected(f"a gap at character {length}")
        pieces.append(frame["text"])
        length += len(frame["text"])
    return "".join(pieces)


def ages_of(drafts: Sequence[tuple[int, dict[str, Any]]], answer: SentAnswer) -> list[float]:
    """Return the age of each piece of an answer in seconds.

    The age is the time from when the provider sent the piece to the arrival of the frame with its
    end. Pieces that were not delivered are left out.
    """
    ages: list[float] = []
    reached = position = 0
    pieces = answer.pieces()
    for at, frame in drafts:
        reached = max(reached, frame["offset"] + len(frame["text"]))
        while len(ages) < len(pieces) and position + len(pieces[len(ages)].text) <= reached:
            position += len(pieces[len(ages)].text)
            ages.append((at - pieces[len(ages)].at) / 1e9)
    return ages
