"""Carrying out one run: model call, rows, tool calls, again, until it ends."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from conversations.agent.tools.registry import NO_MORE
from conversations.agent.tools.tool import Tool
from conversations.agent.window.related_turns import find_hint
from conversations.agent.window.window import Window
from conversations.archive.answers import (
    CallRecord,
    append_answer,
    append_failed_call,
    append_notices,
    check_model_call,
)
from conversations.archive.append import Appended, NewEvent, PreparedEvent, Row, prepare_event
from conversations.archive.journal import Chunk
from conversations.archive.model_calls import read_past_calls
from conversations.archive.runs import Claimed, finish_run, record_run_note, release_run
from conversations.archive.sessions import (
    WindowFacts,
    read_place,
    read_window_facts,
    save_floor,
    save_system_prompt,
)
from conversations.archive.storage_errors import is_storage_error
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
from conversations.domain.tool_calls import READ_ONLY
from conversations.domain.tool_policy import ToolScope
from conversations.feature import Notices

from .answers import make_payloads, make_turn, tool_calls_of
from .database import PatientWriter
from .failures import (
    describe_crash,
    describe_out_of_budget,
    describe_provider_error,
    describe_refused_files,
    describe_stop,
)
from .frames import rows_frame, state_frame
from .live import LiveAnswer, LiveBlock
from .tool_loop import ToolLoop
from .windows import make_window, size_after

if TYPE_CHECKING:
    from .engine import Runtime

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


class RunExecution:
    """One run in this process. ``stop`` ends it early and keeps what there is."""

    def __init__(self, runtime: "Runtime", claimed: Claimed) -> None:
        self.claimed = claimed
        self.choices = claimed.choices
        self.run = str(claimed.run)
        self.live = LiveAnswer(self.run)
        self.state = states.RUNNING
        self.note = ""
        self.doing = ""
        self._runtime = runtime
        self._totals = Totals()
        self._started = monotonic()
        self._stop = asyncio.Event()
        self._is_left = False
        self.writer = PatientWriter(
            runtime.writer, gives_up=lambda: self._is_left, tell=self._show_note
        )
        self._tools = ToolLoop(runtime, self)
        self._commits: set[asyncio.Task[Appended]] = set()
        self._flush_handle: asyncio.TimerHandle | None = None
        self._last_flush = 0.0
        self._window_share = 1.0
        self._most_tokens = 0
        self._files_refused: ProviderError | None = None
        self._hint: str | None = None
        self._place: WorkspaceDir | None = None
        self._root = Path()
        self._scope = ToolScope(workspace="", policy=READ_ONLY)
        self._calls = 0
        self._tries = 0
        self._due_notices: list[Notices] = []

    def stop(self) -> None:
        self._stop.set()

    def leave(self) -> None:
        """The process ends: stop, unless something of the run waits for a person;
        another process goes on with it then."""
        self._is_left = True
        self._stop.set()

    async def notice_decisions(self) -> None:
        """Somebody decided about a call, or asked for its end."""
        await self._tools.look()

    def snapshots(self) -> list[dict[str, Any]]:
        """The draft and the output of running calls so far, for a page that comes now."""
        self.flush()
        return self.live.snapshots() + self._tools.live.snapshots()

    @property
    def elapsed_ms(self) -> int:
        return int((monotonic() - self._started) * 1000)

    def state_frame(self) -> dict[str, Any]:
        return state_frame(
            run_state=self.state,
            run=self.run,
            note=self.note,
            elapsed_ms=self.elapsed_ms,
            doing=self.doing,
        )

    async def carry_out(self) -> None:
        """Do the work until it ends or is stopped; then write the run's end. The
        work is a task of its own, so that stopping cancels it and nothing else."""
        self._publish(self.state_frame())
        work = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not work.done():
            work.cancel()
        outcome = await self._outcome(work)
        if self._commits:
            await asyncio.wait(self._commits)
        if not (self._is_left and outcome.state == states.STOPPED and await self._release()):
            await self._finish(outcome)

    async def _release(self) -> bool:
        """Let another process go on with the run, if something of it waits."""
        rows = await self.writer.write(
            release_run, self.claimed, outputs=self._tools.live.outputs()
        )
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
            return self._out_of_budget(error)
        except Exception as error:
            if is_storage_error(error):
                raise  # the end of the run cannot be written either
            logger.exception("run_failed", extra={"fields": {"run": self.run}})
            notice = describe_crash(run=self.run)
        return RunOutcome(
            state=states.FAILED, stop_reason="failed", notice=notice, error_code=notice.code
        )

    def _out_of_budget(self, error: BudgetReached) -> RunOutcome:
        has_answered = self._calls > 0
        return RunOutcome(
            state=states.COMPLETED if has_answered else states.FAILED,
            stop_reason=error.code,
            notice=describe_out_of_budget(error, run=self.run, has_answered=has_answered),
            error_code=error.code,
        )

    async def _work(self) -> RunOutcome:
        go_on = self.claimed.kind == states.CONTINUE
        if self.claimed.open_turn is not None:
            go_on = False
            await self._resume(self.claimed.open_turn)
        while self._calls < self._runtime.options.max_model_calls:
            message = await self._answer(go_on=go_on)
            go_on = False
            if message.stop_reason == "tool_use" and tool_calls_of(message.blocks):
                if self._runtime.program_tools.is_over(self.claimed):
                    return RunOutcome(state=states.COMPLETED, stop_reason=message.stop_reason)
                continue
            if message.stop_reason != "pause_turn":
                return self._ended(message)
        return self._stopped_by("too_many_calls", "")

    def _ended(self, message: MessageCompleted) -> RunOutcome:
        reason = message.stop_reason
        if reason in ("end_turn", "") and not _says_something(message.blocks):
            reason = "empty_answer"
        details = message.stop_details or {}
        explanation = str(details.get("explanation") or "")
        if reason == "max_tokens" and self._most_tokens == self.choices.max_tokens:
            explanation = f"The program that asked wants {self._most_tokens} tokens at most."
        return self._stopped_by(reason, explanation)

    def _stopped_by(self, reason: str, explanation: str) -> RunOutcome:
        notice = describe_stop(reason, explanation=storable(explanation)[:300], run=self.run)
        failed = notice is not None and notice.action == "retry"
        return RunOutcome(
            state=states.FAILED if failed else states.COMPLETED,
            stop_reason=reason,
            notice=notice,
            error_code=reason if failed else "",
        )

    async def _answer(self, *, go_on: bool) -> MessageCompleted:
        answer = _Answer(ordinal=self._next_ordinal(), window=await self._assemble(go_on=go_on))
        self._calls += 1
        message = await self._stream_with_retries(answer, go_on=go_on)
        call = await self._record(answer, message)
        model = message.model or answer.window.request.model
        self._note_call(message.usage, model, call.cost_microusd, answer.first_token_ms)
        appended = await self._commit_answer(answer, message, call)
        await self._runtime.publish_window(self.claimed.session_pk)
        if appended.turns and tool_calls_of(message.blocks):
            await self._tools.carry_out(
                turn=appended.turns[0],
                scope=self._scope,
                root=self._root,
                is_cut_off=message.stop_reason != "tool_use",
            )
            self.show_state(states.RUNNING)
        return message

    def _note_call(
        self, usage: Usage, model: str, cost: int | None, first_token_ms: int | None
    ) -> None:
        self._totals.model = model
        self._totals.add(usage, cost=cost)
        if self._totals.first_token_ms is None:
            self._totals.first_token_ms = first_token_ms

    async def _assemble(self, *, go_on: bool) -> Window:
        await self._runtime.know_models()
        more = await self._prepare_servers()
        facts, system, window = await self._runtime.readers.read(self._read_window, go_on, more)
        session_pk, keep = self.claimed.session_pk, self._runtime.write_in_background
        self._runtime.keep_prompt_texts(window.texts)
        self._root, self._scope = facts.root, facts.scope
        self._most_tokens = window.request.max_tokens
        if self._due_notices:
            self._give_notices(self._due_notices)
        if system != facts.system_prompt:
            keep(save_system_prompt, session_pk, system_prompt=system)
        if window.floor != facts.floor:
            self._runtime.run_in_background(self._move_floor(window.floor))
        return window

    def _give_notices(self, due: Sequence[Notices]) -> None:
        """Say what features have to say, while the model is asked."""

        async def commit() -> Appended:
            appended = await self.writer.write(
                append_notices, self.claimed.session_pk, session=self.claimed.session, due=due
            )
            self.show_rows(appended.rows)
            return appended

        self._track(self._runtime.run_in_background(commit()))

    async def _move_floor(self, floor: int) -> None:
        session_pk = self.claimed.session_pk
        await self.writer.write(save_floor, session_pk, floor=floor)
        await self._runtime.publish_window(session_pk)

    async def _prepare_servers(self) -> Mapping[str, Tool]:
        """The tools of the workspace's tool servers, as far as those are there, and those
        that the program brought whose message is answered."""
        servers, brought = self._runtime.tool_servers, self._runtime.program_tools
        if not servers.is_used:
            return brought.beside(self.claimed, NO_MORE)
        if self._place is None:
            self._place = await self._runtime.readers.read(read_place, self.claimed.session_pk)
        prepared = await servers.prepare(self._place.workspace, self._place.root)
        return brought.beside(self.claimed, prepared)

    def _read_window(
        self, go_on: bool, more_tools: Mapping[str, Tool]
    ) -> tuple[WindowFacts, str, Window]:
        session_pk = self.claimed.session_pk
        facts = read_window_facts(session_pk, user_pk=self.claimed.user_pk)
        self._due_notices = (
            check_model_call(session_pk, person_pk=self.claimed.user_pk)
            if facts.has_call_limits
            else []
        )
        if self._hint is None:
            self._hint = self._find_hint(facts)
        model = self._runtime.model_for(facts.model)
        system, window = make_window(
            session_pk,
            facts,
            self._runtime.options,
            model=model,
            limits=self._runtime.limits_of(model),
            hint=self._hint,
            go_on=go_on,
            share=self._window_share,
            refuses_files=self._files_refused is not None,
            more_tools=more_tools,
            choices=self.choices,
            has_own_tools=self._runtime.program_tools.has_any(self.claimed),
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

    async def _stream_with_retries(self, answer: _Answer, *, go_on: bool) -> MessageCompleted:
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
                    answer.window = await self._assemble(go_on=go_on)
                    continue
                if self._may_be_files(error, answer.window):
                    self._files_refused = error
                    answer.window = await self._assemble(go_on=go_on)
                    continue
                if not error.transient or tries >= self._runtime.options.provider_retries:
                    raise
                tries += 1
                await self._wait_before_retry(error, tries)

    def _may_be_files(self, error: ProviderError, window: Window) -> bool:
        """Whether the request may be taken without what is attached. One that the
        provider refuses must not end the session."""
        is_refused = error.code in ("invalid_request", "request_too_large")
        return is_refused and window.has_files and self._files_refused is None

    async def _wait_before_retry(self, error: ProviderError, tries: int) -> None:
        wait = error.retry_after
        if wait is None:
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1)) * random.uniform(0.8, 1.2)
        most = self._runtime.options.provider_retries
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
            await self._runtime.writer.write(record_run_note, self.claimed.run_pk, note=note)

    async def _stream(self, answer: _Answer) -> MessageCompleted:
        answer.started = monotonic()
        provider = self._runtime.provider
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
                part = self._start_part(answer, item.index, item.kind, "")
            if answer.first_token_ms is None:
                answer.first_token_ms = answer.duration_ms
            self.live.feed(part, item.text)
            self._runtime.drafts.add(
                self.claimed.run_pk, part=part.number, kind=part.kind, text=item.text
            )
            self._schedule_flush()
        elif isinstance(item, BlockStarted):
            answer.block_started[item.index] = monotonic()
            if item.kind == "tool_use":
                self._start_part(answer, item.index, item.kind, str(item.block.get("name", "")))
        elif isinstance(item, BlockCompleted):
            began = answer.block_started.get(item.index, monotonic())
            answer.thinking_ms[item.index] = int((monotonic() - began) * 1000)

    def _start_part(self, answer: _Answer, index: int, kind: str, name: str) -> LiveBlock:
        part = answer.parts[index] = self.live.start_part(kind, name=name)
        return part

    def _schedule_flush(self) -> None:
        """Send the first delta at once, later ones together, at most every interval."""
        if self._flush_handle is not None or not self._runtime.is_watched(self.claimed.session_pk):
            return
        loop = asyncio.get_running_loop()
        wait = self._last_flush + self._runtime.delta_interval - loop.time()
        if wait <= 0:
            self._flush_some()
        else:
            self._flush_handle = loop.call_later(wait, self._flush_some)

    def _flush_some(self) -> None:
        """The same, but for output that would flood the pages."""
        self.flush(at_once=False)
        if self._tools.live.is_dirty:
            self._schedule_flush()

    def flush(self, *, at_once: bool = True) -> None:
        """Send what has come since the last time."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        self._last_flush = asyncio.get_running_loop().time()
        for frame in (*self.live.take_frames(), *self._tools.live.take_frames(at_once=at_once)):
            self._publish(frame)

    async def _commit_answer(
        self, answer: _Answer, message: MessageCompleted, call: CallRecord
    ) -> Appended:
        has_turn = bool(message.blocks)
        tool_calls = [(uuid4(), block) for block in tool_calls_of(message.blocks)]
        uuids = [uuid for uuid, _ in tool_calls]
        payloads = (
            make_payloads(message, thinking_ms=answer.thinking_ms, calls=uuids) if has_turn else []
        )
        events = await self._prepare(payloads)
        with self._draft():  # the turn has all of it
            return await self._keep(
                append_answer,
                turn=make_turn(message) if has_turn else None,
                events=events,
                call=call,
                tool_calls=tool_calls,
                size=size_after(answer.window, message.usage),
            )

    @contextmanager
    def _draft(self) -> Iterator[list[Chunk]]:
        """What is not on disk of the draft, for a commit that ends it; else it goes on."""
        run_pk, drafts = self.claimed.run_pk, self._runtime.drafts
        chunks = drafts.take(run_pk)
        try:
            yield chunks
        except Exception as error:
            drafts.give_back(run_pk, chunks, error=error)
            raise

    async def _prepare(self, payloads: Sequence[Payload]) -> list[PreparedEvent]:
        def prepare() -> list[PreparedEvent]:
            session = self.claimed.session
            return [
                prepare_event(NewEvent(payload=payload, new=0), session_uuid=session)
                for payload in payloads
            ]

        return await asyncio.to_thread(prepare)

    async def _keep(self, write: Any, **arguments: Any) -> Appended:
        async def commit() -> Appended:
            appended: Appended = await self.writer.write(write, self.claimed, **arguments)
            return appended

        return await self.keep(commit())

    async def keep(self, work: Coroutine[Any, Any, Appended]) -> Appended:
        """See a commit through, also when the run is stopped; show its rows."""

        async def commit() -> Appended:
            appended = await work
            self.flush()
            self.live.clear()
            self._publish(rows_frame(appended.rows, ends_draft=self.run))
            return appended

        return await asyncio.shield(self._track(asyncio.create_task(commit())))

    def _track(self, task: asyncio.Task[Appended]) -> asyncio.Task[Appended]:
        """The run's end waits for it."""
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return task

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._runtime.publish_rows(self.claimed.session_pk, rows)

    def show_calls(self) -> None:
        """A call's state or output has changed."""
        self._schedule_flush()

    def show_state(self, state: str, *, doing: str = "") -> None:
        if (state, doing) != (self.state, self.doing):
            self.state, self.doing = state, doing
            self._publish(self.state_frame())

    async def _record_failure(self, answer: _Answer, error: ProviderError) -> None:
        """A failed call is a record too; the next try has an ordinal of its own."""
        call = replace(await self._record(answer, None), error_code=error.code)
        await self.writer.write(append_failed_call, self.claimed, call=call)
        answer.ordinal = self._next_ordinal()

    async def _record(self, answer: _Answer, message: MessageCompleted | None) -> CallRecord:
        manifest, digest = await asyncio.to_thread(answer.window.describe)
        usage = message.usage if message else Usage()
        model = (message.model if message else "") or answer.window.request.model
        options = self._runtime.options
        return CallRecord(
            ordinal=answer.ordinal,
            model=model[:120],
            manifest=manifest,
            request_digest=digest,
            message_id=(message.message_id if message else "")[:128],
            stop_reason=(message.stop_reason if message else "")[:64],
            stop_sequence=_matched(message),
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
        read, claimed = self._runtime.readers.read, self.claimed
        for call in await read(read_past_calls, claimed.run_pk):
            self._tries += 1
            if not call.failed:
                self._calls += 1
                self._note_call(call.usage, call.model, call.cost_microusd, call.first_token_ms)
        facts = await read(read_window_facts, claimed.session_pk, user_pk=claimed.user_pk)
        await self._tools.carry_out(turn=turn, scope=facts.scope, root=facts.root)
        self.show_state(states.RUNNING)

    async def _finish(self, outcome: RunOutcome) -> None:
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
            is_demo=self._runtime.provider.is_demo,
        )
        payloads: list[Payload] = [*([outcome.notice] if outcome.notice else []), footer]
        if self._files_refused is not None and outcome.state == states.COMPLETED:
            payloads.insert(0, describe_refused_files(self._files_refused))
        self.state = outcome.state
        with self._draft() as draft:
            await self._keep(
                finish_run,
                state=outcome.state,
                payloads=payloads,
                error_code=outcome.error_code,
                draft=draft,
                outputs=self._tools.live.outputs(),
            )
        self._runtime.drafts.forget(self.claimed.run_pk)

    def _publish(self, frame: dict[str, Any]) -> None:
        self._runtime.publish(self.claimed.session_pk, frame)


def _matched(message: MessageCompleted | None) -> str | None:
    """The text at which the answer was told to end."""
    if message is None or message.stop_sequence is None:
        return None
    return storable(message.stop_sequence)


def _says_something(blocks: Sequence[Block]) -> bool:
    return any(
        block.get("type") not in ("text", "thinking", "redacted_thinking")
        or str(block.get("text", "")).strip()
        for block in blocks
    )
