"""Sending a client's messages and tool results, and waiting for the answer.

The answer is complete when the run has ended or when the model waits for tools of the client.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.db.models import Max, Min, QuerySet, Sum

from conversations.agent.mcp.connection import PREFIX as MCP_PREFIX
from conversations.agent.tools.registry import TOOLS
from conversations.archive.messages import last_user_turn
from conversations.archive.turns import COLUMNS
from conversations.domain.errors import Rejected, Unavailable
from conversations.domain.formats.contents import text_block
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import load_json
from conversations.domain.tool_calls import COMPLETED, OPEN_STATES, RUNNING
from conversations.domain.turns import ASSISTANT, USER, MalformedTurn, StoredTurn, read_blocks
from conversations.models import ModelCall, Rewind, Run, ToolCall, Turn
from conversations.runtime.following import wait_for_final_state
from conversations.runtime.run import REFUSED_CODES
from conversations.runtime.service import Runtime

from .client_request import require_forced_tool
from .sessions import UNANSWERED, ClientExchange

WITHDRAWN = "withdrawn"  # The error code if the message was withdrawn before a model was called.

# Error codes of failed runs that the APIs report as an answer, not as an error.
ANSWERED = ("refusal", "empty_answer")

ELSEWHERE = "The session is being answered in another process. Try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """The answer of a run.

    ``blocks`` are texts and tool calls, in order. ``stop_reason`` is the model's, or empty if it
    gave none. ``stop_sequence`` is the stop sequence at which the answer ended. ``usage`` has the
    tokens of the model calls. ``model`` is the model of the last model call, or empty if there was
    none. ``calls`` are the calls of the client's tools that the client must execute now."""

    state: str = ""
    model: str = ""
    error_code: str = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str = ""
    stop_sequence: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def is_missing(self) -> bool:
        has_failed = self.state in UNANSWERED and self.error_code not in ANSWERED
        return has_failed or self.error_code == WITHDRAWN


async def submit_exchange(runtime: Runtime, exchange: ClientExchange) -> tuple[int, int]:
    """Submit the tool results and send the message.

    Return after the message has been stored: the primary key of the run that answers, and the turn
    after which its answer begins."""
    session_pk, tools, accepted = exchange.session.pk, runtime.program_tools, exchange.accepted
    await _require_results(runtime, exchange)
    client_id = exchange.client_id
    if accepted is not None and accepted.state in UNANSWERED:
        client_id = f"{client_id[:50]}-{uuid4().hex[:12]}"
    if exchange.content is None:
        return await _answer_results(runtime, exchange, client_id)
    if accepted is not None and accepted.state not in UNANSWERED:
        # The request was sent before, so its answer is that of the existing run.
        if accepted.state in ACTIVE_STATES:
            await _require_tools_here(runtime, exchange)
        _submit_results(runtime, exchange)
        return accepted.run_pk, 0
    await _require_tools_here(runtime, exchange)
    with _tools_of_client(runtime, exchange, client_id):
        # The results end the waiting run. The message is answered by a new run.
        tools.end_waiting_runs(session_pk)
        _submit_results(runtime, exchange)
        tools.abandon_calls(session_pk)
        return await _start_run(runtime, exchange, client_id), 0


