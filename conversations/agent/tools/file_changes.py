"""The tools ``write_file``, ``edit_file``, ``delete_file`` and ``move_file``.

A call is prepared first, which changes nothing. A person is asked about the prepared change, and
only then it is applied.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from django.conf import settings
from pydantic import Field

from conversations.agent.files import paths, text_files
from conversations.agent.files.confined import NO_FILE, content_digest, read_bytes, stat_file
from conversations.agent.files.executed_files import RUNS_ITSELF, runs_itself
from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import TextFile
from conversations.agent.files.walking import FolderWalk
from conversations.agent.undo.apply import (
    FileAction,
    MoveAction,
    RemoveAction,
    WriteAction,
    apply_changes,
)
from conversations.agent.undo.disk import stored_path
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.messages import join_messages, say
from conversations.domain.tool_calls import CHANGES, READS, CallPlan

from . import file_edits, tool
from .file_edits import EditMatch, unified_diff
from .file_texts import count_text, lines_text, numbered, size_text
from .tool import BadArgument, ToolContext, ToolResult

CHANGED_SINCE = (
    "Nothing was done: the file changed after this call was shown to a person for approval, or "
    "was found to change nothing. Read it again, and repeat the call if it is still right."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChange:
    """The change that a call would make.

    ``basis`` identifies the state of the files from which the change was prepared. ``place`` is the
    real path of the file, or of the source of a move. If ``action`` is None, there is nothing to
    change.
    """

    action: FileAction | None
    summary: str
    output: str
    basis: str
    diff: str = ""
    note: str = ""
    place: str = ""


def _declare[A: tool.ToolArguments](
    name: str, arguments: type[A], prepare: Callable[[Path, A], PreparedChange], *, description: str
) -> tool.Tool:
    """Declare a tool that prepares a change and then applies it.

    ``prepare`` reads the folder and changes nothing. It may raise BadArgument or Rejected.
    """

    async def plan(context: ToolContext, call_arguments: A) -> CallPlan | ToolResult:
        def look() -> tuple[PreparedChange, bool]:
            prepared = _bind(context.root, prepare(context.root, call_arguments))
            action = prepared.action
            if action is None:
                return prepared, False
            path = action.target if isinstance(action, MoveAction) else action.path
            # Check the given name, and the name of the file to which it leads.
            real = paths.find_place(context.root, path).path
            return prepared, runs_itself(path) or runs_itself(real)

        prepared, runs = await asyncio.to_thread(look)
        is_cut = file_edits.is_cut_short(prepared.diff)
        # "Always" is not offered for these changes, because later ones would not be seen by anyone.
        # A deletion is clear even if not all of its text is shown.
        has_kind = not runs and (not is_cut or isinstance(prepared.action, RemoveAction))
        cut = say("Not all of the change is shown.") if is_cut else ""
        return CallPlan(
            effect=CHANGES if prepared.action else READS,
            summary=prepared.summary,
            diff=prepared.diff,
            note=join_messages((prepared.note, cut, RUNS_ITSELF if runs else "")),
            kind_key="files" if has_kind else "",
            kind_label=say("file changes") if has_kind else "",
            basis=prepared.basis,
            place="" if is_cut else prepared.place,
        )

    async def run(context: ToolContext, call_arguments: A) -> ToolResult:
        prepared = await asyncio.to_thread(
            lambda: _bind(context.root, prepare(context.root, call_arguments))
        )
        if context.basis and context.basis != prepared.basis:
            return ToolResult(ok=False, output=CHANGED_SINCE)
        if prepared.action:
            await apply_changes(
                context.root, [prepared.action], author=context.author, write=context.write
            )
        return ToolResult(ok=True, output=prepared.output, diff=prepared.diff)

    return tool.declare_tool(
        name=name, description=description, arguments=arguments, run=run, plan=plan, effect=CHANGES
    )


def _bind(root: Path, prepared: PreparedChange) -> PreparedChange:
    """Add the real paths to the basis, because a link may lead elsewhere when the call runs."""
    action, note = prepared.action, prepared.note
    if action is None:
        return prepared
    action_paths = (
        (action.source, action.target) if isinstance(action, MoveAction) else (action.path,)
    )
    # A write changes the target of a link, the other actions the link itself.
    follow = isinstance(action, WriteAction)
    places = [paths.find_place(root, path, follow_last=follow).path for path in action_paths]
    # The summary of a move already has the real paths.
    if len(places) == 1 and os.path.normpath(root / action_paths[0]) != str(root / places[0]):
        note = join_messages((note, say("It is %(path)s.", path=shown(places[0]))))
    basis = "\n".join((prepared.basis, *map(stored_path, places)))
    return replace(prepared, basis=basis, note=note, place=places[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A file of the workspace with its content. ``text`` is None if the file is binary."""

    found: paths.FileStatus
    data: bytes
    text: TextFile | None

    @property
    def digest(self) -> str:
        return content_digest(self.data)


