"""What a file was and is: the plain values behind every record of a change."""

import hashlib
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

# The content of a folder, as far as records go: it has none of its own.
NOTHING = hashlib.sha256(b"").hexdigest()


def count_entries(*, files: int, folders: int) -> str:
    """Such as "2 files and 1 folder"; files are not named where there are only folders."""
    counts = [(files, "file")] if files or not folders else []
    counts += [(folders, "folder")] if folders else []
    return " and ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """One entry of a folder as it was at one moment; where there is none, None stands.

    ``mode`` is all of ``st_mode``: the type and the permission bits. ``digest`` is the SHA-256 of
    the content; of a link: of its text; of a folder: NOTHING; of what is not read (too large,
    forbidden, a device): of its size and times, and then ``is_read`` is False. ``has_copy``: the
    content can be put back."""

    mode: int
    digest: str
    size: int
    has_copy: bool = True
    is_read: bool = True

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def permissions(self) -> int:
        return stat.S_IMODE(self.mode)


def same_state(one: FileState | None, other: FileState | None) -> bool:
    """Whether type, permissions and content are the same, or there is nothing both times."""
    if one is None or other is None:
        return one is other
    return (one.mode, one.digest) == (other.mode, other.digest)


def digest_of(state: FileState | None) -> str:
    """The content's digest; empty where there is nothing."""
    return state.digest if state else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry that became another. ``path`` is relative to the workspace's folder, as the
    operating system gave it (it need not be UTF-8)."""

    path: str
    before: FileState | None
    after: FileState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """A change as it is on record. ``is_done`` False: it was about to happen when its process
    ended. ``started_at``: the entry was ``before`` at the latest then."""

    pk: int
    path: str
    before: FileState | None
    after: FileState | None
    started_at: datetime
    is_done: bool
    run: UUID | None = None
    call: UUID | None = None
    call_name: str = ""
    turn: int | None = None
    revert: UUID | None = None
    reverted_by: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """In whose name files are changed: a call of a run, or a revert."""

    session_pk: int
    run_pk: int | None = None
    call_pk: int | None = None
    revert_pk: int | None = None


def stored_path(path: str) -> str:
    """A path as every database can hold it: one that is not UTF-8 is quoted the way git does it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        pass
    else:
        if not path.startswith('"'):
            return path
    quoted = path.replace("\\", "\\\\").encode(errors="surrogateescape")
    return '"' + "".join(chr(b) if b < 128 else f"\\{b:03o}" for b in quoted) + '"'


def real_path(stored: str) -> str:
    """The path that ``stored_path`` made this of; never fails."""
    if len(stored) < 2 or not (stored.startswith('"') and stored.endswith('"')):
        return stored
    data = stored[1:-1].encode(errors="surrogateescape")
    return _QUOTED.sub(_unquote, data).decode(errors="surrogateescape")


_QUOTED = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def _unquote(found: re.Match[bytes]) -> bytes:
    return b"\\" if found[1] == b"\\" else bytes([int(found[1], 8)])


# How async code reaches functions that use the database.


class Crossing(Protocol):
    """Runs a function of the archive on a thread that may use the database."""

    async def __call__[**P, T](
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
