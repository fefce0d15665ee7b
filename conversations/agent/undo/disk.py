"""Reading and changing one entry of a workspace's folder, step by step from its root.

No link on the way is followed. Each folder is opened relative to its parent, so a folder that is
replaced by a link meanwhile does not lead outside. An entry that is a link is the link itself, not
its target.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from conversations.agent.files.confined import write_draft
from conversations.agent.files.paths import rename_to_nothing
from conversations.agent.sandbox import repositories
from conversations.archive.blobs import BlobBatch
from conversations.domain.errors import NotFound, Rejected, TooLarge
from conversations.domain.text import number_text

# The digest that is recorded for a folder, which has no content of its own
NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The state of a folder's entry at one moment; None stands for an entry that does not exist.

    ``mode`` is all of ``st_mode``: the type and the permission bits. ``digest`` is the SHA-256 of a
    file's content or of a link's text, and NOTHING for a folder. For an entry that is not read (too
    large, forbidden, a device) ``digest`` depends on its inode, size and times, and ``is_read`` is
    False. ``has_copy`` says whether the content can be restored."""

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


def same_state(first: FileState | None, second: FileState | None) -> bool:
    """Return whether type, permissions and content are equal, or neither entry exists."""
    if first is None or second is None:
        return first is second
    return (first.mode, first.digest) == (second.mode, second.digest)


def digest_of(state: FileState | None) -> str:
    """Return the digest of the content, or an empty string if the entry does not exist."""
    return state.digest if state else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """A change of one entry.

    ``path`` is relative to the workspace's folder, as the operating system gave it (it need not be
    UTF-8)."""

    path: str
    before: FileState | None
    after: FileState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAuthor:
    """The author of a change of files: a tool call of a run, or a revert."""

    session_pk: int
    run_pk: int | None = None
    call_pk: int | None = None
    revert_pk: int | None = None


def folders_of(path: str) -> list[str]:
    """Return the folders that contain the path, the workspace's own (an empty path) first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts))]


def stored_path(path: str) -> str:
    """Return the path as every database can store it.

    A path that is not UTF-8 is quoted the way git does it."""
    if not path.startswith('"') and path.encode(errors="replace").decode() == path:
        return path
    quoted = path.replace("\\", "\\\\").encode(errors="surrogateescape")
    return '"' + "".join(chr(b) if b < 128 else f"\\{b:03o}" for b in quoted) + '"'


def real_path(stored: str) -> str:
    """Return the path that ``stored_path`` was called with; never raise."""
    if len(stored) < 2 or not (stored.startswith('"') and stored.endswith('"')):
        return stored
    data = stored[1:-1].encode(errors="surrogateescape")
    return _QUOTED.sub(_unquote, data).decode(errors="surrogateescape")


_QUOTED = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def _unquote(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)])


class DatabaseCall(Protocol):
    """A callable that runs a function of the archive on a thread that may use the database."""

    async def __call__[**P, T](
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

ROOT = "."  # The path of the workspace's folder itself; only its permissions can change


class MissingFolder(NotFound, Rejected):
    """A folder on the way to an entry does not exist, or is not a folder (any more)."""


@contextmanager
def folder_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yield the open folder that holds the entry, and the entry's name in it.

    ROOT stands for the workspace's own folder. Raise MissingFolder, or Rejected if the path leads
    outside."""
    parts = path.split("/")
    is_odd = any(part in ("", ".", "..") for part in parts) and path != ROOT
    if is_odd or "\0" in path:
        raise Rejected("This path is outside the workspace's folder.", code="outside")
    *folders, name = parts
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFolder("The workspace's folder does not exist.") from error
    try:
        for part in folders:
            inner = _open_folder(folder, part)
            os.close(folder)
            folder = inner
        yield folder, name
    finally:
        os.close(folder)


