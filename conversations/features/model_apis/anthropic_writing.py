"""Writing an answer as a message of the Messages API, whole or as a stream of events."""

from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse

from conversations.domain.stream import Block
from conversations.domain.text import dump_json

from .errors import make_anthropic_error
from .response_writer import AnswerWriter, list_blocks
from .runs import RunAnswer

# Stop reasons that are passed on to a client. All others become "end_turn".
STOP_REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)


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


class MessageWriter(AnswerWriter):
    prefix = "msg_"
    _index = -1

    def make_document(self, answer: RunAnswer) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": answer.model or self.client_request.model,
            "content": list_blocks(answer),
            "stop_reason": stop_reason_of(answer),
            "stop_sequence": answer.stop_sequence,
            "usage": make_usage(answer.usage),
        }

    def make_error(self, status: int, message: str) -> HttpResponse:
        return make_anthropic_error(status, message)

    def begin(self) -> Iterator[str]:
        message = self.make_document(RunAnswer())
        yield write_event("message_start", message=message | {"stop_reason": None})

    def ping(self) -> str:
        return write_event("ping")

    def begin_text(self) -> Iterator[str]:
        yield self._begin_block({"type": "text", "text": ""})

    def write_text(self, text: str) -> str:
        return self._delta({"type": "text_delta", "text": text})

    def end_text(self, text: str) -> Iterator[str]:
        yield write_event("content_block_stop", index=self._index)

    def write_call(self, call: Block) -> Iterator[str]:
        yield self._begin_block(call | {"input": {}})
        arguments = dump_json(call.get("input") or {})
        yield self._delta({"type": "input_json_delta", "partial_json": arguments})
        yield write_event("content_block_stop", index=self._index)

    def end(self, answer: RunAnswer) -> Iterator[str]:
        yield write_event(
            "message_delta",
            delta={"stop_reason": stop_reason_of(answer), "stop_sequence": answer.stop_sequence},
            usage=make_usage(answer.usage),
        )
        yield write_event("message_stop")

    def fail(self, status: int, message: str) -> Iterator[str]:
        error = make_anthropic_error(status, message)
        yield f"event: error\ndata: {error.text}\n\n"

    def _begin_block(self, block: Block) -> str:
        self._index += 1
        return write_event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> str:
        return write_event("content_block_delta", index=self._index, delta=delta)
