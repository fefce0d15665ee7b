"""The cost of a run: stored with its calls and its session, shown in its footer."""

from typing import Any

import pytest

from conversations.domain.text import cost_text
from conversations.models import ChatEvent, ModelCall, Session
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import ask, fresh

pytestmark = pytest.mark.django_db(transaction=True)


async def test_each_call_has_its_cost_and_the_footer_shows_the_sum(
    runtime: Runtime, garden: Session, wire: WireThread
) -> None:
    tools = (ToolCall(name="look", input={"path": "a.py"}),)
    wire.enqueue(Scenario(text="I look.", tools=tools), Scenario(words=400))
    await ask(runtime, garden, "Go")
    costs = [call.cost_microusd async for call in ModelCall.objects.order_by("ordinal")]
    assert len(costs) == 2
    total = sum(cost for cost in costs if cost)
    assert total > 0
    assert (await fresh(garden)).cost_microusd == total
    footer = await ChatEvent.objects.aget(event_type="turn_separator")
    assert f'"cost_usd":"{cost_text(total)}"' in footer.payload


async def test_no_cost_is_shown_for_a_model_without_a_price(
    start_runtime: Any, garden: Session, wire: WireThread
) -> None:
    runtime: Runtime = await start_runtime(model="claude-sonnet-4-6")
    wire.enqueue(Scenario(text="Yes."))
    await ask(runtime, garden, "Go")
    assert (await ModelCall.objects.aget()).cost_microusd is None
    footer = await ChatEvent.objects.aget(event_type="turn_separator")
    assert "cost_usd" not in footer.payload


async def test_a_refused_retry_does_not_repeat_the_cost_of_the_first_try(
    runtime: Runtime, garden: Session, wire: WireThread
) -> None:
    wire.enqueue(
        Scenario(text="Yes.", error_after=0),
        Scenario(status=529, retry_after="0"),
        Scenario(text="Yes."),
    )
    await ask(runtime, garden, "Go")
    calls = [call async for call in ModelCall.objects.order_by("ordinal")]
    assert [call.error_code for call in calls] == ["overloaded", "overloaded", ""]
    assert calls[0].input_tokens
    assert calls[1].input_tokens is None
    assert calls[1].cost_microusd is None