def _open_folder(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise MissingFolder(
                "The folder %(name)s in this path does not exist.", name=repr(name)
            ) from error
        raise


@contextmanager
def open_folder(root: Path, path: str) -> Iterator[int]:
    """Yield an open folder; the empty path is the workspace's own folder."""
    with folder_of(root, path or ROOT) as (folder, name):
        opened = _open_folder(folder, name) if path else os.dup(folder)
    try:
        yield opened
    finally:
        os.close(opened)


def read_state(
    root: Path, path: str, *, limit: int | None = None, blobs: BlobBatch | None = None
) -> FileState | None:
    """Return the current state of the entry, or None if it does not exist.

    The content is added to the batch, if one is given. A file of more than ``limit`` bytes is not
    read."""
    with suppress(MissingFolder), folder_of(root, path) as (folder, name):
        return read_entry(folder, name, limit=limit, blobs=blobs)[0]
    return None


def read_states(root: Path, paths: Iterable[str]) -> list[FileState | None]:
    return [read_state(root, path) for path in paths]


def read_entry(
    folder: int, name: str, *, limit: int | None, blobs: BlobBatch | None
) -> tuple[FileState | None, os.stat_result | None]:
    """Return the state of an entry, and its status at the time of reading.

    The content is added to the batch, if one is given."""
    try:
        status = os.lstat(name, dir_fd=folder)
        if stat.S_ISDIR(status.st_mode):
            return FileState(mode=status.st_mode, digest=NOTHING, size=0), status
        if stat.S_ISLNK(status.st_mode):
            text = os.fsencode(os.readlink(name, dir_fd=folder))
            link_digest = blobs.put(text) if blobs else hashlib.sha256(text).hexdigest()
            return FileState(mode=status.st_mode, digest=link_digest, size=len(text)), status
        if stat.S_ISREG(status.st_mode) and (limit is None or status.st_size <= limit):
            with suppress(PermissionError):
                file = os.open(name, _FILE, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    status = os.fstat(file)
                    if not stat.S_ISREG(status.st_mode):
                        return unread_state(status), status
                    if blobs:
                        digest, size = blobs.copy(opened)
                    else:
                        digest = hashlib.file_digest(opened, "sha256").hexdigest()
                        size = opened.tell()
                    return FileState(mode=status.st_mode, digest=digest, size=size), status
    except FileNotFoundError:
        return None, None
    return unread_state(status), status


def read_content(root: Path, path: str, *, limit: int) -> bytes | None:
    """Return the content of a file or the text of a link, or None if it exceeds ``limit`` bytes."""
    with suppress(MissingFolder, OSError), folder_of(root, path) as (folder, name):
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            return os.fsencode(os.readlink(name, dir_fd=folder))
        file = os.open(name, _FILE, dir_fd=folder)
        with os.fdopen(file, "rb") as opened:
            data = opened.read(limit + 1) if stat.S_ISREG(os.fstat(file).st_mode) else None
        return data if data is not None and len(data) <= limit else None
    return None


def unread_state(status: os.stat_result) -> FileState:
    """Return the state of an entry that is not read, with a digest of its inode, size and times."""
    identity = (status.st_ino, status.st_rdev, 0, 0, 0)
    size = 0
    if stat.S_ISREG(status.st_mode):
        identity = (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_rdev,
        )
        size = status.st_size
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    return FileState(mode=status.st_mode, digest=digest, size=size, has_copy=False, is_read=False)


_DRAFT = re.compile(r"\.loom-[0-9a-f]{16}\.tmp")


def remove_drafts(root: Path, path: str, data: bytes) -> None:
    """Remove the drafts that a process left when it died while writing ``data`` to the path.

    A draft is removed if it holds ``data`` or the beginning of it."""
    with suppress(MissingFolder), folder_of(root, path) as (folder, _):
        for name in filter(_DRAFT.fullmatch, os.listdir(folder)):
            with suppress(OSError):
                file = os.open(name, _FILE, dir_fd=folder)
                with os.fdopen(file, "rb") as opened:
                    if not data.startswith(opened.read(len(data) + 1)):
                        continue
                os.unlink(name, dir_fd=folder)


def put_file(root: Path, path: str, data: bytes, *, mode: int, replaces: bool = True) -> None:
    """Write a file atomically, in place of the existing file or link.

    If ``replaces`` is False, raise FileExistsError if the path exists."""
    with (
        folder_of(root, path) as (folder, name),
        write_draft(folder, data, mode=stat.S_IMODE(mode)) as draft,
    ):
        _name_draft(folder, draft, name, replaces=replaces)


def put_link(root: Path, path: str, text: bytes, *, replaces: bool = True) -> None:
    """Create a link, with the rules of :func:`put_file`."""
    with folder_of(root, path) as (folder, name):
        draft = f".loom-{secrets.token_hex(8)}.tmp"
        os.symlink(os.fsdecode(text), draft, dir_fd=folder)
        try:
            _name_draft(folder, draft, name, replaces=replaces)
        except OSError:
            os.unlink(draft, dir_fd=folder)
            raise


def _name_draft(folder: int, draft: str, name: str, *, replaces: bool) -> None:
    if replaces:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        rename_to_nothing(folder, draft, folder, name)


def make_folder(root: Path, path: str, *, mode: int) -> None:
    with folder_of(root, path) as (folder, name):
        os.mkdir(name, 0o777, dir_fd=folder)
    change_mode(root, path, mode)


def change_mode(root: Path, path: str, mode: int) -> None:
    """Set the permission bits of a file or folder; a link has none."""
    with folder_of(root, path) as (folder, name):
        opened = repositories.open_place(folder, name)
        try:
            repositories.change_mode(opened, mode)
        finally:
            os.close(opened)


def remove_entry(root: Path, path: str) -> None:
    """Remove a file, a link or an empty folder."""
    with folder_of(root, path) as (folder, name):
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


def list_below(root: Path, path: str, *, limit: int) -> list[str]:
    """Return the path and all paths below it, the path itself first.

    Raise TooLarge if there are more than ``limit``."""
    paths = [path]
    for entry in paths:
        with folder_of(root, entry) as (folder, name):
            is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
        if is_folder:
            with open_folder(root, entry) as opened:
                paths += [f"{entry}/{inner}" for inner in sorted(os.listdir(opened))]
        if len(paths) > limit:
            raise TooLarge("This folder has more than %(limit)s files.", limit=number_text(limit))
    return paths
