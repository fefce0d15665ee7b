"""Windows of long sessions, with a server that validates requests and counts tokens."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command

from benchmarks.script import SAMPLE_TOOL, make_script, make_words
from conversations.agent.tools.registry import TOOLS
from conversations.agent.window.manifest import RebuiltRequest, rebuild_request
from conversations.archive.append import append
from conversations.archive.audit import AuditOrigin
from conversations.archive.memory import add_entry, remove_entry
from conversations.domain.stream import ModelInfo
from conversations.domain.text import load_json
from conversations.domain.turns import NewTurn
from conversations.models import MemoryEntry, ModelCall, Session, Workspace
from conversations.runtime.service import Runtime
from tests.wire.rules.prompt import blocks_of, count_tokens
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import ask, fresh

SMALL = ModelInfo(
    id="claude-haiku-4-5", name="Small", max_input_tokens=32_000, max_output_tokens=8_000
)


@pytest.fixture
def sample_tool() -> Iterator[None]:
    TOOLS[SAMPLE_TOOL.name] = SAMPLE_TOOL
    yield
    del TOOLS[SAMPLE_TOOL.name]


@pytest.fixture
async def small_runtime(start_runtime: Any, wire: WireThread, sample_tool: None) -> Runtime:
    """Return a runtime whose model takes 32,000 tokens, a limit that the server enforces."""
    runtime: Runtime = await start_runtime(model=SMALL.id)
    await limit_model(runtime, wire, SMALL.max_input_tokens)
    return runtime


async def limit_model(runtime: Runtime, wire: WireThread, tokens: int) -> None:
    models = wire.server.models
    models[SMALL.id] = replace(
        models[SMALL.id], max_input_tokens=tokens, max_tokens=SMALL.max_output_tokens
    )
    await runtime.models.refresh()  # a first answer waits only a limited time for the list


EXCHANGES = 26


async def play(
    runtime: Runtime, wire: WireThread, session: Session, exchanges: int, *, seed: int = 1
) -> None:
    for number, exchange in enumerate(make_script(exchanges, seed=seed)):
        wire.enqueue(*exchange.scenarios)
        run = await ask(runtime, session, exchange.text, client_id=f"client-{number:06}")
        assert run.state == "completed", run.error_code


async def move_the_floor(runtime: Runtime, session: Session) -> None:
    """Move the floor quickly: append long exchanges, then execute one short run."""
    words = make_words(400)
    turns = [
        NewTurn(role=role, content=f"{word} {number}: {words * size}")
        for number in range(12)
        for role, word, size in (("user", "Message", 1), ("assistant", "Answer", 8))
    ]
    await sync_to_async(append)(session.pk, session_uuid=session.uuid, turns=turns)
    run = await ask(runtime, session, "Message 12: go on", client_id="client-000012")
    assert run.state == "completed", run.error_code


def newest_text(body: dict[str, Any]) -> str:
    """Return the script's last message in a request."""
    texts = [
        block["text"]
        for message in body["messages"]
        for block in blocks_of(message)
        if block["type"] == "text" and block["text"].startswith("Message ")
    ]
    return texts[-1] if texts else ""


async def all_calls() -> list[ModelCall]:
    return [call async for call in ModelCall.objects.order_by("pk")]


