"""Tools that a program registers: invalid definitions and programs that do not answer."""

from collections.abc import Callable
from typing import Any

import pytest

from conversations.domain.errors import Rejected
from conversations.models import Session, Turn
from conversations.runtime import program_tools
from conversations.runtime.program_tools import MAX_CLIENT_TOOLS, TOO_LATE, ProgramTools
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import ask

WEATHER: dict[str, Any] = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    "given",
    [
        ["weather"],
        [{"name": "weather"}],
        [WEATHER | {"name": "the weather"}],
        [WEATHER] * (MAX_CLIENT_TOOLS + 1),
    ],
)
def test_invalid_tool_definitions_are_refused(given: list[Any]) -> None:
    with pytest.raises(Rejected):
        ProgramTools().register(1, "one", given)


async def test_a_program_that_does_not_answer_times_out(
    start_runtime: Callable[..., Any],
    garden: Session,
    wire: WireThread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_tools, "WAIT_SECONDS", 0.05)
    runtime: Runtime = await start_runtime()
    tools = runtime.program_tools
    tools.register(garden.pk, "client-one", [WEATHER])
    wire.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Then not."))
    run = await ask(runtime, garden, "What is the weather?", client_id="client-one")
    assert run.state == "completed"
    [result] = [turn async for turn in Turn.objects.filter(role="tool")]
    assert result.content == TOO_LATE
    assert not tools.tools_of(garden.pk, "client-one")
    offered = [[tool["name"] for tool in sent["tools"]] for sent in wire.requests]
    assert ["weather" in names for names in offered] == [True, True]
    await ask(runtime, garden, "And now?")
    assert "weather" not in [tool["name"] for tool in wire.requests[-1]["tools"]]
