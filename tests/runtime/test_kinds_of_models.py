"""Sessions with models of several providers: same turns and rows, change at any turn."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from conversations.agent.window.manifest import rebuild_request
from conversations.archive.attachments import save_attachment
from conversations.archive.sessions import choose_model, create_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.errors import ProviderError
from conversations.domain.events import AssistantText, Info
from conversations.domain.stream import IMAGES, TOOLS, ModelInfo
from conversations.domain.turns import read_blocks, read_metadata
from conversations.models import ModelCall, Session
from conversations.providers.config import (
    ANTHROPIC,
    OPENAI,
    OPENAI_RESPONSES,
    ProviderConfig,
    append_provider,
    read_provider_prices,
)
from conversations.rendering.messages import fill_marks
from conversations.runtime.model_routing import describe_model, group_models
from conversations.runtime.service import Runtime
from tests.archive import files
from tests.archive.turns import read_turns, turns_of
from tests.runtime.conftest import ask, change_options, fresh
from tests.runtime.sample_tools import sample_tools
from tests.runtime.test_runs import events_of
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)

MODEL = "claude-haiku-4-5"
CHAT, RESPONSES = f"chat/{MODEL}", f"responses/{MODEL}"


def make_providers(wire: WireThread, **models: Any) -> tuple[ProviderConfig, ...]:
    url = f"{wire.url}/v1"
    return (
        wire.provider,
        replace(wire.provider, name="second", is_plain=False),
        replace(wire.provider, name="chat", kind=OPENAI, url=url, is_plain=False, models=models),
        replace(wire.provider, name="responses", kind=OPENAI_RESPONSES, url=url, is_plain=False),
    )


@pytest.fixture
async def several(start_runtime: Callable[..., Any], wire: WireThread) -> Runtime:
    started: Runtime = await start_runtime(providers=make_providers(wire), model=MODEL)
    await started.models.wait_until_listed()
    return started


async def choose(session: Session, model: str) -> None:
    await sync_to_async(choose_model)(session, model=model)


async def told(session: Session) -> list[tuple[Any, ...]]:
    """Return the contents of a session's turns that do not depend on the answering model."""
    turns = await sync_to_async(read_turns)(session.pk)
    found = []
    for turn in turns:
        blocks = [
            {key: value for key, value in block.items() if key != "signature"}
            for block in read_blocks(turn) or []
        ]
        found.append((turn.role, turn.content, blocks, turn.stop_reason, turn.tool_call_id))
    return found


