"""Executing the calls of one answer: planned, asked, run in order, each ended once.

All questions of an answer are asked at once; then the calls are executed in order,
neighbours that only read together. A call is recorded as running before anything is
done, so that nothing is done twice whatever happens to this process.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from conversations.agent.tools.registry import TOOLS, find_tool
from conversations.agent.tools.tool import Tool, ToolContext, ToolResult
from conversations.archive.append import Appended, prepare_events
from conversations.archive.model_calls import append_tool_result
from conversations.archive.runs import Claimed, RunLost
from conversations.archive.sessions import get_session
from conversations.archive.storage import translate_storage_error
from conversations.archive.tool_calls import (
    Rules,
    ToolCallRecord,
    ask_for_calls,
    begin_call,
    decide_call,
    read_calls,
    read_news,
    read_rules,
    show_run_waiting,
)
from conversations.domain import runs as run_states
from conversations.domain.errors import Conflict, LoomError
from conversations.domain.events import APPROVAL, APPROVAL_ASKED, Info
from conversations.domain.text import one_line, storable
from conversations.domain.tool_calls import (
    ASK,
    BY_POLICY,
    CHANGES,
    COMPLETED,
    DENIED,
    DENY,
    READ_ONLY,
    READS,
    RUNNING,
    STOPPED,
    WAITING,
    CallEnding,
    make_result_payloads,
)
from conversations.domain.tool_policy import (
    REFUSE,
    ApprovalRequest,
    CallPlan,
    Kind,
    ToolScope,
    decide,
)

from .database import PatientWriter
from .execution import RunContext
from .live import LiveCall, LiveCalls

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 10.0
"""How long a tool may take to end what it does when it is stopped."""

MAX_KIND_CHARS = 255
"""Characters of a kind's key; a call of a longer one is allowed one at a time."""

MAX_SHOWN_CHARS = 100_000
"""Characters of a diff or a command that a question shows."""

CUT_OFF = "Not run: the answer was cut off before the call was complete."


class Stage(Protocol):
    """What the loop needs of the run that it works for."""

    claimed: Claimed
    writer: PatientWriter
    calls: LiveCalls

    async def commit[A: Appended](self, work: Coroutine[Any, Any, A]) -> A:
        """See a commit through, also when the run is stopped; show its rows."""
        ...

    def show_rows(self, rows: Sequence[Any]) -> None: ...

    def show_calls(self) -> None: ...

    def show_state(self, state: str, *, doing: str = "") -> None: ...


@dataclass(slots=True)
class _Call:
    """A call that is open. ``result`` is known without running it (refused, failed to be
    planned). ``is_due``: it has to be planned when its turn comes, since calls before it
    may change what it finds. ``settled`` is set by a decision or a stop; or because the
    call was ended by another process, to which the run is lost (``is_lost``)."""

    record: ToolCallRecord
    tool: Tool | None = None
    plan: CallPlan | None = None
    result: ToolResult | None = None
    is_due: bool = False
    asked: ApprovalRequest | None = None
    decision: str = ""
    decided_by: str = ""
    reason: str = ""
    stopped_by: str = ""
    task: asyncio.Task[ToolResult] | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False
    is_lost: bool = False

    @property
    def only_reads(self) -> bool:
        if self.result is not None:
            return True
        return not self.is_due and (self.plan is None or self.plan.effect == READS)

    @property
    def runs(self) -> bool:
        """It is executed as soon as its turn comes."""
        return self.result is None and self.decision != DENY and not self.stopped_by

    @property
    def waits(self) -> bool:
        return self.asked is not None and not self.decision and not self.stopped_by

    def decide(self, decision: str, by: str = "", reason: str = "") -> None:
        if not self.decision:
            self.decision, self.decided_by, self.reason = decision, by, reason
            self.settled.set()

    def stop(self, by: str) -> None:
        if not self.stopped_by:
            self.stopped_by = by
            self.settled.set()
            if self.task is not None:
                self.task.cancel()


