"""The Messages API provider with its SDK, over HTTP to the wire server."""

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from conversations.domain.errors import ProviderError
from conversations.domain.stream import (
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    ModelInfo,
    ModelRequest,
    StreamItem,
    Usage,
)
from conversations.domain.tool_calls import read_unparsed_input
from conversations.providers.answer_reader import AnswerReader, load_event
from conversations.providers.anthropic_messages import (
    AnthropicProvider,
    make_headers,
)
from conversations.providers.model_limits import UNKNOWN_MODEL, find_limits
from conversations.providers.provider_errors import (
    MAX_DETAIL_CHARS,
    MAX_RETRY_AFTER_SECONDS,
    MESSAGES,
    TRANSIENT_CODES,
    clean_detail,
    error_from_document,
    error_from_transport,
    make_error,
    read_error_body,
    read_retry_after,
)
from tests.mcp_servers.running import until
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import ModelRow, WireThread

MODEL = "claude-sonnet-5-5"
FALLBACK = ModelInfo(id="own", name="Own", max_input_tokens=1, max_output_tokens=1)


def make_request(text: str = "hello", **more: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
    }
    return ModelRequest(**(values | more))


@pytest_asyncio.fixture(loop_scope="function")
async def provider(wire: WireThread) -> AsyncIterator[AnthropicProvider]:
    provider = AnthropicProvider(
        api_key=wire.key, base_url=wire.url, timeout=10, fallback_models=[FALLBACK]
    )
    yield provider
    await provider.close()


async def read_all(
    provider: AnthropicProvider, request: ModelRequest | None = None
) -> list[StreamItem]:
    return [item async for item in provider.stream(request or make_request())]


async def complete(provider: AnthropicProvider) -> MessageCompleted:
    last = (await read_all(provider))[-1]
    assert isinstance(last, MessageCompleted)
    return last


async def fail(
    provider: AnthropicProvider, request: ModelRequest | None = None
) -> tuple[ProviderError, list[StreamItem]]:
    """Return the error with which a stream ends, and the items before it."""
    items: list[StreamItem] = []

    async def collect() -> None:
        async for item in provider.stream(request or make_request()):
            items.append(item)  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(ProviderError) as caught:
        await collect()
    error = caught.value
    assert error.message.startswith(MESSAGES[error.code])
    assert error.transient == (error.code in TRANSIENT_CODES)
    assert "sk-" not in error.message
    return error, items


def join_deltas(items: list[StreamItem], kind: str) -> str:
    return "".join(i.text for i in items if isinstance(i, BlockDelta) and i.kind == kind)


# A whole answer


@pytest.mark.asyncio
async def test_the_items_of_an_answer_come_in_order(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(text="Hello there", chunk=6))
    items = await read_all(provider)
    usage = items[0].usage if isinstance(items[0], MessageStarted) else None
    assert usage is not None
    message_id = items[0].message_id if isinstance(items[0], MessageStarted) else ""
    block = {"type": "text", "text": "Hello there"}
    assert items == [
        MessageStarted(message_id=message_id, model=MODEL, usage=usage),
        BlockStarted(index=0, kind="text", block={"type": "text", "text": ""}),
        BlockDelta(index=0, kind="text", text="Hello "),
        BlockDelta(index=0, kind="text", text="there"),
        BlockCompleted(index=0, block=block),
        MessageCompleted(
            blocks=[block],
            stop_reason="end_turn",
            usage=Usage(input_tokens=2, output_tokens=9, cache_read_tokens=0, cache_write_tokens=0),
            model=MODEL,
            message_id=message_id,
        ),
    ]
    assert message_id.startswith("msg_")


@pytest.mark.asyncio
async def test_thinking_keeps_its_signature(wire: WireThread, provider: AnthropicProvider) -> None:
    wire.enqueue(Scenario(text="Yes", thinking="Let me see"))
    items = await read_all(provider)
    assert join_deltas(items, "thinking") == "Let me see"
    last = items[-1]
    assert isinstance(last, MessageCompleted)
    history = [
        *make_request().messages,
        {"role": "assistant", "content": last.blocks},
        {"role": "user", "content": "Go on"},
    ]
    # The server accepts its own blocks only if they are unchanged.
    await read_all(provider, make_request(messages=history))


