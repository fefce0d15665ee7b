"""Executing one run: model call, rows, tool calls, again, until it ends."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

from conversations.agent.tools.registry import NO_MORE, offered_tools
from conversations.agent.tools.tool import Tool
from conversations.agent.window.related_turns import find_hint
from conversations.agent.window.window import Window
from conversations.archive.append import Appended, Row, prepare_events
from conversations.archive.model_calls import (
    AppendedAnswer,
    append_answer,
    append_failed_call,
    append_notices,
    check_model_call,
    read_past_calls,
)
from conversations.archive.runs import Claimed, finish_run, record_run_note, release_run
from conversations.archive.sessions import (
    WindowFacts,
    read_place,
    read_window_facts,
    save_floor,
    save_system_prompt,
)
from conversations.archive.storage import is_storage_error
from conversations.archive.turns import read_turn
from conversations.archive.workspaces import WorkspaceDir
from conversations.domain import runs as states
from conversations.domain.errors import BudgetReached, ProviderError, StorageFull
from conversations.domain.events import Info, Payload, TurnSeparator
from conversations.domain.stream import (
    Block,
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    StreamItem,
    Usage,
)
from conversations.domain.text import cost_text, storable
from conversations.feature import Notices
from conversations.models import ModelCall

from .database import PatientWriter
from .execution import Execution, RunContext
from .frames import Frame, rows_frame
from .live import LiveBlock, LiveCalls
from .models import make_window, size_after, summarises
from .run_rows import (
    describe_crash,
    describe_out_of_budget,
    describe_provider_error,
    describe_refused_files,
    describe_stop,
    make_payloads,
    make_turn,
    tool_calls_of,
)
from .tool_loop import ToolLoop

logger = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the first and at most before any further try."""

MAX_WINDOW_CUTS = 3
"""How often a window that the provider finds too long is made shorter."""


