"""What ``shell_execute`` and ``git_command`` share: where and how long a command runs, and how its
end is told."""

import asyncio
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from django.conf import settings
from pydantic import Field

from conversations.agent import sandbox
from conversations.agent.files.executed_files import NAMES_SELF_RUNNING, names_self_running
from conversations.agent.files.paths import find_place
from conversations.agent.sandbox.bubblewrap import Protection
from conversations.agent.sandbox.running import default_limits
from conversations.agent.undo.disk import carry_through
from conversations.agent.undo.trees import Author, watched
from conversations.domain.errors import Rejected, StorageFull

from .arguments import BadArgument, Text, Whole
from .tool import ToolContext, ToolResult

# The system takes 128 KiB as one argument; a character has up to four bytes.
MAX_COMMAND_CHARS = 30_000

_UNUSABLE = re.compile("[\x00\ud800-\udfff]")

ENDED = {
    "processes": "It had more than {processes} processes at once, so all were ended.",
    "memory": "Its processes took more than {memory} MiB of memory, so all were ended.",
    "written": "Its files took more than {written} MiB of the disk together, so all its"
    " processes were ended. The files are still there.",
    "disk": "The disk is nearly full: less than {min_free} MiB were free, so all its processes"
    " were ended. The files are still there.",
    "stopped": "It was ended from outside.",
    "lost": "What watches over it was killed, and it with it.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with its working folder and what it may do. ``may_write`` False: it sees the
    workspace read-only. ``may_write_config``: it may write what git is configured by."""

    words: Sequence[str]
    folder: Path
    seconds: int
    allows_network: bool
    may_write: bool = True
    may_write_config: bool = False
    environment: dict[str, str] | None = None
    readable: Sequence[Path] = ()


Folder = Annotated[
    Text,
    Field(description="Where to run it, relative to the workspace's folder. Default: there."),
]
# 0: the default.
Seconds = Annotated[
    Whole,
    Field(description="Seconds after which it is ended, where the default is too short."),
]


def check_text(text: str, name: str) -> None:
    """That a program can be given it. Raises BadArgument."""
    if len(text) > MAX_COMMAND_CHARS:
        raise BadArgument(
            f"'{name}' has more than {MAX_COMMAND_CHARS} characters. Write a file, and run that."
        )
    if _UNUSABLE.search(text):
        raise BadArgument(f"'{name}' holds a character that no program can be given.")


def read_folder(path: str, root: Path) -> Path:
    """The working folder. Raises BadArgument."""
    if not path:
        return root
    try:
        place = Path(find_place(root, path).real)
    except Rejected as error:
        raise BadArgument(error.message) from error
    if not place.is_dir():
        raise BadArgument(f"There is no folder {path[:200]!r} in the workspace.")
    return place


def read_seconds(wanted: int) -> int:
    loom = settings.LOOM
    return min(wanted or loom.command_seconds, loom.command_max_seconds)


def hides_something(text: str) -> bool:
    """Whether it holds characters that are not seen, or change what is."""
    return any(unicodedata.category(sign) in ("Cc", "Cf") and sign not in "\n\t" for sign in text)


def note_of(*, allows_network: bool, text: str) -> str:
    """What a person should know before this is run."""
    notes = []
    if sandbox.find_mode() == sandbox.UNSANDBOXED:
        notes.append("It runs without a sandbox, with all rights of the server.")
    elif allows_network:
        notes.append("It runs in a sandbox and can reach the network.")
    else:
        notes.append("It runs in a sandbox without network.")
    if hides_something(text):
        notes.append("It holds characters that cannot be seen, or that turn text around.")
    if names_self_running(text):
        notes.append(NAMES_SELF_RUNNING)
    return " ".join(notes)


async def execute(context: ToolContext, command: Command) -> ToolResult:
    """Run it, and put on record which files it changed."""
    if not command.may_write:
        return await _run(context, command)
    author = Author(session_pk=context.session_pk, run_pk=context.run_pk, call_pk=context.call_pk)
    try:
        async with watched(context.root, author=author, write=context.write) as watch:
            protection = await carry_through(
                asyncio.to_thread(watch.protect, may_write_config=command.may_write_config)
            )
            result = await _run(context, command, protection)
    except (Rejected, StorageFull) as error:
        return ToolResult(ok=False, output=error.message)
    # The last line stays the one that tells the exit code
    if not watch.note:
        return result
    return replace(result, output=f"[{watch.note}]\n{result.output}")


async def _run(
    context: ToolContext, command: Command, protection: Protection | None = None
) -> ToolResult:
    try:
        done = await sandbox.run_command(
            command.words,
            root=context.root,
            folder=command.folder,
            limits=default_limits(seconds=command.seconds),
            allows_network=command.allows_network,
            may_write=command.may_write,
            may_write_config=command.may_write_config,
            protection=protection,
            environment=command.environment,
            readable=command.readable,
            report=context.report,
        )
    except Rejected as error:
        return ToolResult(ok=False, output=error.message)
    return tell_end(done, seconds=command.seconds)


def tell_end(done: sandbox.Finished, *, seconds: int) -> ToolResult:
    """The output, then how it ended unless all is well; the last line names the exit code as
    ``domain.session_state.statements`` reads it."""
    lines = []
    if not done.output:
        lines.append("[no output]")
    if done.reason:
        lines.append(f"[{_explain(done.reason, seconds)}]")
    elif done.exit_code:
        lines.append(f"[exit code {done.exit_code}]")
    output = done.output
    if lines and output and not output.endswith("\n"):
        output += "\n"
    is_ok = not done.reason and done.exit_code == 0
    return ToolResult(ok=is_ok, output=output + "\n".join(lines), exit_code=done.exit_code)


def _explain(reason: str, seconds: int) -> str:
    loom = settings.LOOM
    if reason != "time":
        return ENDED[reason].format(
            processes=loom.command_max_processes,
            memory=loom.command_max_memory_mb,
            written=loom.command_max_written_mb,
            min_free=loom.min_free_mib,
        )
    if seconds < loom.command_max_seconds:
        more = f"'timeout_seconds' may be up to {loom.command_max_seconds}."
    else:
        more = "It cannot have more."
    return f"It was ended: its {seconds} seconds were over. {more}"
