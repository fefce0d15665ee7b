"""Opening, replacing, moving and removing files below a folder, and nowhere else.

A path is resolved first (:mod:`paths`). Then the place is reached name by name, starting from the
folder's own descriptor and without following links. So a link that is put in the way meanwhile
makes the operation fail and cannot lead it elsewhere. Content is never written into an existing
file; a new file takes its place. Another name of the old file (a hard link from anywhere) keeps the
old content.

All functions work synchronously and raise Rejected with a sentence.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from conversations.domain.errors import Rejected

from . import paths
from .executed_files import completes_git_folder, is_git_name
from .paths import FileStatus, OutsideFolder, ResolvedPath, find_place, guarded, shown

NO_FILE = ""  # As an expected digest: the file must not exist

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20

# Held from the last check of a file until it is replaced, so that of two calls that expect the same
# content only one succeeds.
_last_step = Lock()


class FileConflict(Rejected):
    """The file does not have the expected content, because somebody else wrote to it."""

    code = "file_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The beginning of a file; ``found.size`` is the size of the whole file."""

    found: FileStatus
    data: bytes

    @property
    def is_cut(self) -> bool:
        return self.found.size > len(self.data)


def content_digest(data: bytes) -> str:
    """Return the SHA-256 digest, as ``expect`` and the names of blobs have it."""
    return hashlib.sha256(data).hexdigest()


def stat_file(root: Path, path: str, *, follow_last: bool = True) -> FileStatus | None:
    """Return the status of the entry at the path, or None if it does not exist."""
    place = find_place(root, path, follow_last=follow_last)
    with guarded(path), suppress(FileNotFoundError, NotADirectoryError):
        if not place.parts:
            return paths.found_at(place, os.stat(place.root))
        with paths.open_parent(place) as folder:
            return paths.found_at(place, os.lstat(place.parts[-1], dir_fd=folder))
    return None


def read_bytes(root: Path, path: str, *, limit: int) -> FileContent:
    """Return the first ``limit`` bytes of a regular file."""
    place = find_place(root, path)
    with guarded(path), paths.open_parent(place) as folder:
        file = paths.open_regular(folder, place, path)
        try:
            status = paths.found_at(place, os.fstat(file))
            pieces = []
            bytes_left = limit
            while bytes_left > 0 and (piece := os.read(file, min(bytes_left, _PIECE_BYTES))):
                pieces.append(piece)
                bytes_left -= len(piece)
            return FileContent(found=status, data=b"".join(pieces))
        finally:
            os.close(file)


