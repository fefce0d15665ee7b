"""Budgets during runs: one warning when nearly used up, and the end of the run when used up."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.audit import AuditOrigin
from conversations.domain.events import Info, parse_payload
from conversations.features.usage.budgets import end_budget, read_budgets, set_budget
from conversations.features.usage.models import BudgetWarning, UsageTotal
from conversations.models import ChatEvent, ModelCall, Session, Turn
from conversations.runtime.service import Runtime
from tests.runtime.conftest import Page, ask, run_state
from tests.runtime.test_compaction import RULES, compact, talk
from tests.runtime.test_titles import background
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

DOLLAR = 1_000_000
SERVER = AuditOrigin(name="test")


@sync_to_async
def give(session: Session, **fields: Any) -> Any:
    """Set a budget of the session's workspace: $10 a month, unless ``fields`` differ."""
    usual: dict[str, Any] = {
        "workspace": session.workspace,
        "period": "month",
        "unit": "usd",
        "limit": 10 * DOLLAR,
        "warn_percent": 80,
    }
    return set_budget(SERVER, **usual | fields)


@sync_to_async
def spend(scope: str, target: int, microusd: int, tokens: int = 0) -> None:
    UsageTotal.objects.update_or_create(
        scope=scope,
        target=target,
        day=datetime.now(UTC).date(),
        defaults={"cost_microusd": microusd, "tokens": tokens},
    )


async def notices(session: Session) -> list[Info]:
    events = ChatEvent.objects.filter(session=session.pk, event_type="info").order_by("seq")
    found = [parse_payload(event.event_type, event.payload) async for event in events]
    return [payload for payload in found if isinstance(payload, Info)]


async def test_a_warning_is_given_once_in_a_period(
    runtime: Runtime, garden: Session, wire: WireThread
) -> None:
    await give(garden)
    await spend("workspace", garden.workspace_id, 8 * DOLLAR)
    for text in ("Go", "Go on"):
        wire.enqueue(Scenario(text="Yes."))
        await ask(runtime, garden, text)
    [warning] = await notices(garden)
    assert warning.code == "budget_warning"
    assert warning.text.startswith(
        f"80 % of the budget of the workspace {garden.workspace.name} for this month is used:"
        " $8.00 of $10.00."
    )
    assert await BudgetWarning.objects.acount() == 1
    assert await ModelCall.objects.acount() == 2


@pytest.mark.parametrize("protocol", ["messages", "openai"])
async def test_a_stopped_answer_counts_its_input_and_output_tokens(
    runtime: Runtime,
    garden: Session,
    wire: WireThread,
    open_page: Callable[[Runtime], Page],
    protocol: str,
) -> None:
    await give(garden, unit="tokens", limit=50)
    # Servers with the other protocol report no usage before the end.
    wire.enqueue(Scenario(words=3000, rate=200, usage=protocol == "messages"))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="Go " * 100, user_pk=None)
    await page.until(lambda: "".join(d["text"] for d in page.of_type("draft")).count(" ") > 60)
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    call = await ModelCall.objects.aget()
    assert (call.error_code, call.is_failed) == ("stopped", False)
    assert (call.input_tokens or 0) > 50
    assert (call.output_tokens or 0) > 50
    total = await UsageTotal.objects.aget(scope="installation")
    assert total.tokens == (call.prompt_tokens or 0) + (call.output_tokens or 0)
    run = await ask(runtime, garden, "Go on")
    assert run.error_code == "budget_reached"
    assert len(wire.requests) == 1


async def test_an_answer_that_breaks_off_counts_its_output_tokens(
    runtime: Runtime, garden: Session, wire: WireThread
) -> None:
    wire.enqueue(Scenario(text="and the beans grow " * 40, error_after=100))
    await ask(runtime, garden, "Go")
    call = await ModelCall.objects.aget()
    assert call.is_failed
    assert (call.output_tokens or 0) > 50


async def test_no_title_is_written_once_a_budget_is_used_up(
    start_runtime: Callable[..., Awaitable[Runtime]], garden: Session, wire: WireThread
) -> None:
    runtime = await start_runtime(title_model="auto")
    await runtime.models.wait_until_listed()
    await give(garden, unit="tokens", limit=1)
    wire.enqueue(Scenario(text="In May."), Scenario(text="Beans"))
    await ask(runtime, garden, "When?")
    await background(runtime)
    assert len(wire.requests) == 1


