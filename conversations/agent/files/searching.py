"""Searching the files of a folder for lines that match.

Which files are looked into is decided by one walk, whoever matches the lines; and a line is shown
as it is read from the file itself, opened as :mod:`confined` does it. So neither what is found nor
what is shown depends on the engine, nor on a link that was put somewhere meanwhile.
"""

import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from conversations.domain.errors import Rejected

from .confined import FILE, FileStatus, read_bytes, stat_file
from .ignoring import Pattern
from .search_engines import Engine, Expression, LineMatch, open_engine
from .text_files import read_text
from .walking import FolderWalk

FIRST_FILES, MOST_FILES = 50, 2000  # Files that an engine is given at once, and what that grows to
ARGUMENT_BYTES = 500_000  # Of the names of those files: a command line has a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """``glob`` is matched against paths below ``path``. ``after``: only lines behind this one (path
    and number). ``limit``: bytes of a file that is looked into."""

    expression: Expression
    path: str = "."
    glob: Pattern | None = None
    with_ignored: bool = False
    after: tuple[str, int] | None = None
    limit: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of one file, and which of them match (numbers from 1)."""

    path: str
    lines: list[str]
    numbers: list[int]


@dataclass(slots=True)
class Search:
    """One search, on the thread that calls ``run``; ``stop`` is for another one."""

    root: Path
    query: FileQuery
    too_large: int = 0
    looked_into: int = 0
    passed_over: list[str] = field(default_factory=list)
    was_late: bool = False
    _deadline: float = 0.0
    _walk: FolderWalk | None = None
    _engine: Engine | None = None

    def run(self) -> Generator[Lines]:
        """File by file, in the walk's order. Raises Rejected for a path or an expression that
        cannot be used."""
        query = self.query
        self._deadline = time.monotonic() + query.seconds
        self._engine = open_engine(
            self.root, query.expression, limit=query.limit, seconds=query.seconds
        )
        try:
            for batch in self._batches():
                assert self._engine is not None
                self.looked_into += len(batch)
                hits = self._engine.find(batch)
                for path, group in groupby(hits, key=attrgetter("path")):
                    found = self._check(path, list(group))
                    if found is not None:
                        yield found
                self.was_late = time.monotonic() > self._deadline
                if self.was_late:
                    break
        finally:
            self._engine.close()

    def stop(self) -> None:
        self._deadline = 0.0
        if self._walk is not None:
            self._walk.deadline = 0.0
        if self._engine is not None:
            self._engine.stop()

    def _check(self, path: str, hits: list[LineMatch]) -> Lines | None:
        """The hits whose line stands in the file, behind the cursor."""
        after = self.query.after
        try:
            file = read_text(read_bytes(self.root, path, limit=self.query.limit).data)
        except Rejected:
            return None
        if file is None:
            return None
        lines = file.lines
        numbers = [
            hit.number
            for hit in hits
            if 0 < hit.number <= len(lines)
            and lines[hit.number - 1] == hit.line
            and (after is None or path != after[0] or hit.number > after[1])
        ]
        return Lines(path=path, lines=lines, numbers=numbers) if numbers else None

    def _batches(self) -> Iterator[list[str]]:
        batch, size, most = list[str](), 0, FIRST_FILES
        for path in self._paths():
            batch.append(path)
            size += len(os.fsencode(path)) + 16
            if len(batch) >= most or size > ARGUMENT_BYTES:
                yield batch
                batch, size, most = [], 0, min(2 * most, MOST_FILES)
        if batch:
            yield batch

    def _paths(self) -> Iterator[str]:
        after = self.query.after and path_order(self.query.after[0])
        for entry, below in self._files():
            if self.query.glob is not None and not self.query.glob.matches(below):
                continue
            if after and path_order(entry.path) < after:
                continue
            if entry.size > self.query.limit:
                self.too_large += 1
            elif entry.size:
                yield entry.path

    def _files(self) -> Iterator[tuple[FileStatus, list[str]]]:
        """With the names below the folder that is searched."""
        found = stat_file(self.root, self.query.path)
        if found is not None and found.kind == FILE:
            yield found, found.path.split("/")[-1:]
            return
        depth = 0 if found is None or found.path == "." else found.path.count("/") + 1
        self._walk = walk = FolderWalk(
            root=self.root,
            path=self.query.path,
            with_ignored=self.query.with_ignored,
            deadline=self._deadline,
        )
        self.passed_over = walk.passed_over
        for entry in walk.files():
            yield entry, entry.path.split("/")[depth:]


def path_order(path: str) -> list[bytes]:
    """Sorts paths as a walk meets them."""
    return [os.fsencode(name) for name in path.split("/")]
