"""Access to the database from async code: one writer thread and a few reader threads.

All ``sync_to_async`` calls outside an HTTP request share one thread, so one slow query would hold
up every stream. Writes have a thread of their own with a lasting connection. Jobs that wait for it
are committed together (group commit), which makes ``synchronous=FULL`` cheap. A caller's future
resolves after the COMMIT.

A connection can be lost at any time. A read, or a write that is not committed, is then repeated on
a new connection. While the database is away, it is retried for as long as its caller waits
(:func:`wait_for_database`); after that, the caller gets ``Unavailable``. A full disk raises
``StorageFull``.
"""

import asyncio
import contextvars
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    IntegrityError,
    connection,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from conversations.archive.storage import (
    database_unavailable,
    is_storage_error,
    transaction_id,
    translate_storage_error,
    was_committed,
)
from conversations.domain.errors import StorageFull, Unavailable
from conversations.domain.messages import say

logger = logging.getLogger(__name__)

MAX_COMMIT_JOBS = 64

READER_THREADS = 4

# Pauses between tries to reach a database that is away. Each is twice as long as the last.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0

_wait_seconds: ContextVar[float] = ContextVar("database_wait_seconds", default=0.0)


def wait_for_database(seconds: float) -> None:
    """Let this task, and the tasks that it starts from now on, wait for a database that is away.

    Without this call, a failed read or write is retried once at once, because a person waits for
    the answer.
    """
    _wait_seconds.set(seconds)


def _pause_after(tries: int) -> float:
    """Return the seconds to wait. The second try is immediate, for a connection that was lost."""
    return 0.0 if tries < 2 else min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (tries - 2))


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    deadline: float
    result: Any = None
    error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.done():  # the caller was cancelled; the commit stands
            return
        if self.error is None:
            self.future.set_result(self.result)
            return
        error = translate_storage_error(self.error) or self.error
        if error is not self.error:
            error.__cause__ = self.error
        self.future.set_exception(error)


def stopping() -> Unavailable:
    return Unavailable("The server is stopping. Try again in a moment.", code="stopping")


