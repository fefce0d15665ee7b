"""Finding the repositories below a folder, and what git obeys in each.

The whole folder is looked at, ``.git`` itself included, since a repository may lie anywhere
and a ``.git`` file may lead to any of them. No link is followed. The cost is that of
reading the names once, up to a limit.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from django.conf import settings

from conversations.domain.git_parts import (
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

from .bubblewrap import Protection
from .support import hidden_places

LINK = ".git"
"""The kind of a ``.git`` that is a file or a link and leads to a repository."""

MAX_PROTECTED = 500
"""Repositories whose parts a sandbox holds read-only; of more, what changed is found
afterwards. Each takes some mounts and some words of bwrap's command line."""

MAX_INCLUDED = 50
"""Further configurations that are read because another one includes them."""

NAMES_PER_FILE = 20
"""Names that are read for each file that a listing may have (LOOM_SNAPSHOT_MAX_FILES): to
read a name costs less than a tenth, and what is not read is not disarmed."""

MAX_HELD = 100
"""Parts of which a descriptor is held while a command runs."""

_FOLDERS = (HOOKS, "remotes", "branches")
"""Parts of which each entry counts."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Part:
    """Something that git obeys. ``kind`` is its path in a repository; ``state`` says what it
    is and has: ``f`` and the SHA-256 of a file's content, ``l`` and where a link leads, ``u``: a
    file that cannot be read (but perhaps be run), or ``o``: a folder or something else."""

    kind: str
    state: str


@dataclass(slots=True)
class Repositories:
    """``folders`` are those that git takes for a repository's own data, the outer ones
    first; ``parts`` what git obeys, by path; ``named`` the places in the folder that a
    configuration leads to. All paths are relative; the empty one is the folder itself.
    ``is_whole`` False: there are too many names, and those that are deepest were not read."""

    folders: list[str] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    is_whole: bool = True


def find_repositories(root: Path, *, known: Mapping[str, Part] | None = None) -> Repositories:
    """What is there now. ``known`` parts are looked at beyond the limit, too."""
    found = Repositories()
    real = os.path.realpath(root)
    with _walk(real, found) as folders:
        for folder, entries in folders:
            for entry in entries:
                if is_git_name(entry.name) and not entry.is_dir(follow_symlinks=False):
                    _add(found, real, _join(folder, entry.name), LINK)
            if is_git_folder([entry.name for entry in entries]):
                found.folders.append(folder)
        if not found.is_whole:
            _add_known(found, real, known or {})
        for folder in found.folders:
            _add_parts(found, real, folder)
        _add_named(found, real)
    return found


def make_protection(
    root: Path, found: Repositories, *, may_write_config: bool = False
) -> Protection:
    """What a command in the folder must not change. ``may_write_config``: but for the
    configuration itself."""
    pinned = [root / folder for folder in found.folders[:MAX_PROTECTED] if folder]
    read_only = [
        root / path
        for path, part in found.parts.items()
        if part.kind == LINK and not part.state.startswith("l")
    ][:MAX_PROTECTED]
    for folder in found.folders[:MAX_PROTECTED]:
        for name in PARTS:
            path = _join(folder, name)
            is_writable = may_write_config and name in CONFIGS
            if not is_writable and _is_plain(root, path):
                read_only.append(root / path)
    for path in found.named[:MAX_PROTECTED]:
        holds_more = any(f == path or f.startswith(f"{path}/") for f in found.folders)
        if path and not holds_more and _is_plain(root, path):
            read_only.append(root / path)
    return Protection(pinned=tuple(pinned), read_only=tuple(dict.fromkeys(read_only)))


@contextmanager
def hold_parts(
    root: Path, found: Repositories, protection: Protection
) -> Iterator[Callable[[str], bool]]:
    """Gives a function that says, once a command has ended, whether a part was read-only for
    it all the time: then what changed in it was changed by somebody else.

    A mount is gone as soon as somebody outside renames another file to its place, or removes
    it, and the command can write from then on. So what is at the path must be the same file
    or folder still; a descriptor keeps its number from being used again. What has a second
    name could be written by that."""
    held: dict[str, int] = {}
    linked = {path for path in found.parts if _has_other_name(root / path)}
    try:
        for place in protection.read_only[:MAX_HELD]:
            with suppress(OSError):
                opened = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                held[str(place.relative_to(root))] = opened

        def was_held(path: str) -> bool:
            place = path if path in held else os.path.dirname(path)
            if place not in held or path in linked or _has_other_name(root / path):
                return False
            try:
                return os.path.samestat(os.fstat(held[place]), os.lstat(root / place))
            except OSError:
                return False

        yield was_held
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def _has_other_name(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return True
    return not stat.S_ISDIR(status.st_mode) and status.st_nlink != 1


@contextmanager
def _walk(
    root: str, found: Repositories
) -> Iterator[Iterator[tuple[str, list["os.DirEntry[str]"]]]]:
    """Every folder with its entries, the outer ones first. One that its owner may not read
    is opened while this lasts: git itself needs no more than to pass through."""
    opened: list[tuple[str, int]] = []
    try:
        yield _read_folders(root, found, opened)
    finally:
        for path, mode in reversed(opened):
            with suppress(OSError):
                _change_mode(path, mode)


def _read_folders(
    root: str, found: Repositories, opened: list[tuple[str, int]]
) -> Iterator[tuple[str, list["os.DirEntry[str]"]]]:
    hidden = {str(path) for path in hidden_places()}
    folders = [""]
    left = int(NAMES_PER_FILE * settings.LOOM.snapshot_max_files)
    for folder in folders:
        path = os.path.join(root, folder)
        try:
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & 0o500 != 0o500:
                _change_mode(path, mode | 0o500)
                opened.append((path, mode))
            with os.scandir(path) as listing:
                entries = list(islice(listing, left + 1))
        except OSError:
            continue  # it is gone meanwhile, somebody else's, or too deep for git as well
        if len(entries) > left:
            found.is_whole = False
            continue
        left -= len(entries)
        folders += [
            _join(folder, entry.name)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and entry.path not in hidden
        ]
        yield folder, entries


def _change_mode(path: str, mode: int) -> None:
    """Of a folder; never of what a link leads to."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{place}", mode)
    finally:
        os.close(place)


