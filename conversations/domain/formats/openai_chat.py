"""Conversion between turns and messages of OpenAI's chat completions.

Each message is one turn. Its parts become blocks of the Messages API, which the archive and the
window use. Parts without a corresponding block stay unchanged. Tool calls also stay unchanged
(``read_tool_calls`` knows their shape), so their arguments are exactly the text that the model
wrote.

In this format an answer has one text, before its calls. The format cannot express thinking and the
actions of a server's own tools. It cannot express images in the result of a tool either, so a text
names them.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from conversations.domain.attachments import TEXT_TYPE
from conversations.domain.messages import say
from conversations.domain.stream import sealed_of
from conversations.domain.tool_calls import read_unparsed_input
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    AnyTurn,
    MalformedTurn,
    NewTurn,
    calls_of,
    read_stored_calls,
    text_of_blocks,
)

from .contents import (
    Block,
    Message,
    OpenContent,
    blocks_of,
    check_list,
    leave_closed,
    make_turn,
    name_block,
    read_each,
    refuse,
    restore_message,
    text_block,
    with_difference,
)

NAME = "openai"

# The newer role of a system message, and the older role of a tool's result.
DEVELOPER, FUNCTION = "developer", "function"
ROLES = (SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL, FUNCTION)
ROLE_OF = {DEVELOPER: SYSTEM, FUNCTION: TOOL}
REFUSAL = "refusal"  # A stop reason, and the key of a refused answer's text.
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)


def read_messages(messages: Iterable[Any]) -> Iterator[NewTurn]:
    """Yield the turns of these messages. Raises Rejected."""

    def read(index: int, message: Message) -> Iterator[NewTurn]:
        turn = _read_message(index, message)
        yield with_difference(turn, message, name=NAME, write=_write_message)

    return read_each(messages, ROLES, read)


def _read_message(index: int, message: Message) -> NewTurn:
    role: str = ROLE_OF.get(message["role"]) or message["role"]
    content, blocks = message.get("content"), None
    if content is not None and not isinstance(content, str):
        blocks = [block_of(part) for part in check_list(index, content)]
    text = content or "" if blocks is None else text_of_blocks(blocks)
    if role == ASSISTANT:
        # The text of a refused answer is under a key of the message or in a part.
        holders = [message, *(content if isinstance(content, list) else [])]
        refusals = [holder.get(REFUSAL) for holder in holders]
        refusal = "\n\n".join(text for text in refusals if isinstance(text, str))
        calls = message.get("tool_calls")
        if calls is None:
            old = message.get("function_call")
            calls = [{"function": old}] if isinstance(old, dict) else []
        elif not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise refuse(index, say("Its tool_calls must be a list of objects."))
        return make_turn(
            ASSISTANT, text or refusal, tool_calls=calls, stop_reason=REFUSAL if refusal else ""
        )
    if role == TOOL:
        name = message.get("name")
        name = name if isinstance(name, str) else None
        call_id = message.get("tool_call_id")
        return make_turn(TOOL, text, blocks=blocks, call_id=call_id, name=name)
    return make_turn(role, text, blocks=blocks)


def write_messages(
    turns: Iterable[AnyTurn], open_content: OpenContent = leave_closed
) -> Iterator[tuple[int, Message]]:
    """Yield the messages of these turns, each with the number of its turn."""
    for index, turn in enumerate(turns):
        message = _write_message(turn, open_content)
        yield getattr(turn, "number", index), restore_message(message, turn, NAME)


def _write_message(turn: AnyTurn, open_content: OpenContent = leave_closed) -> Message:
    if turn.role == ASSISTANT:
        calls = _write_calls(turn)
        message: Message = {"role": ASSISTANT, "content": turn.content}
        if turn.stop_reason == REFUSAL:
            message = {"role": ASSISTANT, "content": None, REFUSAL: turn.content}
        elif calls and not turn.content:
            message["content"] = None
        return message | ({"tool_calls": calls} if calls else {})
    content: str | list[Block] = turn.content
    blocks = blocks_of(turn, open_content)
    if turn.role == TOOL:
        if blocks is not None:  # A result can have only texts in this format.
            parts = [block if _is_text(block) else name_block(block) for block in blocks]
            has_text = any(map(_is_text, blocks))
            lead = [] if has_text or not turn.content else [text_block(turn.content)]
            content = [*lead, *parts]
        return {"role": TOOL, "tool_call_id": turn.tool_call_id or "", "content": content}
    if blocks is not None:
        content = [_part_of(block) for block in blocks]
    return {"role": turn.role, "content": content}


def _write_calls(turn: AnyTurn) -> list[Block]:
    try:
        stored = read_stored_calls(turn)
    except MalformedTurn:
        stored = []
    if stored and all(isinstance(call.get("function"), dict) for call in stored):
        return stored  # Calls in this format are returned unchanged.
    calls: list[Block] = []
    for call in calls_of(turn):
        arguments = read_unparsed_input(call)
        if arguments is None:
            arguments = json.dumps(call.get("input"), ensure_ascii=False)
        function = {"name": str(call.get("name") or "tool"), "arguments": arguments}
        head = {"id": str(call.get("id", "")), "type": "function", "function": function}
        calls.append(head | sealed_of(call))
    return calls


def _is_text(block: Block) -> bool:
    return block.get("type") == "text"


def block_of(part: Block) -> Block:
    """Return a part as a block, or the part itself if no block corresponds to it."""
    if part.get("type") == "text":
        return text_block(part["text"]) if isinstance(part.get("text"), str) else part
    if part.get("type") == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str):
            return part
        match = _DATA_URL.fullmatch(url)
        source = {"type": "url", "url": url}
        if match:
            source = {"type": "base64", "media_type": match[1], "data": match[2]}
        return {"type": "image", "source": source}
    if part.get("type") == "file" and isinstance(part.get("file"), dict):
        return _read_file(part)
    return part


def _read_file(part: Block) -> Block:
    file = part["file"]
    name, data, file_id = file.get("filename"), file.get("file_data"), file.get("file_id")
    match = _DATA_URL.fullmatch(data) if isinstance(data, str) else None
    if match is not None:
        source = {"type": "base64", "media_type": match[1], "data": match[2]}
        if match[1] == TEXT_TYPE:
            with suppress(binascii.Error, ValueError):
                text = base64.b64decode(match[2], validate=True).decode()
                source = {"type": "text", "media_type": TEXT_TYPE, "data": text}
    elif isinstance(file_id, str):
        source = {"type": "file", "file_id": file_id}
    else:
        return part
    title = {"title": name} if isinstance(name, str) else {}
    return {"type": "document", "source": source} | title


# Blocks of the Messages API that do not exist as parts.
_BLOCKS_ONLY = ("image", "document", "search_result", "container_upload", "tool_result")


def _part_of(block: Block) -> Block:
    """Return a block as a part, or a text that names the block.

    A block that is neither an image nor a document is returned unchanged, unless it is known to be
    a block of the Messages API only.
    """
    kind, source, title = block.get("type"), block.get("source"), block.get("title")
    if kind not in ("image", "document") or not isinstance(source, dict):
        return name_block(block) if kind in _BLOCKS_ONLY else block
    form, data = source.get("type"), source.get("data")
    url = f"data:{source.get('media_type')};base64,{data}"
    if kind == "image" and form in ("base64", "url"):
        url = url if form == "base64" else str(source.get("url"))
        return {"type": "image_url", "image_url": {"url": url}}
    file: Block = {"filename": title} if isinstance(title, str) else {}
    if kind == "document" and form == "base64":
        return {"type": "file", "file": file | {"file_data": url}}
    if kind == "document" and form == "text":
        plain = base64.b64encode(str(data).encode("utf-8", "surrogatepass")).decode()
        return {"type": "file", "file": file | {"file_data": f"data:{TEXT_TYPE};base64,{plain}"}}
    if kind == "document" and form == "file":
        return {"type": "file", "file": file | {"file_id": str(source.get("file_id"))}}
    return name_block(block)
