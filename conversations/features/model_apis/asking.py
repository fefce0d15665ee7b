"""Sending what a client says, and waiting until it is its turn again.

That is when the run has ended, or when the model waits for tools of the client.
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

WITHDRAWN = "withdrawn"  # why there is no answer to a message that no model was asked

# Why a run failed whose answer the APIs have a form for.
ANSWERED = ("refusal", "empty_answer")

ELSEWHERE = "The session is being answered in another process. Try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """``blocks`` are texts and calls of tools, in order. ``stop_reason`` is the model's,
    empty where it gave none, ``stop_sequence`` the text at which it was told to end;
    ``usage`` the tokens of the calls of the model; ``model`` the one that was asked last, empty
    where none was. ``calls`` are those of the client's
    tools, which it is to carry out now."""

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


async def ask(runtime: Runtime, exchange: ClientExchange) -> tuple[int, int]:
    """Give the results, send the message. Returns when it is on disk: the key of the run that
    answers, and the turn after which what it says is new."""
    session_pk, tools, known = exchange.session.pk, runtime.program_tools, exchange.known
    await _require_results(runtime, exchange)
    client_id = exchange.client_id
    if known is not None and known.state in UNANSWERED:
        client_id = f"{client_id[:50]}-{uuid4().hex[:12]}"
    if exchange.words is None:
        return await _answer_results(runtime, exchange, client_id)
    if known is not None and known.state not in UNANSWERED:
        # What is sent again is the run that there is.
        if known.state in ACTIVE_STATES:
            await _require_tools_here(runtime, exchange)
        _submit_results(runtime, exchange)
        return known.run_pk, 0
    await _require_tools_here(runtime, exchange)
    with _tools_of_client(runtime, exchange, client_id):
        # The message is answered, and the answer that waited for the results ends with them.
        tools.end_waiting_runs(session_pk)
        _submit_results(runtime, exchange)
        tools.abandon_calls(session_pk)
        return await _begin(runtime, exchange, client_id), 0


@contextmanager
def _tools_of_client(runtime: Runtime, exchange: ClientExchange, client_id: str) -> Iterator[None]:
    """The client's tools are there before the run, and go if it cannot begin."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    tools.register(session_pk, client_id, exchange.asked.tools)
    try:
        require_forced_tool(exchange.asked.choices, tools.tools_of(session_pk, client_id))
        yield
    except BaseException:
        tools.forget(session_pk, client_id)
        raise


async def _answer_results(
    runtime: Runtime, exchange: ClientExchange, client_id: str
) -> tuple[int, int]:
    await _choose_for_waiting(runtime, exchange)
    _submit_results(runtime, exchange)
    last, _ = exchange.results[-1]
    if any(call.state in OPEN_STATES for call, _ in exchange.results):
        return last.run_id, last.turn_number
    # They are sent again.
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
                choices=exchange.asked.choices,
            )
        run_pk = begun.run_pk
    return run_pk, last.turn_number


def read_run_after(call: ToolCall) -> tuple[Run, bool]:
    """The newest run that answers the call's message, and whether it has ended without the
    answer to its results, and nothing was said since."""
    run = Run.objects.filter(session=call.session_id, user_turn=call.run.user_turn).latest("pk")
    # Results that the provider has refused stand aside.
    has_failed = run.state in UNANSWERED and run.error_code not in REFUSED_CODES
    return run, has_failed and run.user_turn == last_user_turn(call.session_id)


