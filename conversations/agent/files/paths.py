"""Resolving paths inside a workspace's folder, and checking them before anything is opened.

A path comes from a model: relative to the workspace's folder, or absolute inside it. Links are
followed as long as they lead to something inside. The result is the real place, without links.
:mod:`confined` opens it step by step, so a link that is put there meanwhile causes an error and
does not lead elsewhere.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from conversations.domain.errors import NotFound, Rejected
from conversations.domain.messages import say
from conversations.domain.text import HIDING
from loomweb.sqlite3.base import FILE_ENDS

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4096  # Linux's limits
MAX_FOLDER_LEVELS = 200  # Each is opened and, if need be, created

MAX_SHOWN_CHARS = 300


class OutsideFolder(Rejected):
    """The path leads out of the workspace's folder, or to something protected inside it."""

    code = "outside_folder"


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A place in the workspace; ``root`` is the real folder, ``parts`` the names below it."""

    root: str
    parts: tuple[str, ...]

    @property
    def real(self) -> str:
        return os.path.join(self.root, *self.parts)

    @property
    def path(self) -> str:
        """The path relative to the workspace's folder, as all other code uses it."""
        return "/".join(self.parts) or "."


def find_place(root: Path, path: str, *, follow_last: bool = True) -> ResolvedPath:
    """Return the place to which the path leads; it need not exist.

    With ``follow_last`` False a link at the end of the path is not followed. Raise Rejected with a
    sentence."""
    if not path:
        raise Rejected("The path is empty.")
    if "\0" in path:
        raise Rejected("A path cannot contain a NUL character.")
    try:
        data = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise Rejected(
            "%(path)s contains a character that file names cannot have.", path=shown(path)
        ) from error
    if len(data) > MAX_PATH_BYTES or any(len(name) > MAX_NAME_BYTES for name in data.split(b"/")):
        raise Rejected(
            "%(path)s is too long: a name has at most %(limit)s bytes.",
            path=shown(path),
            limit=MAX_NAME_BYTES,
        )
    try:
        real_root = os.path.realpath(root, strict=True)
        folder, name = os.path.split(os.path.join(real_root, path).rstrip(os.sep))
        if follow_last or name in ("", ".", ".."):
            real = os.path.realpath(os.path.join(real_root, path))
        else:
            real = os.path.join(os.path.realpath(folder), name)
    except FileNotFoundError as error:  # only the root's path has to exist
        raise Rejected("The workspace's folder does not exist.") from error
    except (OSError, ValueError) as error:
        raise Rejected(
            "%(path)s cannot be reached: %(reason)s.", path=shown(path), reason=reason(error)
        ) from error
    if real != real_root and not is_within(real, real_root):
        raise OutsideFolder("%(path)s is outside the workspace's folder.", path=shown(path))
    below = os.path.relpath(real, real_root)
    place = ResolvedPath(real_root, () if below == "." else tuple(below.split(os.sep)))
    if len(place.parts) > MAX_FOLDER_LEVELS:
        raise Rejected(
            "%(path)s is nested too deeply: it has more than %(limit)s folders.",
            path=shown(path),
            limit=MAX_FOLDER_LEVELS,
        )
    if is_private(real, real_root):
        raise OutsideFolder(
            "%(path)s belongs to this server and cannot be accessed.", path=shown(path)
        )
    return place


def is_within(real: str, real_folder: str) -> bool:
    """Return whether a resolved path lies below a resolved folder."""
    return real != real_folder and real.startswith(real_folder.rstrip(os.sep) + os.sep)


def is_private(real: str, real_root: str) -> bool:
    """Return whether the place is part of the server's own data.

    A workspace may lie in the data folder, but never the other way round."""
    return any(
        (real == own or is_within(real, own)) and not is_within(real_root, own)
        for own in private_places()
    )


def private_places() -> tuple[str, ...]:
    """Return the data folder and, if the database is a file, its paths."""
    database = str(settings.DATABASES["default"].get("NAME") or "")
    return _real_places(str(settings.LOOM.data_dir), database)


@lru_cache(maxsize=8)
def _real_places(data_dir: str, database: str) -> tuple[str, ...]:
    files = [database + end for end in FILE_ENDS]
    own = [data_dir, *(files if database.startswith(os.sep) else ())]
    return tuple(os.path.realpath(place) for place in own)


def shown(path: str) -> str:
    """Return a path for a sentence: on one line, without characters that hide or turn text."""
    text = HIDING.sub(lambda match: ascii(match[0])[1:-1], path)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def reason(error: OSError | ValueError) -> str:
    """Return why the system refused, in its own words and without a path of the server."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text.lower() if text else say("it cannot be opened")


# Functions that reach a place name by name, from the folder's own descriptor, without following
# links. A link that was put in the way after the path was resolved causes an error.

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe in the file's place would block.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class MissingFile(NotFound, Rejected):
    """The file does not exist."""

    code = "not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """The status of an entry.

    ``path`` is its real place, relative to the folder. ``mode`` are the permission bits, and
    ``size`` is in bytes."""

    path: str
    kind: str
    size: int
    mode: int
    mtime_ns: int
    identity: tuple[int, int]


@contextmanager
def open_parent(place: ResolvedPath, *, create: bool = False) -> Iterator[int]:
    """Yield the descriptor of the parent folder."""
    if not place.parts:
        raise IsADirectoryError(errno.EISDIR, "it is the workspace's folder itself")
    with open_folder(ResolvedPath(place.root, place.parts[:-1]), create=create) as folder:
        yield folder


@contextmanager
def open_folder(place: ResolvedPath, *, create: bool = False) -> Iterator[int]:
    """Yield the folder's descriptor, reached step by step from the root.

    ``create`` creates missing folders."""
    folder = os.open(place.root, _FOLDER)
    try:
        for name in place.parts:
            below = enter(folder, name, create=create)
            os.close(folder)
            folder = below
            # The data folder is recognised by its inode, too (other case, another mount)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(folder), os.stat(private_places()[0])):
                    raise OutsideFolder("%(path)s belongs to this server.", path=shown(place.path))
        yield folder
    finally:
        os.close(folder)


def enter(folder: int, name: str, *, create: bool = False) -> int:
    """Return the descriptor of a subfolder."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


