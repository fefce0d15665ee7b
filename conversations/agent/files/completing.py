"""Finding files of a folder by part of their path, while somebody types it.

The paths of a folder are read once and kept for a moment, since every key asks again. A folder may
be huge: reading ends at a time and a number, and says so.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from conversations.domain.errors import Rejected

from .executed_files import is_git_name
from .paths import shown
from .text_files import RecentlyUsed
from .walking import HEAVY, FolderWalk

MAX_SHOWN = 20
MAX_PATHS = 50_000
MAX_SECONDS = 1.5  # For reading a folder: nobody waits longer for a list

KEPT_SECONDS = 5.0
MAX_FOLDERS_CACHED = 8


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """``is_cut``: the folder holds more than was looked at."""

    paths: list[str]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class _Listing:
    """Paths, the newest file first."""

    paths: tuple[str, ...]
    is_cut: bool
    read_at: float


_known = RecentlyUsed[tuple[str, str], _Listing](size=MAX_FOLDERS_CACHED)


def find_files(root: str | Path, query: str, *, limit: int = MAX_SHOWN) -> FoundFiles:
    """The files whose path has the query's characters in this order, best first: those whose name
    begins with it, whose name has it, whose path has it, the rest. Without a query the files that
    were changed last. In a folder that is too large to be read, what stands before the query's last
    slash is looked through as a folder. Raises Rejected when the folder is gone."""
    listing = _listing(str(root))
    folder, slash, name = query.rpartition("/")
    # A walk passes such folders over, but not where it begins
    if (
        listing.is_cut
        and slash
        and not any(name in HEAVY or is_git_name(name) for name in folder.split("/"))
    ):
        with suppress(Rejected):
            listing, query = _listing(str(root), folder), name
    wanted = query.casefold().replace(" ", "").strip("/")
    if not wanted:
        return FoundFiles(list(listing.paths[:limit]), listing.is_cut)
    ranked = sorted(_ranked(listing.paths, wanted))
    return FoundFiles([path for *_, path in ranked[:limit]], listing.is_cut)


def _ranked(paths: Iterable[str], wanted: str) -> Iterator[tuple[int, int, str]]:
    for path in paths:
        rank = _rank(path.casefold(), wanted)
        if rank is not None:
            yield rank, len(path), path


def _rank(path: str, wanted: str) -> int | None:
    """The smaller the better; None: it does not fit."""
    if not _has_in_order(path, wanted):
        return None
    name = path.rpartition("/")[2]
    tests = (
        name.startswith(wanted),
        wanted in name,
        path.startswith(wanted),
        wanted in path,
        _has_in_order(name, wanted),
    )
    return next((rank for rank, fits in enumerate(tests) if fits), len(tests))


def _has_in_order(text: str, wanted: str) -> bool:
    at = -1
    for char in wanted:
        at = text.find(char, at + 1)
        if at < 0:
            return False
    return True


def _listing(root: str, path: str = ".") -> _Listing:
    known = _known.find((root, path))
    if known is None or time.monotonic() - known.read_at > KEPT_SECONDS:
        walk = FolderWalk(root=Path(root), path=path, deadline=time.monotonic() + MAX_SECONDS)
        files = list(islice(walk.files(), MAX_PATHS + 1))
        newest = sorted(files[:MAX_PATHS], key=lambda file: (-file.mtime_ns, file.path))
        known = _Listing(
            # A name that hides something cannot be typed, nor one with a quote be quoted.
            paths=tuple(f.path for f in newest if '"' not in f.path and shown(f.path) == f.path),
            is_cut=walk.is_late or len(files) > MAX_PATHS,
            read_at=time.monotonic(),
        )
        _known.store((root, path), known)
    return known
