"""Looking at the database now and then: for what other processes write, and for the index.

One query for all watched sessions, twice a second: new rows, runs of other
processes, their drafts. It also heals any gap that a relay may leave.
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
    """A run of another process, mirrored from its draft chunks up to that ordinal."""

    ordinal = -1


class Watcher:
    def __init__(
        self,
        options: RuntimeOptions,
        readers: Readers,
        hub: Hub,
        relay: Relay,
        own: RunQueue,
        models: ModelRouter,
    ) -> None:
        self._options = options
        self._relay = relay
        self._readers = readers
        self._hub = hub
        self._own = own
        self._models = models
        self._foreign: dict[int, _ForeignRun] = {}
        self._rewinds: dict[int, int] = {}
        self._names: dict[int, list[Frame]] = {}
        self._windows: dict[int, tuple[int, int, int]] = {}
        self._running: dict[int, tuple[UUID, str, str]] = {}

    async def run(self) -> None:
        caches: list[dict[int, Any]] = [self._foreign, self._rewinds, self._names]
        caches += [self._windows, self._running, self._hub.queues]
        while True:
            await asyncio.sleep(self._options.watch_interval)
            sessions = list(self._hub.subscribers)
            for known in caches:
                for pk in known.keys() - self._hub.subscribers.keys():
                    del known[pk]
            if sessions:
                await self._check(sessions)

    async def _check(self, sessions: list[int]) -> None:
        others = [pk for pk in sessions if self._own.execution_of(pk) is None]
        marks_of, found, queues = await self._readers.read(self._read, sessions, others)
        runs = {run.session_pk: run for run in found}
        for pk, marks in marks_of.items():
            names = name_frames(title=marks.title, model=self._models.model_for(marks.model))
            for frame in names:
                if frame not in self._names.get(pk, names):
                    self._hub.publish(pk, frame)
            self._names[pk] = names
        for pk in others:
            if self._own.execution_of(pk) is not None:
                continue  # it began meanwhile, and announces itself
            if pk not in marks_of:
                continue  # it was purged; its pages are closed when their access is asked again
            marks = marks_of[pk]
            if marks.rewinds > self._rewinds.setdefault(pk, marks.rewinds):
                # Another process rewound: which rows is for the page itself to show.
                self._rewinds[pk] = marks.rewinds
                self._hub.publish(pk, {"type": "reload", "reason": "rewound"})
            if marks.last_seq > self._hub.lowest_reached(pk):
                await self._publish_rows(pk)
            if marks.window != self._windows.setdefault(pk, marks.window):
                self._windows[pk] = marks.window
                mark = await self._readers.read(read_window_mark, pk)
                self._hub.publish(pk, window_frame(mark))
            if self._own.execution_of(pk) is not None:
                continue  # what was read is older than what it announces
            await self._publish_run(pk, runs.get(pk))
        # Any process may queue and withdraw messages, also where this one answers.
        for pk in sessions:
            if queues.get(pk, []) != self._hub.queues.get(pk, []):
                # Read anew: since the first look this process may have told of what is newer.
                waiting = await self._readers.read(queued_messages, pk)
                if waiting != self._hub.queues.get(pk, []):
                    # The author's page takes a withdrawn message back from the queue that it shows,
                    # when it gets the row.
                    await self._publish_rows(pk)
                    self._hub.publish(pk, queue_frame(waiting))

    async def _publish_rows(self, pk: int) -> None:
        reached = self._hub.lowest_reached(pk)
        rows = await self._readers.read(
            read_live_rows, pk, after_seq=reached, limit=MAX_MISSED_ROWS
        )
        self._foreign.pop(pk, None)
        if rows and rows[-1].seq > self._hub.lowest_reached(pk):  # not relayed meanwhile
            run, *_ = self._running.get(pk, ("",))
            self._hub.publish(pk, rows_frame(rows, ends_draft=str(run)))

    def _read(
        self, sessions: list[int], others: list[int]
    ) -> tuple[dict[int, SessionMarks], list[ActiveRun], dict[int, list[dict[str, Any]]]]:
        marks, queues = read_session_marks(sessions), queued_messages_of(sessions)
        if not others:
            return marks, [], queues
        runs = active_runs(stale_seconds=self._options.stale_after, session_pks=others)
        return marks, runs, queues

    def record_shown_names(self, pk: int, names: list[Frame]) -> None:
        """A page was told these; what differs from them afterwards is new."""
        self._names.setdefault(pk, names)

    def record_rewinds(self, pk: int, count: int) -> None:
        """This process rewound, and tells the pages itself."""
        self._rewinds[pk] = max(count, self._rewinds.get(pk, 0))

    async def _publish_run(self, pk: int, run: ActiveRun | None) -> None:
        if run is None or (self._own.is_orphan(run) and run.state == RUNNING):
            if self._running.pop(pk, None) is not None:
                self._foreign.pop(pk, None)
                self._hub.publish(pk, active_frame(None))
            return
        if self._own.owns(run):
            return  # it has just begun here, and announces itself
        if self._running.get(pk) != (run.run, run.state, run.note):
            self._running[pk] = (run.run, run.state, run.note)
            self._hub.publish(pk, active_frame(run))
        if self._relay.is_connected:
            self._foreign.pop(pk, None)
            return  # its deltas come through the relay
        foreign = self._foreign.get(pk)
        is_new = foreign is None or foreign.run != str(run.run)
        if foreign is None or is_new:
            foreign = self._foreign[pk] = _ForeignRun(str(run.run))
        chunks = await self._readers.read(read_draft, run.run_pk, after_ordinal=foreign.ordinal)
        for chunk in chunks:
            foreign.ordinal = chunk.ordinal
            part = foreign.parts.get(chunk.part)
            if part is None:
                part = foreign.start_part(chunk.kind, number=chunk.part)
            part.feed(chunk.text)
        frames = foreign.take_frames()
        # A page may have a part of it by the relay.
        for frame in foreign.snapshots() if is_new else frames:
            self._hub.publish(pk, frame)

    def snapshots(self, pk: int) -> list[Frame]:
        """What is mirrored of another process's answer, for a page that comes now."""
        foreign = self._foreign.get(pk)
        return foreign.snapshots() if foreign else []


