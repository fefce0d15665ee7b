"""Turns and messages of OpenAI's chat completions.

Each message is a turn. Its parts become the blocks of the Messages API, which the archive
and the window speak; parts that have no such block stay as they are. Calls of tools stay
as they came (``read_tool_calls`` knows their shape), so their arguments are the very text
that the model wrote.

An answer has one text here, before its calls; thinking, and what a server's own tools
did, have no place. Nor have images in the result of a tool, which are named in its text.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from conversations.domain.attachments import TEXT_TYPE
from conversations.domain.tool_calls import read_unparsed_input
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    AnyTurn,
    MalformedTurn,
    NewTurn,
    read_stored_calls,
    text_of_blocks,
)

from .contents import (
    Block,
    Message,
    OpenContent,
    blocks_of,
    calls_of,
    check_list,
    check_message,
    keep_difference,
    leave_closed,
    make_turn,
    name_block,
    name_results,
    number_of,
    refuse,
    restore_message,
    text_block,
)

NAME = "openai"

DEVELOPER, FUNCTION = "developer", "function"
"""The newer name of a system message, and the older one of a tool's result."""

ROLES = (SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL, FUNCTION)

ROLE_OF = {DEVELOPER: SYSTEM, FUNCTION: TOOL}

REFUSAL = "refusal"
"""A stop reason, and the key of a refused answer's text."""

_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


def read_messages(messages: Iterable[Any]) -> Iterator[NewTurn]:
    """The turns of these messages. Raises Rejected."""
    return name_results(_read_all(messages))


def _read_all(messages: Iterable[Any]) -> Iterator[NewTurn]:
    for place, value in enumerate(messages):
        try:
            message = check_message(place, value, ROLES)
            turn = _read_message(place, message)
            turn = keep_difference(turn, message, name=NAME, write=_write_message)
        except RecursionError:
            raise refuse(place, "It is nested too deeply.") from None
        yield turn


def _read_message(place: int, message: Message) -> NewTurn:
    role: str = ROLE_OF.get(message["role"]) or message["role"]
    text, blocks = _read_content(place, message.get("content"))
    if role == ASSISTANT:
        return _read_answer(place, message, text)
    if role == TOOL:
        name = message.get("name")
        return make_turn(
            TOOL,
            text,
            blocks=blocks,
            call_id=message.get("tool_call_id"),
            name=name if isinstance(name, str) else None,
        )
    return make_turn(role, text, blocks=blocks)


def _read_content(place: int, content: Any) -> tuple[str, list[Block] | None]:
    if content is None or isinstance(content, str):
        return content or "", None
    blocks = [block_of(part) for part in check_list(place, content)]
    return text_of_blocks(blocks), blocks


def _read_answer(place: int, message: Message, text: str) -> NewTurn:
    refusal = _read_refusal(message)
    return make_turn(
        ASSISTANT,
        text or refusal,
        tool_calls=_read_calls(place, message),
        stop_reason=REFUSAL if refusal else "",
    )


def _read_refusal(message: Message) -> str:
    """Of a refused answer the text, which is a key of its own or a part; else empty."""
    parts = message.get("content")
    places = [message, *(parts if isinstance(parts, list) else [])]
    texts = [place.get(REFUSAL) for place in places]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _read_calls(place: int, message: Message) -> list[Block]:
    calls = message.get("tool_calls")
    if calls is None:
        old = message.get("function_call")
        return [{"function": old}] if isinstance(old, dict) else []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise refuse(place, "Its tool_calls are no list of objects.")
    return calls


def write_messages(
    turns: Iterable[AnyTurn], open_content: OpenContent = leave_closed
) -> Iterator[tuple[int, Message]]:
    """The messages of these turns, each with the number of its turn."""
    for place, turn in enumerate(turns):
        message = _write_message(turn, open_content)
        yield number_of(turn, place=place), restore_message(message, turn, NAME)


def _write_message(turn: AnyTurn, open_content: OpenContent = leave_closed) -> Message:
    if turn.role == ASSISTANT:
        return _write_answer(turn)
    blocks = blocks_of(turn, open_content)
    if turn.role == TOOL:
        content = turn.content if blocks is None else _write_result(turn.content, blocks)
        return {"role": TOOL, "tool_call_id": turn.tool_call_id or "", "content": content}
    parts = None if blocks is None else [_part_of(block) for block in blocks]
    return {"role": turn.role, "content": turn.content if parts is None else parts}