async def test_a_long_session_fits_and_is_read_from_the_cache(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    """Every request is accepted, is within the limit and contains the newest message.

    Nine of ten tokens come from the cache. ``make bench`` plays 2,000 exchanges.
    """
    await limit_model(small_runtime, wire, tokens=16_000)
    await play(small_runtime, wire, garden, EXCHANGES)
    calls = await all_calls()
    assert [exchange.error for exchange in wire.exchanges if exchange.error] == []
    assert len(wire.requests) == len(calls)
    messages = [exchange.text for exchange in make_script(EXCHANGES)]
    seen = iter(messages)
    expected = next(seen)
    for body in wire.requests:
        if newest_text(body) != expected:
            expected = next(seen)
        assert newest_text(body) == expected
        assert count_tokens(body) + body["max_tokens"] <= 16_000
    read = sum(call.cache_read_tokens or 0 for call in calls)
    whole = read + sum((c.input_tokens or 0) + (c.cache_write_tokens or 0) for c in calls)
    floors = {load_json(call.manifest)["floor"] for call in calls}
    assert read / whole >= 0.9
    assert len(floors) > 2, "the floor did move"


async def test_every_request_is_rebuilt_to_the_same_bytes(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await limit_model(small_runtime, wire, tokens=7_000)
    await play(small_runtime, wire, garden, 10)
    await small_runtime.edit(
        await fresh(garden), client_id="edit-0001", turn=1, text="Message x", user_pk=None
    )
    await small_runtime.wait_idle(garden.pk)
    wire.enqueue(Scenario(text="cut off here and", stop_reason="max_tokens"))
    await ask(small_runtime, garden, "Message y")
    await small_runtime.continue_run(await fresh(garden), client_id="go-on-0001", user_pk=None)
    await small_runtime.wait_idle(garden.pk)
    await ask(small_runtime, garden, "Message z")
    calls = await all_calls()
    assert len(calls) == len(wire.requests) > 20
    assert any(load_json(call.manifest)["floor"] > 1 for call in calls)
    for call, body in zip(calls, wire.requests, strict=True):
        rebuilt: RebuiltRequest = await sync_to_async(rebuild_request)(call.pk)
        assert rebuilt.matches, (call.pk, rebuilt.reason)
        assert rebuilt.request is not None
        assert rebuilt.request.messages == body["messages"]
        assert rebuilt.request.system == body["system"]
        assert rebuilt.request.tools == body["tools"]
        assert rebuilt.request.max_tokens == body["max_tokens"]


async def test_workspace_memory_is_sent_and_rebuilt_after_its_removal(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    origin = AuditOrigin(name="a test")

    def keep() -> MemoryEntry:
        words = {"kind": "rule", "text": "All dates must be UTC", "scope": "workspace"}
        return add_entry(garden.workspace, **words, by=garden.owner, origin=origin)

    entry = await sync_to_async(keep)()
    await ask(small_runtime, garden, "hello")
    assert "All dates must be UTC (kept for the workspace)" in str(wire.requests[-1])
    await sync_to_async(remove_entry)(entry, origin=origin)
    await Workspace.objects.aupdate(root="/where/it/lies/now")
    call = await ModelCall.objects.aget()
    assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_a_damaged_manifest_is_reported_without_an_exception(
    small_runtime: Runtime, garden: Session
) -> None:
    await ask(small_runtime, garden, "hello")
    call = await ModelCall.objects.aget()
    for manifest in ("", "[]", "{}", '{"v": 1}', '{"v": 2}', "{nonsense", call.manifest[:-40]):
        await ModelCall.objects.aupdate(manifest=manifest)
        rebuilt = await sync_to_async(rebuild_request)(call.pk)
        assert rebuilt.request is None
        assert rebuilt.reason


async def test_an_edit_below_the_window_brings_back_the_active_turns(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    """The floor was above the edited message, so the window would hold no other turn."""
    await move_the_floor(small_runtime, garden)
    floor = (await fresh(garden)).floor_turn
    turns = [t async for t in garden.turns.filter(role="user", number__lt=floor).order_by("number")]
    edited = turns[3]
    await small_runtime.edit(
        await fresh(garden), client_id="edit-01", turn=edited.number, text="Again", user_pk=None
    )
    await small_runtime.wait_idle(garden.pk)
    sent = [b["text"] for m in wire.requests[-1]["messages"] for b in m["content"] if "text" in b]
    assert sum(text.startswith("Message ") for text in sent) == 3
    assert "Again" in sent


async def test_a_larger_model_is_given_more_of_the_session(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await move_the_floor(small_runtime, garden)
    before = await fresh(garden)
    assert before.floor_turn > 1
    assert before.context_limit == SMALL.max_input_tokens
    small_runtime.models.listed = [
        replace(SMALL, max_input_tokens=200_000, max_output_tokens=8_000),
    ]
    wire.server.models[SMALL.id] = replace(wire.server.models[SMALL.id], max_input_tokens=200_000)
    await ask(small_runtime, garden, "And now?")
    after = await fresh(garden)
    assert after.floor_turn < before.floor_turn
    assert after.context_limit == 200_000
    assert 0.5 < after.token_ratio < 2


async def test_the_token_estimate_follows_the_providers_counts(
    small_runtime: Runtime, wire: WireThread, garden: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that counts twice as many tokens per character refuses no request."""
    monkeypatch.setattr("tests.wire.rules.prompt.CHARACTERS_PER_TOKEN", 2)
    monkeypatch.setattr("tests.wire.prompt_cache.CHARACTERS_PER_TOKEN", 2)
    await play(small_runtime, wire, garden, 5)
    assert [exchange.error for exchange in wire.exchanges if exchange.error] == []
    assert (await fresh(garden)).token_ratio > 1.4


@pytest.mark.parametrize(
    "text", ["知识" * 30_000, '{"a": [1, 2, {"b": null}]}, ' * 4000, "x = f(y)[0]\n" * 8000]
)
async def test_an_enormous_message_is_answered(
    small_runtime: Runtime, wire: WireThread, garden: Session, text: str
) -> None:
    run = await ask(small_runtime, garden, text, client_id="client-1")
    assert run.state == "completed"
    assert [exchange.error for exchange in wire.exchanges if exchange.error] == []
    turn = await garden.turns.aget(number=1)
    assert turn.content == text, "whole in the archive"
    call = await ModelCall.objects.aget()
    [entry] = load_json(call.manifest)["shortened"]
    assert entry["turn"] == 1
    await ask(small_runtime, garden, "Thanks.")
    assert [exchange.error for exchange in wire.exchanges if exchange.error] == []


async def test_a_sliding_window_states_how_many_messages_are_left_out(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await Workspace.objects.aupdate(window_strategy="sliding_window")
    await move_the_floor(small_runtime, garden)
    last = await ModelCall.objects.order_by("-pk").afirst()
    assert last is not None
    left_out = load_json(last.manifest)["left_out"]
    note = f"[Note: {left_out} older messages truncated to stay within token limit]"
    assert left_out > 0
    assert wire.requests[-1]["messages"][0]["content"][0]["text"] == note


async def test_the_archive_window_lists_earlier_messages(
    small_runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await move_the_floor(small_runtime, garden)
    first = wire.requests[-1]["messages"][0]["content"][0]["text"]
    last = await ModelCall.objects.order_by("-pk").afirst()
    assert last is not None
    manifest = load_json(last.manifest)
    assert f"the window starts at turn {manifest['floor']}" in first
    assert f"- turn {manifest['lines'][-1]}: Message " in first


async def test_the_prompt_cache_can_be_turned_off(
    start_runtime: Any, wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(prompt_cache="off")
    await ask(runtime, garden, "hello")
    assert "cache_control" not in str(wire.requests)
    runtime = await start_runtime(prompt_cache="1h")
    await ask(runtime, garden, "and again")
    assert "'ttl': '1h'" in str(wire.requests[-1])
    for call in await all_calls():
        assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_the_limits_come_from_the_providers_model_list(
    small_runtime: Runtime, garden: Session
) -> None:
    """The limits are known before the first window is made, even if no page was opened."""
    await ask(small_runtime, garden, "hello")
    call = await ModelCall.objects.aget()
    manifest = load_json(call.manifest)
    assert (manifest["limit"], manifest["reserve"]) == (32_000, 4_000)


async def test_verify_archive_rebuilds_every_request(
    small_runtime: Runtime, garden: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    await ask(small_runtime, garden, "hello")
    await ask(small_runtime, garden, "and then?")
    verify = sync_to_async(call_command)
    await verify("verify_archive", windows=True)
    assert "all rebuilt identically" in capsys.readouterr().out
    call = await ModelCall.objects.order_by("pk").afirst()
    assert call is not None
    changed = call.manifest.replace('"go_on":false', '"go_on":true')
    assert changed != call.manifest
    await ModelCall.objects.filter(pk=call.pk).aupdate(manifest=changed)
    with pytest.raises(SystemExit):
        await verify("verify_archive", windows=True)
    assert f"{garden.uuid}: model call {call.pk}: " in capsys.readouterr().out


async def test_a_message_after_results_without_their_calls_is_sent(
    start_runtime: Any, wire: WireThread, session: Session
) -> None:
    """Programs that cut their history send such conversations."""
    runtime = await start_runtime()
    blocks = '[{"type":"tool_use","id":"a","name":"look","input":{}}]'
    turns = [NewTurn(role="assistant", content="", blocks=blocks)]
    await sync_to_async(append)(session.pk, session_uuid=session.uuid, turns=turns)
    wire.enqueue(Scenario(text="Fine."))
    await ask(runtime, session, "never mind")
    [message] = wire.requests[-1]["messages"]
    assert message["content"][0]["text"] == "never mind"
    call = await ModelCall.objects.aget()
    assert (await sync_to_async(rebuild_request)(call.pk)).matches