def read_whole(root: Path, path: str) -> WholeFile:
    """Read a file. Raise TooLarge if it is larger than the tools read."""
    limit = settings.LOOM.max_read_bytes
    content = read_bytes(root, path, limit=limit)
    if content.is_cut:
        raise TooLarge(
            f"{shown(path)} has {size_text(content.found.size)}; the limit is {size_text(limit)}"
            ". Use a command instead."
        )
    return WholeFile(
        found=content.found, data=content.data, text=text_files.read_text(content.data)
    )


def check_writable(status: paths.FileStatus) -> None:
    """Raise Rejected if the file is read-only, although replacing it would be possible."""
    if not status.mode & 0o222:
        raise Rejected(f"{shown(status.path)} is read-only (mode {status.mode:04o}).")


class WriteFile(tool.ToolArguments):
    path: tool.FilePath
    content: Annotated[
        tool.ExactText,
        tool.Requirement("be the whole text of the file."),
        tool.named("content", "text", description="The file's whole text."),
    ]


def prepare_write(root: Path, arguments: WriteFile) -> PreparedChange:
    path, text = arguments.path, arguments.content
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadArgument(
            "'content' contains a lone surrogate, which is not a valid character."
        ) from error
    limit = settings.LOOM.max_read_bytes
    if len(data) > limit:
        raise TooLarge(f"'content' has {size_text(len(data))}, more than {size_text(limit)}.")
    status = stat_file(root, path)
    lines = lines_text(len(text_files.split_lines(text)))
    if status is None:
        return PreparedChange(
            action=WriteAction(path=path, data=data, expect=NO_FILE),
            summary=say("Create %(path)s", path=shown(path)),
            output=f"Created {shown(path)}: {lines}.",
            diff=unified_diff(path, None, text),
            note=say("A new file of %(size)s.", size=lines),
            basis="new",
        )
    if status.kind == paths.FOLDER:
        raise Rejected(f"{shown(path)} is a folder, not a file.")
    if status.kind == paths.FILE:
        check_writable(status)
    current = read_whole(root, path)
    if current.data == data:
        return PreparedChange(
            action=None,
            summary=say("Leave %(path)s as it is", path=shown(path)),
            output=f"{shown(path)} already has exactly this content.",
            basis=current.digest,
        )
    if current.text is None:
        had, recoding = size_text(current.found.size), ""
        # The old content cannot be shown, but a person approves the new one.
        diff = unified_diff(path, "", text)
        note: str = say(
            "It replaces a binary file of %(size)s with %(lines)s.", size=had, lines=lines
        )
    else:
        had = count_text(len(current.text.lines), "line")
        diff = unified_diff(path, current.text.text, text)
        after = text_files.read_text(data)
        note = _describe_recoding(current.text, after) if after else ""
        recoding = f" {note}" if note else ""
    return PreparedChange(
        action=WriteAction(path=path, data=data, expect=current.digest),
        summary=say("Overwrite %(path)s", path=shown(path)),
        output=f"Overwrote {shown(path)}: {lines}; it had {had}.{recoding}",
        diff=diff,
        note=note,
        basis=current.digest,
    )


def _describe_recoding(before: TextFile, after: TextFile) -> str:
    """Describe changes that a diff does not show: of the encoding and of the newlines."""
    notes, encoding = [], before.encoding_name
    if encoding not in ("", "UTF-8", after.encoding_name):
        notes.append(say("Its encoding was %(encoding)s and becomes UTF-8.", encoding=encoding))
    newlines = {"before": before.newline_name, "after": after.newline_name}
    if all(newlines.values()) and newlines["before"] != newlines["after"]:
        notes.append(say("Its newlines were %(before)s and become %(after)s.", **newlines))
    return join_messages(notes)


WRITE = _declare(
    "write_file",
    WriteFile,
    prepare_write,
    description=(
        "Write a whole file of the workspace as UTF-8, exactly as 'content' has it; folders"
        " that are missing are made. A file that is there is overwritten, and the result says"
        " so. To change part of a file use edit_file."
    ),
)

LINES_AROUND, MAX_SNIPPET_LINES = 3, 40
MAX_NAMED_PLACES = 20  # By their line numbers
MAX_SHOWN_PLACES = 4  # If it is not clear which place is meant