@dataclass(slots=True)
class Totals:
    """Tokens of a run, over its model calls. ``reported``: the provider gave some."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microusd: int | None = None
    reported: bool = False
    first_token_ms: int | None = None
    model: str = ""

    def add(self, usage: Usage, *, cost: int | None) -> None:
        if cost is not None:
            self.cost_microusd = (self.cost_microusd or 0) + cost
        if usage.input_tokens is None and usage.output_tokens is None:
            return
        self.reported = True
        cached = usage.cache_read_tokens or 0
        self.input_tokens += (usage.input_tokens or 0) + cached + (usage.cache_write_tokens or 0)
        self.output_tokens += usage.output_tokens or 0
        self.cached_tokens += cached


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    state: str
    stop_reason: str
    notice: Info | None = None
    error_code: str = ""


@dataclass(slots=True)
class _Answer:
    """One model call while it streams."""

    ordinal: int
    window: Window
    started: float = field(default_factory=monotonic)
    first_token_ms: int | None = None
    parts: dict[int, LiveBlock] = field(default_factory=dict)
    block_started: dict[int, float] = field(default_factory=dict)
    thinking_ms: dict[int, int] = field(default_factory=dict)

    @property
    def has_output(self) -> bool:
        return bool(self.parts)

    @property
    def duration_ms(self) -> int:
        return int((monotonic() - self.started) * 1000)


class RunExecution(Execution):
    """One answer in this process. ``stop`` ends it early and keeps what there is."""

    def __init__(self, context: RunContext, claimed: Claimed) -> None:
        super().__init__(context, claimed)
        self.choices = claimed.choices
        self.calls = LiveCalls(self.run)
        self.writer = PatientWriter(
            context.database.writer, gives_up=lambda: self._is_left, tell=self._show_note
        )
        self._totals = Totals()
        self._is_left = False
        self._tools: ToolLoop | None = None
        self._commits: set[asyncio.Task[Any]] = set()
        self._flush_handle: asyncio.TimerHandle | None = None
        self._last_flush = 0.0
        self._window_share = 1.0
        self._most_tokens = 0
        self._files_refused: ProviderError | None = None
        self._hint: str | None = None
        self._place: WorkspaceDir | None = None
        self._facts: WindowFacts | None = None
        self._calls = 0
        self._tries = 0
        self._due_notices: list[Notices] = []

    def leave(self) -> None:
        """The process ends: stop, unless something of the run waits for a person;
        another process goes on with it then."""
        self._is_left = True
        self._stop.set()

    async def notice_decisions(self) -> None:
        if self._tools is not None:
            await self._tools.look()

    def snapshots(self) -> list[Frame]:
        """The draft and the output of running calls so far."""
        self.flush()
        return self.live.snapshots() + self.calls.snapshots()

    async def execute(self) -> bool:
        work = await self._run_until_stopped(self._work())
        outcome = await self._outcome(work)
        if self._commits:
            await asyncio.wait(self._commits)
        if self._is_left and outcome.state == states.STOPPED and await self._release():
            return True
        return await self._finish(outcome)

    async def _release(self) -> bool:
        """Let another process go on with the run, if something of it waits."""
        rows = await self.writer.write(release_run, self.claimed, outputs=self.calls.outputs())
        self.show_rows(rows or [])
        return rows is not None

    async def _outcome(self, work: asyncio.Task[RunOutcome]) -> RunOutcome:
        try:
            return await work
        except asyncio.CancelledError:
            return RunOutcome(state=states.STOPPED, stop_reason="stopped")
        except ProviderError as error:
            notice = describe_provider_error(error, run=self.run)
        except BudgetReached as error:
            has_answered = self._calls > 0
            return RunOutcome(
                state=states.COMPLETED if has_answered else states.FAILED,
                stop_reason=error.code,
                notice=describe_out_of_budget(error, run=self.run, has_answered=has_answered),
                error_code=error.code,
            )
        except Exception as error:
            if is_storage_error(error):
                raise  # the end of the run cannot be written either
            logger.exception("run_failed", extra={"fields": {"run": self.run}})
            notice = describe_crash(run=self.run)
        return RunOutcome(
            state=states.FAILED, stop_reason="failed", notice=notice, error_code=notice.code
        )

    async def _work(self) -> RunOutcome:
        continues = self.claimed.kind == states.CONTINUE
        if self.claimed.open_turn is not None:
            continues = False
            await self._resume(self.claimed.open_turn)
        while self._calls < self._context.options.max_model_calls:
            message = await self._answer(continues=continues)
            continues = False
            if message.stop_reason == "tool_use" and tool_calls_of(message.blocks):
                if self._context.program_tools.is_over(self.claimed):
                    return RunOutcome(state=states.COMPLETED, stop_reason=message.stop_reason)
                continue
            if message.stop_reason == "pause_turn":
                continue
            reason = message.stop_reason
            if reason in ("end_turn", "") and not _says_something(message.blocks):
                reason = "empty_answer"
            details = message.stop_details or {}
            explanation = str(details.get("explanation") or "")
            if reason == "max_tokens" and self._most_tokens == self.choices.max_tokens:
                explanation = f"The program that asked wants {self._most_tokens} tokens at most."
            return self._stopped_by(reason, explanation)
        return self._stopped_by("too_many_calls", "")

    def _stopped_by(self, reason: str, explanation: str) -> RunOutcome:
        notice = describe_stop(reason, explanation=storable(explanation)[:300], run=self.run)
        failed = notice is not None and notice.action == "retry"
        return RunOutcome(
            state=states.FAILED if failed else states.COMPLETED,
            stop_reason=reason,
            notice=notice,
            error_code=reason if failed else "",
        )

    async def _answer(self, *, continues: bool) -> MessageCompleted:
        window = await self._assemble(continues=continues)
        answer = _Answer(ordinal=self._next_ordinal(), window=window)
        self._calls += 1
        message = await self._stream_with_retries(answer, continues=continues)
        call = await self._record(answer, message)
        model = message.model or answer.window.request.model
        self._count_call(message.usage, model, call.cost_microusd, answer.first_token_ms)
        appended = await self._commit_answer(answer, message, call)
        session_pk = self.claimed.session_pk
        await self._context.publisher.publish_window(session_pk, appended.window)
        if appended.turns and tool_calls_of(message.blocks):
            assert self._facts is not None
            is_cut_off = message.stop_reason != "tool_use"
            await self._execute_calls(appended.turns[0], self._facts, is_cut_off=is_cut_off)
        return message

    async def _execute_calls(
        self, turn: int, facts: WindowFacts, *, is_cut_off: bool = False
    ) -> None:
        self._tools = self._tools or ToolLoop(self._context, self)
        await self._tools.execute(
            turn=turn, scope=facts.scope, root=facts.root, is_cut_off=is_cut_off
        )
        self.show_state(states.RUNNING)

    def _count_call(
        self, usage: Usage, model: str, cost: int | None, first_token_ms: int | None
    ) -> None:
        self._totals.model = model
        self._totals.add(usage, cost=cost)
        if self._totals.first_token_ms is None:
            self._totals.first_token_ms = first_token_ms

    async def _assemble(self, *, continues: bool) -> Window:
        database, session_pk = self._context.database, self.claimed.session_pk
        await self._context.models.wait_until_listed()
        more = await self._prepare_servers()
        facts, system, window = await database.readers.read(self._read_window, continues, more)
        database.save_prompt_texts(window.texts)
        self._facts = facts
        self.may_need_summary = summarises(facts, self._context.options)
        self._most_tokens = window.request.max_tokens
        if self._due_notices:
            self._give_notices(self._due_notices)
        if system != facts.system_prompt:
            database.write_in_background(save_system_prompt, session_pk, system_prompt=system)
        if window.floor != facts.floor:
            database.run_in_background(self._move_floor(window.floor))
        return window

    def _give_notices(self, due: Sequence[Notices]) -> None:
        """Say what features have to say, while the model is asked."""

        async def commit() -> Appended:
            appended = await self.writer.write(
                append_notices, self.claimed.session_pk, session=self.claimed.session, due=due
            )
            self.show_rows(appended.rows)
            return appended

        self._track(self._context.database.run_in_background(commit()))

    async def _move_floor(self, floor: int) -> None:
        session_pk = self.claimed.session_pk
        await self.writer.write(save_floor, session_pk, floor=floor)
        await self._context.publisher.publish_window(session_pk)

    async def _prepare_servers(self) -> Mapping[str, Tool]:
        """The tools of the workspace's tool servers, as far as those are there, and those
        that the program brought whose message is answered."""
        servers, brought = self._context.tool_servers, self._context.program_tools
        prepared = NO_MORE
        if servers.is_used:
            read = self._context.database.readers.read
            if self._place is None:
                self._place = await read(read_place, self.claimed.session_pk)
            prepared = await servers.prepare(self._place.workspace, self._place.root)
        return brought.beside(self.claimed, prepared) if brought.brought else prepared

    def _read_window(
        self, continues: bool, more_tools: Mapping[str, Tool]
    ) -> tuple[WindowFacts, str, Window]:
        session_pk, models = self.claimed.session_pk, self._context.models
        facts = read_window_facts(session_pk, user_pk=self.claimed.user_pk)
        self._due_notices = (
            check_model_call(session_pk, person_pk=self.claimed.user_pk)
            if facts.has_call_limits
            else []
        )
        if self._hint is None:
            self._hint = self._find_hint(facts)
        model, scope, offered = models.model_for(facts.model), facts.scope, self._context.offered
        if not more_tools and scope not in offered:
            offered[scope] = offered_tools(scope)
        brought = self._context.program_tools
        system, window = make_window(
            session_pk,
            facts,
            self._context.options,
            model=model,
            limits=models.limits_of(model),
            hint=self._hint,
            go_on=continues,
            share=self._window_share,
            refuses_files=self._files_refused is not None,
            more_tools=more_tools,
            choices=self.choices,
            tools=None if more_tools else offered[scope],
            has_own_tools=bool(brought.brought) and brought.has_any(self.claimed),
        )
        return facts, system, window

    def _find_hint(self, facts: WindowFacts) -> str:
        """For a new message of the person, once; it stays for the run's other calls."""
        if facts.floor <= 1 or self.claimed.kind == states.CONTINUE:
            return ""
        turn = read_turn(self.claimed.session_pk, self.claimed.user_turn)
        if turn is None:
            return ""
        return find_hint(self.claimed.session_pk, turn.content, floor=facts.floor, turn=turn.number)

    async def _stream_with_retries(self, answer: _Answer, *, continues: bool) -> MessageCompleted:
        tries, cuts = 0, 0
        while True:
            try:
                return await self._stream(answer)
            except ProviderError as error:
                await self._record_failure(answer, error)
                if answer.has_output:
                    raise
                if error.code == "context_window_exceeded" and cuts < MAX_WINDOW_CUTS:
                    cuts += 1
                    self._window_share *= 0.6
                    answer.window = await self._assemble(continues=continues)
                    continue
                is_refused = error.code in ("invalid_request", "request_too_large")
                if is_refused and answer.window.has_files and self._files_refused is None:
                    # What is attached must not end the session: once more without it.
                    self._files_refused = error
                    answer.window = await self._assemble(continues=continues)
                    continue
                if not error.transient or tries >= self._context.options.provider_retries:
                    raise
                tries += 1
                await self._wait_before_retry(error, tries)

    async def _wait_before_retry(self, error: ProviderError, tries: int) -> None:
        wait = error.retry_after
        if wait is None:
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1)) * random.uniform(0.8, 1.2)
        most = self._context.options.provider_retries
        await self._say(
            f"{error.message} Trying again in {max(1, round(wait))} s ({tries} of {most})."
        )
        await asyncio.sleep(wait)
        await self._say("")

    def _show_note(self, note: str) -> None:
        self.note = note
        self._publish(self.state_frame())

    async def _say(self, note: str) -> None:
        self._show_note(note)
        with contextlib.suppress(StorageFull):  # a note is nothing to wait for
            await self._context.database.writer.write(
                record_run_note, self.claimed.run_pk, note=note
            )

    async def _stream(self, answer: _Answer) -> MessageCompleted:
        answer.started = monotonic()
        provider = self._context.models.provider
        async with aclosing(provider.stream(answer.window.request)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, MessageCompleted):
                    return item
                self._take(answer, item)
        raise ProviderError("The answer broke off.", code="incomplete_stream", transient=True)

    def _take(self, answer: _Answer, item: StreamItem) -> None:
        if isinstance(item, BlockDelta):
            part = answer.parts.get(item.index)
            if part is None:
                part = answer.parts[item.index] = self.live.start_part(item.kind)
            if answer.first_token_ms is None:
                answer.first_token_ms = answer.duration_ms
            self.live.feed(part, item.text)
            self._context.drafts.add(
                self.claimed.run_pk, part=part.number, kind=part.kind, text=item.text
            )
            self._schedule_flush()
        elif isinstance(item, BlockStarted):
            answer.block_started[item.index] = monotonic()
            if item.kind == "tool_use":
                name = str(item.block.get("name", ""))
                answer.parts[item.index] = self.live.start_part(item.kind, name=name)
        elif isinstance(item, BlockCompleted):
            began = answer.block_started.get(item.index, monotonic())
            answer.thinking_ms[item.index] = int((monotonic() - began) * 1000)

    def _schedule_flush(self) -> None:
        """Send the first delta at once, later ones together, at most every interval."""
        if self._flush_handle is not None or not self._context.publisher.is_watched(
            self.claimed.session_pk
        ):
            return
        loop = asyncio.get_running_loop()
        wait = self._last_flush + self._context.delta_interval() - loop.time()
        if wait <= 0:
            self._flush_some()
        else:
            self._flush_handle = loop.call_later(wait, self._flush_some)

    def _flush_some(self) -> None:
        """The same, but for output that would flood the pages."""
        self.flush(at_once=False)
        if self.calls.is_dirty:
            self._schedule_flush()

    def flush(self, *, at_once: bool = True) -> None:
        """Send what has come since the last time."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        self._last_flush = asyncio.get_running_loop().time()
        for frame in (*self.live.take_frames(), *self.calls.take_frames(at_once=at_once)):
            self._publish(frame)

    async def _commit_answer(
        self, answer: _Answer, message: MessageCompleted, call: ModelCall
    ) -> AppendedAnswer:
        has_turn, run_pk = bool(message.blocks), self.claimed.run_pk
        tool_calls = [(uuid4(), block) for block in tool_calls_of(message.blocks)]
        uuids = [uuid for uuid, _ in tool_calls]
        payloads = (
            make_payloads(message, thinking_ms=answer.thinking_ms, calls=uuids) if has_turn else []
        )
        events = await asyncio.to_thread(
            prepare_events, payloads, session=self.claimed.session, new=0
        )
        drafts = self._context.drafts
        with drafts.taken(run_pk):  # the turn has all of it
            return await self.commit(
                self.writer.write(
                    append_answer,
                    self.claimed,
                    turn=make_turn(message) if has_turn else None,
                    events=events,
                    call=call,
                    tool_calls=tool_calls,
                    size=size_after(answer.window, message.usage),
                    has_draft=drafts.may_be_on_disk(run_pk),
                )
            )

    async def commit[A: Appended](self, work: Coroutine[Any, Any, A]) -> A:
        """See a commit through, also when the run is stopped; show its rows."""

        async def commit() -> A:
            appended = await work
            self.flush()
            self.live.clear()
            self._publish(rows_frame(appended.rows, ends_draft=self.run))
            return appended

        return await asyncio.shield(self._track(asyncio.create_task(commit())))

    def _track[A: Appended](self, task: asyncio.Task[A]) -> asyncio.Task[A]:
        """The run's end waits for it."""
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return task

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._context.publisher.publish_rows(self.claimed.session_pk, rows)

    def show_calls(self) -> None:
        """A call's state or output has changed."""
        self._schedule_flush()

    def show_state(self, state: str, *, doing: str = "") -> None:
        if (state, doing) != (self.state, self.doing):
            self.state, self.doing = state, doing
            self._publish(self.state_frame())

    async def _record_failure(self, answer: _Answer, error: ProviderError) -> None:
        """A failed call is a record too; the next try has an ordinal of its own."""
        call = await self._record(answer, None)
        call.error_code = error.code
        await self.writer.write(append_failed_call, self.claimed, call=call)
        answer.ordinal = self._next_ordinal()

    async def _record(self, answer: _Answer, message: MessageCompleted | None) -> ModelCall:
        manifest, digest = await asyncio.to_thread(answer.window.describe)
        usage = message.usage if message else Usage()
        model = (message.model if message else "") or answer.window.request.model
        options = self._context.options
        stop_sequence = message.stop_sequence if message else None
        return ModelCall(
            ordinal=answer.ordinal,
            model=model[:120],
            manifest=manifest,
            request_digest=digest,
            message_id=(message.message_id if message else "")[:128],
            stop_reason=(message.stop_reason if message else "")[:64],
            stop_sequence=None if stop_sequence is None else storable(stop_sequence),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost_microusd=options.prices.find_cost(model, usage, lifetime=options.prompt_cache),
            first_token_ms=answer.first_token_ms,
            duration_ms=answer.duration_ms,
        )

    def _next_ordinal(self) -> int:
        self._tries += 1
        return self._tries - 1

    async def _resume(self, turn: int) -> None:
        """Go on with the calls of an answer that another process was given."""
        read, claimed = self._context.database.readers.read, self.claimed
        for call in await read(read_past_calls, claimed.run_pk):
            self._tries += 1
            if not call.error_code:
                self._calls += 1
                self._count_call(call.usage, call.model, call.cost_microusd, call.first_token_ms)
        facts = await read(read_window_facts, claimed.session_pk, user_pk=claimed.user_pk)
        await self._execute_calls(turn, facts)

    async def _finish(self, outcome: RunOutcome) -> bool:
        self.flush()
        footer = TurnSeparator(
            run=self.run,
            state=outcome.state,
            stop_reason=outcome.stop_reason,
            model=self._totals.model,
            input_tokens=self._totals.input_tokens if self._totals.reported else None,
            output_tokens=self._totals.output_tokens if self._totals.reported else None,
            cached_tokens=self._totals.cached_tokens or None,
            cost_usd=cost_text(self._totals.cost_microusd),
            duration_ms=self.elapsed_ms,
            first_token_ms=self._totals.first_token_ms,
            is_demo=self._context.models.provider.is_demo,
        )
        payloads: list[Payload] = [*([outcome.notice] if outcome.notice else []), footer]
        if self._files_refused is not None and outcome.state == states.COMPLETED:
            payloads.insert(0, describe_refused_files(self._files_refused))
        self.state = outcome.state
        drafts, run_pk = self._context.drafts, self.claimed.run_pk
        with drafts.taken(run_pk) as draft:
            finished = await self.commit(
                self.writer.write(
                    finish_run,
                    self.claimed,
                    state=outcome.state,
                    payloads=payloads,
                    error_code=outcome.error_code,
                    draft=draft,
                    outputs=self.calls.outputs(),
                )
            )
        drafts.forget(run_pk)
        return finished.has_queued


def _says_something(blocks: Sequence[Block]) -> bool:
    return any(
        block.get("type") not in ("text", "thinking", "redacted_thinking")
        or str(block.get("text", "")).strip()
        for block in blocks
    )
