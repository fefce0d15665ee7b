"""Reading a small text file of a workspace, wherever its links lead.

A workspace's folder belongs to people and programs that are not ours, and a run must
neither fail nor hang because of what lies in it. So a path is resolved first, has to
stay below the folder, and is then opened step by step without following any link (one
may have been put there meanwhile); only regular files are opened, only their beginning
is read, and a file that has not changed since the last time is not read again.
"""

import os
import stat
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from conversations.domain.text import storable

CACHED_FILES = 500
"""How many files are remembered; most of them by the head that an index needs."""

type _Key = tuple[str, str, int]


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


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)


class _Cache:
    """What was read last of each file, as long as its stamp is the same. That a path
    leads to the file with this stamp is checked by whoever asks; that the file may be
    read was found out when it was."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[_Key, tuple[_Stamp, FileText | None]] = OrderedDict()

    def get(self, key: _Key, stamp: _Stamp) -> FileText | None:
        """Raises KeyError for what is not known, or has changed."""
        with self._lock:
            known, text = self._known[key]
            if known != stamp:
                raise KeyError(key)
            self._known.move_to_end(key)
            return text

    def put(self, key: _Key, stamp: _Stamp, text: FileText | None) -> None:
        with self._lock:
            self._known[key] = stamp, text
            self._known.move_to_end(key)
            while len(self._known) > CACHED_FILES:
                self._known.popitem(last=False)


_cache = _Cache()


def read_file(root: Path, path: str, *, limit: int) -> FileText | None:
    """The first ``limit`` bytes of the text file ``path`` (relative to ``root``).
    None if there is none, if it leads out of ``root``, or if it is not to be read as
    text: a folder, a pipe, a device, binary, forbidden to this process."""
    try:
        stamp = _stamp(os.stat(os.path.join(root, path)))
        return _cache.get((str(root), path, limit), stamp)
    except KeyError:
        pass
    except (OSError, ValueError):
        return None
    try:
        found = _read(root, path, limit)
    except (OSError, ValueError):
        return None
    _cache.put((str(root), path, limit), stamp, found)
    return found


def is_within(real: str, real_root: str) -> bool:
    """Whether a resolved path lies below a resolved folder."""
    return real != real_root and os.path.commonpath((real, real_root)) == real_root


def _read(root: Path, path: str, limit: int) -> FileText | None:
    real_root = os.path.realpath(root, strict=True)
    real = os.path.realpath(os.path.join(real_root, path), strict=True)
    if not is_within(real, real_root) or not stat.S_ISREG(os.lstat(real).st_mode):
        return None
    with ExitStack() as opened:
        folder = os.open(real_root, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        *folders, name = os.path.relpath(real, real_root).split(os.sep)
        for part in folders:
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, folder)
        # A pipe in the file's place would be waited for without O_NONBLOCK.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, file)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return None
        data = _read_bytes(file, limit)
    text = _decoded(data)
    if text is None:
        return None
    return FileText(
        text=text,
        size=found.st_size,
        is_cut=found.st_size > len(data),
        identity=(found.st_dev, found.st_ino),
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