@pytest.mark.asyncio
async def test_parallel_tool_calls_are_read(wire: WireThread, provider: AnthropicProvider) -> None:
    inputs = [{"path": "a b.txt", "deep": {"x": [1, 2.5, None, True]}}, {}, {"é": '\n"\\😀'}]
    wire.enqueue(
        Scenario(
            text="I look", tools=tuple(ToolCall(name=f"t{n}", input=inputs[n]) for n in range(3))
        )
    )
    done = await complete(provider)
    assert done.stop_reason == "tool_use"
    assert [block.get("input") for block in done.blocks[1:]] == inputs
    assert len({block["id"] for block in done.blocks[1:]}) == 3


@pytest.mark.asyncio
async def test_system_and_tools_are_sent(wire: WireThread, provider: AnthropicProvider) -> None:
    tool = {"name": "t", "description": "d", "input_schema": {"type": "object"}}
    system = [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}]
    request = make_request(system=system, tools=[tool], max_tokens=77)
    await read_all(provider, request)
    assert wire.requests == [
        {
            "model": MODEL,
            "max_tokens": 77,
            "messages": request.messages,
            "system": system,
            "tools": [tool],
            "stream": True,
        }
    ]


@pytest.mark.asyncio
async def test_only_the_configured_key_is_sent(
    wire: WireThread, monkeypatch: pytest.MonkeyPatch, provider: AnthropicProvider
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "another")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "another")
    monkeypatch.setenv("ANTHROPIC_PROFILE", "another")
    await read_all(provider)
    headers = wire.exchanges[0].headers
    assert headers["authorization"] == f"Bearer {wire.key}"
    assert headers["x-api-key"] == wire.key


def test_only_other_servers_get_the_key_twice() -> None:
    assert make_headers("https://api.anthropic.com", "k") == {}
    assert make_headers("https://gateway.example/claude", "k") == {"x-api-key": "k"}


@pytest.mark.asyncio
async def test_usage_includes_the_cache_figures(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    system = [{"type": "text", "text": "word " * 400, "cache_control": {"type": "ephemeral"}}]
    usages = []
    for _ in range(2):
        last = (await read_all(provider, make_request(system=system)))[-1]
        assert isinstance(last, MessageCompleted)
        usages.append(last.usage)
    assert (usages[0].cache_write_tokens, usages[0].cache_read_tokens) == (500, 0)
    assert (usages[1].cache_write_tokens, usages[1].cache_read_tokens) == (0, 500)
    assert usages[1].input_tokens == 2


@pytest.mark.asyncio
async def test_unknown_blocks_and_fields_are_kept(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(text="Known", extras=True, tools=(ToolCall(name="t"),)))
    items = await read_all(provider)
    last = items[-1]
    assert isinstance(last, MessageCompleted)
    text, unknown, call = last.blocks
    assert text["text"] == "Known"
    assert text["citations"][0]["cited_text"] == "word"
    assert unknown == {"type": "future_block", "payload": {"kept": True}}
    assert call["caller"] == {"type": "direct"}
    assert [i.kind for i in items if isinstance(i, BlockStarted)] == [
        "text",
        "future_block",
        "tool_use",
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "oddity",
    [
        {"split": 1},
        {"split": 3, "crlf": True},
        {"glue": 4},
        {"glue": 1000},
        {"crlf": True},
        {"ping": 1},
        {"chunk": 1},
    ],
)
async def test_a_stream_in_any_chunks_is_read(
    wire: WireThread, provider: AnthropicProvider, oddity: dict[str, Any]
) -> None:
    call = ToolCall(name="t", input={"é": "€\u2028😀"})
    wire.enqueue(Scenario(text="Grüße, 世界 😀\u2028\n" * 3, tools=(call,), **oddity))
    done = await complete(provider)
    assert done.blocks[0]["text"] == "Grüße, 世界 😀\u2028\n" * 3
    assert done.blocks[1]["input"] == {"é": "€\u2028😀"}


@pytest.mark.asyncio
async def test_usage_may_be_missing(wire: WireThread, provider: AnthropicProvider) -> None:
    wire.enqueue(Scenario(text="a", usage=False), Scenario(text="a", cache_fields=False))
    assert (await complete(provider)).usage == Usage()
    usage = (await complete(provider)).usage
    assert usage.input_tokens == 2
    assert usage.cache_read_tokens is None


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "stop_reason",
    [
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "pause_turn",
        "model_context_window_exceeded",
        "something_new",
    ],
)
async def test_stop_reasons_are_passed_on(
    wire: WireThread, provider: AnthropicProvider, stop_reason: str
) -> None:
    wire.enqueue(Scenario(text="a", stop_reason=stop_reason))
    assert (await complete(provider)).stop_reason == stop_reason