def replace_file(root: Path, path: str, data: bytes, *, expect: str | None = None) -> None:
    """Replace the content of a file durably and as a whole, or create the file and missing folders.

    The file keeps its permissions. ``expect`` is the digest that the file must have now. With
    ``NO_FILE`` the file must not exist, and with None any content is accepted."""
    place = find_place(root, path)
    _check_change(place, path)
    with guarded(path), paths.open_parent(place, create=expect in (None, NO_FILE)) as folder:
        _check_same_git(place, path)
        current = paths.stat_regular(folder, place, path)
        stamp = _check_content(folder, place, path, expect)
        # New content never gets the setuid and setgid bits of the old file.
        mode = current.st_mode & 0o777 if current else None
        with write_draft(folder, data, mode=mode, owner=current) as draft:
            if current is None:
                paths.rename_to_nothing(folder, draft, folder, place.parts[-1])
            else:
                with _last_step:
                    _check_stamp(folder, place, path, stamp)
                    os.replace(draft, place.parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


def remove(root: Path, path: str, *, expect: str | None = None) -> None:
    """Remove a file, a link (not its target) or an empty folder."""
    place = find_place(root, path, follow_last=False)
    _check_change(place, path)
    with guarded(path), paths.open_parent(place) as folder:
        _check_same_git(place, path)
        name = place.parts[-1]
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.rmdir(name, dir_fd=folder)
        else:
            stamp = _check_content(folder, place, path, expect)
            with _last_step:
                _check_stamp(folder, place, path, stamp)
                os.unlink(name, dir_fd=folder)
        os.fsync(folder)


def rename(root: Path, source: str, target: str) -> None:
    """Move a file, link or folder to a path that does not exist; create missing folders there."""
    start = find_place(root, source, follow_last=False)
    end = find_place(root, target, follow_last=False)
    for place, path in ((start, source), (end, target)):
        _check_change(place, path)
    if paths.is_within(end.real, start.real):
        raise Rejected("%(path)s cannot be moved into itself.", path=shown(source))
    with guarded(source), paths.open_parent(start) as source_folder:
        _check_same_git(start, source)
        os.lstat(start.parts[-1], dir_fd=source_folder)
        with guarded(target), paths.open_parent(end, create=True) as target_folder:
            _check_same_git(end, target)
            paths.rename_to_nothing(source_folder, start.parts[-1], target_folder, end.parts[-1])
            os.fsync(target_folder)
            os.fsync(source_folder)


def _check_change(place: ResolvedPath, path: str) -> None:
    if any(paths.is_within(own, place.real) for own in paths.private_places()):
        raise OutsideFolder(
            "%(path)s holds data of this server and cannot be accessed.", path=shown(path)
        )
    if any(map(is_git_name, place.parts)):
        raise _refuse_git(path)
    for depth, name in enumerate(place.parts):
        with suppress(OSError):
            names = os.listdir(os.path.join(place.root, *place.parts[:depth]))
            if completes_git_folder(names, name):
                raise _refuse_git(path)


def _refuse_git(path: str) -> Rejected:
    return Rejected(
        "%(path)s belongs to git’s own data; use git_command to change it.", path=shown(path)
    )


def _check_same_git(place: ResolvedPath, path: str) -> None:
    # The names alone do not suffice: on a file system that ignores case, or by another mount, a
    # folder may be ``.git`` under another name.
    inside = place.root
    for name in place.parts:
        with suppress(OSError):
            if os.path.samestat(os.lstat(f"{inside}/{name}"), os.lstat(f"{inside}/.git")):
                raise _refuse_git(path)
        inside = f"{inside}/{name}"


def _check_content(
    folder: int, place: ResolvedPath, path: str, expect: str | None
) -> os.stat_result | None:
    if expect is None:
        return None
    try:
        file = paths.open_regular(folder, place, path)
    except FileNotFoundError as error:
        if expect == NO_FILE:
            return None
        raise FileConflict("%(path)s was removed in the meantime.", path=shown(path)) from error
    try:
        if expect == NO_FILE:
            raise FileConflict("%(path)s was created in the meantime.", path=shown(path))
        with open(file, "rb", closefd=False) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != expect:
            raise FileConflict("%(path)s was changed in the meantime.", path=shown(path))
        return os.fstat(file)
    finally:
        os.close(file)


def _check_stamp(
    folder: int, place: ResolvedPath, path: str, before: os.stat_result | None
) -> None:
    """Raise FileConflict if the file, about to be replaced, is not the one that was read."""
    if before is not None:
        now = os.lstat(place.parts[-1], dir_fd=folder)
        if paths.stamp_of(now) != paths.stamp_of(before):
            raise FileConflict("%(path)s was changed in the meantime.", path=shown(path))


@contextmanager
def write_draft(
    folder: int, data: bytes, *, mode: int | None, owner: os.stat_result | None = None
) -> Iterator[str]:
    """Yield the name of a new file in the folder, flushed to disk; remove it if the block fails."""
    name = f".loom-{secrets.token_hex(8)}.tmp"
    file = os.open(name, _CREATE, 0o666 if mode is None else 0o600, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as draft:
            draft.write(data)
            draft.flush()
            if owner is not None and (owner.st_uid, owner.st_gid) != (os.getuid(), os.getgid()):
                with suppress(OSError):
                    os.fchown(file, owner.st_uid, owner.st_gid)
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