class Writer:
    """A thread with its own connection that runs write functions one after the other.

    No write happens twice: a job is run again only if its transaction did not commit. If the
    connection was lost during the COMMIT, PostgreSQL is asked whether the transaction committed.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._closing_lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="archive-writer", daemon=True)
        self._thread.start()

    async def write[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` in a transaction and return its result after the commit.

        Raise Unavailable when the process ends.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        deadline = time.monotonic() + _wait_seconds.get()
        with self._closing_lock:
            if self._is_closed:
                raise stopping()
            self._jobs.put(_Job(lambda: function(*args, **kwargs), loop, future, deadline))
        return await future

    def close(self) -> None:
        """Run the queued jobs, then end the thread and close its connection."""
        with self._closing_lock:
            self._is_closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        # In PostgreSQL, a group of jobs would hold the row locks of several sessions and could
        # deadlock with another process.
        size = MAX_COMMIT_JOBS if connection.vendor == "sqlite" else 1
        while True:
            # Once the writer is closed, nothing more can be put into the queue.
            self._accept_queued(block=not self._waiting and not self._is_closed)
            if not self._waiting:
                break
            self._commit([self._waiting.popleft() for _ in range(min(size, len(self._waiting)))])
        connection.close()

    def _accept_queued(self, *, block: bool = False) -> None:
        try:
            while True:
                job = self._jobs.get(block)
                block = False
                if job is not None:  # None only wakes the thread to close
                    self._waiting.append(job)
        except Empty:
            return

    def _commit(self, group: list[_Job]) -> None:
        """Commit the jobs in one transaction, and resolve their futures.

        While the database is away, retry until the deadlines of the callers have passed.
        """
        # ``unconfirmed`` is the id of a transaction that may have committed, such as "7312". While
        # it is empty, the jobs are certainly not done.
        tries, unconfirmed = 0, ""
        while group:
            tries += 1
            try:
                if not (unconfirmed and was_committed(unconfirmed)):
                    unconfirmed = ""
                    with transaction.atomic(durable=True):
                        self._run(group)
                        # If a function has swallowed the error that broke the transaction, it would
                        # be rolled back silently.
                        connection.validate_no_broken_transaction()
                        if connection.vendor == "postgresql":
                            unconfirmed = transaction_id()
                break
            except IntegrityError as error:
                if len(group) > 1:  # one of them broke a constraint that is checked at the end
                    for job in group:
                        self._commit([job])
                    return
                group[0].error = error
                break
            except DatabaseError as error:
                if not _is_away(error):
                    _log_failed(error, writes=len(group))
                    for job in group:
                        job.error = job.error or error
                    break
            except Exception as error:
                group[0].error = error  # a group of one has no savepoint of its own
                break
            # SQLite has already waited for the lock until its own timeout.
            if tries > 1 or connection.vendor == "sqlite":
                self._accept_queued()
                group = self._fail_late(group, may_be_done=bool(unconfirmed))
                self._waiting = deque(self._fail_late(self._waiting))
            if group:
                time.sleep(_pause_after(tries))
        self._resolve(group)

    def _run(self, group: list[_Job]) -> None:
        for job in group:
            job.result = job.error = None
            if len(group) == 1:  # it has the whole transaction
                job.result = job.function()
                return
            try:
                with transaction.atomic():
                    job.result = job.function()
            except Exception as error:
                job.error = error

    def _fail_late(self, jobs: Iterable[_Job], *, may_be_done: bool = False) -> list[_Job]:
        """Fail the jobs whose deadline has passed, and return the others."""
        now = math.inf if self._is_closed else time.monotonic()
        late = [job for job in jobs if job.deadline <= now]
        for job in late:
            job.error = error = database_unavailable()
            error.may_be_done = may_be_done
        if late:
            logger.warning("writes_given_up", extra={"fields": {"writes": len(late)}})
            self._resolve(late)
        return [job for job in jobs if job.deadline > now]

    def _resolve(self, group: list[_Job]) -> None:
        for loop in {job.loop for job in group}:
            jobs = [job for job in group if job.loop is loop]

            def resolve(jobs: list[_Job] = jobs) -> None:
                for job in jobs:
                    job.resolve()

            try:
                loop.call_soon_threadsafe(resolve)
            except RuntimeError:  # the loop has ended; the commit stands
                logger.debug("writes_not_awaited", extra={"fields": {"writes": len(jobs)}})


def _is_away(error: DatabaseError) -> bool:
    """Return whether the same jobs can succeed once the database is back."""
    # Django closes a connection on which it could not even roll back.
    is_lost = connection.connection is None and connection.vendor == "postgresql"
    connection.close_if_unusable_or_obsolete()
    translated = translate_storage_error(error)
    return isinstance(translated, Unavailable) or (is_lost and translated is None)


def _log_failed(error: DatabaseError, *, writes: int) -> None:
    # A full disk fails all writes. Each is logged in one line, because it is not a bug.
    is_full = isinstance(translate_storage_error(error), StorageFull)
    fields = {"writes": writes, "error_class": type(error).__name__}
    level = logging.WARNING if is_full else logging.ERROR
    logger.log(level, "writes_failed", exc_info=not is_full, extra={"fields": fields})


class Readers:
    """A few threads with lasting connections for queries from async code."""

    def __init__(self) -> None:
        self._away_at = -math.inf
        self._connections: list[BaseDatabaseWrapper] = []

        def register_connection() -> None:
            self._connections.append(connections[DEFAULT_DB_ALIAS])

        self._pool = ThreadPoolExecutor(
            READER_THREADS, thread_name_prefix="archive-reader", initializer=register_connection
        )

    async def read[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + _wait_seconds.get()
        for tries in itertools.count(2):  # the first read is itself two tries
            try:
                return await loop.run_in_executor(
                    self._pool, lambda: _read_with_retry(function, *args, **kwargs)
                )
            except Exception as error:
                translated = translate_storage_error(error)
                if translated is None or translated is error:
                    raise
                if isinstance(translated, StorageFull):
                    raise translated from error
                self._away_at = time.monotonic()
                if self._away_at >= deadline:
                    raise translated from error
            # Wait here and not in a reader thread, because other reads need that thread.
            await asyncio.sleep(_pause_after(tries))
        raise AssertionError

    @property
    def answered_for(self) -> float:
        """Seconds since a read last failed because the database was away."""
        return time.monotonic() - self._away_at

    def close(self) -> None:
        """Finish the current reads, then close the connections.

        They are closed from this thread, because a pool does not say how many threads it has, nor
        which of them runs a given job.
        """
        self._pool.shutdown()
        for reader_connection in self._connections:
            reader_connection.inc_thread_sharing()
            reader_connection.close()


def _read_with_retry[**P, T](function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a read, and repeat it once at once if the connection of this thread was lost.

    The connections of the other threads may be lost, too, so a retry in another thread could fail
    for the same reason.
    """
    for is_last in (False, True):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            connection.close_if_unusable_or_obsolete()
            if is_last or not isinstance(translate_storage_error(error), Unavailable):
                raise
    raise AssertionError


