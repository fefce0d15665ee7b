"""What every run has in common, whatever it writes: a beginning, a stop, an end."""

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

FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.5, 30.0  # Before a further try of the provider.

OUTPUT_INTERVAL_SECONDS = 0.04  # A call's output may be a flood


# How often pages are told of a running answer: at once, while the processor has time.
SAMPLE_SECONDS = 0.1
# Of one core, as one thread at a time runs Python. Above it frames are held together, below
# it less and less: what answers need beside that (pages, commits) has the rest.
MAX_CPU_SHARE, LOW_CPU_SHARE = 0.85, 0.65
FIRST_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 0.005, 0.2


class FrameThrottle:
    """``shortest`` is the least number of seconds between two frames of an answer."""

    def __init__(
        self,
        *,
        shortest: float,
        clock: Callable[[], float] = monotonic,
        cpu_clock: Callable[[], float] = process_time,
    ) -> None:
        self._shortest = shortest
        self._clock, self._cpu_clock = clock, cpu_clock
        self._added = 0.0
        self._sampled, self._used = clock(), cpu_clock()

    def interval(self) -> float:
        """Seconds from one frame of an answer to its next."""
        now = self._clock()
        if (elapsed := now - self._sampled) >= SAMPLE_SECONDS:
            used = self._cpu_clock()
            share = (used - self._used) / elapsed
            self._sampled, self._used = now, used
            if share > MAX_CPU_SHARE:
                self._added = min(
                    MAX_INTERVAL_SECONDS, max(FIRST_INTERVAL_SECONDS, 1.5 * self._added)
                )
            elif share < LOW_CPU_SHARE:
                self._added = self._added / 1.5 if self._added > FIRST_INTERVAL_SECONDS else 0.0
        return max(self._shortest, self._added)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the process has for a run. ``offered`` says what tools the model is told of where
    there are no others than the product's."""

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
    """One run in this process. ``stop`` ends it early; ``writer`` waits while the disk is full.
    ``may_need_summary``: the window may have to be summarised after it."""

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
        self._context = context
        self._started = monotonic()
        self._waited, self._waits_since = 0.0, 0.0  # seconds for a person; since when
        self._stop = asyncio.Event()
        self._is_left = self._is_stopped = self._is_ended_by_person = False
        self._ordinal = 0
        self._commits: set[asyncio.Task[Any]] = set()
        self._flush_handle: asyncio.TimerHandle | None = None
        self._last_flush = 0.0

    async def execute(self) -> bool:
        """Do the work until it ends or is stopped; then write the run's end. Returns whether
        another run of the session may wait."""
        raise NotImplementedError

    def stop(self) -> None:
        self._is_stopped = True
        self._stop.set()

    def shut_down(self, *, by_person: bool = False) -> None:
        """The process ends: the run is interrupted, or stopped where a person has ended the
        process, unless something of it waits for a person; another process goes on with it then."""
        self._is_left, self._is_ended_by_person = True, by_person
        self._stop.set()

    async def _is_only_left(self) -> bool:
        """Whether it ends with the process alone. A person may have stopped it, perhaps by another
        process just before this one ends: then there is nobody to tell."""
        if not self._is_left or self._is_stopped:
            return False
        return not await self._context.database.readers.read(is_stop_requested, self.claimed.run_pk)

    async def notify_decisions(self) -> None:
        """Somebody decided about a call, or asked for its end."""

    @property
    def context(self) -> RunContext:
        return self._context

    @property
    def elapsed_ms(self) -> int:
        return int((monotonic() - self._started) * 1000)

    @property
    def worked_ms(self) -> int:
        """Without the time that it waited for a person."""
        waiting = monotonic() - self._waits_since if self._waits_since else 0
        return self.elapsed_ms - int((self._waited + waiting) * 1000)

    def _count_waiting(self, state: str) -> None:
        if self._waits_since:
            self._waited += monotonic() - self._waits_since
        self._waits_since = monotonic() if state == states.WAITING_APPROVAL else 0.0

    async def _run_until_stopped[T](self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of its own, so that stopping cancels it and nothing else."""
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
        """A call of the model, with its answer if it gave one; the next one has an ordinal of
        its own. ``usage`` and ``answered_as`` are those of a call without an answer, ``lifetime``
        that of the cache, ``fields`` are further ones of the record."""
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
                self._context.options.prices,
                model,
                usage,
                answered_as=answered_as,
                lifetime=lifetime,
            ),
            **fields,
        )

    async def commit[A: AppendResult](self, work: Coroutine[Any, Any, A]) -> A:
        """See a commit through, also when the run is stopped; show its rows."""

        async def commit() -> A:
            appended = await work
            self.flush()
            self.live.clear()
            self._publish(rows_frame(appended.rows, ends_draft=self.run))
            return appended

        return await asyncio.shield(self.track(asyncio.create_task(commit())))

    def track[T](self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """The run's end waits for it."""
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return task

    # What pages are shown of it

    def _publish(self, frame: Frame) -> None:
        self._context.publisher.publish(self.claimed.session_pk, frame)

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
            self._count_waiting(state)
            self.state, self.doing = state, doing
            self._publish(self.state_frame())

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._context.publisher.publish_rows(self.claimed.session_pk, rows)

    def snapshots(self) -> list[Frame]:
        """The draft and the output of running calls so far, for a page that comes now."""
        self.flush()
        return self.live.snapshots() + self.calls.snapshots()

    def show_soon(self, *, interval: float = 0.0) -> None:
        """Something of the draft or of a call has changed: send it with what else comes now,
        or together with what comes until the next frame is due, after so many seconds at least."""
        publisher = self._context.publisher
        if self._flush_handle is not None or not publisher.is_watched(self.claimed.session_pk):
            return
        loop = asyncio.get_running_loop()
        interval = max(interval, self._context.throttle.interval())
        wait = self._last_flush + interval - loop.time()
        self._flush_handle = loop.call_later(max(0.0, wait), self._flush_some)

    def _flush_some(self) -> None:
        """The same, but for output that would flood the pages."""
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


def usage_so_far(reported: Usage | None, *, given: int, written: Iterable[str]) -> Usage:
    """What a call has used that ends early: as the provider has reported, otherwise estimated."""
    if reported is None:
        return Usage()
    return replace(
        reported,
        input_tokens=given if reported.input_tokens is None else reported.input_tokens,
        output_tokens=max(reported.output_tokens or 0, sum(map(estimate_tokens, written))),
    )


def wait_before_try(error: ProviderError, tries: int) -> float:
    """Seconds: what the provider asks for, or longer each time."""
    if error.retry_after is not None:
        return error.retry_after
    # Not all at the same moment, where many runs failed together.
    return min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (tries - 1)) * random.uniform(0.8, 1.2)
