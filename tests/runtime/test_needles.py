"""Facts that have left the window: the model can find them and is told where they are."""

import re
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from conversations.agent.tools.registry import TOOLS
from conversations.archive.append import append
from conversations.domain.searchable import RECALL_TOOL as TOOL
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.service import Runtime
from tests.context.conversation_samples import HELD_OUT, REPLIES, TUNING, Fact
from tests.long_sessions import repeat_turns
from tests.runtime.conftest import ask, fresh
from tests.tools.using import Use
from tests.wire.scenario import Scenario, ToolCall, make_words
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

WINDOW_TOKENS = 12_000
FILLERS, FILLER_WORDS = 8, 1_500

FACTS, TALK = HELD_OUT.facts, TUNING.ordinary[::6]
ASKED = FACTS[::5]
"""Facts that the model is asked about. The test calls the tool itself for the other facts."""


async def look_back(
    runtime: Runtime, wire: WireThread, session: Session, question: str
) -> tuple[list[int], set[int]]:
    """Ask a question, for which the scripted model searches with the same words.

    Return the turns that the hint named and the turns that the tool quoted.
    """
    search = ToolCall(name=TOOL, input={"action": "search", "query": question})
    wire.enqueue(Scenario(tools=(search,)), Scenario(text="I see."))
    await ask(runtime, session, question, client_id=f"client-{len(wire.requests)}")
    asked, answered = wire.requests[-2:]
    return hinted(asked), quoted(answered["messages"][-1]["content"][0]["content"])


def quoted(result: str) -> set[int]:
    return {int(number) for number in re.findall(r"^\[Turn (\d+)\]", result, re.M)}


def hinted(request: dict[str, Any]) -> list[int]:
    """Return the turns that a request's last message names as related."""
    found = re.search(r"\[Archive: turns? ([\d, ]+) \(outside", text_of_last(request))
    return [int(number) for number in found[1].split(", ")] if found else []


def text_of_last(request: dict[str, Any]) -> str:
    blocks = request["messages"][-1]["content"]
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


def plant(session: Session) -> dict[Fact, int]:
    """Append the facts with short replies, then enough long turns to fill the window."""
    texts = [
        text
        for place, fact in enumerate(FACTS)
        for text in (fact.said, REPLIES[place % len(REPLIES)])
    ]
    for number in range(FILLERS):
        texts += [f"Write part {number}.", make_words(FILLER_WORDS)]
    turns = [
        NewTurn(role="assistant" if place % 2 else "user", content=text)
        for place, text in enumerate(texts)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    return {fact: 2 * place + 1 for place, fact in enumerate(FACTS)}


async def test_facts_outside_the_window_are_hinted_at_and_found(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(max_input_tokens=WINDOW_TOKENS, max_output_tokens=2_000)
    turn_of = await sync_to_async(plant)(garden)
    await ask(runtime, garden, "thanks")
    assert (await fresh(garden)).floor_turn > max(turn_of.values())
    false = []
    for number, text in enumerate(TALK):
        wire.enqueue(Scenario(text=REPLIES[number % len(REPLIES)]))
        await ask(runtime, garden, text, client_id=f"client-{number}")
        last = text_of_last(wire.requests[-1])
        if "[Archive: turn" in last or "[System: The user may" in last:
            false.append(text)
    assert len(false) <= 1, false  # the same rate as in tests/context/test_hint.py
    named = []
    for fact in ASKED:
        in_hint, found = await look_back(runtime, wire, garden, fact.asked)
        assert turn_of[fact] in found, fact
        named += [fact] if turn_of[fact] in in_hint else []
    assert len(named) >= len(ASKED) - 1, set(ASKED) - set(named)
    session = await fresh(garden)
    context = await sync_to_async(Use(session).context)()
    context = replace(context, call_turn=session.next_turn)
    for fact in set(FACTS) - set(ASKED):
        arguments = {"action": "search", "query": fact.asked}
        result = await TOOLS[TOOL].run(context, arguments)
        assert turn_of[fact] in quoted(result.output), fact


async def test_the_hint_survives_a_lost_database_connection(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    losses: list[Exception] = []

    def lose_once(execute: Callable[..., Any], sql: str, values: Any, *args: Any) -> Any:
        if losses and re.search(r" MATCH | (@>|&&) %s::text", sql):
            loss = losses.pop()
            if connection.vendor == "postgresql":
                execute("SELECT pg_terminate_backend(pg_backend_pid())", (), *args)
            raise OperationalError from loss
        return execute(sql, values, *args)

    def watch(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if threading.current_thread().name.startswith("archive-reader"):
            connection.execute_wrappers.append(lose_once)

    turn_of = await sync_to_async(plant)(garden)
    connection_created.connect(watch)
    try:
        runtime = await start_runtime(max_input_tokens=WINDOW_TOKENS, max_output_tokens=2_000)
        await ask(runtime, garden, "thanks")
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        losses.append(busy)
        in_hint, _ = await look_back(runtime, wire, garden, ASKED[0].asked)
    finally:
        connection_created.disconnect(watch)
    assert not losses
    assert turn_of[ASKED[0]] in in_hint


NEEDLE = Fact(
    said="By the way, my grandmother's piano is tuned a bit low, to 432 hertz.",
    asked="Which pitch did I tell you the old piano of my granny is tuned to?",
)
NEEDLE_TURN, ALL_TURNS = 17, 100_000


def bury(session: Session) -> None:
    """Append the needle once among ``ALL_TURNS`` turns of everyday talk."""
    talk = [
        text
        for place, said in enumerate((*TUNING.ordinary, *HELD_OUT.ordinary))
        for text in (said, REPLIES[place % len(REPLIES)])
    ]
    talk[NEEDLE_TURN - 1] = NEEDLE.said
    turns = [
        NewTurn(role="assistant" if place % 2 else "user", content=text)
        for place, text in enumerate(talk)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    repeat_turns(session, first=NEEDLE_TURN + 1, turns=ALL_TURNS)


async def test_a_fact_said_once_in_100_000_turns_is_found_by_other_words(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(max_input_tokens=WINDOW_TOKENS, max_output_tokens=2_000)
    await sync_to_async(bury)(garden)
    await ask(runtime, garden, "thanks")
    session = await fresh(garden)
    assert session.turn_count > ALL_TURNS
    assert session.floor_turn > NEEDLE_TURN
    in_hint, found = await look_back(runtime, wire, garden, NEEDLE.asked)
    assert NEEDLE_TURN in in_hint
    assert NEEDLE_TURN in found
    answer = wire.requests[-1]["messages"][-1]["content"][0]["content"]
    assert f"\n  {NEEDLE.said}\n" in answer
