"""Reading the database at intervals: for writes of other processes, and for indexing.

One query for all watched sessions, twice a second, finds new rows, and the runs of other processes
with their drafts. It also closes any gap that the relay leaves.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from conversations.archive.journal import read_draft
from conversations.archive.messages import queued_messages, queued_messages_of
from conversations.archive.model_calls import read_window_mark
from conversations.archive.runs import ActiveRun, active_runs
from conversations.archive.storage import is_storage_error
from conversations.archive.transcript import SessionMarks, read_live_rows, read_session_marks
from conversations.domain.runs import RUNNING
from conversations.search.indexing import (
    IndexProgress,
    is_suspended,
    merge_index,
    prepare_batch,
    sessions_to_index,
    store_batch,
    suspend_session,
)
from conversations.search.meaning import embed_texts, read_batch, store_embeddings

from .database import Database, Readers
from .drafts import LiveAnswer
from .model_routing import ModelRouter
from .options import RuntimeOptions
from .publish import (
    MAX_MISSED_ROWS,
    Frame,
    Hub,
    Relay,
    active_frame,
    name_frames,
    queue_frame,
    rows_frame,
    window_frame,
)
from .queue import RunQueue


class _ForeignRun(LiveAnswer):
    """A run of another process, mirrored from its draft chunks up to ``ordinal``."""

    ordinal = -1


class Watcher:
    def __init__(
        self,
        options: RuntimeOptions,
        readers: Readers,
        hub: Hub,
        relay: Relay,
        queue: RunQueue,
        models: ModelRouter,
    ) -> None:
        self._options = options
        self._relay = relay
        self._readers = readers
        self._hub = hub
        self._queue = queue
        self._models = models
        self._foreign_runs: dict[int, _ForeignRun] = {}
        self._rewinds: dict[int, int] = {}
        self._names: dict[int, list[Frame]] = {}
        self._windows: dict[int, tuple[int, int, int]] = {}
        self._running: dict[int, tuple[UUID, str, str]] = {}

    async def run(self) -> None:
        caches: list[dict[int, Any]] = [self._foreign_runs, self._rewinds, self._names]
        caches += [self._windows, self._running, self._hub.queues]
        while True:
            await asyncio.sleep(self._options.watch_interval)
            sessions = list(self._hub.subscribers)
            for cache in caches:
                for pk in cache.keys() - self._hub.subscribers.keys():
                    del cache[pk]
            if sessions:
                await self._check(sessions)

    async def _check(self, sessions: list[int]) -> None:
        foreign = [pk for pk in sessions if self._queue.execution_of(pk) is None]
        marks_of, active, queues = await self._readers.read(self._read_changes, sessions, foreign)
        runs = {run.session_pk: run for run in active}
        for pk, marks in marks_of.items():
            names = name_frames(title=marks.title, model=self._models.model_for(marks.model))
            for frame in names:
                if frame not in self._names.get(pk, names):
                    self._hub.publish(pk, frame)
            self._names[pk] = names
        for pk in foreign:
            if self._queue.execution_of(pk) is not None:
                continue  # it began meanwhile and publishes itself
            if pk not in marks_of:
                continue  # it was purged; the next check of access closes its pages
            marks = marks_of[pk]
            if marks.rewinds > self._rewinds.setdefault(pk, marks.rewinds):
                # Another process has rewound the session. The page loads again to show which rows.
                self._rewinds[pk] = marks.rewinds
                self._hub.publish(pk, {"type": "reload", "reason": "rewound"})
            if marks.last_seq > self._hub.lowest_reached(pk):
                await self._publish_rows(pk)
            if marks.window != self._windows.setdefault(pk, marks.window):
                self._windows[pk] = marks.window
                mark = await self._readers.read(read_window_mark, pk)
                self._hub.publish(pk, window_frame(mark))
            if self._queue.execution_of(pk) is not None:
                continue  # its own frames are newer than what was read
            await self._publish_run(pk, runs.get(pk))
        # Any process may queue and withdraw messages, also if the answer is written here.
        for pk in sessions:
            if queues.get(pk, []) != self._hub.queues.get(pk, []):
                # Read again, because this process may have published a newer queue since.
                waiting = await self._readers.read(queued_messages, pk)
                if waiting != self._hub.queues.get(pk, []):
                    # When the author's page gets the row, it takes the withdrawn message from the
                    # queue that it still shows, and therefore the rows go first.
                    await self._publish_rows(pk)
                    self._hub.publish(pk, queue_frame(waiting))

    async def _publish_rows(self, pk: int) -> None:
        reached = self._hub.lowest_reached(pk)
        rows = await self._readers.read(
            read_live_rows, pk, after_seq=reached, limit=MAX_MISSED_ROWS
        )
        self._foreign_runs.pop(pk, None)
        if rows and rows[-1].seq > self._hub.lowest_reached(pk):  # not relayed meanwhile
            run = str(self._running[pk][0]) if pk in self._running else ""
            self._hub.publish(pk, rows_frame(rows, ends_draft=run))

    def _read_changes(
        self, sessions: list[int], foreign: list[int]
    ) -> tuple[dict[int, SessionMarks], list[ActiveRun], dict[int, list[dict[str, Any]]]]:
        """Return marks and queues of the sessions, and the runs of ``foreign`` sessions.

        A session is foreign if this process does not execute its run.
        """
        marks = read_session_marks(sessions)
        queues = queued_messages_of(sessions)
        runs: list[ActiveRun] = []
        if foreign:
            runs = active_runs(stale_seconds=self._options.stale_after, session_pks=foreign)
        return marks, runs, queues

    def record_shown_names(self, pk: int, names: list[Frame]) -> None:
        """Save the names that a page was sent, so that only later changes are published."""
        self._names.setdefault(pk, names)

    def record_shown_run(self, pk: int, run: ActiveRun) -> None:
        """Save the run that a page was sent, so that its end is published too.

        It may end before the next check, and then no check would see it.
        """
        if not self._queue.owns(run):
            self._running.setdefault(pk, (run.run, run.state, run.note))

    def record_rewinds(self, pk: int, count: int) -> None:
        """Save the number of rewinds that this process has made and publishes itself."""
        self._rewinds[pk] = max(count, self._rewinds.get(pk, 0))

    async def _publish_run(self, pk: int, run: ActiveRun | None) -> None:
        if run is None or (self._queue.is_orphan(run) and run.state == RUNNING):
            if self._running.pop(pk, None) is not None:
                self._foreign_runs.pop(pk, None)
                self._hub.publish(pk, active_frame(None))
            return
        if self._queue.owns(run):
            return  # it has just begun here and publishes itself
        if self._running.get(pk) != (run.run, run.state, run.note):
            self._running[pk] = (run.run, run.state, run.note)
            self._hub.publish(pk, active_frame(run))
        if self._relay.is_connected:
            self._foreign_runs.pop(pk, None)
            return  # its frames come through the relay
        foreign = self._foreign_runs.get(pk)
        is_new = foreign is None or foreign.run != str(run.run)
        if foreign is None or is_new:
            foreign = self._foreign_runs[pk] = _ForeignRun(str(run.run))
        chunks = await self._readers.read(read_draft, run.run_pk, after_ordinal=foreign.ordinal)
        for chunk in chunks:
            foreign.ordinal = chunk.ordinal
            part = foreign.parts.get(chunk.part)
            if part is None:
                part = foreign.start_part(chunk.kind, number=chunk.part)
            part.feed(chunk.text)
        frames = foreign.take_frames()
        # A page may already have a part of a new run through the relay.
        for frame in foreign.snapshots() if is_new else frames:
            self._hub.publish(pk, frame)

    def snapshots(self, pk: int) -> list[Frame]:
        """Return what is mirrored of another process's answer, for a page that connects."""
        foreign = self._foreign_runs.get(pk)
        return foreign.snapshots() if foreign else []


