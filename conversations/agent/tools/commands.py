"""Shared code of ``shell_execute`` and ``git_command``.

It reads the working folder, runs the command within its limits, and describes how it ended.
"""

import asyncio
import json
import re
import shlex
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings
from pydantic import Field

from conversations.agent.files.executed_files import NAMES_SELF_RUNNING, names_self_running
from conversations.agent.files.paths import find_place
from conversations.agent.sandbox import command_run, support
from conversations.agent.sandbox.bubblewrap import WriteProtection
from conversations.agent.sandbox.command_run import default_limits, run_to_completion
from conversations.agent.undo.trees import watched
from conversations.domain.errors import Rejected, StorageFull
from conversations.domain.messages import join_messages, say
from conversations.domain.text import is_storable, one_line
from conversations.domain.tool_calls import PLAIN_PROGRAMS, CallKind

from .git_words import WordNotAllowed, read_list, read_words
from .tool import BadArgument, Text, ToolContext, ToolResult, Whole

# The system accepts arguments of up to 128 KiB, and a character has up to four bytes.
MAX_COMMAND_CHARS = 30_000

ENDED = {
    "processes": "It was ended because it had more than {processes} processes at once.",
    "memory": "It was ended because it used more than {memory} MiB of memory.",
    "written": "It was ended because its files together took more than {written} MiB of disk "
    "space. The files are still there.",
    "disk": "It was ended because the disk is nearly full: less than {min_free} MiB were free. Its "
    "files are still there.",
    "stopped": "It was ended by another process.",
    "lost": "It was ended because its supervisor was killed.",
}

NO_SANDBOX = (
    "Not run: it was approved for a sandbox, and this server runs commands without one now. Call "
    "it again to have it approved so."
)

Folder = Annotated[
    Text, Field(description="Where to run it, relative to the workspace's folder. Default: there.")
]
# 0 stands for the default.
Seconds = Annotated[
    Whole, Field(description="Seconds after which it is ended, where the default is too short.")
]


def check_text(text: str, name: str) -> None:
    """Check that the text can be passed to a program. Raise BadArgument if it cannot."""
    if len(text) > MAX_COMMAND_CHARS:
        raise BadArgument(
            f"'{name}' has more than {MAX_COMMAND_CHARS} characters. Write a file and run that "
            "instead."
        )
    if not is_storable(text):
        raise BadArgument(f"'{name}' contains a character that cannot be passed to a program.")


def read_folder(path: str, root: Path) -> Path:
    """Return the working folder. Raise BadArgument if the workspace has no such folder."""
    try:
        place = Path(find_place(root, path or ".").real)
    except Rejected as error:
        raise BadArgument(error.message) from error
    if not place.is_dir():
        raise BadArgument(f"The workspace has no folder {path[:200]!r}.")
    return place


def hides_something(text: str) -> bool:
    """Return whether the text has invisible characters, or characters that change its display."""
    return any(unicodedata.category(sign) in ("Cc", "Cf") and sign not in "\n\t" for sign in text)


def command_summary(command: str, *, folder: str) -> str:
    """Return a one-line summary; ``folder`` is empty for the workspace's own folder."""
    line = one_line(command, limit=100)
    if not folder:
        return say("Run %(command)s", command=line)
    return say("Run %(command)s in %(folder)s", command=line, folder=one_line(folder, limit=200))


def command_note(*, allows_network: bool, text: str) -> str:
    """Return a note for the person who decides whether the command may run."""
    notes = []
    if support.find_mode() == support.UNSANDBOXED:
        notes.append(say("Runs without a sandbox, with all rights of the server."))
    elif allows_network:
        notes.append(say("Runs in a sandbox with network access."))
    else:
        notes.append(say("Runs in a sandbox without network access."))
    if hides_something(text):
        notes.append(
            say(
                "The command contains invisible characters, or characters that change the "
                "direction of text."
            )
        )
    if names_self_running(text):
        notes.append(NAMES_SELF_RUNNING)
    return join_messages(notes)


