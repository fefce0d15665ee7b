"""Turns as messages of the Messages API, with what it would refuse repaired.

Repairs are made here, in the window, and never in the archive: a tool call whose result is missing
gets an error result, a result without its call is left out, an id that an earlier call had is told
apart, blank texts are dropped, refused answers too (the provider asks for that), what is too long
is shortened, and the conversation begins and ends with the person.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from conversations.archive.attachments import make_content_block, recorded_digests
from conversations.archive.blobs import has_blob, read_blob, size_of_blob
from conversations.domain.attachments import (
    IMAGE,
    Block,
    is_reference,
    kind_of,
    list_references,
)
from conversations.domain.errors import NotFound
from conversations.domain.formats.contents import name_block, text_block
from conversations.domain.stream import ModelRequest
from conversations.domain.turns import (
    ASSISTANT,
    MODEL_NOTE,
    SYSTEM,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    read_blocks,
    read_metadata,
    read_tool_calls,
)

from .shorten import cost_of_block, cost_of_blocks, shorten_blocks

# Attachments in the window: references, and their contents in the request.


MAX_BYTES = 28_000_000  # Of a request's 32 MB, what attachments may take as base64
MAX_IMAGES, MAX_PAGES = 100, 100  # Of one request, for the provider

MISSING, TOO_MUCH, NO_ROOM, REFUSED = "missing", "too_much", "no_room", "refused"

REASONS = {
    MISSING: "its content is not kept any more",
    TOO_MUCH: "with what was attached later the request would be too large",
    NO_ROOM: "it does not fit into the window",
    REFUSED: "the provider refused a request with what is attached",
}


def describe_left_out(block: Block, reason: str) -> Block:
    """The text that stands for an attachment which is not given."""
    note = f"[{block.get('title') or 'An attachment'} was attached here, and is left out: "
    text: Block = {"type": "text", "text": f"{note}{REASONS[reason]}.]"}
    return text | ({"cache_control": block["cache_control"]} if "cache_control" in block else {})


def fit_attachments(blocks: list[Block], *, cap: int, cost: Callable[[Block], int]) -> list[Block]:
    """The blocks with as many attachments, from the last back, as cost no more than ``cap``
    estimated tokens together."""
    references = list_references(blocks)
    total = sum(cost(block) for block in references)
    gone: list[Block] = []
    while total > cap:
        gone.append(references[len(gone)])
        total -= cost(gone[-1])
    if not gone:
        return blocks
    return _map(
        blocks,
        lambda b: [describe_left_out(b, NO_ROOM)] if any(b is other for other in gone) else [b],
    )


def withhold(
    session_pk: int, pieces: Iterable[list[Block]], *, are_refused: bool = False
) -> dict[str, str]:
    """The digests of contents that cannot go along, with the reason: what is gone or none of the
    session's, and of what is too much for one request the oldest. ``pieces`` in order. All of them,
    where the provider has refused a request with them."""
    references = [b for blocks in pieces for b in list_references(blocks)]
    digests = [str(b["source"].get("digest", "")) for b in references]
    if are_refused:
        return dict.fromkeys(digests, REFUSED)
    recorded = recorded_digests(session_pk, set(digests)) if digests else set()
    withheld: dict[str, str] = {}
    taken, images, pages = 0, 0, 0
    known: set[str] = set()
    for block in reversed(references):
        digest = str(block["source"].get("digest", ""))
        if digest in withheld:
            continue
        if digest not in known and not (digest in recorded and has_blob(digest)):
            withheld[digest] = MISSING
            continue
        known.add(digest)
        taken += size_of_blob(digest) * 4 // 3 + 4
        images += kind_of(block) == IMAGE
        pages += int(block.get("pages") or 0)
        if taken > MAX_BYTES or images > MAX_IMAGES or pages > MAX_PAGES:
            withheld[digest] = TOO_MUCH
    return withheld


def replace_withheld(blocks: list[Block], withheld: Mapping[str, str]) -> list[Block]:
    """The blocks with a sentence for each content that is withheld."""
    if not withheld:
        return blocks

    def put(block: Block) -> list[Block]:
        reason = withheld.get(str(block["source"].get("digest", "")))
        return [describe_left_out(block, reason)] if reason else [block]

    return _map(blocks, put)


def expand_request(request: ModelRequest) -> ModelRequest:
    """The request with the contents in place of the references."""
    if not any(list_references(message["content"]) for message in request.messages):
        return request
    messages = [
        message | {"content": _map(message["content"], _expand)} for message in request.messages
    ]
    return replace(request, messages=messages)


def _map(blocks: list[Any], change: Callable[[Block], list[Block]]) -> list[Any]:
    """The blocks with each reference changed, inside results of tools too."""
    changed: list[Any] = []
    for block in blocks:
        if is_reference(block):
            changed += change(block)
        elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            changed.append(block | {"content": _map(block["content"], change)})
        else:
            changed.append(block)
    return changed


def name_images(blocks: Iterable[Block]) -> list[Block]:
    """The blocks with the name of each image before it, since it has no title."""
    named: list[Block] = []
    for block in blocks:
        if is_reference(block) and kind_of(block) == IMAGE:
            named.append({"type": "text", "text": f"[{block.get('title') or 'image'}]"})
        named.append(block)
    return named


def _expand(block: Block) -> list[Block]:
    try:
        data = read_blob(str(block["source"].get("digest", "")))
    except NotFound:
        return [describe_left_out(block, MISSING)]
    kept = {"cache_control": block["cache_control"]} if "cache_control" in block else {}
    media_type = str(block["source"].get("media_type", ""))
    return [make_content_block(block, data, media_type=media_type) | kept]


type Message = dict[str, Any]
# Calls without a result yet: their ids as the archive and as the model has them.
type Waiting = dict[str, list[str]]

NO_RESULT = "This call was interrupted; it has no result."
CONTINUE_TEXT = "Go on exactly where your last answer was cut off."

_ID = re.compile(r"[^a-zA-Z0-9_-]")
_THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCaps:
    """Estimated tokens above which one message, or one tool result, is shortened, and above which
    what is attached to either is left out."""

    message: int
    result: int
    attached: int = 10_000_000

    def of(self, role: str) -> int:
        return self.result if role == TOOL else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A turn as it stands in the window. ``cost`` is in estimated tokens, and ``full_cost`` what it
    would be if it were not shortened."""

    number: int
    role: str
    blocks: list[Block]
    cost: int
    full_cost: int

    @property
    def is_shortened(self) -> bool:
        return self.cost < self.full_cost


