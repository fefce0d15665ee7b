"""The provider for OpenAI's Responses API, through the ``openai`` SDK.

Nothing is stored at the provider: each request holds the whole window. A model gets its earlier
thinking back in sealed form (``encrypted_content``), as the signature of the thinking block.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from conversations.domain.errors import ProviderError
from conversations.domain.stream import Block, ModelRequest
from conversations.domain.text import dump_json

from .message_assembly import Event
from .openai_chat import OpenAIProvider, make_delta, make_function, make_start
from .openai_shapes import (
    data_url,
    file_name,
    read_effort,
    read_usage,
    schema_format,
    short_call_id,
    short_name,
    short_names,
    text_of_part,
    text_of_result,
    text_of_system,
)
from .provider_errors import error_from_event, make_error

# Parameters that models refuse, each with a word of the refusal
REFUSED = {"include": "ncrypted", "reasoning": "reasoning"}
REFUSED |= {name: name for name in ("temperature", "top_p")}


class OpenAIResponsesProvider(OpenAIProvider):
    """Answers model calls through the Responses API at ``base_url``."""

    path = "/responses"

    def make_body(self, request: ModelRequest) -> dict[str, Any]:
        return self.adapt(request.model, make_body(request))

    def make_translator(self, request: ModelRequest) -> "ResponseTranslator":
        return ResponseTranslator(
            names=short_names(request), limit=request.max_tokens, secret=self._secret
        )

    def refusable(self, body: Mapping[str, Any]) -> dict[str, str]:
        return {name: word for name, word in REFUSED.items() if name in body}


# The request


def make_body(request: ModelRequest) -> dict[str, Any]:
    """Return the request in the shape of ``POST /responses``.

    Raise ProviderError for a parameter that the API does not have."""
    choices = request.choices
    if choices.get("stop_sequences"):
        raise make_error("invalid_request", "The Responses API has no stop sequences.")
    items: list[dict[str, Any]] = []
    for message in request.messages:
        write = _write_answer if message["role"] == "assistant" else _write_person
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        items += write(blocks)
    body: dict[str, Any] = {
        "model": request.model,
        "input": items,
        "max_output_tokens": request.max_tokens,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
    }
    if system := text_of_system(request.system):
        body["instructions"] = system
    if request.tools:
        body["tools"] = [
            make_function(tool) | {"type": "function", "strict": False} for tool in request.tools
        ]
    body |= {name: choices[name] for name in ("temperature", "top_p") if name in choices}
    if effort := read_effort(choices):
        body["reasoning"]["effort"] = effort
    if schema := schema_format(choices):
        body["text"] = {"format": schema | {"type": "json_schema"}}
    if choice := choices.get("tool_choice"):
        kinds: dict[str, Any] = {"any": "required", "none": "none", "auto": "auto"}
        one_tool = {"type": "function", "name": short_name(str(choice.get("name", "")))}
        body["tool_choice"] = kinds.get(choice["type"], one_tool)
        if choice.get("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
    return body


def _write_person(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    parts: list[Block] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            content = block.get("content")
            files = [b for b in content if b["type"] != "text"] if type(content) is list else []
            text = text_of_result(block)
            output = [_part_of({"type": "text", "text": text}), *map(_part_of, files)]
            yield {
                "type": "function_call_output",
                "call_id": short_call_id(block["tool_use_id"]),
                "output": output if files else text,
            }
        else:
            parts.append(_part_of(block))
    if parts:
        yield {"role": "user", "content": parts}


def _part_of(block: Block) -> Block:
    if (text := text_of_part(block)) is not None:
        return {"type": "input_text", "text": text}
    data = data_url(block["source"])
    if block["type"] == "image":
        return {"type": "input_image", "image_url": data}
    return {"type": "input_file", "filename": file_name(block), "file_data": data}


def _write_answer(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and block.get("text"):
            part = {"type": "output_text", "text": block["text"]}
            yield {"type": "message", "role": "assistant", "content": [part]}
        elif kind == "tool_use":
            yield {
                "type": "function_call",
                "call_id": short_call_id(block["id"]),
                "name": short_name(block["name"]),
                "arguments": dump_json(block.get("input") or {}),
            }
        elif kind == "thinking" and (item := _unseal(block.get("signature"))):
            texts = [block["thinking"]] if block.get("thinking") else []
            summary = [{"type": "summary_text", "text": text} for text in texts]
            yield {"type": "reasoning", "summary": summary} | item


def _unseal(signature: Any) -> dict[str, str]:
    """Return the id and the sealed content of a thinking item, for sending it back."""
    try:
        item = json.loads(signature)
        return {"id": item["id"], "encrypted_content": item["encrypted_content"]}
    except (TypeError, ValueError, KeyError):
        return {}


# The answer


class ResponseTranslator:
    """Translates the events of one response into events of the Messages API.

    ``names`` are the names of tools, by their names in the request. ``limit`` is the token limit of
    the answer. ``secret`` is masked in errors."""

    def __init__(self, *, names: Mapping[str, str], limit: int, secret: str) -> None:
        self._names = names
        self._secret = secret
        self._limit = limit
        self._has_started = False
        self._next = 0  # The number of the next block
        self._blocks: dict[tuple[str, int], int] = {}  # By the item's id and the part's place
        self._with_text: set[int] = set()  # Blocks of which some text has come
        self._has_calls = self._is_refused = False

    def translate(self, event: Event, kind: str) -> Iterator[Event]:
        if isinstance(response := event.get("response"), dict):
            if not self._has_started:
                yield self._start(response)
            if kind == "response.failed":
                raise self._failure(response)
            if kind in ("response.completed", "response.incomplete"):
                yield from self._finish(response)
            return
        position = (find_item(event), event.get("content_index", 0))
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._is_refused |= kind == "response.refusal.delta"
                yield from self._add_text(position, "text", event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield from self._add_text((position[0], 0), "thinking", event["delta"])
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                yield from self._add_text((position[0], 0), "thinking", "\n\n")
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                yield from self._open_call(position[0], event["item"])
            case "response.function_call_arguments.delta":
                yield from self._add_arguments(position[0], event["delta"])
            case "response.output_item.done":
                yield from self._complete_item(position[0], event["item"])

    def translate_document(self, document: Event) -> Iterator[Event]:
        yield self._start(document)
        if document.get("status") == "failed":
            raise self._failure(document)
        if "output" not in document:
            raise ValueError("a response without output")
        yield from self._finish(document)

    def end(self, *, is_marked: bool) -> Iterator[Event]:
        return iter(())  # the stream has its own last event

    def _start(self, response: Mapping[str, Any]) -> Event:
        self._has_started = True
        message = {"id": response.get("id") or "", "model": response.get("model") or ""}
        return {"type": "message_start", "message": message}

    def _failure(self, response: Mapping[str, Any]) -> ProviderError:
        error = {"error": response.get("error") or {}}
        return error_from_event(error, headers={}, secret=self._secret)

    def _open(self, position: tuple[str, int], block: Block) -> Iterator[Event]:
        index = self._blocks[position] = self._next
        self._next += 1
        yield make_start(index, block)

    def _add_text(self, position: tuple[str, int], kind: str, text: str) -> Iterator[Event]:
        if not text:
            return
        if position not in self._blocks:
            yield from self._open(position, {"type": kind, kind: ""})
        self._with_text.add(self._blocks[position])
        yield make_delta(self._blocks[position], {"type": f"{kind}_delta", kind: text})

    def _open_call(self, item_id: str, item: Mapping[str, Any]) -> Iterator[Event]:
        self._has_calls = True
        name = str(item.get("name") or "")
        call_id = str(item.get("call_id") or item.get("id") or "")
        block = {"type": "tool_use", "id": call_id, "name": self._names.get(name, name)}
        yield from self._open((item_id, 0), block | {"input": {}})

    def _add_arguments(self, item_id: str, text: str) -> Iterator[Event]:
        if text:
            index = self._blocks[item_id, 0]
            self._with_text.add(index)
            yield make_delta(index, {"type": "input_json_delta", "partial_json": text})

    def _complete_item(self, item_id: str, item: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the parts of an item that were not translated yet, and its end."""
        kind = item.get("type")
        if kind == "function_call":
            if (item_id, 0) not in self._blocks:
                yield from self._open_call(item_id, item)
            if self._blocks[item_id, 0] not in self._with_text:
                yield from self._add_arguments(item_id, item.get("arguments") or "")
        elif kind == "reasoning":
            if (item_id, 0) not in self._blocks:
                parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
                yield from self._open((item_id, 0), {"type": "thinking", "thinking": ""})
                text = "\n\n".join(str(part.get("text", "")) for part in parts)
                yield from self._add_text((item_id, 0), "thinking", text)
            if sealed := item.get("encrypted_content"):
                signature = dump_json({"id": item.get("id"), "encrypted_content": sealed})
                delta = {"type": "signature_delta", "signature": signature}
                yield make_delta(self._blocks[item_id, 0], delta)
        elif kind == "message":
            for number, part in enumerate(item.get("content") or ()):
                self._is_refused |= part.get("type") == "refusal"
                if (item_id, number) not in self._blocks:
                    text = part.get("text") or part.get("refusal") or ""
                    yield from self._add_text((item_id, number), "text", text)
        for (other_id, _), index in self._blocks.items():
            if other_id == item_id:
                yield {"type": "content_block_stop", "index": index}

    def _finish(self, response: Mapping[str, Any]) -> Iterator[Event]:
        if not self._blocks:  # the response comes as one document
            for index, item in enumerate(response.get("output") or ()):
                yield from self._complete_item(str(item.get("id") or index), item)
        reason = (response.get("incomplete_details") or {}).get("reason")
        stop_reason = "end_turn"
        if reason is not None or response.get("status") == "incomplete":
            stop_reason = "refusal" if reason == "content_filter" else "max_tokens"
        elif self._is_refused:
            stop_reason = "refusal"
        usage = read_usage(response.get("usage") or {})
        # llama.cpp says "completed" for an answer that it has cut off.
        is_at_limit = (usage.get("output_tokens") or 0) >= self._limit
        if stop_reason == "end_turn" and is_at_limit and not self._has_calls:
            stop_reason = "max_tokens"
        yield {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}
        yield {"type": "message_stop"}


def find_item(event: Event) -> str:
    """Return a key for the item of an event; some servers give no places, others no ids."""
    item = event.get("item") or {}
    return str(event.get("item_id") or item.get("id") or event.get("output_index", 0))
