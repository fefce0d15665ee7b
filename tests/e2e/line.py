"""A connection between a page and the server that a test controls."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, WebSocketRoute

type Frame = dict[str, Any]


class Line:
    """A page's WebSocket connection, which a test can break or cut for a while.

    ``change`` may alter a frame from the server, or drop it by returning None. ``answer`` may
    answer a frame of the page in the server's place. While ``is_held`` is set, greetings from the
    server are held back.
    """

    def __init__(
        self,
        page: Page,
        change: Callable[[Frame], Frame | None] = lambda frame: frame,
        answer: Callable[[Frame], Frame | None] = lambda frame: None,
    ) -> None:
        self.change = change
        self.answer = answer
        self.is_held = False
        self._is_cut = False
        self._greetings: list[tuple[WebSocketRoute, str | bytes]] = []
        self._current: WebSocketRoute | None = None
        page.route_web_socket(re.compile("/ws/"), self._open)

    def _open(self, line: WebSocketRoute) -> None:
        if self._is_cut:
            line.close()
            return
        self._current, server = line, line.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            if self.is_held and '"hello"' in str(message):
                self._greetings.append((line, message))
            elif frame := self.change(json.loads(message)):
                line.send(json.dumps(frame))

        def take_on(message: str | bytes) -> None:
            if frame := self.answer(json.loads(message)):
                line.send(json.dumps(frame))
            else:
                server.send(message)

        server.on_message(pass_on)
        line.on_message(take_on)

    def break_off(self) -> None:
        assert self._current is not None
        self.is_held = True
        self._current.close()

    def send(self, frame: Frame) -> None:
        """Send a frame to the page as if it came from the server."""
        assert self._current is not None
        self._current.send(json.dumps(frame))

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Cut the connection, and refuse new ones until the context ends."""
        assert self._current is not None
        self._is_cut = True
        self._current.close()
        yield
        self._is_cut = False

    @property
    def waits_for_greeting(self) -> bool:
        return bool(self._greetings)

    def greet(self) -> None:
        self.is_held = False
        for line, message in self._greetings:
            line.send(message)
