"""From the thread that reads the keyboard to a loop on a thread of its own.

Typing blocks, and Ctrl-C belongs to the main thread; answers stream all the while.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any


class Bridge:
    """Use :func:`open_bridge`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Ctrl-C ends the waiting and cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def follow[T](self, items: AsyncIterator[T]) -> "Stream[T]":
        return Stream(items, self._loop)


class StreamOver(Exception):
    """Nothing more comes."""


class _Over:
    """In a stream's queue: nothing more comes, for this reason."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Stream[T]:
    """What an asynchronous iterator yields, taken from another thread. Where nobody
    takes it any more, :meth:`close` ends it."""

    def __init__(self, items: AsyncIterator[T], loop: asyncio.AbstractEventLoop) -> None:
        self._queue: SimpleQueue[T | _Over] = SimpleQueue()
        self._pump: Future[None] = asyncio.run_coroutine_threadsafe(self._run(items), loop)

    async def _run(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self._queue.put(item)
        except BaseException as error:
            self._queue.put(_Over(error))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self._queue.put(_Over(None))

    def take(self, *, seconds: float | None = None) -> T | None:
        """The next item; None when none came in time. Raises StreamOver at the end,
        or what the iterator raised."""
        try:
            item = self._queue.get(timeout=seconds)
        except Empty:
            return None
        if not isinstance(item, _Over):
            return item
        self._queue.put(item)
        if item.error is not None:
            raise item.error
        raise StreamOver

    def close(self) -> None:
        self._pump.cancel()


@contextmanager
def open_bridge() -> Iterator[Bridge]:
    """A loop that runs until the block is left."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        over = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(live())

    thread = threading.Thread(target=run, name="chat-loop")
    thread.start()
    loop, over = started.result()
    try:
        yield Bridge(loop)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