async def _require_results(runtime: Runtime, exchange: ClientExchange) -> None:
    """Raises Rejected where one is missing, comes twice or too late, and Unavailable where the
    run waits for it elsewhere."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    calls = [call for call, _ in exchange.results]
    given = {call.pk for call in calls}
    if len(given) < len(calls):
        raise Rejected("Every tool call has one result.", code="result_twice")
    for call in calls:
        if call.state not in (*OPEN_STATES, COMPLETED):
            raise Rejected(f"The call {call.call_id} has ended.", code="call_over")
    open_calls = [call for call in calls if call.state in OPEN_STATES]
    if any(call.name not in tools.tools_of(session_pk, call.run.client_id) for call in open_calls):
        raise Unavailable(ELSEWHERE)
    for run in {call.run_id: call.run for call in open_calls}.values():
        if {call.pk for call in await _list_unanswered(runtime, run)} - given:
            raise Rejected("Every tool call needs its result.", code="result_missing")


async def _require_tools_here(runtime: Runtime, exchange: ClientExchange) -> None:
    """Raises Unavailable where another process would answer the message without the client's
    tools, or waits for what they give."""
    session_pk, read = exchange.session.pk, runtime.readers.read
    of: dict[str, Any] = {"owner": runtime.owner.id, "has_tools": bool(exchange.asked.tools)}
    if await read(is_needed_elsewhere, session_pk, **of):
        await runtime.queue.recover(session_pk=session_pk)  # that process may be gone
        if await read(is_needed_elsewhere, session_pk, **of):
            raise Unavailable(ELSEWHERE)


def is_needed_elsewhere(session_pk: int, *, owner: str, has_tools: bool) -> bool:
    """Whether a run of another process than ``owner`` comes first, which takes the next message
    as well; without tools: whether it waits for a client."""
    runs = Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES).exclude(owner=owner)
    calls = ToolCall.objects.filter(run__in=runs, state=RUNNING)
    brought = calls.exclude(name__in=TOOLS).exclude(name__startswith=MCP_PREFIX)
    return runs.exists() if has_tools else brought.exists()


async def _choose_for_waiting(runtime: Runtime, exchange: ClientExchange) -> None:
    """The run that waits for these results goes on as this request asks."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    runs = {call.run_id: call.run for call, _ in exchange.results if call.state in OPEN_STATES}
    for run in runs.values():
        require_forced_tool(exchange.asked.choices, tools.tools_of(session_pk, run.client_id))
        await runtime.choose_for_run(session_pk, run.pk, exchange.asked.choices)


def _submit_results(runtime: Runtime, exchange: ClientExchange) -> None:
    for call, gave in exchange.results:
        runtime.program_tools.submit_result(exchange.session.pk, call.run.client_id, call.pk, gave)


async def _begin(runtime: Runtime, exchange: ClientExchange, client_id: str) -> int:
    session, words, known = exchange.session, exchange.words, exchange.known
    given: dict[str, Any] = {
        "client_id": client_id,
        "user_pk": exchange.user.pk,
        "choices": exchange.asked.choices,
    }
    last = await runtime.readers.read(last_user_turn, session.pk) if known else None
    # It has failed, and is tried once more; said once more where others went on meanwhile,
    # since nothing that they said is to be taken back.
    if known is not None and known.turn is not None and known.turn == last:
        return (await runtime.regenerate(session, turn=known.turn, **given)).run_pk
    assert words is not None
    attachments = exchange.attachments
    accepted = await runtime.send(session, text=words.text, attachments=attachments, **given)
    return accepted.run_pk


async def wait_for_answer(runtime: Runtime, run: Run, after_turn: int) -> RunAnswer:
    """What the run has answered after a turn, when it has ended or waits for the client."""
    ending = asyncio.create_task(
        wait_for_final_state(runtime, session_pk=run.session_id, run_pk=run.pk)
    )
    try:
        calls = await _wait_for_calls(runtime, run, ending)
    finally:
        ending.cancel()
    return await runtime.readers.read(read_run_answer, run.pk, after_turn, calls)


async def _wait_for_calls(runtime: Runtime, run: Run, ending: asyncio.Task[str]) -> list[ToolCall]:
    # The calls that the client is to carry out as soon as one of them waits; none where the
    # run has ended.
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
            tools.forget(session_pk, client_id)  # also where another process ended it
            return []
        waiting = others.result()
        calls = await _list_unanswered(runtime, run) if waiting else []
        if calls:
            return calls


async def _list_unanswered(runtime: Runtime, run: Run) -> list[ToolCall]:
    calls = await runtime.readers.read(list_open_calls, run.pk)
    return runtime.program_tools.list_unanswered(run.session_id, run.client_id, calls)


def list_open_calls(run_pk: int) -> list[ToolCall]:
    """The run's calls that have not ended, in order."""
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
    """By the name under which it was asked: providers report others."""
    answers = ModelCall.objects.filter(run=run_pk, error_code="", turn_number__isnull=False)
    manifest = answers.order_by("-ordinal").values_list("manifest", flat=True).first()
    return str(load_json(manifest, default={}).get("model", ""))


def _list_answers(run: Run, after: int) -> QuerySet[Turn]:
    turns = Turn.objects.filter(session=run.session_id, number__gt=after).order_by("number")
    # One run at a time writes turns: its own are those up to the next message of a person, and
    # between the rewinds before and after it, which name the last turn that there was.
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
    """Texts and calls of tools; what a damaged turn said is its text."""
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
