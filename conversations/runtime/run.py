"""Executing a run: a model call, its rows and its tool calls, repeated until the run ends."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple
from uuid import UUID, uuid4

from conversations.agent.tools.registry import NO_MORE, offered_tools
from conversations.agent.tools.tool import Tool
from conversations.agent.window.budget import MAX_RATIO
from conversations.agent.window.parent import ParentAccount, read_parent_account
from conversations.agent.window.related_turns import find_hint
from conversations.agent.window.window import Window
from conversations.archive.append import AppendResult, RunLost, prepare_events
from conversations.archive.model_calls import (
    append_answer,
    append_call,
    append_notices,
    check_model_call,
    read_past_calls,
)
from conversations.archive.runs import (
    ClaimedRun,
    finish_run,
    has_message_to_go_first,
    make_interrupted_notice,
    record_run_note,
    release_run,
)
from conversations.archive.sessions import (
    WindowFacts,
    read_window_facts,
    read_workspace_dir,
    save_floor,
    save_system_prompt,
)
from conversations.archive.storage import is_storage_error
from conversations.archive.turns import read_turn
from conversations.archive.workspaces import WorkspaceDir
from conversations.domain import runs as states
from conversations.domain.errors import BudgetReached, ProviderError, StorageFull
from conversations.domain.events import AssistantText, Info, Payload, ToolCallStarted, TurnSeparator
from conversations.domain.messages import say
from conversations.domain.stream import (
    Block,
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    Usage,
)
from conversations.domain.text import (
    cost_text,
    dump_json,
    estimate_tokens,
    number_text,
    storable,
)
from conversations.domain.turns import NewTurn, text_of_answer
from conversations.feature import Notices
from conversations.models import ModelCall

from .database import RetryingWriter
from .drafts import LiveBlock
from .execution import Execution, RunContext, usage_so_far, wait_before_try
from .model_routing import (
    MIN_REPORTED_TOKENS,
    make_window,
    result_cap_of,
    size_after,
    summarises,
)
from .run_notices import (
    STOPS,
    describe_crash,
    describe_out_of_budget,
    describe_provider_error,
    describe_refused_files,
    describe_stop,
)
from .tool_loop import ToolLoop

logger = logging.getLogger(__name__)

# The maximum number of cuts of a window that the provider finds too long, and the share that a cut
# keeps if the provider does not say by how much it is too long. All cuts together lead from 32,768
# tokens to 550.
MAX_WINDOW_CUTS, CUT_SHARE = 8, 0.6

# The provider refuses the content of the request, so repeating it would not help.
REFUSED_CODES = ("invalid_request", "request_too_large", "refusal")

STEERED = "steered"  # The stop reason if a person's message is inserted at a tool call


class RunOutcome(NamedTuple):
    """The state in which a run ended, with the reason and a notice to show."""

    state: str
    stop_reason: str
    notice: Info | None = None
    error_code: str = ""


@dataclass(slots=True)
class _Answer:
    """One model call while it streams. ``parts`` are by the index of their content block."""

    window: Window
    started: float = field(default_factory=monotonic)
    first_token_ms: int | None = None
    reported: Usage | None = None  # at the beginning of the answer
    answered_as: str = ""
    parts: dict[int, LiveBlock] = field(default_factory=dict)
    block_started: dict[int, float] = field(default_factory=dict)
    thinking_ms: dict[int, int] = field(default_factory=dict)

    @property
    def duration_ms(self) -> int:
        return int((monotonic() - self.started) * 1000)

    def usage_so_far(self) -> Usage:
        texts = ["".join(part.text) for part in self.parts.values()]
        return usage_so_far(self.reported, estimated=self.window.estimated, texts=texts)


class RunExecution(Execution):
    """One answer in this process. ``stop`` ends it early and keeps the text so far."""

    def __init__(self, context: RunContext, claimed: ClaimedRun) -> None:
        super().__init__(context, claimed)
        self.choices = claimed.choices
        self.writer = RetryingWriter(
            context.database.writer,
            gives_up=lambda: self._process_ends,
            on_wait=self._show_full_note,
        )
        self._full_note = self._retry_note = ""
        self._answered_calls: list[ModelCall] = []
        self._tools: ToolLoop | None = None
        self._window_share = 1.0
        self._min_ratio = 0.0
        self._max_tokens = self._output_limit = 0
        self._files_refused: ProviderError | None = None
        self._hint: str | None = None
        self._parent: ParentAccount | None = None
        self._workspace_dir: WorkspaceDir | None = None
        self._facts: WindowFacts | None = None
        self._due_notices: list[Notices] = []

    async def notify_decisions(self) -> None:
        if self._tools is not None:
            await self._tools.check_decisions()

    async def execute(self) -> bool:
        work = await self._run_until_stopped(self._work())
        try:
            outcome = await work
        except asyncio.CancelledError:
            outcome = RunOutcome(states.STOPPED, "stopped")
        except ProviderError as error:
            # If the provider refuses the message, only the message can be answered again.
            action = "retry" if error.code in REFUSED_CODES else self._next_action
            notice = describe_provider_error(error, run=self.run, action=action)
            outcome = RunOutcome(states.FAILED, "failed", notice, notice.code)
        except BudgetReached as error:
            has_work = self._next_action == "continue"
            notice = describe_out_of_budget(error, run=self.run, has_work=has_work)
            state = states.COMPLETED if self._answered_calls else states.FAILED
            outcome = RunOutcome(state, error.code, notice, error.code)
        except Exception as error:
            if isinstance(error, RunLost) or is_storage_error(error):
                raise  # writing the end of the run would fail, too
            logger.exception("run_failed", extra={"fields": {"run": self.run}})
            notice = describe_crash(run=self.run, action=self._next_action)
            outcome = RunOutcome(states.FAILED, "failed", notice, notice.code)
        if self._commits:
            await asyncio.wait(self._commits)
        if outcome.state == states.STOPPED and await self._ends_only_with_process():
            # If a part of the run waits for a person, another process continues the run.
            outputs = self.calls.outputs()
            rows = await self.writer.write(release_run, self.claimed, outputs=outputs)
            if rows is not None:
                self.show_rows(rows)
                return True
            if not self._is_ended_by_person:
                notice = make_interrupted_notice(self.claimed.run)
                outcome = RunOutcome(states.INTERRUPTED, "", notice)
        return await self._finish(outcome)

    @property
    def _next_action(self) -> str:
        """The action that is offered if the run fails."""
        # A retry would discard the work of this run. A continued run includes that of earlier runs.
        has_work = bool(self._answered_calls) or self.claimed.kind == states.CONTINUE
        return "continue" if has_work else "retry"

    async def _work(self) -> RunOutcome:
        claimed = self.claimed
        read = self.context.database.readers.read
        continues = claimed.kind == states.CONTINUE
        # If several messages go first, the run of the last one answers all of them.
        may_steer = claimed.goes_first or claimed.open_turn is not None
        if claimed.open_turn is not None:
            # Another process got an answer and did not complete its tool calls.
            continues = False
            past = await read(read_past_calls, claimed.run_pk)
            self._ordinal = len(past)
            self._answered_calls += [call for call in past if not call.error_code]
            user_pk = claimed.user_pk
            self._facts = await read(read_window_facts, claimed.session_pk, user_pk=user_pk)
            await self._execute_calls(claimed.open_turn)
        while len(self._answered_calls) < self.context.options.max_model_calls:
            if may_steer and await read(has_message_to_go_first, claimed.session_pk):
                # The model reads the results together with that message in the next run.
                return RunOutcome(states.COMPLETED, STEERED)
            message = await self._answer(continues=continues)
            continues = False
            if message.stop_reason == "tool_use":
                if self.context.program_tools.is_over(claimed):
                    return RunOutcome(states.COMPLETED, message.stop_reason)
                may_steer = True
                continue
            if message.stop_reason == "pause_turn":
                may_steer = False
                continue
            return self._outcome_of(message)
        return self._make_outcome("too_many_calls")

    def _outcome_of(self, message: MessageCompleted) -> RunOutcome:
        """Return the outcome of a run whose last answer is ``message``."""
        reason = message.stop_reason
        explanation = storable(str((message.stop_details or {}).get("explanation") or ""))[:300]
        has_content = any(
            block.get("type") not in ("text", "thinking", "redacted_thinking")
            or str(block.get("text", "")).strip()
            for block in message.blocks
        )
        if reason in ("end_turn", "") and not has_content:
            reason = "empty_answer"
        if reason == "max_tokens":
            is_window_full = self._max_tokens < self._output_limit
            if is_window_full and self._max_tokens != self.choices.max_tokens:
                reason = "model_context_window_exceeded"
            else:
                explanation = self._explain_limit()
        return self._make_outcome(reason, explanation)

    def _make_outcome(self, reason: str, explanation: str = "") -> RunOutcome:
        if reason not in STOPS:
            return RunOutcome(states.COMPLETED, reason)
        notice = describe_stop(reason, explanation=explanation, run=self.run)
        if notice.action == "retry":
            return RunOutcome(states.FAILED, reason, notice, reason)
        return RunOutcome(states.COMPLETED, reason, notice)

    def _explain_limit(self) -> str:
        """Return a sentence that names the source of the last request's output limit."""
        max_tokens = self._max_tokens
        limit = number_text(max_tokens)
        if max_tokens == self.choices.max_tokens:
            return say("The client limits the answer to %(limit)s tokens.", limit=limit)
        if max_tokens < self.context.options.max_output_tokens:
            return say(
                "This model may answer %(limit)s tokens; output_tokens in providers.toml changes"
                " that.",
                limit=limit,
            )
        return say("LOOM_MAX_OUTPUT_TOKENS limits answers to %(limit)s tokens.", limit=limit)

    async def _execute_calls(self, turn: int, *, is_cut_off: bool = False) -> None:
        assert self._facts is not None
        self._tools = self._tools or ToolLoop(self.context, self)
        model = self.context.models.model_for(self._facts.model)
        await self._tools.execute(
            turn=turn,
            scope=self._facts.scope,
            root=self._facts.root,
            model=model,
            result_cap=result_cap_of(
                self._facts, self.context.options, limits=self.context.models.limits_of(model)
            ),
            is_cut_off=is_cut_off,
        )
        self.show_state(states.RUNNING)

    async def _answer(self, *, continues: bool) -> MessageCompleted:
        answer = _Answer(window=await self._assemble(continues=continues))
        message = await self._stream_with_retries(answer, continues=continues)
        if self._window_share < 1:
            await self._remember_cuts(answer.window)
        call = await self._record_answer(answer, message)
        self._answered_calls.append(call)
        claimed, drafts = self.claimed, self.context.drafts
        tool_calls = [(uuid4(), block) for block in tool_calls_of(message.blocks)]
        uuids = [uuid for uuid, _ in tool_calls]
        payloads = make_payloads(message, thinking_ms=answer.thinking_ms, calls=uuids)
        events = await asyncio.to_thread(prepare_events, payloads, session=claimed.session, new=0)
        with drafts.pending_chunks(claimed.run_pk):  # the turn contains them all
            appended = await self.commit(
                self.writer.write(
                    append_answer,
                    claimed,
                    turn=make_turn(message) if message.blocks else None,
                    events=events,
                    call=call,
                    texts=answer.window.texts,
                    tool_calls=tool_calls,
                    size=size_after(answer.window, message.usage),
                    has_draft=claimed.run_pk in drafts.handed_over,
                )
            )
        await self.context.publisher.publish_window(self.claimed.session_pk, appended.window)
        if appended.turns and tool_calls:
            is_cut_off = message.stop_reason != "tool_use"
            await self._execute_calls(appended.turns[0], is_cut_off=is_cut_off)
        return message

    async def _assemble(self, *, continues: bool) -> Window:
        context, session_pk = self.context, self.claimed.session_pk
        database, servers = context.database, context.tool_servers
        await context.models.wait_until_listed()
        more_tools = NO_MORE
        if servers.is_used:
            if self._workspace_dir is None:
                self._workspace_dir = await database.readers.read(read_workspace_dir, session_pk)
            workspace_dir = self._workspace_dir
            more_tools = await servers.prepare(workspace_dir.workspace, workspace_dir.root)
        if context.program_tools.requests:
            more_tools = context.program_tools.with_own_tools(self.claimed, more_tools)
        facts, system, window = await database.readers.read(
            self._read_window, continues, more_tools
        )
        self._facts = facts
        self.may_need_summary = summarises(facts, context.options)
        self._max_tokens = window.request.max_tokens

        async def append_due_notices() -> AppendResult:
            appended = await self.writer.write(
                append_notices, session_pk, session=self.claimed.session, due=self._due_notices
            )
            self.show_rows(appended.rows)
            return appended

        async def move_floor() -> None:
            await self.writer.write(save_floor, session_pk, floor=window.floor)
            await context.publisher.publish_window(session_pk)

        if self._due_notices:  # they are written while the model is asked
            self.track(database.run_in_background(append_due_notices()))
        if system != facts.system_prompt:
            database.write_in_background(save_system_prompt, session_pk, system_prompt=system)
        if window.floor != facts.floor:
            database.run_in_background(move_floor())
        return window

    def _read_window(
        self, continues: bool, more_tools: Mapping[str, Tool]
    ) -> tuple[WindowFacts, str, Window]:
        claimed, models = self.claimed, self.context.models
        session_pk, user_pk = claimed.session_pk, claimed.user_pk
        facts = read_window_facts(session_pk, user_pk=user_pk)
        self._due_notices = []
        if facts.has_call_limits:
            self._due_notices = check_model_call(session_pk, person_pk=user_pk)
        if self._hint is None:
            # Read once for a new message of a person, and kept for the other model calls of the
            # run.
            self._parent = read_parent_account(session_pk, user_pk) if facts.has_parent else None
            hint = ""
            if facts.floor > 1 and claimed.kind != states.CONTINUE:
                turn = read_turn(session_pk, claimed.user_turn)
                if turn:
                    hint = find_hint(session_pk, turn.content, floor=facts.floor, turn=turn.number)
            # Set after the queries, because the whole function runs again if the connection is
            # lost.
            self._hint = hint
        model = models.model_for(facts.model)
        limits = models.limits_of(model)
        self._output_limit = limits[1]
        own_tools = self.context.program_tools.tools_of(session_pk, claimed.client_id)
        tools = None
        if not more_tools:
            offered = self.context.offered
            if facts.scope not in offered:
                offered[facts.scope] = offered_tools(facts.scope)
            tools = offered[facts.scope]
        system, window = make_window(
            session_pk,
            facts,
            self.context.options,
            model=model,
            limits=limits,
            takes=models.find(model).takes,
            hint=self._hint,
            parent=self._parent,
            go_on=continues,
            share=self._window_share,
            min_ratio=self._min_ratio,
            refuses_files=self._files_refused is not None,
            more_tools=more_tools,
            choices=self.choices,
            tools=tools,
            has_own_tools=bool(own_tools),
        )
        return facts, system, window

    async def _stream_with_retries(self, answer: _Answer, *, continues: bool) -> MessageCompleted:
        tries, cuts, max_tries = 0, 0, self.context.options.provider_retries
        while True:
            try:
                return await self._stream(answer)
            except asyncio.CancelledError:
                if answer.reported is not None:  # the provider counts its tokens
                    saved = self._save_unanswered(answer, states.STOPPED)
                    self.track(asyncio.create_task(saved))
                raise
            except ProviderError as error:
                await self._save_unanswered(answer, error.code)
                if answer.parts:
                    raise
                is_refused = error.code in REFUSED_CODES
                model = answer.window.request.model
                if error.code == "context_window_exceeded" and cuts < MAX_WINDOW_CUTS:
                    cuts += 1
                    await self._shorten_window(error, answer.window)
                    answer.window = await self._assemble(continues=continues)
                elif error.refused and self.context.models.find(model).takes.get(
                    error.refused, True
                ):
                    await self.context.models.learn_capability(model, error.refused, takes=False)
                    answer.window = await self._assemble(continues=continues)
                elif is_refused and answer.window.has_files and self._files_refused is None:
                    # Attached files must not block the session, so the request is repeated without
                    # them.
                    self._files_refused = error
                    answer.window = await self._assemble(continues=continues)
                elif error.transient and tries < max_tries:
                    tries += 1
                    wait = wait_before_try(error, tries)
                    seconds = max(1, round(wait))
                    await self._record_note(
                        say(
                            "%(reason)s Trying again in %(seconds)s s (%(tries)s of %(most)s).",
                            reason=error.message,
                            seconds=seconds,
                            tries=tries,
                            most=max_tries,
                        )
                    )
                    await asyncio.sleep(wait)
                    await self._record_note("")
                    if not model:  # none was on offer, but a server may have started
                        answer.window = await self._assemble(continues=continues)
                else:
                    raise

    async def _save_unanswered(self, answer: _Answer, error_code: str) -> None:
        """Save the record of a call that gave no complete answer."""
        call = await self._record_answer(answer, None, error_code=error_code)
        texts = answer.window.texts
        await self.writer.write(append_call, self.claimed, call=call, texts=texts)

    async def _shorten_window(self, error: ProviderError, window: Window) -> None:
        """Learn the model's limit and how the server counts from a refusal, or cut the window."""
        if error.limit is not None and error.limit < window.limit:
            await self.context.models.learn_limit(window.request.model, error.limit)
        ratio = 0.0
        if error.prompt_tokens and window.estimated >= MIN_REPORTED_TOKENS:
            ratio = min(error.prompt_tokens / window.estimated, MAX_RATIO)
        if ratio > window.ratio:
            self._min_ratio = ratio
        elif error.limit is None or error.limit >= window.limit:
            self._window_share *= CUT_SHARE

    async def _remember_cuts(self, window: Window) -> None:
        """Save as the model's limit the size of a window that was cut without a known limit."""
        models, model = self.context.models, window.request.model
        if not models.names_limit(model):
            await models.learn_limit(model, int(window.limit * self._window_share))
            self._window_share = 1.0

    def _show_full_note(self, note: str) -> None:
        self._full_note = note
        self._show_notes()

    def _show_notes(self) -> None:
        self.note = self._full_note or self._retry_note
        self._publish(self.state_frame())

    async def _record_note(self, note: str) -> None:
        self._retry_note = note
        self._show_notes()
        with contextlib.suppress(StorageFull):  # a note is not worth waiting for
            await self.context.database.writer.write(
                record_run_note, self.claimed.run_pk, note=note
            )

    async def _stream(self, answer: _Answer) -> MessageCompleted:
        answer.started, answer.reported, answer.answered_as = monotonic(), None, ""
        models, drafts = self.context.models, self.context.drafts
        async with aclosing(models.stream(answer.window.request)) as items:
            async for item in items:
                if isinstance(item, BlockDelta):
                    part = answer.parts.get(item.index)
                    if part is None:
                        part = answer.parts[item.index] = self.live.start_part(item.kind)
                    if answer.first_token_ms is None:
                        answer.first_token_ms = answer.duration_ms
                    part.feed(item.text)
                    run_pk = self.claimed.run_pk
                    drafts.add(run_pk, part=part.number, kind=part.kind, text=item.text)
                    self.show_soon()
                elif isinstance(item, BlockStarted):
                    answer.block_started[item.index] = monotonic()
                    if item.kind == "tool_use":
                        name = str(item.block.get("name", ""))
                        answer.parts[item.index] = self.live.start_part(item.kind, name=name)
                elif isinstance(item, BlockCompleted):
                    began = answer.block_started.get(item.index, monotonic())
                    answer.thinking_ms[item.index] = int((monotonic() - began) * 1000)
                elif isinstance(item, MessageStarted):
                    answer.reported, answer.answered_as = item.usage, item.answered_as
                elif isinstance(item, MessageCompleted):
                    return item
        raise ProviderError(
            "The answer was not completed.", code="incomplete_stream", transient=True
        )

    async def _record_answer(
        self, answer: _Answer, message: MessageCompleted | None, *, error_code: str = ""
    ) -> ModelCall:
        manifest, digest = await asyncio.to_thread(answer.window.describe)
        stop_sequence = message.stop_sequence if message else None
        return self.record(
            message,
            model=answer.window.request.model,
            usage=answer.usage_so_far(),
            answered_as=answer.answered_as,
            lifetime=self.context.options.prompt_cache,
            manifest=manifest,
            request_digest=digest,
            stop_sequence=None if stop_sequence is None else storable(stop_sequence),
            error_code=error_code,
            first_token_ms=answer.first_token_ms,
            duration_ms=answer.duration_ms,
        )

    async def _finish(self, outcome: RunOutcome) -> bool:
        self.flush()
        payloads: list[Payload] = [self._make_footer(outcome)]
        if outcome.notice:
            payloads.insert(0, outcome.notice)
        if self._files_refused is not None and outcome.state == states.COMPLETED:
            payloads.insert(0, describe_refused_files(self._files_refused))
        self.state = outcome.state
        drafts, run_pk = self.context.drafts, self.claimed.run_pk
        with drafts.pending_chunks(run_pk) as draft:
            finished = await self.commit(
                self.writer.write(
                    finish_run,
                    self.claimed,
                    state=outcome.state,
                    payloads=payloads,
                    error_code=outcome.error_code,
                    is_refused=outcome.error_code in REFUSED_CODES,
                    draft=draft,
                    outputs=self.calls.outputs(),
                )
            )
        drafts.forget(run_pk)
        return finished.has_queued

    def _make_footer(self, outcome: RunOutcome) -> TurnSeparator:
        """Return the row with the totals of all model calls, as far as they were reported."""
        calls = self._answered_calls
        reported = [
            call for call in calls if (call.input_tokens, call.output_tokens) != (None, None)
        ]

        def total(*names: str) -> int:
            return sum(getattr(call, name) or 0 for call in reported for name in names)

        prompt = total("input_tokens", "cache_read_tokens", "cache_write_tokens")
        costs = [call.cost_microusd for call in calls if call.cost_microusd is not None]
        first_token_ms = (call.first_token_ms for call in calls if call.first_token_ms is not None)
        return TurnSeparator(
            run=self.run,
            state=outcome.state,
            stop_reason=outcome.stop_reason,
            model=calls[-1].model if calls else "",
            input_tokens=prompt if reported else None,
            output_tokens=total("output_tokens") if reported else None,
            cached_tokens=total("cache_read_tokens") or None,
            cost_usd=cost_text(sum(costs) if costs else None),
            duration_ms=self.worked_ms,
            first_token_ms=next(first_token_ms, None),
            is_demo=self.context.models.is_demo,
        )


