"""Scenarios that give the same answers with every kind of provider."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from conversations.domain.errors import ProviderError
from conversations.domain.stream import (
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    ModelInfo,
    ModelRequest,
    Provider,
    StreamItem,
    Usage,
)
from conversations.providers.answer_reader import AnswerReader
from conversations.providers.config import (
    ANTHROPIC,
    KINDS,
    OPENAI,
    OPENAI_RESPONSES,
    ProviderConfig,
    make_model,
)
from conversations.providers.openai_chat import ChatTranslator, ThinkingTags, make_body
from conversations.providers.openai_responses import ResponseTranslator
from conversations.providers.registry import make_provider
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

MODEL = "claude-haiku-4-5"  # the only model of the server that accepts sampling
TOOL = {"name": "t0", "description": "d", "input_schema": {"type": "object", "properties": {}}}


@pytest_asyncio.fixture(loop_scope="function", params=KINDS)
async def provider(request: pytest.FixtureRequest, wire: WireThread) -> AsyncIterator[Provider]:
    provider = make_kind(request.param, wire)
    yield provider
    await provider.close()


def make_kind(kind: str, wire: WireThread, *, timeout: float = 10) -> Provider:
    url = wire.url if kind == ANTHROPIC else f"{wire.url}/v1"
    return make_provider(replace(wire.provider, kind=kind, url=url), timeout=timeout)


def make_request(text: str = "hello", **more: Any) -> ModelRequest:
    said = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return ModelRequest(**({"model": MODEL, "messages": said, "max_tokens": 500} | more))


async def read_all(provider: Provider, request: ModelRequest | None = None) -> list[StreamItem]:
    return [item async for item in provider.stream(request or make_request())]


async def complete(provider: Provider, request: ModelRequest | None = None) -> MessageCompleted:
    last = (await read_all(provider, request))[-1]
    assert isinstance(last, MessageCompleted)
    return last


def plain(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks without signatures, which only one protocol has."""
    return [{k: v for k, v in block.items() if k != "signature"} for block in blocks]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Claude Opus 5.5", "Opus 5.5"),
        ("claude-opus-5-5", "opus-5-5"),
        ("meta-llama/Llama-3.1-70B-Instruct", "Llama-3.1-70B-Instruct"),
        ("llama3.1:70b-instruct-q4_K_M", "llama3.1:70b"),
        ("library/qwen3:8b", "qwen3:8b"),
        ("gpt-5.2", "gpt-5.2"),
        ("odd/", "odd/"),
    ],
)
def test_a_short_name_still_identifies_the_model(name: str, short: str) -> None:
    model = ModelInfo(id="x", name=name, max_input_tokens=1, max_output_tokens=1)
    assert model.short_name == short


async def test_an_answer_gives_the_same_items_for_every_kind(
    wire: WireThread, provider: Provider
) -> None:
    wire.enqueue(Scenario(text="Hello there", thinking="Let me", chunk=6))
    items = await read_all(provider)
    started = items[0]
    assert isinstance(started, MessageStarted)
    assert started.message_id
    done = items[-1]
    assert isinstance(done, MessageCompleted)
    blocks = [{"type": "thinking", "thinking": "Let me"}, {"type": "text", "text": "Hello there"}]
    assert plain(done.blocks) == blocks
    assert (done.stop_reason, done.model) == ("end_turn", MODEL)
    shown = [
        (type(i), i.index, getattr(i, "kind", ""), getattr(i, "text", "")) for i in items[1:-1]
    ]
    assert shown == [
        (BlockStarted, 0, "thinking", ""),
        (BlockDelta, 0, "thinking", "Let me"),
        (BlockCompleted, 0, "", ""),
        (BlockStarted, 1, "text", ""),
        (BlockDelta, 1, "text", "Hello "),
        (BlockDelta, 1, "text", "there"),
        (BlockCompleted, 1, "", ""),
    ]


async def test_parallel_calls_in_pieces_are_read(wire: WireThread, provider: Provider) -> None:
    inputs = [{"path": "a b.txt", "deep": {"x": [1, 2.5, None, True]}}, {}, {"é": '\n"\\😀'}]
    tools = tuple(ToolCall(name=f"t{n}", input=inputs[n]) for n in range(3))
    wire.enqueue(Scenario(text="I look", tools=tools, chunk=3))
    done = await complete(provider)
    assert done.stop_reason == "tool_use"
    assert [block["type"] for block in done.blocks] == ["text", *["tool_use"] * 3]
    assert [(block["name"], block["input"]) for block in done.blocks[1:]] == [
        (f"t{n}", inputs[n]) for n in range(3)
    ]
    assert len({block["id"] for block in done.blocks[1:]}) == 3


