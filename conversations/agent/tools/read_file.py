"""``read_file``: return the numbered lines of a text file, or an image or a PDF as content."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings
from pydantic import Field

from conversations.agent.files.confined import read_bytes
from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import read_text
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.file_types import FileType, examine
from conversations.domain.attachments import is_pdf
from conversations.domain.errors import Rejected

from . import tool
from .file_texts import count_text, cut, numbered, size_text
from .tool import BadArgument, ToolContext, ToolResult


async def save_file(
    context: ToolContext, *, data: bytes, name: str, content: FileType
) -> dict[str, Any]:
    """Store an image or PDF of a tool at the turn of the call, for the model and the row.

    Return the content block that refers to it.
    """
    attachment = await context.write(
        save_attachment,
        context.session_pk,
        data=data,
        name=name,
        user_pk=None,
        turn=context.call_turn,
        content=content,
    )
    return attachment_block(attachment)


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


class ReadFile(tool.ToolArguments):
    path: tool.FilePath
    offset: Annotated[tool.WholeOrZero, Field(description="First line, from 1. Default 1.")] = 1
    limit: Annotated[
        tool.Whole, Field(description=f"How many lines. Default, and at most, {MAX_LINES}.")
    ] = MAX_LINES


async def run(context: ToolContext, arguments: ReadFile) -> ToolResult:
    read = await asyncio.to_thread(_read, context.root, arguments)
    if isinstance(read, str):
        return ToolResult(ok=True, output=read)
    data, content = read
    name = arguments.path.rpartition("/")[2]
    block = await save_file(context, data=data, name=name, content=content)
    output = f"{shown(name)} is shown below ({size_text(len(data))})."
    return ToolResult(ok=True, output=output, blocks=[block])


def _read(root: Path, arguments: ReadFile) -> str | tuple[bytes, FileType]:
    path = arguments.path
    offset = max(arguments.offset, 1)
    limit = min(arguments.limit, MAX_LINES)
    max_size = size_text(settings.LOOM.max_read_bytes)
    content = read_bytes(root, path, limit=settings.LOOM.max_read_bytes)
    data = content.data
    # The type of the content by its first bytes, or empty if they do not show it
    kind = next((kind for start, kind in _SIGNATURES if data.startswith(start)), "")
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "WebP image"
    file = None if kind in _SHOWABLE else read_text(data, is_cut=content.is_cut)
    if not kind and is_pdf(data, path, is_text=file is not None):
        kind = "PDF"
    if kind in _SHOWABLE and content.is_cut:
        raise Rejected(f"{shown(path)} is a {kind} of more than {max_size}, too large to show.")
    if kind in _SHOWABLE:
        return data, examine(data, path.rpartition("/")[2])
    if file is None:
        description = kind or "binary data"
        return f"{shown(path)} is not text: {description}, {size_text(content.found.size)}."
    lines = file.lines
    if not lines:
        return f"{shown(path)} is empty."
    cut_note = ""
    if content.is_cut:
        cut_note = (
            f"The file has {size_text(content.found.size)}; only its first {max_size} are read"
            " here. A command reaches the rest."
        )
    if offset > len(lines):
        has = count_text(len(lines), "line")
        raise BadArgument(
            f"{shown(path)}: only {has} are read. {cut_note}"
            if cut_note
            else f"{shown(path)} has only {has}."
        )
    chosen = lines[offset - 1 : offset - 1 + limit]
    room = MAX_CHARS
    for count, line in enumerate(chosen):
        room -= len(cut(line)) + 8
        if room < 0 and count:  # At least one line
            chosen = chosen[:count]
            break
    end = offset - 1 + len(chosen)
    notes = [numbered(chosen, offset)]
    if end < len(lines):
        total = f"at least {len(lines):,}" if cut_note else f"{len(lines):,}"
        notes.append(f"[Lines {offset}–{end} of {total}. Go on with offset={end + 1}.]")
    if cut_note:
        notes.append(f"[{cut_note}]")
    if file.encoding != "utf-8":
        notes.append(f"[Encoding: {file.encoding}.]")
    return "\n".join(notes)


TOOL = tool.declare_tool(
    name="read_file",
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
