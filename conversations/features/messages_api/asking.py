"""Sending what a client says, and waiting until it is its turn again.

That is when the run has ended, or when the model waits for tools of the client.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from conversations.archive.messages import Accepted, last_user_turn
from conversations.domain.errors import Rejected, Unavailable
from conversations.domain.runs import FAILED, INTERRUPTED
from conversations.models import Session
from conversations.runtime.following import wait_for_final_state
from conversations.runtime.service import Runtime

from .records import (
    AskedCall,
    RunAnswer,
    list_open_calls,
    read_run_answer,
)
from .sessions import ClientExchange
from .shapes import MessagesIn, require_forced_tool

UNANSWERED = (FAILED, INTERRUPTED)
"""States of a run that ended without its answer."""

SETTLING_SECONDS = 0.25
"""How long to wait for further calls of the same answer."""

ELSEWHERE = "The call waits in another process. Try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRun:
    """A run that answers a client. Only what it says after a turn is new."""

    session_pk: int
    run_pk: int
    client_id: str
    after_turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """``calls`` are those of the client's tools, which it is to carry out now."""

    answer: RunAnswer
    calls: list[AskedCall]


async def ask(runtime: Runtime, exchange: ClientExchange, asked: MessagesIn) -> PendingRun:
    """Give the results, send the message. Returns when it is on disk."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    is_said = exchange.words is not None and _is_new(exchange)
    _require_results(runtime, exchange)
    if exchange.words is None:
        await _choose_for_waiting(runtime, exchange)
    last = _give_results(runtime, exchange, is_said=is_said)
    if exchange.words is None:
        assert last is not None
        return PendingRun(
            session_pk=session_pk,
            run_pk=last.run_pk,
            client_id=last.client_id,
            after_turn=last.turn,
        )
    if is_said and last is None:
        tools.hand_over(session_pk)
        tools.give_up(session_pk)
    return await _send(runtime, exchange, asked)


def _is_new(exchange: ClientExchange) -> bool:
    return exchange.known is None or exchange.known.state in UNANSWERED


def _require_results(runtime: Runtime, exchange: ClientExchange) -> None:
    """Raises Rejected where one is missing, or comes too late."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    given = {result.call.pk for result in exchange.results}
    for client_id in {result.call.client_id for result in exchange.results}:
        if tools.waiting(session_pk, client_id) - given:
            raise Rejected("Each call of a tool needs its result.", code="result_missing")
    for result in exchange.results:
        if result.call.was_given_up:
            raise Rejected(f"The call {result.call.call_id} is over.", code="call_over")


async def _choose_for_waiting(runtime: Runtime, exchange: ClientExchange) -> None:
    """The run that waits for these results goes on as this request asks. Raises Unavailable
    where it waits elsewhere."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    open_calls = [one.call for one in exchange.results if one.call.is_open]
    for call in open_calls:
        if call.pk not in tools.waiting(session_pk, call.client_id):
            raise Unavailable(ELSEWHERE)
    for call in {call.run_pk: call for call in open_calls}.values():
        require_forced_tool(exchange.choices, tools.of(session_pk, call.client_id))
        await runtime.choose_for_run(session_pk, call.run_pk, exchange.choices)


def _give_results(runtime: Runtime, exchange: ClientExchange, *, is_said: bool) -> AskedCall | None:
    """The last call that has a result. ``is_said``: a message comes with them, which is
    what is answered."""
    session_pk, tools = exchange.session.pk, runtime.program_tools
    if is_said:
        tools.hand_over(session_pk)
    for result in exchange.results:
        call = result.call
        is_given = tools.give(session_pk, call.client_id, call.pk, result.gave)
        if call.is_open and not is_given:
            raise Unavailable(ELSEWHERE)
    return exchange.results[-1].call if exchange.results else None


async def _send(runtime: Runtime, exchange: ClientExchange, asked: MessagesIn) -> PendingRun:
    """What is sent again is the run that there is, tried once more if it has failed. Where
    others went on meanwhile, it is said once more after them."""
    known, client_id = exchange.known, exchange.client_id
    if known is not None and not _is_new(exchange):
        return PendingRun(session_pk=exchange.session.pk, run_pk=known.run_pk, client_id=client_id)
    if known is not None:
        client_id = f"{client_id[:50]}-{uuid4().hex[:12]}"
    with _brought(runtime, exchange, client_id, asked.tools):
        accepted = await _begin(runtime, exchange, client_id)
    return PendingRun(session_pk=exchange.session.pk, run_pk=accepted.run_pk, client_id=client_id)


async def _begin(runtime: Runtime, exchange: ClientExchange, client_id: str) -> Accepted:
    session, words, user_pk = exchange.session, exchange.words, exchange.user.pk
    if exchange.known is not None and await _is_last(runtime, session, exchange.known):
        return await runtime.regenerate(
            session,
            client_id=client_id,
            turn=exchange.known.turn,
            user_pk=user_pk,
            choices=exchange.choices,
        )
    assert words is not None
    return await runtime.send(
        session,
        client_id=client_id,
        text=words.text,
        user_pk=user_pk,
        attachments=exchange.attachments,
        choices=exchange.choices,
    )


async def _is_last(runtime: Runtime, session: Session, known: Accepted) -> bool:
    """Whether nobody has said anything since: answering it again takes nothing back."""
    last = await runtime.readers.read(last_user_turn, session.pk)
    return known.turn is not None and known.turn == last


@contextmanager
def _brought(
    runtime: Runtime, exchange: ClientExchange, client_id: str, tools: Sequence[Any]
) -> Iterator[None]:
    """The client's tools are there before the run, and go if it cannot begin."""
    own = runtime.program_tools
    own.bring(exchange.session.pk, client_id, tools)
    try:
        require_forced_tool(exchange.choices, own.of(exchange.session.pk, client_id))
        yield
    except BaseException:
        own.forget(exchange.session.pk, client_id)
        raise


async def wait_for_answer(runtime: Runtime, asked: PendingRun) -> Answered:
    ending = asyncio.create_task(
        wait_for_final_state(runtime, session_pk=asked.session_pk, run_pk=asked.run_pk)
    )
    try:
        calls = await _wait_for_calls(runtime, asked, ending)
    finally:
        ending.cancel()
    answer = await runtime.readers.read(read_run_answer, asked.run_pk, after_turn=asked.after_turn)
    return Answered(answer=answer, calls=calls)


async def _wait_for_calls(
    runtime: Runtime, asked: PendingRun, ending: asyncio.Task[str]
) -> list[AskedCall]:
    """The calls that wait for the client; none where the run has ended."""
    tools, session_pk, client_id = runtime.program_tools, asked.session_pk, asked.client_id
    while True:
        waiting = tools.waiting(session_pk, client_id)
        calls = await runtime.readers.read(list_open_calls, asked.run_pk) if waiting else []
        own = [call for call in calls if call.name in tools.of(session_pk, client_id)]
        if waiting and waiting >= {call.pk for call in own}:
            return own
        others = asyncio.create_task(tools.wait_for_others(session_pk, client_id, than=waiting))
        try:
            done, _ = await asyncio.wait(
                {ending, others},
                timeout=SETTLING_SECONDS if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            others.cancel()
        if ending in done:
            ending.result()
            return []
        if not done:
            return [call for call in own if call.pk in waiting]
