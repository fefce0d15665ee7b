"""An answer while it streams: its parts, rendered block by block.

Rendering happens when a frame is taken, for all deltas since the last one
together, and not at all while nobody watches. A frame carries the HTML of blocks
that are finished now and of the one that is still open, never the whole answer.
"""

from dataclasses import dataclass, field
from typing import Any

from conversations.rendering.block_stream import BlockStream
from conversations.rendering.tool_words import tool_word

TEXT = "text"


@dataclass(slots=True)
class LiveBlock:
    """One content block. ``sent`` counts the characters that frames have carried."""

    number: int
    kind: str
    name: str = ""
    text: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    sent: int = 0
    blocks: BlockStream | None = None

    def feed(self, delta: str) -> None:
        self.text.append(delta)
        self.unsent.append(delta)

    def frame(self, run: str) -> dict[str, Any]:
        """What is new since the last frame."""
        delta = "".join(self.unsent)
        frame = self._head(run) | {"offset": self.sent, "text": delta}
        self.unsent = []
        self.sent += len(delta)
        if self.blocks is not None:
            frame["blocks"] = self.blocks.feed(delta)
            frame["open"] = self.blocks.open_html()
        return frame

    def snapshot(self, run: str) -> dict[str, Any]:
        """The whole part so far; the next frame goes on from there."""
        frame = self._head(run) | {"reset": True, "offset": 0, "text": "".join(self.text)}
        if self.blocks is not None:
            frame |= {"blocks": list(self.blocks.blocks), "open": self.blocks.open_html()}
        return frame

    def _head(self, run: str) -> dict[str, Any]:
        head = {"type": "draft", "run": run, "part": self.number, "kind": self.kind}
        return head | {"name": self.name, "word": tool_word(self.name)[0]} if self.name else head


class LiveAnswer:
    """The parts of a run's answer that are not completed rows yet. Part numbers
    grow over the whole run."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.parts: list[LiveBlock] = []
        self._next_number = 0
        self._dirty: dict[int, LiveBlock] = {}

    def start_part(self, kind: str, *, name: str = "", number: int | None = None) -> LiveBlock:
        number = self._next_number if number is None else number
        self._next_number = number + 1
        blocks = BlockStream() if kind == TEXT else None
        part = LiveBlock(number=number, kind=kind, name=name, blocks=blocks)
        self.parts.append(part)
        return part

    def feed(self, part: LiveBlock, delta: str) -> None:
        part.feed(delta)
        self._dirty[part.number] = part

    def take_frames(self) -> list[dict[str, Any]]:
        dirty, self._dirty = self._dirty, {}
        return [part.frame(self.run) for part in dirty.values()]

    def snapshots(self) -> list[dict[str, Any]]:
        """Every part so far. Take (and publish) the frames first."""
        return [part.snapshot(self.run) for part in self.parts]

    def clear(self) -> None:
        """The parts so far became rows."""
        self.parts, self._dirty = [], {}
