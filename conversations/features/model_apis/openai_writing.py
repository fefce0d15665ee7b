"""Writing an answer as a chat completion or a response, whole or as a stream of events."""

from collections.abc import Iterator
from typing import Any

from django.http import HttpResponse

from conversations.domain.stream import Block
from conversations.domain.text import dump_json, load_json

from .errors import make_openai_error
from .openai_shapes import ECHOED
from .response_writer import AnswerWriter, list_blocks
from .runs import RunAnswer

CUT = ("max_tokens", "model_context_window_exceeded")  # Stop reasons of answers that were cut off.

# Stop reasons of incomplete responses, with the reason in OpenAI's words.
INCOMPLETE = {**dict.fromkeys(CUT, "max_output_tokens"), "refusal": "content_filter"}

DONE = "data: [DONE]\n\n"


def count_prompt(usage: dict[str, int]) -> int:
    """Return the count of all input tokens, including cached ones."""
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
    return sum(usage.get(name, 0) for name in names)


def make_arguments(call: Block) -> str:
    return dump_json(call.get("input") or {})


class OpenAIWriter(AnswerWriter):
    @property
    def created_at(self) -> int:
        return int(self.run.created_at.timestamp())

    def make_error(self, status: int, message: str) -> HttpResponse:
        return make_openai_error(status, message)

    def ping(self) -> str:
        return ": ping\n\n"


# Chat completions


def finish_reason_of(answer: RunAnswer) -> str:
    if answer.calls:
        return "tool_calls"
    if answer.stop_reason in CUT:
        return "length"
    return "content_filter" if answer.stop_reason == "refusal" else "stop"


def make_completion_usage(usage: dict[str, int]) -> dict[str, Any]:
    prompt, output = count_prompt(usage), usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": usage.get("cache_read_tokens", 0)},
    }


def make_tool_call(call: Block) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": make_arguments(call)}
    return {"id": call["id"], "type": "function", "function": function}


class CompletionWriter(OpenAIWriter):
    prefix = "chatcmpl-"
    _calls = 0

    def make_document(self, answer: RunAnswer) -> dict[str, Any]:
        blocks = list_blocks(answer)
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        calls = [make_tool_call(block) for block in blocks if block["type"] != "text"]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n\n".join(texts) if texts or not calls else None,
            "refusal": None,
        }
        choice = {
            "index": 0,
            "message": message | ({"tool_calls": calls} if calls else {}),
            "logprobs": None,
            "finish_reason": finish_reason_of(answer),
        }
        usage = make_completion_usage(answer.usage)
        named = {"model": answer.model or self.client_request.model}
        return self._envelope("chat.completion", [choice]) | named | {"usage": usage}

    def begin(self) -> Iterator[str]:
        yield self._write_delta({"role": "assistant", "content": ""})

    def begin_text(self) -> Iterator[str]:
        if len(self._texts) > 1:
            yield self._write_delta({"content": "\n\n"})

    def write_text(self, text: str) -> str:
        return self._write_delta({"content": text})

    def end_text(self, text: str) -> Iterator[str]:
        yield from ()

    def write_call(self, call: Block) -> Iterator[str]:
        yield self._write_delta({"tool_calls": [{"index": self._calls} | make_tool_call(call)]})
        self._calls += 1

    def end(self, answer: RunAnswer) -> Iterator[str]:
        yield self._write_delta({}, finish_reason_of(answer))
        if self.client_request.has_usage:
            usage = make_completion_usage(answer.usage)
            yield self._write(self._envelope("chat.completion.chunk", []) | {"usage": usage})
        yield DONE

    def fail(self, status: int, message: str) -> Iterator[str]:
        yield f"data: {self.make_error(status, message).text}\n\n"

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_at,
            "model": self.client_request.model,
            "choices": choices,
        }

    def _write_delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = self._envelope("chat.completion.chunk", [choice])
        return self._write(chunk | ({"usage": None} if self.client_request.has_usage else {}))

    def _write(self, chunk: dict[str, Any]) -> str:
        return f"data: {dump_json(chunk)}\n\n"


# Responses


def make_response_usage(usage: dict[str, int]) -> dict[str, Any]:
    prompt, output = count_prompt(usage), usage.get("output_tokens", 0)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": usage.get("cache_read_tokens", 0),
            "cache_write_tokens": usage.get("cache_write_tokens", 0),
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},  # they are not counted separately
        "total_tokens": prompt + output,
    }


