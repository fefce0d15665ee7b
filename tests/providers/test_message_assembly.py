"""Answers of servers that only resemble the API."""

from typing import Any

import pytest

from conversations.domain.stream import (
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    StreamItem,
)
from conversations.domain.tool_calls import parse_tool_input
from conversations.providers.message_assembly import (
    MessageAssembly,
    StreamOutOfOrder,
    make_usage,
)

START = {"type": "message_start", "message": {"id": "m", "model": "x"}}
END: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
STOP = {"type": "message_stop"}


DEEP = 5_000
# JSON that Python reads, although no request can contain it.
UNSENDABLE = (
    '{"a": NaN}',
    '{"a": [-Infinity]}',
    '{"a": 1e999}',
    f'{{"a": {"[" * 100}{"]" * 100}}}',
    f'{{"a": {"[" * DEEP}{"]" * DEEP}}}',
)


def delta(index: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **more}}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def assemble(*events: dict[str, Any]) -> list[StreamItem]:
    assembly = MessageAssembly()
    items: list[StreamItem] = []
    for event in events:
        assembly.feed(event, event["type"], items)
    return items


def complete(*events: dict[str, Any]) -> MessageCompleted:
    last = assemble(START, *events, END, STOP)[-1]
    assert isinstance(last, MessageCompleted)
    return last


def test_text_in_the_start_of_a_block_is_kept() -> None:
    items = assemble(START, start(0, type="text", text="a"), delta(0, "text_delta", text="b"))
    assert [i.text for i in items if isinstance(i, BlockDelta)] == ["a", "b"]
    done = complete(start(0, type="text", text="a"), delta(0, "text_delta", text="b"), stop(0))
    assert done.blocks == [{"type": "text", "text": "ab"}]


def test_every_call_of_an_answer_has_a_different_id() -> None:
    ids = ["a", "a", "", None, "b"]
    calls = [
        event
        for index, call_id in enumerate(ids)
        for event in (start(index, type="tool_use", id=call_id, name="x", input={}), stop(index))
    ]
    assert [block["id"] for block in complete(*calls).blocks] == [
        "a",
        "a_1",
        "call_2",
        "call_3",
        "b",
    ]


@pytest.mark.parametrize(
    ("reason", "has_call", "told"),
    [
        ("end_turn", True, "tool_use"),  # LiteLLM with models of Ollama
        ("tool_use", False, "end_turn"),  # the API itself, for an answer without content
        ("max_tokens", True, "max_tokens"),
        ("refusal", True, "refusal"),
    ],
)
def test_only_an_answer_with_calls_ends_with_tool_use(
    reason: str, has_call: bool, told: str
) -> None:
    call = [start(0, type="tool_use", id="a", name="x", input={}), stop(0)]
    end = END | {"delta": {"stop_reason": reason}}
    done = assemble(START, *(call if has_call else []), end, STOP)[-1]
    assert isinstance(done, MessageCompleted)
    assert done.stop_reason == told


def test_a_text_delta_without_a_start_begins_a_block() -> None:
    items = assemble(START, delta(0, "text_delta", text="a"))
    assert items[1:] == [
        BlockStarted(index=0, kind="text", block={"type": "text", "text": ""}),
        BlockDelta(index=0, kind="text", text="a"),
    ]


def test_a_tool_call_without_a_start_is_refused() -> None:
    with pytest.raises(StreamOutOfOrder):
        assemble(START, delta(0, "input_json_delta", partial_json="{"))


def test_open_blocks_end_with_the_message() -> None:
    items = assemble(
        START,
        start(0, type="text", text=""),
        delta(0, "text_delta", text="a"),
        END,
        STOP,
    )
    assert isinstance(items[-2], BlockCompleted)
    assert isinstance(items[-1], MessageCompleted)


def test_interleaved_blocks_are_kept_in_order() -> None:
    done = complete(
        start(0, type="text", text=""),
        start(1, type="text", text=""),
        delta(1, "text_delta", text="b"),
        stop(1),
        delta(0, "text_delta", text="a"),
        stop(0),
    )
    assert [block["text"] for block in done.blocks] == ["a", "b"]


def test_empty_deltas_make_no_items() -> None:
    items = assemble(START, start(0, type="text", text=""), delta(0, "text_delta", text=""))
    assert not any(isinstance(item, BlockDelta) for item in items)


def test_input_in_the_start_of_a_block_is_kept_without_deltas() -> None:
    done = complete(start(0, type="tool_use", id="t", name="n", input={"a": 1}), stop(0))
    assert done.blocks[0]["input"] == {"a": 1}


def test_unknown_events_and_deltas_are_ignored() -> None:
    done = complete(
        {"type": "future"},
        start(0, type="text", text=""),
        delta(0, "future_delta", x=1),
        delta(9, "signature_delta", signature="s"),
        stop(0),
        stop(7),
    )
    assert done.blocks == [{"type": "text", "text": ""}]


def test_an_answer_without_a_stop_reason_is_not_complete() -> None:
    assembly = MessageAssembly()
    items: list[StreamItem] = []
    for event in (START, STOP):
        assembly.feed(event, event["type"], items)
    assert assembly.has_ended
    assert assembly.stop_reason is None
    assert len(items) == 1


def test_later_usage_replaces_field_by_field() -> None:
    first = {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    last = END | {"usage": {"output_tokens": 9, "input_tokens": None}}
    done = assemble(first, last, STOP)[-1]
    assert isinstance(done, MessageCompleted)
    assert (done.usage.input_tokens, done.usage.output_tokens) == (5, 9)
    assert (done.message_id, done.model) == ("", "")


def test_usage_that_is_no_number_is_none() -> None:
    assert make_usage({"input_tokens": "many"}).input_tokens is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": ', {"_unparsed": '{"a": '}),
        ("[1]", {"_unparsed": "[1]"}),
        ("null", {"_unparsed": "null"}),
        *((text, {"_unparsed": text}) for text in UNSENDABLE),
    ],
)
def test_tool_input_that_is_no_valid_object_stays_unparsed(
    text: str, value: dict[str, Any]
) -> None:
    assert parse_tool_input(text) == value


def test_tool_input_may_have_a_hundred_levels() -> None:
    text = f'{{"a": {"[" * 99}{"]" * 99}}}'
    assert "_unparsed" not in parse_tool_input(text)
