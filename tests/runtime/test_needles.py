"""Facts that have left the window: the model gets them back, and is told where they are."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from conversations.models import Session
from conversations.runtime.service import Runtime
from tests.context.conversation_samples import HELD_OUT, REPLIES, TUNING, Fact
from tests.runtime.conftest import ask, fresh
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

WINDOW_TOKENS = 12_000
FILLERS, FILLER_WORDS = 8, 1_500

FACTS, TALK = HELD_OUT.facts, (*TUNING.ordinary[::3], *HELD_OUT.ordinary[::3])


async def exchange(runtime: Runtime, wire: WireThread, session: Session, text: str) -> None:
    """A message and an answer of everyday length."""
    wire.enqueue(Scenario(text=REPLIES[len(wire.requests) % len(REPLIES)]))
    await ask(runtime, session, text, client_id=f"client-{len(wire.requests)}")


async def look_back(
    runtime: Runtime, wire: WireThread, session: Session, question: str
) -> tuple[list[int], set[int]]:
    """Ask; the scripted model searches with the very words. The turns that the hint
    named, and those that the tool quoted."""
    search = ToolCall(name="conversation_recall", input={"action": "search", "query": question})
    wire.enqueue(Scenario(tools=(search,)), Scenario(text="I see."))
    await ask(runtime, session, question, client_id=f"client-{len(wire.requests)}")
    asked, answered = wire.requests[-2:]
    result = answered["messages"][-1]["content"][0]["content"]
    quoted = re.findall(r"^\[Turn (\d+)\]", result, re.M)
    return hinted(asked), {int(number) for number in quoted}


def hinted(request: dict[str, Any]) -> list[int]:
    """The turns that a request's last message names as related."""
    found = re.search(r"\[Archive: turns? ([\d, ]+) \(outside", text_of_last(request))
    return [int(number) for number in found[1].split(", ")] if found else []


def text_of_last(request: dict[str, Any]) -> str:
    blocks = request["messages"][-1]["content"]
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


async def plant(runtime: Runtime, wire: WireThread, session: Session) -> dict[Fact, int]:
    """Tell the facts, and go on until all of them are below the floor."""
    turn_of: dict[Fact, int] = {}
    for fact in FACTS:
        turn_of[fact] = (await fresh(session)).next_turn
        await exchange(runtime, wire, session, fact.said)
    for number in range(FILLERS):
        wire.enqueue(Scenario(words=FILLER_WORDS))
        await ask(runtime, session, f"Write part {number}.")
    await exchange(runtime, wire, session, "thanks")
    assert (await fresh(session)).floor_turn > max(turn_of.values())
    return turn_of


async def test_what_left_the_window_comes_back(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(max_input_tokens=WINDOW_TOKENS, max_output_tokens=2_000)
    turn_of = await plant(runtime, wire, garden)
    false = []
    for text in TALK:
        await exchange(runtime, wire, garden, text)
        last = text_of_last(wire.requests[-1])
        if "[Archive: turn" in last or "[System: The user may" in last:
            false.append(text)
    found, named = [], []
    for fact in FACTS:
        in_hint, quoted = await look_back(runtime, wire, garden, fact.asked)
        found += [fact] if turn_of[fact] in quoted else []
        named += [fact] if turn_of[fact] in in_hint else []
    assert len(found) == len(FACTS), set(FACTS) - set(found)
    assert len(named) >= 25, set(FACTS) - set(named)
    assert len(false) < 0.05 * len(TALK), false