async def execute(
    context: ToolContext,
    words: Sequence[str],
    *,
    timeout_seconds: int,
    may_write: bool = True,
    may_write_config: bool = False,
    **options: Any,
) -> ToolResult:
    """Run the command and record which files it changed.

    A command that was approved for a sandbox (the call's basis) does not run without one. If
    ``may_write`` is False, the command sees the workspace read-only. With ``may_write_config`` it
    may write the files that configure git. ``options`` are passed to ``command_run.run_command``.
    """
    if (context.basis, support.find_mode()) == (support.SANDBOXED, support.UNSANDBOXED):
        return ToolResult(ok=False, output=NO_SANDBOX)
    loom = settings.LOOM
    seconds = min(timeout_seconds or loom.command_seconds, loom.command_max_seconds)

    async def run(protection: WriteProtection | None = None) -> ToolResult:
        try:
            done = await command_run.run_command(
                words,
                root=context.root,
                limits=default_limits(seconds=seconds),
                may_write_config=may_write_config,
                protection=protection,
                report=context.report,
                **options,
            )
        except Rejected as error:
            return ToolResult(ok=False, output=error.message)
        return make_command_result(done, seconds=seconds)

    if not may_write:
        return await run()
    try:
        async with watched(
            context.root, author=context.author, write=context.write, report=context.report
        ) as watch:
            protection = await run_to_completion(
                asyncio.to_thread(watch.protect, may_write_config=may_write_config)
            )
            result = await run(protection)
    except (Rejected, StorageFull) as error:
        return ToolResult(ok=False, output=error.message)
    # The line with the exit code has to stay the last one.
    return replace(result, output=f"[{watch.note}]\n{result.output}") if watch.note else result


def make_command_result(done: command_run.CompletedCommand, *, seconds: int) -> ToolResult:
    """Return the output, followed by how the command ended unless it succeeded.

    The last line has the exit code, in the form that ``domain.session_state.commands`` reads.
    """
    loom, reason = settings.LOOM, ""
    if done.reason == "time":
        more = f"'timeout_seconds' may be at most {loom.command_max_seconds}."
        more = more if seconds < loom.command_max_seconds else "This is the maximum."
        reason = f"It was ended after {seconds} seconds. {more}"
    elif done.reason:
        reason = ENDED[done.reason].format(
            processes=loom.command_max_processes,
            memory=loom.command_max_memory_mb,
            written=loom.command_max_written_mb,
            min_free=loom.min_free_mib,
        )
    elif done.exit_code:
        reason = f"exit code {done.exit_code}"
    lines = [] if done.output else ["[no output]"]
    lines += [f"[{reason}]"] if reason else []
    output = done.output
    if lines and output and not output.endswith("\n"):
        output += "\n"
    is_ok = not done.reason and done.exit_code == 0
    return ToolResult(ok=is_ok, output=output + "\n".join(lines), exit_code=done.exit_code)


# The kinds of commands that an answer of "always" covers in a question about a shell command.

# Maximum length of a command and its folder that "always" may cover, because both are shown on a
# button and in a list.
MAX_LINE_CHARS = 160

# Words without syntax or expansion, which a shell takes literally. Single quotes may contain any
# character.
_PLAIN_WORDS = re.compile(r"""(?:[ \w%+,./:=@-]|'[^'\n]*'|"[^"\n$`\\!]*")+""")

