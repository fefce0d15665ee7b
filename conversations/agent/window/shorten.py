"""Shortening what is too long for the window. The archive keeps all of it."""

from typing import Any

from conversations.domain.attachments import is_reference
from conversations.domain.text import estimate_tokens

type Block = dict[str, Any]

SHORTEST = 8  # Estimated tokens below which nothing is shortened any further
ROOM_FOR_NOTICE = 100  # Estimated tokens from which a cut is explained in a sentence

# Signed by the provider, which wants them back unchanged.
UNSHORTENED = ("thinking", "redacted_thinking")

# An image costs (width x height) / 750 tokens, about 1,600 at the size to which the provider scales
# it down; a page of a document 1,500 to 3,000 (its pages on vision and PDF support). The reported
# usage corrects both.
IMAGE_TOKENS, DOCUMENT_TOKENS = 1_600, 6_000

ATTACHED = {"image": IMAGE_TOKENS, "document": DOCUMENT_TOKENS}

BLOCK_TOKENS = 12  # What surrounds the text of a block: its type, ids and names


def shorten_text(text: str, *, cap: int, turn: int) -> str:
    """The beginning and the end of a text that costs more than ``cap`` estimated tokens, with a
    notice between them that says where the rest is."""
    cost = estimate_tokens(text)
    if cost <= cap:
        return text
    keep = int(len(text) * cap / cost)
    while True:
        head = keep * 7 // 10
        tail = keep - head
        notice = _notice(len(text) - keep, turn) if cap >= ROOM_FOR_NOTICE else f"[… turn {turn} …]"
        short = text[:head] + notice + (text[-tail:] if tail else "")
        if keep < 20 or estimate_tokens(short) <= cap:
            return short
        keep = keep * 7 // 8


def _notice(left_out: int, turn: int) -> str:
    return (
        f"\n[… {left_out:,} characters are left out here; turn {turn} in the archive "
        "has all of it …]\n"
    )


def cost_of_block(block: Block) -> int:
    """Estimated tokens of a content block."""
    kind = block.get("type")
    if kind == "text":
        return estimate_tokens(str(block.get("text", ""))) + 3
    if kind == "tool_result":
        return _cost_of_content(block.get("content")) + BLOCK_TOKENS
    if kind == "tool_use":
        return _cost_of_value(block.get("input")) + BLOCK_TOKENS + 4
    if kind == "thinking":
        return estimate_tokens(str(block.get("thinking", "")) + str(block.get("signature", "")))
    if kind in ATTACHED:
        # What was estimated when it was attached
        if is_reference(block) and isinstance(block["source"].get("tokens"), int):
            return int(block["source"]["tokens"]) + BLOCK_TOKENS
        return ATTACHED[str(block["type"])]
    return _cost_of_value(block) + BLOCK_TOKENS


def cost_of_blocks(blocks: list[Block]) -> int:
    return sum(cost_of_block(block) for block in blocks)


def shorten_blocks(blocks: list[Block], *, cap: int, turn: int) -> list[Block]:
    """The same blocks, their texts shortened in proportion so that together they cost about
    ``cap``; what is signed and what is no text stays as it is."""
    cost = cost_of_blocks(blocks)
    if cost <= cap:
        return blocks
    fixed = sum(_fixed_cost(block) for block in blocks)
    share = max(0.0, (cap - fixed) / max(1, cost - fixed))
    return [_shorten_block(block, share=share, turn=turn) for block in blocks]


def _fixed_cost(block: Block) -> int:
    """Of a block's cost, what shortening does not change."""
    kind = block.get("type")
    if kind in UNSHORTENED or kind in ATTACHED:
        return cost_of_block(block)
    content = block.get("content") if kind == "tool_result" else None
    if not isinstance(content, list):
        return 0
    return sum(_fixed_cost(item) for item in content if isinstance(item, dict))


def _shorten_block(block: Block, *, share: float, turn: int) -> Block:
    kind = block.get("type")
    if kind == "text":
        return block | {"text": _shorten_leaf(str(block.get("text", "")), share, turn)}
    if kind == "tool_use":
        return block | {"input": _shorten_value(block.get("input"), share, turn)}
    if kind == "tool_result" and "content" in block:
        return block | {"content": _shorten_value(block["content"], share, turn)}
    return block


def _shorten_value(value: Any, share: float, turn: int) -> Any:
    if isinstance(value, str):
        return _shorten_leaf(value, share, turn)
    if isinstance(value, list):
        return [_shorten_value(item, share, turn) for item in value]
    if isinstance(value, dict) and value.get("type") not in ATTACHED:
        return {key: _shorten_value(item, share, turn) for key, item in value.items()}
    return value


def _shorten_leaf(text: str, share: float, turn: int) -> str:
    return shorten_text(text, cap=max(SHORTEST, int(estimate_tokens(text) * share)), turn=turn)


def _cost_of_content(content: Any) -> int:
    if isinstance(content, str):
        return estimate_tokens(content)
    if isinstance(content, list):
        return sum(cost_of_block(item) for item in content if isinstance(item, dict))
    return 0


def _cost_of_value(value: Any) -> int:
    if isinstance(value, str):
        return estimate_tokens(value) + 1
    if isinstance(value, list):
        return sum(_cost_of_value(item) + 1 for item in value)
    if isinstance(value, dict):
        return sum(estimate_tokens(str(k)) + _cost_of_value(v) + 2 for k, v in value.items())
    return 2
