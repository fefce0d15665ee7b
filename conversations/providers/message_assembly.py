"""Stream items out of the events of the Messages API.

The shapes are those of the API's streaming reference: ``message_start``, for each
block ``content_block_start``, ``content_block_delta``\\* and
``content_block_stop``, then ``message_delta`` and ``message_stop``, with ``ping``
anywhere. What the stream's version knows and this one does not (events, blocks,
deltas, keys) is passed over or kept as it came, never an error.

A tool call's input is parsed once, when its block ends (see ``domain.tool_calls``). A
call without an id of its own (the API gives each one, other servers may not) gets one.
"""

from collections.abc import Callable
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

# Delta type → (its key, the block's key that the pieces make up, the kind of
# block it implies). Tool input is not a key of its own until it is parsed.
TEXT_DELTAS = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "input_json_delta": ("partial_json", "", "tool_use"),
}

type Event = dict[str, Any]


class StreamOutOfOrder(Exception):
    """The events contradict each other, such as a delta of a block never begun."""


class UnfinishedBlock:
    """A block whose deltas are still coming."""

    __slots__ = ("block", "kind", "pieces")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.kind = str(block.get("type", ""))
        self.pieces: dict[str, list[str]] = {}

    def add(self, key: str, text: str) -> None:
        pieces = self.pieces.get(key)
        if pieces is None:
            self.pieces[key] = [text]
        else:
            pieces.append(text)

    def complete(self) -> Block:
        """The block as the provider wants it back."""
        for key, pieces in self.pieces.items():
            if key:
                self.block[key] = str(self.block.get(key) or "") + "".join(pieces)
            elif text := "".join(pieces):
                self.block["input"] = parse_tool_input(text)
        return self.block


class MessageAssembly:
    """Takes one answer's events in order and gives the items they make."""

    def __init__(self) -> None:
        self.has_started = False
        self.has_ended = False
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._open: dict[int, UnfinishedBlock] = {}
        self._completed: dict[int, Block] = {}
        self._call_ids: set[str] = set()
        self._takers: dict[str, Callable[[Event, list[StreamItem]], None]] = {
            "content_block_delta": self._take_delta,
            "message_start": self._start_message,
            "content_block_start": self._start_block,
            "content_block_stop": self._stop_block,
            "message_delta": self._change_message,
            "message_stop": self._stop_message,
        }

    @property
    def stop_reason(self) -> str | None:
        return self._message.get("stop_reason")

    def take(self, event: Event, kind: str, items: list[StreamItem]) -> None:
        """Append to ``items`` what ``event`` makes; unknown kinds make nothing.

        Raises StreamOutOfOrder, and KeyError, TypeError or ValueError where a
        known event lacks what it must have.
        """
        taker = self._takers.get(kind)
        if taker is not None:
            taker(event, items)

    def _start_message(self, event: Event, items: list[StreamItem]) -> None:
        self._message = dict(event["message"])
        self._usage = dict(self._message.get("usage") or {})
        self.has_started = True
        items.append(
            MessageStarted(
                message_id=self._message_id, model=self._model, usage=make_usage(self._usage)
            )
        )

    def _start_block(self, event: Event, items: list[StreamItem]) -> None:
        self._open_block(event["index"], event["content_block"], items)

    def _open_block(self, index: int, block: Block, items: list[StreamItem]) -> UnfinishedBlock:
        opened = UnfinishedBlock(dict(block))
        self._open[index] = opened
        items.append(BlockStarted(index=index, kind=opened.kind, block=dict(block)))
        if text := block.get(opened.kind):
            self._announce_text(index, opened.kind, text, items)
        return opened

    @staticmethod
    def _announce_text(index: int, kind: str, text: object, items: list[StreamItem]) -> None:
        # Other servers may put the first words into the block's start.
        if isinstance(text, str):
            items.append(BlockDelta(index=index, kind=kind, text=text))

    def _take_delta(self, event: Event, items: list[StreamItem]) -> None:
        delta = event["delta"]
        spec = TEXT_DELTAS.get(delta["type"])
        if spec is None:
            self._take_other_delta(event["index"], delta)
            return
        source, target, implied = spec
        text = delta[source]
        if text:
            index = event["index"]
            opened = self._open.get(index) or self._open_implied(index, implied, items)
            opened.add(target, text)
            items.append(BlockDelta(index=index, kind=opened.kind, text=text))

    def _open_implied(self, index: int, kind: str, items: list[StreamItem]) -> UnfinishedBlock:
        """A server may leave the start of a text out; of a tool call it must not."""
        if kind == "tool_use":
            raise StreamOutOfOrder(f"a delta of block {index}, which has not begun")
        return self._open_block(index, {"type": kind, kind: ""}, items)

    def _take_other_delta(self, index: int, delta: dict[str, Any]) -> None:
        opened = self._open.get(index)
        if opened is None:
            return
        if delta["type"] == "signature_delta":
            opened.block["signature"] = delta["signature"]
        elif delta["type"] == "citations_delta":
            citations = opened.block.get("citations") or []
            opened.block["citations"] = [*citations, delta["citation"]]

    def _stop_block(self, event: Event, items: list[StreamItem]) -> None:
        opened = self._open.pop(event["index"], None)
        if opened is not None:
            block = opened.complete()
            if opened.kind == "tool_use":
                self._name_call(block, event["index"])
            self._completed[event["index"]] = block
            items.append(BlockCompleted(index=event["index"], block=block))

    def _name_call(self, block: Block, index: int) -> None:
        """Results are matched to calls by id, so every call of an answer has its own."""
        call_id = str(block.get("id") or "")
        if not call_id or call_id in self._call_ids:
            call_id = block["id"] = f"{call_id or 'call'}_{index}"
        self._call_ids.add(call_id)

    def _change_message(self, event: Event, items: list[StreamItem]) -> None:
        # Each field replaces the one of the start; an absent or null one does not.
        self._message.update(event.get("delta") or {})
        usage = event.get("usage") or {}
        self._usage.update({key: value for key, value in usage.items() if value is not None})

    def _stop_message(self, event: Event, items: list[StreamItem]) -> None:
        for index in sorted(self._open):
            self._stop_block({"index": index}, items)
        self.has_ended = True
        if self.stop_reason is not None:
            items.append(self._complete_message())

    def _complete_message(self) -> MessageCompleted:
        return MessageCompleted(
            blocks=[block for _, block in sorted(self._completed.items())],
            stop_reason=str(self.stop_reason),
            usage=make_usage(self._usage),
            model=self._model,
            message_id=self._message_id,
            stop_details=self._message.get("stop_details"),
            stop_sequence=self._stop_sequence,
        )

    @property
    def _stop_sequence(self) -> str | None:
        matched = self._message.get("stop_sequence")
        return matched if isinstance(matched, str) else None

    @property
    def _message_id(self) -> str:
        return str(self._message.get("id") or "")

    @property
    def _model(self) -> str:
        return str(self._message.get("model") or "")


def make_usage(reported: dict[str, Any]) -> Usage:
    """The figures that were reported as numbers; the others stay None."""
    values = {ours: reported.get(theirs) for ours, theirs in USAGE_FIELDS.items()}
    return Usage(**{name: value for name, value in values.items() if isinstance(value, int)})