@pytest.mark.asyncio
async def test_a_refusal_has_details_and_may_be_empty(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "No."}
    wire.enqueue(Scenario(empty=True, stop_reason="refusal", stop_details=details))
    done = await complete(provider)
    assert done.blocks == []
    assert (done.stop_reason, done.stop_details) == ("refusal", details)


@pytest.mark.asyncio
async def test_a_cut_tool_call_keeps_its_text(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(tools=(ToolCall(name="t", input={"path": "x" * 40}),), cut_tool=True))
    items = await read_all(provider)
    last = items[-1]
    assert isinstance(last, MessageCompleted)
    assert last.stop_reason == "max_tokens"
    raw = join_deltas(items, "tool_use")
    assert raw.startswith('{"path": "xxx')
    assert last.blocks[0]["input"] == {"_unparsed": raw}
    assert read_unparsed_input(last.blocks[0]) == raw
    assert read_unparsed_input({"type": "tool_use", "input": {"path": "a"}}) is None


@pytest.mark.asyncio
async def test_a_large_tool_input_is_read(wire: WireThread, provider: AnthropicProvider) -> None:
    content = "line of text\n" * 20_000
    wire.enqueue(Scenario(tools=(ToolCall(name="t", input={"content": content}),), chunk=100))
    assert (await complete(provider)).blocks[0]["input"] == {"content": content}


# Connections


@pytest.mark.asyncio
async def test_calls_share_a_connection(wire: WireThread, provider: AnthropicProvider) -> None:
    for _ in range(3):
        await read_all(provider)
    assert len({exchange.client_port for exchange in wire.exchanges}) == 1


@pytest.mark.asyncio
async def test_a_complete_answer_does_not_wait_for_the_end_of_the_body(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    await read_all(provider)
    wire.enqueue(Scenario(text="a", linger=30))
    assert (await complete(provider)).stop_reason == "end_turn"
    assert wire.exchanges[-1].ended is None


@pytest.mark.asyncio
async def test_streams_run_concurrently(wire: WireThread, provider: AnthropicProvider) -> None:
    wire.enqueue(*[Scenario(words=5, first_delay=0.2) for _ in range(10)])
    await asyncio.gather(*[read_all(provider) for _ in range(10)])
    assert len({exchange.client_port for exchange in wire.exchanges}) == 10


@pytest.mark.asyncio
async def test_deltas_are_yielded_as_they_arrive(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    await read_all(provider)
    wire.enqueue(Scenario(deltas=10, hang_after=5))
    texts = []
    async with aclosing(provider.stream(make_request())) as items:
        async for item in items:
            if isinstance(item, BlockDelta):
                texts.append(item.text)
            if len(texts) == 5:
                break
    assert wire.exchanges[-1].ended is None


async def wait_until_left(wire: WireThread) -> None:
    """Wait until the server sees that the client has left, which is before the answer ends."""
    await until(lambda: wire.exchanges[-1].client_left is not None)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(words=20, hang_after=3),
        Scenario(words=20, hang_after=0),
        Scenario(words=20, first_delay=30),
        Scenario(words=20, delay=30),
    ],
)
async def test_cancelling_ends_the_request_at_once(
    wire: WireThread, provider: AnthropicProvider, scenario: Scenario
) -> None:
    wire.enqueue(scenario)
    task = asyncio.create_task(read_all(provider))
    await until(lambda: bool(wire.exchanges))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until_left(wire)


@pytest.mark.asyncio
async def test_closing_the_iterator_ends_the_request(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(words=2000, rate=50))
    async with aclosing(provider.stream(make_request())) as items:
        async for item in items:
            if isinstance(item, BlockDelta):
                break
    await wait_until_left(wire)