async def test_a_whole_document_instead_of_a_stream_is_read(
    wire: WireThread, provider: Provider
) -> None:
    call = ToolCall(name="t0", input={"a": 1}, id="call_1")
    wire.enqueue(Scenario(text="Yes", thinking="Hm", tools=(call,), body="whole"))
    done = await complete(provider)
    assert plain(done.blocks) == [
        {"type": "thinking", "thinking": "Hm"},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "call_1", "name": "t0", "input": {"a": 1}},
    ]
    assert done.stop_reason == "tool_use"
    assert done.usage.output_tokens


@pytest.mark.parametrize(
    "oddity",
    [{"split": 1}, {"split": 3, "crlf": True}, {"glue": 4}, {"glue": 1000}, {"chunk": 1}],
)
async def test_a_stream_in_any_chunks_is_read(
    wire: WireThread, provider: Provider, oddity: dict[str, Any]
) -> None:
    call = ToolCall(name="t", input={"é": "€\u2028😀"})
    wire.enqueue(Scenario(text="Grüße, 世界 😀\u2028\n" * 3, tools=(call,), **oddity))
    done = await complete(provider)
    assert done.blocks[0]["text"] == "Grüße, 世界 😀\u2028\n" * 3
    assert done.blocks[1]["input"] == {"é": "€\u2028😀"}


async def test_usage_is_counted_alike_and_may_be_missing(
    wire: WireThread, provider: Provider
) -> None:
    wire.enqueue(Scenario(text="a", usage=False), Scenario(text="a"))
    assert (await complete(provider)).usage == Usage()
    usage = (await complete(provider)).usage
    assert usage.input_tokens == 2
    assert usage.output_tokens
    assert usage.cache_read_tokens == 0


@pytest.mark.parametrize(("prompt", "cached"), [(5_012, 5_000), (12, 5_000)])
def test_cached_tokens_may_be_excluded_from_the_prompt_tokens(prompt: int, cached: int) -> None:
    """OpenRouter and gateways exclude cached tokens for some models. OpenAI includes them."""
    expected = Usage(input_tokens=12, output_tokens=3, cache_read_tokens=5_000)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    assert read_chat(delta("stop", content="a"), {"usage": usage}, "[DONE]").usage == expected
    usage = {
        "input_tokens": prompt,
        "output_tokens": 3,
        "input_tokens_details": {"cached_tokens": cached},
    }
    response = {"id": "r", "status": "completed", "output": [], "usage": usage}
    event = {"type": "response.completed", "response": response}
    last = make_responses_reader().read(f"data: {json.dumps(event)}\n\n".encode())[-1]
    assert isinstance(last, MessageCompleted)
    assert last.usage == expected


@pytest.mark.parametrize(("output", "total"), [(1, 401), (387, 401), (387, None)])
def test_reasoning_tokens_may_be_excluded_from_the_output_tokens(
    output: int, total: int | None
) -> None:
    """xAI excludes reasoning tokens. OpenAI includes them in the output tokens."""
    usage = {
        "prompt_tokens": 14,
        "completion_tokens": output,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": 386},
    }
    found = read_chat(delta("stop", content="a"), {"usage": usage}, "[DONE]").usage
    assert (found.input_tokens, found.output_tokens) == (14, 387)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "refusal"])
async def test_stop_reasons_are_the_same_for_every_kind(
    wire: WireThread, provider: Provider, reason: str
) -> None:
    wire.enqueue(Scenario(text="a", stop_reason=reason))
    assert (await complete(provider)).stop_reason == reason


async def test_a_cut_call_keeps_its_text(wire: WireThread, provider: Provider) -> None:
    wire.enqueue(Scenario(tools=(ToolCall(name="t", input={"path": "x" * 40}),), cut_tool=True))
    done = await complete(provider)
    assert done.stop_reason == "max_tokens"
    assert done.blocks[0]["input"]["_unparsed"].startswith('{"path": "xxx')


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"drop_after": 3}, "connection_lost"),
        ({"short_after": 3}, "connection_lost"),
        ({"end_after": 3}, "incomplete_stream"),
        ({"garbage_after": 3}, "bad_response"),
        ({"error_after": 3}, "overloaded"),
        ({"error_after": 3, "error_type": "rate_limit_error"}, "rate_limited"),
        ({"error_after": 3, "error_type": "future_error"}, "stream_error"),
    ],
)
async def test_a_fault_in_mid_stream_keeps_the_text_before_it(
    wire: WireThread, provider: Provider, fault: dict[str, Any], code: str
) -> None:
    wire.enqueue(Scenario(text="abcdefghij", chunk=2, **fault))
    error, text = await fail(provider)
    assert (error.code, text) == (code, "abcdef")


