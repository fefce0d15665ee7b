"""``glob_files``: files of the workspace whose path matches a pattern, newest first."""

import time
from heapq import nlargest
from pathlib import Path
from typing import Annotated

from pydantic import Field

from conversations.agent.files.confined import stat_file
from conversations.agent.files.paths import FOLDER, LINK, shown
from conversations.agent.files.walking import FolderWalk, read_pattern

from .file_texts import count_text, describe_walk, reading, size_text
from .tool import Arguments, BadArgument, Flag, Must, PathText, declare_tool

MAX_FILES = 200
SECONDS = 15


class GlobFiles(Arguments):
    pattern: Annotated[
        PathText,
        Must("be a pattern for paths, such as '**/*.py'."),
        Field(description="The pattern, relative to 'path'."),
    ]
    path: Annotated[
        PathText, Field(description="The folder to look in. Default: the workspace's folder.")
    ] = "."
    include_ignored: Annotated[
        Flag, Field(description="Also what git ignores, and heavy folders. Default false.")
    ] = False


def look(root: Path, asked: GlobFiles) -> str:
    pattern, path = read_pattern(asked.pattern), asked.path
    start = stat_file(root, path)
    if start is not None and start.kind != FOLDER:
        raise BadArgument("'path' must be a folder.")
    depth = 0 if start is None or start.path == "." else start.path.count("/") + 1
    walk = FolderWalk(
        root=root,
        path=path,
        with_ignored=asked.include_ignored,
        deadline=time.monotonic() + SECONDS,
    )
    found = [
        entry
        for entry in walk.entries()
        if entry.kind not in (FOLDER, LINK) and pattern.matches(entry.path.split("/")[depth:])
    ]
    newest = nlargest(MAX_FILES, found, key=lambda entry: (entry.mtime_ns, entry.path))
    lines = [f"{shown(entry.path)}  {size_text(entry.size)}" for entry in newest]
    if not found:
        lines.append("No file matches.")
    elif len(found) > MAX_FILES:
        rest = count_text(len(found) - MAX_FILES, "older file")
        lines.append(f"[And {rest}; choose a folder or a narrower pattern.]")
    return "\n".join([*lines, *describe_walk(walk)])


TOOL = declare_tool(
    name="glob_files",
    description=(
        "Find files of the workspace by a pattern for their path, newest first, at most"
        f" {MAX_FILES}. '*' and '?' stay within a name, '**' stands for any folders, {{a,b}} for"
        " one of several: '**/*.py', 'src/**/test_*.{js,ts}'. A pattern without '/' is for"
        " names in every folder. What git ignores and folders such as node_modules are left"
        " out and named, and links are not followed."
    ),
    arguments=GlobFiles,
    run=reading(look),
)
