"""Running one command for a tool, from the event loop.

The command is a child of a supervisor (``supervise``), which alone decides when it is over. The
output pipe is closed when the supervisor and all its descendants are gone. So reading to the end of
the pipe waits for the end of the command. This needs no signal handler and no thread, and works the
same on every event loop.
"""

import asyncio
import codecs
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from conversations.domain.errors import Rejected
from conversations.domain.messages import say
from conversations.domain.text import storable

from . import supervise, support
from .bubblewrap import HOME, SandboxSpec, WriteProtection, interpreter_paths, wrap
from .repositories import find_repositories, make_protection

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# A command's environment is built from scratch, so it contains no secret. The variables turn off
# prompts and pagers, because nobody could answer them.
_COMMON = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "SHELL": "/bin/sh",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
}


MOUNT = "/sys/fs/cgroup"
_numbers = itertools.count(1)


def make_group(max_tasks: int) -> str:
    """Return the folder of a new control group that limits processes and threads together.

    Return an empty string if this process may not make a group. A process that writes to the
    group's ``cgroup.procs`` joins the group."""
    name = f"loom-{os.getpid()}-{next(_numbers)}"
    for parent in _parents():
        group = f"{parent}/{name}"
        with suppress(OSError):
            os.mkdir(group)
            try:
                with open(f"{group}/pids.max", "w") as file:
                    file.write(str(max_tasks))
            except OSError:
                remove_group(group)
            else:
                return group
    return ""


def remove_group(group: str) -> None:
    """Remove an empty control group, unless it has been removed already."""
    with suppress(OSError):
        os.rmdir(group)


def _parents() -> Iterator[str]:
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, path in lines:
        if "pids" in controllers.split(","):
            yield f"{MOUNT}/pids{path.rstrip('/')}"
    for number, controllers, path in lines:
        while number == "0" and not controllers:
            # In version 2, the children of some groups from here upwards can be given a limit.
            folder = f"{MOUNT}{path.rstrip('/')}"
            with suppress(OSError), open(f"{folder}/cgroup.subtree_control") as file:
                if "pids" in file.read().split():
                    yield folder
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


REPORT_SECONDS = 0.05
# For output beyond the limit, the last LATE_REPORT_BYTES are reported each LATE_REPORT_SECONDS.
LATE_REPORT_SECONDS, LATE_REPORT_BYTES = 1.0, 16_000

_CONTINUATION = bytes(range(0x80, 0xC0))  # Bytes that continue a character


class KeptOutput:
    """The first ``head`` and the last ``tail`` bytes of an output.

    For example, 3 and 2 bytes of "abcdefgh" are "abc\\n[… 3 bytes left out …]\\ngh"."""

    def __init__(self, *, head: int, tail: int) -> None:
        self.count = 0
        self._head_limit, self._head = head, bytearray()
        self._tail_limit, self._tail = tail, bytearray()

    @property
    def left_out(self) -> int:
        return self.count - len(self._head) - len(self._tail)

    def add(self, data: bytes) -> None:
        self.count += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_limit :]
        del self._tail[: -self._tail_limit]

    def text(self) -> str:
        if self._head and not self.left_out:
            return storable((self._head + self._tail).decode(errors="replace"))
        # A character may be cut in two on either side of the gap.
        start = codecs.getincrementaldecoder("utf-8")("replace").decode(self._head)
        gap = f"\n[… {self.left_out:,} bytes left out …]\n" if self.left_out else ""
        end = self._tail.lstrip(_CONTINUATION).decode(errors="replace")
        return storable(f"{start}{gap}{end}")