@contextmanager
def guarded(path: str) -> Iterator[None]:
    """Turn the system's errors into Rejected with a sentence about the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFile("%(path)s does not exist.", path=shown(path)) from error
    except OSError as error:
        raise Rejected(
            "%(path)s: %(reason)s.",
            path=shown(path),
            reason=_WORDS.get(error.errno or 0) or reason(error),
        ) from error


_WORDS = {
    errno.EISDIR: say("it is a folder, not a file"),
    errno.ENOTDIR: say("part of the path is not a folder, or is a link that leads outside"),
    errno.ELOOP: say("it is a link that leads nowhere, or was created just now"),
    errno.EEXIST: say("it already exists, and nothing is overwritten"),
    errno.ENOTEMPTY: say("the folder is not empty"),
    errno.EXDEV: say("it is on another file system; copy and delete instead"),
    errno.ENOSPC: say("there is no space left on the disk"),
    errno.EDQUOT: say("the disk quota is exceeded"),
    errno.EACCES: say("the server has no permission"),
    errno.EPERM: say("the server has no permission"),
    errno.EROFS: say("the file system is read-only"),
    errno.EBUSY: say("it is in use, or a mount point"),
}


def open_regular(folder: int, place: ResolvedPath, path: str) -> int:
    """Return a descriptor for reading a regular file; refuse all other kinds."""
    # Check before opening, because opening a device can already have an effect.
    _check_regular(os.lstat(place.parts[-1], dir_fd=folder), path)
    file = os.open(place.parts[-1], _READ, dir_fd=folder)
    try:
        status = os.fstat(file)
        _check_regular(status, path)
        # A hard link to the server's key or database is refused, too
        if status.st_nlink > 1 and _is_of_server(status):
            raise OutsideFolder(
                "%(path)s belongs to this server and cannot be accessed.", path=shown(path)
            )
    except BaseException:
        os.close(file)
        raise
    return file


def _check_regular(status: os.stat_result, path: str) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "")
    if kind == stat.S_IFLNK:
        raise OSError(errno.ELOOP, "")
    if kind != stat.S_IFREG:
        raise Rejected(
            "%(path)s is %(kind)s, not a file.",
            path=shown(path),
            kind=_KINDS.get(kind, say("special")),
        )


_KINDS = {
    stat.S_IFIFO: say("a pipe"),
    stat.S_IFSOCK: say("a socket"),
    stat.S_IFCHR: say("a device"),
    stat.S_IFBLK: say("a device"),
}


def _is_of_server(status: os.stat_result) -> bool:
    folder, *files = private_places()
    for file in (*files, *(os.path.join(folder, name) for name in ("secret_key", "loom.sqlite3"))):
        with suppress(OSError):
            if os.path.samestat(status, os.stat(file)):
                return True
    return False


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Return values that tell two states of a file apart without reading it."""
    identity = (status.st_dev, status.st_ino, status.st_mode)
    return (*identity, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def stat_regular(folder: int, place: ResolvedPath, path: str) -> os.stat_result | None:
    """Return the status of a regular file, or None if it does not exist; refuse all other kinds."""
    try:
        status = os.lstat(place.parts[-1], dir_fd=folder)
    except FileNotFoundError:
        return None
    _check_regular(status, path)
    return status


def found_at(place: ResolvedPath, status: os.stat_result) -> FileStatus:
    return FileStatus(
        path=place.path,
        kind=_FILE_KINDS.get(stat.S_IFMT(status.st_mode), OTHER),
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        mtime_ns=status.st_mtime_ns,
        identity=(status.st_dev, status.st_ino),
    )


_FILE_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: LINK}

_NO_REPLACE = 1


def rename_to_nothing(old_folder: int, name: str, new_folder: int, new_name: str) -> None:
    """Rename an entry to a name that does not exist, atomically if the system supports that.

    ``old_folder`` and ``new_folder`` are descriptors. Raise FileExistsError if the new name
    exists."""
    if _rename_without_replacing(old_folder, name, new_folder, new_name):
        return
    if stat.S_ISDIR(os.lstat(name, dir_fd=old_folder).st_mode):
        with suppress(FileNotFoundError):
            os.lstat(new_name, dir_fd=new_folder)
            raise FileExistsError(errno.EEXIST, "")
        os.rename(name, new_name, src_dir_fd=old_folder, dst_dir_fd=new_folder)
    else:
        os.link(name, new_name, src_dir_fd=old_folder, dst_dir_fd=new_folder, follow_symlinks=False)
        os.unlink(name, dir_fd=old_folder)


def _rename_without_replacing(old_folder: int, name: str, new_folder: int, new_name: str) -> bool:
    """Return False if the kernel or the file system does not support it."""
    call = _renameat2()
    if call is None:
        return False
    if call(old_folder, os.fsencode(name), new_folder, os.fsencode(new_name), _NO_REPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code))


def _renameat2() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
