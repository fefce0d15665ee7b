"""Assembling stream items from events of the Messages API.

The shapes are those of the API's streaming reference: ``message_start``; for each block
``content_block_start``, ``content_block_delta``\\* and ``content_block_stop``; then
``message_delta`` and ``message_stop``; with ``ping`` anywhere. Unknown events, blocks, deltas and
keys are ignored or kept as they came, and never cause an error.

A tool call's input is parsed once, when its block ends (see ``domain.tool_calls``). The API gives
each call an id, but other servers may not; a call without an id of its own gets one here.
"""

from typing import Any

from conversations.domain.stream import (
    Block,
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    StreamItem,
    Usage,
)
from conversations.domain.tool_calls import parse_tool_input

USAGE_FIELDS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}

# Delta type → its key, the key of the block that the pieces make up, and the implied kind of block.
# Tool input has no key of its own until it is parsed.
TEXT_DELTAS = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "input_json_delta": ("partial_json", "", "tool_use"),
}

type Event = dict[str, Any]

# At the end of a text, a translator sets this key to say that the text was thinking.
WAS_THINKING = "was_thinking"


class StreamOutOfOrder(Exception):
    """The events contradict each other, such as a delta of a block that has not begun."""


class UnfinishedBlock:
    """A block whose deltas are still coming."""

    __slots__ = ("block", "kind", "pieces")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.kind = str(block.get("type", ""))
        self.pieces: dict[str, list[str]] = {}

    def complete(self) -> Block:
        """Return the block in the form in which the provider wants it back."""
        for key, pieces in self.pieces.items():
            if key:
                self.block[key] = str(self.block.get(key) or "") + "".join(pieces)
            elif text := "".join(pieces):
                self.block["input"] = parse_tool_input(text)
        return self.block


class MessageAssembly:
    """Assembles one answer from its events, which it gets in order, and gives the items."""

    def __init__(self) -> None:
        self.has_started = False
        self.has_ended = False
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._open_blocks: dict[int, UnfinishedBlock] = {}
        self._completed: dict[int, Block] = {}
        self._call_ids: set[str] = set()

    @property
    def stop_reason(self) -> str | None:
        return self._message.get("stop_reason")

    def feed(self, event: Event, kind: str, items: list[StreamItem]) -> None:
        """Append the items that ``event`` adds to ``items``; unknown kinds add none.

        Raise StreamOutOfOrder, and KeyError, TypeError or ValueError if a known event lacks a
        required value.
        """
        match kind:
            case "content_block_delta":  # first, because nearly all events are deltas
                self._feed_delta(event["index"], event["delta"], items)
            case "message_start":
                self._message = dict(event["message"])
                self._usage = dict(self._message.get("usage") or {})
                self.has_started = True
                items.append(MessageStarted(usage=make_usage(self._usage), **self._names()))
            case "content_block_start":
                self._open_block(event["index"], event["content_block"], items)
            case "content_block_stop":
                if event.get(WAS_THINKING):
                    text = self._open_blocks[event["index"]].complete()["text"]
                    opened = UnfinishedBlock({"type": "thinking", "thinking": text})
                    self._open_blocks[event["index"]] = opened
                self._stop_block(event["index"], items)
            case "message_delta":
                # Each field replaces the value from the start, unless it is absent or null.
                self._message.update(event.get("delta") or {})
                reported = event.get("usage") or {}
                self._usage.update({k: v for k, v in reported.items() if v is not None})
            case "message_stop":
                for index in sorted(self._open_blocks):
                    self._stop_block(index, items)
                self.has_ended = True
                if self.stop_reason is not None:
                    items.append(self._complete_message())

    def _names(self) -> dict[str, str]:
        message = self._message
        return {
            "message_id": str(message.get("id") or ""),
            "model": str(message.get("model") or ""),
        }

    def _open_block(self, index: int, block: Block, items: list[StreamItem]) -> UnfinishedBlock:
        opened = UnfinishedBlock(dict(block))
        self._open_blocks[index] = opened
        items.append(BlockStarted(index=index, kind=opened.kind, block=dict(block)))
        # Other servers may put the first words into the block's start.
        if (text := block.get(opened.kind)) and isinstance(text, str):
            items.append(BlockDelta(index=index, kind=opened.kind, text=text))
        return opened

    def _feed_delta(self, index: int, delta: dict[str, Any], items: list[StreamItem]) -> None:
        opened = self._open_blocks.get(index)
        if spec := TEXT_DELTAS.get(delta["type"]):
            source, target, implied = spec
            if not (text := delta[source]):
                return
            if opened is None:
                # A server may omit the start of a text, but not the start of a tool call.
                if implied == "tool_use":
                    raise StreamOutOfOrder(f"a delta of block {index}, which has not begun")
                opened = self._open_block(index, {"type": implied, implied: ""}, items)
            opened.pieces.setdefault(target, []).append(text)
            items.append(BlockDelta(index=index, kind=opened.kind, text=text))
        elif opened is not None and delta["type"] == "signature_delta":
            opened.block["signature"] = delta["signature"]
        elif opened is not None and delta["type"] == "citations_delta":
            citations = opened.block.get("citations") or []
            opened.block["citations"] = [*citations, delta["citation"]]

    def _stop_block(self, index: int, items: list[StreamItem]) -> None:
        opened = self._open_blocks.pop(index, None)
        if opened is None:
            return
        block = opened.complete()
        if opened.kind == "tool_use":
            # Results are matched to calls by id, so each call of an answer needs its own id.
            call_id = str(block.get("id") or "")
            if not call_id or call_id in self._call_ids:
                call_id = block["id"] = f"{call_id or 'call'}_{index}"
            self._call_ids.add(call_id)
        self._completed[index] = block
        items.append(BlockCompleted(index=index, block=block))

    def _complete_message(self) -> MessageCompleted:
        matched = self._message.get("stop_sequence")
        blocks = [block for _, block in sorted(self._completed.items())]
        reason = str(self.stop_reason)
        if reason in ("end_turn", "tool_use"):  # servers of any protocol confuse them
            has_calls = any(block.get("type") == "tool_use" for block in blocks)
            reason = "tool_use" if has_calls else "end_turn"
        return MessageCompleted(
            blocks=blocks,
            stop_reason=reason,
            usage=make_usage(self._usage),
            stop_details=self._message.get("stop_details"),
            stop_sequence=matched if isinstance(matched, str) else None,
            **self._names(),
        )


def make_usage(reported: dict[str, Any]) -> Usage:
    """Return the figures that were reported as numbers; the others are None."""
    values = {name: reported.get(key) for name, key in USAGE_FIELDS.items()}
    return Usage(**{name: value for name, value in values.items() if isinstance(value, int)})
