"""The base of all runs: how a run begins, is stopped and ends, whatever it writes."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, process_time
from typing import Any

from conversations.agent.mcp.servers import ToolServers
from conversations.archive.append import AppendResult, Row
from conversations.archive.runs import ClaimedRun, is_stop_requested
from conversations.domain import runs as states
from conversations.domain.errors import ProviderError
from conversations.domain.stream import MessageCompleted, Usage
from conversations.domain.text import estimate_tokens
from conversations.domain.tool_calls import ToolScope
from conversations.models import ModelCall
from conversations.providers.model_limits import find_cost

from .database import Database, RetryingWriter
from .drafts import DraftWorker, LiveAnswer, LiveCalls
from .model_routing import ModelRouter
from .options import RuntimeOptions
from .program_tools import ProgramTools
from .publish import Frame, Publisher, rows_frame, state_frame

FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.5, 30.0  # Pauses before the provider is tried again

OUTPUT_INTERVAL_SECONDS = 0.04  # Interval of frames while the output of tool calls waits


# Frames of a running answer are sent at once as long as the processor has time for them.
SAMPLE_SECONDS = 0.1
# Shares of one core, because one thread at a time runs Python. Above the maximum, frames are held
# back longer; below the low share, the delay shrinks again. The other work of answers (pages,
# commits) needs the rest of the core.
MAX_CPU_SHARE, LOW_CPU_SHARE = 0.85, 0.65
FIRST_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.005, 0.2


class FrameThrottle:
    """A delay between frames that grows with the load of the processor.

    ``shortest`` is the least number of seconds between two frames of an answer.
    """

    def __init__(
        self,
        *,
        shortest: float,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = process_time,
    ) -> None:
        self._shortest = shortest
        self._clock, self._cpu_clock = clock, cpu_clock
        self._delay = 0.0  # because of the load
        self._sampled_at, self._cpu_used = clock(), cpu_clock()

    def interval(self) -> float:
        """Return the seconds from one frame of an answer to the next."""
        now = self._clock()
        elapsed = now - self._sampled_at
        if elapsed >= SAMPLE_SECONDS:
            cpu_used = self._cpu_clock()
            share = (cpu_used - self._cpu_used) / elapsed
            self._sampled_at, self._cpu_used = now, cpu_used
            if share > MAX_CPU_SHARE:
                longer = max(FIRST_INTERVAL_SECONDS, 1.5 * self._delay)
                self._delay = min(MAX_INTERVAL_SECONDS, longer)
            elif share < LOW_CPU_SHARE and self._delay > FIRST_INTERVAL_SECONDS:
                self._delay /= 1.5
            elif share < LOW_CPU_SHARE:
                self._delay = 0.0
        return max(self._shortest, self._delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The services of the process that a run uses.

    ``offered`` caches the JSON of the product's tools by scope, for windows without other tools.
    """

    options: RuntimeOptions
    database: Database
    models: ModelRouter
    publisher: Publisher
    drafts: DraftWorker
    tool_servers: ToolServers
    program_tools: ProgramTools
    throttle: FrameThrottle
    offered: dict[ToolScope, str] = field(default_factory=dict)


