"""Reading a small text file of a workspace, wherever its links lead.

A workspace's folder belongs to people and programs that are not ours, and a run must
neither fail nor hang because of what lies in it. So a path is resolved first, has to
stay below the folder, and is then opened step by step without following any link (one
may have been put there meanwhile); only regular files are opened, only their beginning
is read, and a file that has not changed since the last time is not read again.
"""

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from conversations.domain.text import storable

CACHED_FILES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """The beginning of a file. ``size`` is the whole file's in bytes, ``identity`` is
    the same for two names of one file."""

    text: str
    size: int
    is_cut: bool
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells one state of a file from another without reading it."""

    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    size: int


def read_file(root: Path, path: str, *, limit: int) -> FileText | None:
    """The first ``limit`` bytes of the text file ``path`` (relative to ``root``).
    None if there is none, if it leads out of ``root``, or if it is not to be read as
    text: a folder, a pipe, a device, binary, forbidden to this process."""
    try:
        real_root = os.path.realpath(root, strict=True)
        real = os.path.realpath(os.path.join(real_root, path), strict=True)
        if not is_within(real, real_root):
            return None
        found = os.lstat(real)
        if not stat.S_ISREG(found.st_mode):
            return None
        stamp = _Stamp(
            found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
        )
        return _read(real_root, os.path.relpath(real, real_root), stamp, limit)
    except (OSError, ValueError):
        return None


def is_within(real: str, real_root: str) -> bool:
    """Whether a resolved path lies below a resolved folder."""
    return real != real_root and os.path.commonpath((real, real_root)) == real_root


@lru_cache(maxsize=CACHED_FILES)
def _read(real_root: str, relative: str, stamp: _Stamp, limit: int) -> FileText | None:
    """Raises OSError, which is not remembered."""
    with ExitStack() as opened:
        folder = os.open(real_root, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        *folders, name = relative.split(os.sep)
        for part in folders:
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, folder)
        # A pipe in the file's place would be waited for without O_NONBLOCK.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        data = _read_bytes(file, limit)
    text = _decoded(data)
    if text is None:
        return None
    return FileText(
        text=text,
        size=stamp.size,
        is_cut=stamp.size > len(data),
        identity=(stamp.device, stamp.inode),
    )


def _read_bytes(file: int, limit: int) -> bytes:
    pieces, left = [], limit
    while left > 0 and (piece := os.read(file, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _decoded(data: bytes) -> str | None:
    """UTF-8, whatever is damaged in it; None for what is no text. A character that the
    limit cuts in two is left out."""
    if b"\0" in data:
        return None
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if data and data[-1] >= 0x80:
        text = text.rstrip("\ufffd")
    return storable(text.replace("\r\n", "\n").replace("\r", "\n"))
