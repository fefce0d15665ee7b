"""Functions that find processes which should have ended."""

import os
from pathlib import Path

LONG = 1_000_000 + os.getpid()
"""A number of seconds that never passes and that no other run of the tests uses."""


def find_processes(words: str) -> list[Path]:
    """Return the ``cmdline`` files of the processes whose command line contains the words."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if words in _read(path)]


def find_children(words: str) -> list[str]:
    """Return the command lines of this process's children that contain the words."""
    pids = [
        pid
        for children in Path("/proc/self/task").glob("*/children")
        for pid in children.read_text().split()
    ]
    return [line for pid in pids if words in (line := _read(Path(f"/proc/{pid}/cmdline")))]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # the process has ended meanwhile
        return ""
