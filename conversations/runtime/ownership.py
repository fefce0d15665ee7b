"""Which process owns a run, and whether it is still there.

Each process holds a lock on a file of its own in the data folder for as long as
it lives. The kernel lets go of it when the process ends in any way, so another
process on the same data sees at once that an owner is gone. An owner without a
file lives on another host; there the heartbeat's age decides.
"""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from uuid import uuid4

ANSWER_LOCKS = "answer-"  # What the names of files begin with that requests hold
REVERTS_LOCK = "open-reverts.lock"  # Shared by all reverts that run


class Owner:
    """This process's identity. ``close`` gives it up."""

    def __init__(self, folder: Path) -> None:
        self.id = uuid4().hex
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{self.id}.lock"
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def is_gone(self, owner: str) -> bool | None:
        """True: that process has ended. False: it runs. None: not known here."""
        if owner == self.id:
            return False
        path = self._folder / f"{owner}.lock"
        if not owner.isalnum() or not path.exists():
            return None
        # For writing too: else NFS gives no lock.
        with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def remove_leftovers(self) -> None:
        """Remove the files of processes that are gone and own no run any more."""
        for path in self._folder.glob("*.lock"):
            if self.is_gone(path.stem):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()


def remove_answer_locks(folder: Path, *, before: datetime) -> None:
    """Remove the files of requests that ended with their process, and that nobody repeated."""
    for path in folder.glob(f"{ANSWER_LOCKS}*.lock"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before.timestamp():
                path.unlink()


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether this process has the lock on that file, for the time of the block."""
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
    """Hold the lock on that file together with others that share it, once nobody has it alone."""
    with path.open("a+") as file:  # for reading too: else NFS gives no lock that is shared
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_SH)
        yield
