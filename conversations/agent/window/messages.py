"""Turns as messages of the Messages API, with everything repaired that the API would reject.

Repairs are made in the window and never in the archive. A tool call without a result gets an error
result, and a result without its call is left out. An id that an earlier call had is made unique.
Blank texts are dropped, as are refused answers (the provider asks for that). Long texts are
shortened. The conversation begins and ends with the person.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from conversations.agent.files.skills import LOAD_SKILL
from conversations.archive.attachments import make_content_block, recorded_digests
from conversations.archive.blobs import has_blob, read_blob, size_of_blob
from conversations.domain.attachments import (
    DOCUMENT,
    IMAGE,
    Block,
    is_reference,
    kind_of,
    list_references,
)
from conversations.domain.errors import NotFound
from conversations.domain.formats.contents import name_block, text_block
from conversations.domain.messages import say
from conversations.domain.stream import DOCUMENTS, IMAGES, SEALED, ModelRequest
from conversations.domain.text import an_object, dump_json, estimate_tokens
from conversations.domain.tool_calls import is_tool_input
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

MAX_ATTACHED_BYTES = 28_000_000  # As base64, of a request's 32 MB
MAX_IMAGES, MAX_PAGES = 100, 100  # The provider's limits for one request

MISSING, TOO_MUCH, NO_ROOM, REFUSED = "missing", "too_much", "no_room", "refused"
NOT_TAKEN, REPEATED = "not_taken", "repeated"

REASONS = {
    MISSING: say("its content is not kept any more"),
    TOO_MUCH: say("with what was attached later the request would be too large"),
    NO_ROOM: say("it does not fit into the window"),
    REFUSED: say("the provider refused a request with what is attached"),
    NOT_TAKEN: say("this model cannot read it"),
    REPEATED: say("the same is attached again later"),
}


# Text attachments need no capability because every model reads text.
CAPABILITY_OF = {IMAGE: IMAGES, DOCUMENT: DOCUMENTS}


def describe_left_out(block: Block, reason: str) -> Block:
    note = f"[{block.get('title') or 'An attachment'} was attached here, and is left out: "
    text: Block = {"type": "text", "text": f"{note}{REASONS[reason]}.]"}
    return text | ({"cache_control": block["cache_control"]} if "cache_control" in block else {})


def withhold(
    session_pk: int,
    references: Sequence[Block],
    *,
    are_refused: bool = False,
    takes: Mapping[str, bool] | None = None,
) -> dict[str, str]:
    """Return the digests of attachments that cannot be sent, each with the reason.

    An attachment is withheld if its content is missing or does not belong to the session, or if the
    model cannot read it (``takes``). If the attachments are too much for one request, the oldest
    are withheld; the last copy of one that is ``REPEATED`` is sent. If ``are_refused`` is true, all
    are withheld because the provider has refused a request with them.
    """
    digests = [_digest(block) for block in references]
    if are_refused:
        return dict.fromkeys(digests, REFUSED)
    recorded = recorded_digests(session_pk, set(digests)) if digests else set()
    withheld: dict[str, str] = {}
    bytes_sent, images, pages = 0, 0, 0
    sent: set[str] = set()
    for block, digest in zip(reversed(references), reversed(digests), strict=True):
        if digest in withheld:
            continue
        if digest not in sent and not (digest in recorded and has_blob(digest)):
            withheld[digest] = MISSING
            continue
        if takes is not None and takes.get(CAPABILITY_OF.get(kind_of(block), "")) is False:
            withheld[digest] = NOT_TAKEN
            continue
        sums = (
            bytes_sent + size_of_blob(digest) * 4 // 3 + 4,
            images + (kind_of(block) == IMAGE),
            pages + int(block.get("pages") or 0),
        )
        is_too_much = sums[0] > MAX_ATTACHED_BYTES or sums[1] > MAX_IMAGES or sums[2] > MAX_PAGES
        if is_too_much and digest in sent:
            withheld[digest] = REPEATED
            continue
        sent.add(digest)
        bytes_sent, images, pages = sums
        if is_too_much:
            withheld[digest] = TOO_MUCH
    return withheld


def _digest(reference: Block) -> str:
    return str(reference["source"].get("digest", ""))


def expand_request(request: ModelRequest) -> ModelRequest:
    def expand(block: Block) -> Block:
        try:
            data = read_blob(_digest(block))
        except NotFound:
            return describe_left_out(block, MISSING)
        cache_control = (
            {"cache_control": block["cache_control"]} if "cache_control" in block else {}
        )
        media_type = str(block["source"].get("media_type", ""))
        return make_content_block(block, data, media_type=media_type) | cache_control

    if not any(list_references(message["content"]) for message in request.messages):
        return request
    messages = [
        message | {"content": _map(message["content"], expand)} for message in request.messages
    ]
    return replace(request, messages=messages)


def _map(blocks: list[Any], change: Callable[[Block], Block]) -> list[Any]:
    """Return the blocks with each reference changed, also inside tool results."""
    changed: list[Any] = []
    for block in blocks:
        if is_reference(block):
            changed.append(change(block))
        elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            changed.append(block | {"content": _map(block["content"], change)})
        else:
            changed.append(block)
    return changed


def name_images(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with each image's name before it, because an image block has no title."""
    named: list[Block] = []
    for block in blocks:
        if is_reference(block) and kind_of(block) == IMAGE:
            named.append({"type": "text", "text": f"[{block.get('title') or 'image'}]"})
        named.append(block)
    return named