class ToolLoop:
    """The calls of a run, answer by answer."""

    def __init__(self, context: RunContext, stage: Stage) -> None:
        self.live = stage.calls
        self._context = context
        self._readers = context.database.readers
        self._stage = stage
        self._claimed = stage.claimed
        self._calls: list[_Call] = []
        self._turn = 0
        self._root = Path()
        self._rules: Rules | None = None
        self._scope: ToolScope | None = None
        self._has_changed = False

    async def execute(
        self, *, turn: int, scope: ToolScope, root: Path, is_cut_off: bool = False
    ) -> None:
        """See that every open call of the answer ends. In one that was cut off none is
        executed: its arguments may be cut too."""
        self._turn, self._scope, self._root = turn, scope, root
        records = await self._readers.read(read_calls, self._claimed.run_pk, turn=turn)
        self._rules, self._has_changed = None, not all(record.is_open for record in records)
        self._calls = [self._open(record) for record in records if record.is_open]
        if is_cut_off:
            for call in self._calls:
                call.result = ToolResult(ok=False, output=CUT_OFF)
        polling = asyncio.create_task(self._poll())
        try:
            await self._context.tool_servers.wait_for(
                [call.record.name for call in self._calls if call.result is None],
                scope.workspace,
                root,
            )
            await self._prepare_calls([call for call in self._calls if call.result is None])
            for group in self._groups():
                await self._execute_group(group)
        finally:
            polling.cancel()
            self._calls = []

    async def look(self) -> None:
        """Notice what was decided, in whatever process."""
        calls = [call for call in self._calls if not call.has_ended and not call.stopped_by]
        if not calls:
            return
        open_calls, allowed = await self._readers.read(
            read_news, self._claimed.run_pk, self._claimed.session_pk
        )
        by_pk = {call.record.pk: call for call in calls}
        before = [(call.decision, call.stopped_by) for call in calls]
        for record in open_calls:
            if (call := by_pk.get(record.pk)) is not None:
                self._note(call, record)
        if before != [(call.decision, call.stopped_by) for call in calls]:
            await self._context.publisher.publish_missed_rows(self._claimed.session_pk)
        still_open = {record.pk for record in open_calls}
        for call in calls:
            if call.waits and call.record.pk not in still_open:
                call.is_lost = True
                call.settled.set()
            elif call.waits and call.asked is not None and call.asked.kind_key in allowed:
                await self._allow_by_permission(call)

    def _note(self, call: _Call, record: ToolCallRecord) -> None:
        if record.stopped_by:
            call.stop(record.stopped_by)
        if record.decision:
            call.decide(record.decision, record.decided_by, record.reason)

    async def _allow_by_permission(self, call: _Call) -> None:
        session = await self._readers.read(get_session, self._claimed.session)
        with contextlib.suppress(Conflict):  # decided meanwhile; the next look finds how
            decided = await self._context.database.writer.write(
                decide_call, session, call=call.record.uuid, decision=BY_POLICY, user_pk=None
            )
            self._stage.show_rows(decided.rows)
            call.decide(BY_POLICY)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._context.options.watch_interval)
            try:
                await self.look()
            except Exception:  # a database that is away for a moment
                logger.exception("calls_not_watched")

    def _open(self, record: ToolCallRecord) -> _Call:
        self.live.add(record.pk, LiveCall(str(record.uuid), record.call_id))
        call = _Call(record=record)
        if record.state == WAITING:
            call.asked = record.asked
            self.live.change_state(record.pk, WAITING)
        self._note(call, record)
        return call

    # Planning and asking

    async def _prepare_calls(self, calls: Sequence[_Call]) -> None:
        """Plan calls and ask a person, for all of them at once, where the policy says so."""
        for call in calls:
            await self._judge(call, is_first=self._is_first_change(call))
        questions = [call for call in calls if call.asked and call.record.state != WAITING]
        if questions:
            await self._ask(questions)

    def _is_first_change(self, call: _Call) -> bool:
        """No open call before this one changes anything."""
        before = self._calls[: self._calls.index(call)]
        return all(earlier.only_reads for earlier in before)

    async def _judge(self, call: _Call, *, is_first: bool) -> None:
        call.is_due = False
        found = self._find_tool(call.record)
        if isinstance(found, ToolResult):
            call.result = found
            return
        call.tool = found
        if call.record.state == WAITING:
            call.plan = _plan_of(call)
            return
        if found.plan is None and found.effect == READS:
            return
        planned = await self._plan(found, call)
        if isinstance(planned, ToolResult):
            call.is_due = not is_first
            call.result = planned if is_first else None
            return
        call.plan = planned
        if planned.effect == CHANGES:
            await self._apply_policy(call, planned)

    def _find_tool(self, record: ToolCallRecord) -> Tool | ToolResult:
        assert self._scope is not None
        servers, workspace = self._context.tool_servers, self._scope.workspace
        more = self._context.program_tools.beside(self._claimed, servers.tools_of(workspace))
        tool = find_tool(record.name, self._scope, more)
        if tool is None:
            why = servers.explain(record.name, workspace)
            why = why or _why_no_tool(record.name, more, self._scope)
            return ToolResult(ok=False, output=why)
        if not isinstance(record.arguments, dict):
            return ToolResult(ok=False, output="The arguments of the call are not an object.")
        return tool

    async def _plan(self, tool: Tool, call: _Call) -> CallPlan | ToolResult:
        if tool.plan is None:
            line = one_line(storable(f"{tool.name} {call.record.arguments}"), limit=200)
            return CallPlan(effect=CHANGES, summary=line)
        try:
            return await tool.plan(self._tool_context(call), call.record.arguments)
        except Exception as error:
            return _failure(error, call)

    async def _apply_policy(self, call: _Call, plan: CallPlan) -> None:
        rules = await self._read_rules()
        kind = Kind(key=plan.kind_key, label=plan.kind_label) if plan.kind_key else None
        decision = decide(rules.scope, effect=plan.effect, kind=kind, allowed=rules.allowed)
        if decision == REFUSE:
            call.result = ToolResult(ok=False, output=_why_refused(rules.scope))
        elif decision == ASK:
            call.asked = _question(call.record, plan)
        else:
            call.decision = BY_POLICY

    async def _read_rules(self, *, anew: bool = False) -> Rules:
        if self._rules is None or anew:
            self._rules = await self._readers.read(
                read_rules, self._claimed.session_pk, user_pk=self._claimed.user_pk
            )
        return self._rules

    async def _ask(self, calls: Sequence[_Call]) -> None:
        asked = [call.asked for call in calls if call.asked is not None]
        rows = [
            Info(
                text=f"Waiting for approval: {question.summary}",
                kind=APPROVAL,
                code=APPROVAL_ASKED,
                data=question.as_data(),
            )
            for question in asked
        ]
        events = await asyncio.to_thread(
            prepare_events, rows, session=self._claimed.session, turn=self._turn
        )

        async def commit() -> Appended:
            pks = [call.record.pk for call in calls]
            rows = await self._stage.writer.write(
                ask_for_calls,
                self._claimed.session_pk,
                questions=list(zip(pks, asked, events, strict=True)),
            )
            return Appended(turns=[], rows=rows)

        await self._stage.commit(commit())
        for call in calls:
            call.record = replace(call.record, state=WAITING, asked=call.asked)
            self.live.change_state(call.record.pk, WAITING)
        self._stage.show_calls()

    # Running

    def _groups(self) -> Iterator[list[_Call]]:
        """The calls in order; those that only read and stand side by side together. What
        a call does may be known only when its turn comes."""
        waiting = list(self._calls)
        while waiting:
            group = [waiting.pop(0)]
            while group[0].only_reads and waiting and waiting[0].only_reads:
                group.append(waiting.pop(0))
            yield group

    async def _execute_group(self, group: Sequence[_Call]) -> None:
        first = group[0]
        if first.is_due and not first.stopped_by:
            await self._judge(first, is_first=True)
            if first.asked is not None:
                await self._ask([first])
        if first.waits:
            await self._wait_for(first)
        self._stage.show_state(run_states.RUNNING, doing=_doing(group))
        tasks: list[asyncio.Task[None]] = []
        for call in group:
            before = tasks[-1] if tasks else None
            tasks.append(asyncio.create_task(self._execute(call, before=before)))
        try:
            await asyncio.wait(tasks)
        finally:
            await _end_tasks(tasks)
        for task in tasks:
            task.result()

    async def _wait_for(self, call: _Call) -> None:
        """Nothing runs while a call waits whose turn it is."""
        write, run_pk = self._stage.writer.write, self._claimed.run_pk
        await write(show_run_waiting, run_pk, waits=True)
        self._stage.show_state(run_states.WAITING_APPROVAL)
        await call.settled.wait()
        if call.is_lost:
            raise RunLost("A call that waited here was ended by another process.")
        await write(show_run_waiting, run_pk, waits=False)

    async def _execute(self, call: _Call, *, before: asyncio.Task[None] | None) -> None:
        """Results are kept in the order of the calls: one waits for that ``before`` it."""
        began = monotonic()
        if call.asked is not None and call.decision not in ("", DENY) and not call.stopped_by:
            await self._recheck(call)
        if call.result is not None:
            result, state = call.result, COMPLETED
        elif call.stopped_by:
            words = f"Stopped by {call.stopped_by} before it began. Nothing was done."
            result, state = ToolResult(ok=False, output=words), STOPPED
        elif call.decision == DENY:
            result, state = ToolResult(ok=False, output=_denied(call)), DENIED
        else:
            result, state = await self._run(call)
        duration_ms = int((monotonic() - began) * 1000)
        if before is not None and not call.stopped_by:
            await asyncio.wait({before})
        await self._end(call, result, state, duration_ms=duration_ms)

    async def _recheck(self, call: _Call) -> None:
        """The rules may be others than when the question was asked, and calls before this
        one may have changed what it was planned on: the plan counts on if it is the same."""
        rules = await self._read_rules(anew=True)
        if not rules.scope.offers_changes:
            call.result = ToolResult(ok=False, output=_why_refused(rules.scope))
            return
        if self._has_changed and call.tool is not None and call.asked is not None:
            planned = await self._plan(call.tool, call)
            if isinstance(planned, CallPlan) and _is_same(planned, call.asked):
                call.asked = replace(call.asked, basis=planned.basis)

    async def _run(self, call: _Call) -> tuple[ToolResult, str]:
        assert call.tool is not None
        by_policy = BY_POLICY if call.decision == BY_POLICY else ""
        await self._stage.writer.write(
            begin_call,
            self._claimed.session_pk,
            run_pk=self._claimed.run_pk,
            owner=self._claimed.owner,
            call_pk=call.record.pk,
            decision=by_policy,
        )
        self.live.change_state(call.record.pk, RUNNING)
        self._stage.show_calls()
        began = monotonic()
        self._has_changed |= not call.only_reads
        call.task = asyncio.ensure_future(
            call.tool.run(self._tool_context(call), call.record.arguments)
        )
        if call.stopped_by:
            call.task.cancel()
        try:
            await asyncio.wait({call.task})
        finally:
            await _end_tasks([call.task])
        if call.stopped_by and (call.task.cancelled() or call.task.exception()):
            return self._stopped(call, seconds=monotonic() - began), STOPPED
        return _result_of(call), COMPLETED

    def _stopped(self, call: _Call, *, seconds: float) -> ToolResult:
        words = f"Stopped by {call.stopped_by} after {seconds:.0f} s."
        shown = self.live.kept(call.record.pk)
        return ToolResult(ok=False, output=f"{words}\n\n{shown}" if shown else words)

    def _tool_context(self, call: _Call) -> ToolContext:
        assert self._scope is not None
        is_approved = call.asked is not None and call.decision not in ("", DENY, BY_POLICY)
        return ToolContext(
            session_pk=self._claimed.session_pk,
            session=self._claimed.session,
            user_pk=self._claimed.user_pk,
            call_turn=self._turn,
            root=self._root,
            read=self._readers.read,
            write=self._stage.writer.write,
            scope=self._scope,
            run_pk=self._claimed.run_pk,
            call_pk=call.record.pk,
            basis=call.asked.basis if call.asked is not None and is_approved else "",
            report=partial(self._report, call.record.pk),
        )

    def _report(self, pk: int, text: str) -> None:
        self.live.report(pk, text)
        self._stage.show_calls()

    async def _end(self, call: _Call, result: ToolResult, state: str, *, duration_ms: int) -> None:
        ending = CallEnding(
            call=str(call.record.uuid),
            call_id=call.record.call_id,
            name=call.record.name or "tool",
            arguments=call.record.arguments,
            ok=result.ok,
            output=result.output,
            blocks=result.blocks,
            diff=result.diff,
            exit_code=result.exit_code,
            state=state,
            decision=call.decision,
            decided_by=call.decided_by,
            reason=call.reason,
            duration_ms=duration_ms,
        )

        async def commit() -> Appended:
            events = await asyncio.to_thread(
                prepare_events,
                make_result_payloads(ending),
                session=self._claimed.session,
                new=0,
            )
            appended = await self._stage.writer.write(
                append_tool_result,
                self._claimed,
                call_pk=call.record.pk,
                ending=ending,
                events=events,
            )
            call.has_ended = True
            self.live.remove(call.record.pk)
            return appended

        await self._stage.commit(commit())


