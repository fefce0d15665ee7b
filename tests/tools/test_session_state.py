"""``session_state``: items that the model notes and strikes change the session state."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.audit import AuditOrigin
from conversations.archive.memory import add_entry
from conversations.archive.session_state import StateView, edit_state, read_state_view
from conversations.domain.session_state import FOR_WORKSPACE, RULE
from conversations.models import Session
from conversations.runtime.service import Runtime
from tests.runtime.conftest import ask
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread


async def view(session: Session) -> StateView:
    return await sync_to_async(read_state_view)(session.pk)


async def decisions(session: Session) -> list[str]:
    return [item.text for item in (await view(session)).items if item.kind == "decision"]


@pytest.fixture
def call(runtime: Runtime, wire: WireThread, garden: Session) -> Callable[..., Any]:
    """Return a function that lets the model call the tool and returns the result."""

    async def call(**arguments: Any) -> dict[str, Any]:
        tool = ToolCall(name="session_state", input=arguments)
        wire.enqueue(Scenario(tools=(tool,)), Scenario(text="Done."))
        count = len(wire.requests)
        await ask(runtime, garden, f"message {count}")
        blocks = wire.requests[-1]["messages"][-1]["content"]
        return next(block for block in blocks if block["type"] == "tool_result")

    return call


async def test_model_can_note_and_strike_a_decision(
    call: Callable[..., Any], garden: Session
) -> None:
    result = await call(action="note", text="Roses stay\nwhere they are")
    assert result["content"] == "Noted: Roses stay where they are"
    assert await decisions(garden) == ["Roses stay where they are"]
    assert (await view(garden)).items[0].source == "noted"
    result = await call(action="strike", text="roses stay where they are (turn 2)")
    assert result["content"] == "Struck d2.0: Roses stay where they are"
    assert await decisions(garden) == []
    assert [item.struck_by for item in (await view(garden)).struck] == ["model"]


async def test_model_cannot_strike_an_item_that_a_person_restored(
    call: Callable[..., Any], garden: Session
) -> None:
    await call(action="note", text="Roses stay")
    await call(action="strike", text="d2.0")
    await sync_to_async(edit_state)(garden, actor_pk=None, action="unstrike", item="d2.0")
    assert await decisions(garden) == ["Roses stay"]
    result = await call(action="strike", text="d2.0")
    assert result["is_error"]
    assert await decisions(garden) == ["Roses stay"]


async def test_ambiguous_strike_lists_the_decisions(
    call: Callable[..., Any], garden: Session
) -> None:
    await call(action="note", text="Roses stay")
    await call(action="note", text="Roses are watered at dawn")
    result = await call(action="strike", text="roses")
    assert result["is_error"]
    assert "d2.0 decision: Roses stay (turn 2)" in result["content"]
    assert "Roses are watered at dawn" in (await call(action="show"))["content"]
    assert len(await decisions(garden)) == 2


async def test_model_cannot_strike_an_entry_of_the_workspace_memory(
    call: Callable[..., Any], garden: Session
) -> None:
    text = "All dates must be UTC"
    await sync_to_async(add_entry)(
        garden.workspace,
        kind=RULE,
        text=text,
        scope=FOR_WORKSPACE,
        by=garden.owner,
        origin=AuditOrigin(name="a test"),
    )
    shown = await call(action="show")
    assert "kept rule: All dates must be UTC (for the workspace)" in shown["content"]
    for wanted in (text.lower(), f"{text} (kept for the workspace)", "dates must"):
        result = await call(action="strike", text=wanted)
        assert result["is_error"]
        assert "kept for the workspace; only a person can" in result["content"]
    result = await call(action="strike", text="beans")
    assert "kept rule: All dates must be UTC" in result["content"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"action": "note"},
        {"action": "note", "text": "x" * 161},
        {"action": "note", "text": ["x"]},
        {"action": "strike", "text": " "},
        {"action": "strike", "text": "beans"},
        {"action": "forget"},
    ],
)
async def test_invalid_call_is_refused_and_changes_nothing(
    call: Callable[..., Any], garden: Session, arguments: dict[str, Any]
) -> None:
    assert (await call(**arguments))["is_error"]
    assert await decisions(garden) == []
