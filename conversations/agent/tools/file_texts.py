"""What a result says of a walk through folders: what was left out, and where to go on."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

from django.conf import settings

from conversations.agent.files.confined import content_digest, read_bytes
from conversations.agent.files.executed_files import RUNS_ITSELF, is_git_name, runs_itself
from conversations.agent.files.paths import FileStatus, find_place, shown
from conversations.agent.files.text_files import TextFile, read_text
from conversations.agent.files.walking import FolderWalk
from conversations.agent.undo.apply import FileAction, Move, apply_changes
from conversations.agent.undo.disk import Author
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.text import storable
from conversations.domain.tool_calls import CHANGES, READS, CallPlan

from .tool import Arguments, PlanWith, RunWith, ToolContext, ToolResult

# How a call of a file tool is executed: off the event loop, with sentences for what cannot
# be done; and if it changes something, prepared first, and only then applied.


KIND, KIND_LABEL = "files", "file changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChange:
    """What a call would do. ``basis`` stands for the files that this was made from. Without
    ``actions`` there is nothing to do."""

    actions: tuple[FileAction, ...]
    summary: str
    output: str
    basis: str
    diff: str = ""
    note: str = ""


# Looks at the folder and changes nothing. Raises BadArgument or Rejected.
type Prepare[A: Arguments] = Callable[[Path, A], PreparedChange]


def reading[A: Arguments](look: Callable[[Path, A], str]) -> RunWith[A]:
    """A tool that gives text about the folder."""

    async def run(context: ToolContext, asked: A) -> ToolResult:
        return ToolResult(ok=True, output=await asyncio.to_thread(look, context.root, asked))

    return run


def planning[A: Arguments](prepare: Prepare[A]) -> PlanWith[A]:
    async def plan(context: ToolContext, asked: A) -> CallPlan | ToolResult:
        prepared = await asyncio.to_thread(prepare, context.root, asked)
        runs = await asyncio.to_thread(_runs_itself, context.root, prepared.actions)
        return CallPlan(
            effect=CHANGES if prepared.actions else READS,
            summary=prepared.summary,
            diff=prepared.diff,
            note=" ".join(filter(None, (prepared.note, RUNS_ITSELF if runs else ""))),
            # "Always" is no answer for these: nobody would see the next one.
            kind_key="" if runs else KIND,
            kind_label="" if runs else KIND_LABEL,
            basis=prepared.basis,
        )

    return plan


def _runs_itself(root: Path, actions: tuple[FileAction, ...]) -> bool:
    """By the name that was given, and by that of what it leads to."""
    paths = [action.target if isinstance(action, Move) else action.path for action in actions]
    return any(runs_itself(p) or runs_itself(find_place(root, p).path) for p in paths)


def changing[A: Arguments](prepare: Prepare[A]) -> RunWith[A]:
    async def run(context: ToolContext, asked: A) -> ToolResult:
        prepared = await asyncio.to_thread(prepare, context.root, asked)
        if context.basis and context.basis != prepared.basis:
            return ToolResult(ok=False, output=CHANGED_SINCE)
        author = Author(
            session_pk=context.session_pk, run_pk=context.run_pk, call_pk=context.call_pk
        )
        if prepared.actions:
            await apply_changes(context.root, prepared.actions, author=author, write=context.write)
        return ToolResult(ok=True, output=prepared.output, diff=prepared.diff)

    return run


CHANGED_SINCE = (
    "Nothing was done: the file was changed after this call was shown to a person for"
    " approval. Read it again, and repeat the call if it is still right."
)


# A text file of the workspace, whole, and what a result shows of one.


LINE_CHARS = 2000  # What is shown of one line


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """``text`` None: it is binary."""

    found: FileStatus
    data: bytes
    text: TextFile | None

    @property
    def digest(self) -> str:
        return content_digest(self.data)


def read_whole(root: Path, path: str) -> WholeFile:
    """Raises TooLarge beyond what the tools read of a file."""
    limit = settings.LOOM.max_read_bytes
    content = read_bytes(root, path, limit=limit)
    if content.is_cut:
        raise TooLarge(
            f"{shown(path)} has {size_text(content.found.size)}; this works up to"
            f" {size_text(limit)}. Use a command for it."
        )
    return WholeFile(found=content.found, data=content.data, text=read_text(content.data))


def check_writable(found: FileStatus) -> None:
    """A file that somebody made read-only is left alone, although replacing it would be
    possible."""
    if not found.mode & 0o222:
        raise Rejected(
            f"{shown(found.path)} is read-only (mode {found.mode:04o}); somebody wants it so."
        )


def numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers, as ``cat -n`` has them."""
    return "\n".join(f"{number:>6}\t{cut(line)}" for number, line in enumerate(lines, first))


def cut(line: str, limit: int = LINE_CHARS) -> str:
    text = storable(line)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"


def count_text(count: int, what: str) -> str:
    """ "1 line", "1,200 lines"."""
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def size_text(size: int) -> str:
    """ "840 bytes", "12.3 kB"."""
    if size < 1000:
        return count_text(size, "byte")
    amount, units = size / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.1f} {units[0]}"


NAMED = 5


def describe_walk(walk: FolderWalk) -> list[str]:
    notes = []
    over = describe_passed_over(walk.passed_over)
    if over:
        notes.append(over)
    if walk.is_late:
        notes.append("[It took too long, so this is not all. Choose a folder further down.]")
    return notes


def describe_passed_over(paths: list[str]) -> str:
    """Folders that were not gone into; git's own go without saying."""
    paths = [path for path in paths if not is_git_name(path.rpartition("/")[2])]
    if not paths:
        return ""
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    named = ", ".join(f"{shown(path)}/" for path in paths[:NAMED])
    return f"[Not looked into, as ignored by git or too large by nature: {named}{more}.]"


def make_cursor(path: str) -> str:
    """A path, whatever is in it, as a text that a model can copy."""
    return quote_from_bytes(os.fsencode(path), safe="/ !#$&'()*+,;=@[]{}~^")


def read_cursor(cursor: str) -> str:
    return os.fsdecode(unquote_to_bytes(cursor))
