"""Helpers with which the readers of other programs' exports make lines of the interchange file.

A reader knows one format and does not write to the archive. It yields lines
(``docs/interchange.md``), each with the place where a person would find it in the export.

The blocks of a turn hold only content that can be sent to the model again: text, thinking, tool
calls, and references to files. All other content goes into ``source``, which is stored in the
turn's metadata.
"""

import base64
import mimetypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePath
from typing import Any
from uuid import UUID, uuid5

from django.conf import settings

from conversations.archive.attachments import attachment_block, facts_of
from conversations.archive.file_types import decode_text, examine
from conversations.domain.attachments import PDF_TYPE, clean_name
from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import dump_json, has_more_values, load_json
from conversations.domain.turns import INDICATED_KINDS
from conversations.models import Attachment

type Object = dict[str, Any]

# The namespace of uuids for objects that have none of their own.
NAMESPACE = UUID("0f7f3a52-8a0c-5b0e-9f0a-5f6f0a1d2c3b")

MAX_ITEM_VALUES = 2_000_000  # JSON values in one conversation or line.


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line of the interchange file. ``place`` is where a person finds it in the source."""

    place: str
    value: Object


@dataclass(frozen=True, slots=True)
class ImportNote:
    """A message of a reader to the person who imports.

    If ``is_skipped``, something could not be read and ``text`` is the reason. Otherwise nothing is
    lost."""

    place: str
    text: str
    is_skipped: bool = True


type Item = ImportLine | ImportNote

# The columns by which the content of two turns is compared: all but name, time and metadata.
WORDS = ("role", "content", "blocks", "tool_calls", "tool_call_id")

type Words = tuple[str | None, ...]


class ImportHistory:
    """The questions that a reader may ask of the archive. This class knows no earlier import."""

    def resolve(self, uuid: UUID) -> UUID:
        """Return the uuid that the archive uses for a session with this uuid in a file."""
        return uuid

    def last_imported_node(self, uuid: UUID) -> tuple[str, bool] | None:
        """Return the tree node of the session's last imported turn, or None if there is none.

        The flag is True if the session has later turns in the archive, so that no imported turn
        can follow."""
        return None

    def imported_branches(self, uuid: UUID) -> tuple[int, set[UUID]]:
        """Return the highest branch number in a session's branch titles, and the branches' uuids.

        The number is 1 if there is no branch. The uuids are those in the archive."""
        return 1, set()

    def imported_words(self, uuid: UUID) -> Iterator[Words]:
        """Yield the ``WORDS`` of a session's turns, in order."""
        return iter(())


def stable_uuid(*parts: str) -> UUID:
    """Return a uuid made of the parts. The same parts always give the same uuid."""
    return uuid5(NAMESPACE, "\x1f".join(parts).encode("utf-8", "surrogatepass"))


def is_uuid(value: Any) -> bool:
    try:
        return bool(UUID(value))
    except (ValueError, AttributeError, TypeError):
        return False


def own_uuid(source: str, value: Any) -> UUID:
    """Return a conversation's id in its source if that is a uuid, else a uuid made of it."""
    return UUID(value) if is_uuid(value) else stable_uuid(source, str(value))


def without(value: Object, *names: str) -> Object:
    """Return the object without these names and without empty values, for the metadata."""
    return {name: item for name, item in value.items() if name not in names and item not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, "", [], {})

MAX_CHARACTER_BYTES = 4

MAX_KEPT_BYTES = 1_000_000  # Larger contents that cannot be attached are not kept in the metadata.


