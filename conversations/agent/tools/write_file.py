"""``write_file``: a whole file of the workspace, new or replaced."""

from pathlib import Path
from typing import Annotated

from django.conf import settings

from conversations.agent.files.confined import NO_FILE, stat_file
from conversations.agent.files.paths import FILE, FOLDER, shown
from conversations.agent.files.text_files import split_lines
from conversations.agent.undo.apply import Put
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.tool_calls import CHANGES

from .file_edits import unified_diff
from .file_texts import (
    PreparedChange,
    WholeFile,
    changing,
    check_writable,
    count_text,
    planning,
    read_whole,
    size_text,
)
from .tool import Arguments, BadArgument, ExactText, FilePath, Must, declare_tool, named


class WriteFile(Arguments):
    path: FilePath
    content: Annotated[
        ExactText,
        Must("be the whole text of the file."),
        named("content", "text", description="The file's whole text."),
    ]


def prepare(root: Path, asked: WriteFile) -> PreparedChange:
    path, text = asked.path, asked.content
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadArgument("'content' holds a lone surrogate, which is no character.") from error
    limit = settings.LOOM.max_read_bytes
    if len(data) > limit:
        raise TooLarge(f"'content' has {size_text(len(data))}, more than {size_text(limit)}.")
    found = stat_file(root, path)
    if found is None:
        there = None
    else:
        if found.kind == FOLDER:
            raise Rejected(f"{shown(path)} is a folder, not a file.")
        if found.kind == FILE:
            check_writable(found)
        there = read_whole(root, path)
    lines = count_text(len(split_lines(text)), "line")
    if there is None:
        return PreparedChange(
            actions=(Put(path=path, data=data, expect=NO_FILE),),
            summary=f"Create {shown(path)}",
            output=f"Created {shown(path)}: {lines}.",
            diff=unified_diff(path, None, text),
            note=f"A new file of {lines}.",
            basis="new",
        )
    return _replace(path, text, data, there, lines)


def _replace(path: str, text: str, data: bytes, there: WholeFile, lines: str) -> PreparedChange:
    if there.data == data:
        return PreparedChange(
            actions=(),
            summary=f"Leave {shown(path)} as it is",
            output=f"{shown(path)} has exactly this content already.",
            basis=there.digest,
        )
    return PreparedChange(
        actions=(Put(path=path, data=data, expect=there.digest),),
        summary=f"Overwrite {shown(path)}",
        output=f"Overwrote {shown(path)}: {lines}; it had {_describe(there)}.",
        diff=unified_diff(path, there.text.text, text) if there.text else "",
        note="" if there.text else f"It replaces a binary file of {_describe(there)}.",
        basis=there.digest,
    )


def _describe(there: WholeFile) -> str:
    if there.text is None:
        return size_text(there.found.size)
    return count_text(len(there.text.lines), "line")


TOOL = declare_tool(
    name="write_file",
    description=(
        "Write a whole file of the workspace as UTF-8, exactly as 'content' has it; folders"
        " that are missing are made. A file that is there is overwritten, and the result says"
        " so. To change part of a file use edit_file."
    ),
    arguments=WriteFile,
    run=changing(prepare),
    plan=planning(prepare),
    effect=CHANGES,
)