type Message = dict[str, Any]

NO_RESULT = "This call was interrupted; it has no result."
CONTINUE_TEXT = "Go on exactly where your last answer was cut off."

_ID = re.compile(r"[^a-zA-Z0-9_-]")
THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCaps:
    """Limits in estimated tokens for one message, one tool result and one loaded skill.

    Longer texts are shortened, and attachments above ``attached`` are left out.
    """

    message: int
    result: int
    attached: int = 10_000_000
    skill: int = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPiece:
    """A turn as it stands in the window.

    ``cost`` is in estimated tokens, and ``full_cost`` is the cost without shortening.
    ``lacks_thinking`` is true if another model's thinking is left out. ``references`` are the
    blocks that refer to attachments.
    """

    number: int
    role: str
    blocks: list[Block]
    cost: int
    full_cost: int
    lacks_thinking: bool = False
    references: Sequence[Block] = ()


def replace_withheld(
    pieces: Sequence[WindowPiece], withheld: Mapping[str, str]
) -> list[WindowPiece]:
    """Return the pieces with a sentence in place of each withheld attachment."""
    copies_left = Counter(_digest(block) for piece in pieces for block in piece.references)

    def put(block: Block) -> Block:
        digest = _digest(block)
        copies_left[digest] -= 1
        reason = withheld.get(digest)
        if reason is None or (reason == REPEATED and not copies_left[digest]):
            return block
        return describe_left_out(block, reason)

    return [replace(piece, blocks=_map(piece.blocks, put)) for piece in pieces]


def make_piece(turn: StoredTurn, *, model: str, caps: MessageCaps) -> WindowPiece:
    """Return the turn's content blocks for this model, shortened to the caps."""
    blocks: list[Block] = []
    if turn.role == USER:
        blocks = _user_blocks(turn)
    elif turn.role == ASSISTANT and turn.stop_reason != "refusal":
        blocks = _assistant_blocks(turn, model=model)
    elif turn.role == SYSTEM and read_metadata(turn).get(MODEL_NOTE) is True:
        blocks = _text(f"[{turn.content}]")
    elif turn.role == TOOL:
        blocks = [_result_block(turn)]
    full_cost = sum(map(cost_of_block, blocks))
    # Keep as many attachments as fit, the last ones first.
    left_out: list[Block] = []
    attachments = list_references(blocks)
    attached = sum(map(cost_of_block, attachments))
    while attached > caps.attached:
        left_out.append(attachments[len(left_out)])
        attached -= cost_of_block(left_out[-1])

    def leave_out(block: Block) -> Block:
        if any(block is attachment for attachment in left_out):
            return describe_left_out(block, NO_ROOM)
        return block

    fitting = _map(blocks, leave_out) if left_out else blocks
    cap = caps.message
    if turn.role == TOOL:
        # Half of a skill misleads the model, and loading it again would give no more of it.
        cap = caps.skill if turn.tool_name == LOAD_SKILL else caps.result
    short = shorten_blocks(fitting, cap=cap, turn=turn.number)
    cost = full_cost if short is blocks else sum(map(cost_of_block, short))
    return WindowPiece(
        number=turn.number,
        role=turn.role,
        blocks=short,
        cost=cost,
        full_cost=full_cost,
        lacks_thinking=turn.role == ASSISTANT and not _is_own(turn, model) and _has_thinking(turn),
        references=list_references(short),
    )