OLD_TEXT = "be the text to replace. To write a whole file use write_file."


class EditFile(tool.ToolArguments):
    path: tool.FilePath
    old_text: Annotated[
        tool.ExactText,
        tool.Requirement(OLD_TEXT),
        tool.named("old_text", "old_string", description="What is there now."),
    ]
    new_text: Annotated[
        tool.ExactText,
        tool.Requirement("be what to put there; it may be empty."),
        tool.named("new_text", "new_string", description="What is to be there; may be empty."),
    ]
    replace_all: Annotated[
        tool.Flag, Field(description="Replace every occurrence. Default false.")
    ] = False


def prepare_edit(root: Path, arguments: EditFile) -> PreparedChange:
    path, old, new = arguments.path, arguments.old_text, arguments.new_text
    if not old:
        raise BadArgument(f"'old_text' must {OLD_TEXT}")
    if old == new:
        raise BadArgument("'old_text' and 'new_text' are identical; nothing would change.")
    current = read_whole(root, path)
    if current.text is None:
        raise Rejected(f"{shown(path)} is binary and cannot be edited as text.")
    check_writable(current.found)
    match = _choose(path, current.text, old, new, every=arguments.replace_all)
    text = file_edits.replace_spans(current.text.text, match.spans)
    try:
        data = text_files.to_bytes(text, current.text)
    except text_files.EncodingLacksCharacter as error:
        raise Rejected(
            f"{shown(path)} cannot store the new text: {error}. To change its encoding, write "
            "the whole file as UTF-8 with write_file."
        ) from error
    if data == current.data:
        raise BadArgument(
            f"Nothing would change: {shown(path)} has this text already, and keeps its newlines."
            " To change its newlines, write the whole file with write_file."
        )
    # Describe the edit, with the lines around the first place as they are afterwards.
    numbers, shift, count = [], 0, len(match.spans)
    for span in match.spans[:MAX_NAMED_PLACES]:
        numbers.append(file_edits.line_of(text, span.start + shift))
        shift += len(span.text) - (span.end - span.start)
    where = f"line {numbers[0]}" if count == 1 else f"lines {_list(numbers, count)}"
    drift = f" It was found apart from {match.drift}." if match.drift else ""
    head = f"Edited {shown(path)}: {count_text(count, 'place')} ({where}).{drift}"
    first = max(1, numbers[0] - LINES_AROUND)
    height = match.spans[0].text.count("\n") + 1 + LINES_AROUND
    last = min(numbers[0] - 1 + height, first - 1 + MAX_SNIPPET_LINES)
    snippet = numbered(text_files.split_lines(text)[first - 1 : last], first)
    return PreparedChange(
        action=WriteAction(path=path, data=data, expect=current.digest),
        summary=say("Edit %(path)s", path=shown(path)),
        output=f"{head}\n{snippet}".rstrip("\n"),
        diff=unified_diff(path, current.text.text, text),
        note=say("Found apart from %(difference)s.", difference=match.drift) if match.drift else "",
        basis=current.digest,
    )


def _choose(path: str, file: TextFile, old: str, new: str, *, every: bool) -> EditMatch:
    """Return the places to replace. Raise BadArgument with a sentence that says what to send."""
    match = file_edits.find_match(file, old, new)
    if not match.spans and not file.text:
        raise BadArgument(f"{shown(path)} is empty. Use write_file.")
    if not match.spans:
        hint = file_edits.describe_nearest(file, old)
        hint = hint or "No text in it is similar; read the file again."
        raise BadArgument(f"'old_text' is not in {shown(path)}.\n{hint}")
    if len(match.spans) == 1 or (every and not match.drift):
        return match
    numbers = [file_edits.line_of(file.text, span.start) for span in match.spans[:MAX_NAMED_PLACES]]
    if match.drift:
        ask = "Send it exactly as the file has it"
        beginning = f"'old_text' is not in {shown(path)}; apart from {match.drift}, it"
    else:
        ask = "Send more of the lines around the one that is meant, or replace_all"
        beginning = "'old_text'"
    count = len(match.spans)
    summary = f"{beginning} is there {count} times, in lines {_list(numbers, count)}. {ask}."
    lines = file.lines
    places = [
        numbered(lines[max(0, number - 2) : number + 1], max(1, number - 1))
        for number in numbers[:MAX_SHOWN_PLACES]
    ]
    raise BadArgument("\n--\n".join([summary, *places]))


def _list(numbers: list[int], count: int) -> str:
    more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
    return ", ".join(map(str, numbers)) + more


