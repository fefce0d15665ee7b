"""Conversion between turns and messages of the Messages API.

A message of the person is one turn, and so is an answer; their blocks are stored unchanged. Each
result of a tool is a turn of its own. Consecutive results are written as one message, as the API
requires for parallel calls. If a message was divided otherwise, the turn's metadata says so.

``cache_control`` is an instruction for one request and not content. So it is not stored in the
turn's blocks, of which other requests are made.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from conversations.domain.stream import SEALED
from conversations.domain.text import dump_json
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    AnyTurn,
    NewTurn,
    calls_of,
    read_metadata,
    text_of_answer,
    text_of_blocks,
)

from .contents import (
    Block,
    Message,
    OpenContent,
    add_to_metadata,
    blocks_of,
    check_list,
    find_in_metadata,
    leave_closed,
    make_turn,
    name_block,
    read_each,
    restore_message,
    text_block,
    with_difference,
)

NAME = "anthropic"
PARTS_ONLY = ("image_url", "file", "input_audio")  # Parts of OpenAI's messages, not blocks.
ROLES = (USER, ASSISTANT, SYSTEM)
CUT = "message"
# A turn's metadata has one of these values if the turn does not follow the rule. By the rule, a
# result continues the message of the result before it, and every other turn begins a message.
BEGINS, CONTINUES = "begins", "continues"


def read_messages(messages: Iterable[Any]) -> Iterator[NewTurn]:
    """Yield the turns of these messages. Raises Rejected."""
    previous = ""

    def read(index: int, message: Message) -> Iterator[NewTurn]:
        nonlocal previous
        for number, part in enumerate(_split_results(index, message)):
            turn = _read_part(part)
            usual = BEGINS if (turn.role, previous) != (TOOL, TOOL) else CONTINUES
            actual = CONTINUES if number else BEGINS
            if actual != usual:
                metadata = add_to_metadata(read_metadata(turn), CUT, actual)
                turn = replace(turn, metadata=dump_json(metadata))
            previous = turn.role
            yield with_difference(turn, part, name=NAME, write=_write_part)

    return read_each(messages, ROLES, read)


def _split_results(index: int, message: Message) -> list[Message]:
    """Divide a message into one for each turn, because each result of a tool is its own turn."""
    content = message.get("content")
    if isinstance(content, str):
        return [message]
    blocks = check_list(index, content)
    if message["role"] != USER or not any(map(_is_result, blocks)):
        return [message]
    parts: list[list[Block]] = []
    for block in blocks:
        if parts and not _is_result(block) and not _is_result(parts[-1][-1]):
            parts[-1].append(block)
        else:
            parts.append([block])
    rest: list[Message] = [{"role": USER, "content": part} for part in parts[1:]]
    return [message | {"content": parts[0]}, *rest]


def _is_result(block: Block) -> bool:
    return block.get("type") == "tool_result"


def _read_part(message: Message) -> NewTurn:
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return make_turn(role, content)
    blocks = [_without_marks(block) for block in content]
    if role == USER and blocks and _is_result(blocks[0]):
        result = blocks[0]
        text = result.get("content")
        is_list = isinstance(text, list) and all(isinstance(item, dict) for item in text)
        blocks = text if is_list and text else []
        return make_turn(
            TOOL,
            text if isinstance(text, str) else text_of_blocks(blocks),
            blocks=blocks or None,
            call_id=result.get("tool_use_id"),
            metadata={"ok": result.get("is_error") is not True},
        )
    text = text_of_answer(blocks) if role == ASSISTANT else text_of_blocks(blocks)
    calls = [block for block in blocks if block["type"] == "tool_use"] if role == ASSISTANT else []
    return make_turn(role, text, blocks=blocks, tool_calls=calls)


def _without_marks(block: Block) -> Block:
    """Return the block without ``cache_control``, which the content of a result may also have."""
    kept = {key: value for key, value in block.items() if key != "cache_control"}
    content = kept.get("content")
    if _is_result(block) and isinstance(content, list):
        kept["content"] = [
            _without_marks(item) if isinstance(item, dict) else item for item in content
        ]
    return kept


def write_messages(
    turns: Iterable[AnyTurn], open_content: OpenContent = leave_closed
) -> Iterator[tuple[int, Message]]:
    """Yield the messages of these turns, each with the number of its first turn."""
    number, message, previous = 0, None, ""
    for index, turn in enumerate(turns):
        part = restore_message(_write_part(turn, open_content), turn, NAME)
        usual = CONTINUES if turn.role == previous == TOOL else BEGINS
        continues = (find_in_metadata(turn, CUT) or usual) == CONTINUES
        if message is not None and continues and _is_user_list(message) and _is_user_list(part):
            message = message | {"content": [*message["content"], *part["content"]]}
        else:
            if message is not None:
                yield number, message
            number, message = getattr(turn, "number", index), part
        previous = turn.role
    if message is not None:
        yield number, message


def _is_user_list(message: Message) -> bool:
    return message.get("role") == USER and isinstance(message.get("content"), list)


def _write_part(turn: AnyTurn, open_content: OpenContent = leave_closed) -> Message:
    if turn.role == TOOL:
        return {"role": USER, "content": [write_result(turn, open_content)]}
    blocks = blocks_of(turn, open_content)
    if turn.role == USER and blocks:
        blocks = [name_block(b) if b.get("type") in PARTS_ONLY else b for b in blocks]
    if turn.role == ASSISTANT and blocks:
        blocks = [{name: block[name] for name in block if name != SEALED} for block in blocks]
    if blocks is None and turn.role == ASSISTANT:
        calls = calls_of(turn)
        if calls:
            texts = [text_block(turn.content)] if turn.content.strip() else []
            blocks = [*texts, *calls]
    return {"role": turn.role, "content": turn.content if blocks is None else blocks}


def write_result(turn: AnyTurn, open_content: OpenContent) -> Block:
    """Return a result of a tool as a block.

    If the turn's blocks include texts, they are the whole content. Otherwise they are attachments
    of the tool, and the turn's text precedes them.
    """
    result: Block = {"type": "tool_result", "tool_use_id": turn.tool_call_id or ""}
    blocks = blocks_of(turn, open_content)
    if blocks:
        has_text = any(block.get("type") == "text" for block in blocks)
        texts = [] if has_text or not turn.content else [text_block(turn.content)]
        result["content"] = [*texts, *blocks]
    elif turn.content:
        result["content"] = turn.content
    if read_metadata(turn).get("ok") is False:
        result["is_error"] = True
    return result


def split_system(messages: Iterable[Message]) -> tuple[list[Block], list[Message]]:
    """Return the leading system messages as a request's ``system``, and the other messages."""
    system: list[Block] = []
    rest: list[Message] = []
    for message in messages:
        if message["role"] != SYSTEM or rest:
            rest.append(message)
        elif isinstance(content := message["content"], str):
            system.append(text_block(content))
        else:
            system += content
    return system, rest
