"""A statement made once, long ago and in other words, is found and quoted by recall."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from conversations.archive.append import append
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.watch import EmbeddingWorker
from loomweb.env import find_embedding_model
from tests.long_sessions import repeat_turns
from tests.runtime.conftest import ask
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

MODEL = find_embedding_model()
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(MODEL is None, reason="the extra semantic is not installed"),
]

NEEDLE, TURN, TURNS = "We call the big tabby from next door Bismarck.", 17, 100_000
ASKED = "How is the neighbours' cat named?"
TALK = (
    "The spare key is under the blue pot by the shed.",
    "My sister's wedding was moved to the twelfth of June.",
    "I am allergic to penicillin.",
    "The beans go out after the last frost.",
)


def plant(session: Session) -> None:
    said = [NewTurn(role="user", content=TALK[n % len(TALK)]) for n in range(1, TURN)]
    said += [NewTurn(role="user", content=NEEDLE), NewTurn(role="tool", content="218 lines, ok")]
    append(session.pk, session_uuid=session.uuid, turns=said)
    repeat_turns(session, first=len(said), turns=TURNS)
    # Start the window at the turn where it would start after so many turns.
    Session.objects.filter(pk=session.pk).update(floor_turn=TURNS)


async def test_a_needle_is_found_by_its_meaning_and_quoted(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "embedding_model", MODEL)
    # With a lower priority, the thread would wait for all tests that run at the same time.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr("conversations.runtime.watch.LOW_PRIORITY", own)
    await sync_to_async(plant)(garden)
    runtime = await start_runtime()
    busy = [True, True]
    worker = EmbeddingWorker(runtime.database, is_busy=lambda: bool(busy and busy.pop()))
    await worker.catch_up()
    assert not busy  # the worker waits while answers are being written
    search = ToolCall(name=RECALL_TOOL, input={"action": "search", "query": ASKED})
    wire.enqueue(Scenario(tools=(search,)), Scenario(text="Bismarck."))
    await ask(runtime, garden, ASKED)
    result = wire.requests[-1]["messages"][-1]["content"][0]["content"]
    assert f"[Turn {TURN}]" in result
    assert NEEDLE in result