@dataclass(slots=True)
class TurnFiles:
    """The files of one turn.

    ``blocks`` are the turn's blocks for them and ``lines`` their attachment lines. ``left``
    describes files that could not be attached. ``lost`` has messages for the person about content
    that was not kept."""

    session: UUID
    node: str
    blocks: list[Object] = field(default_factory=list)
    lines: list[Object] = field(default_factory=list)
    left: list[Object] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def add(self, data: bytes, name: str) -> None:
        clean = clean_name(name)
        if parts := _parts_of(data):
            path = PurePath(clean)
            for number, part in enumerate(parts, 1):
                self.add(part.encode(), f"{path.stem} ({number} of {len(parts)}){path.suffix}")
            return
        try:
            content = examine(data, clean)
        except Rejected as error:
            encoded = base64.b64encode(data).decode() if len(data) <= MAX_KEPT_BYTES else ""
            self.left.append(
                {"name": name, "size": len(data), "reason": error.message, "data": encoded}
            )
            self._report_loss(len(data), clean, error.message)
            return
        attachment = Attachment(
            uuid=stable_uuid(str(self.session), self.node, str(len(self.blocks))),
            digest=sha256(data).hexdigest(),
            sent=sha256(content.sent or data).hexdigest(),
            **facts_of(content, name=clean, size=len(data)),
        )
        line = {
            "type": "attachment",
            "uuid": str(attachment.uuid),
            "name": clean,
            "size": len(data),
            "digest": attachment.digest,
            "tokens": content.tokens,
            "data": base64.b64encode(data).decode(),
        }
        if content.sent is not None:
            line["sent_digest"], line["sent_type"] = attachment.sent, attachment.sent_type
            line["sent_data"] = base64.b64encode(content.sent).decode()
        self.blocks.append(attachment_block(attachment))
        self.lines.append(line)

    def add_base64(self, text: str, name: str) -> None:
        try:
            self.add(base64.b64decode(text, validate=True), name)
        except ValueError:
            reason = say("not valid base64")
            encoded = text if len(text) <= MAX_KEPT_BYTES else ""
            self.left.append({"name": name, "reason": reason, "data": encoded})
            self._report_loss(len(text), clean_name(name), reason)

    def _report_loss(self, size: int, name: str, reason: str) -> None:
        if size > MAX_KEPT_BYTES:
            text = say(
                "only the name of %(name)s was imported: %(reason)s", name=name, reason=reason
            )
            self.lost.append(text)

    def add_missing(self, name: str, described: Object, *, media_type: str = "") -> None:
        """Add a file whose content is missing from the export, so that a row shows its name."""
        media_type = media_type or mimetypes.guess_type(name)[0] or ""
        kind = "document" if media_type == PDF_TYPE else media_type.split("/")[0]
        self.left.append(described)
        self.blocks.append(
            {"type": kind if kind in INDICATED_KINDS else "file", "title": clean_name(name)}
        )

    def add_sources(self, blocks: Iterable[Object]) -> None:
        """Attach the images and documents whose content is in the blocks."""
        for block in filter(has_source, blocks):
            source, name = block["source"], str(block.get("title") or block["type"])
            kind, data = source.get("type"), source.get("data")
            if kind == "base64" and isinstance(data, str):
                self.add_base64(data, name)
            elif kind == "text" and isinstance(data, str):
                self.add(data.encode("utf-8", "replace"), name)
            else:
                self.left.append(block)

    def all(self) -> Object:
        """Return all files as metadata, for a turn that cannot have attachments."""
        return {"files": [*self.left, *self.blocks]} if self.left or self.blocks else {}


