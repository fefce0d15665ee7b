"""The local server: refusals, scenarios, token counts and the simulated prompt cache."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from tests.wire.directive import BadDirective, parse_directive
from tests.wire.playback import ERROR_TYPES
from tests.wire.prompt_cache import PromptCache
from tests.wire.rules.blocks import sign_thinking
from tests.wire.scenario import (
    Scenario,
    ToolCall,
    make_words,
    without_fault,
)
from tests.wire.server import KEY, WireServer, WireThread

MODEL = "claude-sonnet-5-5"
TOOL = {"name": "read", "description": "d", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
PIXEL = {
    "type": "base64",
    "media_type": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR42mNg"
    "AAAAAgAB5Sfe/AAAAABJRU5ErkJggg==",
}
EPHEMERAL = {"type": "ephemeral"}


def make_body(*contents: Any, **more: Any) -> dict[str, Any]:
    """Return a request whose messages alternate, beginning with the person's."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": c} for n, c in enumerate(contents or ("hi",))]
    return {"model": MODEL, "max_tokens": 100, "messages": messages} | more


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


class Address(Protocol):
    """The URL and key of a server, such as a WireThread."""

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str: ...


@contextmanager
def call(wire: Address, method: str, path: str, body: Any = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection(urlsplit(wire.url).netloc, timeout=10)
    sent = {"authorization": f"Bearer {wire.key}", "anthropic-version": "2026-10-21"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, content, {k: v for k, v in sent.items() if v})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def ask(
    wire: WireThread, body: Any, path: str = "/v1/messages", **headers: str
) -> tuple[int, dict[str, Any]]:
    with call(wire, "POST", path, body, **headers) as response:
        return response.status, json.load(response)


def get(wire: Address, path: str) -> tuple[int, dict[str, Any]]:
    with call(wire, "GET", path) as response:
        return response.status, json.load(response)


def stream(wire: WireThread, body: dict[str, Any]) -> list[dict[str, Any]]:
    with call(wire, "POST", "/v1/messages", body | {"stream": True}) as response:
        raw = response.read().decode()
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines]


# Refusals


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"authorization": ""}, 401, "x-api-key header is required"),
        ({"authorization": "Bearer wrong"}, 401, "invalid x-api-key"),
        ({"authorization": "", "x_api_key": "wrong"}, 401, "invalid x-api-key"),
        ({"anthropic_version": ""}, 400, "anthropic-version: header is required"),
    ],
)
def test_the_server_refuses_wrong_headers(
    wire: WireThread, headers: dict[str, str], status: int, message: str
) -> None:
    got, body = ask(wire, make_body(), **headers)
    assert got == status
    assert body["type"] == "error"
    assert body["error"]["message"] == message
    assert body["error"]["type"] == ERROR_TYPES[status]
    assert body["request_id"].startswith("req_")


def test_the_server_accepts_both_kinds_of_key_header(wire: WireThread) -> None:
    assert ask(wire, make_body(), authorization="", x_api_key=wire.key)[0] == 200
    assert ask(wire, make_body())[0] == 200


def result_after(*blocks: Any) -> tuple[Any, ...]:
    return ("hi", [CALL], list(blocks))


def tool(**more: Any) -> dict[str, Any]:
    return make_body(tools=[TOOL | more])


TEXT = {"type": "text", "media_type": "text/plain", "data": "words"}