async def _end_tasks(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait for it, for a while."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        _, stuck = await asyncio.wait(running, timeout=CANCEL_SECONDS)
        for _ in stuck:
            logger.error("tool_does_not_end")


def _result_of(call: _Call) -> ToolResult:
    assert call.task is not None
    if call.task.cancelled():
        return ToolResult(ok=False, output="The tool was cancelled.")
    error = call.task.exception()
    return _failure(error, call) if error is not None else call.task.result()


def _failure(error: BaseException, call: _Call) -> ToolResult:
    """A tool that fails is a result which the model reads, never the end of the run."""
    told = translate_storage_error(error) or error
    if isinstance(told, LoomError):
        return ToolResult(ok=False, output=told.message)
    logger.error("tool_failed", exc_info=error, extra={"fields": {"tool": call.record.name}})
    return ToolResult(ok=False, output=f"The tool failed: {type(error).__name__}.")


def _plan_of(call: _Call) -> CallPlan:
    """What is kept of the plan of a call that waits already."""
    asked = call.asked
    assert asked is not None
    return CallPlan(
        effect=CHANGES,
        summary=asked.summary,
        command=asked.command,
        diff=asked.diff,
        kind_key=asked.kind_key,
        kind_label=asked.kind_label,
        basis=asked.basis,
    )


def _question(record: ToolCallRecord, plan: CallPlan) -> ApprovalRequest:
    has_kind = 0 < len(plan.kind_key) <= MAX_KIND_CHARS and storable(plan.kind_key) == plan.kind_key
    diff, command = storable(plan.diff), storable(plan.command)
    is_cut = max(len(diff), len(command)) > MAX_SHOWN_CHARS
    note = f"{plan.note} Only the beginning is shown.".strip() if is_cut else plan.note
    return ApprovalRequest(
        call=str(record.uuid),
        call_id=record.call_id,
        name=record.name,
        summary=one_line(storable(plan.summary), limit=300) or record.name,
        command=command[:MAX_SHOWN_CHARS],
        diff=diff[:MAX_SHOWN_CHARS],
        note=storable(note),
        kind_key=plan.kind_key if has_kind else "",
        kind_label=storable(plan.kind_label or plan.kind_key) if has_kind else "",
        basis=plan.basis,
    )


def _is_same(plan: CallPlan, asked: ApprovalRequest) -> bool:
    """Whether a plan does what a person was shown, wherever in the file it does it."""
    return (
        (plan.kind_key, plan.command) == (asked.kind_key, asked.command)
        and one_line(storable(plan.summary), limit=300) == asked.summary
        and _changed_lines(storable(plan.diff)) == _changed_lines(asked.diff)
    )


def _changed_lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in ("+", "-")]


def _doing(group: Sequence[_Call]) -> str:
    running = sum(call.runs for call in group)
    return ("", "A tool is running", "Tools are running")[min(running, 2)]


def _denied(call: _Call) -> str:
    return f"Denied by {call.decided_by}" + (f": {call.reason}" if call.reason else ".")


def _why_no_tool(name: str, more: Mapping[str, Tool], scope: ToolScope) -> str:
    tool = TOOLS.get(name) or more.get(name)
    if tool is not None and tool.effect == CHANGES and not scope.offers_changes:
        return _why_refused(scope)
    return f"There is no tool named {name!r} here."


def _why_refused(scope: ToolScope) -> str:
    if scope.policy == READ_ONLY:
        return "This workspace is read only: nothing can be changed here."
    return "The person whose message is answered may only read here."
