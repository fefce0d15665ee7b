"""Where an answer of the demo model ends early, as a real one's would."""

from typing import Any, NamedTuple

from conversations.domain.stream import Block, ModelRequest

CHARACTERS_PER_TOKEN = 4


class Cut(NamedTuple):
    """The blocks that are left, why, and at which text."""

    blocks: list[Block]
    stop_reason: str
    stop_sequence: str | None = None


def cut_answer(blocks: list[Block], request: ModelRequest) -> Cut:
    """``stop_reason`` is empty where nothing is cut."""
    found = _cut_at(blocks, request.choices.get("stop_sequences") or ())
    return _cut_after(found, request.max_tokens * CHARACTERS_PER_TOKEN)


def _cut_at(blocks: list[Block], sequences: Any) -> Cut:
    for place, block in enumerate(blocks):
        text = block.get("text", "")
        if found := [one for one in sequences if one in text]:
            first = min(found, key=text.index)
            return Cut(_until(blocks, place, text.index(first)), "stop_sequence", first)
    return Cut(blocks, "")


def _cut_after(cut: Cut, most: int) -> Cut:
    for place, block in enumerate(cut.blocks):
        size = len(block.get("text", "")) + len(block.get("thinking", ""))
        if size > most:
            return Cut(_until(cut.blocks, place, most), "max_tokens")
        most -= size
    return cut


def _until(blocks: list[Block], place: int, length: int) -> list[Block]:
    """Those before, and the beginning of that one if it is a text."""
    text = blocks[place].get("text", "")[:length]
    return [*blocks[:place], *([{**blocks[place], "text": text}] if text else [])]
