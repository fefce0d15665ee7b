"""Functions that the formats share: checking messages and creating turns from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import an_object, dump_json, estimate_tokens, storable
from conversations.domain.turns import (
    TOOL,
    AnyTurn,
    MalformedTurn,
    NewTurn,
    calls_of,
    read_blocks,
    read_metadata,
)

type Block = dict[str, Any]
type Message = dict[str, Any]
# A function that returns the content of a block that refers to an attachment, as blocks of the
# Messages API. It returns other blocks unchanged.
type OpenContent = Callable[[Block], list[Block]]

FORMATS_KEY = "formats"  # In a turn's metadata.
MAX_ID_CHARS = 255
BAD_MESSAGE = "bad_message"


# The parts of a message that the turn alone would lose are stored as a difference.
def difference(written: Any, read: Any) -> dict[str, Any] | None:
    """Return how to get from one JSON value to another, or None if they are the same."""
    if isinstance(written, dict) and isinstance(read, dict):
        changes = {
            key: difference(written[key], value) if key in written else {"is": value}
            for key, value in read.items()
        }
        changed = {key: change for key, change in changes.items() if change is not None}
        parts = {"in": changed, "without": [key for key in written if key not in read]}
        return {name: part for name, part in parts.items() if part} or None
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        changes = {str(index): difference(*pair) for index, pair in pairs}
        changed = {index: change for index, change in changes.items() if change is not None}
        return {"at": changed} if changed else None
    return None if type(written) is type(read) and written == read else {"is": read}


def restore(written: Any, stored: Any) -> Any:
    """Return the value that was read, from the written value and the stored difference.

    Parts of the difference that do not fit the written value are ignored. This happens if the
    written value has changed or the difference is damaged.
    """
    if not isinstance(stored, dict):
        return written
    if "is" in stored:
        return stored["is"]
    if isinstance(written, dict):
        without = stored.get("without")
        gone = without if isinstance(without, list) else []
        restored = {key: value for key, value in written.items() if key not in gone}
        for key, change in an_object(stored.get("in")).items():
            if key in written or "is" in an_object(change):
                restored[key] = restore(written.get(key), change)
        return restored
    if isinstance(written, list):
        changed = an_object(stored.get("at"))
        return [restore(item, changed.get(str(index))) for index, item in enumerate(written)]
    return written


def add_to_metadata(metadata: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the metadata with a value that a format needs when it writes the turn."""
    return metadata | {FORMATS_KEY: an_object(metadata.get(FORMATS_KEY)) | {name: value}}


def find_in_metadata(turn: AnyTurn, name: str) -> Any:
    """Return the value that :func:`add_to_metadata` stored, or None."""
    return an_object(read_metadata(turn).get(FORMATS_KEY)).get(name)


def restore_message(message: Mapping[str, Any], turn: AnyTurn, name: str) -> dict[str, Any]:
    """Return the message as it was read in this format, if it was read in this format."""
    restored = restore(dict(message), find_in_metadata(turn, name))
    return restored if isinstance(restored, dict) else dict(message)


def leave_closed(block: Block) -> list[Block]:
    """Return the block unchanged: an ``OpenContent`` for turns that refer to no attachments."""
    return [block]


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def lacks_text(block: Block) -> bool:
    """Whether the block is a text block without a text."""
    return block.get("type") == "text" and not isinstance(block.get("text"), str)


def name_block(block: Block) -> Block:
    """Return a text block that stands for a block that a format cannot express."""
    kind, title = block.get("type"), block.get("title")
    return text_block(f"[{kind}: {title}]" if title else f"[{kind}]")


def refuse(index: int, reason: str) -> Rejected:
    """Return an error that names the message by its index."""
    return Rejected("messages[%(place)s]: %(reason)s", place=index, reason=reason, code=BAD_MESSAGE)


def check_list(index: int, content: Any) -> list[Block]:
    """Return the content if it is a list of content blocks. Raises Rejected if it is not."""
    if not isinstance(content, list) or not all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in content
    ):
        raise refuse(index, say("Its content must be a text or a list of blocks with a type."))
    # The provider would refuse the block, and every later request of the session that contains it.
    if any(map(lacks_text, content)):
        raise refuse(index, say("The text of a block must be a text."))
    return content


def make_turn(
    role: str,
    text: str,
    *,
    blocks: list[Block] | None = None,
    tool_calls: list[Block] | None = None,
    call_id: Any = None,
    name: str | None = None,
    stop_reason: str = "",
    metadata: dict[str, Any] | None = None,
) -> NewTurn:
    """Return a turn whose columns have only characters that every database can store."""
    content = storable(text)
    return NewTurn(
        role=role,
        content=content,
        blocks=None if blocks is None else dump_json(blocks),
        tool_calls=dump_json(tool_calls) if tool_calls else None,
        tool_call_id=storable(call_id)[:MAX_ID_CHARS] if isinstance(call_id, str) else None,
        tool_name=None if name is None else storable(name)[:MAX_ID_CHARS],
        token_count=estimate_tokens(content),
        stop_reason=stop_reason,
        metadata=dump_json(metadata or {}),
    )


def read_each(
    messages: Iterable[Any], roles: Sequence[str], read: Callable[[int, Message], Iterable[NewTurn]]
) -> Iterator[NewTurn]:
    """Yield the turns that ``read`` makes of each message and its index. Raises Rejected.

    A result without the name of its tool gets the name from its call.
    """
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise refuse(index, say("A message must be an object."))
        if message.get("role") not in roles:
            raise refuse(index, say("Its role must be one of %(roles)s.", roles=", ".join(roles)))
        try:
            turns = list(read(index, message))
        except RecursionError:
            raise refuse(index, say("It is nested too deeply.")) from None
        for turn in turns:
            if turn.role == TOOL and turn.tool_name is None and turn.tool_call_id in names:
                turn = replace(turn, tool_name=storable(names[turn.tool_call_id])[:MAX_ID_CHARS])
            for call in calls_of(turn):
                names[str(call.get("id"))] = str(call.get("name") or "tool")
            yield turn


def with_difference(
    turn: NewTurn, read: Message, *, name: str, write: Callable[[NewTurn], Message]
) -> NewTurn:
    """Return the turn with the difference between the message that was read and its own message.

    ``write`` converts the turn to a message.
    """
    lost = difference(write(turn), read)
    if lost is None:
        return turn
    return replace(turn, metadata=dump_json(add_to_metadata(read_metadata(turn), name, lost)))


def blocks_of(turn: AnyTurn, open_content: OpenContent) -> list[Block] | None:
    """Return the turn's blocks with contents instead of references.

    Return None if the turn has no blocks or if they are damaged.
    """
    try:
        blocks = read_blocks(turn)
    except MalformedTurn:
        return None
    return None if blocks is None else [opened for b in blocks for opened in open_content(b)]