class OutputReport:
    """Calls ``report`` with new output while the command runs, at most every 50 ms.

    The first ``limit`` bytes are reported completely. Of later output only the end is reported,
    once a second."""

    def __init__(self, limit: int, report: Callable[[str], None]) -> None:
        self._report = report
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsaid: list[str] = []
        self._late = KeptOutput(head=0, tail=LATE_REPORT_BYTES)
        self._said_at = 0.0

    def add(self, data: bytes) -> None:
        if self._limit > 0:
            self._unsaid.append(self._decoder.decode(data))
            self._limit -= len(data)
        else:
            self._late.add(data)
        self.send()

    def send(self, *, at_once: bool = False) -> None:
        """Report new output, unless there was a report just now."""
        if not (self._unsaid or self._late.count):
            return
        now = time.monotonic()
        seconds = LATE_REPORT_SECONDS if self._late.count else REPORT_SECONDS
        if not at_once and now - self._said_at < seconds:
            return
        text = storable("".join(self._unsaid)) + self._late.text()
        self._unsaid.clear()
        self._late = KeptOutput(head=0, tail=LATE_REPORT_BYTES)
        self._said_at = now
        if text:
            self._report(text)


READ_BYTES = 256 * 1024
FLOOD_PAUSE_SECONDS = 0.005  # When output is no longer kept; makes a flood cheap
SUPERVISOR_GRACE_SECONDS = supervise.KILL_GRACE_SECONDS + 8  # Then the supervisor itself is killed
# The kernel counts processes and threads alike. It refuses more than this many times the number of
# processes that a command may have.
THREADS_PER_PROCESS = 4
# Without this, "git checkout BRANCH" of a remote's branch would fail, because git cannot write the
# tracking information to the read-only configuration.
NO_TRACKING = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "branch.autoSetupMerge",
    "GIT_CONFIG_VALUE_0": "false",
}
BWRAP_LEVELS = 2  # Levels of bwrap's own processes above the command


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """The limits of one command.

    ``seconds`` limits its time. ``output_bytes`` is how much of its output is kept; further output
    is read and dropped. ``file_bytes`` limits the size of one file; the other limits apply to all
    its processes together. ``written_bytes`` is the disk space that all its files may take
    together. The command is also ended when less than ``min_free_bytes`` is free on the disk."""

    seconds: float
    output_bytes: int
    processes: int
    memory_bytes: int
    file_bytes: int
    written_bytes: int
    min_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCommand:
    """The outcome of a command.

    ``exit_code`` is that of a shell (128 + n: ended by signal n), or None if the command was ended
    by force. ``reason`` is then ``time``, ``processes``, ``memory``, ``written`` (its files took
    too much space), ``disk`` (the disk is nearly full), ``stopped`` or ``lost`` (the supervisor did
    not report)."""

    exit_code: int | None
    output: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCommand:
    """A command line with its ``environment`` and open ``descriptors``.

    The first ``skipped`` levels of processes are not the command's own."""

    words: list[str]
    environment: dict[str, str]
    skipped: int = 0
    descriptors: tuple[int, ...] = ()


@dataclass(slots=True)
class SupervisedProcess:
    """A program below a supervisor, which reports on ``status`` how the program ended."""

    process: "subprocess.Popen[bytes]"
    status: int
    group: str

    def reap(self, *, kills: bool) -> dict[str, Any]:
        """Wait for the supervisor, which is about to exit, and return its report.

        The supervisor has closed its output. With ``kills`` it has not (for example, because this
        event loop is shutting down), and is killed."""
        if kills:
            self.process.kill()
        self.process.wait()
        remove_group(self.group)
        with os.fdopen(self.status, "rb") as pipe:
            text = pipe.read(1000)
        return json.loads(text) if text else {"exit": None, "reason": "lost"}


def default_limits(*, seconds: float | None = None) -> CommandLimits:
    """Return the limits of the settings; ``seconds`` replaces the time, up to its maximum."""
    loom = settings.LOOM
    requested = loom.command_seconds if seconds is None else seconds
    return CommandLimits(
        seconds=min(requested, loom.command_max_seconds),
        output_bytes=loom.max_output_bytes,
        processes=loom.command_max_processes,
        memory_bytes=loom.command_max_memory_mb * 2**20,
        file_bytes=loom.command_max_file_mb * 2**20,
        written_bytes=loom.command_max_written_mb * 2**20,
        min_free_bytes=loom.min_free_mib * 2**20,
    )


