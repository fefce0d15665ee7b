"""The events of a content block, as the API streams them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.wire.blocks import CITATION
from tests.wire.scenario import Scenario

STAMP = "~STAMP~"
"""Placeholder in a delta for the time of its socket write."""
FUTURE_DELTA = {"type": "future_delta", "payload": "unknown"}


class Frame(NamedTuple):
    """One event, whose data is JSON.

    ``is_delta`` says that the event carries a piece of content, and ``is_end`` that it says
    why the answer ends.
    """

    name: str
    data: str
    is_delta: bool = False
    is_end: bool = False


def make_frame(event: dict[str, Any], *, is_delta: bool = False) -> Frame:
    data = json.dumps(event, ensure_ascii=False)
    return Frame(event["type"], data, is_delta, event["type"] == "message_delta")


def make_block_frames(index: int, block: dict[str, Any], scenario: Scenario) -> Iterator[Frame]:
    yield make_frame(
        {"type": "content_block_start", "index": index, "content_block": make_empty(block)}
    )
    yield from DELTA_MAKERS[block["type"]](index, block, scenario)
    yield make_frame({"type": "content_block_stop", "index": index})


def make_empty(block: dict[str, Any]) -> dict[str, Any]:
    """Return the block as its start event shows it."""
    empty: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    start = {**block, **empty.get(block["type"], {})}
    if "citations" in start:
        start["citations"] = None
    return start


def make_text_frames(index: int, block: dict[str, Any], scenario: Scenario) -> Iterator[Frame]:
    yield from make_delta_frames(index, "text_delta", "text", block["text"], scenario)
    if scenario.extras:
        yield make_delta(index, FUTURE_DELTA)
        yield make_delta(index, {"type": "citations_delta", "citation": CITATION})


def make_thinking_frames(index: int, block: dict[str, Any], scenario: Scenario) -> Iterator[Frame]:
    yield from make_delta_frames(index, "thinking_delta", "thinking", block["thinking"], scenario)
    yield make_delta(index, {"type": "signature_delta", "signature": block["signature"]})


def make_call_frames(index: int, block: dict[str, Any], scenario: Scenario) -> Iterator[Frame]:
    text = json.dumps(block["input"], ensure_ascii=False)
    if scenario.cut_tool and block["name"] == scenario.tools[-1].name:
        text = text[: len(text) // 2]
    # The API's first piece is always empty.
    yield make_delta(index, {"type": "input_json_delta", "partial_json": ""})
    yield from make_delta_frames(index, "input_json_delta", "partial_json", text, scenario)


def make_no_frames(index: int, block: dict[str, Any], scenario: Scenario) -> Iterator[Frame]:
    return iter(())


DELTA_MAKERS = {
    "text": make_text_frames,
    "thinking": make_thinking_frames,
    "tool_use": make_call_frames,
    "future_block": make_no_frames,
}


def make_delta(index: int, delta: dict[str, Any]) -> Frame:
    return make_frame({"type": "content_block_delta", "index": index, "delta": delta})


def make_delta_frames(
    index: int, kind: str, key: str, text: str, scenario: Scenario
) -> Iterator[Frame]:
    # The JSON is written by hand, because a load test sends thousands of deltas a second.
    head = f'{{"type": "content_block_delta", "index": {index}, "delta": {{"type": "{kind}", '
    for at in range(0, len(text), scenario.chunk):
        piece = json.dumps(text[at : at + scenario.chunk], ensure_ascii=False)
        if scenario.stamp and kind == "text_delta":
            piece = f'"{STAMP}"'
        yield Frame("content_block_delta", f'{head}"{key}": {piece}}}}}', is_delta=True)
