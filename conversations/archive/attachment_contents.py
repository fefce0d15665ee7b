"""What a block that names an attachment stands for, as a block of the Messages API."""

import base64
from collections.abc import Callable
from uuid import UUID

from conversations.domain.attachments import (
    IMAGE,
    TEXT,
    TEXT_TYPE,
    Block,
    is_reference,
    kind_of,
)
from conversations.domain.errors import NotFound
from conversations.models import Attachment

from .blobs import read_blob
from .contents import decode_text

REFERENCE_KEYS = frozenset(
    ("type", "source", "title", "attachment", "size", "media_type", "width", "height", "pages")
)
"""What is ours in such a block; the other keys came with it."""


def make_content_block(block: Block, data: bytes, *, media_type: str) -> Block:
    """The block with its content in place of the reference; a document has a title."""
    if kind_of(block) == IMAGE:
        return {"type": "image", "source": _encode(data, media_type)}
    document: Block = {"type": "document", "title": str(block.get("title") or "") or "document"}
    if kind_of(block) == TEXT:
        text = decode_text(data) or "[no text]"
        return document | {"source": {"type": "text", "media_type": TEXT_TYPE, "data": text}}
    return document | {"source": _encode(data, media_type)}


def _encode(data: bytes, media_type: str) -> dict[str, str]:
    return {
        "type": "base64",
        "media_type": media_type,
        "data": base64.b64encode(data).decode(),
    }


def content_opener(session_pk: int) -> Callable[[Block], list[Block]]:
    """Gives each block with the file that was attached, not the smaller copy that the
    model got; a text where it is not kept any more, or is none of the session's. Blocks
    without one stay as they are."""

    def open_content(block: Block) -> list[Block]:
        if not is_reference(block):
            return [block]
        try:
            digest, media_type = _find(session_pk, block)
            data = read_blob(digest)
        except NotFound:
            name = block.get("title") or "An attachment"
            return [{"type": "text", "text": f"[{name} was attached; it is not kept any more.]"}]
        came_with = {k: value for k, value in block.items() if k not in REFERENCE_KEYS}
        return [make_content_block(block, data, media_type=media_type) | came_with]

    return open_content


def _find(session_pk: int, block: Block) -> tuple[str, str]:
    """Digest and media type, as recorded. Raises NotFound where there is no record: what
    the block says itself is anybody's claim."""
    uuid = _uuid_of(block)
    rows = Attachment.objects.filter(session=session_pk, uuid=uuid) if uuid else None
    found = rows.values_list("digest", "media_type").first() if rows is not None else None
    if found is None:
        raise NotFound("This file is not on record.")
    return found


def _uuid_of(block: Block) -> UUID | None:
    try:
        return UUID(str(block.get("attachment")))
    except ValueError:
        return None
