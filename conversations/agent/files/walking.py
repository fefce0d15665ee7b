"""Going through a folder and what lies below it, without following links.

What git ignores and well-known heavy folders are passed over (and named), unless the walk begins
inside of them. A walk ends at a time limit, so it always ends.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from conversations.domain.errors import Rejected

from .confined import FILE, FOLDER, FileStatus
from .executed_files import is_git_name
from .ignoring import FILE_BYTES, FILE_NAME, HEAVY, Rules, decide, read_rules
from .opening import enter, found_at, guarded, open_folder, open_regular
from .paths import ResolvedPath, find_place, private_places

MAX_DEPTH = 64

type _Layer = tuple[int, Rules]  # Rules, and how many names deep their folder lies


@dataclass(slots=True, kw_only=True)
class FolderWalk:
    """One walk, and afterwards what it left out. ``deadline`` is an instant of ``time.monotonic``.
    ``max_depth`` 1: the folder's own entries only."""

    root: Path
    path: str = "."
    with_ignored: bool = False
    deadline: float
    max_depth: int = MAX_DEPTH
    passed_over: list[str] = field(default_factory=list)
    is_late: bool = False
    _private: tuple[str, ...] = ()

    def entries(self) -> Iterator[FileStatus]:
        """Everything below the folder, sorted by name, a folder before what is in it. Folders that
        are passed over come too."""
        place = find_place(self.root, self.path)
        self._private = private_places()
        with guarded(self.path), open_folder(place) as folder:
            layers = [] if self.with_ignored else list(self._outer_layers(place))
            yield from self._below(folder, place, layers, 1)

    def files(self) -> Iterator[FileStatus]:
        return (entry for entry in self.entries() if entry.kind == FILE)

    def _outer_layers(self, place: ResolvedPath) -> Iterator[_Layer]:
        """The rules of the folders above the one where the walk begins."""
        for depth in range(len(place.parts)):
            with (
                suppress(OSError),
                open_folder(ResolvedPath(place.root, place.parts[:depth])) as folder,
            ):
                yield from self._layer(folder, ResolvedPath(place.root, place.parts[:depth]))

    def _layer(self, folder: int, place: ResolvedPath) -> Iterator[_Layer]:
        own = ResolvedPath(place.root, (*place.parts, FILE_NAME))
        with suppress(OSError, Rejected):
            file = open_regular(folder, own, FILE_NAME)
            try:
                yield len(place.parts), read_rules(os.read(file, FILE_BYTES))
            finally:
                os.close(file)

    def _below(
        self, folder: int, place: ResolvedPath, layers: list[_Layer], depth: int
    ) -> Iterator[FileStatus]:
        if not self.with_ignored:
            layers = [*layers, *self._layer(folder, place)]
        for name in sorted(os.listdir(folder), key=os.fsencode):
            self.is_late = self.is_late or time.monotonic() > self.deadline
            if self.is_late:
                return
            entry = self._look(folder, ResolvedPath(place.root, (*place.parts, name)))
            # Files that git ignores. A folder is shown, and not gone into.
            if entry is None or (entry.kind != FOLDER and self._is_ignored(entry, layers)):
                continue
            yield entry
            if entry.kind == FOLDER and self._goes_into(entry, layers, depth):
                with suppress(OSError):
                    below = enter(folder, name)
                    try:
                        inside = ResolvedPath(place.root, (*place.parts, name))
                        yield from self._below(below, inside, layers, depth + 1)
                    finally:
                        os.close(below)

    def _look(self, folder: int, place: ResolvedPath) -> FileStatus | None:
        if place.real in self._private:
            return None
        with suppress(OSError):
            return found_at(place, os.lstat(place.parts[-1], dir_fd=folder))
        return None

    def _goes_into(self, entry: FileStatus, layers: list[_Layer], depth: int) -> bool:
        name = entry.path.rpartition("/")[2]
        if depth >= self.max_depth:
            return False
        is_over = is_git_name(name) or (
            not self.with_ignored and (name in HEAVY or self._is_ignored(entry, layers))
        )
        if is_over:
            self.passed_over.append(entry.path)
        return not is_over

    def _is_ignored(self, entry: FileStatus, layers: list[_Layer]) -> bool:
        parts = entry.path.split("/")
        for depth, rules in reversed(layers):
            ignored = decide(rules, parts[depth:], is_folder=entry.kind == FOLDER)
            if ignored is not None:
                return ignored
        return False