@contextmanager
def _tools_of_client(runtime: Runtime, exchange: ClientExchange, client_id: str) -> Iterator[None]:
    """Register the client's tools before the run, and remove them if the run cannot begin."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    tools.register(session_pk, client_id, exchange.client_request.tools)
    try:
        require_forced_tool(exchange.client_request.choices, tools.tools_of(session_pk, client_id))
        yield
    except BaseException:
        tools.forget(session_pk, client_id)
        raise


async def _answer_results(
    runtime: Runtime, exchange: ClientExchange, client_id: str
) -> tuple[int, int]:
    await _apply_choices(runtime, exchange)
    _submit_results(runtime, exchange)
    last, _ = exchange.results[-1]
    if any(call.state in OPEN_STATES for call, _ in exchange.results):
        return last.run_id, last.turn_number
    # The results were sent before.
    run, has_failed = await runtime.readers.read(read_run_after, last)
    run_pk = run.pk
    if run.state in ACTIVE_STATES:
        await _require_tools_here(runtime, exchange)
    if has_failed:
        with _tools_of_client(runtime, exchange, client_id):
            begun = await runtime.continue_run(
                exchange.session,
                client_id=client_id,
                user_pk=exchange.user.pk,
                choices=exchange.client_request.choices,
            )
        run_pk = begun.run_pk
    return run_pk, last.turn_number


def read_run_after(call: ToolCall) -> tuple[Run, bool]:
    """Return the newest run for the call's message, and whether it must be continued.

    It must be continued if it ended without answering the results and no message was sent since."""
    run = Run.objects.filter(session=call.session_id, user_turn=call.run.user_turn).latest("pk")
    # Results that the provider refused have been put aside, so there is nothing to continue.
    has_failed = run.state in UNANSWERED and run.error_code not in REFUSED_CODES
    return run, has_failed and run.user_turn == last_user_turn(call.session_id)


async def _require_results(runtime: Runtime, exchange: ClientExchange) -> None:
    """Check the tool results of a request.

    Raise Rejected if a result is missing, is given twice or comes too late. Raise Unavailable if
    the run waits for it in another process."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    calls = [call for call, _ in exchange.results]
    result_pks = {call.pk for call in calls}
    if len(result_pks) < len(calls):
        raise Rejected("Every tool call has one result.", code="result_twice")
    for call in calls:
        if call.state not in (*OPEN_STATES, COMPLETED):
            raise Rejected(f"The call {call.call_id} has ended.", code="call_over")
    open_calls = [call for call in calls if call.state in OPEN_STATES]
    if any(call.name not in tools.tools_of(session_pk, call.run.client_id) for call in open_calls):
        raise Unavailable(ELSEWHERE)
    for run in {call.run_id: call.run for call in open_calls}.values():
        if {call.pk for call in await _list_unanswered(runtime, run)} - result_pks:
            raise Rejected("Every tool call needs its result.", code="result_missing")


async def _require_tools_here(runtime: Runtime, exchange: ClientExchange) -> None:
    """Raise Unavailable if a run of another process stands in the way of this request.

    Such a run would take the message without having the client's tools, or it waits for a client's
    tool results."""
    session_pk, read = exchange.session.pk, runtime.readers.read
    conditions: dict[str, Any] = {
        "owner": runtime.owner.id,
        "has_tools": bool(exchange.client_request.tools),
    }
    if await read(is_needed_elsewhere, session_pk, **conditions):
        await runtime.queue.recover(session_pk=session_pk)  # that process may have ended
        if await read(is_needed_elsewhere, session_pk, **conditions):
            raise Unavailable(ELSEWHERE)


def is_needed_elsewhere(session_pk: int, *, owner: str, has_tools: bool) -> bool:
    """Return whether another process than ``owner`` has an active run of the session.

    Such a process also takes the next message. If the client has no tools, return whether the run
    waits for a client's tools."""
    runs = Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES).exclude(owner=owner)
    calls = ToolCall.objects.filter(run__in=runs, state=RUNNING)
    brought = calls.exclude(name__in=TOOLS).exclude(name__startswith=MCP_PREFIX)
    return runs.exists() if has_tools else brought.exists()


async def _apply_choices(runtime: Runtime, exchange: ClientExchange) -> None:
    """Apply the request's choices to the runs that wait for its results."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    runs = {call.run_id: call.run for call, _ in exchange.results if call.state in OPEN_STATES}
    for run in runs.values():
        require_forced_tool(
            exchange.client_request.choices, tools.tools_of(session_pk, run.client_id)
        )
        await runtime.choose_for_run(session_pk, run.pk, exchange.client_request.choices)


def _submit_results(runtime: Runtime, exchange: ClientExchange) -> None:
    session_pk = exchange.session.pk
    for call, result in exchange.results:
        runtime.program_tools.submit_result(session_pk, call.run.client_id, call.pk, result)


async def _start_run(runtime: Runtime, exchange: ClientExchange, client_id: str) -> int:
    session, accepted = exchange.session, exchange.accepted
    arguments: dict[str, Any] = {
        "client_id": client_id,
        "user_pk": exchange.user.pk,
        "choices": exchange.client_request.choices,
    }
    last = await runtime.readers.read(last_user_turn, session.pk) if accepted else None
    # The run of this message failed. Regenerate its answer if it is the last message. Otherwise
    # send the message again, because regenerating would take later messages back.
    if accepted is not None and accepted.turn is not None and accepted.turn == last:
        message = await runtime.regenerate(session, turn=accepted.turn, **arguments)
    else:
        assert exchange.content is not None
        message = await runtime.send(
            session, text=exchange.content.text, attachments=exchange.attachments, **arguments
        )
    return message.run_pk


async def wait_for_answer(runtime: Runtime, run: Run, after_turn: int) -> RunAnswer:
    """Wait until the run has ended or waits for the client; return its answer after a turn."""
    ending = asyncio.create_task(
        wait_for_final_state(runtime, session_pk=run.session_id, run_pk=run.pk)
    )
    try:
        calls = await _wait_for_calls(runtime, run, ending)
    finally:
        ending.cancel()
    return await runtime.readers.read(read_run_answer, run.pk, after_turn, calls)


async def _wait_for_calls(runtime: Runtime, run: Run, ending: asyncio.Task[str]) -> list[ToolCall]:
    # Return the calls that the client must execute as soon as one waits, or [] if the run ended.
    tools, session_pk, client_id = runtime.program_tools, run.session_id, run.client_id
    waiting: frozenset[int] = frozenset()
    while True:
        others = asyncio.create_task(tools.wait_for_others(session_pk, client_id, than=waiting))
        try:
            await asyncio.wait({ending, others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            others.cancel()
        if ending.done():
            ending.result()
            tools.forget(session_pk, client_id)  # needed if another process ended the run
            return []
        waiting = others.result()
        calls = await _list_unanswered(runtime, run) if waiting else []
        if calls:
            return calls


async def _list_unanswered(runtime: Runtime, run: Run) -> list[ToolCall]:
    calls = await runtime.readers.read(list_open_calls, run.pk)
    return runtime.program_tools.list_unanswered(run.session_id, run.client_id, calls)


def list_open_calls(run_pk: int) -> list[ToolCall]:
    """Return the run's tool calls that have not ended, in order."""
    return list(ToolCall.objects.filter(run=run_pk, state__in=OPEN_STATES).order_by("pk"))


