"""``list_files`` and ``glob_files``: list a folder, and find files by a pattern for their path."""

import asyncio
import time
from collections.abc import Callable
from heapq import nlargest
from itertools import dropwhile, islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from conversations.agent.files.confined import stat_file
from conversations.agent.files.paths import FILE, FOLDER, LINK, FileStatus, find_place, shown
from conversations.agent.files.searching import path_order
from conversations.agent.files.walking import FolderWalk, read_pattern
from conversations.domain.errors import Rejected

from . import tool
from .file_texts import count_text, describe_walk, make_cursor, read_cursor, size_text
from .tool import BadArgument, ToolContext, ToolResult


def _declare[A: tool.ToolArguments](
    name: str, arguments: type[A], look: Callable[[Path, A], str], *, description: str
) -> tool.Tool:
    """Declare a tool whose result is text about the folder, made off the event loop."""

    async def run(context: ToolContext, call_arguments: A) -> ToolResult:
        return ToolResult(
            ok=True, output=await asyncio.to_thread(look, context.root, call_arguments)
        )

    return tool.declare_tool(name=name, description=description, arguments=arguments, run=run)


MAX_ENTRIES = 500
MAX_DEPTH = 10
LIST_SECONDS = 10


class ListFiles(tool.ToolArguments):
    path: Annotated[
        tool.PathText, Field(description="The folder. Default: the workspace's folder.")
    ] = "."
    depth: Annotated[
        tool.Whole, Field(description=f"Levels of folders, 1 to {MAX_DEPTH}. Default 1.")
    ] = 1
    cursor: Annotated[
        tool.Text, Field(description="Goes on where an earlier result ended, as it said.")
    ] = ""


def list_files(root: Path, arguments: ListFiles) -> str:
    path, depth = arguments.path, min(arguments.depth, MAX_DEPTH)
    status = stat_file(root, path)
    if status is not None and status.kind != FOLDER:
        raise Rejected(f"{shown(path)} is not a folder: {_describe(root, status)}.")
    walk = FolderWalk(
        root=root,
        path=path,
        # A single folder is listed completely. In a tree, files that git ignores would be in the
        # way.
        with_ignored=depth == 1,
        max_depth=depth,
        deadline=time.monotonic() + LIST_SECONDS,
    )
    after = path_order(read_cursor(arguments.cursor))
    entries = dropwhile(lambda entry: path_order(entry.path) <= after, walk.entries())
    page = list(islice(entries, MAX_ENTRIES + 1))
    lines = [_describe(root, entry) for entry in page[:MAX_ENTRIES]]
    if not page:
        lines.append("There are no more entries." if after != [b""] else f"{shown(path)} is empty.")
    if len(page) > MAX_ENTRIES:
        cursor = make_cursor(page[MAX_ENTRIES - 1].path)
        lines.append(f'More: call again with the same arguments and cursor="{cursor}".')
    return "\n".join([*lines, *describe_walk(walk)])


def _describe(root: Path, entry: FileStatus) -> str:
    name = shown(entry.path)
    if entry.kind == FOLDER:
        return f"{name}/"
    if entry.kind == FILE:
        return f"{name}  {size_text(entry.size)}"
    if entry.kind != LINK:
        return f"{name}  (special file)"
    try:
        target = shown(find_place(root, entry.path).path)
        return f"{name}  -> {target}{'' if stat_file(root, entry.path) else ' (missing)'}"
    except Rejected:
        return f"{name}  -> (outside the workspace)"


LIST = _declare(
    "list_files",
    ListFiles,
    list_files,
    description=(
        "List what lies in a folder of the workspace, sorted by name: folders end in '/', files"
        f" have their size, links show where they lead. At most {MAX_ENTRIES} entries at once."
        " With 'depth' above 1 also what lies below, without what git ignores and folders such"
        " as node_modules. To find files by name use glob_files."
    ),
)

MAX_FILES = 200
GLOB_SECONDS = 15


class GlobFiles(tool.ToolArguments):
    pattern: Annotated[
        tool.PathText,
        tool.Requirement("be a pattern for paths, such as '**/*.py'."),
        Field(description="The pattern, relative to 'path'."),
    ]
    path: Annotated[
        tool.PathText, Field(description="The folder to look in. Default: the workspace's folder.")
    ] = "."
    include_ignored: Annotated[
        tool.Flag, Field(description="Also what git ignores, and heavy folders. Default false.")
    ] = False


def glob_files(root: Path, arguments: GlobFiles) -> str:
    path = arguments.path
    pattern = read_pattern(arguments.pattern, folder=root / path)
    start = stat_file(root, path)
    if start is not None and start.kind != FOLDER:
        raise BadArgument("'path' must be a folder.")
    depth = 0 if start is None or start.path == "." else start.path.count("/") + 1
    deadline = time.monotonic() + GLOB_SECONDS
    walk = FolderWalk(
        root=root, path=path, with_ignored=arguments.include_ignored, deadline=deadline
    )
    matching = [
        entry
        for entry in walk.entries()
        if entry.kind not in (FOLDER, LINK) and pattern.matches(entry.path.split("/")[depth:])
    ]
    newest = nlargest(MAX_FILES, matching, key=lambda entry: (entry.mtime_ns, entry.path))
    lines = [f"{shown(entry.path)}  {size_text(entry.size)}" for entry in newest]
    if not matching:
        lines.append("No file matches.")
    elif len(matching) > MAX_FILES:
        older = count_text(len(matching) - MAX_FILES, "older file")
        lines.append(f"[And {older}; choose a folder or a narrower pattern.]")
    return "\n".join([*lines, *describe_walk(walk)])


GLOB = _declare(
    "glob_files",
    GlobFiles,
    glob_files,
    description=(
        "Find files of the workspace by a pattern for their path, newest first, at most"
        f" {MAX_FILES}. '*' and '?' stay within a name, '**' stands for any folders, {{a,b}} for"
        " one of several: '**/*.py', 'src/**/test_*.{js,ts}'. A pattern without '/' is for"
        " names in every folder. What git ignores and folders such as node_modules are left"
        " out and named, and links are not followed."
    ),
)