@pytest.mark.asyncio
async def test_the_provider_works_after_a_cancelled_call(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(), Scenario(words=5, hang_after=1))
    await read_all(provider)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_all(provider), 0.3)
    assert (await complete(provider)).stop_reason == "end_turn"


# Failures before the stream


@pytest.mark.asyncio
async def test_without_a_key_no_request_is_made(
    wire: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", wire.key)
    provider = AnthropicProvider(api_key=" ", base_url=wire.url)
    error, _ = await fail(provider)
    assert error.code == "no_key"
    with pytest.raises(ProviderError, match="No API key"):
        await provider.list_models()
    assert wire.exchanges == []


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["sk-wrong-key-123456", "two\nlines", "schlüssel"])
async def test_a_wrong_key_is_reported_without_the_key(wire: WireThread, key: str) -> None:
    provider = AnthropicProvider(api_key=key, base_url=wire.url)
    error, _ = await fail(provider)
    assert error.code == "bad_key"
    assert key not in error.message
    await provider.close()


@pytest.mark.asyncio
async def test_keys_are_removed_from_error_messages(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    said = f"Key {wire.key} and sk-ant-other-secret and Bearer abcdef are wrong"
    wire.enqueue(Scenario(status=401, error_message=said))
    error, _ = await fail(provider)
    assert error.message.endswith("Details: Key [key] and [key] and [key] are wrong.")


@pytest.mark.parametrize("detail", ["Busy.", "Busy!", "忙。", "“Busy.”", "x" * 2_000])
def test_an_error_detail_gets_no_second_full_stop(detail: str) -> None:
    message = make_error("overloaded", detail).message
    assert message.endswith(f"Details: {clean_detail(detail)}")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "error_type", "message", "code"),
    [
        (400, "", "messages: bad", "invalid_request"),
        (422, "", "bad", "invalid_request"),
        (418, "", "teapot", "invalid_request"),
        (400, "", "prompt is too long: 12 tokens > 10 maximum", "context_window_exceeded"),
        (400, "exceed_context_size_error", "too much", "context_window_exceeded"),
        (400, "", "Your credit balance is too low", "billing"),
        (400, "billing_error", "pay", "billing"),
        (401, "", "invalid x-api-key", "bad_key"),
        (402, "", "pay", "billing"),
        (403, "", "no", "permission"),
        (404, "", "model: nope", "unknown_model"),
        (300, "", "elsewhere", "bad_response"),
        (408, "", "slow", "timeout"),
        (409, "", "conflict", "server_error"),
        (413, "", "large", "request_too_large"),
        (429, "", "slow down", "rate_limited"),
        (500, "", "oops", "server_error"),
        (502, "", "gateway", "server_error"),
        (503, "overloaded_error", "busy", "overloaded"),
        (504, "", "gateway", "server_error"),
        (529, "", "Overloaded", "overloaded"),
    ],
)
async def test_every_http_status_has_an_error_code(
    wire: WireThread,
    provider: AnthropicProvider,
    status: int,
    error_type: str,
    message: str,
    code: str,
) -> None:
    wire.enqueue(Scenario(status=status, error_type=error_type, error_message=message))
    error, items = await fail(provider)
    assert error.code == code
    assert error.http_status == status
    assert (error.request_id or "").startswith("req_")
    assert error.message.endswith(f"Details: {message}.")
    assert items == []
    assert len(wire.requests) == 1  # the SDK must not retry by itself


@pytest.mark.asyncio
async def test_an_unknown_model_is_reported(provider: AnthropicProvider) -> None:
    error, _ = await fail(provider, make_request(model="claude-nope"))
    assert error.code == "unknown_model"
    assert "claude-nope" in error.message


