"""``list_files``: what lies in a folder of the workspace."""

import time
from itertools import dropwhile, islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from conversations.agent.files.confined import stat_file
from conversations.agent.files.paths import FILE, FOLDER, LINK, FileStatus, find_place, shown
from conversations.agent.files.searching import path_order
from conversations.agent.files.walking import FolderWalk
from conversations.domain.errors import Rejected

from .file_texts import describe_walk, make_cursor, read_cursor, reading, size_text
from .tool import Arguments, PathText, Text, Whole, declare_tool

MAX_ENTRIES = 500
MAX_DEPTH = 10
SECONDS = 10


class ListFiles(Arguments):
    path: Annotated[PathText, Field(description="The folder. Default: the workspace's folder.")] = (
        "."
    )
    depth: Annotated[
        Whole, Field(description=f"Levels of folders, 1 to {MAX_DEPTH}. Default 1.")
    ] = 1
    cursor: Annotated[
        Text, Field(description="Goes on where an earlier result ended, as it said.")
    ] = ""


def look(root: Path, asked: ListFiles) -> str:
    path, depth = asked.path, min(asked.depth, MAX_DEPTH)
    found = stat_file(root, path)
    if found is not None and found.kind != FOLDER:
        raise Rejected(f"{shown(path)} is no folder: {_describe(root, found)}.")
    # One folder is shown as it is; in a tree, what git ignores would be in the way.
    walk = FolderWalk(
        root=root,
        path=path,
        with_ignored=depth == 1,
        max_depth=depth,
        deadline=time.monotonic() + SECONDS,
    )
    after = path_order(read_cursor(asked.cursor))
    entries = dropwhile(lambda entry: path_order(entry.path) <= after, walk.entries())
    page = list(islice(entries, MAX_ENTRIES + 1))
    lines = [_describe(root, entry) for entry in page[:MAX_ENTRIES]]
    if not page:
        lines.append("There is nothing more." if after != [b""] else f"{shown(path)} is empty.")
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
    return f"{name}  {_describe_link(root, entry.path) if entry.kind == LINK else '(special file)'}"


def _describe_link(root: Path, path: str) -> str:
    try:
        target = find_place(root, path).path
        return f"-> {shown(target)}" if stat_file(root, path) else f"-> {shown(target)} (missing)"
    except Rejected:
        return "-> (outside of the workspace)"


TOOL = declare_tool(
    name="list_files",
    description=(
        "List what lies in a folder of the workspace, sorted by name: folders end in '/', files"
        f" have their size, links show where they lead. At most {MAX_ENTRIES} entries at once."
        " With 'depth' above 1 also what lies below, without what git ignores and folders such"
        " as node_modules. To find files by name use glob_files."
    ),
    arguments=ListFiles,
    run=reading(look),
)