async def run_command(
    command: Sequence[str],
    *,
    root: Path,
    folder: Path | None = None,
    limits: CommandLimits | None = None,
    allows_network: bool = False,
    protection: WriteProtection | None = None,
    may_write_config: bool = False,
    environment: dict[str, str] | None = None,
    readable: Sequence[Path] = (),
    report: Callable[[str], None] = lambda _: None,
) -> CompletedCommand:
    """Run a command (words, no shell) in a workspace's folder.

    Wait until none of its processes is left, also if the caller is cancelled. The command may
    change everything in the folder except what ``protection`` names; without ``protection``, the
    sandbox holds the folder read-only. With ``may_write_config`` the command may change the git
    configuration, but not the other files that git obeys. ``environment`` is added to a clean
    environment, and ``readable`` to the paths that the settings let a sandbox read. ``report`` is
    called with new output, at most every 50 ms. Raise Rejected if commands cannot be run."""
    limits = limits or default_limits()
    folder = folder or root
    _check_root(root)
    if protection is not None and protection.pinned and not may_write_config:
        environment = NO_TRACKING | (environment or {})
    prepared = _prepare(
        command,
        SandboxSpec(
            root=root,
            folder=folder,
            readable=[*interpreter_paths(), *settings.LOOM.sandbox_paths, *readable],
            hidden=support.hidden_places(),
            allows_network=allows_network,
            protection=protection,
        ),
        limits,
    )
    prepared = replace(prepared, environment=prepared.environment | (environment or {}))
    disk = {"bytes": limits.written_bytes, "min_free": limits.min_free_bytes, "folder": str(root)}
    running = start_supervised(
        prepared,
        folder=folder,
        options={
            "disk": None if protection is None else disk,
            "seconds": limits.seconds,
            "processes": limits.processes,
            "bytes": limits.memory_bytes,
            "group": make_group(limits.processes * THREADS_PER_PROCESS),
            # This limit of memory applies to each process, which gets an error at the limit. The
            # supervisor checks the total of all processes at intervals.
            "limits": {
                "RLIMIT_CORE": 0,
                "RLIMIT_DATA": limits.memory_bytes,
                "RLIMIT_FSIZE": limits.file_bytes,
            },
        },
        what=say("The command"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    return await run_to_completion(
        _collect_output(running, OutputReport(limits.output_bytes, report), limits),
        # SIGTERM, because a killed supervisor could not end the command's processes. At the second
        # SIGTERM it kills them without a grace period.
        on_cancel=running.process.terminate,
    )


async def run_to_completion[T](
    work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], None] = lambda: None
) -> T:
    """Wait until the work has ended, then pass on a cancellation of the caller.

    ``on_cancel`` is called at each cancellation."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_cancel()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                on_cancel()
        if not task.cancelled():
            task.exception()  # marks it as retrieved; the cancellation takes precedence
        raise


def prepare_sandboxed(
    command: Sequence[str], *, root: Path, limits: CommandLimits, allows_network: bool
) -> PreparedCommand:
    """Return a command line for a program that keeps running and that the caller starts.

    The caller has to close the descriptors. Raise Rejected if there is no sandbox."""
    if support.find_mode() != support.SANDBOXED:
        raise Rejected(
            "%(why)s Commands do not run without a sandbox.",
            why=support.describe(),
            code="no_sandbox",
        )
    _check_root(root)
    spec = SandboxSpec(
        root=root,
        folder=root,
        readable=[*interpreter_paths(), *settings.LOOM.sandbox_paths],
        hidden=support.hidden_places(),
        allows_network=allows_network,
        protection=make_protection(root, find_repositories(root)),
    )
    return _prepare(command, spec, limits)


def _check_root(root: Path) -> None:
    if root == Path(root.anchor):
        raise Rejected(
            "Cannot run commands in %(root)s: the folder is shared with the system.", root=str(root)
        )
    if root.resolve() != root or not root.is_dir():
        raise Rejected(
            "Cannot run commands in %(root)s: it is missing, a link or not a folder.",
            root=str(root),
        )


def _prepare(command: Sequence[str], spec: SandboxSpec, limits: CommandLimits) -> PreparedCommand:
    mode = support.find_mode()
    if mode == support.UNSANDBOXED:  # only the server's PATH is passed on
        temporary, path = tempfile.gettempdir(), os.environ.get("PATH") or ":".join(_SYSTEM_PATH)
        environment = {**_COMMON, "PATH": path, "HOME": temporary, "TMPDIR": temporary}
        return PreparedCommand(words=list(command), environment=environment)
    if mode != support.SANDBOXED:
        raise Rejected(
            "%(why)s See LOOM_UNSANDBOXED_SHELL.", why=support.describe(), code="no_sandbox"
        )
    sandbox = support.find_support()
    if prlimit := support.find_prlimit():
        max_tasks = limits.processes * THREADS_PER_PROCESS
        command = [prlimit, f"--nproc={max_tasks}:{max_tasks}", "--", *command]
    abilities = sandbox.abilities
    seccomp = support.open_filter() if abilities.filters else None
    folders = [str(path / "bin") for path in spec.readable if (path / "bin").is_dir()]
    path = ":".join(dict.fromkeys([*folders, *_SYSTEM_PATH]))
    return PreparedCommand(
        words=wrap(command, spec, bwrap=sandbox.bwrap, abilities=abilities, seccomp=seccomp),
        environment={**_COMMON, "PATH": path, "HOME": HOME, "TMPDIR": "/tmp"},  # noqa: S108 (its own)
        skipped=BWRAP_LEVELS,
        descriptors=() if seccomp is None else (seccomp,),
    )


def start_supervised(
    prepared: PreparedCommand,
    *,
    folder: Path,
    options: dict[str, Any],
    what: str,
    stdin: int,
    stderr: int,
) -> SupervisedProcess:
    """Start a program below a supervisor with these options (see ``supervise``).

    The descriptors of ``prepared`` are closed. Raise Rejected if ``what`` cannot be started."""
    status, writable = os.pipe()
    options |= {"parent": os.getpid(), "status": writable, "skipped": prepared.skipped}
    supervisor = [sys.executable, "-I", "-S", supervise.__file__, json.dumps(options)]
    try:
        process = subprocess.Popen(  # noqa: S603 (running commands is what this is for)
            [*supervisor, *prepared.words],
            cwd=folder,
            # Passed through the supervisor's environment, because every user of the machine can see
            # its arguments.
            env=prepared.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[writable, *prepared.descriptors],
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        os.close(status)
        remove_group(options["group"])
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Rejected(
            "%(what)s cannot be started: %(reason)s.", what=what, reason=reason
        ) from error
    finally:
        for descriptor in (writable, *prepared.descriptors):
            os.close(descriptor)
    return SupervisedProcess(process=process, status=status, group=options["group"])


async def _collect_output(
    running: SupervisedProcess, report: OutputReport, limits: CommandLimits
) -> CompletedCommand:
    reader = asyncio.StreamReader(limit=READ_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), running.process.stdout
    )
    half = max(limits.output_bytes // 2, 1)
    output = KeptOutput(head=half, tail=half)
    has_ended = False

    async def read(seconds: float) -> bool:
        """Read until the end of the pipe, which is the end of the supervisor, or the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while data := await _next(reader, report):
                    output.add(data)
                    report.add(data)
                    if output.left_out:
                        await asyncio.sleep(FLOOD_PAUSE_SECONDS)
                report.send(at_once=True)
                return True
        return False

    try:
        has_ended = await read(limits.seconds + SUPERVISOR_GRACE_SECONDS)
        if not has_ended:
            running.process.kill()  # this ends the sandbox, too
            has_ended = await read(supervise.KILL_GRACE_SECONDS)
    finally:
        transport.close()
        status = running.reap(kills=not has_ended)
    code, reason = status["exit"], status["reason"]
    if code is not None and code < 0:
        code = 128 - code
    return CompletedCommand(exit_code=None if reason else code, output=output.text(), reason=reason)


async def _next(reader: asyncio.StreamReader, report: OutputReport) -> bytes:
    """Return more output; while there is none, report pending output after a moment."""
    reading = asyncio.ensure_future(reader.read(READ_BYTES))
    try:
        done, _ = await asyncio.wait({reading}, timeout=REPORT_SECONDS)
        if not done:
            report.send(at_once=True)
        return await reading
    finally:
        reading.cancel()