@pytest.mark.asyncio
async def test_a_prompt_beyond_the_window_is_reported(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.server.models["small"] = ModelRow(
        id="small", display_name="Small", created_at="", max_input_tokens=100
    )
    error, _ = await fail(provider, make_request("x" * 1000, model="small"))
    assert error.code == "context_window_exceeded"
    assert "250 tokens > 100 maximum" in error.message


@pytest.mark.asyncio
async def test_the_retry_headers_are_read(wire: WireThread, provider: AnthropicProvider) -> None:
    wire.enqueue(
        Scenario(status=429, retry_after="7"),
        Scenario(status=529, retry_after="99", headers={"retry-after-ms": "1500"}),
        Scenario(status=429, retry_after="4294967"),
        Scenario(status=429),
    )
    waits = [(await fail(provider))[0].retry_after for _ in range(4)]
    assert waits == [7.0, 1.5, MAX_RETRY_AFTER_SECONDS, None]


@pytest.mark.asyncio
async def test_the_provider_may_forbid_a_retry(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(status=529, headers={"x-should-retry": "false"}))
    with pytest.raises(ProviderError) as caught:
        await read_all(provider)
    assert caught.value.code == "overloaded"
    assert not caught.value.transient


@pytest.mark.asyncio
async def test_an_answer_after_failures_is_complete(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(status=529, times=2, text="At last"))
    for _ in range(2):
        assert (await fail(provider))[0].code == "overloaded"
    assert (await complete(provider)).blocks == [{"type": "text", "text": "At last"}]


@pytest.mark.asyncio
async def test_silence_before_the_answer_is_a_timeout(wire: WireThread) -> None:
    wire.enqueue(Scenario(delay=30))
    provider = AnthropicProvider(api_key=wire.key, base_url=wire.url, timeout=0.3)
    assert (await fail(provider))[0].code == "timeout"
    await provider.close()


def find_closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_an_unreachable_server_is_a_failed_connection(host: str) -> None:
    provider = AnthropicProvider(api_key="k", base_url=f"http://{host}:{find_closed_port()}")
    assert (await fail(provider))[0].code == "connection_failed"
    await provider.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("base_url", ["127.0.0.1:1", "ftp://127.0.0.1", "http://[::1"])
async def test_an_invalid_address_is_reported(base_url: str) -> None:
    provider = AnthropicProvider(api_key="k", base_url=base_url)
    with pytest.raises(ProviderError, match="address is not valid") as caught:
        await read_all(provider)
    assert caught.value.code == "connection_failed"
    assert not caught.value.transient
    await provider.close()


@pytest.mark.asyncio
async def test_a_self_signed_certificate_is_a_failed_connection(tmp_path: Path) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: None, "127.0.0.1", 0, ssl=make_own_certificate(tmp_path)
    )
    port = server.sockets[0].getsockname()[1]
    provider = AnthropicProvider(api_key="k", base_url=f"https://127.0.0.1:{port}")
    with pytest.raises(ProviderError, match="certificate is not valid") as caught:
        await read_all(provider)
    assert caught.value.code == "connection_failed"
    assert not caught.value.transient
    await provider.close()
    server.close()
    await server.wait_closed()