def make_piece(turn: StoredTurn, *, model: str, caps: MessageCaps) -> Piece:
    """The turn's content blocks for this model, shortened to the caps."""
    blocks = _blocks_of(turn, model=model)
    full_cost = cost_of_blocks(blocks)
    fitting = fit_attachments(blocks, cap=caps.attached, cost=cost_of_block)
    short = shorten_blocks(fitting, cap=caps.of(turn.role), turn=turn.number)
    return Piece(
        number=turn.number,
        role=turn.role,
        blocks=short,
        cost=full_cost if short is blocks else cost_of_blocks(short),
        full_cost=full_cost,
    )


# Pieces that are remembered, and the estimated tokens that one of them has at most.
KNOWN_PIECES, KNOWN_COST = 4000, 2000

_known: dict[tuple[str, str, MessageCaps], Piece] = {}


def recall_piece(turn: StoredTurn, *, model: str, caps: MessageCaps) -> Piece:
    """The same as :func:`make_piece`, remembered: a turn never changes, and the next call needs
    nearly all of them again. Nobody changes a piece's blocks."""
    key = (turn.digest, model, caps)
    piece = _known.get(key)
    if piece is None:
        piece = make_piece(turn, model=model, caps=caps)
        if turn.digest and piece.cost <= KNOWN_COST:
            if len(_known) >= KNOWN_PIECES:
                _known.clear()
            _known[key] = piece
    return piece


def join_pieces(pieces: Iterable[Piece]) -> list[Message]:
    """Messages of these pieces, oldest first; the first is a person's. Empty when no piece says
    anything."""
    messages: list[Message] = []
    given: set[str] = set()
    waiting: Waiting = {}
    for piece in pieces:
        if piece.role == TOOL:
            [result] = piece.blocks
            if open_ids := waiting.get(result["tool_use_id"]):
                _add(messages, "user", [result | {"tool_use_id": open_ids.pop(0)}])
            continue
        _answer_dangling(messages, waiting)
        if piece.role in (USER, SYSTEM):
            _add(messages, "user", piece.blocks)
        elif piece.role == ASSISTANT:
            blocks, waiting = _open_calls(piece.blocks, given)
            _add(messages, "assistant", blocks)
    _answer_dangling(messages, waiting)
    while messages and (messages[0]["role"] != "user" or _is_results(messages[0])):
        messages.pop(0)
    return messages