def join_pieces(pieces: Iterable[WindowPiece]) -> list[Message]:
    """Return the messages of these pieces, oldest first, beginning with a person's message.

    The list is empty if no piece has any content.
    """
    messages: list[Message] = []
    used_ids: set[str] = set()
    # Calls without a result yet: the ids that they have in the request, by their id in the archive.
    waiting: dict[str, list[str]] = {}
    # Notes that came while calls were waiting. The results have to follow the calls immediately.
    held_notes: list[Block] = []
    for piece in pieces:
        if piece.role == TOOL:
            [result] = piece.blocks
            if open_ids := waiting.get(result["tool_use_id"]):
                _add(messages, "user", [result | {"tool_use_id": open_ids.pop(0)}])
            continue
        if piece.role == SYSTEM and any(waiting.values()):
            held_notes += piece.blocks
            continue
        _end_calls(messages, waiting, held_notes)
        if piece.role in (USER, SYSTEM):
            _add(messages, "user", piece.blocks)
        elif piece.role == ASSISTANT:
            blocks: list[Block] = []
            for block in piece.blocks:
                if block.get("type") == "tool_use":
                    # Some servers restart the numbering of calls in each answer, but the provider
                    # requires unique ids.
                    call_id, number = block["id"], 1
                    while call_id in used_ids:
                        number += 1
                        call_id = f"{block['id'][:110]}_again_{number}"
                    used_ids.add(call_id)
                    waiting.setdefault(block["id"], []).append(call_id)
                    block = block if call_id == block["id"] else block | {"id": call_id}
                blocks.append(block)
            _add(messages, "assistant", blocks)
    _end_calls(messages, waiting, held_notes)
    while messages:
        first = messages[0]
        content = [block for block in first["content"] if block.get("type") != "tool_result"]
        if first["role"] == "user" and content:
            first["content"] = content
            break
        messages.pop(0)
    return messages


def write_calls_as_text(messages: list[Message]) -> list[Message]:
    """Return the messages for a model that is given no tools.

    Calls and their results become text. Attachments of results are kept.
    """
    names: dict[str, str] = {}

    def write(block: Block) -> list[Block]:
        if block.get("type") == "tool_use":
            names[block["id"]] = block["name"]
            return _text(f"[Called {block['name']} with {dump_json(block.get('input') or {})}]")
        if block.get("type") != "tool_result":
            return [block]
        content = block.get("content") or ""
        blocks = _text(content) if isinstance(content, str) else content
        word = "Error" if block.get("is_error") else "Result"
        return [*_text(f"[{word} of {names.get(block['tool_use_id'], 'a tool')}:]"), *blocks]

    return [
        message | {"content": [new for block in message["content"] for new in write(block)]}
        for message in messages
    ]


def _end_calls(
    messages: list[Message], waiting: dict[str, list[str]], held_notes: list[Block]
) -> None:
    """Answer calls that have no result, and add the notes that were held back for the results."""
    for call_id in chain.from_iterable(waiting.values()):
        result = {"type": "tool_result", "tool_use_id": call_id}
        _add(messages, "user", [result | {"is_error": True, "content": NO_RESULT}])
    waiting.clear()
    _add(messages, "user", held_notes)
    held_notes.clear()


