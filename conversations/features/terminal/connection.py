"""What a chat in a terminal needs of the place where the sessions are."""

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

CHANNEL = "cli"  # Of the sessions that begin here, and what their keys begin with.

UNKNOWN = "unknown"  # What the session does while its server does not answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoice:
    """A session as the list at the start shows it."""

    uuid: UUID
    title: str
    turn_count: int
    last_active_at: datetime
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """The session that is talked to. ``key`` is empty where it has none, ``last_seq`` is
    the newest row, ``url`` its page."""

    uuid: UUID
    workspace: str
    key: str
    title: str
    turn_count: int
    last_seq: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More of the answer that is written. ``offset`` is where the text starts in its
    part, in characters."""

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
    """What the session does: a state of its run, and words for more."""

    state: str
    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run's last state. Always the last thing that happens."""

    state: str


type Happening = TextDelta | RowReceived | StatusChanged | RunEnded


class ChatConnection(Protocol):
    """Every method raises LoomError for what is refused, with words for a person."""

    async def open(self) -> None: ...

    async def close(self, *, at_once: bool = False) -> None:
        """What is carried out here is ended first, or with ``at_once`` stopped and kept."""

    async def list_workspaces(self) -> list[tuple[str, str]]:
        """Slugs and names."""

    async def list_sessions(
        self, workspace: str, *, query: str = "", limit: int
    ) -> list[SessionChoice]:
        """The last used first."""

    async def open_session(self, uuid: UUID) -> OpenSession: ...

    async def open_by_key(self, workspace: str, key: str) -> OpenSession:
        """Begun on first use."""

    async def begin_session(self, workspace: str, *, key: str = "") -> OpenSession:
        """A new one. It takes the key over from the one that has it, which stays."""

    async def read_history(
        self, session: UUID, *, before: int | None = None, limit: int
    ) -> tuple[int | None, list[Payload | Fallback]]:
        """The rows of the newest turns of the active path below a number, oldest first, and
        the number of the first turn; None where there is none."""

    async def find_words(
        self, session: UUID, query: str, *, limit: int
    ) -> list[tuple[int, str, str]]:
        """Of turns that match, the number, who speaks and a snippet; best first."""

    def ask(
        self, session: OpenSession, text: str, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]:
        """Send a message, and tell what happens until its run has ended: rows after the
        seq ``after``, in order, and deltas as they come."""

    def compact(
        self, session: OpenSession, *, client_id: str, after: int
    ) -> AsyncIterator[Happening]: ...

    def watch(self, session: OpenSession, *, after: int) -> AsyncIterator[Happening]:
        """The same of a run that goes on already, with what it asks; nothing where none
        does."""

    async def stop(self, session: UUID) -> None: ...

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str = "") -> None:
        """Raises Conflict when somebody else was faster."""

    async def decline(self, session: UUID, call: UUID, *, question: str) -> None:
        """Not answer what the call's tool server asks. Raises Conflict when somebody else was
        faster."""

    async def rename(self, session: UUID, title: str) -> str:
        """The title as it is kept."""

    async def choose_model(self, session: UUID, model: str) -> str:
        """The name of the one that answers from now on."""


# From the thread that reads the keyboard to a loop on a thread of its own.


class LoopBridge:
    """Use :func:`open_bridge`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Ctrl-C ends the waiting and cancels the work."""
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
    """Nothing more comes."""


class ThreadedStream[T]:
    """What an asynchronous iterator yields, taken from another thread. Where nobody
    takes it any more, :meth:`close` ends it."""

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
        """The next item; None when none came in time. Raises StreamEnded at the end,
        or what the iterator raised."""
        try:
            found = self._queue.get(timeout=seconds)
        except Empty:
            return None
        if found is not None:
            return found[0]
        self._queue.put(None)
        self._pump.result()
        raise StreamEnded

    def close(self) -> None:
        self._pump.cancel()


@contextmanager
def open_bridge() -> Iterator[LoopBridge]:
    """A loop that runs until the block is left."""
    started: Future[asyncio.AbstractEventLoop] = Future()

    def live() -> None:
        with asyncio.Runner() as runner:  # which cancels what is left at the end
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
