"""A control group that lets a command have only so many processes, where one can be made.

The kernel's own limit of processes (RLIMIT_NPROC) does not hold for root.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator

MOUNT = "/sys/fs/cgroup"
_numbers = itertools.count(1)


def make_group(most: int) -> str:
    """The folder of a new group with room for so many processes and threads; empty if
    this process may not make one. Whoever writes to its ``cgroup.procs`` joins it."""
    name = f"loom-{os.getpid()}-{next(_numbers)}"
    for parent in _parents():
        group = f"{parent}/{name}"
        with contextlib.suppress(OSError):
            os.mkdir(group)
            try:
                _write(f"{group}/pids.max", str(most))
            except OSError:
                remove_group(group)
            else:
                return group
    return ""


def remove_group(group: str) -> None:
    """Once nobody is in it any more; done already is as well."""
    with contextlib.suppress(OSError):
        os.rmdir(group)


def _parents() -> Iterator[str]:
    """Where a group could be made: beside this process's own, version 1 or 2."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, path in lines:
        if "pids" in controllers.split(","):
            yield f"{MOUNT}/pids{path.rstrip('/')}"
    for number, controllers, path in lines:
        if number == "0" and not controllers:
            yield from _with_limits(path)


def _with_limits(path: str) -> Iterator[str]:
    """Groups of version 2, from this process's own upwards, whose children can be given
    a limit."""
    while True:
        folder = f"{MOUNT}{path.rstrip('/')}"
        with contextlib.suppress(OSError), open(f"{folder}/cgroup.subtree_control") as file:
            if "pids" in file.read().split():
                yield folder
        if path in ("", "/"):
            return
        path = os.path.dirname(path)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
