"""Seeing what other processes write, for the pages that this one serves.

One query for all watched sessions, twice a second: new rows, runs of other
processes, their drafts. It also heals any gap that a relay may leave.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from conversations.archive.journal import Chunk, read_draft
from conversations.archive.messages import QueuedMessage, queued_messages_of
from conversations.archive.model_calls import read_window_mark
from conversations.archive.runs import ActiveRun, active_runs
from conversations.archive.transcript import SessionMarks, read_live_rows, read_session_marks
from conversations.domain.runs import RUNNING

from .database import Readers
from .frames import Frame, active_frame, idle_frame, queue_frame, rows_frame, window_frame
from .live import LiveAnswer, LiveBlock
from .options import RuntimeOptions
from .publish import Hub


class OwnRuns(Protocol):
    """What is known of the runs of this process."""

    def execution_of(self, session_pk: int) -> object | None: ...

    def is_orphan(self, run: ActiveRun) -> bool: ...


@dataclass(slots=True)
class _Foreign:
    """A run of another process, mirrored from its draft chunks."""

    live: LiveAnswer
    parts: dict[int, LiveBlock]
    ordinal: int = -1


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look at the database found."""

    marks: dict[int, SessionMarks]
    runs: dict[int, ActiveRun]
    queues: dict[int, list[QueuedMessage]]


_NO_MARKS = SessionMarks(last_seq=0, rewinds=0, window=(0, 0, 0))
"""Of a session that is gone."""


class Watcher:
    def __init__(self, options: RuntimeOptions, readers: Readers, hub: Hub, own: OwnRuns) -> None:
        self._options = options
        self._readers = readers
        self._hub = hub
        self._own = own
        self._foreign: dict[int, _Foreign] = {}
        self._rewinds: dict[int, int] = {}
        self._windows: dict[int, tuple[int, int, int]] = {}
        self._queues: dict[int, list[QueuedMessage]] = {}
        self._running: dict[int, tuple[UUID, str, str]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._options.watch_interval)
            sessions = [pk for pk in self._hub.watched() if self._own.execution_of(pk) is None]
            self._forget_unwatched()
            if sessions:
                await self._look(sessions)

    def _forget_unwatched(self) -> None:
        caches: tuple[dict[int, Any], ...] = (
            self._foreign,
            self._rewinds,
            self._windows,
            self._queues,
            self._running,
        )
        for known in caches:
            for pk in [pk for pk in known if not self._hub.is_watched(pk)]:
                del known[pk]

    async def _look(self, sessions: list[int]) -> None:
        seen = await self._readers.read(self._read, sessions)
        for pk in sessions:
            if self._own.execution_of(pk) is not None:
                continue  # it began meanwhile, and announces itself
            marks = seen.marks.get(pk, _NO_MARKS)
            self._publish_rewinds(pk, marks.rewinds)
            await self._publish_rows(pk, marks.last_seq)
            await self._publish_window(pk, marks.window)
            if self._own.execution_of(pk) is not None:
                continue  # what was read is older than what it announces
            self._publish_queue(pk, seen.queues.get(pk, []))
            await self._publish_run(pk, seen.runs.get(pk))

    def _read(self, sessions: list[int]) -> _Seen:
        runs = active_runs(stale_seconds=self._options.stale_after, session_pks=sessions)
        return _Seen(
            marks=read_session_marks(sessions),
            runs={run.session_pk: run for run in runs},
            queues=queued_messages_of(sessions),
        )

    def record_rewinds(self, pk: int, count: int) -> None:
        """This process rewound, and tells the pages itself."""
        self._rewinds[pk] = max(count, self._rewinds.get(pk, 0))

    def _publish_rewinds(self, pk: int, count: int) -> None:
        """Another process rewound: which rows is for the page itself to show."""
        known = self._rewinds.setdefault(pk, count)
        if count > known:
            self._rewinds[pk] = count
            self._hub.publish(pk, {"type": "reload", "reason": "rewound"})

    async def _publish_rows(self, pk: int, last_seq: int) -> None:
        reached = self._hub.lowest_reached(pk)
        if last_seq <= reached:
            return
        rows = await self._readers.read(read_live_rows, pk, after_seq=reached, limit=500)
        ended = self._foreign.pop(pk, None)
        self._hub.publish(pk, rows_frame(rows, ends_draft=ended.live.run if ended else ""))

    async def _publish_window(self, pk: int, window: tuple[int, int, int]) -> None:
        if window != self._windows.setdefault(pk, window):
            self._windows[pk] = window
            mark = await self._readers.read(read_window_mark, pk)
            self._hub.publish(pk, window_frame(mark))

    def _publish_queue(self, pk: int, waiting: list[QueuedMessage]) -> None:
        if waiting != self._queues.get(pk, []):
            self._hub.publish(pk, queue_frame(waiting))
        self._queues[pk] = waiting

    async def _publish_run(self, pk: int, run: ActiveRun | None) -> None:
        if run is None or (self._own.is_orphan(run) and run.state == RUNNING):
            if self._running.pop(pk, None) is not None:
                self._foreign.pop(pk, None)
                self._hub.publish(pk, idle_frame())
            return
        if self._running.get(pk) != (run.run, run.state, run.note):
            self._running[pk] = (run.run, run.state, run.note)
            self._hub.publish(pk, active_frame(run))
        if self._options.redis_url:
            return  # its deltas come through the relay
        foreign = self._foreign.get(pk)
        if foreign is None or foreign.live.run != str(run.run):
            foreign = self._foreign[pk] = _Foreign(LiveAnswer(str(run.run)), {})
        for chunk in await self._readers.read(
            read_draft, run.run_pk, after_ordinal=foreign.ordinal
        ):
            self._feed(foreign, chunk)
        for frame in foreign.live.take_frames():
            self._hub.publish(pk, frame)

    def snapshots(self, pk: int) -> list[Frame]:
        """What is mirrored of another process's answer, for a page that comes now."""
        foreign = self._foreign.get(pk)
        return foreign.live.snapshots() if foreign else []

    def _feed(self, foreign: _Foreign, chunk: Chunk) -> None:
        foreign.ordinal = chunk.ordinal
        part = foreign.parts.get(chunk.part)
        if part is None:
            part = foreign.live.start_part(chunk.kind, number=chunk.part)
            foreign.parts[chunk.part] = part
        foreign.live.feed(part, chunk.text)