def _open_calls(blocks: list[Block], given: set[str]) -> tuple[list[Block], Waiting]:
    """The blocks with no id of a call that was ``given`` before: some programs number calls anew in
    each answer, and the provider wants each id once."""
    opened: list[Block] = []
    waiting: Waiting = {}
    for block in blocks:
        if block.get("type") == "tool_use":
            call_id = block["id"]
            found = (f"{call_id[:110]}_again_{number}" for number in count(2))
            own = (
                call_id if call_id not in given else next(one for one in found if one not in given)
            )
            given.add(own)
            waiting.setdefault(block["id"], []).append(own)
            block = block if own == block["id"] else block | {"id": own}
        opened.append(block)
    return opened, waiting


def _is_results(message: Message) -> bool:
    return any(block.get("type") == "tool_result" for block in message["content"])


def _add(messages: list[Message], role: str, blocks: list[Block]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].extend(blocks)
    else:
        messages.append({"role": role, "content": list(blocks)})


def _blocks_of(turn: StoredTurn, *, model: str) -> list[Block]:
    if turn.role == USER:
        try:
            blocks = read_blocks(turn)
        except MalformedTurn:
            blocks = None
        if blocks is None:
            return _text(turn.content)
        kept = [_givable(block) for block in blocks if not _is_blank(block)]
        return name_images(kept) or _text(turn.content)
    if turn.role == ASSISTANT:
        return [] if turn.stop_reason == "refusal" else _assistant_blocks(turn, model=model)
    if turn.role == SYSTEM and read_metadata(turn).get(MODEL_NOTE) is True:
        return _text(f"[{turn.content}]")
    if turn.role == TOOL:
        result: Block = {
            "type": "tool_result",
            "tool_use_id": _sendable_id(turn.tool_call_id or ""),
        }
        if turn.content.strip():
            result["content"] = turn.content
        if read_metadata(turn).get("ok") is False:
            result["is_error"] = True
            result.setdefault("content", "The tool failed without a message.")
        elif attached := _attached_to(turn):
            result["content"] = [*_text(turn.content), *attached]
        return [result]
    return []


def _text(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


# Blocks of a person's message that the model is given.
GIVEN = ("text", "image", "document", "search_result")


def _givable(block: Block) -> Block:
    """The block, or a text for what other programs said in theirs: content that would have to be
    loaded from somewhere, and what the provider would refuse."""
    kind, source = block.get("type"), block.get("source")
    has_content = kind not in ("image", "document") or isinstance(source, dict)
    if kind not in GIVEN or not has_content:
        return name_block(block)
    if isinstance(source, dict) and source.get("type") == "url":
        return text_block(f"[{kind}: {source.get('url')}, which is not loaded]")
    return name_block(block) if isinstance(source, dict) and source.get("type") == "file" else block


def _is_blank(block: Block) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _assistant_blocks(turn: StoredTurn, *, model: str) -> list[Block]:
    try:
        blocks = read_blocks(turn)
        calls = read_tool_calls(turn)
    except MalformedTurn:
        return _text(turn.content)
    if blocks is None:
        return _text(turn.content) + [_sendable_call(call) for call in calls]
    # Thinking is signed for the model that thought it; another one refuses it.
    same_model = read_metadata(turn).get("model", model) == model
    kept = [
        _sendable_call(block) if block.get("type") == "tool_use" else block
        for block in blocks
        if not _is_blank(block) and (same_model or block.get("type") not in _THINKING)
    ]
    return [] if all(b.get("type") in _THINKING for b in kept) else kept


def _sendable_call(block: Block) -> Block:
    arguments = block.get("input")
    return block | {
        "id": _sendable_id(str(block.get("id", ""))),
        "name": _ID.sub("_", str(block.get("name") or "tool"))[:128],
        "input": arguments if isinstance(arguments, dict) else {},
    }


def _sendable_id(call_id: str) -> str:
    return _ID.sub("_", call_id)[:128] or "unnamed"


def _attached_to(turn: StoredTurn) -> list[Block]:
    """Images and documents that a tool gave. What failed has text only."""
    try:
        return name_images(block for block in read_blocks(turn) or [] if is_reference(block))
    except MalformedTurn:
        return []


def _answer_dangling(messages: list[Message], waiting: Waiting) -> None:
    for call_id in chain.from_iterable(waiting.values()):
        _add(
            messages,
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": call_id,
                    "is_error": True,
                    "content": NO_RESULT,
                }
            ],
        )
    waiting.clear()