async def fail(
    provider: Provider, request: ModelRequest | None = None
) -> tuple[ProviderError, str]:
    """Return the error with which a stream ends, and the text before it."""
    texts: list[str] = []

    async def collect() -> None:
        async for item in provider.stream(request or make_request()):
            texts.append(item.text if isinstance(item, BlockDelta) else "")  # noqa: PERF401

    with pytest.raises(ProviderError) as caught:
        await collect()
    return caught.value, "".join(texts)


@pytest.mark.parametrize(
    ("status", "message", "code", "is_transient"),
    [
        (400, "Something is wrong", "invalid_request", False),
        (400, "the request exceeds the available context size", "context_window_exceeded", False),
        (401, "no", "bad_key", False),
        (403, "no", "permission", False),
        (404, "no", "unknown_model", False),
        (413, "no", "request_too_large", False),
        (429, "slow down", "rate_limited", True),
        (500, "oops", "server_error", True),
        (503, "oops", "server_error", True),
    ],
)
async def test_http_errors_have_the_same_codes_for_every_kind(
    wire: WireThread,
    provider: Provider,
    status: int,
    message: str,
    code: str,
    is_transient: bool,
) -> None:
    wire.enqueue(Scenario(status=status, error_message=message, retry_after="2.5"))
    error, _ = await fail(provider)
    assert (error.code, error.transient) == (code, is_transient)
    assert (error.http_status, error.retry_after) == (status, 2.5)
    assert message in error.message
    assert len(wire.exchanges) == 1  # the SDK must not retry by itself


@pytest.mark.parametrize("kind", KINDS)
async def test_no_words_of_an_error_are_removed_if_there_is_no_key(
    wire: WireThread, kind: str
) -> None:
    wire.server.key = ""
    url = wire.url if kind == ANTHROPIC else f"{wire.url}/v1"
    config = ProviderConfig(name="local", kind=kind, url=url)
    provider = make_provider(config, timeout=10)
    words = "tool_choice must be none or auto"
    wire.enqueue(Scenario(status=400, error_message=words))
    assert words in (await fail(provider))[0].message
    await provider.close()


@pytest.mark.parametrize("body", ["html", "json"])
async def test_an_html_page_or_other_json_is_a_bad_response(
    wire: WireThread, provider: Provider, body: str
) -> None:
    wire.enqueue(Scenario(body=body))
    assert (await fail(provider))[0].code == "bad_response"


@pytest.mark.parametrize("kind", KINDS)
async def test_silence_is_a_timeout(wire: WireThread, kind: str) -> None:
    provider = make_kind(kind, wire, timeout=0.3)
    wire.enqueue(Scenario(text="abcdef", chunk=2, hang_after=2))
    error, text = await fail(provider)
    assert (error.code, text) == ("timeout", "abcd")
    await provider.close()


async def test_an_idle_connection_that_was_closed_is_replaced(
    wire: WireThread, provider: Provider
) -> None:
    wire.enqueue(Scenario(), Scenario(refuse=True), Scenario(text="again"))
    await complete(provider)
    assert (await complete(provider)).blocks[0]["text"] == "again"


async def test_a_closed_connection_is_lost(wire: WireThread, provider: Provider) -> None:
    wire.enqueue(Scenario(refuse=True))
    assert (await fail(provider))[0].code == "connection_lost"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
async def test_an_unreachable_server_is_a_failed_connection(
    wire: WireThread, kind: str, host: str
) -> None:
    provider = make_provider(replace(wire.provider, kind=kind, url=f"http://{host}/v1"), timeout=5)
    assert (await fail(provider))[0].code == "connection_failed"
    await provider.close()


async def test_cancelling_ends_the_request(wire: WireThread, provider: Provider) -> None:
    wire.enqueue(Scenario(words=20, hang_after=3))
    task = asyncio.create_task(read_all(provider))
    while not wire.exchanges:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(500):
        if wire.exchanges[-1].client_left is not None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the request went on")


async def test_only_the_configured_key_is_sent(
    wire: WireThread, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "another")
        monkeypatch.setenv(f"ANTHROPIC_{name}", "another")
    await read_all(provider)
    headers = wire.exchanges[0].headers
    assert headers["authorization"] == f"Bearer {wire.key}"
    assert "another" not in headers.values()


async def test_models_are_listed(wire: WireThread, provider: Provider) -> None:
    models = await provider.list_models()
    assert [model.id for model in models] == list(wire.server.models)
    assert models[-1].max_input_tokens == 200_000


