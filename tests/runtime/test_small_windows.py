"""Models whose window is smaller than the tool descriptions: no session gets stuck."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from benchmarks.script import make_words
from conversations.agent.window.manifest import read_manifest, rebuild_request
from conversations.archive.append import append
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.text import dump_json, load_json
from conversations.domain.turns import NewTurn
from conversations.models import LearntModel, ModelCall, Session
from conversations.providers.config import ANTHROPIC, KINDS
from conversations.runtime.service import Runtime
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import ModelRow, WireThread

from .conftest import ask
from .test_runs import notice_of

LLAMA_CPP = (
    "request ({tokens} tokens) exceeds the available context size ({limit} tokens), try"
    " increasing it"
)
VLLM = (
    "This model's maximum context length is {limit} tokens. However, your request has {tokens}"
    " input tokens. Please reduce the length of the input messages."
)
NAMELESS = "the input length exceeds the context length"

SMALL = ModelRow(
    id="small",
    display_name="Small",
    created_at="",
    max_input_tokens=2_048,
    too_long=LLAMA_CPP,
    lists_limits=False,
)

type Start = Callable[..., Any]


async def start(start_runtime: Start, wire: WireThread, kind: str, **small: Any) -> Runtime:
    """Start a runtime whose model takes 2,048 tokens.

    No setting names this limit, nor does the model list unless ``small`` says so.
    """
    wire.server.models[SMALL.id] = replace(SMALL, **small)
    is_plain = kind == ANTHROPIC
    url = wire.url if is_plain else f"{wire.url}/v1"
    provider = replace(wire.provider, kind=kind, url=url)
    runtime: Runtime = await start_runtime(providers=(provider,), model=SMALL.id)
    await runtime.models.refresh()
    return runtime


async def say(runtime: Runtime, session: Session, number: int, words: int = 500) -> None:
    text = f"Message {number}: {make_words(words)}"
    run = await ask(runtime, session, text, client_id=f"client-{number:06}")
    assert run.state == "completed", (number, run.error_code)


def refusals(wire: WireThread) -> list[str]:
    return [exchange.error for exchange in wire.exchanges if exchange.error]


async def test_many_long_messages_are_answered_without_a_setting(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    """The server reports no usage and counts a quarter more tokens than the estimate.

    It names its limit when it refuses a request.
    """
    runtime = await start(start_runtime, wire, ANTHROPIC, factor=1.25)
    for number in range(20):  # the window is full after four messages
        wire.enqueue(Scenario(words=150, usage=False))
        await say(runtime, garden, number)
    assert len(refusals(wire)) <= 2, "the first answer learns for all"
    for body in wire.requests[2:]:
        [last] = [m["content"] for m in body["messages"][-1:]]
        assert any("Message " in block.get("text", "") for block in last)
        assert body["max_tokens"] >= 200
    learnt = await LearntModel.objects.aget(model=SMALL.id)
    assert learnt.input_tokens == 2_048
    calls = [call async for call in ModelCall.objects.order_by("pk")]
    for call in calls[-5:]:
        rebuilt = await sync_to_async(rebuild_request)(call.pk)
        assert rebuilt.matches, rebuilt.reason


@pytest.mark.parametrize(
    ("kind", "small", "usage"),
    [
        # tests/providers/test_window_errors.py has the error messages of all servers.
        (KINDS[1], {}, False),
        (KINDS[2], {}, True),
        (ANTHROPIC, {"lists_limits": True}, True),
        (ANTHROPIC, {"too_long": VLLM, "factor": 1.6}, False),
        (ANTHROPIC, {"too_long": NAMELESS}, False),
        # The estimate is far off, and the error message does not name the limit.
        (ANTHROPIC, {"too_long": NAMELESS, "lists_limits": True, "factor": 1.6}, True),
        (ANTHROPIC, {"too_long": NAMELESS, "max_input_tokens": 700, "factor": 1.2}, False),
    ],
)
async def test_no_kind_of_server_error_leaves_a_session_stuck(
    start_runtime: Start,
    wire: WireThread,
    garden: Session,
    kind: str,
    small: dict[str, Any],
    usage: bool,
) -> None:
    runtime = await start(start_runtime, wire, kind, **small)
    for number in range(7):
        wire.enqueue(Scenario(words=60, usage=usage))
        await say(runtime, garden, number)
        if number == 3:
            wire.exchanges.clear()
    assert refusals(wire) == [], "what was learnt holds"


async def test_a_long_session_goes_on_with_a_small_model(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    """The session has many turns with calls and results of another model."""
    runtime = await start(start_runtime, wire, ANTHROPIC)
    words = make_words(600)
    turns = []
    for number in range(15):
        call = [{"type": "tool_use", "id": f"c{number}", "name": "read_file", "input": {}}]
        turns += [
            NewTurn(role="user", content=f"Message {number}: {words}"),
            NewTurn(role="assistant", content="", tool_calls=dump_json(call)),
            NewTurn(
                role="tool", content=words * 5, tool_call_id=f"c{number}", tool_name="read_file"
            ),
            NewTurn(role="assistant", content=f"Answer {number}: {words}"),
        ]
    await sync_to_async(append)(garden.pk, session_uuid=garden.uuid, turns=turns)
    await say(runtime, garden, 99)


async def test_the_manifest_names_the_tools_that_do_not_fit(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    runtime = await start(start_runtime, wire, ANTHROPIC, lists_limits=True)
    await say(runtime, garden, 1, words=20)
    [body] = wire.requests
    names = [tool["name"] for tool in body["tools"]]
    assert "read_file" in names
    [call] = [call async for call in ModelCall.objects.all()]
    manifest = read_manifest(call.manifest)
    assert "descriptions of tools" in manifest.reduced
    assert {f"tool {name}" for name in ("git_command", "search_files")} <= set(manifest.reduced)
    assert not {f"tool {name}" for name in names} & set(manifest.reduced)
    assert load_json(call.manifest)["tools"] == names


async def test_tools_work_in_a_small_window(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    """Results are shortened until they fit."""
    runtime = await start(start_runtime, wire, ANTHROPIC)
    (Path(garden.workspace.root) / "long.txt").write_text("line of the file\n" * 2_000)
    call = ToolCall(name="read_file", input={"path": "long.txt"})
    for number in range(8):
        wire.enqueue(Scenario(text="I read.", tools=(call,)), Scenario(words=100))
        await say(runtime, garden, number, words=200)


async def test_an_answer_that_fills_the_window_ends_with_a_notice(
    start_runtime: Start, wire: WireThread, garden: Session
) -> None:
    """The notice names no setting, because none would make the answer longer."""
    runtime = await start(start_runtime, wire, KINDS[1], lists_limits=True)
    wire.enqueue(Scenario(words=60, stop_reason="max_tokens"))
    run = await ask(runtime, garden, "Tell me a long story.")
    notice = await notice_of(garden)
    assert (run.state, notice.code, notice.action) == (
        "completed",
        "model_context_window_exceeded",
        "continue",
    )
    assert "LOOM_" not in notice.text


@pytest.mark.parametrize("limit", [4_096, 8_192, 16_384])
async def test_a_long_turn_can_be_read_to_its_end(
    start_runtime: Start, wire: WireThread, garden: Session, limit: int
) -> None:
    runtime = await start_runtime(max_input_tokens=limit)
    text = "\n".join(f"{number:04d} a line of the long report" for number in range(420))
    turns = [NewTurn(role="user", content=text), NewTurn(role="assistant", content="I see.")]
    await sync_to_async(append)(garden.pk, session_uuid=garden.uuid, turns=turns)
    arguments: dict[str, Any] = {"action": "range", "turns": "1"}
    seen: list[int] = []
    for _ in range(40):
        call = ToolCall(name=RECALL_TOOL, input=arguments)
        wire.enqueue(Scenario(tools=(call,)), Scenario(text="Fine."))
        await ask(runtime, garden, "read it", client_id=f"client-{len(wire.requests)}")
        # The call uses only arguments that are left in the tool's shortened description.
        [told] = [t for t in wire.requests[-1]["tools"] if t["name"] == RECALL_TOOL]
        assert set(arguments) <= set(told["input_schema"]["properties"])
        [result] = wire.requests[-1]["messages"][-1]["content"][:1]
        assert "left out here" not in result["content"]
        seen += map(int, re.findall(r"^  (\d{4}) a line", result["content"], re.M))
        cursor = re.search(r'cursor="([^"]+)"', result["content"])
        if cursor is None:
            break
        arguments = {"action": "range", "cursor": cursor[1]}
    assert seen == list(range(420))
