"""Finding the repositories below a folder, and what git obeys in each.

The whole folder is looked at, ``.git`` itself included, since a repository may lie anywhere and a
``.git`` file may lead to any of them. No link is followed. The cost is that of reading the names
once, up to a limit.
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
    return _with_owner_access(folder, lambda: os.open(name, flags, dir_fd=folder))


def open_file(opened: int) -> BinaryIO:
    return open(f"/proc/self/fd/{opened}", "rb")


def _with_owner_access[T](folder: int, work: Callable[[], T]) -> T:
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


class FolderReader:
    """Paths are relative to the root, a real path; the empty one is the root itself. What is not
    there, or has a link on the way, raises OSError. ``steps`` counts folders that were opened."""

    def __init__(self, root: str) -> None:
        self.root = root
        try:
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Rejected(
                "The folder cannot be read: %(reason)s.", reason=error.strerror
            ) from error
        self._held: OrderedDict[str, int] = OrderedDict()
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in (*self._held.values(), self._root):
            os.close(opened)

    def folder(self, path: str) -> int:
        """A folder by O_PATH, open until the next folder is reached."""
        known, folder = path, self._root
        while known and known not in self._held:
            known = known.rpartition("/")[0]
        if known:
            self._held.move_to_end(known)
            folder = self._held[known]
        for name in path[len(known) :].strip("/").split("/") if path != known else ():
            folder, known = open_place(folder, name, is_folder=True), _join(known, name)
            self.steps += 1
            self._held[known] = folder
            if len(self._held) > MAX_OPEN_FOLDERS:
                os.close(self._held.popitem(last=False)[1])
        return folder

    def entries(self, path: str, *, limit: int | None = None) -> list[tuple[str, bool]]:
        """The names in a folder, each with whether it is a folder; no more than ``limit``."""
        folder = self.folder(path)

        def scan() -> list[tuple[str, bool]]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            opened = os.open(f"/proc/self/fd/{folder}", flags)
            try:
                with os.scandir(opened) as listing:
                    entries = islice(listing, limit)
                    return [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
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
        """Let the owner into the folders on the way, for good."""
        names = path.split("/")
        for end in range(1, len(names)):
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


LINK = ".git"  # The kind of a ``.git`` that is a file or a link and leads to a repository

# Repositories whose parts a sandbox holds read-only; of more, what changed is found afterwards.
# Each takes some mounts and some words of bwrap's command line.
MAX_PROTECTED = 500

MAX_INCLUDED_CONFIGS = 50  # That are read because another one includes them

# Names that are read for each file that a listing may have (LOOM_SNAPSHOT_MAX_FILES): to read a
# name costs less than a tenth, and what is not read is not disarmed.
NAMES_PER_FILE = 20

MAX_HELD_PARTS = 100  # By a descriptor, while a command runs

# Of the contents of configurations and steps that are kept to compare with.
MAX_KEPT_BYTES = 32 * 2**20

# Of a file whose content is compared; a larger one is told from another by its times.
MAX_PART_BYTES = 64 * 2**20

PATH_MAX = 4096  # Linux takes no longer path
_FOLDERS = (HOOKS, "remotes", "branches")  # Parts of which each entry counts

_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class GitPart:
    """Something that git obeys. ``kind`` is its path in a repository; ``state`` says what it is and
    has: ``f`` and the SHA-256 of a file's content, ``l`` and where a link leads, ``u`` and the
    number and times of a file that cannot be read (but perhaps be run) or is too large, or ``o``: a
    folder or something else."""

    kind: str
    state: str


@dataclass(slots=True)
class Repositories:
    """``folders`` are those that git takes for a repository's own data, the outer ones first;
    ``parts`` what git obeys, by path; ``named`` the places in the folder that a configuration or a
    link leads to; ``contents`` the configurations and steps, by digest. All paths are relative; the
    empty one is the folder itself. ``is_whole`` False: there are too many names, and those that are
    deepest were not read."""

    folders: list[str] = field(default_factory=list)
    parts: dict[str, GitPart] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    is_whole: bool = True


def find_repositories(root: Path, *, known: Mapping[str, GitPart] | None = None) -> Repositories:
    """What is there now. ``known`` parts are looked at beyond the limit, too."""
    found = Repositories()
    with FolderReader(os.path.realpath(root)) as reach:
        work = _RepositoryScan(reach, found)
        work.walk()
        if not found.is_whole:
            work.add_known(known or {})
        for folder in found.folders:
            work.add_parts(folder)
        work.add_linked()
        work.add_named()
    return found


def make_protection(
    root: Path, found: Repositories, *, may_write_config: bool = False
) -> WriteProtection:
    """What a command in the folder must not change. ``may_write_config``: but for the configuration
    itself."""
    pinned = [root / folder for folder in found.folders[:MAX_PROTECTED] if folder]
    links = [path for path, part in found.parts.items() if part.kind == LINK]
    read_only = [p for p in links if not found.parts[p].state.startswith("l")][:MAX_PROTECTED]
    names = [name for name in PARTS if not (may_write_config and name in CONFIGS)]
    wanted = [_join(f, name) for f in found.folders[:MAX_PROTECTED] for name in names]
    wanted += [
        path
        for path in found.named[:MAX_PROTECTED]
        if path and not any(f == path or f.startswith(f"{path}/") for f in found.folders)
    ]
    # Only what is there, and no link on the way to it.
    read_only += [
        path
        for path in wanted
        if os.path.lexists(root / path) and os.path.realpath(root / path) == str(root / path)
    ]
    places = tuple(root / path for path in dict.fromkeys(read_only))
    return WriteProtection(pinned=tuple(pinned), read_only=places)


@contextmanager
def hold_parts(
    root: Path, found: Repositories, protection: WriteProtection
) -> Iterator[Callable[[str], bool]]:
    """Gives a function that says, once a command has ended, whether a part was read-only for it all
    the time: then what changed in it was changed by somebody else."""
    # A mount is gone as soon as somebody outside renames another file to its place, or removes it,
    # and the command can write from then on. So what is at the path must be the same file or folder
    # still; a descriptor keeps its number from being used again. What has a second name could be
    # written by that.
    real = os.path.realpath(root)
    held: dict[str, int] = {}
    with ExitStack() as stack:
        with FolderReader(real) as reach:
            linked = {path for path in found.parts if _has_other_name(reach, path)}
            for place in protection.read_only[:MAX_HELD_PARTS]:
                path = str(place.relative_to(root))
                with suppress(OSError), reach.entry(path) as opened:
                    held[path] = os.dup(opened)
                    stack.callback(os.close, held[path])

        def was_held(path: str) -> bool:
            place = path if path in held else os.path.dirname(path)
            if place not in held or path in linked:
                return False
            with suppress(OSError), FolderReader(real) as reach, reach.entry(place) as now:
                is_same = os.path.samestat(os.fstat(held[place]), os.fstat(now))
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
    found: Repositories
    left: int = MAX_KEPT_BYTES

    def walk(self) -> None:
        hidden = {str(path) for path in hidden_places()}
        folders = [""]
        left = int(NAMES_PER_FILE * settings.LOOM.snapshot_max_files)
        for folder in folders:
            try:
                entries = self.reach.entries(folder, limit=left + 1)
            except OSError:
                continue  # it is gone meanwhile, or somebody else's
            # A folder costs as much as a name, each time that it must be opened again.
            if len(entries) + self.reach.steps > left:
                self.found.is_whole = False
                continue
            left -= len(entries)
            for name, is_folder in entries:
                path = _join(folder, name)
                if is_git_name(name) and not is_folder:
                    self.add(path, LINK)
                # What is deeper is too deep for git as well.
                if is_folder and len(path) < PATH_MAX and f"{self.reach.root}/{path}" not in hidden:
                    folders.append(path)
            if is_git_folder(name for name, _ in entries):
                self.found.folders.append(folder)

    def add_known(self, known: Mapping[str, GitPart]) -> None:
        for path, part in known.items():
            if part.kind == LINK:
                self.add(path, LINK)
            folder = path.removesuffix(part.kind).removesuffix("/")
            if path.endswith(part.kind) and folder not in self.found.folders:
                with suppress(OSError):
                    if is_git_folder(name for name, _ in self.reach.entries(folder)):
                        self.found.folders.append(folder)

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
            self.add(path, kind)  # if it is there: no folder
            return
        for name, _ in names:
            if is_hook(name):
                self.add(_join(path, name), f"{kind}/{name}")

    def add(self, path: str, kind: str) -> None:
        with suppress(OSError), self.reach.entry(path) as opened:
            state, content = _read_state(opened)
            self.found.parts[path] = GitPart(kind, state)
            if content is None or kind not in (*CONFIGS, *STEPS):
                return
            if state[1:] not in self.found.contents and len(content) <= self.left:
                self.left -= len(content)
                self.found.contents[state[1:]] = content

    def add_linked(self) -> None:
        """Programs and configuration in the folder that the parts lead to that are links."""
        waiting = list(self.found.parts)
        for path in waiting:
            kind, state = self.found.parts[path].kind, self.found.parts[path].state
            place = None
            if kind.partition("/")[0] in (*CONFIGS, *_FOLDERS) and state.startswith("l"):
                place = _inside(self.reach.root, os.path.dirname(path), state[1:])
            if place is None or place in self.found.parts or place in self.found.named:
                continue
            known = set(self.found.parts)
            self.found.named.append(place)
            (self.add_folder if kind in _FOLDERS else self.add)(place, kind)
            waiting += self.found.parts.keys() - known

    def add_named(self) -> None:
        """What the configurations lead to inside of the folder; what those include as well."""
        found = self.found
        waiting = [(path, path) for path, part in found.parts.items() if part.kind in CONFIGS]
        work_folders = [os.path.dirname(path) for path, p in found.parts.items() if p.kind == LINK]
        most = len(waiting) + MAX_INCLUDED_CONFIGS
        for path, owner in waiting:
            content = b""
            with suppress(OSError):
                content = self.reach.read(path, limit=MAX_CONFIG_BYTES) or b""
            hooks, included = paths_named_by(content)
            git_folder = os.path.dirname(owner)
            bases = {os.path.dirname(git_folder), git_folder, *work_folders[:MAX_INCLUDED_CONFIGS]}
            for name, base in product(hooks, sorted(bases)):
                place = _inside(self.reach.root, base, name)
                if place is not None and place not in found.named:
                    found.named.append(place)
                    self.add_folder(place, HOOKS)
            for name in included:
                place = _inside(self.reach.root, os.path.dirname(path), name)
                if place is None or place in found.named or len(waiting) >= most:
                    continue
                found.named.append(place)
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
    """The path below the root that a name leads to, links followed. Whatever is done there is done
    without."""
    try:
        real = os.path.realpath(os.path.join(root, base, name))
    except ValueError:
        return None
    if not real.startswith(f"{root}/"):
        return None
    return os.path.relpath(real, root)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