@pytest.mark.parametrize(
    "reply",
    [
        (404, {"detail": "Not Found"}),  # vLLM and Ollama if the address lacks /v1
        (200, {"error": "Unexpected endpoint or method. (GET /models)"}),  # LM Studio
        (200, "<!doctype html>"),
    ],
)
async def test_an_address_without_a_model_list_is_reported(
    wire: WireThread, provider: Provider, reply: tuple[int, Any]
) -> None:
    wire.server.models_reply = reply
    with pytest.raises(ProviderError, match="Check its address") as caught:
        await provider.list_models()
    assert caught.value.code == "no_list"
    wire.server.models_reply = (200, {"object": "list", "data": None})  # Ollama without models
    assert await provider.list_models() == []


async def test_each_model_of_ollama_has_the_window_that_ollama_serves(wire: WireThread) -> None:
    """Ollama silently cuts longer prompts. The owner is a part of the model's name."""
    names = [f"hf.co/unsloth/m{number}:Q4" for number in range(101)]
    wire.server.models_reply = (200, {"data": [{"id": n, "owned_by": "unsloth"} for n in names]})
    shown = {
        names[0]: {"parameters": "num_ctx    8192", "capabilities": ["completion", "tools"]},
        names[1]: {"model_info": {"llama.context_length": 2048}},
    }
    loaded = {"models": [{"name": names[100], "context_length": 16384}]}
    wire.server.pages = {
        "/": lambda body: "Ollama is running",
        "/api/ps": lambda body: loaded,
        "/api/show": lambda body: shown.get(body["model"], {}),
    }
    provider = make_kind(OPENAI, wire)
    models = await provider.list_models()
    assert [model.id for model in models] == names
    assert [model.max_input_tokens for model in models] == [8192, 2048, *[4096] * 98, 16384]
    assert [model.id for model in models if model.is_limit_known] == [names[0], names[100]]
    assert models[0].takes["tools"] is True
    await provider.close()


async def test_ollama_is_asked_about_two_models_at_a_time(wire: WireThread) -> None:
    names = [f"m{number}" for number in range(8)]
    may_answer, running, peak = asyncio.Event(), 0, 0

    async def show(body: Any) -> dict[str, Any]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await may_answer.wait()
        running -= 1
        return {"parameters": f"num_ctx {8000 + names.index(body['model'])}"}

    def ask_meanwhile(body: Any) -> str:
        may_answer.set()
        return ""

    wire.server.models_reply = (200, {"data": [{"id": n, "owned_by": "library"} for n in names]})
    wire.server.pages = {"/api/ps": lambda body: {"models": []}, "/api/show": show}
    wire.server.pages["/v1/chat/completions"] = ask_meanwhile
    provider = make_kind(OPENAI, wire)
    listing = asyncio.create_task(provider.list_models())
    while running < 2:
        await asyncio.sleep(0.01)
    # A third request, sent together with the first two, would arrive before this one.
    assert (await fail(provider))[0].code == "bad_response"
    assert {model.id: model.max_input_tokens for model in await listing} == {
        name: 8000 + number for number, name in enumerate(names)
    }
    assert peak == 2
    await provider.close()


async def test_models_that_cannot_chat_are_left_out(wire: WireThread, provider: Provider) -> None:
    others = [
        *("text-embedding-3-small", "nomic-embed-text:latest", "gpt-4o-mini-tts", "whisper-1"),
        *("gpt-image-1", "omni-moderation-latest", "jina-reranker-v3", "gpt-4o-transcribe"),
        *("dall-e-3", "gpt-audio-mini", "gpt-4o-audio-preview", "gpt-realtime", "babbage-002"),
    ]
    chatting = ["gpt-5-mini", "qwen3:8b", "gemini-3-flash", "gpt-4o", "deepseek-chat", "bgemma"]
    entries: list[dict[str, Any]] = [{"id": name} for name in others + chatting]
    entries += [
        {"id": "typed", "type": "embeddings"},
        {"id": "able", "capabilities": ["embedding"]},
        {"id": "both", "capabilities": ["completion", "embedding"], "type": "llm"},
    ]
    wire.server.models_reply = (200, {"data": entries})
    assert [model.id for model in await provider.list_models()] == [*chatting, "both"]


async def test_a_configured_model_is_never_left_out(wire: WireThread) -> None:
    config = replace(wire.provider, kind=OPENAI, url=f"{wire.url}/v1")
    named = [make_model("my-embedding-chat")]
    provider = make_provider(config, timeout=10, fallback_models=named)
    entries = [{"id": "my-embedding-chat"}, {"id": "embeddinggemma"}]
    wire.server.models_reply = (200, {"data": entries})
    assert [model.id for model in await provider.list_models()] == ["my-embedding-chat"]
    await provider.close()


# Requests


LONG = "server__" + "x" * 90