def document(**more: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": ""}
    return make_body([{"type": "document", "source": source | more}])


def image(**more: Any) -> dict[str, Any]:
    return make_body([{"type": "image", "source": PIXEL | more}])


def with_breakpoints(count: int) -> dict[str, Any]:
    return make_body([text(f"part {n}", cache_control=EPHEMERAL) for n in range(count)])


OLD = "claude-haiku-4-5"  # a model that accepts a budget for thinking

REFUSED: list[tuple[Any, str]] = [
    (b"{", "valid JSON"),
    ([1], "valid JSON"),
    # Keys and options
    (make_body(temperature=1), "temperature"),
    (make_body(top_p=1), "top_p"),
    (make_body(top_k=1), "top_k"),
    (make_body(foo=1), "foo: Extra inputs are not permitted"),
    (make_body(model=None), "model: Field required"),
    (make_body(model=5), "model: Input should be a valid string"),
    (make_body(max_tokens=None), "max_tokens: Field required"),
    (make_body(max_tokens="9"), "max_tokens: Input should be a valid integer"),
    (make_body(max_tokens=0, stream=True), "max_tokens: Input should be greater"),
    (make_body(max_tokens=200_000), "200000 > 128000, which is the maximum allowed"),
    (make_body(stream="yes"), "stream: Input should be a valid boolean"),
    (make_body(thinking={"type": "enabled", "budget_tokens": 1}), "thinking.type"),
    (
        make_body(model=OLD, thinking={"type": "enabled", "budget_tokens": 1023}),
        "budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        make_body(model=OLD, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1024),
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    ),
    (make_body(tool_choice={"type": "auto"}), "tool_choice may only be specified"),
    (make_body(stop_sequences=[" "]), "stop_sequences"),
    # Messages
    (make_body(messages=None), "messages: Field required"),
    (make_body(messages={}), "messages: Input should be a valid list"),
    (make_body(messages=[]), "at least one message is required"),
    (make_body(messages=["x"]), "messages.0: Input should be a valid dictionary"),
    (make_body(messages=[{"role": "assistant", "content": "x"}]), "first message must use"),
    (make_body("hi", "there"), "does not support assistant message prefill"),
    (make_body(messages=[{"role": "tool", "content": "x"}]), "messages.0.role"),
    (make_body(messages=[{"role": "system", "content": "x"}]), "role 'system' is not supported"),
    (make_body(messages=[{"role": "user", "content": "x", "id": 1}]), "messages.0.id: Extra"),
    (make_body(""), "must have non-empty content"),
    (make_body(" \n"), "must have non-empty content"),
    (make_body([]), "must have non-empty content"),
    (make_body(5), "messages.0.content: Input should be a valid list"),
    # Blocks
    (make_body([5]), "messages.0.content.0: Input should be a valid dictionary"),
    (make_body([{"text": "x"}]), "messages.0.content.0.type: Field required"),
    (make_body([{"type": "video"}]), "Input tag 'video'"),
    (make_body([CALL]), "Input tag 'tool_use'"),
    (make_body("hi", [RESULT], "hi"), "Input tag 'tool_result'"),
    (make_body([text("")]), "text content blocks must be non-empty"),
    (make_body([text(" \n")]), "must contain non-whitespace text"),
    (make_body([{"type": "text"}]), "text.text: Field required"),
    (make_body([text("x", id=1)]), "messages.0.content.0.text.id: Extra inputs"),
    (make_body("hi", [text("")], "hi"), "text content blocks must be non-empty"),
    # System
    (make_body(system=[text("")]), "system: text content blocks must be non-empty"),
    (make_body(system=5), "system: Input should be a valid string or list"),
    (make_body(system=[{"type": "image"}]), "system.0.type: Input should be 'text'"),
    # Thinking
    (
        make_body("hi", [{"type": "thinking", "thinking": "a", "signature": "b"}], "hi"),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    (make_body("hi", [{"type": "thinking", "thinking": "a"}], "hi"), "signature: Field required"),
    (
        make_body(
            "hi",
            [{"type": "thinking", "thinking": "a", "signature": sign_thinking("a", "other")}],
            "hi",
        ),
        "Invalid `signature`",
    ),
    # Tool calls and results
    (make_body("hi", [CALL], "and?"), "messages.2: `tool_use` ids were found without"),
    (make_body("hi", [CALL, CALL | {"id": "t2"}], [RESULT]), "immediately after: t2"),
    (make_body([RESULT]), "messages.0.content.0: unexpected `tool_use_id`"),
    (make_body("hi", "there", [RESULT]), "unexpected `tool_use_id`"),
    (make_body(*result_after(RESULT, RESULT)), "each tool_use must have a single result"),
    (make_body(*result_after(text("so"), RESULT)), "`tool_result` blocks must come first"),
    (make_body(*result_after(RESULT), [CALL], [RESULT]), "`tool_use` ids must be unique"),
    (make_body("hi", [CALL | {"id": "a b"}], "hi"), "tool_use.id: String should match"),
    (make_body("hi", [CALL | {"name": "a b"}], "hi"), "tool_use.name: String should match"),
    (make_body("hi", [CALL | {"input": "x"}], "hi"), "tool_use.input: Input should be a valid"),
    (make_body(*result_after(RESULT | {"content": "", "is_error": True})), "cannot be empty"),
    (make_body(*result_after(RESULT | {"content": 5})), "tool_result.content: Input should"),
    (make_body(*result_after(RESULT | {"is_error": "no"})), "is_error: Input should be"),
    (make_body(*result_after(RESULT | {"content": [text("")]})), "must be non-empty"),
    (make_body(*result_after(RESULT | {"content": [CALL]})), "Input tag does not match"),
    (make_body(*result_after({"type": "tool_result"})), "tool_use_id: Field required"),
    # Tools
    (make_body(tools={}), "tools: Input should be a valid list"),
    (make_body(tools=["x"]), "tools.0.custom: Input should be"),
    (make_body(tools=[TOOL, TOOL]), "Tool names must be unique"),
    (tool(name="a b"), "tools.0.custom.name: String should match"),
    (tool(name="a" * 129), "tools.0.custom.name: String should match"),
    (tool(name=None), "tools.0.custom.name: Field required"),
    (tool(description=5), "description: Input should be a valid string"),
    (tool(foo=1), "tools.0.custom.foo: Extra inputs are not permitted"),
    (tool(input_schema=None), "input_schema: Field required"),
    (tool(input_schema={}), "input_schema.type: Field required"),
    (tool(input_schema={"type": "array"}), "input_schema.type: Input should be 'object'"),
    (tool(input_schema={"type": "object", "anyOf": []}), "does not support anyOf"),
    (tool(input_schema={"type": "object", "properties": {"a b": {}}}), "Property keys"),
    (tool(input_schema={"type": "object", "properties": []}), "properties: Input should"),
    (tool(input_schema={"type": "object", "required": "a"}), "required: Input should"),
    # Images and documents
    (image(media_type="image/bmp"), "media_type: Input should be 'image/jpeg'"),
    (image(data="!"), "invalid base64"),
    (image(data=""), "invalid base64"),
    (image(extra=1), "fields are exactly"),
    (image(type="file"), "Input tag does not match"),
    (make_body([{"type": "image"}]), "image.source: Field required"),
    (make_body([{"type": "image", "source": {"type": "url", "url": "http://x"}}]), "HTTPS"),
    (image(data="iVBORw0KGgo="), "Could not process image"),
    (image(media_type="image/webp"), "does not match the provided media type"),
    (image(data="A" * 5_242_884), "image exceeds 5 MB maximum"),
    (make_body([{"type": "image", "source": PIXEL, "title": "x"}]), "Extra inputs"),
    (make_body([{"type": "document"}]), "document.source: Field required"),
    (document(type="file"), "Input tag does not match"),
    (document(media_type="text/plain"), "Input should be 'application/pdf'"),
    (document(data="!"), "invalid base64"),
    (document(data="JVBERi0="), "not valid"),
    (document(digest="x"), "Extra inputs"),
    (document(type="text", data="x"), "Input should be 'text/plain'"),
    (document(type="text", media_type="text/plain", data=""), "text must be non-empty"),
    (make_body([{"type": "document", "source": TEXT, "title": ""}]), "1 to 500 characters"),
    (make_body([{"type": "search_result"}]), "search_result.source: Field required"),
    (make_body("hi", [{"type": "redacted_thinking"}], "hi"), "data: Field required"),
    # Cache breakpoints
    (with_breakpoints(5), "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    (with_breakpoints(4) | {"cache_control": EPHEMERAL}, "Found 5."),
    (make_body([text("x", cache_control={"type": "forever"})]), "'ephemeral'"),
    (make_body([text("x", cache_control=EPHEMERAL | {"ttl": "2h"})]), "'5m' or '1h'"),
    (
        make_body(
            [text("x", cache_control=EPHEMERAL), text("y", cache_control=EPHEMERAL | {"ttl": "1h"})]
        ),
        "must not come after",
    ),
]


def drop_nulls(body: Any) -> Any:
    return {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body


@pytest.fixture(scope="module")
def shared() -> Any:
    server = WireThread()
    server.start()
    yield server
    server.stop()


def test_the_server_refuses_what_the_api_refuses(shared: WireThread) -> None:
    for body, message in REFUSED:
        status, answer = ask(shared, drop_nulls(body))
        assert message in answer["error"]["message"], (body, message)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), (body, message)


def test_the_server_accepts_what_the_api_accepts(shared: WireThread) -> None:
    for body in [
        make_body("hi", "there", "so"),
        make_body(*result_after(RESULT, text("and?"))),
        make_body(*result_after({"type": "tool_result", "tool_use_id": "t1"})),
        make_body(
            *result_after(RESULT | {"content": [text("a"), {"type": "image", "source": PIXEL}]})
        ),
        make_body("hi", [CALL, CALL | {"id": "t2"}], [RESULT | {"tool_use_id": "t2"}, RESULT]),
        make_body(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
        make_body(system="", tools=[TOOL], tool_choice={"type": "auto"}),
        make_body("hi", [text("x", citations=None)], "so"),
        make_body("hi", [CALL | {"caller": {"type": "direct"}}], [RESULT]),
        make_body("hi", [{"type": "redacted_thinking", "data": "x"}], "so"),
        make_body([{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]),
        image(),
        with_breakpoints(4),
        make_body(max_tokens=0),
        make_body(thinking={"type": "adaptive"}, metadata={"user_id": "x"}),
    ]:
        status, answer = ask(shared, body)
        assert (status, answer.get("error")) == (200, None), body


def test_the_server_refuses_unknown_models_and_paths(wire: WireThread) -> None:
    status, body = ask(wire, make_body(model="nope"))
    assert (status, body["error"]) == (404, {"type": "not_found_error", "message": "model: nope"})
    assert get(wire, "/v1/nothing")[0] == 404
    assert get(wire, "/v1/messages")[0] == 405


def test_the_server_refuses_a_prompt_that_is_too_long(wire: WireThread) -> None:
    status, body = ask(wire, make_body("x" * 4_000_004))
    assert status == 400
    assert body["error"]["message"] == "prompt is too long: 1000001 tokens > 1000000 maximum"


def test_the_server_refuses_a_body_that_is_too_large(wire: WireThread) -> None:
    status, body = ask(wire, b" " * (32 * 1024 * 1024 + 1))
    assert (status, body["error"]["type"]) == (413, "request_too_large")


# Answers


def test_the_server_answers_without_streaming(wire: WireThread) -> None:
    status, body = ask(wire, make_body("Good *morning*"))
    assert status == 200
    assert body["content"][0]["text"].startswith("## Echo\n\nYou said: *Good *morning**")
    assert body["stop_reason"] == "end_turn"
    assert wire.requests == [make_body("Good *morning*")]


def test_the_default_answer_quotes_a_tool_result(wire: WireThread) -> None:
    _, body = ask(wire, make_body(*result_after(RESULT | {"content": [text("four")]})))
    assert "```text\nfour\n```" in body["content"][0]["text"]


def test_the_server_streams_the_events_in_order(wire: WireThread) -> None:
    wire.enqueue(Scenario(text="abcd", chunk=2, thinking="t", tools=(ToolCall(name="x"),)))
    events = stream(wire, make_body())
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",  # thinking
        "content_block_delta",  # its signature
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",  # an empty piece of JSON first, as the API does
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[0]["message"]["usage"]["output_tokens"] == 1


def test_enqueued_scenarios_are_played_in_order(wire: WireThread) -> None:
    wire.enqueue(Scenario(text="one"), Scenario(status=529, times=2, text="two"))
    answers = [ask(wire, make_body()) for _ in range(5)]
    assert [status for status, _ in answers] == [200, 529, 529, 200, 200]
    assert answers[3][1]["content"] == [text("two")]
    assert answers[4][1]["content"][0]["text"].startswith("## Echo")


def test_a_fault_in_mid_stream_happens_the_given_number_of_times(wire: WireThread) -> None:
    wire.enqueue(Scenario(text="abc", error_after=1, times=1))
    assert stream(wire, make_body())[-1]["type"] == "error"
    assert stream(wire, make_body())[-1]["type"] == "message_stop"


def test_deltas_are_sent_at_the_given_rate(wire: WireThread) -> None:
    wire.enqueue(Scenario(deltas=11, rate=50, stamp=True))
    events = stream(wire, make_body())
    stamps = [
        int(event["delta"]["text"].strip("~ "))
        for event in events
        if event["type"] == "content_block_delta"
    ]
    assert len(stamps) == 11
    assert (stamps[-1] - stamps[0]) / 1e9 > 0.18
    assert time.monotonic_ns() > stamps[-1]


def test_the_rate_applies_after_the_deltas_ahead_of_it(wire: WireThread) -> None:
    wire.enqueue(Scenario(deltas=1006, rate=50, ahead=1000, stamp=True))
    events = stream(wire, make_body())
    stamps = [
        int(event["delta"]["text"].strip("~ "))
        for event in events
        if event["type"] == "content_block_delta"
    ]
    assert len(stamps) == 1006
    assert (stamps[-1] - stamps[1000]) / 1e9 > 0.08
    assert (stamps[-1] - stamps[0]) / 1e9 < 10  # At 50 a second, all deltas would take 20 s.


def test_the_server_counts_tokens(wire: WireThread) -> None:
    body = make_body("x" * 400)
    del body["max_tokens"]
    status, answer = ask(wire, body, "/v1/messages/count_tokens")
    assert (status, answer) == (200, {"input_tokens": 100})


def test_the_server_lists_models_in_pages(wire: WireThread) -> None:
    _, first = get(wire, "/v1/models?limit=3")
    _, rest = get(wire, f"/v1/models?limit=3&after_id={first['last_id']}")
    assert [model["id"] for model in first["data"] + rest["data"]] == list(wire.server.models)
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert get(wire, f"/v1/models/{MODEL}")[1]["max_input_tokens"] == 1_000_000
    assert get(wire, "/v1/models/nope")[0] == 404


# Prompt caching


def cached_body(*words: str, marked: tuple[int, ...] = ()) -> dict[str, Any]:
    blocks = [
        text(word * 100, **({"cache_control": EPHEMERAL} if n in marked else {}))
        for n, word in enumerate(words)
    ]
    return make_body(blocks)


def figures(cache: PromptCache, body: dict[str, Any], key: str = "k") -> tuple[int, int, int]:
    used = cache.use(key, body)
    return used.input_tokens, used.written_tokens, used.read_tokens


def test_a_prefix_is_written_then_read() -> None:
    cache = PromptCache()
    body = cached_body("a", "b", marked=(0,))
    assert figures(cache, body) == (25, 25, 0)
    assert figures(cache, body) == (25, 0, 25)


def test_a_later_breakpoint_reads_the_earlier_prefix() -> None:
    cache = PromptCache()
    assert figures(cache, cached_body("a", "b", marked=(1,))) == (0, 50, 0)
    assert figures(cache, cached_body("a", "b", "c", marked=(2,))) == (0, 25, 50)


def test_a_breakpoint_looks_back_twenty_parts() -> None:
    words = tuple("abcdefghijklmnopqrstuvwxyz")
    for last, read in ((20, 25), (21, 0)):
        cache = PromptCache()
        cache.use("k", cached_body(*words[:1], marked=(0,)))
        assert figures(cache, cached_body(*words[: last + 1], marked=(last,)))[2] == read


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["messages"][0]["content"][0].update(text="other" * 20),
        lambda body: body.update(tools=[TOOL]),
        lambda body: body.update(system="s"),
        lambda body: body.update(model="claude-opus-5-5"),
    ],
)
def test_a_change_before_the_breakpoint_misses_the_cache(
    change: Callable[[dict[str, Any]], None],
) -> None:
    cache = PromptCache()
    cache.use("k", cached_body("a", "b", marked=(1,)))
    body = cached_body("a", "b", marked=(1,))
    change(body)
    assert figures(cache, body)[2] == 0


def test_keys_share_no_cache_and_short_prefixes_are_not_cached() -> None:
    cache = PromptCache(min_tokens=30)
    body = cached_body("a", "b", marked=(0, 1))
    assert figures(cache, body) == (0, 50, 0)
    assert figures(cache, body, "other") == (0, 50, 0)
    assert figures(cache, cached_body("a", "x", marked=(0,))) == (50, 0, 0)


def test_cache_control_of_the_request_marks_its_end() -> None:
    cache = PromptCache()
    body = cached_body("a", "b") | {"cache_control": EPHEMERAL}
    assert figures(cache, body) == (0, 50, 0)
    assert figures(cache, body) == (0, 0, 50)


def test_the_answer_reports_the_cache(wire: WireThread) -> None:
    body = cached_body("a", "b", marked=(0,))
    usages = [ask(wire, body)[1]["usage"] for _ in range(2)]
    assert [usage["cache_creation_input_tokens"] for usage in usages] == [25, 0]
    assert [usage["cache_read_input_tokens"] for usage in usages] == [0, 25]
    assert [usage["input_tokens"] for usage in usages] == [25, 25]


def test_a_refused_request_caches_nothing(wire: WireThread) -> None:
    body = cached_body("a", marked=(0,))
    ask(wire, body | {"foo": 1})
    assert ask(wire, body)[1]["usage"]["cache_read_input_tokens"] == 0


# Directives


@pytest.mark.parametrize(
    ("words", "scenario"),
    [
        ("hello", None),
        ("[[wire: ]]", Scenario()),
        ("a [[wire: words=300 rate=30 chunk=7]] b", Scenario(words=300, rate=30.0, chunk=7)),
        ('[[wire: text="a ]] b" stamp=1]]', Scenario(text="a ]] b", stamp=True)),
        ("[[wire: usage=0 thinking=7]]", Scenario(usage=False, thinking=7)),
        ("[[wire: thinking=hm]]", Scenario(thinking="hm")),
        (
            '[[wire: tool=t input={"a": "]]"}]]',
            Scenario(tools=(ToolCall(name="t", input={"a": "]]"}),)),
        ),
        (
            '[[wire: tools=[{"name": "a"}, {"name": "b", "id": "i"}]]]',
            Scenario(tools=(ToolCall(name="a"), ToolCall(name="b", id="i"))),
        ),
        (
            '[[wire: stop_reason=refusal stop_details={"category": "cyber"}]]',
            Scenario(stop_reason="refusal", stop_details={"category": "cyber"}),
        ),
        (
            "[[wire: status=529 times=2 retry_after=1]]",
            Scenario(status=529, times=2, retry_after="1"),
        ),
    ],
)
def test_directives_are_read(words: str, scenario: Scenario | None) -> None:
    assert parse_directive(words) == scenario


@pytest.mark.parametrize(
    "words",
    [
        "[[wire: words=300",
        "[[wire: words]]",
        "[[wire: words=many]]",
        "[[wire: wurds=3]]",
        "[[wire: input={]]",
        '[[wire: tools=[{"nome": "a"}]]]',
    ],
)
def test_bad_directives_raise_an_error(words: str) -> None:
    with pytest.raises(BadDirective):
        parse_directive(words)


def test_a_request_with_a_bad_directive_is_refused(wire: WireThread) -> None:
    status, body = ask(wire, make_body("[[wire: nonsense=1]]"))
    assert status == 400
    assert "nonsense" in body["error"]["message"]


def test_a_directive_determines_the_answer(wire: WireThread) -> None:
    _, body = ask(wire, make_body([text("see [[wire: words=3]]"), text("<state>x</state>")]))
    assert body["content"] == [text(make_words(3))]


def test_the_tools_of_a_directive_are_called_for_its_rounds(wire: WireThread) -> None:
    contents: list[Any] = ["[[wire: tool=read rounds=2 words=2]]"]
    kinds = []
    for _ in range(3):
        _, body = ask(wire, make_body(*contents))
        kinds.append(body["stop_reason"])
        calls = [block["id"] for block in body["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": "ok"} for id_ in calls]
        contents += [body["content"], results]
    assert kinds == ["tool_use", "tool_use", "end_turn"]


def test_the_fault_of_a_directive_ends_after_its_times(wire: WireThread) -> None:
    body = make_body("[[wire: status=503 times=2 text=done]]")
    assert [ask(wire, body)[0] for _ in range(4)] == [503, 503, 200, 200]


def test_without_fault_removes_only_the_fault() -> None:
    assert without_fault(Scenario(text="a", status=500, times=3)) == Scenario(text="a")


# The server by itself


def test_the_command_prints_its_url_and_serves() -> None:
    command = [sys.executable, "-m", "tests.wire.server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        wire = SimpleNamespace(url=url, key=KEY)
        assert get(wire, "/v1/models")[1]["data"]
        process.terminate()


def test_the_server_notices_a_client_that_leaves(wire: WireThread) -> None:
    wire.enqueue(Scenario(hang_after=0))
    with call(wire, "POST", "/v1/messages", make_body(stream=True)) as response:
        response.read(10)
    for _ in range(100):
        if wire.exchanges[0].client_left:
            break
        time.sleep(0.01)
    assert wire.exchanges[0].client_left


@pytest.mark.asyncio
async def test_the_server_runs_in_the_event_loop_of_the_test() -> None:
    server = WireServer()
    assert (await server.start()).startswith("http://127.0.0.1:")
    await server.stop()


def test_an_answer_may_wait_for_a_request_with_a_tool(wire: WireThread) -> None:
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    wire.enqueue(Scenario(text="Warm.", needs_tool="weather"), Scenario(text="Beans."))
    for more, said in (({}, "Beans."), ({"tools": [tool]}, "Warm.")):
        _, answer = ask(wire, make_body("What now?", **more))
        assert answer["content"] == [text(said)]
