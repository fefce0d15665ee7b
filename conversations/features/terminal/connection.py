"""The interface of a terminal chat to the sessions, and a bridge to its event loop's thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any, Protocol
from uuid import UUID

from conversations.domain.events import Fallback, Payload

CHANNEL = "cli"  # The channel of sessions created here, and the prefix of their keys.

UNKNOWN = "unknown"  # The state of a session while its server does not respond.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoice:
    """A session in a list from which the person chooses."""

    uuid: UUID
    title: str
    turn_count: int
    last_active_at: datetime
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """The session of the chat.

    ``key`` is empty if the session has none. ``last_seq`` is the seq of its newest row, ``url``
    the URL of its page."""

    uuid: UUID
    workspace: str
    key: str
    title: str
    turn_count: int
    last_seq: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """The next piece of a streaming answer. ``offset`` is its position in its part (characters)."""

    part: int
    kind: str
    offset: int
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReceived:
    """A completed row."""

    seq: int
    payload: Payload | Fallback = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """The state of the session's run, with a text that describes it."""

    state: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last state of the run. This is always the last item."""

    state: str


type Happening = TextDelta | RowReceived | StatusChanged | RunEnded


class ChatConnection(Protocol):
    """The interface to the sessions.

    Every method raises LoomError with a message for the person if the request is refused."""

    async def open(self) -> None: ...

    async def close(self, *, at_once: bool = False) -> None:
        """Wait until runs executed here have ended, or with ``at_once`` stop and save them."""

    async def list_workspaces(self) -> list[tuple[str, str]]:
        """Return the slugs and names of the workspaces."""

    async def list_sessions(
        self, workspace: str, *, query: str = "", limit: int
    ) -> list[SessionChoice]:
        """Return the workspace's sessions, the last used first."""

    async def open_session(self, uuid: UUID) -> OpenSession: ...

    async def open_by_key(self, workspace: str, key: str) -> OpenSession:
        """Return the session with this key. Create it on first use."""

    async def begin_session(self, workspace: str, *, key: str = "") -> OpenSession:
        """Create a session. It takes over the key; the session that had it is kept."""

    async def read_history(
        self, session: UUID, *, before: int | None = None, limit: int
    ) -> tuple[int | None, list[Payload | Fallback]]:
        """Return the first turn's number and the rows of the newest turns before turn ``before``.

        Only turns of the active path count. The rows are in order, oldest first. The number is
        None if there are no turns."""

    async def find_words(
        self, session: UUID, query: str, *, limit: int
    ) -> list[tuple[int, str, str]]:
        """Return number, role or tool name, and a snippet of matching turns, best match first."""

    def ask(
        self, session: OpenSession, text: str, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        """Send a message and yield what happens until its run has ended.

        Rows after the seq ``after`` are yielded in order, deltas as they arrive."""

    def compact(
        self, session: OpenSession, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]: ...

    def watch(self, session: OpenSession, *, after: int) -> AsyncIterator[Happening]:
        """Yield what happens until the session's active run has ended, with its open requests.

        Yield nothing if there is no active run."""

    async def stop(self, session: UUID) -> None: ...

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str = "") -> None:
        """Decide a tool call. Raise Conflict if another person has decided it already."""

    async def decline(self, session: UUID, call: UUID, *, question: str) -> None:
        """Decline the question of the call's tool server.

        Raise Conflict if another person has answered it already."""

    async def rename(self, session: UUID, title: str) -> str:
        """Rename the session and return its title as it was saved."""

    async def choose_model(self, session: UUID, model: str) -> str:
        """Set the session's model and return the model's name."""


# Calling an event loop in a thread of its own from the thread that reads the keyboard.


class LoopBridge:
    """A bridge to an event loop in another thread. Create it with :func:`open_bridge`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. Ctrl-C cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def start[T](self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def follow[T](self, items: AsyncIterator[T]) -> "ThreadedStream[T]":
        return ThreadedStream(items, self._loop)


class StreamEnded(Exception):
    """A stream has no more items."""


class ThreadedStream[T]:
    """The items of an asynchronous iterator, read from another thread.

    Call :meth:`close` to stop the iterator."""

    def __init__(self, items: AsyncIterator[T], loop: asyncio.AbstractEventLoop) -> None:
        self._queue: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._pump: Future[None] = asyncio.run_coroutine_threadsafe(self._run(items), loop)

    async def _run(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self._queue.put((item,))
        finally:
            self._queue.put(None)

    def get(self, *, seconds: float) -> T | None:
        """Return the next item, or None if none arrives in time.

        Raise StreamEnded at the end, or the exception of the iterator."""
        try:
            entry = self._queue.get(timeout=seconds)
        except Empty:
            return None
        if entry is not None:
            return entry[0]
        self._queue.put(None)
        self._pump.result()
        raise StreamEnded

    def close(self) -> None:
        self._pump.cancel()


@contextmanager
def open_bridge() -> Iterator[LoopBridge]:
    """Run an event loop in another thread until the ``with`` block ends."""
    started: Future[asyncio.AbstractEventLoop] = Future()

    def live() -> None:
        with asyncio.Runner() as runner:  # cancels the remaining tasks at the end
            started.set_result(runner.get_loop())
            runner.get_loop().run_forever()

    thread = threading.Thread(target=live, name="chat-loop")
    thread.start()
    loop = started.result()
    try:
        yield LoopBridge(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
