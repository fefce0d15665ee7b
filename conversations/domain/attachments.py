"""Attachments as values: their kinds, their names, and the blocks of turns that refer to them.

A turn does not hold the content. Its block names the blob by digest, and has all that a row and a
token estimate need. So both are the same whether or not the content still exists::

    {"type": "image", "source": {"type": "attachment", "digest", "media_type", "tokens"},
     "title": name, "attachment": uuid, "size", "width", "height"}

``type`` is ``image`` or ``document``. A text is a document of the type text/plain.
"""

import re
from collections.abc import Iterable
from typing import Any

from .messages import say
from .text import HIDING, load_json

type Block = dict[str, Any]

IMAGE, DOCUMENT, TEXT = "image", "document", "text"
PDF_TYPE, TEXT_TYPE = "application/pdf", "text/plain"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
ACCEPTED = say("Images (PNG, JPEG, GIF, WebP), PDF and text can be attached.")

# The text is the same for a file that does not exist and for a file of another person.
HIDDEN = say("This file does not exist, or it is not yours.")
MAX_NAME_BYTES = 255
MAX_PDF_LEAD_BYTES = 1024  # How far readers look for the beginning of a PDF


def clean_name(name: str) -> str:
    """Return a file's name in a form that can be shown and saved.

    The name has no folders, no control characters, no characters that change the direction of
    writing, and at most 255 bytes. It is never empty.
    """
    last = re.split(r"[/\\]", name)[-1]
    shown = " ".join(HIDING.sub("", last).split()).strip(". ")
    if len(shown.encode()) <= MAX_NAME_BYTES:
        return shown or "file"
    # Keep the ending, because it tells the type of the file.
    stem, dot, ending = shown.rpartition(".")
    if not dot or len(ending) > 16:
        stem, dot, ending = shown, "", ""
    room = MAX_NAME_BYTES - len((dot + ending).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + ending


def find_pdf(data: bytes) -> int:
    """Return where a PDF begins in the data, or -1 if nowhere.

    Mail programs and web servers may have put bytes before it.
    """
    start = data.find(b"%PDF-", 0, MAX_PDF_LEAD_BYTES)
    # An archive has zero bytes before the first file in it, and may contain other files.
    return start if b"\0" not in data[: max(start, 0)] else -1


def is_pdf(data: bytes, name: str, *, is_text: bool) -> bool:
    start = find_pdf(data)
    # Text that only mentions the word has another name.
    return start == 0 or (start > 0 and (not is_text or name.lower().endswith(".pdf")))


def is_reference(block: Any) -> bool:
    """Whether the block refers to an attachment instead of holding its content."""
    if not isinstance(block, dict) or block.get("type") not in (IMAGE, DOCUMENT):
        return False
    source = block.get("source")
    return isinstance(source, dict) and source.get("type") == "attachment"


def list_references(blocks: Iterable[Any]) -> list[Block]:
    """Return the references among these blocks and inside results of tools, in order."""
    references: list[Block] = []
    for block in blocks:
        if is_reference(block):
            references.append(block)
        elif isinstance(block, dict) and block.get("type") == "tool_result":
            content = block.get("content")
            references += list_references(content) if isinstance(content, list) else []
    return references


def read_references(blocks: str | None) -> list[Block]:
    """Return the references in a turn's stored blocks, or an empty list if they are damaged."""
    try:
        value = load_json(blocks)
    except ValueError:
        return []
    return list_references(value if isinstance(value, list) else [])


def kind_of(block: Block) -> str:
    """Return the kind of the attachment to which a block refers."""
    is_text = block["source"].get("media_type") == TEXT_TYPE
    return TEXT if is_text else str(block["type"])


def shown_attachment(block: Block) -> dict[str, Any]:
    """Return the data that a person's row shows of the attachment to which a block refers."""
    texts = {
        "uuid": block.get("attachment"),
        "name": block.get("title"),
        "kind": kind_of(block),
        "media_type": block.get("media_type") or block["source"].get("media_type"),
    }
    numbers = {name: block.get(name) for name in ("size", "width", "height")}
    return {name: str(value or "") for name, value in texts.items()} | {
        name: value for name, value in numbers.items() if type(value) is int and value >= 0
    }
