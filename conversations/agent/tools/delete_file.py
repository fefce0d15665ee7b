"""``delete_file``: a file, a link or an empty folder of the workspace goes."""

from pathlib import Path

from django.conf import settings

from conversations.agent.files.confined import list_folder, stat_file
from conversations.agent.files.paths import FILE, FOLDER, LINK, shown
from conversations.agent.undo.apply import Remove
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import CHANGES

from .file_edits import unified_diff
from .file_texts import (
    PreparedChange,
    changing,
    check_writable,
    count_text,
    planning,
    read_whole,
    size_text,
)
from .tool import Arguments, FilePath, declare_tool


class DeleteFile(Arguments):
    path: FilePath


def prepare(root: Path, asked: DeleteFile) -> PreparedChange:
    path = asked.path
    found = stat_file(root, path, follow_last=False)
    if found is None:
        raise Rejected(f"There is no {shown(path)}.")
    if found.kind == FILE:
        check_writable(found)
        if found.size > settings.LOOM.max_read_bytes:
            basis = f"{found.identity} {found.size} {found.mtime_ns}"
            return _remove(path, what=f"the file of {size_text(found.size)}", basis=basis)
        there = read_whole(root, path)
        return PreparedChange(
            actions=(Remove(path=path, expect=there.digest),),
            summary=f"Delete {shown(path)}",
            output=f"Deleted {shown(path)} ({size_text(found.size)}).",
            diff=unified_diff(path, there.text.text, None) if there.text else "",
            note=f"{size_text(found.size)}." if there.text else f"Binary, {size_text(found.size)}.",
            basis=there.digest,
        )
    if found.kind == FOLDER:
        entries = list_folder(root, path)
        if entries:
            count = count_text(len(entries), "entry")
            raise Rejected(
                f"{shown(path)} is a folder that holds {count}; only empty folders are deleted."
            )
        return _remove(path, what="the empty folder", basis="empty folder")
    if found.kind == LINK:
        return _remove(path, what="the link", basis=f"link {found.identity}")
    raise Rejected(f"{shown(path)} is neither a file nor a folder.")


def _remove(path: str, *, what: str, basis: str) -> PreparedChange:
    return PreparedChange(
        actions=(Remove(path=path),),
        summary=f"Delete {what} {shown(path)}",
        output=f"Deleted {what} {shown(path)}.",
        basis=basis,
    )


TOOL = declare_tool(
    name="delete_file",
    description=(
        "Delete a file, a link (not what it leads to) or an empty folder of the workspace."
        " A person can restore what was deleted."
    ),
    arguments=DeleteFile,
    run=changing(prepare),
    plan=planning(prepare),
    effect=CHANGES,
)