class ResponseWriter(OpenAIWriter):
    prefix = "resp_"
    _sequence = -1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._items: list[dict[str, Any]] = []

    def make_document(self, answer: RunAnswer) -> dict[str, Any]:
        items = [
            self._make_message(place, block["text"])
            if block["type"] == "text"
            else self._make_call(place, block)
            for place, block in enumerate(list_blocks(answer))
        ]
        return self._make_response(items, answer)

    def begin(self) -> Iterator[str]:
        response = self._make_response([], None)
        yield self._write("response.created", response=response)
        yield self._write("response.in_progress", response=response)

    def begin_text(self) -> Iterator[str]:
        item = self._make_message(len(self._items), "") | {"status": "in_progress"}
        yield self._write_item("added", item | {"content": []})
        yield self._write_part("content_part.added", part=self._make_part(""))

    def write_text(self, text: str) -> str:
        return self._write_part("output_text.delta", delta=text, logprobs=[])

    def end_text(self, text: str) -> Iterator[str]:
        yield self._write_part("output_text.done", text=text, logprobs=[])
        yield self._write_part("content_part.done", part=self._make_part(text))
        yield from self._end_item(self._make_message(len(self._items), text))

    def write_call(self, call: Block) -> Iterator[str]:
        place, arguments = len(self._items), make_arguments(call)
        item = self._make_call(place, call)
        yield self._write_item("added", item | {"arguments": "", "status": "in_progress"})
        position = {"item_id": item["id"], "output_index": place}
        yield self._write("response.function_call_arguments.delta", delta=arguments, **position)
        yield self._write(
            "response.function_call_arguments.done",
            arguments=arguments,
            name=call["name"],
            **position,
        )
        yield from self._end_item(item)

    def end(self, answer: RunAnswer) -> Iterator[str]:
        response = self._make_response(self._items, answer)
        yield self._write(f"response.{response['status']}", response=response)

    def fail(self, status: int, message: str) -> Iterator[str]:
        error = load_json(self.make_error(status, message).text, default={})["error"]
        code = "rate_limit_exceeded" if error["type"] == "rate_limit_error" else "server_error"
        response = self._make_response(self._items, None) | {
            "status": "failed",
            "error": {"code": code, "message": message},
        }
        yield self._write("response.failed", response=response)

    def _make_response(
        self, items: list[dict[str, Any]], answer: RunAnswer | None
    ) -> dict[str, Any]:
        # ``answer`` is None while the response is in progress.
        reason = INCOMPLETE.get(answer.stop_reason) if answer and not answer.calls else None
        if answer is None:
            status = "in_progress"
        elif reason:
            status = "incomplete"
        else:
            status = "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": (answer.model if answer else "") or self.client_request.model,
            "output": items,
            "store": True,
            "truncation": "disabled",
            "usage": None if answer is None else make_response_usage(answer.usage),
            **ECHOED,
            **self.client_request.echoed,
        }

    def _make_part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _make_message(self, place: int, text: str) -> dict[str, Any]:
        return {
            "id": f"msg_{self.id.removeprefix(self.prefix)}_{place}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [self._make_part(text)],
        }

    def _make_call(self, place: int, call: Block) -> dict[str, Any]:
        return {
            "id": f"fc_{self.id.removeprefix(self.prefix)}_{place}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            "name": call["name"],
            "arguments": make_arguments(call),
        }

    def _end_item(self, item: dict[str, Any]) -> Iterator[str]:
        yield self._write_item("done", item)
        self._items.append(item)

    def _write_item(self, change: str, item: dict[str, Any]) -> str:
        place = len(self._items)
        return self._write(f"response.output_item.{change}", output_index=place, item=item)

    def _write_part(self, event: str, **fields: Any) -> str:
        place = len(self._items)
        position = {
            "item_id": self._make_message(place, "")["id"],
            "output_index": place,
            "content_index": 0,
        }
        return self._write(f"response.{event}", **position, **fields)

    def _write(self, kind: str, **fields: Any) -> str:
        self._sequence += 1
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        return f"event: {kind}\ndata: {dump_json(event)}\n\n"
