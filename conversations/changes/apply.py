"""Putting, moving and removing files, each recorded before it is touched.

The order is: keep a copy of what is there (a blob), record the change (durable), touch
the file, record that it is done. After a crash at any point the record says which file
may have been touched, and its former content is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conversations.domain.crossing import Crossing
from conversations.domain.errors import Rejected


class FileChanged(Rejected):
    """The file is not what the change was made for; somebody else wrote to it."""

    code = "file_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """In whose name files are changed: a call of a run, or a revert."""

    session_pk: int
    run_pk: int | None = None
    call_pk: int | None = None
    revert_pk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write a file, whole. ``expect`` is the digest of the content that it has to have
    now, empty: there must be none, None: whatever it is. ``mode``: permission bits,
    None: those it has, or the usual ones."""

    path: str
    data: bytes
    expect: str | None = None
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a file, or a folder that is empty."""

    path: str
    expect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Rename a file or a folder. There must be nothing at ``target``."""

    source: str
    target: str


type FileAction = Put | Remove | Move


async def apply_changes(
    root: Path, actions: Sequence[FileAction], *, author: Author, write: Crossing
) -> None:
    """Carry out the actions in order, inside the workspace's folder.

    Raises FileChanged, or Rejected with a sentence (outside the folder, not a file, too
    large, no space); what was done before stays done and recorded."""
    raise NotImplementedError
