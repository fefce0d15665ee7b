"""Executing the tool calls of one answer: planning, asking, running in order, ending each once.

All questions of an answer are asked at once. Then the calls are executed in order, and neighbouring
calls that only read run together. A call is recorded as running before it starts, so that no call
is executed twice, whatever happens to this process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from conversations.agent.tools.registry import TOOLS, find_tool
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.agent.undo.disk import read_state, same_state
from conversations.agent.undo.records import last_of_answer
from conversations.archive.append import AppendResult, RunLost, prepare_events
from conversations.archive.model_calls import append_tool_result
from conversations.archive.sessions import get_session
from conversations.archive.storage import translate_storage_error
from conversations.archive.tool_calls import (
    ToolCallRecord,
    ToolRules,
    ask_for_calls,
    ask_question,
    begin_call,
    decide_call,
    read_calls,
    read_decisions,
    read_rules,
    show_run_waiting,
)
from conversations.domain import runs as run_states
from conversations.domain.errors import Conflict, LoomError
from conversations.domain.events import APPROVAL, APPROVAL_ASKED, Info
from conversations.domain.messages import join_messages, say
from conversations.domain.text import one_line, storable
from conversations.domain.tool_calls import (
    ASK,
    AUTO,
    BY_POLICY,
    CHANGES,
    COMPLETED,
    DENIED,
    DENY,
    READ_ONLY,
    READS,
    REFUSE,
    RUN,
    RUNNING,
    STOPPED,
    WAITING,
    ApprovalRequest,
    CallEnding,
    CallPlan,
    ToolScope,
    is_described_otherwise,
    make_result_payloads,
)
from conversations.domain.tool_questions import (
    ACCEPT,
    CANCEL,
    SAMPLING,
    BadQuestion,
    ToolQuestion,
    make_answered_notice,
    make_asked_notice,
    make_question,
)

from .drafts import LiveCall
from .execution import OUTPUT_INTERVAL_SECONDS, Execution, RunContext
from .sampling import answer_prompt, prepare_prompt

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 10.0  # How long a stopped tool may take to end

MAX_KIND_CHARS = 255  # Limit of a kind's key. A call with a longer key can only be allowed once

MAX_SHOWN_CHARS = 100_000  # Limit of a diff or a command in a question

ONE_RUNS, SEVERAL_RUN = say("A tool is running"), say("Tools are running")

CHANGED_TOOL = say(
    "Since “Always allow” was chosen, the server has changed this tool's description or arguments."
)

REVOKED = (
    "Not run: calls of this kind were always allowed, but not any more when its turn came. "
    "Another such call asks a person."
)

CUT_OFF = "Not run: the answer was cut off before the call was complete."


@dataclass(slots=True)
class _Call:
    """An open tool call on its way from the plan to the result.

    ``record`` is the stored record with what has been decided since, such as ``decision="policy"``
    for a call that needs no question. The plan gives the ``effect``; ``rules`` are those that it
    was judged by, and ``basis`` is that of the plan that was allowed. If a person has to decide,
    ``record.asked`` is set, and ``resolved`` is set when the wait is over. ``result`` is set if the
    call is not run, for example because it was refused; otherwise ``task`` runs the tool. While the
    tool's server asks a person, ``question`` is set, and ``answer_future`` waits for the answer.
    """

    record: ToolCallRecord
    tool: Tool | None = None
    effect: str = READS
    rules: ToolRules | None = None
    basis: str = ""
    result: ToolResult | None = None
    resolved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[ToolResult] | None = None
    question: ToolQuestion | None = None
    answer_future: asyncio.Future[dict[str, Any]] | None = None
    question_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one question at a time
    sampling_task: asyncio.Task[dict[str, Any]] | None = None

    @property
    def only_reads(self) -> bool:
        return self.result is not None or self.effect == READS

    @property
    def waits(self) -> bool:
        record = self.record
        return record.asked is not None and not record.decision and not record.stopped_by

    def decide(self, decision: str, decided_by: str = "", reason: str = "") -> None:
        if not self.record.decision:
            self.record = replace(
                self.record, decision=decision, decided_by=decided_by, reason=reason
            )
            self.resolved.set()

    def apply_record(self, record: ToolCallRecord) -> None:
        """Apply the decision, stop and answer in the record, whichever process wrote them."""
        if record.stopped_by and not self.record.stopped_by:
            self.record = replace(self.record, stopped_by=record.stopped_by)
            self.resolved.set()
            if self.task is not None:
                self.task.cancel()
        if record.decision:
            self.decide(record.decision, record.decided_by, record.reason)
        if self.question is None or self.answer_future is None or self.answer_future.done():
            return
        if record.question == self.question and record.answer is not None:
            self.answer_future.set_result(record.answer)
            self.question = None


class ToolLoop:
    """Executes the tool calls of a run, one answer at a time."""

    def __init__(self, context: RunContext, execution: Execution) -> None:
        self.live = execution.calls
        self._context = context
        self._readers = context.database.readers
        self._execution = execution
        self._claimed = execution.claimed
        self._calls: list[_Call] = []
        self._turn = 0
        self._root = Path()
        self._model, self._result_cap = "", 0
        self._rules: ToolRules | None = None
        self._scope: ToolScope | None = None
        self._has_changed = False

    async def execute(
        self,
        *,
        turn: int,
        scope: ToolScope,
        root: Path,
        model: str,
        result_cap: int,
        is_cut_off: bool = False,
    ) -> None:
        """Execute all open calls of the answer, so that each of them ends.

        The calls of an answer that was cut off are not run, because their arguments may be cut off,
        too. ``model`` is the session's model. ``result_cap`` is the size up to which its window
        does not shorten a result.
        """
        self._turn, self._scope, self._root = turn, scope, root
        self._model, self._result_cap = model, result_cap
        self._rules = None
        records = await self._readers.read(read_calls, self._claimed.run_pk, turn=turn)
        self._has_changed = any(not record.is_open for record in records)
        self._calls = [_Call(record=record) for record in records if record.is_open]
        for call in self._calls:
            record = call.record
            self.live.add(record.pk, LiveCall(str(record.uuid), record.call_id))
            if record.state == WAITING:
                self.live.change_state(record.pk, WAITING)
            if is_cut_off:
                call.result = ToolResult(ok=False, output=CUT_OFF)
        polling = asyncio.create_task(self._poll())
        try:
            undecided = [call for call in self._calls if call.result is None]
            names = [call.record.name for call in undecided]
            await self._context.tool_servers.wait_for(names, scope.workspace, root)
            requests: list[tuple[_Call, ApprovalRequest]] = []
            for call in undecided:
                earlier = self._calls[: self._calls.index(call)]
                is_first = all(other.only_reads for other in earlier)
                if request := await self._judge(call, is_first=is_first):
                    requests.append((call, request))
            await self._ask(requests)
            remaining = list(self._calls)
            while remaining:
                # Neighbouring calls that only read run together. The effect of a call may become
                # known only when its turn comes.
                group = [remaining.pop(0)]
                while group[0].only_reads and remaining and remaining[0].only_reads:
                    group.append(remaining.pop(0))
                await self._execute_group(group)
        finally:
            polling.cancel()
            self._calls = []

    async def check_decisions(self) -> None:
        """Apply decisions about the open calls, whichever process recorded them."""
        calls = [call for call in self._calls if not call.record.stopped_by]
        if not calls:
            return
        claimed = self._claimed
        open_calls, rules = await self._readers.read(
            read_decisions, claimed.run_pk, claimed.session_pk, user_pk=claimed.user_pk
        )
        by_pk = {call.record.pk: call for call in calls}
        before = [(call.record, call.question) for call in calls]
        for record in open_calls:
            if (call := by_pk.get(record.pk)) is not None:
                call.apply_record(record)
        if before != [(call.record, call.question) for call in calls]:
            await self._context.publisher.publish_missed_rows(self._claimed.session_pk)
        still_open = {record.pk for record in open_calls}
        for call in calls:
            asked = call.record.asked
            if asked is None or not call.waits:
                continue
            if call.record.pk not in still_open:
                call.resolved.set()
            elif rules and rules.decide(effect=CHANGES, kind=asked.kind_key) == RUN:
                await self._allow_by_policy(call)

    async def _allow_by_policy(self, call: _Call) -> None:
        session = await self._readers.read(get_session, self._claimed.session)
        with contextlib.suppress(Conflict):  # decided meanwhile; the next check applies that
            rows = await self._context.database.writer.write(
                decide_call, session, call=call.record.uuid, decision=BY_POLICY, user_pk=None
            )
            self._execution.show_rows(rows)
            call.decide(BY_POLICY)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._context.options.watch_interval)
            try:
                await self.check_decisions()
            except Exception:  # such as a database that is away for a moment
                logger.exception("calls_not_watched")

    # Planning and asking

    async def _judge(self, call: _Call, *, is_first: bool) -> ApprovalRequest | None:
        """Plan the call and apply the rules to it. Return the request if a person has to decide.

        ``is_first`` says that no call before this one can change what its plan finds.
        """
        assert self._scope is not None
        call.effect = READS
        name, workspace = call.record.name, self._scope.workspace
        servers = self._context.tool_servers
        more_tools = self._context.program_tools.with_own_tools(
            self._claimed, servers.tools_of(workspace)
        )
        tool = call.tool = find_tool(name, self._scope, more_tools)
        if tool is None:
            reason = servers.explain(name, workspace) or f"There is no tool named {name!r}."
            known_tool = more_tools.get(name) or TOOLS.get(name)
            if known_tool and known_tool.effect == CHANGES and not self._scope.offers_changes:
                reason = _why_refused(self._scope)
            call.result = ToolResult(ok=False, output=reason)
        elif not isinstance(call.record.arguments, dict):
            reason = "The arguments of the call are not an object."
            call.result = ToolResult(ok=False, output=reason)
        elif call.record.state == WAITING:
            call.effect = CHANGES
        elif tool.plan is not None or tool.effect != READS:
            plan = await self._plan(tool, call)
            if isinstance(plan, CallPlan):
                return await self._judge_plan(call, plan)
            if is_first:
                call.result = plan
            else:
                call.effect = CHANGES  # It may, until it can be planned when its turn comes.
        return None

    async def _judge_plan(self, call: _Call, plan: CallPlan) -> ApprovalRequest | None:
        assert self._scope is not None
        call.effect = plan.effect
        request = None
        if plan.effect == CHANGES:
            rules = call.rules = self._rules or await self._read_rules()
            decision = rules.decide(effect=CHANGES, kind=plan.kind_key)
            if decision == REFUSE:
                call.result = ToolResult(ok=False, output=_why_refused(rules.scope))
            elif decision == ASK:
                if any(is_described_otherwise(plan.kind_key, kind) for kind in rules.allowed):
                    plan = replace(plan, note=join_messages((plan.note, CHANGED_TOOL)))
                request = _make_request(call.record, plan)
            else:
                call.record = replace(call.record, decision=BY_POLICY)
        # Under the AUTO policy, a call runs whatever it does, so its plan does not bind it and is
        # not made again. Under other policies, a call whose plan leaves a file unchanged must not
        # write the file if it has changed since.
        call.basis = "" if self._scope.policy == AUTO else plan.basis
        return request

    async def _plan(self, tool: Tool, call: _Call) -> CallPlan | ToolResult:
        if tool.plan is None:
            line = one_line(storable(f"{tool.name} {call.record.arguments}"), limit=200)
            return CallPlan(effect=CHANGES, summary=line)
        try:
            return await tool.plan(self._tool_context(call), call.record.arguments)
        except Exception as error:
            return _failure(error, call)

    async def _read_rules(self) -> ToolRules:
        self._rules = await self._readers.read(
            read_rules, self._claimed.session_pk, user_pk=self._claimed.user_pk
        )
        self._scope = self._rules.scope
        return self._rules

    async def _has_to_be_judged(self, call: _Call) -> bool:
        """Return whether the call has to be planned and judged now that its turn has come.

        That is so if it could not be planned before, or if the reason to run it without a question
        may have changed. The rules may have changed. If its kind is always allowed, the call itself
        may have become another kind, unless it has just been planned.
        """
        if call.record.stopped_by or call.only_reads or call.record.asked is not None:
            return False
        rules = await self._read_rules()
        is_just_planned = rules.scope.policy == AUTO or call is self._calls[0]
        return rules != call.rules or not is_just_planned

    async def _ask(self, requests: Sequence[tuple[_Call, ApprovalRequest]]) -> None:
        if not requests:
            return
        rows = [
            Info(
                text=say("Waiting for approval: %(what)s", what=request.summary),
                kind=APPROVAL,
                code=APPROVAL_ASKED,
                data=request.as_data(),
            )
            for _, request in requests
        ]
        events = await asyncio.to_thread(
            prepare_events, rows, session=self._claimed.session, turn=self._turn
        )

        async def commit() -> AppendResult:
            questions = [
                (call.record.pk, request, event)
                for (call, request), event in zip(requests, events, strict=True)
            ]
            rows = await self._execution.writer.write(
                ask_for_calls, self._claimed.session_pk, questions=questions
            )
            return AppendResult(turns=[], rows=rows)

        await self._execution.commit(commit())
        for call, request in requests:
            call.record = replace(call.record, state=WAITING, asked=request)
            self.live.change_state(call.record.pk, WAITING)
        self._execution.show_soon()

    # Running

    async def _execute_group(self, group: Sequence[_Call]) -> None:
        first = group[0]
        if await self._has_to_be_judged(first):
            first.basis, first.record = "", replace(first.record, decision="")
            request = await self._judge(first, is_first=True)
            await self._ask([(first, request)] if request else [])
        if first.waits:  # no call runs while the one whose turn it is waits
            write, run_pk = self._execution.writer.write, self._claimed.run_pk
            await write(show_run_waiting, run_pk, waits=True)
            self._execution.show_state(run_states.WAITING_APPROVAL)
            await first.resolved.wait()
            if first.waits:
                raise RunLost  # another process ended the call and so has taken over the run
            await write(show_run_waiting, run_pk, waits=False)
        running = sum(
            call.result is None and call.record.decision != DENY and not call.record.stopped_by
            for call in group
        )
        doing = ""
        if running:
            doing = ONE_RUNS if running == 1 else SEVERAL_RUN
        self._execution.show_state(run_states.RUNNING, doing=doing)
        tasks: list[asyncio.Task[None]] = []
        for call in group:
            previous = tasks[-1] if tasks else None
            tasks.append(asyncio.create_task(self._execute(call, previous=previous)))
        try:
            await asyncio.wait(tasks)
        finally:
            await _end_tasks(tasks)
        for task in tasks:
            task.result()

    async def _execute(self, call: _Call, *, previous: asyncio.Task[None] | None) -> None:
        """Execute a call. To keep the order of results, wait for the ``previous`` call's task."""
        began = monotonic()
        asked, decision = call.record.asked, call.record.decision
        if asked is not None and decision not in ("", DENY) and not call.record.stopped_by:
            await self._recheck(call, asked)
        record = call.record
        if call.result is not None:
            result, state = call.result, COMPLETED
        elif record.stopped_by:
            output = f"Stopped by {record.stopped_by} before it started. Nothing was done."
            result, state = ToolResult(ok=False, output=output), STOPPED
        elif record.decision == DENY:
            output = f"Denied by {record.decided_by}"
            output += f": {record.reason}" if record.reason else "."
            result, state = ToolResult(ok=False, output=output), DENIED
        else:
            result, state = await self._run(call)
        duration_ms = int((monotonic() - began) * 1000)
        if previous is not None and not call.record.stopped_by:
            await asyncio.wait({previous})
        record = call.record  # a stop may have been added
        ending = CallEnding(
            call=str(record.uuid),
            call_id=record.call_id,
            name=record.name or "tool",
            arguments=record.arguments,
            ok=result.ok,
            output=result.output,
            blocks=result.blocks,
            diff=result.diff,
            exit_code=result.exit_code,
            state=state,
            decision=record.decision,
            decided_by=record.decided_by,
            reason=record.reason,
            duration_ms=duration_ms,
        )

        async def append_result() -> AppendResult:
            payloads, session = make_result_payloads(ending), self._claimed.session
            events = await asyncio.to_thread(prepare_events, payloads, session=session, new=0)
            if call.question is not None:  # the server does not wait for an answer any more
                notices = [make_answered_notice(call.question, action=CANCEL)]
                notice_events = await asyncio.to_thread(prepare_events, notices, session=session)
                events = [*notice_events, *events]
            appended = await self._execution.writer.write(
                append_tool_result, self._claimed, call_pk=record.pk, ending=ending, events=events
            )
            self.live.remove(record.pk)
            return appended

        await self._execution.commit(append_result())

    async def _recheck(self, call: _Call, approved: ApprovalRequest) -> None:
        """Check an approved call again before it runs.

        The rules may have changed since the question. They may restrict what was approved, but
        never add network access to it. Earlier calls of the answer may have changed the file that
        the call was planned on. The call then runs on the changed file if the question would be the
        same. A call that no person allowed has to be of a kind that is still always allowed.
        """
        rules = await self._read_rules()
        scope, is_of_kind = rules.scope, call.record.decision == BY_POLICY
        call.basis = "" if is_of_kind else approved.basis
        if not scope.offers_changes:
            call.result = ToolResult(ok=False, output=_why_refused(scope))
        elif call.tool and (is_of_kind or self._has_changed or scope.allows_network):
            planned = await self._plan(call.tool, call)
            plan = planned if isinstance(planned, CallPlan) else CallPlan(effect=CHANGES)
            is_same = _asks_the_same(_make_request(call.record, plan), approved)
            if not is_same:
                self._scope = replace(scope, allows_network=False)
            if not is_of_kind:
                if is_same and plan.place and await self._is_own_change(plan.place):
                    call.basis = plan.basis
            elif isinstance(planned, ToolResult):
                call.result = planned
            elif rules.decide(effect=plan.effect, kind=plan.kind_key) == RUN:
                call.basis = plan.basis
            else:
                call.result = ToolResult(ok=False, output=REVOKED)

    async def _is_own_change(self, path: str) -> bool:
        """Return whether the file is in the state in which a call of this answer left it."""
        change = await self._readers.read(
            last_of_answer, self._claimed.run_pk, turn=self._turn, path=path
        )
        if change is None:
            return False
        with contextlib.suppress(OSError, LoomError):
            return same_state(await asyncio.to_thread(read_state, self._root, path), change.after)
        return False

    async def _run(self, call: _Call) -> tuple[ToolResult, str]:
        assert call.tool is not None
        await self._execution.writer.write(
            begin_call,
            self._claimed.session_pk,
            run_pk=self._claimed.run_pk,
            owner=self._claimed.owner,
            call_pk=call.record.pk,
            decision=BY_POLICY if call.record.decision == BY_POLICY else "",
        )
        self.live.change_state(call.record.pk, RUNNING)
        self._execution.show_soon()
        began = monotonic()
        if not call.only_reads:
            self._has_changed = True
        context = self._tool_context(call)
        task = call.task = asyncio.ensure_future(call.tool.run(context, call.record.arguments))
        if call.record.stopped_by:
            task.cancel()
        try:
            await asyncio.wait({task})
            if call.question is not None:
                await self._execution.writer.write(
                    show_run_waiting, self._claimed.run_pk, waits=False
                )
                self._execution.show_state(run_states.RUNNING, doing=ONE_RUNS)
        except asyncio.CancelledError:
            await _end_tasks([task])
            # A call that ended in spite of the cancellation has been done, so its result is kept.
            if not task.done() or task.cancelled() or task.exception():
                raise
        finally:
            # A server may ask outside the task of its call. Its question cannot be answered any
            # more.
            if call.answer_future is not None and not call.answer_future.done():
                call.answer_future.set_result({"action": CANCEL})
            if call.sampling_task is not None:
                call.sampling_task.cancel()
        error = None if task.cancelled() else task.exception()
        if call.record.stopped_by and (task.cancelled() or error):
            output = f"Stopped by {call.record.stopped_by} after {monotonic() - began:.0f} s."
            if live_output := self.live.output(call.record.pk):
                output = f"{output}\n\n{live_output}"
            return ToolResult(ok=False, output=output), STOPPED
        if task.cancelled():
            return ToolResult(ok=False, output="The tool call was cancelled."), COMPLETED
        return _failure(error, call) if error is not None else task.result(), COMPLETED

    async def _ask_person(
        self, call: _Call, server: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Ask a person a question of the call's tool server and return the answer.

        The question waits as long as the call does.
        """
        async with call.question_lock:
            uuid = str(call.record.uuid)
            is_prompt = params.get("mode") == SAMPLING
            if is_prompt:
                params = prepare_prompt(params, self._context.models, own_model=self._model)
            try:
                question = make_question(params, call=uuid, server=server)
            except BadQuestion as error:
                logger.warning("question_not_asked", extra={"fields": {"reason": str(error)}})
                return {"action": CANCEL} | ({"reason": str(error)} if is_prompt else {})
            call.question = question
            answer_future = call.answer_future = asyncio.get_running_loop().create_future()
            [event] = await asyncio.to_thread(
                prepare_events,
                [make_asked_notice(question)],
                session=self._claimed.session,
                turn=self._turn,
            )

            async def commit() -> AppendResult:
                rows = await self._execution.writer.write(
                    ask_question,
                    self._claimed.session_pk,
                    call_pk=call.record.pk,
                    question=question,
                    event=event,
                )
                return AppendResult(turns=[], rows=rows)

            asked = await self._execution.commit(commit())
            if call.task is None or call.task.done():  # the call has ended meanwhile
                return {"action": CANCEL}
            write, run_pk = self._execution.writer.write, self._claimed.run_pk
            await write(show_run_waiting, run_pk, waits=True)
            self._execution.show_state(
                run_states.WAITING_APPROVAL, doing=say("Waiting for an answer")
            )
            answer = await answer_future
            if call.question is None:  # otherwise the call has ended and shows no state
                await write(show_run_waiting, run_pk, waits=False)
                self._execution.show_state(run_states.RUNNING, doing=ONE_RUNS)
            if question.prompt and answer["action"] == ACCEPT:
                return await self._ask_model(call, question, seq=asked.rows[0].seq)
            return {name: answer[name] for name in ("action", "content") if answer.get(name)}

    async def _ask_model(self, call: _Call, question: ToolQuestion, *, seq: int) -> dict[str, Any]:
        work = answer_prompt(self._execution, question, seq=seq)
        task = call.sampling_task = asyncio.create_task(work)
        # The end of the call cancels this task. The cancellation must not reach the task of the
        # server's connection, which waits here.
        await asyncio.wait({task})
        return {"action": CANCEL} if task.cancelled() else task.result()

    def _tool_context(self, call: _Call) -> ToolContext:
        assert self._scope is not None

        def report(text: str) -> None:
            self.live.report(call.record.pk, text)
            self._execution.show_soon(interval=OUTPUT_INTERVAL_SECONDS)

        return ToolContext(
            session_pk=self._claimed.session_pk,
            session=self._claimed.session,
            user_pk=self._claimed.user_pk,
            call_turn=self._turn,
            root=self._root,
            read=self._readers.read,
            write=self._execution.writer.write,
            scope=self._scope,
            run_pk=self._claimed.run_pk,
            call_pk=call.record.pk,
            basis=call.basis,
            report=report,
            ask=partial(self._ask_person, call),
            result_cap=self._result_cap,
        )


async def _end_tasks(tasks: Sequence[asyncio.Future[Any]]) -> None:
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        _, stuck = await asyncio.wait(running, timeout=CANCEL_SECONDS)
        for _ in stuck:
            logger.error("tool_does_not_end")


def _failure(error: BaseException, call: _Call) -> ToolResult:
    """Return an error as a result that the model reads. A failing tool never ends the run."""
    translated = translate_storage_error(error) or error
    if isinstance(translated, LoomError):
        return ToolResult(ok=False, output=translated.message)
    logger.error("tool_failed", exc_info=error, extra={"fields": {"tool": call.record.name}})
    return ToolResult(ok=False, output=f"The tool failed: {type(error).__name__}.")


def _make_request(record: ToolCallRecord, plan: CallPlan) -> ApprovalRequest:
    has_kind = 0 < len(plan.kind_key) <= MAX_KIND_CHARS and storable(plan.kind_key) == plan.kind_key
    diff, command = storable(plan.diff), storable(plan.command)
    summary, label = one_line(storable(plan.summary), limit=300), plan.kind_label or plan.kind_key
    is_cut = max(len(diff), len(command)) > MAX_SHOWN_CHARS
    cut = say("Only the beginning is shown.") if is_cut else ""
    note = join_messages((plan.note, cut))
    return ApprovalRequest(
        call=str(record.uuid),
        call_id=record.call_id,
        name=record.name,
        summary=_as_shown(plan.summary, summary) or record.name,
        command=command[:MAX_SHOWN_CHARS],
        diff=diff[:MAX_SHOWN_CHARS],
        note=_as_shown(note, storable(note)),
        kind_key=plan.kind_key if has_kind else "",
        kind_label=_as_shown(label, storable(label)) if has_kind else "",
        basis=plan.basis,
    )


def _as_shown(text: str, shown: str) -> str:
    """Return ``text``, which may be translatable, if it is shown whole; otherwise ``shown``."""
    return text if text == shown else shown


def _asks_the_same(request: ApprovalRequest, other: ApprovalRequest) -> bool:
    """Return whether a person would see the same question again, apart from places in the file."""

    def without_places(request: ApprovalRequest) -> ApprovalRequest:
        changed = [line for line in request.diff.splitlines() if line[:1] in ("+", "-")]
        return replace(request, diff="\n".join(changed), basis="")

    return without_places(request) == without_places(other)


def _why_refused(scope: ToolScope) -> str:
    if scope.policy == READ_ONLY:
        return "This workspace is read-only: tools cannot change anything."
    return "The person whose message is being answered has read-only access."