EDIT = _declare(
    "edit_file",
    EditFile,
    prepare_edit,
    description=(
        "Replace a text in a file of the workspace. 'old_text' has to be in the file exactly"
        " once, spaces and line breaks included, without the line numbers of read_file; give"
        " enough of the lines around it to be unique, or 'replace_all'. Where nothing matches"
        " exactly, one place that differs only in spacing, typographic quotes or newlines is"
        " taken, and the result says so. The file keeps its encoding and newlines."
    ),
)


class DeleteFile(tool.ToolArguments):
    path: tool.FilePath


def prepare_delete(root: Path, arguments: DeleteFile) -> PreparedChange:
    path = arguments.path
    status = stat_file(root, path, follow_last=False)
    if status is None:
        raise Rejected(f"{shown(path)} does not exist.")
    if status.kind == paths.FILE:
        check_writable(status)
        size = size_text(status.size)
        if status.size <= settings.LOOM.max_read_bytes:
            current = read_whole(root, path)
            return PreparedChange(
                action=RemoveAction(path=path, expect=current.digest),
                summary=say("Delete %(path)s", path=shown(path)),
                output=f"Deleted {shown(path)} ({size}).",
                diff=unified_diff(path, current.text.text, None) if current.text else "",
                note=say("%(size)s.", size=size)
                if current.text
                else say("Binary, %(size)s.", size=size),
                basis=current.digest,
            )
        entry = say("the file of %(size)s", size=size)
        basis = f"{status.identity} {status.size} {status.mtime_ns}"
    elif status.kind == paths.FOLDER:
        deadline = time.monotonic() + 10
        walk = FolderWalk(root=root, path=path, with_ignored=True, deadline=deadline, max_depth=1)
        if entries := list(walk.entries()):
            count = count_text(len(entries), "entry")
            raise Rejected(
                f"{shown(path)} is a folder that contains {count}; only empty folders can be "
                "deleted."
            )
        entry = say("the empty folder")
        basis = "empty folder"
    elif status.kind == paths.LINK:
        entry = say("the link")
        basis = f"link {status.identity}"
    else:
        raise Rejected(f"{shown(path)} is neither a file nor a folder.")
    return PreparedChange(
        action=RemoveAction(path=path),
        summary=say("Delete %(what)s %(path)s", what=entry, path=shown(path)),
        output=f"Deleted {entry} {shown(path)}.",
        basis=basis,
    )


DELETE = _declare(
    "delete_file",
    DeleteFile,
    prepare_delete,
    description=(
        "Delete a file, a link (not what it leads to) or an empty folder of the workspace."
        " A person can restore what was deleted."
    ),
)


class MoveFile(tool.ToolArguments):
    source: Annotated[
        tool.PathText, tool.named("source", "path", "from", description="What to move.")
    ]
    destination: Annotated[
        tool.PathText, tool.named("destination", "target", "to", description="Its new path.")
    ]


def prepare_move(root: Path, arguments: MoveFile) -> PreparedChange:
    source, target = arguments.source, arguments.destination
    source_status = stat_file(root, source, follow_last=False)
    if source_status is None:
        raise Rejected(f"{shown(source)} does not exist.")
    end = paths.find_place(root, target, follow_last=False)
    start = paths.find_place(root, source, follow_last=False)
    if start == end:
        raise Rejected(f"{shown(source)} is already there.")
    if (target_status := stat_file(root, target, follow_last=False)) is not None:
        name = shown(target.rstrip("/"))
        if target_status.kind == paths.FOLDER:
            raise Rejected(f"{name} is a folder; give the whole new path, such as {name}/name.")
        raise Rejected(f"{name} already exists, and nothing is overwritten.")
    if paths.is_within(end.real, start.real):
        raise Rejected(f"{shown(source)} cannot be moved into itself.")
    moved = {"path": shown(start.path), "target": shown(end.path)}
    if source_status.kind == paths.FOLDER:
        summary = say("Move the folder %(path)s to %(target)s", **moved)
        output = say("Moved the folder %(path)s to %(target)s.", **moved)
    else:
        summary = say("Move %(path)s to %(target)s", **moved)
        output = say("Moved %(path)s to %(target)s.", **moved)
    return PreparedChange(
        action=MoveAction(source=source, target=target),
        summary=summary,
        output=output,
        basis=f"{source_status.identity} {source_status.size} {source_status.mtime_ns}",
    )


MOVE = _declare(
    "move_file",
    MoveFile,
    prepare_move,
    description=(
        "Move or rename a file or a folder of the workspace; folders that are missing are made."
        " 'destination' is the whole new path, and nothing may be there."
    ),
)
