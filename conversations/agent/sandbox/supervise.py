"""A program that runs one command, enforces its limits, and ends everything that it started.

It is a program of its own (``python -I -S supervise.py OPTIONS COMMAND …``), because it has to
survive when the server is killed. It also has to reap the processes that a command leaves behind:
as a "subreaper" it becomes the parent of every orphan below it. When it has ended, no process of
the command is left.

It ends the command on a timeout, on SIGTERM, and when its own parent dies (the kernel sends SIGTERM
then). It sends SIGTERM to every process, and SIGKILL after a grace period or at the second SIGTERM.
A command with too many processes, too much memory or too much on the disk is killed at once. The
supervisor writes one JSON object to the status pipe: ``exit`` (negative: the signal) and
``reason``. The command gets the supervisor's own environment.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

TICK_SECONDS = 0.1
KILL_GRACE_SECONDS = 2.0  # Between SIGTERM and SIGKILL
NICE = 5
LOOK_SECONDS_PER_TICK = 0.02  # For scanning the folder
LOOK_INTERVAL_SECONDS = 5.0
LOOK_REST_FACTOR = 5  # Pause before the next scan, as a multiple of the last scan's duration
SHARED_LOOK_INTERVAL_SECONDS = 1.0  # For memory that processes share
# Files whose size before the command is recorded, and the time for that. Other files that the
# command touches count with their whole size.
MIN_KNOWN_BYTES, MAX_KNOWN_FILES = 64 * 1024, 100_000
LISTING_SECONDS = 1.0
OOM_SCORE = b"500"  # If memory is short, the kernel ends commands before the server

SET_PDEATHSIG, SET_SUBREAPER = 1, 36
WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PAGE = os.sysconf("SC_PAGESIZE")


def main() -> int:
    options: dict[str, Any] = json.loads(sys.argv[1])
    status = options["status"]
    os.set_inheritable(status, False)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(SET_SUBREAPER, 1)
    if os.getppid() != options["parent"]:
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    with contextlib.suppress(OSError):  # the command may keep the machine busy
        os.setpriority(os.PRIO_PROCESS, 0, -NICE)
    disk = DiskMeter(options["disk"]) if options.get("disk") else None
    child = os.fork()
    if child == 0:
        _exec_command(sys.argv[2:], options, libc)
    supervisor = Supervisor(child, options, disk)
    supervisor.watch()
    supervisor.end_all()
    if options.get("group"):
        with contextlib.suppress(OSError):
            os.rmdir(options["group"])
    report = {"exit": supervisor.exit, "reason": supervisor.reason}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(report).encode())
    return 0


def _exec_command(command: list[str], options: dict[str, Any], libc: ctypes.CDLL) -> NoReturn:
    try:
        if options.get("group"):
            with open(f"{options['group']}/cgroup.procs", "w") as procs:
                procs.write("0")
        os.setsid()
        libc.prctl(SET_PDEATHSIG, signal.SIGKILL)
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
            file.write(OOM_SCORE)
        for name, value in options["limits"].items():
            kind = getattr(resource, name)
            _, hard_limit = resource.getrlimit(kind)  # a limit that is lower already stays
            value = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
            resource.setrlimit(kind, (value, value))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.umask(0o022)
        os.execvp(command[0], command)  # noqa: S606 (that is its purpose)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


class Supervisor:
    def __init__(self, child: int, options: dict[str, Any], disk: "DiskMeter | None") -> None:
        self.child = child
        self.exit: int | None = None
        self.reason = ""
        self._options = options
        self._deadline: float = time.monotonic() + options["seconds"]
        self._kill_at: float | None = None
        self._memory = MemoryMeter(options["bytes"])
        self._disk = disk

    def watch(self) -> None:
        """Return when the command has ended by itself or has to be ended by force."""
        while True:
            with contextlib.suppress(ChildProcessError):
                while (pid_and_status := os.waitpid(-1, os.WNOHANG))[0]:
                    if pid_and_status[0] == self.child:
                        self.exit = os.waitstatus_to_exitcode(pid_and_status[1])
            if self.exit is not None:
                return
            received = signal.sigtimedwait(WATCHED, TICK_SECONDS)
            now = time.monotonic()
            if received and received.si_signo != signal.SIGCHLD:
                self._stop("stopped")
            elif now >= self._deadline:
                self._stop("time")
            if self._kill_at and now >= self._kill_at:
                return
            if not self.reason:
                max_processes = self._options["processes"]
                pids = descendants(
                    os.getpid(), skipped=self._options["skipped"], max_pids=max_processes
                )
                if len(pids) > max_processes:
                    self.reason = "processes"
                elif self._memory.exceeded(pids):
                    self.reason = "memory"
                elif self._disk:
                    self.reason = self._disk.exceeded()
                if self.reason:
                    return

    def _stop(self, reason: str) -> None:
        if self._kill_at is not None:
            if reason == "stopped":  # the second time
                self._kill_at = time.monotonic()
            return
        self.reason = reason
        self._kill_at = time.monotonic() + KILL_GRACE_SECONDS
        for pid in descendants(os.getpid(), skipped=self._options["skipped"]):
            _send(pid, signal.SIGTERM)

    def end_all(self) -> None:
        """Kill all remaining processes until none is left.

        A sandbox dies with its first process. Without a sandbox all processes are stopped before
        they are killed, because they could otherwise multiply faster than they are killed."""
        if self.exit is None:
            _send(self.child, signal.SIGKILL)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            signalled: set[int] = set()
            while new := set(descendants(os.getpid())) - signalled:
                signalled |= new
                for pid in new:
                    _send(pid, number)
        while True:
            try:
                ended_pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended_pid == self.child:
                self.exit = os.waitstatus_to_exitcode(status)
            elif not ended_pid:
                for pid in descendants(os.getpid()):
                    _send(pid, signal.SIGKILL)
                signal.sigtimedwait(WATCHED, TICK_SECONDS / 10)


class MemoryMeter:
    """Measures the memory of the command's processes, and counts shared memory once.

    Shared mappings and files without a name do not belong to one process. The use of such memory on
    the whole machine is cheap to read. The command's processes are only examined if that figure is
    more than the command has left. Shared memory only counts as too much after two consecutive
    examinations.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        with open(os.memfd_create("")) as nameless:
            self._device = os.fstat(nameless.fileno()).st_dev
        self._next_look = 0.0
        self._in_doubt = False

    def exceeded(self, pids: list[int]) -> bool:
        bytes_left = self._most_bytes - sum(map(private_bytes, pids))
        now = time.monotonic()
        if bytes_left < 0:
            return True
        if now < self._next_look or listed_bytes("/proc/meminfo", "Shmem:") <= bytes_left:
            return False
        # The kernel divides each page by the number of processes that have it mapped, so a page
        # counts several times if processes end during the examination. A file without a name may be
        # mapped, too, so the larger of the two figures counts.
        mapped = sum(listed_bytes(f"/proc/{pid}/smaps_rollup", "Pss_Shmem:") for pid in pids)
        is_above = max(mapped, sum(map(disk_bytes, held_without_name(self._device)))) > bytes_left
        exceeded = is_above and self._in_doubt
        self._in_doubt = is_above
        self._next_look = now + (TICK_SECONDS / 2 if is_above else SHARED_LOOK_INTERVAL_SECONDS)
        return exceeded