async def test_a_history_with_every_kind_of_block_can_be_sent(
    wire: WireThread, provider: Provider
) -> None:
    """The history has calls with long ids and names, images, failures and documents."""
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
        "AABJRU5ErkJggg=="
    )
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": pixel},
    }
    text = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "Once"},
        "title": "story.txt",
    }
    call_ids = ["toolu_" + "a" * 60, "toolu_" + "a" * 59 + "b"]
    messages = [
        {"role": "user", "content": [image, text, {"type": "text", "text": "Look"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I do"},
                *[{"type": "tool_use", "id": i, "name": LONG, "input": {"n": 1}} for i in call_ids],
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": call_ids[0],
                    "content": [{"type": "text", "text": "seen"}, image],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": call_ids[1],
                    "is_error": True,
                    "content": "gone",
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    wire.enqueue(Scenario(tools=(ToolCall(name="shortened", input={}),)))
    request = make_request(
        messages=messages,
        system=[{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
        tools=[TOOL | {"name": LONG}],
    )
    await read_all(provider, request)
    sent = json.dumps(wire.requests[-1])
    for words in ("Be brief", "Look", "Once", "I do", "seen", "gone", "And now?", pixel):
        assert words in sent


@pytest.mark.parametrize("kind", [OPENAI, OPENAI_RESPONSES])
async def test_a_shortened_tool_name_is_restored_in_the_answer(wire: WireThread, kind: str) -> None:
    provider = make_kind(kind, wire)
    request = make_request(tools=[TOOL | {"name": LONG}])
    await read_all(provider, request)
    tool = wire.requests[-1]["tools"][0]
    called = tool.get("function", tool)["name"]
    assert len(called) <= 64
    wire.enqueue(Scenario(tools=(ToolCall(name=called),)))
    assert (await complete(provider, request)).blocks[0]["name"] == LONG
    await provider.close()


@pytest.mark.parametrize("kind", [OPENAI, OPENAI_RESPONSES])
async def test_choices_are_translated_to_the_protocol(wire: WireThread, kind: str) -> None:
    provider = make_kind(kind, wire)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    choices = {
        "temperature": 0.5,
        "tool_choice": {"type": "tool", "name": "t0", "disable_parallel_tool_use": True},
        "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": schema}},
    }
    await read_all(provider, make_request(tools=[TOOL], choices=choices))
    sent = wire.requests[-1]
    assert (sent["temperature"], sent["parallel_tool_calls"]) == (0.5, False)
    if kind == OPENAI:
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "t0"}}
        assert sent["reasoning_effort"] == "high"
        assert sent["response_format"]["json_schema"]["schema"] == schema
    else:
        assert sent["tool_choice"] == {"type": "function", "name": "t0"}
        assert sent["reasoning"]["effort"] == "high"
        assert sent["text"]["format"]["schema"] == schema
        assert sent["store"] is False
    await provider.close()


async def test_sealed_thinking_is_sent_back(wire: WireThread) -> None:
    provider = make_kind(OPENAI_RESPONSES, wire)
    wire.enqueue(Scenario(text="Yes", thinking="Let me see"))
    done = await complete(provider)
    history = [
        *make_request().messages,
        {"role": "assistant", "content": done.blocks},
        {"role": "user", "content": "Go on"},
    ]
    await read_all(provider, make_request(messages=history))
    [thought] = [one for one in wire.requests[-1]["input"] if one.get("type") == "reasoning"]
    assert thought["encrypted_content"] == f"sealed:{MODEL}"
    assert thought["summary"] == [{"type": "summary_text", "text": "Let me see"}]
    await provider.close()


NOT_ZERO = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)"
    " value is supported."
)


@pytest.mark.parametrize(
    ("kind", "message", "gone", "there"),
    [
        (OPENAI, "Unsupported parameter: 'max_tokens'", "max_tokens", "max_completion_tokens"),
        (OPENAI, "stream_options is not allowed", "stream_options", "stream"),
        (OPENAI, NOT_ZERO, "temperature", "top_p"),
        (OPENAI, "Unsupported parameter: 'top_p'", "top_p", "temperature"),
        (OPENAI_RESPONSES, NOT_ZERO, "temperature", "top_p"),
        (OPENAI_RESPONSES, "Unsupported parameter: 'top_p'", "top_p", "temperature"),
        (OPENAI_RESPONSES, "Encrypted content is not supported", "include", "reasoning"),
        (OPENAI_RESPONSES, "Unsupported parameter: 'reasoning.summary'", "reasoning", "include"),
    ],
)
async def test_a_refused_parameter_is_not_sent_again(
    wire: WireThread, kind: str, message: str, gone: str, there: str
) -> None:
    provider = make_kind(kind, wire)
    wire.enqueue(Scenario(status=400, error_message=message))
    request = make_request(choices={"temperature": 0, "top_p": 0.5})
    for _ in range(2):
        assert (await complete(provider, request)).stop_reason == "end_turn"
    assert len(wire.requests) == 3
    assert gone in wire.requests[0]
    assert all(gone not in one and there in one for one in wire.requests[1:])
    await provider.close()