# Interval between looks for turns without index entries. A search does not wait for it.
LOOK_INTERVAL_SECONDS = 2.0

# How many turns one transaction stores, and how long other writers then have the database.
TURNS_AT_ONCE, PAUSE_SECONDS = 10, 0.02

MERGES_AT_ONCE = 50

# Number of batches from which merging does not wait for a quiet moment. A step that meets a very
# common word in a large index takes a tenth of a second instead of milliseconds.
MAX_UNMERGED_BATCHES = 200


class IndexWorker:
    """Keeps the search index up to date when there is no other work.

    Entries are made in a reader thread. A few at a time are stored, which takes the writer thread
    milliseconds, so no append waits longer than that. Processes that share a database may do the
    same work twice, which does no harm.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._unmerged = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            if not await self.catch_up() and self._unmerged:
                await self._merge()

    async def catch_up(self) -> bool:
        """Index the turns that wait, and return whether there were any.

        Sessions whose indexing failed recently are skipped.
        """
        unindexed: list[IndexProgress] = await self._database.readers.read(sessions_to_index)
        waiting = [progress for progress in unindexed if not is_suspended(progress.session_pk)]
        for progress in waiting:
            try:
                await self._index(progress)
            except Exception as error:
                if is_storage_error(error):
                    raise
                suspend_session(progress.session_pk, error)
        return bool(waiting)

    async def _index(self, progress: IndexProgress) -> None:
        current: IndexProgress | None = progress
        while current is not None and current.waiting > 0:
            batch = await self._database.readers.read(prepare_batch, current, size=TURNS_AT_ONCE)
            current = await self._database.writer.write(store_batch, batch)
            self._unmerged += 1
            await asyncio.sleep(PAUSE_SECONDS)
            if self._unmerged >= MAX_UNMERGED_BATCHES:
                await self._merge()

    async def _merge(self) -> None:
        self._unmerged = 0
        for _ in range(MERGES_AT_ONCE):
            if not await self._database.writer.write(merge_index):
                return
            await asyncio.sleep(PAUSE_SECONDS)
        self._unmerged = 1  # there is more to do


# How long a vector waits for the end of the answers, and between two checks.
MAX_BUSY_SECONDS, BUSY_STEP_SECONDS = 1.0, 0.1

LOW_PRIORITY = 10  # Added to the thread's niceness; on Linux each thread has its own


class EmbeddingWorker:
    """Computes the vectors of turns, after their words were indexed.

    A vector takes 20 ms of processor time. The thread that computes them has a low priority and
    rests as long as it has worked, so it uses half a processor at most. While this process answers
    (``is_busy``), it computes at most one vector a second.
    """

    def __init__(self, database: Database, *, is_busy: Callable[[], bool]) -> None:
        self._database = database
        self._is_busy = is_busy
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="embedding", initializer=_lower_priority
        )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            await self.catch_up()

    async def catch_up(self) -> None:
        loop = asyncio.get_running_loop()
        while (batch := await self._database.readers.read(read_batch)) is not None:
            vectors: list[bytes] = []
            for text in batch.texts.values():
                # The thread holds the interpreter's lock while it computes. With its low priority
                # it may be suspended while it holds the lock, and then all answers would wait.
                await self._wait_while_busy()
                began = time.monotonic()
                vectors += await loop.run_in_executor(self._thread, embed_texts, [text])
                await asyncio.sleep(max(PAUSE_SECONDS, time.monotonic() - began))
            await self._database.writer.write(store_embeddings, batch, vectors)

    async def _wait_while_busy(self) -> None:
        waited = 0.0
        while self._is_busy() and waited < MAX_BUSY_SECONDS:
            await asyncio.sleep(BUSY_STEP_SECONDS)
            waited += BUSY_STEP_SECONDS


def _lower_priority() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
