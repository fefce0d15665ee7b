"""Looking for processes that should be gone."""

import os
from pathlib import Path

LONG = 1_000_000 + os.getpid()
"""Seconds that nobody waits for, and that no other run of the tests uses."""


def find_processes(words: str) -> list[Path]:
    """Those with these words in their command line."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if words in _read(path)]


def find_children(words: str) -> list[str]:
    """Command lines of this process's own children, with these words in them."""
    pids = [
        pid
        for children in Path("/proc/self/task").glob("*/children")
        for pid in children.read_text().split()
    ]
    return [line for pid in pids if words in (line := _read(Path(f"/proc/{pid}/cmdline")))]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # gone meanwhile
        return ""