def _add_known(found: Repositories, root: str, known: Mapping[str, Part]) -> None:
    for path, part in known.items():
        if part.kind == LINK:
            _add(found, root, path, LINK)
        folder = path.removesuffix(part.kind).removesuffix("/")
        if path.endswith(part.kind) and folder not in found.folders:
            with suppress(OSError):
                if is_git_folder(os.listdir(os.path.join(root, folder))):
                    found.folders.append(folder)


def _add_parts(found: Repositories, root: str, folder: str) -> None:
    for name in (*PARTS, *STEPS, *STRATEGIES):
        path = _join(folder, name)
        upper = os.path.dirname(name)
        if upper and os.path.islink(os.path.join(root, folder, upper)):
            _add(found, root, _join(folder, upper), upper)
        elif name in _FOLDERS:
            _add_folder(found, root, path, name)
        else:
            _add(found, root, path, name)


def _add_folder(found: Repositories, root: str, path: str, kind: str) -> None:
    real = os.path.join(root, path)
    try:
        if not stat.S_ISDIR(os.lstat(real).st_mode):
            _add(found, root, path, kind)
            return
        names = os.listdir(real)
    except OSError:
        return
    for name in names:
        if is_hook(name):
            _add(found, root, _join(path, name), f"{kind}/{name}")


def _add(found: Repositories, root: str, path: str, kind: str) -> None:
    with suppress(OSError):
        found.parts[path] = Part(kind, _state_of(os.path.join(root, path)))


def _state_of(path: str) -> str:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return f"l{os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return "o"
    try:
        with os.fdopen(os.open(path, _OPEN), "rb") as file:
            return f"f{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except PermissionError:
        return "u"


def _add_named(found: Repositories, root: str) -> None:
    """What the configurations lead to inside of the folder; what those include as well."""
    waiting = [(path, path) for path, part in found.parts.items() if part.kind in CONFIGS]
    work_folders = [os.path.dirname(path) for path, p in found.parts.items() if p.kind == LINK]
    for path, owner in waiting:
        hooks, included = paths_named_by(_read(os.path.join(root, path)))
        git_folder = os.path.dirname(owner)
        bases = {os.path.dirname(git_folder), git_folder, *work_folders[:MAX_INCLUDED]}
        for place in (_inside(root, base, name) for name in hooks for base in sorted(bases)):
            if place is not None and place not in found.named:
                found.named.append(place)
                _add_folder(found, root, place, HOOKS)
        for name in included:
            place = _inside(root, os.path.dirname(path), name)
            if place is not None and place not in found.named and len(found.named) < MAX_INCLUDED:
                found.named.append(place)
                _add(found, root, place, CONFIGS[0])
                waiting.append((place, owner))


def _inside(root: str, base: str, name: str) -> str | None:
    """The path below the root that a name leads to, links followed."""
    try:
        real = os.path.realpath(os.path.join(root, base, name))
    except ValueError:
        return None
    if not real.startswith(f"{root}/"):
        return None
    return os.path.relpath(real, root)


def _read(path: str) -> bytes:
    try:
        with os.fdopen(os.open(path, _OPEN), "rb") as file:
            return file.read(MAX_CONFIG_BYTES)
    except OSError:
        return b""


def _is_plain(root: Path, path: str) -> bool:
    """Whether it is there, and no link on the way to it."""
    return os.path.lexists(root / path) and os.path.realpath(root / path) == str(root / path)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