async def test_every_kind_of_provider_gives_the_same_turns_and_rows(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    seen = []
    for model in (MODEL, f"second/{MODEL}", CHAT, RESPONSES):
        session = await sync_to_async(create_session)(garden.workspace, owner=garden.owner)
        await choose(session, model)
        calls = (WireCall(name="look", input={"a": 1}, id="call_1"),)
        with sample_tools():
            wire.enqueue(
                Scenario(text="Looking.", thinking="hm", tools=calls),
                Scenario(text="# Done\n\n| a | b |\n|---|--:|\n| 1 | 2 |"),
            )
            run = await ask(several, session, "go")
        assert run.state == "completed"
        rows = (await sync_to_async(read_page)(await fresh(session), limit=100)).rows
        # The footer is left out, because its tokens and cost depend on the protocol.
        html = fill_marks("".join(row.html for row in rows[:-1]))
        html = re.sub(r"Thought for [\d.,]+ m?s", "Thought", html)
        html = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", html).replace(model, "MODEL")
        seen.append((await told(session), re.sub(r"[\d.,]+ ?(m?s|tokens|%|\$|k)?", "N", html)))
        calls_made = [call async for call in ModelCall.objects.filter(run__session=session.pk)]
        assert {call.model for call in calls_made} == {model}
        for call in calls_made:
            assert (await sync_to_async(rebuild_request)(call.pk)).matches
        assert (await sync_to_async(verify_session)(await fresh(session))).problem == ""
    assert all(one[0] == seen[0][0] for one in seen)
    for _, rows_seen in seen:
        assert rows_seen == seen[0][1]


async def test_thinking_that_began_in_the_prompt_is_not_shown_as_text(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    await choose(garden, CHAT)
    wire.enqueue(Scenario(text="They greet me.\n</think>\n\nHello!", chunk=3))
    await ask(several, garden, "hello")
    _, (_, content, blocks, *_) = await told(garden)
    thought, said = blocks
    assert (content, thought["thinking"]) == (said["text"], "They greet me.\n")
    assert content.strip() == "Hello!"
    [row] = [one for one in await events_of(garden) if isinstance(one, AssistantText)]
    assert (row.thinking, row.text.strip()) == ("They greet me.", "Hello!")


async def test_the_model_can_change_at_any_turn(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    """Thinking, calls and results of each model can be sent to every other model.

    The archive keeps them unchanged.
    """
    for number, model in enumerate((MODEL, CHAT, RESPONSES, MODEL, RESPONSES, CHAT, MODEL)):
        await choose(garden, model)
        with sample_tools():
            wire.enqueue(
                Scenario(
                    text="Let me see.", thinking=f"hm {number}", tools=(WireCall(name="look"),)
                ),
                Scenario(text=f"answer {number}"),
            )
            run = await ask(several, await fresh(garden), f"question {number}")
        assert run.state == "completed"
    assert not [one.error for one in wire.exchanges if one.error]
    answers = [text for role, text in await turns_of(garden) if text.startswith("answer")]
    assert answers == [f"answer {number}" for number in range(7)]
    last = await ModelCall.objects.order_by("-pk").afirst()
    assert last is not None
    assert '"lacks_thinking":[[' in last.manifest.replace(" ", "")
    assert (await sync_to_async(verify_session)(await fresh(garden))).problem == ""


async def test_a_model_without_tool_support_is_offered_no_tools(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    configured = {
        MODEL: {"tools": False, "input_tokens": 50_000},
        "unlisted": {"input_tokens": 60_000},
    }
    runtime = await start_runtime(providers=make_providers(wire, **configured), model=MODEL)
    with sample_tools():
        wire.enqueue(Scenario(tools=(WireCall(name="look"),)), Scenario(text="seen"))
        await ask(runtime, garden, "look")
        await choose(garden, CHAT)
        await ask(runtime, await fresh(garden), "and now?")
    sent = wire.requests[-1]
    assert "tools" not in sent
    assert "[Called look with" in str(sent["messages"])
    call = await ModelCall.objects.order_by("-pk").afirst()
    assert call is not None
    assert (await sync_to_async(rebuild_request)(call.pk)).matches
    assert runtime.models.limits_of(CHAT)[0] == 50_000
    assert "chat/unlisted" in [model.id for model in runtime.models.listed]
    assert runtime.models.limits_of("chat/unlisted")[0] == 60_000


async def test_a_servers_refusal_of_tools_is_remembered(
    several: Runtime, wire: WireThread, garden: Session, start_runtime: Callable[..., Any]
) -> None:
    await choose(garden, CHAT)
    wire.enqueue(Scenario(status=400, error_message=f"{MODEL} does not support tools"))
    run = await ask(several, await fresh(garden), "hello")
    assert run.state == "completed"
    assert "tools" in wire.requests[0]
    assert "tools" not in wire.requests[1]
    assert several.models.find(CHAT).takes[TOOLS] is False
    # The refusal is also known in another process and after a restart.
    again = await start_runtime(providers=make_providers(wire), model=MODEL)
    await ask(again, await fresh(garden), "again")
    assert "tools" not in wire.requests[2]


async def test_thinking_is_sent_back_to_a_server_that_requires_it(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    """DeepSeek and Kimi require it from the first tool call on."""
    wire.enqueue(Scenario(text="Hello.", thinking="Somebody is there"))
    await ask(several, garden, "hello")
    await choose(garden, CHAT)
    missing = "Missing `reasoning_content` field in the assistant message at message index 1."
    wire.enqueue(
        Scenario(thinking="I should look", tools=(WireCall(name="look"),)),
        Scenario(status=400, error_message=missing),
        Scenario(text="Seen.", thinking="That is it"),
    )
    with sample_tools():
        run = await ask(several, await fresh(garden), "look")
        assert run.state == "completed"
        assert "reasoning_content" not in str(wire.requests[:3])
        await ask(several, await fresh(garden), "again")
    said = [one for one in wire.requests[-1]["messages"] if one["role"] == "assistant"]
    assert [one["reasoning_content"] for one in said] == [" ", "I should look", "That is it"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Unexpected role 'user' after role 'tool'"),
        (
            500,
            "------------\nWhile executing CallExpression at line 189, column 32 in source:\n...=="
            " 0) %}↵            {{- raise_exception('After the optional system message, con...\n"
            "     ^\nError: Jinja Exception: After the optional system message, conversation roles"
            " must alternate user and assistant roles except for tool calls and results.",
        ),
    ],
    ids=["mistral", "llama.cpp"],
)
async def test_an_answer_is_inserted_after_results_if_the_server_requires_one(
    several: Runtime, wire: WireThread, garden: Session, status: int, words: str
) -> None:
    await choose(garden, CHAT)
    wire.enqueue(
        Scenario(tools=(WireCall(name="look"),)),
        Scenario(status=status, error_message=words),
        Scenario(text="Seen."),
    )
    with sample_tools():
        # The message contains a rule, so a session state follows the results.
        run = await ask(several, await fresh(garden), "Never water at noon. Look!")
        assert run.state == "completed"
        await ask(several, await fresh(garden), "again")
    roles = [[one["role"] for one in body["messages"]] for body in wire.requests]
    assert roles[1] == ["system", "user", "assistant", "tool", "user"]  # for all other servers
    assert roles[2] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert roles[3] == ["system", "user", "assistant", "tool", "assistant", "user"]
    between = wire.requests[2]["messages"][-2]["content"]
    assert between == "I have read the results."
    assert between not in str(wire.requests[3])


async def test_sealed_data_of_a_call_is_sent_back_only_to_its_model(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    """Gemini requires that the signature of its thought is sent back with the call."""
    sealed = {"google": {"thought_signature": "SIG"}}
    await choose(garden, CHAT)
    wire.enqueue(Scenario(tools=(WireCall(name="look", sealed=sealed),)), Scenario(text="Seen."))
    with sample_tools():
        assert (await ask(several, await fresh(garden), "look")).state == "completed"
        [said] = [one for one in wire.requests[-1]["messages"] if one["role"] == "assistant"]
        assert [call["extra_content"] for call in said["tool_calls"]] == [sealed]
        for model in (MODEL, RESPONSES):
            await choose(garden, model)
            assert (await ask(several, await fresh(garden), f"{model}?")).state == "completed"
            assert "SIG" not in str(wire.requests[-1])


async def test_an_aborted_answer_is_retried_if_empty_and_kept_otherwise(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    await choose(garden, CHAT)
    wire.enqueue(Scenario(empty=True, stop_reason="abort"), Scenario(text="Whole."))
    assert (await ask(several, await fresh(garden), "hello")).state == "completed"
    wire.enqueue(Scenario(text="The first half", stop_reason="insufficient_system_resource"))
    run = await ask(several, await fresh(garden), "go on")
    assert (run.state, run.error_code) == ("failed", "stream_error")
    [notice] = [event for event in await events_of(garden) if isinstance(event, Info)]
    assert notice.action == "retry"
    last = (await sync_to_async(read_turns)(garden.pk))[-1]
    assert (last.content, last.complete) == ("The first half", False)


async def test_thinking_is_sent_back_to_a_model_named_by_an_alias(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    dated = f"{MODEL}-20251001"
    wire.enqueue(
        Scenario(thinking="I should look", tools=(WireCall(name="look"),), answers_as=dated),
        Scenario(text="Seen.", answers_as=dated),
    )
    with sample_tools():
        assert (await ask(several, garden, "look")).state == "completed"
    [said] = [one for one in wire.requests[-1]["messages"] if one["role"] == "assistant"]
    assert [block["type"] for block in said["content"]] == ["thinking", "tool_use"]
    assert {call.model async for call in ModelCall.objects.all()} == {MODEL}
    turns = await sync_to_async(read_turns)(garden.pk)
    answers = [read_metadata(turn) for turn in turns if turn.role == "assistant"]
    assert [one["answered_as"] for one in answers] == [dated, dated]


async def test_a_call_by_an_alias_has_the_price_of_the_answering_model(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    priced = "claude-sonnet-5-5"  # ``MODEL`` has no price
    wire.enqueue(
        Scenario(words=9, answers_as=priced),
        Scenario(words=9, answers_as=priced, error_after=2, error_type="invalid_request_error"),
    )
    assert (await ask(several, await fresh(garden), "hello")).state == "completed"
    assert (await ask(several, await fresh(garden), "go on")).state == "failed"
    calls = [call async for call in ModelCall.objects.order_by("pk")]
    assert [(call.model, bool(call.cost_microusd)) for call in calls] == [(MODEL, True)] * 2


async def test_the_window_limit_is_learnt_from_a_refusal(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    await choose(garden, CHAT)
    words = "request (9000 tokens) exceeds the available context size (8192 tokens)"
    wire.enqueue(Scenario(status=400, error_message=words))
    run = await ask(several, await fresh(garden), "hello")
    assert run.state == "completed"
    assert several.models.limits_of(CHAT)[0] == 8192
    assert several.models.limits_of(RESPONSES)[0] > 8192


async def test_the_notice_of_a_cut_off_answer_names_the_limit(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    providers = make_providers(wire, **{MODEL: {"output_tokens": 4_096}})
    runtime = await start_runtime(providers=providers, model=MODEL)
    for model, said in ((MODEL, "LOOM_MAX_OUTPUT_TOKENS"), (CHAT, "4\u202f096 tokens")):
        await choose(garden, model)
        wire.enqueue(Scenario(words=9, stop_reason="max_tokens"))
        await ask(runtime, await fresh(garden), f"hello {model}")
        notice = [event for event in await events_of(garden) if isinstance(event, Info)][-1]
        assert notice.code == "max_tokens"
        assert said in notice.text
    assert "LOOM_MAX_OUTPUT_TOKENS" not in notice.text
    assert "providers.toml" in notice.text


async def test_images_are_left_out_after_the_server_refuses_them(
    several: Runtime, wire: WireThread, garden: Session
) -> None:
    kept = await sync_to_async(save_attachment)(
        garden.pk, data=files.image_bytes(), name="bed.png", user_pk=garden.owner_id
    )
    await choose(garden, CHAT)
    wire.enqueue(Scenario(status=500, error_message="image input is not supported - hint: mmproj"))
    accepted = await several.send(
        await fresh(garden),
        client_id="with-image",
        text="look",
        user_pk=garden.owner_id,
        attachments=[str(kept.uuid)],
    )
    await several.wait_idle(garden.pk)
    assert accepted
    assert "image_url" in str(wire.requests[0])
    assert "image_url" not in str(wire.requests[1])
    assert "bed.png was attached here, and is left out: this model cannot read it" in str(
        wire.requests[1]
    )
    assert several.models.find(CHAT).takes[IMAGES] is False


async def test_a_model_that_no_provider_has_fails_with_a_notice(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(providers=make_providers(wire)[2:], model="")
    await choose(garden, "claude-opus-5-5")
    run = await ask(runtime, await fresh(garden), "hello")
    assert run.state == "failed"
    [notice] = [event for event in await events_of(garden) if isinstance(event, Info)]
    assert "No configured provider has the model claude-opus-5-5." in notice.text
    assert "Choose another model" in notice.text


async def test_the_first_listed_model_answers_if_there_is_no_default(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(providers=make_providers(wire)[2:], model="")
    run = await ask(runtime, garden, "hello")
    assert run.state == "completed"
    assert wire.requests[0]["model"] == next(iter(wire.server.models))


async def test_a_server_that_starts_later_is_found_by_the_next_message(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    providers = make_providers(wire)[2:3]
    runtime = await start_runtime(providers=providers, model="", provider_retries=0)
    wire.server.models_reply = (503, {"error": "loading the model"})
    assert (await ask(runtime, garden, "hello")).state == "failed"
    [notice] = [event for event in await events_of(garden) if isinstance(event, Info)]
    assert "No provider offers a model." in notice.text
    assert "loading the model" in notice.text
    wire.server.models_reply = (200, {"data": []})  # the server has loaded no model yet
    assert (await ask(runtime, await fresh(garden), "still there?")).state == "failed"
    change_options(runtime, provider_retries=1)

    def start_it(error: ProviderError, tries: int) -> float:
        wire.server.models_reply = None
        return 0.0

    monkeypatch.setattr("conversations.runtime.run.wait_before_try", start_it)
    assert (await ask(runtime, await fresh(garden), "and now?")).state == "completed"
    asked = len(wire.exchanges)
    assert (await ask(runtime, await fresh(garden), "again")).state == "completed"
    assert [one.path for one in wire.exchanges[asked:]] == ["/v1/chat/completions"]


async def test_the_window_size_of_a_model_loaded_in_ollama_is_learnt(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    """Ollama reports the size only while the model is loaded, and the first answer loads it."""
    entry = {"name": MODEL, "context_length": 16_384}
    is_loaded = True
    wire.server.models_reply = (200, {"data": [{"id": MODEL, "owned_by": "library"}]})
    wire.server.pages = {
        "/api/ps": lambda body: {"models": [entry] if wire.requests and is_loaded else []},
        "/api/show": lambda body: {},
    }
    runtime = await start_runtime(providers=make_providers(wire)[2:3], model=CHAT)
    assert (await ask(runtime, garden, "hello")).state == "completed"
    async with asyncio.timeout(30):
        while runtime.models.limits_of(CHAT)[0] != 16_384:
            await asyncio.sleep(0.01)
    is_loaded = False
    await runtime.models.refresh()
    assert runtime.models.limits_of(CHAT)[0] == 16_384
    await runtime.models.forget_learnt("chat")
    assert runtime.models.limits_of(CHAT)[0] == 4_096


async def test_an_unreachable_server_does_not_affect_the_others(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    dead = ProviderConfig(name="dead", kind=OPENAI, url="http://127.0.0.1:9/v1")
    runtime = await start_runtime(providers=(dead, *make_providers(wire)), model=MODEL)
    assert (await ask(runtime, garden, "hello")).state == "completed"
    await runtime.models.refresh()
    assert "unreachable" in runtime.models.states["dead"].error
    assert not runtime.models.states["chat"].error
    await choose(garden, "dead/m")
    assert (await ask(runtime, await fresh(garden), "and?")).state == "failed"


def test_configured_prices_are_found_by_the_models_id() -> None:
    model = {"m": {"price": {"input": 0.5, "output": 1.5}}}
    config = ProviderConfig(name="local", kind=ANTHROPIC, url="http://localhost", models=model)
    [(model_id, (price,))] = read_provider_prices((config,)).items()
    assert (model_id, price.input, price.output) == ("local/m", 0.5, 1.5)


async def test_small_models_are_chosen_only_from_the_same_provider(
    start_runtime: Callable[..., Any], wire: WireThread
) -> None:
    """The text of a session with a local model is not sent to any other server."""
    local = ProviderConfig(
        name="local", kind=OPENAI, url="http://127.0.0.1:9/v1", models={"big": {}}
    )
    runtime = await start_runtime(providers=(*make_providers(wire), local), title_model="auto")
    await runtime.models.wait_until_listed()
    for choose_small in (runtime.models.compact_model_for, runtime.models.title_model_for):
        assert choose_small("local/big") == "local/big"
        assert choose_small(MODEL) == "claude-haiku-5-5"
        assert choose_small(CHAT) == "chat/claude-haiku-5-5"


async def test_a_changed_providers_file_is_used_by_every_process(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "providers.toml"
    monkeypatch.setattr(settings.LOOM, "providers_file", path)
    monkeypatch.setattr(settings.LOOM, "providers", ())
    wire.server.key = ""
    runtimes = [await start_runtime(providers=(), model="") for _ in range(2)]
    append_provider(path, name="local", url=f"{wire.url}/v1")
    for number, runtime in enumerate(runtimes):
        assert runtime.models.is_demo
        await ask(runtime, await fresh(garden), f"hello {number}")
        assert not runtime.models.is_demo
    assert len(wire.requests) == 2
    path.write_text("[providers.local]\nkind = 'other'\n")
    await ask(runtimes[0], await fresh(garden), "still here?")
    assert len(wire.requests) == 3
    assert "providers_not_read" in caplog.text


def test_the_model_menu_groups_by_provider_and_hides_dated_duplicates() -> None:
    def model(name: str, provider: str) -> ModelInfo:
        return ModelInfo(
            id=name, name=name, max_input_tokens=1, max_output_tokens=1, provider=provider
        )

    models = [
        *(model(name, "a") for name in ("one", "one-20260101", "two-20260101")),
        *(model(name, "b") for name in ("b/three-2026-01-01", "b/three")),
    ]
    ids = [(name, [one.id for one in some]) for name, some in group_models(models, chosen="")]
    assert ids == [("a", ["one", "two-20260101"]), ("b", ["b/three"])]
    chosen = group_models(models, chosen="one-20260101")
    assert [one.id for one in chosen[0][1]] == ["one", "one-20260101", "two-20260101"]
    name, gone = group_models(models, chosen="four")[-1]
    assert (name, [one.id for one in gone]) == ("Not available", ["four"])


@pytest.mark.parametrize(
    ("size", "said"), [(1_048_576, "1.05M"), (1_000_000, "1M"), (131_072, "131k"), (512, "512")]
)
def test_the_description_of_a_model_has_a_rounded_token_limit(size: int, said: str) -> None:
    model = ModelInfo(id="m", name="M", max_input_tokens=size, max_output_tokens=0, provider="a")
    assert describe_model(model, {}) == f"m · a · {said} tokens"