def make_own_certificate(folder: Path) -> ssl.SSLContext:
    """Return the SSL context of a server with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    pem = folder / "own.pem"
    pem.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + certificate.public_bytes(Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    return context


@pytest.mark.asyncio
async def test_a_connection_closed_without_an_answer_is_lost(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(refuse=True))
    assert (await fail(provider))[0].code == "connection_lost"


@pytest.mark.asyncio
@pytest.mark.parametrize("body", ["html", "json"])
async def test_a_document_instead_of_a_stream_is_a_bad_response(
    wire: WireThread, provider: AnthropicProvider, body: str
) -> None:
    wire.enqueue(Scenario(body=body))
    error, _ = await fail(provider)
    assert error.code == "bad_response"
    assert "<" not in error.message


# Failures in mid-stream


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"drop_after": 3}, "connection_lost"),
        ({"short_after": 3}, "connection_lost"),
        ({"end_after": 3}, "incomplete_stream"),
        ({"garbage_after": 3}, "bad_response"),
        ({"error_after": 3}, "overloaded"),
        ({"error_after": 3, "error_type": "rate_limit_error"}, "rate_limited"),
        ({"error_after": 3, "error_type": "api_error"}, "server_error"),
        ({"error_after": 3, "error_type": "timeout_error"}, "timeout"),
        ({"error_after": 3, "error_type": "invalid_request_error"}, "invalid_request"),
        ({"error_after": 3, "error_type": "future_error"}, "stream_error"),
        ({"error_after": 3, "glue": 100}, "overloaded"),
        ({"garbage_after": 3, "glue": 100}, "bad_response"),
    ],
)
async def test_a_fault_in_mid_stream_keeps_the_text_before_it(
    wire: WireThread, provider: AnthropicProvider, fault: dict[str, Any], code: str
) -> None:
    wire.enqueue(Scenario(text="abcdefghij", chunk=2, **fault))
    error, items = await fail(provider)
    assert error.code == code
    assert join_deltas(items, "text") == "abcdef"


@pytest.mark.asyncio
async def test_silence_in_mid_stream_is_a_timeout(wire: WireThread) -> None:
    wire.enqueue(Scenario(text="abcdef", chunk=2, hang_after=2))
    provider = AnthropicProvider(api_key=wire.key, base_url=wire.url, timeout=0.3)
    error, items = await fail(provider)
    assert error.code == "timeout"
    assert join_deltas(items, "text") == "abcd"
    await provider.close()


@pytest.mark.asyncio
async def test_a_stream_without_message_stop_is_incomplete(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.enqueue(Scenario(text="abc", end_after=99))
    error, items = await fail(provider)
    assert error.code == "incomplete_stream"
    assert join_deltas(items, "text") == "abc"
    assert isinstance(items[-1], BlockCompleted)


def test_an_error_in_a_document_is_reported() -> None:
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "m"}}'
    error = error_from_document(body, headers={"request-id": "r"}, secret="")
    assert (error.code, error.request_id) == ("overloaded", "r")
    assert error_from_document(b"{", headers={}, secret="").code == "bad_response"


def test_a_body_that_cannot_be_decoded_is_a_bad_response() -> None:
    assert error_from_transport(httpx2.DecodingError("gzip")).code == "bad_response"


def test_the_reader_ignores_empty_events_and_uses_names_as_types() -> None:
    reader = AnswerReader(headers={}, secret="")
    assert reader.read(b"event: ping\ndata:\n\n: comment\n\ndata: [DONE]\n\n") == []
    (started,) = reader.read(b'event: message_start\ndata: {"message": {"id": "m"}}\n\n')
    assert isinstance(started, MessageStarted)
    assert reader.read(b'event: message_stop\ndata: {"type": "message_stop"}\n\n') == []
    assert reader.has_ended
    with pytest.raises(ProviderError) as caught:
        reader.require_end()
    assert caught.value.code == "incomplete_stream"


@pytest.mark.parametrize("data", ["", "[DONE]"])
def test_empty_data_is_no_event(data: str) -> None:
    assert load_event(data) is None


@pytest.mark.parametrize("data", ["[1]", "1", "{", '{"a": }', "[" * 200_000])
def test_data_that_is_no_object_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        load_event(data)


def test_half_surrogate_pairs_are_replaced() -> None:
    event = load_event(r'{"a": "x\ud83dy", "b": "\ud83d\ude00", "c": ["\uDE00"]}')
    assert event == {"a": "x?y", "b": "😀", "c": ["?"]}


# Error messages


def through(message: str, raw: object) -> dict[str, Any]:
    """Return an error body in which OpenRouter passes on another provider's error."""
    metadata = {"raw": raw, "provider_name": "Another"}
    return {"error": {"message": message, "code": 400, "metadata": metadata}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"message": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ('{"error": {"message": "m"}}', "m"),
        (b"m", "m"),
        ("m", "m"),
        (through("r", '{"error": {"message": "m"}}'), "r: m"),
        (through("r", '{"detail": "m"}'), "r: m"),
        (through("r", "m"), "r: m"),
        (through("r", "r"), "r"),
        (through("r", "<html>m</html>"), "r"),
        (through("r", ""), "r"),
        (through("r", None), "r"),
        (through("", "m"), "m"),
        ({"error": {"message": "r", "metadata": "m"}}, "r"),
        ({"error": {"message": 5}}, ""),
        ({"error": None}, ""),
        (["m"], ""),
        ("[1]", ""),
        (None, ""),
    ],
)
def test_the_message_is_found_in_error_bodies_of_any_shape(body: object, message: str) -> None:
    assert read_error_body(body).message == message


