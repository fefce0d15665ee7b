"""An answer as a message of the Messages API, whole or as the events of its stream."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from conversations.domain.text import dump_json

from .asking import RunAnswer

# Those that a client is told; anything else is an end of its turn.
STOP_REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)


def make_message(answer: RunAnswer, *, run: UUID, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{run.hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list_blocks(answer),
        "stop_reason": stop_reason_of(answer),
        "stop_sequence": answer.stop_sequence,
        "usage": make_usage(answer.usage),
    }


def list_blocks(answer: RunAnswer) -> list[dict[str, Any]]:
    """Texts, and the calls that the client is to carry out. What the workspace's tools did
    is in the session."""
    asked = {call.call_id for call in answer.calls}
    return [b for b in answer.blocks if b.get("type") == "text" or b.get("id") in asked]


def stop_reason_of(answer: RunAnswer) -> str:
    if answer.calls:
        return "tool_use"
    return answer.stop_reason if answer.stop_reason in STOP_REASONS else "end_turn"


def make_usage(usage: dict[str, int]) -> dict[str, int]:
    return {
        "input_tokens": usage.get("input_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "cache_creation_input_tokens": usage.get("cache_write_tokens", 0),
        "cache_read_input_tokens": usage.get("cache_read_tokens", 0),
    }


def write_event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {dump_json({'type': kind} | fields)}\n\n"


class EventWriter:
    """The events of one message: texts as they come, the rest when it is complete."""

    def __init__(self, *, run: UUID, model: str) -> None:
        self._run, self._model = run, model
        self._index = -1
        # The run that the frames are of: the first of each part names it.
        self._told_run: UUID | None = None
        self._part: int | None = None
        self._seen = ""
        self._texts: list[str] = []
        self._is_open = False

    def begin(self) -> str:
        message = make_message(RunAnswer(), run=self._run, model=self._model)
        return write_event("message_start", message=message | {"stop_reason": None})

    def add_draft(self, frame: dict[str, Any]) -> Iterator[str]:
        """More of a text of this run; what was told already is left out. White space waits
        for what follows: alone it is no block of the answer."""
        part, offset, text = frame["part"], frame["offset"], frame["text"]
        if "run" in frame:
            self._told_run = UUID(frame["run"])
        if self._told_run != self._run:
            return
        if part != self._part:
            if offset:
                return  # its beginning was not told: it comes with the whole answer
            yield from self._end_block()
            self._part, self._seen = part, ""
        seen = len(self._seen)
        if not offset <= seen < offset + len(text):
            return
        self._seen += text[seen - offset :]
        if not self._is_open and self._seen.strip():
            yield from self._begin_block({"type": "text", "text": ""})
            self._texts.append("")
        if self._is_open:
            yield from self._tell(self._seen[len(self._texts[-1]) :])

    def _tell(self, text: str) -> Iterator[str]:
        self._texts[-1] += text
        yield self._delta({"type": "text_delta", "text": text})

    def finish(self, answer: RunAnswer) -> Iterator[str]:
        """What was not told yet, and the end."""
        told = list(self._texts)
        for block in list_blocks(answer):
            text = str(block.get("text", ""))
            if block["type"] == "text" and told and text.startswith(told[0]):
                told.pop(0)
                if not told and self._is_open and text != self._texts[-1]:
                    yield from self._tell(text[len(self._texts[-1]) :])
                continue
            yield from self._end_block()
            if block["type"] == "text":
                yield from self._begin_block({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            else:
                yield from self._begin_block(block | {"input": {}})
                given = dump_json(block.get("input") or {})
                yield self._delta({"type": "input_json_delta", "partial_json": given})
        yield from self._end_block()
        yield write_event(
            "message_delta",
            delta={"stop_reason": stop_reason_of(answer), "stop_sequence": answer.stop_sequence},
            usage=make_usage(answer.usage),
        )
        yield write_event("message_stop")

    def _begin_block(self, block: dict[str, Any]) -> Iterator[str]:
        self._index += 1
        self._is_open = True
        yield write_event("content_block_start", index=self._index, content_block=block)

    def _end_block(self) -> Iterator[str]:
        if self._is_open:
            self._is_open = False
            yield write_event("content_block_stop", index=self._index)

    def _delta(self, delta: dict[str, Any]) -> str:
        return write_event("content_block_delta", index=self._index, delta=delta)
