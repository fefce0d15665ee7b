"""Finding the repositories below a folder, and the files that git obeys in each.

The whole folder is searched, including ``.git``, because a repository may lie anywhere and a
``.git`` file may lead to any of them. Links are not followed. The cost is one reading of all names,
up to a limit.
"""

import errno
import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import BinaryIO, Self

from django.conf import settings

from conversations.agent.files.executed_files import (
    CONFIGS,
    HOOKS,
    MAX_CONFIG_BYTES,
    PARTS,
    STEPS,
    STRATEGIES,
    is_git_folder,
    is_git_name,
    is_hook,
    paths_named_by,
)
from conversations.domain.errors import Rejected

from .bubblewrap import WriteProtection
from .support import hidden_places

# Descriptors of folders that are held open, so that each path need not be opened from the root
MAX_OPEN_FOLDERS = 64

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = _PLACE | os.O_DIRECTORY


def change_mode(opened: int, mode: int) -> None:
    """Set the permission bits of an open entry (also one opened by O_PATH); a link has none."""
    if stat.S_ISLNK(os.fstat(opened).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    os.chmod(f"/proc/self/fd/{opened}", stat.S_IMODE(mode))


def open_place(folder: int, name: str, *, is_folder: bool = False) -> int:
    """Open an entry of an open folder by O_PATH; a link is not followed."""
    flags = _FOLDER if is_folder else _PLACE
    return _with_owner_access(folder, lambda: os.open(name, flags, dir_fd=folder))


def open_file(opened: int) -> BinaryIO:
    return open(f"/proc/self/fd/{opened}", "rb")


def _with_owner_access[T](folder: int, work: Callable[[], T]) -> T:
    """Call ``work``; if the folder's owner may not read or enter it, allow that during the call.

    Git itself only needs to pass through the folder."""
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


class FolderReader:
    """A reader of the entries below a root folder, which never follows links.

    Paths are relative to the root, which is a real path; the empty path is the root itself. Methods
    raise OSError for a missing path or a path with a link on the way. ``steps`` counts the folders
    that were opened."""

    def __init__(self, root: str) -> None:
        self.root = root
        try:
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Rejected(
                "The folder cannot be read: %(reason)s.", reason=error.strerror
            ) from error
        self._open_folders: OrderedDict[str, int] = OrderedDict()
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (*self._open_folders.values(), self._root):
            os.close(opened)

    def folder(self, path: str) -> int:
        """Return a folder opened by O_PATH, which stays open until the next folder is reached."""
        folder = self._root
        reached = path  # the deepest folder on the way that is open
        while reached and reached not in self._open_folders:
            reached = reached.rpartition("/")[0]
        if reached:
            self._open_folders.move_to_end(reached)
            folder = self._open_folders[reached]
        names = path[len(reached) :].strip("/")
        for name in names.split("/") if names else []:
            folder = open_place(folder, name, is_folder=True)
            reached = _join(reached, name)
            self.steps += 1
            self._open_folders[reached] = folder
            if len(self._open_folders) > MAX_OPEN_FOLDERS:
                os.close(self._open_folders.popitem(last=False)[1])
        return folder

    def entries(self, path: str, *, limit: int | None = None) -> list[tuple[str, bool]]:
        """Return at most ``limit`` names in a folder, each with whether it is a folder."""
        folder = self.folder(path)

        def scan() -> list[tuple[str, bool]]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            opened = os.open(f"/proc/self/fd/{folder}", flags)
            try:
                with os.scandir(opened) as listing:
                    entries = islice(listing, limit)
                    return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            finally:
                os.close(opened)

        return _with_owner_access(folder, scan)

    @contextmanager
    def entry(self, path: str) -> Iterator[int]:
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

    def grant_owner_access(self, path: str) -> None:
        """Permanently give the owner access to the folders on the way."""
        names = path.split("/")
        for end in range(1, len(names)):
            folder = self.folder("/".join(names[:end]))
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            if mode & 0o700 != 0o700:
                with suppress(OSError):  # another owner's folder, perhaps accessible anyway
                    change_mode(folder, mode | 0o700)

    def resolve(self, base: str, name: str) -> str | None:
        """Return the path to which a name that is written in the folder ``base`` leads.

        Return None if that is outside the root, or a link is on the way."""
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
        """Return the content of a file, or None if it is no file or exceeds ``limit`` bytes."""
        with self.entry(path) as opened:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            with open_file(opened) as file:
                data = file.read(limit + 1)
        return data if len(data) <= limit else None


LINK = ".git"  # The kind of a ``.git`` file or link that leads to a repository

# Repositories whose parts a sandbox holds read-only. Changes in further repositories are found
# afterwards. Each repository takes some mounts and some words of bwrap's command line.
MAX_PROTECTED = 500

MAX_INCLUDED_CONFIGS = 50  # Configuration files read because another one includes them

# Names that are read for each file that a listing may have (LOOM_SNAPSHOT_MAX_FILES). Reading a
# name costs less than a tenth of listing a file, and a part that is not read is not disarmed.
NAMES_PER_FILE = 20

MAX_HELD_PARTS = 100  # Parts held open while a command runs

# Total size of the configuration and step files that are kept for comparison
MAX_KEPT_BYTES = 32 * 2**20

# Larger files are compared by their times, not by their content
MAX_PART_BYTES = 64 * 2**20

PATH_MAX = 4096  # Linux accepts no longer path
_FOLDERS = (HOOKS, "remotes", "branches")  # Parts in which each entry is a part of its own

_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class GitPart:
    """A file, link or folder that git obeys.

    ``kind`` is its path in a repository. ``state`` is ``f`` and the SHA-256 of a file's content;
    ``l`` and the target of a link; ``u`` and the inode, size and change time of a file that is too
    large or cannot be read (but perhaps executed); or ``o`` for a folder or anything else."""

    kind: str
    state: str


@dataclass(slots=True)
class Repositories:
    """The repositories below a folder.

    ``folders`` are the folders that git takes for a repository's own data, outer ones first.
    ``parts`` are the parts that git obeys, by path. ``named`` are the places in the folder to which
    a configuration or a link leads. ``contents`` are the contents of configuration and step files,
    by digest. All paths are relative; the empty path is the folder itself. ``is_whole`` is False if
    there were too many names, so the deepest ones were not read."""

    folders: list[str] = field(default_factory=list)
    parts: dict[str, GitPart] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    is_whole: bool = True


def find_repositories(
    root: Path, *, known_parts: Mapping[str, GitPart] | None = None
) -> Repositories:
    """Return the present repositories; ``known_parts`` are checked even beyond the limit."""
    repositories = Repositories()
    with FolderReader(os.path.realpath(root)) as reach:
        work = _RepositoryScan(reach, repositories)
        work.walk()
        if not repositories.is_whole:
            work.add_known(known_parts or {})
        for folder in repositories.folders:
            work.add_parts(folder)
        work.add_linked()
        work.add_named()
    return repositories


def make_protection(
    root: Path, repositories: Repositories, *, may_write_config: bool = False
) -> WriteProtection:
    """Return the paths that a command in the folder must not change.

    With ``may_write_config`` the configuration itself is excepted."""
    pinned = [root / folder for folder in repositories.folders[:MAX_PROTECTED] if folder]
    links = [path for path, part in repositories.parts.items() if part.kind == LINK]
    read_only = [p for p in links if not repositories.parts[p].state.startswith("l")][
        :MAX_PROTECTED
    ]
    names = [name for name in PARTS if not (may_write_config and name in CONFIGS)]
    candidates = [_join(f, name) for f in repositories.folders[:MAX_PROTECTED] for name in names]
    candidates += [
        path
        for path in repositories.named[:MAX_PROTECTED]
        if path and not any(f == path or f.startswith(f"{path}/") for f in repositories.folders)
    ]
    # Only paths that exist and have no link on the way
    read_only += [
        path
        for path in candidates
        if os.path.lexists(root / path) and os.path.realpath(root / path) == str(root / path)
    ]
    places = tuple(root / path for path in dict.fromkeys(read_only))
    return WriteProtection(pinned=tuple(pinned), read_only=places)


@contextmanager
def hold_parts(
    root: Path, repositories: Repositories, protection: WriteProtection
) -> Iterator[Callable[[str], bool]]:
    """Yield a function that says, after the command, whether a part was read-only all the time.

    If it was, a change of the part was made by somebody else."""
    # A mount vanishes as soon as somebody outside removes the file or renames another file to its
    # place, and the command can write from then on. So the path must still have the same file or
    # folder; an open descriptor keeps the inode number from being reused. A file with a second name
    # could be written through that name.
    real = os.path.realpath(root)
    descriptors: dict[str, int] = {}
    with ExitStack() as stack:
        with FolderReader(real) as reach:
            linked = {path for path in repositories.parts if _has_other_name(reach, path)}
            for place in protection.read_only[:MAX_HELD_PARTS]:
                path = str(place.relative_to(root))
                with suppress(OSError), reach.entry(path) as opened:
                    descriptors[path] = os.dup(opened)
                    stack.callback(os.close, descriptors[path])

        def was_held(path: str) -> bool:
            place = path if path in descriptors else os.path.dirname(path)
            if place not in descriptors or path in linked:
                return False
            with suppress(OSError), FolderReader(real) as reach, reach.entry(place) as now:
                is_same = os.path.samestat(os.fstat(descriptors[place]), os.fstat(now))
                return is_same and not _has_other_name(reach, path)
            return False

        yield was_held


def _has_other_name(reach: FolderReader, path: str) -> bool:
    try:
        with reach.entry(path) as opened:
            status = os.fstat(opened)
    except OSError:
        return True
    return not stat.S_ISDIR(status.st_mode) and status.st_nlink != 1


@dataclass(slots=True)
class _RepositoryScan:
    reach: FolderReader
    repositories: Repositories
    content_bytes_left: int = MAX_KEPT_BYTES

    def walk(self) -> None:
        hidden = {str(path) for path in hidden_places()}
        folders = [""]
        names_left = int(NAMES_PER_FILE * settings.LOOM.snapshot_max_files)
        for folder in folders:
            try:
                entries = self.reach.entries(folder, limit=names_left + 1)
            except OSError:
                continue  # it is gone meanwhile, or has another owner
            # A folder costs as much as a name, each time that it must be opened again.
            if len(entries) + self.reach.steps > names_left:
                self.repositories.is_whole = False
                continue
            names_left -= len(entries)
            for name, is_folder in entries:
                path = _join(folder, name)
                if is_git_name(name) and not is_folder:
                    self.add(path, LINK)
                # Git cannot use deeper paths either.
                if is_folder and len(path) < PATH_MAX and f"{self.reach.root}/{path}" not in hidden:
                    folders.append(path)
            if is_git_folder(name for name, _ in entries):
                self.repositories.folders.append(folder)

    def add_known(self, known_parts: Mapping[str, GitPart]) -> None:
        for path, part in known_parts.items():
            if part.kind == LINK:
                self.add(path, LINK)
            folder = path.removesuffix(part.kind).removesuffix("/")
            if path.endswith(part.kind) and folder not in self.repositories.folders:
                with suppress(OSError):
                    if is_git_folder(name for name, _ in self.reach.entries(folder)):
                        self.repositories.folders.append(folder)

    def add_parts(self, folder: str) -> None:
        for name in (*PARTS, *STEPS, *STRATEGIES):
            upper = os.path.dirname(name)
            if upper and self.reach.is_link(_join(folder, upper)):
                self.add(_join(folder, upper), upper)
            else:
                add = self.add_folder if name in _FOLDERS else self.add
                add(_join(folder, name), name)

    def add_folder(self, path: str, kind: str) -> None:
        try:
            names = self.reach.entries(path)
        except OSError:
            self.add(path, kind)  # if the path exists, it is not a folder
            return
        for name, _ in names:
            if is_hook(name):
                self.add(_join(path, name), f"{kind}/{name}")

    def add(self, path: str, kind: str) -> None:
        with suppress(OSError), self.reach.entry(path) as opened:
            state, content = _read_state(opened)
            self.repositories.parts[path] = GitPart(kind, state)
            if content is None or kind not in (*CONFIGS, *STEPS):
                return
            if (
                state[1:] not in self.repositories.contents
                and len(content) <= self.content_bytes_left
            ):
                self.content_bytes_left -= len(content)
                self.repositories.contents[state[1:]] = content

    def add_linked(self) -> None:
        """Add programs and configuration in the folder to which parts that are links lead."""
        waiting = list(self.repositories.parts)
        for path in waiting:
            kind, state = self.repositories.parts[path].kind, self.repositories.parts[path].state
            place = None
            if kind.partition("/")[0] in (*CONFIGS, *_FOLDERS) and state.startswith("l"):
                place = _inside(self.reach.root, os.path.dirname(path), state[1:])
            if (
                place is None
                or place in self.repositories.parts
                or place in self.repositories.named
            ):
                continue
            earlier = set(self.repositories.parts)
            self.repositories.named.append(place)
            if kind in _FOLDERS:
                self.add_folder(place, kind)
            else:
                self.add(place, kind)
            waiting += self.repositories.parts.keys() - earlier

    def add_named(self) -> None:
        """Add places in the folder that configurations name, and their included configurations."""
        repositories = self.repositories
        waiting = [
            (path, path) for path, part in repositories.parts.items() if part.kind in CONFIGS
        ]
        work_folders = [
            os.path.dirname(path) for path, p in repositories.parts.items() if p.kind == LINK
        ]
        max_configs = len(waiting) + MAX_INCLUDED_CONFIGS
        for path, owner in waiting:
            content = b""
            with suppress(OSError):
                content = self.reach.read(path, limit=MAX_CONFIG_BYTES) or b""
            hooks, included = paths_named_by(content)
            git_folder = os.path.dirname(owner)
            bases = {os.path.dirname(git_folder), git_folder, *work_folders[:MAX_INCLUDED_CONFIGS]}
            for name, base in product(hooks, sorted(bases)):
                place = _inside(self.reach.root, base, name)
                if place is not None and place not in repositories.named:
                    repositories.named.append(place)
                    self.add_folder(place, HOOKS)
            for name in included:
                place = _inside(self.reach.root, os.path.dirname(path), name)
                if place is None or place in repositories.named or len(waiting) >= max_configs:
                    continue
                repositories.named.append(place)
                self.add(place, CONFIGS[0])
                waiting.append((place, owner))


def _read_state(opened: int) -> tuple[str, bytes | None]:
    status = os.fstat(opened)
    if stat.S_ISLNK(status.st_mode):
        return f"l{os.readlink('', dir_fd=opened)}", None
    if not stat.S_ISREG(status.st_mode):
        return "o", None
    try:
        with open_file(opened) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
            digest = hashlib.sha256(content)
            while (piece := file.read(_PIECE_BYTES)) and file.tell() <= MAX_PART_BYTES:
                digest.update(piece)
    except PermissionError:
        piece = b"unread"
    if piece:
        return f"u{status.st_ino} {status.st_size} {status.st_ctime_ns}", None
    return f"f{digest.hexdigest()}", content if len(content) <= MAX_CONFIG_BYTES else None


def _inside(root: str, base: str, name: str) -> str | None:
    """Return the path below the root to which a name leads, following links, or None if outside."""
    try:
        real = os.path.realpath(os.path.join(root, base, name))
    except ValueError:
        return None
    if not real.startswith(f"{root}/"):
        return None
    return os.path.relpath(real, root)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