FULL_NOTE = say("The server's disk is full. This answer is kept in memory until there is room.")

# Pause before a refused write is tried again. It leaves nothing behind, so retries need no limit.
RETRY_SECONDS = 1.0


class RetryingWriter:
    """A writer for data that must not be lost: it retries while the disk is full.

    ``on_wait`` is called with a note when waiting begins and with an empty one when it ends.
    ``gives_up`` returns whether the process ends; StorageFull is then raised after all.
    """

    def __init__(
        self, writer: Writer, *, gives_up: Callable[[], bool], on_wait: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._gives_up = gives_up
        self._on_wait = on_wait
        self._waiting = 0

    async def write[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like :meth:`Writer.write`."""
        is_waiting = False
        try:
            while True:
                try:
                    return await self._writer.write(function, *args, **kwargs)
                except Exception as error:
                    is_full = isinstance(translate_storage_error(error), StorageFull)
                    if not is_full or self._gives_up():
                        raise
                if not is_waiting:
                    is_waiting = True
                    self.count_waiting(1)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            if is_waiting:
                self.count_waiting(-1)

    def count_waiting(self, change: int) -> None:
        """Add to the number of waiting writes. The note is the same for any number of them."""
        was_waiting = self._waiting > 0
        self._waiting += change
        is_waiting = self._waiting > 0
        if is_waiting != was_waiting:
            self._on_wait(FULL_NOTE if is_waiting else "")


class Database:
    """The writer, the readers and the background tasks of one process."""

    def __init__(self, *, wait_seconds: float) -> None:
        self.writer = Writer()
        self.readers = Readers()
        self.retrying_writer = RetryingWriter(
            self.writer, gives_up=lambda: self.is_stopping, on_wait=lambda _: None
        )
        self.is_stopping = False
        self.background: set[asyncio.Task[Any]] = set()
        self._wait_seconds = wait_seconds

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        def log_error(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log_failure(error, "background_work_failed")

        context = contextvars.copy_context()
        context.run(wait_for_database, self._wait_seconds)
        task = asyncio.create_task(work, context=context)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        task.add_done_callback(log_error)
        return task

    def write_in_background(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Write something for which no answer has to wait."""
        self.run_in_background(self.retrying_writer.write(function, *args, **kwargs))

    async def run_forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep a loop running, even when an error such as a database that is away ends it."""
        wait_for_database(self._wait_seconds)
        while True:
            try:
                await loop()
            except Exception as error:
                log_failure(error, "loop_failed", loop=loop.__qualname__)
                await asyncio.sleep(1)

    async def close(self) -> None:
        await asyncio.to_thread(self.writer.close)
        await asyncio.to_thread(self.readers.close)


def log_failure(error: BaseException, event: str, **fields: str) -> None:
    """Log a bug with its traceback, but a failing database or disk in one line."""
    # The limit on log lines counts by statement. ``stacklevel`` makes it count each caller
    # separately.
    if is_storage_error(error):
        fields["reason"] = str(error)
        logger.warning(event, extra={"fields": fields}, stacklevel=2)
    else:
        logger.error(event, exc_info=error, extra={"fields": fields}, stacklevel=2)