def make_turn(message: MessageCompleted) -> NewTurn:
    content = storable(text_of_answer(message.blocks))
    metadata = {"model": message.model, "message_id": message.message_id}
    if message.answered_as not in ("", message.model):
        metadata["answered_as"] = message.answered_as
    return NewTurn(
        role="assistant",
        content=content,
        blocks=dump_json(message.blocks),
        tool_calls=dump_json(calls) if (calls := tool_calls_of(message.blocks)) else None,
        token_count=message.usage.output_tokens or estimate_tokens(content),
        stop_reason=message.stop_reason[:64],
        metadata=dump_json(metadata),
    )


def make_payloads(
    message: MessageCompleted, *, thinking_ms: Mapping[int, int], calls: Sequence[UUID]
) -> list[Payload]:
    """Return the rows of a complete answer: texts and tool calls in order.

    Thinking starts a new row of text. ``thinking_ms`` is by block index. ``calls`` are the uuids of
    the records of the tool calls, in order.
    """
    payloads: list[Payload] = []
    uuids = iter(calls)
    thinking: list[str] = []
    texts: list[str] = []
    spent_ms = 0

    def end_row() -> None:
        text, thought = storable("".join(texts)), storable("\n\n".join(thinking).strip())
        if text.strip() or thought:
            payloads.append(
                AssistantText(
                    text=text, thinking=thought, thinking_ms=spent_ms or None, model=message.model
                )
            )
        texts.clear()
        thinking.clear()

    for index, block in enumerate(message.blocks):
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            if texts:
                end_row()
                spent_ms = 0
            thinking.append(str(block.get("thinking", "")))
            spent_ms += thinking_ms.get(index, 0)
        elif kind == "tool_use":
            end_row()
            spent_ms = 0
            payloads.append(
                ToolCallStarted(
                    call=str(next(uuids)),
                    call_id=storable(str(block.get("id", ""))),
                    name=storable(str(block.get("name") or "tool")),
                    arguments=block.get("input"),
                )
            )
    end_row()
    return payloads


def tool_calls_of(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("type") == "tool_use"]
