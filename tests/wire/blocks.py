"""The content blocks of a scenario's answer."""

from collections.abc import Iterator
from typing import Any

from tests.wire.rules.blocks import sign_thinking
from tests.wire.scenario import WORDS, Scenario, ToolCall, make_words

FUTURE_BLOCK = {"type": "future_block", "payload": {"kept": True}}
CITATION = {
    "type": "char_location",
    "cited_text": "word",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 4,
}


def make_blocks(
    scenario: Scenario, *, model: str, default_text: str, call_ids: Iterator[int]
) -> list[dict[str, Any]]:
    """Return the content blocks of the scenario's answer."""
    if scenario.empty:
        return []
    blocks = [*make_thinking_blocks(scenario, model), *make_text_blocks(scenario, default_text)]
    if scenario.extras:
        blocks.append(FUTURE_BLOCK)
    blocks += [make_call_block(tool, scenario, call_ids) for tool in scenario.tools]
    return blocks


def cut_blocks(
    blocks: list[dict[str, Any]], sequences: list[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the blocks before the first stop sequence, and that sequence or None."""
    for place, block in enumerate(blocks):
        found = [one for one in sequences if one in block.get("text", "")]
        if found:
            first = min(found, key=block["text"].index)
            text = block["text"][: block["text"].index(first)]
            return [*blocks[:place], *([block | {"text": text}] if text else [])], first
    return blocks, None


def make_thinking_blocks(scenario: Scenario, model: str) -> list[dict[str, Any]]:
    wanted = scenario.thinking
    text = make_words(wanted) if isinstance(wanted, int) else wanted
    if not text:
        return []
    return [{"type": "thinking", "thinking": text, "signature": sign_thinking(text, model)}]


def make_text_blocks(scenario: Scenario, default_text: str) -> list[dict[str, Any]]:
    text = make_text(scenario, default_text)
    if scenario.extras and text:
        return [{"type": "text", "text": text, "citations": [CITATION]}]
    return [{"type": "text", "text": text}] if text else []


def make_text(scenario: Scenario, default_text: str) -> str:
    if scenario.text is not None:
        return scenario.text
    if scenario.deltas is not None:
        return repeat_words(scenario.deltas * scenario.chunk)
    if scenario.words is not None:
        return make_words(scenario.words)
    return "" if scenario.tools else default_text


def repeat_words(length: int) -> str:
    """Return words, cut to exactly ``length`` characters."""
    line = " ".join(WORDS) + " "
    return (line * (length // len(line) + 1))[:length]


def make_call_block(tool: ToolCall, scenario: Scenario, ids: Iterator[int]) -> dict[str, Any]:
    block = {
        "type": "tool_use",
        "id": tool.id or f"toolu_wire_{next(ids):06d}",
        "name": tool.name,
        "input": tool.input,
    }
    if tool.sealed:
        block["extra_content"] = tool.sealed
    return {**block, "caller": {"type": "direct"}} if scenario.extras else block