LOOK_INTERVAL_SECONDS = 2.0  # For turns without entries. A search does not wait for it.

# What one transaction stores, and how long others then have the database.
TURNS_AT_ONCE, PAUSE_SECONDS = 10, 0.02

MERGES_AT_ONCE = 50

# Then merging no longer waits for a quiet moment. A step that meets a very common word in a large
# index takes a tenth of a second instead of milliseconds.
MAX_UNMERGED_BATCHES = 200


class IndexWorker:
    """Keeps the search index warm, when there is nothing better to do.

    Entries are made on a reader's thread; storing a few at a time takes the writer's thread for
    milliseconds, so no append waits for more than that. Processes that share a database may do
    the same work twice, never wrongly.
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
        """Index what is waiting. False: nothing was, but for sessions that failed lately."""
        found: list[IndexProgress] = await self._database.readers.read(sessions_to_index)
        waiting = [progress for progress in found if not is_suspended(progress.session_pk)]
        for progress in waiting:
            try:
                await self._index(progress)
            except Exception as error:
                if is_storage_error(error):
                    raise
                suspend_session(progress.session_pk, error)
        return bool(waiting)

    async def _index(self, progress: IndexProgress) -> None:
        at: IndexProgress | None = progress
        while at is not None and at.waiting > 0:
            batch = await self._database.readers.read(prepare_batch, at, size=TURNS_AT_ONCE)
            at = await self._database.writer.write(store_batch, batch)
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


# How long a vector waits for the end of the answers, and between two looks.
MAX_BUSY_SECONDS, BUSY_STEP_SECONDS = 1.0, 0.1

LOW_PRIORITY = 10  # What the thread adds to its niceness, on Linux, where each has its own.


class EmbeddingWorker:
    """Gives turns their vectors, after their words were indexed.

    A vector takes a processor 20 ms. The thread that makes them has a low priority and rests as
    long as it worked, so that it takes half of one processor at most. While this process answers
    (``is_busy``), it makes no more than a vector a second.
    """

    def __init__(self, database: Database, *, is_busy: Callable[[], bool] = lambda: False) -> None:
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
                # The thread holds the interpreter's lock while it computes, and with its low
                # priority it may be made to wait with it: every answer would wait too.
                await self._wait_while_busy()
                begin = time.monotonic()
                vectors += await loop.run_in_executor(self._thread, embed_texts, [text])
                await asyncio.sleep(max(PAUSE_SECONDS, time.monotonic() - begin))
            await self._database.writer.write(store_embeddings, batch, vectors)

    async def _wait_while_busy(self) -> None:
        waited = 0.0
        while self._is_busy() and waited < MAX_BUSY_SECONDS:
            await asyncio.sleep(BUSY_STEP_SECONDS)
            waited += BUSY_STEP_SECONDS


def _lower_priority() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