def test_the_stable_error_code_is_read() -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    assert read_error_body({"error": {"details": details}}).code == details["error_code"]


def test_details_are_one_short_line_without_markup() -> None:
    assert clean_detail("a\n  b\tc") == "a b c"
    assert clean_detail("<!DOCTYPE html><p>x") == ""
    assert len(clean_detail("word " * 200)) <= MAX_DETAIL_CHARS


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "20", "retry-after": "9"}, 0.02),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}, MAX_RETRY_AFTER_SECONDS),
        ({}, None),
    ],
)
def test_retry_after_is_parsed_and_limited(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds


# Models


@pytest.mark.asyncio
async def test_the_models_of_the_server_are_listed(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    models = await provider.list_models()
    assert [model.id for model in models] == list(wire.server.models)
    assert models[0].name == "Claude Opus 5.5"
    assert models[-1].max_input_tokens == 200_000
    assert models[-1].max_output_tokens == 64_000


@pytest.mark.asyncio
async def test_a_model_list_of_many_pages_is_read(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.server.models.clear()
    for number in range(2_500):
        name = f"m{number}"
        wire.server.models[name] = ModelRow(id=name, display_name=name, created_at="")
    assert len(await provider.list_models()) == 2_500


@pytest.mark.asyncio
async def test_model_lists_of_other_servers_are_read(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    entries = [
        {"id": "local", "object": "model", "created": 1},
        {"id": "claude-haiku-4-5-20251001", "display_name": ""},
        {"id": "wide", "name": "Wide", "context_length": 9_000},
        {"id": "gone", "lifecycle": "retired"},
        {"no": "id"},
        "text",
    ]
    wire.server.models_reply = (200, {"object": "list", "data": entries})
    assert await provider.list_models() == [
        ModelInfo(
            id="local",
            name="local",
            max_input_tokens=UNKNOWN_MODEL.input_tokens,
            max_output_tokens=UNKNOWN_MODEL.output_tokens,
        ),
        ModelInfo(
            id="claude-haiku-4-5-20251001",
            name="claude-haiku-4-5-20251001",
            max_input_tokens=200_000,
            max_output_tokens=64_000,
        ),
        ModelInfo(
            id="wide",
            name="Wide",
            max_input_tokens=9_000,
            max_output_tokens=UNKNOWN_MODEL.output_tokens,
            is_limit_known=True,
        ),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply",
    [(404, {"error": "no"}), (405, {}), (200, {"data": []}), (200, "<html>"), (200, [1]), (200, 5)],
)
async def test_the_fallback_is_used_when_a_server_has_no_list(
    wire: WireThread, provider: AnthropicProvider, reply: tuple[int, Any]
) -> None:
    wire.server.models_reply = reply
    assert await provider.list_models() == [FALLBACK]


@pytest.mark.asyncio
async def test_listing_fails_for_a_wrong_key_and_a_broken_server(
    wire: WireThread, provider: AnthropicProvider
) -> None:
    wire.server.models_reply = (500, {})
    with pytest.raises(ProviderError) as caught:
        await provider.list_models()
    assert caught.value.code == "server_error"
    wire.server.key = "another"
    with pytest.raises(ProviderError) as caught:
        await provider.list_models()
    assert caught.value.code == "bad_key"


def test_the_longest_prefix_determines_the_limits() -> None:
    assert find_limits("claude-sonnet-5-5").input_tokens == 1_000_000
    assert find_limits("claude-haiku-4-5-20251001").output_tokens == 64_000
    assert find_limits("gpt") == UNKNOWN_MODEL


# Imports


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_providers_imports_neither_the_sdk_nor_django() -> None:
    code = (
        "import sys, conversations.providers.anthropic_messages, conversations.providers.demo;"
        "print([m for m in ('anthropic', 'httpx2', 'pydantic', 'django') if m in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_importing_the_sdk_imports_its_lazy_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = AnthropicProvider(api_key="key")
    provider.import_sdk()
    modules = ("anthropic.resources.messages", "anthropic.resources.models")
    for name in modules:
        monkeypatch.delitem(sys.modules, name)
    provider.import_sdk()
    assert all(name in sys.modules for name in modules)
