"""``read_file``: lines of a text file with their numbers; images and PDFs as content."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings
from pydantic import Field

from conversations.agent.files.confined import read_bytes
from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import read_text
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.file_types import FileType, examine
from conversations.domain.errors import Rejected

from .file_texts import count_text, cut, numbered, size_text
from .tool import (
    Arguments,
    BadArgument,
    FilePath,
    ToolContext,
    ToolResult,
    Whole,
    WholeOrZero,
    declare_tool,
)

# Images and PDFs that a tool gives: kept with the session, for the model and the row.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedFile:
    """A file whose content is known to be one that can be shown."""

    data: bytes
    name: str
    content: FileType


async def save_file(context: ToolContext, file: ExaminedFile) -> dict[str, Any]:
    """Keep the file at the turn of the call; the content block that refers to it."""
    attachment = await context.write(
        save_attachment,
        context.session_pk,
        data=file.data,
        name=file.name,
        user_pk=None,
        turn=context.call_turn,
        content=file.content,
    )
    return attachment_block(attachment)


NAME = "read_file"
MAX_LINES = 2000
MAX_CHARS = 60_000

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF-", "PDF"),
    (b"PK\x03\x04", "zip archive or office document"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "program"),
    (b"SQLite format 3\0", "SQLite database"),
)
_SHOWABLE = ("PNG image", "JPEG image", "GIF image", "WebP image", "PDF")


class ReadFile(Arguments):
    path: FilePath
    offset: Annotated[WholeOrZero, Field(description="First line, from 1. Default 1.")] = 1
    limit: Annotated[
        Whole, Field(description=f"How many lines. Default, and at most, {MAX_LINES}.")
    ] = MAX_LINES


async def run(context: ToolContext, asked: ReadFile) -> ToolResult:
    read = await asyncio.to_thread(_read, context.root, asked)
    if isinstance(read, str):
        return ToolResult(ok=True, output=read)
    output = f"{shown(read.name)} is shown below ({size_text(len(read.data))})."
    return ToolResult(ok=True, output=output, blocks=[await save_file(context, read)])


def _read(root: Path, asked: ReadFile) -> str | ExaminedFile:
    path, offset, limit = asked.path, max(asked.offset, 1), min(asked.limit, MAX_LINES)
    content = read_bytes(root, path, limit=settings.LOOM.max_read_bytes)
    # What the content is by its first bytes, empty if they say nothing
    data = content.data
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "WebP image"
    else:
        kind = next((kind for start, kind in _SIGNATURES if data.startswith(start)), "")
    if kind in _SHOWABLE:
        return _examine(path, content.data, is_cut=content.is_cut, kind=kind)
    file = read_text(content.data, is_cut=content.is_cut)
    if file is None:
        what = kind or "binary data"
        return f"{shown(path)} is no text: {what}, {size_text(content.found.size)}."
    size = content.found.size if content.is_cut else 0
    lines = file.lines
    if not lines:
        return f"{shown(path)} is empty."
    if offset > len(lines):
        raise BadArgument(f"{shown(path)} has only {count_text(len(lines), 'line')}.")
    chosen = _fitting(lines[offset - 1 : offset - 1 + limit])
    end = offset - 1 + len(chosen)
    notes = [numbered(chosen, offset)]
    if end < len(lines):
        notes.append(f"[Lines {offset}–{end} of {len(lines):,}. Go on with offset={end + 1}.]")
    if size:
        read = size_text(settings.LOOM.max_read_bytes)
        notes.append(
            f"[The file has {size_text(size)}; only its first {read} are read here."
            " search_files or a command reaches the rest.]"
        )
    if file.encoding != "utf-8":
        notes.append(f"[Encoding: {file.encoding}.]")
    return "\n".join(notes)


def _examine(path: str, data: bytes, *, is_cut: bool, kind: str) -> ExaminedFile:
    if is_cut:
        limit = size_text(settings.LOOM.max_read_bytes)
        raise Rejected(f"{shown(path)} is a {kind} of more than {limit}, too large to be shown.")
    name = path.rpartition("/")[2]
    return ExaminedFile(data=data, name=name, content=examine(data, name))


def _fitting(lines: list[str]) -> list[str]:
    """As many as the answer has room for, one at least."""
    room = MAX_CHARS
    for count, line in enumerate(lines):
        room -= len(cut(line)) + 8
        if room < 0 and count:
            return lines[:count]
    return lines


TOOL = declare_tool(
    name=NAME,
    description=(
        "Read a file of the workspace. Text comes as lines with their numbers (a number and a"
        f" tab, which are not part of the file), at most {MAX_LINES} lines or"
        f" {MAX_CHARS:,} characters at once; what is left out is said, with the offset to go on"
        " with. Images (PNG, JPEG, GIF, WebP) and PDFs are shown to you. Of other binary files"
        " you get type and size."
    ),
    arguments=ReadFile,
    run=run,
)