def _add(messages: list[Message], role: str, blocks: list[Block]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].extend(blocks)
    else:
        messages.append({"role": role, "content": list(blocks)})


def _text(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


# Types of blocks in a person's message that the model is given.
GIVEN = ("text", "image", "document", "search_result")


def _user_blocks(turn: StoredTurn) -> list[Block]:
    try:
        blocks = read_blocks(turn) or []
    except MalformedTurn:
        blocks = []
    sendable = []
    for block in blocks:
        kind, source = block.get("type"), block.get("source")
        # Messages from other programs may contain blocks that would have to be loaded from
        # somewhere, or that the provider would refuse. They are replaced by a text.
        is_named = kind not in GIVEN or (kind in ATTACHED_TOKENS and not isinstance(source, dict))
        place = an_object(source)
        if is_named or place.get("type") == "file":
            sendable.append(name_block(block))
        elif place.get("type") == "url":
            sendable.append(text_block(f"[{kind}: {place.get('url')}, which is not loaded]"))
        elif not _is_blank(block):
            sendable.append(block)
    return name_images(sendable) or _text(turn.content)


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
    # Thinking is signed for the model that produced it, as is the sealed data of a call. Other
    # models refuse both. Models of another protocol refuse sealed data from any model, so it is
    # sent only if the turn names its model.
    same_model = _is_own(turn, model)
    if read_metadata(turn).get("model") != model:
        blocks = [{name: block[name] for name in block if name != SEALED} for block in blocks]
    sendable = [
        _sendable_call(block) if block.get("type") == "tool_use" else block
        for block in blocks
        if not _is_blank(block) and (same_model or block.get("type") not in THINKING)
    ]
    # Thinking at the end was cut off before it was signed, so the provider would refuse it.
    while sendable and sendable[-1].get("type") in THINKING:
        sendable.pop()
    return sendable


def _is_own(turn: StoredTurn, model: str) -> bool:
    """Return whether the turn is by this model, as far as is known."""
    return bool(read_metadata(turn).get("model", model) == model)


def _has_thinking(turn: StoredTurn) -> bool:
    with suppress(MalformedTurn):
        return any(block.get("type") in THINKING for block in read_blocks(turn) or ())
    return False


def _sendable_call(block: Block) -> Block:
    arguments = block.get("input")
    return block | {
        "id": _sendable_id(str(block.get("id", ""))),
        "name": _ID.sub("_", str(block.get("name") or "tool"))[:128],
        "input": arguments if is_tool_input(arguments) else {},
    }


def _sendable_id(call_id: str) -> str:
    return _ID.sub("_", call_id)[:128] or "unnamed"


def _result_block(turn: StoredTurn) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": _sendable_id(turn.tool_call_id or "")}
    if turn.content.strip():
        result["content"] = turn.content
    if read_metadata(turn).get("ok") is False:  # A failed call has only text
        result["is_error"] = True
        result.setdefault("content", "The tool failed without a message.")
        return result
    with suppress(MalformedTurn):
        references = [block for block in read_blocks(turn) or [] if is_reference(block)]
        if references:
            result["content"] = [*_text(turn.content), *name_images(references)]
    return result


# Shortening of texts that are too long for the window. The archive keeps them whole.

MIN_SHORTENED_TOKENS = 8  # Texts are not shortened below this size
MIN_NOTICE_TOKENS = 100  # Below this cap, the notice of a cut is only a short mark

# An image costs (width x height) / 750 tokens, about 1,600 at the size to which the provider scales
# it down. A page of a document costs 1,500 to 3,000 (see the provider's pages on vision and PDF
# support). The reported usage corrects both.
ATTACHED_TOKENS = {"image": 1_600, "document": 6_000}

BLOCK_FRAME_TOKENS = 12  # For the type, ids and names around a block's text

# The key whose value is shortened, by the type of the block.
SHORTENED = {"text": "text", "tool_use": "input", "tool_result": "content"}


def shorten_text(text: str, *, cap: int, turn: int) -> str:
    """Return the beginning and the end of a text that costs more than ``cap`` estimated tokens.

    A notice between them says where the rest is.
    """
    cost = estimate_tokens(text)
    if cost <= cap:
        return text
    keep = int(len(text) * cap / cost)
    while True:
        head = keep * 7 // 10
        tail = keep - head
        notice = f"[… turn {turn} …]"
        if cap >= MIN_NOTICE_TOKENS:
            left_out = f"{len(text) - keep:,} characters are left out here"
            notice = f"\n[… {left_out}; turn {turn} in the archive has all of it …]\n"
        short = text[:head] + notice + (text[-tail:] if tail else "")
        if keep < 20 or estimate_tokens(short) <= cap:
            return short
        keep = keep * 7 // 8


def cost_of_block(block: Block) -> int:
    """Return the estimated tokens of a content block."""
    kind = block.get("type")
    if kind == "text":
        return estimate_tokens(str(block.get("text", ""))) + 3
    if kind == "tool_result":
        content = block.get("content")
        if isinstance(content, list):
            items = [item for item in content if isinstance(item, dict)]
            return sum(map(cost_of_block, items)) + BLOCK_FRAME_TOKENS
        return estimate_tokens(content if isinstance(content, str) else "") + BLOCK_FRAME_TOKENS
    if kind == "tool_use":
        return _cost_of_value(block.get("input")) + BLOCK_FRAME_TOKENS + 4
    if kind == "thinking":
        return estimate_tokens(str(block.get("thinking", "")) + str(block.get("signature", "")))
    if kind in ATTACHED_TOKENS:
        # The estimate from when the file was attached
        if is_reference(block) and isinstance(block["source"].get("tokens"), int):
            return int(block["source"]["tokens"]) + BLOCK_FRAME_TOKENS
        return ATTACHED_TOKENS[str(kind)]
    return _cost_of_value(block) + BLOCK_FRAME_TOKENS


def _cost_of_value(value: Any) -> int:
    cost, waiting = 0, [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                cost += estimate_tokens(text) + 1
            case list() as items:
                cost += len(items)
                waiting += items
            case dict() as names:
                cost += sum(estimate_tokens(str(name)) + 2 for name in names)
                waiting += names.values()
            case _:
                cost += 2
    return cost


def shorten_blocks(blocks: list[Block], *, cap: int, turn: int) -> list[Block]:
    """Return the blocks with their texts shortened in proportion, to cost about ``cap`` together.

    Signed blocks and blocks that are not text are not changed.
    """
    cost = sum(map(cost_of_block, blocks))
    if cost <= cap:
        return blocks
    fixed = sum(map(_fixed_cost, blocks))
    share = max(0.0, (cap - fixed) / max(1, cost - fixed))

    def shorten(value: Any) -> Any:
        if isinstance(value, str):
            max_tokens = max(MIN_SHORTENED_TOKENS, int(estimate_tokens(value) * share))
            return shorten_text(value, cap=max_tokens, turn=turn)
        if isinstance(value, list):
            return [shorten(item) for item in value]
        if isinstance(value, dict) and value.get("type") not in ATTACHED_TOKENS:
            return {key: shorten(item) for key, item in value.items()}
        return value

    names = [SHORTENED.get(str(block.get("type")), "") for block in blocks]
    return [
        block | {name: shorten(block[name])} if name in block else block
        for block, name in zip(blocks, names, strict=True)
    ]


def _fixed_cost(block: Block) -> int:
    """Return the part of a block's cost that shortening does not change.

    The provider requires signed blocks back unchanged.
    """
    kind = block.get("type")
    if kind in THINKING or kind in ATTACHED_TOKENS:
        return cost_of_block(block)
    content = block.get("content") if kind == "tool_result" else None
    if not isinstance(content, list):
        return 0
    return sum(_fixed_cost(item) for item in content if isinstance(item, dict))