async def test_a_refused_value_does_not_drop_the_parameter_later(wire: WireThread) -> None:
    words = "Input should be less than or equal to 1.5 (body.temperature)"
    wire.enqueue(Scenario(status=400, error_message=words))
    provider = make_kind(OPENAI, wire)
    with pytest.raises(ProviderError, match="less than"):
        await complete(provider, make_request(choices={"temperature": 1.8}))
    await complete(provider, make_request(choices={"temperature": 0.2}))
    assert wire.requests[-1]["temperature"] == 0.2
    await provider.close()


async def test_mistral_gets_call_ids_of_nine_characters(wire: WireThread) -> None:
    words = "Tool call id was toolu_1 but must be a-z, A-Z, 0-9, with a length of 9."
    wire.enqueue(Scenario(status=400, error_message=words))
    ids = ["toolu_1", "call_" + "a" * 60, "Ab3dE6gH9"]
    calls = [{"type": "tool_use", "id": i, "name": "t0", "input": {}} for i in ids]
    results = [{"type": "tool_result", "tool_use_id": i, "content": "seen"} for i in ids]
    history = [
        *make_request().messages,
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    provider = make_kind(OPENAI, wire)
    for _ in range(2):
        await read_all(provider, make_request(messages=history, tools=[TOOL]))
    first, *later = [
        (
            [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())],
            [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"],
        )
        for body in wire.requests
    ]
    assert first[0][0] == "toolu_1"  # unchanged, as for other servers
    called, answered = later[0]
    assert later == [(called, answered)] * 2
    assert called == answered
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in called)
    assert (len(set(called)), called[2]) == (3, "Ab3dE6gH9")
    await provider.close()


async def test_concurrent_requests_all_drop_a_refused_parameter(wire: WireThread) -> None:
    provider = make_kind(OPENAI, wire)
    refusal = Scenario(status=400, error_message="Unsupported parameter: 'max_tokens'")
    wire.enqueue(refusal, refusal, refusal)
    with wire.held():
        asked = [asyncio.create_task(complete(provider)) for _ in range(3)]
        while len(wire.requests) < 3:
            await asyncio.sleep(0.01)
    assert [(await one).stop_reason for one in asked] == ["end_turn"] * 3
    assert len(wire.requests) == 6
    await provider.close()


# Peculiarities of servers of local models


def read_chat(*chunks: Any) -> MessageCompleted:
    last = read_chat_items(*chunks)[-1]
    assert isinstance(last, MessageCompleted)
    return last


def read_chat_items(*chunks: Any) -> list[StreamItem]:
    reader = AnswerReader(headers={}, secret="", translator=ChatTranslator(names={}))
    items: list[StreamItem] = []
    for chunk in chunks:
        data = chunk if isinstance(chunk, str) else json.dumps(chunk)
        items += reader.read(f"data: {data}\n\n".encode())
        reader.raise_failure()
    items += reader.end()
    reader.require_end()
    return items


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def test_a_finish_reason_without_the_done_mark_ends_the_answer() -> None:
    done = read_chat(delta(content="Yes"), delta("stop"))
    assert (done.blocks, done.stop_reason) == ([{"type": "text", "text": "Yes"}], "end_turn")


def test_the_done_mark_without_a_finish_reason_ends_the_answer() -> None:
    assert read_chat(delta(content="Yes"), "[DONE]").stop_reason == "end_turn"


