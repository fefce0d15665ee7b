"""What the formats share: messages that are checked, and turns made of them."""

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
# Gives the content of a block that names an attachment, as blocks of the Messages API; other
# blocks as they are.
type OpenContent = Callable[[Block], list[Block]]

FORMATS_KEY = "formats"  # In a turn's metadata.
MAX_ID_CHARS = 255
BAD_MESSAGE = "bad_message"


# What the plain reading of a message would lose, kept as a difference.
def difference(written: Any, read: Any) -> dict[str, Any] | None:
    """How to get from one JSON value to another; None: they are the same."""
    if isinstance(written, dict) and isinstance(read, dict):
        found = {
            key: difference(written[key], value) if key in written else {"is": value}
            for key, value in read.items()
        }
        changed = {key: what for key, what in found.items() if what is not None}
        parts = {"in": changed, "without": [key for key in written if key not in read]}
        return {name: part for name, part in parts.items() if part} or None
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        found = {str(place): difference(*pair) for place, pair in pairs}
        changed = {place: what for place, what in found.items() if what is not None}
        return {"at": changed} if changed else None
    return None if type(written) is type(read) and written == read else {"is": read}


def restore(written: Any, kept: Any) -> Any:
    """What was read. Parts that do not fit to what is written, since that has changed or
    the difference is damaged, are passed over."""
    if not isinstance(kept, dict):
        return written
    if "is" in kept:
        return kept["is"]
    if isinstance(written, dict):
        without = kept.get("without")
        gone = without if isinstance(without, list) else []
        restored = {key: value for key, value in written.items() if key not in gone}
        for key, what in an_object(kept.get("in")).items():
            if key in written or "is" in an_object(what):
                restored[key] = restore(written.get(key), what)
        return restored
    if isinstance(written, list):
        changed = an_object(kept.get("at"))
        return [restore(item, changed.get(str(place))) for place, item in enumerate(written)]
    return written


def add_to_metadata(metadata: dict[str, Any], name: str, what: Any) -> dict[str, Any]:
    """The metadata with something that a format wants to find again."""
    return metadata | {FORMATS_KEY: an_object(metadata.get(FORMATS_KEY)) | {name: what}}


def find_in_metadata(turn: AnyTurn, name: str) -> Any:
    """What :func:`add_to_metadata` put there; None: nothing."""
    return an_object(read_metadata(turn).get(FORMATS_KEY)).get(name)


def restore_message(message: Mapping[str, Any], turn: AnyTurn, name: str) -> dict[str, Any]:
    """The message as it was read in this format, if it was."""
    restored = restore(dict(message), find_in_metadata(turn, name))
    return restored if isinstance(restored, dict) else dict(message)


def leave_closed(block: Block) -> list[Block]:
    """For turns that name no attachments."""
    return [block]


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def lacks_text(block: Block) -> bool:
    """A block of text whose text is none."""
    return block.get("type") == "text" and not isinstance(block.get("text"), str)


def name_block(block: Block) -> Block:
    """A text that stands for a block which a format has no word for."""
    kind, title = block.get("type"), block.get("title")
    return text_block(f"[{kind}: {title}]" if title else f"[{kind}]")


def refuse(place: int, reason: str) -> Rejected:
    """An error that names the message."""
    return Rejected("messages[%(place)s]: %(reason)s", place=place, reason=reason, code=BAD_MESSAGE)


def check_list(place: int, content: Any) -> list[Block]:
    """A list of content blocks. Raises Rejected."""
    if not isinstance(content, list) or not all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in content
    ):
        raise refuse(place, say("Its content must be a text or a list of blocks with a type."))
    # The provider would refuse it, and with it all that is ever said after it.
    if any(map(lacks_text, content)):
        raise refuse(place, say("The text of a block must be a text."))
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
    """A turn, with nothing in its columns that a database cannot hold."""
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
    """The turns that ``read`` makes of each message and its place, results with the name of
    the tool, which their call has. Raises Rejected."""
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise refuse(place, say("A message must be an object."))
        if message.get("role") not in roles:
            raise refuse(place, say("Its role must be one of %(roles)s.", roles=", ".join(roles)))
        try:
            turns = list(read(place, message))
        except RecursionError:
            raise refuse(place, say("It is nested too deeply.")) from None
        for turn in turns:
            if turn.role == TOOL and turn.tool_name is None and turn.tool_call_id in names:
                turn = replace(turn, tool_name=storable(names[turn.tool_call_id])[:MAX_ID_CHARS])
            for call in calls_of(turn):
                names[str(call.get("id"))] = str(call.get("name") or "tool")
            yield turn


def with_difference(
    turn: NewTurn, read: Message, *, name: str, write: Callable[[NewTurn], Message]
) -> NewTurn:
    """The turn with what its plain reading lost. ``write`` gives its message."""
    lost = difference(write(turn), read)
    if lost is None:
        return turn
    return replace(turn, metadata=dump_json(add_to_metadata(read_metadata(turn), name, lost)))


def blocks_of(turn: AnyTurn, open_content: OpenContent) -> list[Block] | None:
    """The turn's blocks with contents in place of references; None for none or damaged ones."""
    try:
        blocks = read_blocks(turn)
    except MalformedTurn:
        return None
    return None if blocks is None else [opened for b in blocks for opened in open_content(b)]
