"""OpenAI's two protocols, for the same server and the same scenarios.

A request is converted to a request of the Messages API, so that the same rules apply to it.
This module checks the rules that only OpenAI's protocols have. An answer is written as a stream
or a document of the protocol.
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.wire.frames import Frame
from tests.wire.reply import Answer
from tests.wire.rules.errors import refuse

CHAT_KEYS = frozenset(
    (
        *("model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "stop"),
        *("response_format", "reasoning_effort"),
    )
)
RESPONSES_KEYS = frozenset(
    (
        *("model", "input", "instructions", "max_output_tokens", "stream", "store", "include"),
        *("tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "reasoning"),
        "text",
    )
)
FINISH_REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
INCOMPLETE = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}


# Requests


def read_chat(body: Any) -> dict[str, Any]:
    """Convert a request of Chat Completions to a request of the Messages API."""
    check_keys(body, CHAT_KEYS)
    check_format((body.get("response_format") or {}).get("json_schema") or {})
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        role, content = message["role"], message.get("content")
        if role == "system":
            system.append(content)
        elif role == "user":
            add(messages, "user", read_parts(content))
        elif role == "tool":
            check_id(message["tool_call_id"])
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            add(messages, "user", [result | {"content": content}])
        elif role == "assistant":
            blocks = read_parts(content) if content else []
            for call in message.get("tool_calls") or ():
                check_id(call["id"])
                blocks.append(read_call(call["id"], call["function"]))
            if not blocks:
                raise refuse("An assistant message needs content or tool_calls")
            add(messages, "assistant", blocks)
        else:
            raise refuse(f"Invalid value: '{role}'")
    tools = [tool["function"] for tool in body.get("tools") or ()]
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    return make_body(body, messages, "\n".join(system), tools, limit)


def read_responses(body: Any) -> dict[str, Any]:
    """Convert a request of the Responses API to a request of the Messages API."""
    check_keys(body, RESPONSES_KEYS)
    check_format((body.get("text") or {}).get("format") or {})
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if "type" not in item and item["role"] == "assistant":
            raise refuse("Cannot determine type of 'item'")  # as llama.cpp does
        if kind == "message":
            content = item["content"]
            add(messages, item["role"], read_parts(content))
        elif kind == "function_call":
            check_id(item["call_id"])
            add(messages, "assistant", [read_call(item["call_id"], item)])
        elif kind == "function_call_output":
            output = item["output"]
            content = output if isinstance(output, str) else read_parts(output)
            result = {"type": "tool_result", "tool_use_id": item["call_id"], "content": content}
            add(messages, "user", [result])
        elif kind == "reasoning":
            sealed = item["encrypted_content"]
            if not sealed.startswith("sealed:"):
                raise refuse("The encrypted content could not be verified.")
        else:
            raise refuse(f"Invalid value: '{kind}'")
    return make_body(
        body,
        messages,
        body.get("instructions", ""),
        body.get("tools") or [],
        body.get("max_output_tokens"),
    )


def check_keys(body: Any, known: frozenset[str]) -> None:
    if not isinstance(body, dict):
        raise refuse("We could not parse the JSON body of your request.")
    for key in body:
        if key not in known:
            raise refuse(f"Unrecognized request argument supplied: {key}")


def check_format(asked: dict[str, Any]) -> None:
    schema = asked.get("schema", {})
    missing = set(schema.get("properties", ())) - set(schema.get("required", ()))
    if asked.get("strict") and missing:
        raise refuse(
            "Invalid schema for response_format 'answer': In context=(), 'required' is required to"
            " be supplied and to be an array including every key in properties."
            f" Missing '{min(missing)}'."
        )


def check_id(call_id: str) -> None:
    if len(call_id) > 40:
        raise refuse(f"Invalid 'id': string too long, {len(call_id)} instead of 40.")


def read_call(call_id: str, function: dict[str, Any]) -> dict[str, Any]:
    check_name(function["name"])
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        raise refuse("Invalid 'arguments': not JSON") from error
    return {"type": "tool_use", "id": call_id, "name": function["name"], "input": arguments}


def check_name(name: str) -> None:
    if len(name) > 64:
        raise refuse(f"Invalid 'name': string too long, {len(name)} instead of 64.")


def read_parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [read_part(part) for part in content]


def read_part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part["type"]
    if kind in ("text", "input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    url: Any = part.get("image_url", part.get("file_data"))
    if kind in ("image_url", "input_image"):
        url = url["url"] if isinstance(url, dict) else url
        return {"type": "image", "source": read_url(url)}
    if kind in ("file", "input_file"):
        file = part.get("file", part)
        return {
            "type": "document",
            "source": read_url(file["file_data"]),
            "title": file["filename"],
        }
    raise refuse(f"Invalid value: '{kind}'")


def read_url(url: str) -> dict[str, Any]:
    head, _, data = url.partition(";base64,")
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


def add(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def make_body(
    body: dict[str, Any],
    messages: list[dict[str, Any]],
    system: str,
    tools: list[dict[str, Any]],
    limit: Any,
) -> dict[str, Any]:
    for tool in tools:
        check_name(tool["name"])
    made = {
        "model": body.get("model"),
        "messages": messages,
        "max_tokens": limit,
        "stream": body.get("stream", False),
    }
    if tools:
        made["tools"] = [
            {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "input_schema": tool["parameters"],
            }
            for tool in tools
        ]
    if stop := body.get("stop"):
        made["stop_sequences"] = stop
    return made | ({"system": system} if system else {})


# Answers of Chat Completions


def make_chat_frames(answer: Answer) -> Iterator[Frame]:
    """Yield the chunks, with as many content chunks as the Messages API has deltas."""
    scenario = answer.scenario

    def chunk(delta: dict[str, Any], reason: str | None = None, **flags: bool) -> Frame:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return make_data(
            chat_head(answer, "chat.completion.chunk") | {"choices": [choice]}, **flags
        )

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for block in answer.blocks:
        if block["type"] in ("text", "thinking"):
            key = "content" if block["type"] == "text" else "reasoning_content"
            for piece in pieces_of(block[block["type"]], scenario.chunk):
                yield chunk({key: piece}, is_delta=True)
        elif block["type"] == "tool_use":
            text = arguments_of(block, answer)
            function = {"name": block["name"], "arguments": ""}
            head = {"index": calls, "id": block["id"], "type": "function", "function": function}
            head |= {key: block[key] for key in ("extra_content",) if key in block}
            yield chunk({"tool_calls": [head]})
            for piece in pieces_of(text, scenario.chunk):
                call = {"index": calls, "function": {"arguments": piece}}
                yield chunk({"tool_calls": [call]}, is_delta=True)
            calls += 1
    reason = FINISH_REASONS.get(answer.stop_reason, answer.stop_reason)
    yield chunk({}, reason, is_end=True)
    if scenario.usage:
        usage = {"choices": [], "usage": chat_usage(answer)}
        yield make_data(chat_head(answer, "chat.completion.chunk") | usage)
    yield Frame("", "[DONE]")


def make_chat_document(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for block in answer.blocks:
        if block["type"] == "text":
            message["content"] = block["text"]
        elif block["type"] == "thinking":
            message["reasoning_content"] = block["thinking"]
        elif block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": arguments_of(block, answer)}
            call = {"id": block["id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
    reason = FINISH_REASONS.get(answer.stop_reason, answer.stop_reason)
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"usage": chat_usage(answer)} if answer.scenario.usage else {}
    return chat_head(answer, "chat.completion") | {"choices": [choice]} | usage


def chat_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": answer.message_id, "object": kind, "created": 1, "model": answer.model}


def chat_usage(answer: Answer) -> dict[str, Any]:
    figures = answer.cache
    prompt = figures.input_tokens + figures.read_tokens + figures.written_tokens
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": answer.output_tokens,
        "total_tokens": prompt + answer.output_tokens,
    }
    if answer.scenario.cache_fields:
        usage["prompt_tokens_details"] = {"cached_tokens": figures.read_tokens}
    return usage


def make_data(value: dict[str, Any], **flags: bool) -> Frame:
    return Frame("", json.dumps(value, ensure_ascii=False), **flags)


def pieces_of(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def arguments_of(block: dict[str, Any], answer: Answer) -> str:
    text = json.dumps(block["input"], ensure_ascii=False)
    scenario = answer.scenario
    is_cut = scenario.cut_tool and block["name"] == scenario.tools[-1].name
    return text[: len(text) // 2] if is_cut else text


# Answers of the Responses API


def make_response_frames(answer: Answer) -> Iterator[Frame]:
    scenario = answer.scenario
    yield make_event("response.created", response=make_response(answer, [], "in_progress"))
    items = []
    for place, block in enumerate(answer.blocks):
        item = make_item(place, block, answer)
        if item is None:
            continue
        items.append(item)
        where = {"output_index": place, "item_id": item["id"]}
        empty = item | {k: [] for k in ("content", "summary") if k in item}
        empty |= {"arguments": ""} if "arguments" in item else {}
        empty.pop("encrypted_content", None)
        yield make_event("response.output_item.added", output_index=place, item=empty)
        kind, text = {
            "text": ("response.output_text.delta", block.get("text", "")),
            "thinking": ("response.reasoning_summary_text.delta", block.get("thinking", "")),
            "tool_use": ("response.function_call_arguments.delta", item.get("arguments", "")),
        }[block["type"]]
        more: dict[str, Any] = {"content_index": 0} if block["type"] == "text" else {}
        for piece in pieces_of(text, scenario.chunk):
            yield make_event(kind, is_delta=True, delta=piece, **where, **more)
        yield make_event("response.output_item.done", output_index=place, item=item)
    reason = INCOMPLETE.get(answer.stop_reason)
    yield make_event(
        "response.incomplete" if reason else "response.completed",
        is_end=True,
        response=make_response(answer, items, "incomplete" if reason else "completed"),
    )


def make_response(answer: Answer, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    reason = INCOMPLETE.get(answer.stop_reason) if status == "incomplete" else None
    figures = answer.cache
    usage: dict[str, Any] | None = None
    if answer.scenario.usage and status != "in_progress":
        prompt = figures.input_tokens + figures.read_tokens + figures.written_tokens
        usage = {"input_tokens": prompt, "output_tokens": answer.output_tokens}
        if answer.scenario.cache_fields:
            usage["input_tokens_details"] = {"cached_tokens": figures.read_tokens}
    return {
        "id": answer.message_id,
        "object": "response",
        "status": status,
        "model": answer.model,
        "output": items,
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": usage,
    }


def make_response_document(answer: Answer) -> dict[str, Any]:
    items = [make_item(place, block, answer) for place, block in enumerate(answer.blocks)]
    status = "incomplete" if answer.stop_reason in INCOMPLETE else "completed"
    return make_response(answer, [item for item in items if item], status)


def make_item(place: int, block: dict[str, Any], answer: Answer) -> dict[str, Any] | None:
    name = f"{answer.message_id}_{place}"
    if block["type"] == "text":
        part = {"type": "output_text", "text": block["text"], "annotations": []}
        return {"type": "message", "id": name, "role": "assistant", "content": [part]}
    if block["type"] == "thinking":
        summary = [{"type": "summary_text", "text": block["thinking"]}]
        sealed = f"sealed:{answer.model}"
        return {"type": "reasoning", "id": name, "summary": summary, "encrypted_content": sealed}
    if block["type"] == "tool_use":
        return {
            "type": "function_call",
            "id": name,
            "call_id": block["id"],
            "name": block["name"],
            "arguments": arguments_of(block, answer),
        }
    return None


def make_event(kind: str, *, is_delta: bool = False, is_end: bool = False, **fields: Any) -> Frame:
    data = json.dumps({"type": kind} | fields, ensure_ascii=False)
    return Frame(kind, data, is_delta=is_delta, is_end=is_end)