def test_the_prompt_filter_chunk_of_azure_is_ignored() -> None:
    """Azure sends the filter results of the prompt first, with an empty id and model."""
    head = {"id": "chatcmpl-1", "model": "gpt-5-2026"}
    filters = {"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}
    before = {"choices": [], "id": "", "model": "", "prompt_filter_results": [filters]}
    items = read_chat_items(before, head | delta(content="Yes"), head | delta("stop"), "[DONE]")
    assert [type(item) for item in items].count(MessageStarted) == 1
    started, done = items[0], items[-1]
    assert isinstance(started, MessageStarted)
    assert isinstance(done, MessageCompleted)
    assert started.message_id == done.message_id == "chatcmpl-1"
    assert (started.model, done.model) == ("gpt-5-2026", "gpt-5-2026")
    assert done.blocks == [{"type": "text", "text": "Yes"}]


def test_an_answer_without_reason_and_mark_is_incomplete() -> None:
    with pytest.raises(ProviderError, match="incomplete"):
        read_chat(delta(content="Yes"))


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", None])
def test_only_an_answer_with_a_call_ends_with_tool_use(reason: str | None) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    assert read_chat(delta(tool_calls=[call]), delta(reason), "[DONE]").stop_reason == "tool_use"
    assert read_chat(delta(content="a"), delta(reason), "[DONE]").stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("eos_token", "end_turn"),
        ("eos", "end_turn"),
        ("STOP", "end_turn"),
        ("stop_sequence", "end_turn"),
        ("sensitive", "refusal"),
        ("content_filter: RECITATION", "refusal"),
        ("future_reason", "future_reason"),
    ],
)
def test_finish_reasons_of_other_servers_are_translated(reason: str, stop_reason: str) -> None:
    assert read_chat(delta(content="a"), delta(reason), "[DONE]").stop_reason == stop_reason


BROKEN_OFF = [
    "error",
    "abort",
    "insufficient_system_resource",
    "network_error",
    "MALFORMED_FUNCTION_CALL",
    "function_call_filter: UNEXPECTED_TOOL_CALL",
]


@pytest.mark.parametrize("reason", BROKEN_OFF)
@pytest.mark.parametrize("body", ["", "whole"])
async def test_a_finish_reason_of_a_failure_raises_an_error(
    wire: WireThread, reason: str, body: str
) -> None:
    provider = make_kind(OPENAI, wire)
    wire.enqueue(Scenario(text="Half an", stop_reason=reason, body=body))
    error, text = await fail(provider)
    assert (error.code, error.transient) == ("stream_error", True)
    assert text == ("" if body else "Half an")
    assert reason.lower() in error.message
    await provider.close()


def test_calls_without_index_and_id_are_read() -> None:
    one = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    two = {"function": {"name": "g", "arguments": {"b": 2}}}
    done = read_chat(delta(tool_calls=[one, two]), delta("stop"))
    assert [(b["name"], b["input"]) for b in done.blocks] == [("f", {"a": 1}), ("g", {"b": 2})]
    assert len({b["id"] for b in done.blocks}) == 2


def test_pieces_without_id_and_index_belong_to_the_last_call() -> None:
    calls = [
        {"id": "c1", "function": {"name": "f", "arguments": '{"a"'}},
        {"function": {"arguments": ": "}},
        {"function": {"arguments": "1}"}},
        {"id": "c2", "function": {"name": "g", "arguments": '{"b"'}},
        {"function": {"arguments": ": 2}"}},
    ]
    done = read_chat(*[delta(tool_calls=[call]) for call in calls], delta("tool_calls"))
    told = [(block["id"], block["name"], block["input"]) for block in done.blocks]
    assert told == [("c1", "f", {"a": 1}), ("c2", "g", {"b": 2})]


def test_calls_with_the_same_index_and_different_ids_are_separate() -> None:
    calls = [
        {"index": 0, "id": f"c{n}", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}}
        for n in range(3)
    ]
    done = read_chat(*[delta(tool_calls=[call]) for call in calls], delta("tool_calls"))
    assert [(b["id"], b["input"]) for b in done.blocks] == [(f"c{n}", {"n": n}) for n in range(3)]


def test_thinking_is_read_from_both_fields_and_from_parts() -> None:
    done = read_chat(
        delta(reasoning="a"),
        delta(reasoning_content="b", content=None),
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "c"}]}]),
        delta(content=[{"type": "text", "text": "d"}]),
        delta("stop"),
    )
    assert [b.get("thinking") or b["text"] for b in done.blocks] == ["abc", "d"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "thinking", "said"),
    [
        ("<think>\nhm < </thin </think>\n\nYes", "\nhm < </thin ", "Yes"),
        ("Use <think> in prompts", "", "Use <think> in prompts"),
        ("<thi", "", "<thi"),
        ("<think>cut", "cut", ""),
        ("  <think></think>a", "", "a"),
        ("\n</think>\n\nYes", "", "Yes"),
        ("</think>", "", ""),
        ("</thi", "", "</thi"),
    ],
)
def test_thinking_between_tags_is_separated_from_the_text(
    size: int, text: str, thinking: str, said: str
) -> None:
    tags, found = ThinkingTags(), {"thinking": "", "text": ""}
    for at in range(0, len(text), size):
        for kind, piece in tags.feed(text[at : at + size]):
            found[kind] += piece
    for kind, piece in tags.end():
        found[kind] += piece
    assert found["thinking"] == thinking
    assert found["text"].lstrip("\n") == said


