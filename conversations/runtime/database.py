"""The database from async code: one writer thread, a few reader threads.

All ``sync_to_async`` calls outside an HTTP request share one thread, so one slow
query would hold up every stream. Writes go to a thread of their own with a
lasting connection; waiting jobs are committed together (group commit), which
makes ``synchronous=FULL`` cheap. A caller's future resolves after the COMMIT.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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

logger = logging.getLogger(__name__)

GROUP = 64
"""Jobs that one commit carries at most."""

READERS = 4


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():  # its caller was cancelled; the commit stands
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Runs write functions one after the other on its own thread and connection.

    PostgreSQL gets one transaction for each job: jobs of one group would hold the
    row locks of several sessions and could deadlock with another process.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="archive-writer", daemon=True)
        self._thread.start()

    async def write[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` in a transaction; return its result after the commit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(lambda: function(*args, **kwargs), loop, future))
        return await future

    def close(self) -> None:
        """Carry out what is queued, then end the thread and its connection."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        group_size = GROUP if connection.vendor == "sqlite" else 1
        running = True
        while running:
            group, running = self._next_group(group_size)
            if group:
                self._commit(group)
        connection.close()

    def _next_group(self, size: int) -> tuple[list[_Job], bool]:
        job = self._jobs.get()
        group: list[_Job] = []
        while job is not None:
            group.append(job)
            if len(group) == size:
                return group, True
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _commit(self, group: list[_Job]) -> None:
        try:
            with transaction.atomic():
                if len(group) == 1:
                    group[0].result = group[0].function()
                else:
                    for job in group:
                        self._carry_out(job)
        except IntegrityError as error:
            if len(group) > 1:  # one of them broke a rule that is checked at the end
                for job in group:
                    job.result = job.error = None
                    self._commit([job])
                return
            group[0].error = error
        except DatabaseError as error:
            logger.exception("a group of %d writes was not committed", len(group))
            for job in group:
                job.error = job.error or error
            connection.close_if_unusable_or_obsolete()
        except Exception as error:
            group[0].error = error  # a group of one has no savepoint of its own
        self._settle(group)

    def _carry_out(self, job: _Job) -> None:
        try:
            with transaction.atomic():
                job.result = job.function()
        except Exception as error:
            job.error = error

    def _settle(self, group: list[_Job]) -> None:
        for loop in {job.loop for job in group}:
            jobs = [job for job in group if job.loop is loop]
            try:
                loop.call_soon_threadsafe(_settle_all, jobs)
            except RuntimeError:  # the loop has ended; what was committed stays
                logger.debug("nobody waits for %d writes any more", len(jobs))


def _settle_all(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()


class Readers:
    """A few threads with lasting connections for queries from async code."""

    def __init__(self) -> None:
        self._connections: list[BaseDatabaseWrapper] = []
        self._pool = ThreadPoolExecutor(
            READERS, thread_name_prefix="archive-reader", initializer=self._note_connection
        )

    def _note_connection(self) -> None:
        self._connections.append(connections[DEFAULT_DB_ALIAS])

    async def read[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: _checked(function, *args, **kwargs))

    def close(self) -> None:
        """What is being read is read to its end. The connections are closed from here: which
        of its threads a pool gives work to, and how many it has, is not for us to say."""
        self._pool.shutdown()
        for own in self._connections:
            own.inc_thread_sharing()
            own.close()


def _checked[**P, T](function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except DatabaseError:
        connection.close_if_unusable_or_obsolete()
        raise
