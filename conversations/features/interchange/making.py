"""What the readers of other programs' history yield: lines of the interchange file.

A reader knows one format and nothing of the archive: it gives lines (``docs/interchange.md``)
with the place where a person would look for each.

The blocks of a turn hold only what the model can be given again: text, thinking, calls,
and files by reference. Whatever else there was is told in ``source``, which ends up in the
turn's metadata.
"""

import base64
import binascii
import mimetypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from conversations.domain.attachments import PDF_TYPE, clean_name
from conversations.domain.errors import Rejected
from conversations.domain.text import dump_json, load_json
from conversations.domain.turns import INDICATED_KINDS

from .attachments import describe_file

# What readers yield.


type Object = dict[str, Any]

NAMESPACE = UUID("0f7f3a52-8a0c-5b0e-9f0a-5f6f0a1d2c3b")
"""From which uuids are made for what has none of its own."""


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line of the interchange file. ``place``: where a person finds it in the source."""

    place: str
    value: Object


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that could not be read, with the reason."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the person should know, though nothing is lost."""

    place: str
    text: str


type Item = ImportLine | Skipped | Note


@dataclass(frozen=True, slots=True)
class Reached:
    """How far an earlier import of a tree got in a session: the last node, and whether the
    session went on in the archive, so that nothing can follow it."""

    node: str
    is_continued: bool


type Words = tuple[str | None, ...]
"""What a turn says, to compare it with another."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What a reader may ask of the archive: how far it got in a session, what the
    session's uuid is there, what its turns say, and what the turn of a line would say
    (None: it cannot be one)."""

    reached: Callable[[UUID], Reached | None] = lambda _: None
    resolve: Callable[[UUID], UUID] = lambda uuid: uuid
    told: Callable[[UUID], Iterator[Words]] = lambda _: iter(())
    words: Callable[[Object], Words | None] = lambda _: None


def stable_uuid(*parts: str) -> UUID:
    """The same parts always give the same uuid."""
    return uuid5(NAMESPACE, "\x1f".join(parts).encode("utf-8", "surrogatepass"))


def own_uuid(source: str, value: Any) -> UUID:
    """The id that a source gives its conversation, where that is a uuid; else one made
    of it."""
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        return stable_uuid(source, str(value))


def without(value: Object, *names: str) -> Object:
    """What is left of an object, and is not empty: for the metadata."""
    return {name: item for name, item in value.items() if name not in names and item not in _EMPTY}


_EMPTY: tuple[Any, ...] = (None, "", [], {})


SENDABLE = ("text", "thinking", "redacted_thinking", "tool_use")


MAX_KEPT = 1_000_000
"""Bytes of a content that cannot be attached, which is kept in the metadata then."""


@dataclass(slots=True)
class Files:
    """What is attached to one turn: blocks for the turn, lines for the contents, and what
    could be neither."""

    session: UUID
    node: str
    blocks: list[Object] = field(default_factory=list)
    lines: list[Object] = field(default_factory=list)
    left: list[Object] = field(default_factory=list)

    def add(self, data: bytes, name: str) -> None:
        uuid = stable_uuid(str(self.session), self.node, str(len(self.blocks)))
        try:
            block, line = describe_file(data, uuid=uuid, name=name)
        except Rejected as error:
            kept = base64.b64encode(data).decode() if len(data) <= MAX_KEPT else ""
            self.left.append(
                {"name": name, "size": len(data), "reason": error.message, "data": kept}
            )
            return
        self.blocks.append(block)
        self.lines.append(line)

    def add_base64(self, text: str, name: str) -> None:
        try:
            self.add(base64.b64decode(text, validate=True), name)
        except (binascii.Error, ValueError):
            kept = text if len(text) <= MAX_KEPT else ""
            self.left.append({"name": name, "reason": "not base64", "data": kept})

    def add_missing(self, name: str, described: Object, *, media_type: str = "") -> None:
        """A file of which only the name came along: a row says that it was there."""
        media_type = media_type or mimetypes.guess_type(name)[0] or ""
        kind = "document" if media_type == PDF_TYPE else media_type.split("/")[0]
        self.left.append(described)
        self.blocks.append(
            {"type": kind if kind in INDICATED_KINDS else "file", "title": clean_name(name)}
        )


def user_turn(text: str, files: Files | None = None) -> Object:
    turn: Object = {"role": "user", "content": text}
    if files is not None and files.blocks:
        words = [{"type": "text", "text": text}] if text else []
        turn["blocks"] = [*files.blocks, *words]
    return turn | _left_of(files)


def assistant_turn(blocks: Sequence[Object], *, model: str) -> Object:
    """``model`` is whose thinking it is; another model is not given it, and none what is
    not signed, since the provider refuses that."""
    kept = [block for block in blocks if block.get("type") in SENDABLE]
    texts = [str(block.get("text") or "") for block in kept if block["type"] == "text"]
    turn: Object = {"role": "assistant", "content": "\n\n".join(text for text in texts if text)}
    if any(block["type"] != "text" for block in kept) or len(texts) > 1:
        turn["blocks"] = [
            {name: block[name] for name in _KEYS[block["type"]] if name in block} for block in kept
        ]
    if any(block["type"] == "thinking" and not block.get("signature") for block in kept):
        model = f"{model} (unsigned)"
    left = left_of_blocks(blocks)
    return turn | ({"model": model} if model else {}) | ({"left_of_blocks": left} if left else {})


_KEYS = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input"),
}


def left_of_blocks(blocks: Iterable[Object]) -> list[Object]:
    """What of these blocks is in no turn: whole ones of other kinds, and keys that are not
    sent again."""
    left = []
    for block in blocks:
        known = _KEYS.get(str(block.get("type")))
        rest = without(block, *known) if known else block
        if rest:
            left.append({"type": block.get("type")} | rest)
    return left


def result_turn(
    text: str, *, call_id: str, name: str, ok: bool | None, files: Files | None = None
) -> Object:
    turn: Object = {"role": "tool", "content": text, "tool_call_id": call_id, "tool_name": name}
    if ok is not None:
        turn["metadata"] = {"ok": ok}
    if files is not None and files.blocks:
        turn["blocks"] = files.blocks
    return turn | _left_of(files)


def _left_of(files: Files | None) -> Object:
    return {"files": files.left} if files is not None and files.left else {}


def read_result(content: Any, files: Files) -> str:
    """The text of a tool's result: a string, or a list of blocks whose images are
    attached."""
    if not isinstance(content, list):
        return (
            content if isinstance(content, str) else "" if content is None else dump_json(content)
        )
    texts: list[str] = []
    for block in content:
        if not isinstance(block, dict):
            texts.append(str(block))
        elif block.get("type") == "text":
            texts.append(str(block.get("text") or ""))
        elif block.get("type") in ("image", "document") and isinstance(block.get("source"), dict):
            add_source(files, block)
        else:
            texts.append(dump_json(block))
    return "\n\n".join(texts)


def add_source(files: Files, block: Object) -> None:
    """The content of an image or a document, where the block has it."""
    source, name = block["source"], str(block.get("title") or block["type"])
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        files.add_base64(source["data"], name)
    elif source.get("type") == "text" and isinstance(source.get("data"), str):
        files.add(source["data"].encode("utf-8", "replace"), name)
    else:
        files.left.append(block)


def as_input(text: str, *, name: str = "text") -> Object:
    """The arguments of a call that are given as text: JSON, or under ``name``."""
    try:
        value = load_json(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {name: text}


def join_texts(values: Iterable[Any]) -> str:
    return "\n\n".join(value for value in values if isinstance(value, str) and value)