class DiskMeter:
    """Measures the disk space that the command takes in ``folder``, and the free space.

    A file that existed before the command counts with what it has grown by.

    The free space of the file system is read at each tick, because that costs the same whatever the
    folder holds. The folder is scanned, a bit at each tick, if so much less is free than at the
    start that the command may have taken more than ``bytes``. Data that others have written does
    not count against the command: the next scan comes when as much more space is gone as the
    command has left. Others may also have freed space, so the folder is also scanned at intervals.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder: str = options["folder"]
        self._device = os.stat(self._folder).st_dev
        self._known_sizes = self._list_known()
        self._most_bytes: int = options["bytes"]
        self._min_free: int = options["min_free"]
        self._since = time.time() - 0.05  # the kernel's clock for file times has coarse ticks
        self._free = free_bytes(self._folder)
        self._look_at = self._most_bytes
        self._next_look = time.monotonic() + LOOK_INTERVAL_SECONDS
        self._look: Iterator[int] | None = None
        self._look_began = 0.0
        self._written_bytes = 0

    def exceeded(self) -> str:
        try:
            free = free_bytes(self._folder)
        except OSError:  # the folder was removed
            return ""
        if free < self._min_free:
            return "disk"
        bytes_gone, now = self._free - free, time.monotonic()
        if self._look is None and (bytes_gone > self._look_at or now > self._next_look):
            self._look_began = now
            self._written_bytes = 0
            nameless_sizes = map(self._grown, held_without_name(self._device))
            self._look = chain(self._written(), nameless_sizes)
        until = now + LOOK_SECONDS_PER_TICK
        for size in self._look or ():
            self._written_bytes += size
            if self._written_bytes > self._most_bytes or time.monotonic() > until:
                break
        else:
            if self._look is not None:  # the scan is complete
                self._look = None
                self._look_at = bytes_gone + self._most_bytes - self._written_bytes
                took = time.monotonic() - self._look_began
                self._next_look = now + max(LOOK_INTERVAL_SECONDS, LOOK_REST_FACTOR * took)
        return "written" if self._written_bytes > self._most_bytes else ""

    def _list_known(self) -> dict[int, int]:
        """Return the bytes that the larger files of the folder take, by inode."""
        sizes: dict[int, int] = {}
        until = time.monotonic() + LISTING_SECONDS
        for entry in entries_below(self._folder):
            if len(sizes) >= MAX_KNOWN_FILES or time.monotonic() > until:
                break
            if isinstance(entry, str) or entry.st_dev != self._device:
                continue
            if stat.S_ISREG(entry.st_mode) and disk_bytes(entry) >= MIN_KNOWN_BYTES:
                sizes[entry.st_ino] = disk_bytes(entry)
        return sizes

    def _written(self) -> Iterator[int]:
        """Yield for each entry how many bytes it has grown by, or 0 if it was not touched."""
        for entry in entries_below(self._folder):
            size = 0
            if isinstance(entry, str):
                # A folder that became inaccessible meanwhile may hold anything. A folder that was
                # inaccessible before holds nothing of the command's.
                with contextlib.suppress(OSError):
                    size = sys.maxsize if os.stat(entry).st_ctime >= self._since else 0
            elif entry.st_ctime >= self._since:  # the only one of its times that nobody can set
                size = self._grown(entry)
            yield size

    def _grown(self, status: os.stat_result) -> int:
        earlier_bytes = 0
        if status.st_dev == self._device:
            earlier_bytes = self._known_sizes.get(status.st_ino, 0)
        return max(0, disk_bytes(status) - earlier_bytes)


def free_bytes(folder: str) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def disk_bytes(status: os.stat_result) -> int:
    return status.st_blocks * 512


def entries_below(folder: str) -> Iterator[os.stat_result | str]:
    """Yield everything below the folder, and the path of each folder that may not be opened."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            entries = os.scandir(path)
        except OSError as error:
            if error.errno == errno.EACCES:
                yield path
            continue
        with entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry.stat(follow_symlinks=False)


def held_without_name(device: int) -> Iterator[os.stat_result]:
    """Yield the nameless files on a file system that the command's processes have open.

    Such files were removed from their folder, or never had a name."""
    seen = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{name}")
                    is_new = status.st_nlink == 0 and status.st_ino not in seen
                    if is_new and status.st_dev == device and stat.S_ISREG(status.st_mode):
                        seen.add(status.st_ino)
                        yield status


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants(pid: int, *, skipped: int = 0, max_pids: int = 10_000) -> list[int]:
    """Return the processes below ``pid``, without the first ``skipped`` levels.

    The search ends when more than ``max_pids`` are found."""
    pids: list[int] = []
    waiting = deque([(pid, -skipped)])
    while waiting and len(pids) <= max_pids:
        parent, level = waiting.popleft()
        below = children(parent)
        if level >= 0:
            pids += below
        waiting += [(child, level + 1) for child in below]
    return pids


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
    return pids


def private_bytes(pid: int) -> int:
    """Return the memory that a process does not share with others; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def listed_bytes(path: str, name: str) -> int:
    """Return the value of ``name`` in a file of the kernel, in bytes; 0 if it is missing."""
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
