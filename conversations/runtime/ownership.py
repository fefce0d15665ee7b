"""The process that owns a run, and whether it is still alive.

Each process holds a lock on a file of its own in the data folder for as long as it lives. The
kernel releases the lock when the process ends in any way, so another process with the same data
folder notices at once that an owner is gone. An owner without a file runs on another host, where
the age of its heartbeat decides.
"""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from uuid import uuid4

ANSWER_LOCKS = "answer-"  # Prefix of the files that requests hold locks on
REVERTS_LOCK = "open-reverts.lock"  # Shared by all running reverts


class Owner:
    """The identity of this process, until ``close`` gives it up."""

    def __init__(self, folder: Path) -> None:
        self.id = uuid4().hex
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{self.id}.lock"
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def is_gone(self, owner: str) -> bool | None:
        """Return whether that process has ended, or None if that cannot be seen on this host."""
        if owner == self.id:
            return False
        path = self._folder / f"{owner}.lock"
        if not owner.isalnum() or not path.exists():
            return None
        # Opened for writing as well, because NFS gives no exclusive lock otherwise.
        with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def remove_leftovers(self) -> None:
        """Remove the lock files of processes that are gone, once their runs are recovered."""
        for path in self._folder.glob("*.lock"):
            if self.is_gone(path.stem):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()


def remove_answer_locks(folder: Path, *, before: datetime) -> None:
    """Remove the lock files of requests that ended with their process and were not repeated."""
    for path in folder.glob(f"{ANSWER_LOCKS}*.lock"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before.timestamp():
                path.unlink()


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file for the time of the block, and yield whether that succeeded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextlib.asynccontextmanager
async def share_lock(path: Path) -> AsyncIterator[None]:
    """Hold a shared lock on a file, once no process holds it exclusively."""
    with path.open("a+") as file:  # NFS gives no shared lock on a file that is not readable
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_SH)
        yield
