"""What was said once, long ago and in other words: asked for, found and quoted."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from conversations.archive.append import append
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.turns import NewTurn
from conversations.models import SearchEntry, SearchProgress, Session, Turn
from conversations.models.search import TURN_BITS
from conversations.runtime.watch import EmbeddingWorker
from conversations.search.indexing import index_session
from loomweb.env import find_embedding_model
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
    index_session(session.pk)
    repeat_last(session, times=TURNS - len(said))


def repeat_last(session: Session, *, times: int) -> None:
    """The last turn and its entry many times over: to append and index them takes a minute."""
    last = session.turns.count()
    counted = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times})"
    where = {
        Turn: f"session_id = {session.pk} AND number = {last}",
        SearchEntry: f"id = {session.pk << TURN_BITS | last}",
    }
    counters = {Turn: "number", SearchEntry: "id"}
    with connection.cursor() as cursor:
        for model, counter in counters.items():
            names = [f.column for f in model._meta.concrete_fields]
            names = [name for name in names if model is SearchEntry or name != "id"]
            values = ", ".join(f"{name} + i" if name == counter else name for name in names)
            table = model._meta.db_table
            cursor.execute(
                f"{counted} INSERT INTO {table} ({', '.join(names)})"
                f" SELECT {values} FROM {table} CROSS JOIN n WHERE {where[model]}"
            )
    done = last + times
    SearchProgress.objects.filter(session=session.pk).update(indexed_turn=done)
    counters_of = Session.objects.filter(pk=session.pk)
    # The window begins and the state ends where they would after so many turns.
    counters_of.update(
        next_turn=done + 1, unindexed_turn=done + 1, floor_turn=done, state_turn=done
    )


async def test_a_needle_is_found_and_quoted_by_what_it_means(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings.LOOM, "embedding_model", MODEL)
    await sync_to_async(plant)(garden)
    runtime = await start_runtime()
    busy = [True, True]
    worker = EmbeddingWorker(runtime.database, is_busy=lambda: bool(busy and busy.pop()))
    await worker.catch_up()
    assert not busy  # a vector waits while answers are written
    search = ToolCall(name=RECALL_TOOL, input={"action": "search", "query": ASKED})
    wire.enqueue(Scenario(tools=(search,)), Scenario(text="Bismarck."))
    await ask(runtime, garden, ASKED)
    result = wire.requests[-1]["messages"][-1]["content"][0]["content"]
    assert f"[Turn {TURN}]" in result
    assert NEEDLE in result
