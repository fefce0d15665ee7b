"""A client for a page's socket, connected to the real ASGI application."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import User

from conversations.models import Session
from loomweb.asgi import application

from .conftest import browser_of

HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"

type Frame = dict[str, Any]


class SocketClosed(AssertionError):
    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Socket:
    """The page's end of a socket. ``frames`` are all frames received so far, in order."""

    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.frames: list[Frame] = []
        self._communicator = communicator

    async def send(self, frame: Frame) -> None:
        await self._communicator.send_json_to(frame)

    async def send_text(self, text: str) -> None:
        await self._communicator.send_to(text_data=text)

    async def send_bytes(self, data: bytes) -> None:
        await self._communicator.send_to(bytes_data=data)

    async def next(self, *, seconds: float = 15) -> Frame:
        message = await self._communicator.receive_output(timeout=seconds)
        if message["type"] == "websocket.close":
            raise SocketClosed(message["code"])
        assert message["type"] == "websocket.send", message
        frame: Frame = json.loads(message["text"].encode())  # a real socket sends UTF-8
        self.frames.append(frame)
        return frame

    async def until(self, *types: str, where: Callable[[Frame], Any] = bool) -> Frame:
        """Read up to the first frame of one of these types for which ``where`` is true.

        An acknowledgement may come before or after the effects of its request.
        """
        while True:
            frame = await self.next()
            if frame["type"] in types and where(frame):
                return frame

    async def until_idle(self) -> None:
        await self.until("state", where=lambda frame: frame["run_state"] == "idle")

    async def settle(self) -> None:
        """Read until the server has answered all frames sent so far."""
        await self.send({"type": "ping"})
        await self.until("pong")

    async def close_code(self, *, seconds: float = 15) -> int:
        """Return the code that the server closes with, and store the frames before it."""
        while True:
            message = await self._communicator.receive_output(timeout=seconds)
            if message["type"] == "websocket.close":
                return int(message["code"])
            self.frames.append(json.loads(message["text"]))

    async def is_silent(self, *, seconds: float = 0.3) -> bool:
        """Return whether the server sends nothing more for a while."""
        return await self._communicator.receive_nothing(timeout=seconds)

    async def close(self) -> None:
        if not self._communicator.future.cancelled():  # a timeout cancels it
            await self._communicator.disconnect(timeout=15)

    def of_type(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["type"] == kind]

    @property
    def rows(self) -> list[Frame]:
        return [row for frame in self.of_type("rows") for row in frame["rows"]]

    @property
    def seqs(self) -> list[int]:
        return [row["seq"] for row in self.rows]


async def open_socket(
    session: Session | str,
    person: User | None,
    *,
    query: str = "",
    origin: str | None = ORIGIN,
    host: str = HOST,
    headers: Mapping[str, str] | None = None,
) -> Socket:
    """Connect as this person's browser does. ``session`` may also be an address."""
    sent = {"host": host} | dict(headers or {})
    if origin is not None:
        sent["origin"] = origin
    if person is not None:
        sent["cookie"] = await sync_to_async(session_cookie)(person)
    address = session if isinstance(session, str) else f"/ws/s/{session.uuid}/"
    communicator = WebsocketCommunicator(
        application,
        address + query,
        headers=[(name.encode(), value.encode()) for name, value in sent.items()],
    )
    accepted, _ = await communicator.connect(timeout=15)
    assert accepted  # a page learns no reason from a refused handshake
    return Socket(communicator)


def session_cookie(person: User) -> str:
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={browser_of(person).cookies[name].value}"
