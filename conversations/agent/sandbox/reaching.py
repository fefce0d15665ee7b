"""Reaching what lies below a folder name by name, by descriptors.

Other commands may be at work in the folder meanwhile, and any name on a path may have become a link
when it is used. So each folder is opened below the one before, without following links, and
everything else is done to what is open, never to a path.
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import BinaryIO, Self

from conversations.domain.errors import Rejected

# Descriptors of folders that are held at once, so that not each path is begun at the root.
MAX_OPEN_FOLDERS = 64

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = _PLACE | os.O_DIRECTORY


def change_mode(opened: int, mode: int) -> None:
    """Set the permission bits of what is open, if only by O_PATH; a link has none."""
    if stat.S_ISLNK(os.fstat(opened).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    os.chmod(f"/proc/self/fd/{opened}", stat.S_IMODE(mode))


def open_place(folder: int, name: str, *, is_folder: bool = False) -> int:
    """An entry of an open folder, by O_PATH: of a link the link itself."""
    flags = _FOLDER if is_folder else _PLACE
    return _let_in(folder, lambda: os.open(name, flags, dir_fd=folder))


def open_file(opened: int) -> BinaryIO:
    """The content of a regular file that is open by O_PATH."""
    return open(f"/proc/self/fd/{opened}", "rb")


def _let_in[T](folder: int, work: Callable[[], T]) -> T:
    """Do it; where the folder's owner may not read or enter it, he may for that moment. Git itself
    needs no more than to pass through."""
    try:
        return work()
    except PermissionError:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        if mode & 0o500 == 0o500:
            raise
        change_mode(folder, mode | 0o500)
        try:
            return work()
        finally:
            change_mode(folder, mode)


class Reach:
    """Paths are relative to the root, a real path; the empty one is the root itself. What is not
    there, or has a link on the way, raises OSError. ``steps`` counts folders that were opened."""

    def __init__(self, root: str) -> None:
        self.root = root
        try:
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Rejected(f"The folder cannot be read: {error.strerror}.") from error
        self._held: OrderedDict[str, int] = OrderedDict()
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (*self._held.values(), self._root):
            os.close(opened)

    def folder(self, path: str) -> int:
        """A folder by O_PATH, open until the next folder is reached."""
        names = path.split("/") if path else []
        known = len(names)
        while known and "/".join(names[:known]) not in self._held:
            known -= 1
        if not known:
            folder = self._root
        else:
            self._held.move_to_end("/".join(names[:known]))
            folder = self._held["/".join(names[:known])]
        for end in range(known, len(names)):
            folder = open_place(folder, names[end], is_folder=True)
            self.steps += 1
            self._held["/".join(names[: end + 1])] = folder
            if len(self._held) > MAX_OPEN_FOLDERS:
                os.close(self._held.popitem(last=False)[1])
        return folder

    def entries(self, path: str, *, limit: int | None = None) -> list[tuple[str, bool]]:
        """The names in a folder, each with whether it is a folder; no more than ``limit``."""
        folder = self.folder(path)
        return _let_in(folder, lambda: _scan(folder, limit))

    @contextmanager
    def entry(self, path: str) -> Iterator[int]:
        """What is at the path, by O_PATH."""
        upper, _, name = path.rpartition("/")
        opened = open_place(self.folder(upper), name)
        try:
            yield opened
        finally:
            os.close(opened)

    def is_link(self, path: str) -> bool:
        with suppress(OSError), self.entry(path) as opened:
            return stat.S_ISLNK(os.fstat(opened).st_mode)
        return False

    def open_way(self, path: str) -> None:
        """Let the owner into the folders on the way, for good."""
        names = path.split("/")[:-1]
        for end in range(1, len(names) + 1):
            folder = self.folder("/".join(names[:end]))
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            if mode & 0o700 != 0o700:
                with suppress(OSError):  # somebody else's; perhaps it can be entered all the same
                    change_mode(folder, mode | 0o700)

    def resolve(self, base: str, name: str) -> str | None:
        """The path that a name leads to that is written in the folder ``base``; None if that is
        outside, or a link is on the way."""
        if os.path.isabs(name):
            if not f"{name}/".startswith(f"{self.root}/"):
                return None
            base, name = "", name[len(self.root) :]
        path = base.split("/") if base else []
        for part in name.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                if not path:
                    return None
                path.pop()
            else:
                path.append(part)
                if self.is_link("/".join(path)):
                    return None
        return "/".join(path)

    def read(self, path: str, *, limit: int) -> bytes | None:
        """The content of a file of at most ``limit`` bytes."""
        with self.entry(path) as opened:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            with open_file(opened) as file:
                data = file.read(limit + 1)
        return data if len(data) <= limit else None


def _scan(folder: int, limit: int | None) -> list[tuple[str, bool]]:
    opened = os.open(f"/proc/self/fd/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(opened) as listing:
            return [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in islice(listing, limit)
            ]
    finally:
        os.close(opened)