def _write_answer(turn: AnyTurn) -> Message:
    calls = _write_calls(turn)
    if turn.stop_reason == REFUSAL:
        message: Message = {"role": ASSISTANT, "content": None, REFUSAL: turn.content}
    else:
        message = {
            "role": ASSISTANT,
            "content": turn.content if turn.content or not calls else None,
        }
    return message | ({"tool_calls": calls} if calls else {})


def _write_calls(turn: AnyTurn) -> list[Block]:
    """The calls as they came, where they came in this shape."""
    try:
        stored = read_stored_calls(turn)
    except MalformedTurn:
        stored = []
    if stored and all(isinstance(call.get("function"), dict) for call in stored):
        return stored
    return [_write_call(call) for call in calls_of(turn)]


def _write_call(call: Block) -> Block:
    arguments = read_unparsed_input(call)
    if arguments is None:
        arguments = json.dumps(call.get("input"), ensure_ascii=False)
    function = {"name": str(call.get("name") or "tool"), "arguments": arguments}
    return {"id": str(call.get("id", "")), "type": "function", "function": function}


def _write_result(text: str, blocks: list[Block]) -> str | list[Block]:
    """A result has texts only."""
    texts = [block if _is_text(block) else name_block(block) for block in blocks]
    if any(map(_is_text, blocks)):
        return texts
    return [*([text_block(text)] if text else []), *texts]


def _is_text(block: Block) -> bool:
    return block.get("type") == "text"


def block_of(part: Block) -> Block:
    """A part as a block; one that has no such block as it is."""
    if part.get("type") == "text":
        return text_block(part["text"]) if isinstance(part.get("text"), str) else part
    if part.get("type") == "image_url":
        return _read_image(part)
    if part.get("type") == "file":
        return _read_file(part)
    return part


def _read_image(part: Block) -> Block:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        return part
    if found := _DATA_URL.fullmatch(url):
        return {"type": "image", "source": _base64_source(*found.groups())}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _base64_source(media_type: str, data: str) -> Block:
    return {"type": "base64", "media_type": media_type, "data": data}


def _read_file(part: Block) -> Block:
    file = part.get("file")
    if not isinstance(file, dict):
        return part
    name, data, known = file.get("filename"), file.get("file_data"), file.get("file_id")
    title = {"title": name} if isinstance(name, str) else {}
    found = _DATA_URL.fullmatch(data) if isinstance(data, str) else None
    if found is not None:
        return {"type": "document", "source": _document_source(*found.groups())} | title
    if isinstance(known, str):
        return {"type": "document", "source": {"type": "file", "file_id": known}} | title
    return part


def _document_source(media_type: str, data: str) -> Block:
    if media_type == TEXT_TYPE:
        try:
            text = base64.b64decode(data, validate=True).decode()
            return {"type": "text", "media_type": TEXT_TYPE, "data": text}
        except (binascii.Error, ValueError):
            pass
    return _base64_source(media_type, data)


def _part_of(block: Block) -> Block:
    """A block as a part. What neither a text, an image nor a file is came as a part, or is
    named."""
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict):
        return _write_image(block, source)
    if block.get("type") == "document" and isinstance(source, dict):
        return _write_file(block, source)
    if block.get("type") in _BLOCKS_ONLY:
        return name_block(block)
    return block


_BLOCKS_ONLY = ("image", "document", "search_result", "container_upload", "tool_result")
"""Blocks of the Messages API that are no parts."""


def _write_image(block: Block, source: Block) -> Block:
    if source.get("type") == "base64":
        url = _data_url(source)
    elif source.get("type") == "url":
        url = str(source.get("url"))
    else:
        return name_block(block)
    return {"type": "image_url", "image_url": {"url": url}}


def _data_url(source: Block) -> str:
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def _write_file(block: Block, source: Block) -> Block:
    kind, title = source.get("type"), block.get("title")
    file: Block = {"filename": title} if isinstance(title, str) else {}
    if kind == "base64":
        file |= {"file_data": _data_url(source)}
    elif kind == "text":
        data = base64.b64encode(str(source.get("data")).encode("utf-8", "surrogatepass")).decode()
        file |= {"file_data": f"data:{TEXT_TYPE};base64,{data}"}
    elif kind == "file":
        file |= {"file_id": str(source.get("file_id"))}
    else:
        return name_block(block)
    return {"type": "file", "file": file}