def _parts_of(data: bytes) -> list[str]:
    """Split a text that is too long for one attachment. Return [] for all other data."""
    max_chars, max_bytes = settings.LOOM.max_message_chars, settings.LOOM.max_attachment_bytes
    text = None if data.startswith(b"%PDF-") else decode_text(data)
    if text is None or (len(text) <= max_chars and len(data) <= max_bytes):
        return []
    size = max(1, min(max_chars, max_bytes // MAX_CHARACTER_BYTES))
    parts: list[str] = []
    start = 0
    while start < len(text):
        end = start + size
        if end < len(text):  # split at the end of a line if there is one
            end = text.rfind("\n", start + size // 2, end) + 1 or end
        parts.append(text[start:end])
        start = end
    return parts


def has_source(block: Object) -> bool:
    return block.get("type") in FILE_KINDS and isinstance(block.get("source"), dict)


def user_turn(text: str, files: TurnFiles) -> Object:
    turn: Object = {"role": "user", "content": text}
    if files.blocks:
        turn["blocks"] = [*files.blocks, *([{"type": "text", "text": text}] if text else [])]
    return turn | ({"files": files.left} if files.left else {})


def assistant_turn(blocks: Sequence[Object], *, model: str) -> Object:
    """Return an assistant turn of the blocks.

    ``model`` is the model that wrote the thinking. Thinking is sent only to the model of the turn,
    so a turn with unsigned thinking, which the provider refuses, gets a model name that does not
    exist."""
    sent_blocks = [block for block in blocks if str(block.get("type")) in _KEYS]
    texts = [str(block.get("text") or "") for block in sent_blocks if block["type"] == "text"]
    turn: Object = {"role": "assistant", "content": join_texts(texts)}
    if any(block["type"] != "text" for block in sent_blocks) or len(texts) > 1:
        turn["blocks"] = [
            {name: block[name] for name in _KEYS[block["type"]] if name in block}
            for block in sent_blocks
        ]
    if any(block["type"] == "thinking" and not block.get("signature") for block in sent_blocks):
        model = f"{model} (unsigned)"
    return turn | ({"model": model} if model else {}) | left_of_blocks(blocks)


# The types of blocks that can be sent to the model again, with the keys that are sent.
_KEYS = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input"),
}

FILE_KINDS = ("image", "document")


def left_of_blocks(blocks: Iterable[Object], *, name: str = "left_of_blocks") -> Object:
    """Return the blocks and keys of blocks that are not in a turn, under ``name``.

    These are whole blocks of other types, and keys that are not sent to the model."""
    left_out = []
    for block in blocks:
        sent_keys = _KEYS.get(str(block.get("type")))
        unsent = without(block, *sent_keys) if sent_keys else block
        if unsent:
            left_out.append({"type": block.get("type")} | unsent)
    return {name: left_out} if left_out else {}


def result_turn(
    text: str, *, call_id: str, name: str, ok: bool, files: TurnFiles | None = None
) -> Object:
    turn: Object = {"role": "tool", "content": text, "tool_call_id": call_id, "tool_name": name}
    turn["metadata"] = {"ok": ok}
    if files is not None and files.blocks:
        turn["blocks"] = files.blocks
    return turn | ({"files": files.left} if files is not None and files.left else {})


def read_result(content: Any, files: TurnFiles) -> str:
    """Return the text of a tool result, a string or a list of blocks. Attach its images."""
    if not isinstance(content, list):
        if content is None:
            return ""
        return content if isinstance(content, str) else dump_json(content)
    texts: list[str] = []
    for block in content:
        if not isinstance(block, dict):
            texts.append(str(block))
        elif block.get("type") == "text":
            texts.append(str(block.get("text") or ""))
        elif has_source(block):
            files.add_sources([block])
        else:
            texts.append(dump_json(block))
    return "\n\n".join(texts)


def load_given(text: str) -> Any:
    """Parse JSON that is inside a text of the file.

    Raise ValueError if it is not JSON or has more than MAX_ITEM_VALUES values."""
    if has_more_values(text, MAX_ITEM_VALUES):
        raise ValueError("too many values")
    return load_json(text)


def as_input(text: str, *, name: str = "text") -> Object:
    """Return the arguments of a tool call given as text: a JSON object, or the text as ``name``."""
    try:
        value = load_given(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {name: text}


def join_texts(values: Iterable[Any]) -> str:
    return "\n\n".join(value for value in values if isinstance(value, str) and value)


# Reading values of an export that may have any type.


def objects(value: Any) -> list[Object]:
    """Return the objects in a list; [] if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def blocks_of(content: Any) -> list[Object]:
    """Return the content's blocks. The content may be a block, a text, or a list of both."""
    items = content if isinstance(content, list) else [content]
    texts = ({"type": "text", "text": item} if a_text(item) else item for item in items)
    return [item for item in texts if isinstance(item, dict)]


def a_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def ids(value: Any) -> list[str]:
    """Return the non-empty strings in a list; [] if the value is not a list."""
    return [item for item in value if a_text(item)] if isinstance(value, list) else []
