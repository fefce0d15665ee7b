"""``move_file``: a file or folder of the workspace gets another name or place."""

from pathlib import Path
from typing import Annotated

from conversations.agent.files.confined import stat_file
from conversations.agent.files.paths import FOLDER, FileStatus, find_place, is_within, shown
from conversations.agent.undo.apply import Move
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import CHANGES

from .file_texts import PreparedChange, changing, planning
from .tool import Arguments, PathText, declare_tool, named


class MoveFile(Arguments):
    source: Annotated[PathText, named("source", "path", "from", description="What to move.")]
    destination: Annotated[
        PathText, named("destination", "target", "to", description="Its new path.")
    ]


def prepare(root: Path, asked: MoveFile) -> PreparedChange:
    source, target = asked.source, asked.destination
    found = stat_file(root, source, follow_last=False)
    if found is None:
        raise Rejected(f"There is no {shown(source)}.")
    there = stat_file(root, target, follow_last=False)
    if there is not None and there.identity != found.identity:
        raise Rejected(_say_taken(target, there))
    end = find_place(root, target, follow_last=False)
    start = find_place(root, source, follow_last=False)
    if start == end:
        raise Rejected(f"{shown(source)} is there already.")
    if is_within(end.real, start.real):
        raise Rejected(f"{shown(source)} cannot be moved into itself.")
    what = "the folder " if found.kind == FOLDER else ""
    return PreparedChange(
        actions=(Move(source=source, target=target),),
        summary=f"Move {what}{shown(start.path)} to {shown(end.path)}",
        output=f"Moved {what}{shown(start.path)} to {shown(end.path)}.",
        basis=f"{found.identity} {found.size} {found.mtime_ns}",
    )


def _say_taken(target: str, there: FileStatus) -> str:
    name = shown(target.rstrip("/"))
    if there.kind == FOLDER:
        return f"{name} is a folder; give the whole new path, such as {name}/name."
    return f"There is a {name} already, and nothing is overwritten."


TOOL = declare_tool(
    name="move_file",
    description=(
        "Move or rename a file or a folder of the workspace; folders that are missing are made."
        " 'destination' is the whole new path, and nothing may be there."
    ),
    arguments=MoveFile,
    run=changing(prepare),
    plan=planning(prepare),
    effect=CHANGES,
)
