"""Blocks and figures that are the same in both of OpenAI's protocols.

The rules are from the API's reference: a call's id has at most 40 characters, a function's name at
most 64, and only messages of the person hold images and files.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from conversations.domain.stream import STRICT, Block, ModelRequest

MAX_CALL_ID_CHARS, MAX_NAME_CHARS = 40, 64

FAILED = "The call failed: "  # Results have no other mark of failure
NO_OUTPUT = "(no output)"
NOT_SENT = "[{}: this model server cannot be given it.]"


def short_call_id(call_id: str) -> str:
    """Return the id if it is short enough; otherwise derive a short id from it."""
    if len(call_id) <= MAX_CALL_ID_CHARS:
        return call_id
    return f"call_{sha256(call_id.encode()).hexdigest()[:32]}"


def nine_letter_call_id(call_id: str) -> str:
    """Return the id if it has nine letters and digits; otherwise derive such an id from it."""
    if re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return sha256(call_id.encode()).hexdigest()[:9]


def short_names(request: ModelRequest) -> dict[str, str]:
    """Return the names of the request's tools, by their short names."""
    return {short_name(tool["name"]): tool["name"] for tool in request.tools}


def short_name(name: str) -> str:
    if len(name) <= MAX_NAME_CHARS:
        return name
    return f"{name[: MAX_NAME_CHARS - 9]}_{sha256(name.encode()).hexdigest()[:8]}"


def text_of(content: Any) -> str:
    """Return the text of a message's content, or of a tool's result."""
    if isinstance(content, str):
        return content
    texts = [str(block.get("text", "")) for block in content or () if block.get("type") == "text"]
    return "\n\n".join(text for text in texts if text)


def text_of_result(block: Block) -> str:
    text = text_of(block.get("content")) or NO_OUTPUT
    return f"{FAILED}{text}" if block.get("is_error") else text


def files_of_result(block: Block) -> list[Block]:
    """Return a result's attachments as blocks of a person's message, with the call's id."""
    content = block.get("content")
    files = [b for b in content if b.get("type") != "text"] if isinstance(content, list) else []
    if not files:
        return []
    return [{"type": "text", "text": f"[Of the result of {block['tool_use_id']}:]"}, *files]


def text_of_part(block: Block) -> str | None:
    """Return the text that is sent for a part of a message.

    Return None for an image or a PDF, which are sent as files."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return str(block["text"])
    if kind == "search_result":
        return (
            f"[{block.get('title', '')} ({block.get('source', '')})]\n{text_of(block['content'])}"
        )
    if kind in ("image", "document") and isinstance(source, dict):
        if kind == "document" and (text := _text_of_document(block)) is not None:
            return text
        if source.get("type") == "base64":
            return None
    return NOT_SENT.format(block.get("title") or kind)


def data_url(source: Mapping[str, Any]) -> str:
    return f"data:{source['media_type']};base64,{source['data']}"


def _text_of_document(block: Block) -> str | None:
    """Return the text of a document that consists of text, or None for others."""
    source = block["source"]
    title = f"[{block['title']}]\n" if block.get("title") else ""
    if source.get("type") == "text":
        return f"{title}{source['data']}"
    if source.get("type") == "content":
        return f"{title}{text_of(source.get('content'))}"
    if str(source.get("media_type", "")).startswith("text/"):
        return title + base64.b64decode(source["data"]).decode(errors="replace")
    return None


def file_name(block: Block) -> str:
    # Servers decide by the file extension, and accept few characters.
    stem = re.sub(r"[^\w. -]", "_", str(block.get("title") or "document"))[:100]
    return stem if stem.lower().endswith(".pdf") else f"{stem}.pdf"


def text_of_system(system: Iterable[Block]) -> str:
    return "\n\n".join(block["text"] for block in system if block.get("text"))


def schema_format(choices: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer format that a program asked for, with its schema."""
    format = choices.get("output_config", {}).get("format")
    if not isinstance(format, dict) or format.get("type") != "json_schema":
        return None
    is_strict = format.get(STRICT) is True
    return {"name": "answer", "schema": format.get("schema", {}), STRICT: is_strict}


def read_effort(choices: Mapping[str, Any]) -> str | None:
    """Return the effort of thinking, in the words of these servers."""
    if choices.get("thinking", {}).get("type") == "disabled":
        return "none"
    effort = choices.get("output_config", {}).get("effort")
    return "high" if effort == "max" else effort


def read_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of either protocol by the names of the Messages API.

    The Messages API does not count tokens that were read from the cache as input."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens")
    if not isinstance(prompt, int):
        return {}
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    thought = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    reasoning = thought.get("reasoning_tokens")
    # Reasoning is part of the output, except if only the total includes both, as with xAI.
    if (
        isinstance(output, int)
        and isinstance(reasoning, int)
        and usage.get("total_tokens") == prompt + output + reasoning
    ):
        output += reasoning
    # OpenRouter and gateways of Claude models may not count cached tokens as input either.
    is_apart = (cached or 0) > prompt
    return {
        "input_tokens": prompt if is_apart else prompt - (cached or 0),
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
