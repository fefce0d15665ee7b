"""Following what a session says, for programs: from any place on, and live.

What is told is on disk, always. So it is the same whichever process carries out the run,
nothing that was told is ever taken back, and who comes again goes on where it was. The
hub says when to look; where another process writes, it is looked at now and then.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
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

# What programs are told of a rewind.
REWIND_COLUMNS = ("from_turn", "to_turn", "from_seq", "to_seq", "back_to", "reason", "created_at")

LOOK_INTERVAL_SECONDS = 5.0  # What this process is not told of stays unseen so long

POLL_SECONDS = 0.15


class Reader:
    """Reads on from where it is; ``has_more``: there is more at once, ``has_ended``:
    nothing can come. ``of_drafts``: it can take pieces of a draft that are on disk, or give
    None when it has to read."""

    of_drafts = has_more = has_ended = False

    def read_on(self) -> list[StreamEvent]:
        raise NotImplementedError

    def take_chunks(self, chunks: Sequence[DraftChunk]) -> list[StreamEvent] | None:
        return []


class RunReader(Reader):
    """Reads what a run says, from a place on (see ``domain.run_transcript``)."""

    of_drafts = True

    def __init__(self, run_pk: int, place: StreamCursor) -> None:
        self._run_pk = run_pk
        self._transcript = RunTranscriptReader(place)
        self._reached = 0
        self._has_all_rows = False
        self._draft: Draft = {}
        self._ordinal = -1

    def read_on(self) -> list[StreamEvent]:
        moment = read_run_progress(self._run_pk, after_ordinal=self._ordinal)
        self.has_more = False
        if moment.last_seq > self._reached and not self._has_all_rows:
            rows, self._reached, self._has_all_rows = read_stream_rows(
                moment.run,
                after=self._transcript.place.row,
                reached=self._reached,
                last_seq=moment.last_seq,
            )
            self.has_more = bool(rows) or self._reached < moment.last_seq
            if self.has_more:  # the draft that was read may be of another answer
                self._draft, self._ordinal = {}, -1
                return list(self._transcript.events_of_rows(rows))
        if self._has_all_rows or moment.run.is_over:
            self.has_ended = True
            run = moment.run
            end = {"run": str(run.uuid), "state": run.state, "error_code": run.error_code}
            return [StreamEvent(END_ID, END, end)]
        add_chunks(self._draft, moment.chunks)
        self._ordinal = max((chunk[0] for chunk in moment.chunks), default=self._ordinal)
        return list(self._transcript.events_of_answer(draft_parts(self._draft), is_whole=False))

    def take_chunks(self, chunks: Sequence[DraftChunk]) -> list[StreamEvent] | None:
        """What follows of the draft. None: a piece is missing, or there was another answer
        before these."""
        for chunk in chunks:
            if chunk.run_id != self._run_pk or chunk.ordinal <= self._ordinal:
                continue
            if chunk.ordinal != self._ordinal + 1:
                return None
            self._ordinal = chunk.ordinal
            add_chunks(self._draft, [(chunk.ordinal, chunk.part, chunk.kind, storable(chunk.text))])
        return list(self._transcript.events_of_answer(draft_parts(self._draft), is_whole=False))


class SessionReader(Reader):
    """Reads the journal of a session from a place on, row by row. A rewind stands after
    the row that was the last one when it was made."""

    def __init__(self, session_pk: int, place: StreamCursor) -> None:
        self._session_pk = session_pk
        self._place = place

    def read_on(self) -> list[StreamEvent]:
        # The rows first: a rewind that comes later stands after all of them.
        rows = walk_events(self._session_pk, start=self._place.row, limit=PAGE_ROWS)
        self.has_more = len(rows) == PAGE_ROWS
        last = rows[-1].seq if rows else self._place.row
        rewinds = read_rewinds(self._session_pk, from_seq=self._place.row, to_seq=last)
        made = {seq: list(some) for seq, some in groupby(rewinds, key=lambda one: one.to_seq)}
        events = self._rewind_events(made)
        for row in rows:
            self._place = StreamCursor(row.seq)
            events.append(StreamEvent(str(self._place), ROW, row.as_data()))
            events += self._rewind_events(made)
        return events

    def _rewind_events(self, made: dict[int, list[Rewind]]) -> list[StreamEvent]:
        """Those after the row where it is, which were not told of."""
        events, row, told = [], self._place.row, self._place.part
        for number, rewind in enumerate(made.get(row, [])[told:], told + 1):
            self._place = StreamCursor(row, number)
            told_of = {name: getattr(rewind, name) for name in REWIND_COLUMNS}
            events.append(StreamEvent(str(self._place), REWOUND, told_of))
        return events


async def follow(
    runtime: Runtime, session_pk: int, reader: Reader, *, heartbeat: float
) -> AsyncGenerator[StreamEvent | None]:
    """What the reader finds, until it ends or the process does. None: nothing has come
    for ``heartbeat`` seconds."""
    with runtime.hub.listening(Listener(session_pk, of_drafts=reader.of_drafts)) as listener:
        told_at = monotonic()
        while not listener.is_closed:
            chunks = None if reader.has_more else listener.take_chunks()
            events = None if chunks is None else reader.take_chunks(chunks)
            if events is None:
                events = await runtime.readers.read(reader.read_on)
            for event in events:
                yield event
                told_at = monotonic()
            if reader.has_ended:
                return
            if reader.has_more:
                continue
            await listener.wait(
                _wait_seconds(runtime, session_pk, told_at + heartbeat - monotonic())
            )
            if monotonic() >= told_at + heartbeat:
                yield None
                told_at = monotonic()


async def wait_for_end(runtime: Runtime, run: Run, *, seconds: float) -> bool:
    """Whether the run has ended within so many seconds, in whatever process."""
    wait_for_database(runtime.options.database_wait)
    end = monotonic() + seconds
    with runtime.hub.listening(Listener(run.session_id, of_drafts=False)) as listener:
        while True:
            listener.take_chunks()  # before it is read: what comes meanwhile is read again
            if (await runtime.readers.read(read_run, run.pk)).is_over:
                return True
            if listener.is_closed or monotonic() >= end:
                return False
            await listener.wait(_wait_seconds(runtime, run.session_id, end - monotonic()))


def _wait_seconds(runtime: Runtime, session_pk: int, seconds: float) -> float:
    """What this process does is heard of; for another one's work it has to look."""
    is_ours = runtime.queue.execution_of(session_pk) is not None
    most = LOOK_INTERVAL_SECONDS if is_ours else runtime.options.watch_interval
    return max(0.0, min(seconds, most))


async def wait_for_final_state(runtime: Runtime, *, session_pk: int, run_pk: int) -> str:
    """The last state of a run, whichever process carries it out. Where that is gone, this one
    takes over."""
    wait_for_database(runtime.options.database_wait)
    while True:
        await runtime.queue.wait_run_ended(session_pk)
        state = await runtime.readers.read(read_run_state, run_pk)
        if state in FINAL_STATES:
            return state
        await asyncio.sleep(POLL_SECONDS)
        await runtime.queue.recover(session_pk=session_pk)
        runtime.queue.begin(session_pk)