CALL = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("calls", [[], [CALL]])
@pytest.mark.parametrize(
    ("text", "thinking", "said"),
    [
        ("Okay, a < b.\n</think>\n\nYes", "Okay, a < b.\n", "Yes"),
        ("Okay.</think> \nYes </think>\n", "Okay.", "Yes </think>\n"),
        ("Okay.\n</think>", "Okay.\n", ""),
        ("Okay.\n</thi", "", "Okay.\n</thi"),
        ("It ends with `</think>`\n", "", "It ends with `</think>`\n"),
        ("It ends with </think> here\n", "", "It ends with </think> here\n"),
        ("First <think>\nthen\n</think>\nso", "", "First <think>\nthen\n</think>\nso"),
        ("```\na\n</think>\n```\n", "", "```\na\n</think>\n```\n"),
    ],
)
def test_thinking_with_only_a_closing_tag_is_separated(
    size: int, calls: list[Any], text: str, thinking: str, said: str
) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    chunks = [delta(content=piece) for piece in pieces]
    done = read_chat(*chunks, *[delta(tool_calls=[call]) for call in calls], delta("stop"))
    kinds = [("thinking", thinking), ("text", said), ("tool_use", "f" * len(calls))]
    expected = [one for one in kinds if one[1]]
    found = [(b["type"], b.get("thinking") or b.get("text") or b["name"]) for b in done.blocks]
    assert [(kind, words.lstrip("\n")) for kind, words in found] == expected


def test_a_closing_tag_after_thinking_is_text() -> None:
    done = read_chat(delta(reasoning="a"), delta(content="b\n</think>\nc"), delta("stop"))
    assert [b.get("thinking") or b["text"] for b in done.blocks] == ["a", "b\n</think>\nc"]


def test_an_error_among_the_chunks_is_raised() -> None:
    with pytest.raises(ProviderError) as caught:
        read_chat(delta(content="a"), {"error": {"code": "rate_limit_exceeded", "message": "m"}})
    assert caught.value.code == "rate_limited"


def test_a_refusal_is_the_text_of_the_answer() -> None:
    done = read_chat(delta(refusal="I cannot"), delta("stop"))
    assert (done.stop_reason, done.blocks[0]["text"]) == ("refusal", "I cannot")


def make_responses_reader() -> AnswerReader:
    translator = ResponseTranslator(names={}, limit=9, secret="our-key")
    return AnswerReader(headers={}, secret="our-key", translator=translator)


def test_a_failed_response_is_raised_without_the_key() -> None:
    reader = make_responses_reader()
    error = {"code": "server_error", "message": "The key our-key is odd."}
    event = {"type": "response.failed", "response": {"id": "r", "error": error}}
    reader.read(f"data: {json.dumps(event)}\n\n".encode())
    with pytest.raises(ProviderError) as caught:
        reader.raise_failure()
    assert caught.value.code == "server_error"
    assert "The key [key] is odd." in caught.value.message


def test_roles_alternate_for_templates_of_local_models() -> None:
    empty = {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]}
    said = {"role": "user", "content": [{"type": "text", "text": "b"}]}
    sent = make_body(make_request(messages=[said, empty, said]))["messages"]
    assert sent == [{"role": "user", "content": "b\n\nb"}]


def test_a_response_without_output_indexes_is_read() -> None:
    """llama.cpp streams like this: parts name their item, and no event says if text was cut."""
    call = {"id": "fc_1", "call_id": "c1", "name": "f", "type": "function_call", "arguments": ""}
    events = [
        {"type": "response.created", "response": {"id": "r", "model": "m"}},
        {"type": "response.output_item.added", "item": {"id": "msg_1", "type": "message"}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Yes"},
        {"type": "response.output_item.done", "item": {"id": "msg_1", "type": "message"}},
        {"type": "response.output_item.added", "item": call},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{}"},
        {"type": "response.output_item.done", "item": call | {"arguments": "{}"}},
        {"type": "response.completed", "response": {"id": "r", "status": "completed"}},
    ]
    reader = make_responses_reader()
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    last = reader.read("".join(lines).encode())[-1]
    assert isinstance(last, MessageCompleted)
    assert last.blocks == [
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
    ]


def test_a_response_that_comes_in_its_last_event_is_read() -> None:
    output = [
        {"type": "message", "content": [{"type": "output_text", "text": "Yes"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    ]
    response = {"id": "r", "status": "completed", "output": output}
    reader = make_responses_reader()
    event = {"type": "response.completed", "response": response}
    last = reader.read(f"data: {json.dumps(event)}\n\n".encode())[-1]
    assert isinstance(last, MessageCompleted)
    assert [block["type"] for block in last.blocks] == ["text", "tool_use"]
    assert last.stop_reason == "tool_use"