class Execution:
    """One run in this process. ``stop`` ends it early.

    ``writer`` waits while the disk is full. ``may_need_summary`` says that the window may have to
    be summarised after the run.
    """

    may_need_summary = False

    def __init__(self, context: RunContext, claimed: ClaimedRun) -> None:
        self.claimed = claimed
        self.run = str(claimed.run)
        self.live = LiveAnswer(self.run)
        self.calls = LiveCalls(self.run)
        self.writer: RetryingWriter = context.database.retrying_writer
        self.state = states.RUNNING
        self.note = ""
        self.doing = ""
        self.context = context
        self._started = monotonic()
        # seconds spent waiting for a person; when the current wait began
        self._waited, self._waits_since = 0.0, 0.0
        self._stop = asyncio.Event()
        self._process_ends = self._is_stopped = self._is_ended_by_person = False
        self._ordinal = 0
        self._commits: set[asyncio.Task[Any]] = set()
        self._flush_handle: asyncio.TimerHandle | None = None
        self._last_flush = 0.0

    async def execute(self) -> bool:
        """Do the work until it ends or is stopped, then write the end of the run.

        Return whether another run of the session may wait.
        """
        raise NotImplementedError

    def stop(self) -> None:
        self._is_stopped = True
        self._stop.set()

    def shut_down(self, *, by_person: bool = False) -> None:
        """End the run because the process ends.

        The run is interrupted, or stopped if a person has ended the process. A run that waits for a
        person is not ended; another process continues it.
        """
        self._process_ends, self._is_ended_by_person = True, by_person
        self._stop.set()

    async def _ends_only_with_process(self) -> bool:
        """Return whether the run ends only because the process does.

        A person may have stopped the run as well, perhaps through another process just before this
        one ends. The run then needs no notice of an interruption.
        """
        if not self._process_ends or self._is_stopped:
            return False
        return not await self.context.database.readers.read(is_stop_requested, self.claimed.run_pk)

    async def notify_decisions(self) -> None:
        """Handle that a person has decided about a tool call or has asked for its end."""

    @property
    def elapsed_ms(self) -> int:
        return int((monotonic() - self._started) * 1000)

    @property
    def worked_ms(self) -> int:
        """Elapsed milliseconds without the time spent waiting for a person."""
        waiting = monotonic() - self._waits_since if self._waits_since else 0
        return self.elapsed_ms - int((self._waited + waiting) * 1000)

    def _measure_waiting(self, state: str) -> None:
        if self._waits_since:
            self._waited += monotonic() - self._waits_since
        self._waits_since = monotonic() if state == states.WAITING_APPROVAL else 0.0

    async def _run_until_stopped[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run the work in a task of its own, so that a stop cancels that task alone."""
        self._publish(self.state_frame())
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
        return task

    def record(
        self,
        message: MessageCompleted | None,
        *,
        model: str,
        usage: Usage | None = None,
        answered_as: str = "",
        lifetime: str = "5m",
        **fields: Any,
    ) -> ModelCall:
        """Return the record of a model call and advance the ordinal for the next one.

        ``message`` is the answer, if there was one. ``usage`` and ``answered_as`` are used for a
        call without an answer. ``lifetime`` is that of the cache. ``fields`` are further fields of
        the record.
        """
        usage = message.usage if message else usage or Usage()
        answered_as = message.answered_as if message else answered_as
        model = (message.model if message else "") or model
        self._ordinal += 1
        return ModelCall(
            ordinal=self._ordinal - 1,
            model=model[:120],
            message_id=(message.message_id if message else "")[:128],
            stop_reason=(message.stop_reason if message else "")[:64],
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_microusd=find_cost(
                self.context.options.prices,
                model,
                usage,
                answered_as=answered_as,
                lifetime=lifetime,
            ),
            **fields,
        )

    async def commit[A: AppendResult](self, work: Coroutine[Any, Any, A]) -> A:
        """Complete a commit even if the run is stopped meanwhile, and show its rows."""

        async def commit() -> A:
            appended = await work
            self.flush()
            self.live.clear()
            self._publish(rows_frame(appended.rows, ends_draft=self.run))
            return appended

        return await asyncio.shield(self.track(asyncio.create_task(commit())))

    def track[T](self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Make the end of the run wait for this task."""
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return task

    # Frames for the pages of the session.

    def _publish(self, frame: Frame) -> None:
        self.context.publisher.publish(self.claimed.session_pk, frame)

    def state_frame(self) -> Frame:
        return state_frame(
            run_state=self.state,
            run=self.run,
            note=self.note,
            elapsed_ms=self.elapsed_ms,
            doing=self.doing,
        )

    def show_state(self, state: str, *, doing: str = "") -> None:
        if (state, doing) != (self.state, self.doing):
            self._measure_waiting(state)
            self.state, self.doing = state, doing
            self._publish(self.state_frame())

    def show_rows(self, rows: Sequence[Row]) -> None:
        self.context.publisher.publish_rows(self.claimed.session_pk, rows)

    def snapshots(self) -> list[Frame]:
        """Return the draft and the output of running calls so far, for a page that connects."""
        self.flush()
        return self.live.snapshots() + self.calls.snapshots()

    def show_soon(self, *, interval: float = 0.0) -> None:
        """Schedule a frame for a change of the draft or of a tool call.

        All changes until the next frame is due are sent together. ``interval`` is the least number
        of seconds after the last frame.
        """
        publisher = self.context.publisher
        if self._flush_handle is not None or not publisher.is_watched(self.claimed.session_pk):
            return
        loop = asyncio.get_running_loop()
        interval = max(interval, self.context.throttle.interval())
        wait = self._last_flush + interval - loop.time()
        self._flush_handle = loop.call_later(max(0.0, wait), self._flush_some)

    def _flush_some(self) -> None:
        """Send what has changed, except tool output that would flood the pages."""
        self.flush(at_once=False)
        if self.calls.dirty:
            self.show_soon(interval=OUTPUT_INTERVAL_SECONDS)

    def flush(self, *, at_once: bool = True) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        self._last_flush = asyncio.get_running_loop().time()
        for frame in (*self.live.take_frames(), *self.calls.take_frames(at_once=at_once)):
            self._publish(frame)


def usage_so_far(reported: Usage | None, *, estimated: int, texts: Iterable[str]) -> Usage:
    """Return the usage of a call that ended early, as reported or else estimated."""
    if reported is None:
        return Usage()
    return replace(
        reported,
        input_tokens=estimated if reported.input_tokens is None else reported.input_tokens,
        output_tokens=max(reported.output_tokens or 0, sum(map(estimate_tokens, texts))),
    )


def wait_before_try(error: ProviderError, tries: int) -> float:
    """Return the seconds that the provider asks for, or a delay that grows with each try."""
    if error.retry_after is not None:
        return error.retry_after
    # The random factor spreads the retries of runs that failed at the same moment.
    return min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (tries - 1)) * random.uniform(0.8, 1.2)
