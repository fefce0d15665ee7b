"""Attachments in the window: references, and their contents in the request.

While a window is made, and in its digest, an attachment is what the turn holds: a reference with
the digest of its content. Only the request that goes out has the bytes. What cannot go along is
named in a sentence in its place, decided once and written into the manifest, so that the request
can be made again when a content is gone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
from conversations.domain.stream import ModelRequest

MAX_BYTES = 28_000_000  # Of a request's 32 MB, what attachments may take as base64
MAX_IMAGES, MAX_PAGES = 100, 100  # Of one request, for the provider

MISSING, TOO_MUCH, NO_ROOM, REFUSED = "missing", "too_much", "no_room", "refused"

REASONS = {
    MISSING: "its content is not kept any more",
    TOO_MUCH: "with what was attached later the request would be too large",
    NO_ROOM: "it does not fit into the window",
    REFUSED: "the provider refused a request with what is attached",
}


def note_left_out(block: Block, reason: str) -> Block:
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
        blocks, lambda b: [note_left_out(b, NO_ROOM)] if any(b is other for other in gone) else [b]
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
        return [note_left_out(block, reason)] if reason else [block]

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
        return [note_left_out(block, MISSING)]
    kept = {"cache_control": block["cache_control"]} if "cache_control" in block else {}
    media_type = str(block["source"].get("media_type", ""))
    return [make_content_block(block, data, media_type=media_type) | kept]