async def test_a_used_up_budget_ends_the_run_before_the_model_call(
    runtime: Runtime, garden: Session, wire: WireThread
) -> None:
    budget = await give(garden, period="day")
    await spend("workspace", garden.workspace_id, 10 * DOLLAR)
    run = await ask(runtime, garden, "Go")
    assert (run.state, run.error_code) == ("failed", "budget_reached")
    [notice] = await notices(garden)
    assert (notice.code, notice.kind, notice.action) == ("budget_reached", "error", "retry")
    assert "for today is used up: $10.00 of $10.00. An owner of the workspace can" in notice.text
    assert "Your message is saved." in notice.text
    assert await ModelCall.objects.acount() == 0
    assert [turn.content async for turn in Turn.objects.all()] == ["Go"]

    await sync_to_async(end_budget)(SERVER, budget)
    wire.enqueue(Scenario(text="Yes."))
    run = await ask(runtime, garden, "Again")
    assert run.state == "completed"


async def test_a_budget_that_is_used_up_during_a_run_keeps_its_turns(
    start_runtime: Any, garden: Session, wire: WireThread
) -> None:
    runtime: Runtime = await start_runtime()
    await give(garden, unit="tokens", limit=1, workspace=None, person=garden.owner)
    tools = (ToolCall(name="look", input={"path": "a.py"}),)
    wire.enqueue(Scenario(text="I look.", tools=tools))
    run = await ask(runtime, garden, "Go")
    assert run.state == "completed"
    [notice] = [notice for notice in await notices(garden) if notice.code == "budget_reached"]
    assert (notice.kind, notice.action) == ("notice", "continue")
    assert f"The budget of {garden.owner.username} for this month is used up" in notice.text
    assert "An administrator can raise it" in notice.text
    assert await ModelCall.objects.acount() == 1
    roles = [turn.role async for turn in Turn.objects.order_by("number")]
    assert roles == ["user", "assistant", "tool"]

    # If the run continues too early, it offers to continue again: a retry would discard the work.
    await runtime.continue_run(garden, client_id="client-2", user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "failed"
    ended = [notice for notice in await notices(garden) if notice.code == "budget_reached"]
    assert [notice.action for notice in ended] == ["continue", "continue"]
    assert [str(notice.text) for notice in ended] == [str(notice.text)] * 2


async def test_other_peoples_budgets_do_not_count(
    runtime: Runtime, garden: Session, wire: WireThread, django_user_model: Any
) -> None:
    bea = await django_user_model.objects.acreate(username="bea")
    await give(garden, workspace=None, person=bea, limit=0)
    wire.enqueue(Scenario(text="Yes."))
    assert (await ask(runtime, garden, "Go")).state == "completed"
    assert await notices(garden) == []


async def test_no_summary_is_written_once_a_budget_is_used_up(
    start_runtime: Any, garden: Session, wire: WireThread
) -> None:
    runtime: Runtime = await start_runtime(rules=RULES)
    await talk(runtime, wire, garden, times=4)
    await give(garden, workspace=None, limit=0)
    calls = await ModelCall.objects.acount()
    run = await compact(runtime, garden)
    assert (run.state, run.error_code) == ("failed", "budget_reached")
    [notice] = await notices(garden)
    assert "The budget of the installation for this month is used up" in notice.text
    assert await ModelCall.objects.acount() == calls


async def test_reading_budgets_takes_one_query(garden: Session) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            read_budgets(garden.pk, person_pk=garden.owner_id)
        return len(queries)

    assert await sync_to_async(count)() == 1
    await give(garden)
    await give(garden, workspace=None, person=garden.owner, period="day")
    await give(garden, workspace=None, unit="tokens")
    assert await sync_to_async(count)() == 1


async def test_only_spending_in_the_current_period_counts(garden: Session) -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC).date()
    await give(garden)
    await give(garden, period="day", unit="tokens", limit=100)
    for month, of_day, cost, tokens in ((2, 28, 7, 70), (3, 1, 1, 10), (3, 2, 2, 20)):
        await UsageTotal.objects.acreate(
            scope="workspace",
            target=garden.workspace_id,
            day=day.replace(month=month, day=of_day),
            cost_microusd=cost,
            tokens=tokens,
        )

    def spent(of_day: int) -> list[int]:
        states = read_budgets(garden.pk, person_pk=None, day=day.replace(day=of_day))
        return [state.spent for state in states]

    assert await sync_to_async(spent)(1) == [1, 10]
    assert await sync_to_async(spent)(2) == [3, 20]
    assert await sync_to_async(spent)(3) == [3, 0]