USAGE = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def read_run_answer(run_pk: int, after_turn: int, calls: list[ToolCall]) -> RunAnswer:
    run = Run.objects.get(pk=run_pk)
    after = max(after_turn, run.user_turn or 0)
    answers = _list_answers(run, after).values(*COLUMNS) if run.user_turn else []
    model_calls = ModelCall.objects.filter(run=run.pk)
    sums = model_calls.filter(turn_number__gt=after).aggregate(
        **{name: Sum(name) for name in USAGE}
    )
    ended = model_calls.filter(error_code="").order_by("-ordinal")
    stop = ended.values_list("stop_reason", "stop_sequence").first()
    stop_reason, stop_sequence = stop or ("", None)
    return RunAnswer(
        state=run.state,
        model=_read_model(run.pk),
        error_code=run.error_code if run.user_turn else WITHDRAWN,
        blocks=[block for row in answers for block in list_answer_blocks(StoredTurn(**row))],
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage={name: total or 0 for name, total in sums.items()},
        calls=calls,
    )


def _read_model(run_pk: int) -> str:
    """Return the model's name as it was requested, because providers report other names."""
    answers = ModelCall.objects.filter(run=run_pk, error_code="", turn_number__isnull=False)
    manifest = answers.order_by("-ordinal").values_list("manifest", flat=True).first()
    return str(load_json(manifest, default={}).get("model", ""))


def _list_answers(run: Run, after: int) -> QuerySet[Turn]:
    turns = Turn.objects.filter(session=run.session_id, number__gt=after).order_by("number")
    # Only one run at a time writes turns. Its own turns are those up to the next user message and
    # between the rewinds before and after the run. A rewind's ``to_turn`` is the last turn at its
    # time.
    following = turns.filter(role=USER).values_list("number", flat=True).first()
    if following is not None:
        turns = turns.filter(number__lt=following)
    if run.first_seq is not None:
        rewinds = Rewind.objects.filter(session=run.session_id)
        before = rewinds.filter(to_seq__lt=run.first_seq).aggregate(turn=Max("to_turn"))
        since = rewinds.filter(to_seq__gte=run.first_seq).aggregate(turn=Min("to_turn"))
        turns = turns.filter(number__gt=before["turn"] or 0)
        if since["turn"] is not None:
            turns = turns.filter(number__lte=since["turn"])
    return turns.filter(role=ASSISTANT)


def list_answer_blocks(turn: StoredTurn) -> list[dict[str, Any]]:
    """Return a turn's texts and tool calls; for a turn with damaged blocks, its text."""
    try:
        blocks = read_blocks(turn)
    except MalformedTurn:
        blocks = None
    if blocks is None:
        return [text_block(turn.content)] if turn.content.strip() else []
    return [
        block
        for block in blocks
        if block.get("type") == "tool_use"
        or (block.get("type") == "text" and str(block.get("text", "")).strip())
    ]