# Options that run no other program, for programs that also have options that do.
_OPTIONS = {
    "diff": """-i --ignore-case -E --ignore-tab-expansion -Z --ignore-trailing-space -b
        --ignore-space-change -w --ignore-all-space -B --ignore-blank-lines -I=
        --ignore-matching-lines= -a --text -c -C= -u -U= --unified? --context? -q --brief -e --ed
        -n --rcs -y --side-by-side -W= --width= --left-column --suppress-common-lines -p
        --show-c-function -F= --show-function-line= --label= -t --expand-tabs -T --initial-tab
        -r --recursive -N --new-file -x= --exclude= -s --report-identical-files -d --minimal
        --color? --strip-trailing-cr""",
    "rg": """-n --line-number -N --no-line-number -i --ignore-case -S --smart-case -s
        --case-sensitive -w --word-regexp -x --line-regexp -F --fixed-strings -v --invert-match
        -l --files-with-matches --files-without-match -c --count --count-matches -o
        --only-matching -e= --regexp= -g= --glob= --iglob= -t= --type= -T= --type-not= -A=
        --after-context= -B= --before-context= -C= --context= -m= --max-count= -d= --max-depth=
        -u --unrestricted --hidden --no-ignore -U --multiline -P --pcre2 --files --type-list
        --sort= --sortr= --json --heading --filename -I -H --with-filename --column --color=
        --stats -q --quiet --trim -a --text -r= --replace= -j= --threads= -0 --null --vimgrep""",
    "sort": """-b --ignore-leading-blanks -d --dictionary-order -f --ignore-case -g
        --general-numeric-sort -i --ignore-nonprinting -M --month-sort -h --human-numeric-sort -n
        --numeric-sort -R --random-sort -r --reverse -V --version-sort -c --check? -C -k= --key=
        -m --merge -o= --output= -s --stable -t= --field-separator= -u --unique -z
        --zero-terminated""",
}

# ``find`` has no bundled or abbreviated options. Options that run, delete or write are left out.
_FIND_WORDS = frozenset(
    """-H -L -P -a -amin -and -anewer -atime -cmin -cnewer -ctime -daystart -depth -empty
    -executable -false -follow -gid -group -ignore_readdir_race -iname -inum -ipath -iregex
    -links -ls -maxdepth -mindepth -mmin -mount -mtime -name -newer -noleaf -not -o -or -path
    -perm -print -print0 -printf -prune -quit -readable -regex -regextype -samefile -size -true
    -type -uid -user -wholename -writable -xdev -xtype
    """.split()  # noqa: SIM905 (forty quoted names are harder to read)
)
_NUMBER = re.compile(r"[-+]\d+[a-zA-Z]?")


def kind_of(command: str, *, folder: str = "") -> CallKind | None:
    """Return the kind of the command, or None if "always" may not cover it.

    ``folder`` is where the command runs, relative to the workspace's folder, or empty for that
    folder. There is no kind for a command that has invisible characters, names files that other
    programs run by themselves, has several lines, or is too long to be read.
    """
    if hides_something(command) or names_self_running(f"{command}\n{folder}"):
        return None
    if program := _plain_program(command):
        limited = program == "find" or program in _OPTIONS
        label = (
            say("“%(command)s” with options that run no other program", command=program)
            if limited
            else say("“%(command)s” with any arguments", command=program)
        )
        return CallKind(key=f"shell:{program}", label=label)
    if not command.strip() or not command.isprintable() or hides_something(folder):
        return None
    if len(command) + len(folder) > MAX_LINE_CHARS:
        return None
    key = json.dumps([folder, command], ensure_ascii=False)
    label = (
        say("exactly “%(command)s” in %(folder)s", command=command, folder=folder)
        if folder
        else say("exactly “%(command)s”", command=command)
    )
    return CallKind(key=f"line:{key}", label=label)


def _plain_program(command: str) -> str:
    """Return the program of a command that has only plain words and starts no other program."""
    if not _PLAIN_WORDS.fullmatch(command):
        return ""
    program, *words = shlex.split(command) or [""]
    if program not in PLAIN_PROGRAMS:
        return ""
    if program == "find":
        options = [word for word in words if word.startswith("-")]
        is_plain = all(word in _FIND_WORDS or _NUMBER.fullmatch(word) for word in options)
        return program if is_plain else ""
    if program in _OPTIONS:
        try:
            read_words(words, read_list(_OPTIONS[program]))
        except WordNotAllowed:
            return ""
    return program
