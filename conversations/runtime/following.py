"""Following the output of a run or a session, for programs: from any position, and live.

Everything that is sent is on disk. A follower therefore gets the same events whichever process
executes the run, no event is ever taken back, and a follower that connects again continues where it
left off. The hub says when to read. The work of other processes is found by reading at intervals.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import monotonic

from conversations.archive.journal import walk_events
from conversations.archive.rewinds import read_rewinds
from conversations.archive.run_transcript import (
    PAGE_ROWS,
    Draft,
    add_chunks,
    draft_parts,
    read_run,
    read_run_progress,
    read_stream_rows,
)
from conversations.archive.runs import read_run_state
from conversations.domain.run_transcript import (
    END,
    REWOUND,
    ROW,
    RunTranscriptReader,
    StreamCursor,
    StreamEvent,
)
from conversations.domain.runs import FINAL_STATES
from conversations.domain.text import storable
from conversations.models import DraftChunk, Rewind, Run

from .database import wait_for_database
from .publish import Listener
from .service import Runtime

END_ID = "end"

# The fields of a rewind that programs get.
REWIND_COLUMNS = ("from_turn", "to_turn", "from_seq", "to_seq", "back_to", "reason", "created_at")

LOOK_INTERVAL_SECONDS = 5.0  # Delay until a change is seen of which the hub does not notify

POLL_SECONDS = 0.15


class Reader:
    """A reader that continues from its position.

    ``has_more`` says that more can be read at once, ``has_ended`` that no more events can come.
    With ``of_drafts``, it accepts chunks of a draft that are on disk, or returns None if it has to
    read.
    """

    of_drafts = has_more = has_ended = False

    def read_on(self) -> list[StreamEvent]:
        raise NotImplementedError

    def take_chunks(self, chunks: Sequence[DraftChunk]) -> list[StreamEvent] | None:
        return []


class RunReader(Reader):
    """Reads the output of a run from a position (see ``domain.run_transcript``)."""

    of_drafts = True

    def __init__(self, run_pk: int, cursor: StreamCursor) -> None:
        self._run_pk = run_pk
        self._transcript = RunTranscriptReader(cursor)
        self._reached = 0
        self._has_all_rows = False
        self._draft: Draft = {}
        self._ordinal = -1

    def read_on(self) -> list[StreamEvent]:
        progress = read_run_progress(self._run_pk, after_ordinal=self._ordinal)
        self.has_more = False
        if progress.last_seq > self._reached and not self._has_all_rows:
            rows, self._reached, self._has_all_rows = read_stream_rows(
                progress.run,
                after=self._transcript.place.row,
                reached=self._reached,
                last_seq=progress.last_seq,
            )
            self.has_more = bool(rows) or self._reached < progress.last_seq
            if self.has_more:  # the draft read so far may belong to another answer
                self._draft, self._ordinal = {}, -1
                return list(self._transcript.events_of_rows(rows))
        if self._has_all_rows or progress.run.is_over:
            self.has_ended = True
            run = progress.run
            end = {"run": str(run.uuid), "state": run.state, "error_code": run.error_code}
            return [StreamEvent(END_ID, END, end)]
        add_chunks(self._draft, progress.chunks)
        self._ordinal = max((chunk[0] for chunk in progress.chunks), default=self._ordinal)
        return list(self._transcript.events_of_answer(draft_parts(self._draft), is_whole=False))

    def take_chunks(self, chunks: Sequence[DraftChunk]) -> list[StreamEvent] | None:
        """Return the events of these chunks, or None if the draft has to be read.

        That is the case if a chunk before them is missing, or if they belong to another answer.
        """
        for chunk in chunks:
            if chunk.run_id != self._run_pk or chunk.ordinal <= self._ordinal:
                continue
            if chunk.ordinal != self._ordinal + 1:
                return None
            self._ordinal = chunk.ordinal
            add_chunks(self._draft, [(chunk.ordinal, chunk.part, chunk.kind, storable(chunk.text))])
        return list(self._transcript.events_of_answer(draft_parts(self._draft), is_whole=False))


class SessionReader(Reader):
    """Reads the journal of a session from a position, row by row.

    A rewind comes after the row that was the last one when the rewind was made.
    """

    def __init__(self, session_pk: int, cursor: StreamCursor) -> None:
        self._session_pk = session_pk
        self._cursor = cursor

    def read_on(self) -> list[StreamEvent]:
        # Rows are read first, because a rewind made after that comes after all of them.
        rows = walk_events(self._session_pk, start=self._cursor.row, limit=PAGE_ROWS)
        self.has_more = len(rows) == PAGE_ROWS
        last = rows[-1].seq if rows else self._cursor.row
        rewinds = read_rewinds(self._session_pk, from_seq=self._cursor.row, to_seq=last)
        rewinds_by_seq: dict[int, list[Rewind]] = {}
        for rewind in rewinds:
            rewinds_by_seq.setdefault(rewind.to_seq, []).append(rewind)
        events = self._rewind_events(rewinds_by_seq)
        for row in rows:
            self._cursor = StreamCursor(row.seq)
            events.append(StreamEvent(str(self._cursor), ROW, row.as_data()))
            events += self._rewind_events(rewinds_by_seq)
        return events

    def _rewind_events(self, rewinds_by_seq: dict[int, list[Rewind]]) -> list[StreamEvent]:
        """Return the events of the rewinds after the current row that were not sent yet."""
        events, row, sent = [], self._cursor.row, self._cursor.part
        for number, rewind in enumerate(rewinds_by_seq.get(row, [])[sent:], sent + 1):
            self._cursor = StreamCursor(row, number)
            data = {name: getattr(rewind, name) for name in REWIND_COLUMNS}
            events.append(StreamEvent(str(self._cursor), REWOUND, data))
        return events


async def follow(
    runtime: Runtime, session_pk: int, reader: Reader, *, heartbeat: float
) -> AsyncGenerator[StreamEvent | None]:
    """Yield the reader's events until it ends or the process does.

    None is yielded whenever no event has come for ``heartbeat`` seconds.
    """
    with runtime.hub.listening(Listener(session_pk, of_drafts=reader.of_drafts)) as listener:
        yielded_at = monotonic()
        while not listener.is_closed:
            chunks = None if reader.has_more else listener.take_chunks()
            events = None if chunks is None else reader.take_chunks(chunks)
            if events is None:
                events = await runtime.readers.read(reader.read_on)
            for event in events:
                yield event
                yielded_at = monotonic()
            if reader.has_ended:
                return
            if reader.has_more:
                continue
            await listener.wait(
                _wait_seconds(runtime, session_pk, yielded_at + heartbeat - monotonic())
            )
            if monotonic() >= yielded_at + heartbeat:
                yield None
                yielded_at = monotonic()


async def wait_for_end(runtime: Runtime, run: Run, *, seconds: float) -> bool:
    """Return whether the run ends within ``seconds``, whichever process executes it."""
    wait_for_database(runtime.options.database_wait)
    end = monotonic() + seconds
    with runtime.hub.listening(Listener(run.session_id, of_drafts=False)) as listener:
        while True:
            listener.take_chunks()  # reset before reading: a change during it causes another read
            if (await runtime.readers.read(read_run, run.pk)).is_over:
                return True
            if listener.is_closed or monotonic() >= end:
                return False
            await listener.wait(_wait_seconds(runtime, run.session_id, end - monotonic()))


def _wait_seconds(runtime: Runtime, session_pk: int, seconds: float) -> float:
    """Return the seconds until the next read, fewer if this process does not execute the run."""
    is_ours = runtime.queue.execution_of(session_pk) is not None
    max_seconds = LOOK_INTERVAL_SECONDS if is_ours else runtime.options.watch_interval
    return max(0.0, min(seconds, max_seconds))


async def wait_for_final_state(runtime: Runtime, *, session_pk: int, run_pk: int) -> str:
    """Return the final state of a run, whichever process executes it.

    If that process is gone, this one takes the session over.
    """
    wait_for_database(runtime.options.database_wait)
    while True:
        await runtime.queue.wait_run_ended(session_pk)
        state = await runtime.readers.read(read_run_state, run_pk)
        if state in FINAL_STATES:
            return state
        await asyncio.sleep(POLL_SECONDS)
        await runtime.queue.recover(session_pk=session_pk)
        runtime.queue.begin(session_pk)
