"""Searching the files of a folder: for lines that match, and by part of their path.

A walk decides which files are searched, whichever engine matches the lines. A line is shown as it
is read from the file itself, opened as :mod:`confined` does it. So the results depend neither on
the engine, nor on a link that was put somewhere meanwhile.
"""

import heapq
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from threading import Timer
from typing import IO, Any

from conversations.domain.errors import Rejected
from conversations.rendering.programs import start_program

from . import search_worker
from .confined import read_bytes, stat_file
from .executed_files import is_git_name
from .paths import FILE, shown
from .text_files import LRUCache, read_text
from .walking import HEAVY, FolderWalk, GlobPattern

FIRST_BATCH_FILES, MAX_BATCH_FILES = 50, 2000  # Each batch is twice as large as the one before
MAX_ARGUMENT_BYTES = 500_000  # Total length of the names, because a command line has a limit


class BadExpression(Rejected):
    code = "bad_expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuery:
    """A search for lines.

    ``expression`` is a regular expression, or literal text if ``is_literal`` is set. ``glob`` is
    matched against paths below ``path``. ``after`` (a path and a line number) restricts the results
    to later lines. Files of more than ``limit`` bytes are not searched. ``seconds`` limits the
    whole search."""

    expression: str
    is_literal: bool = False
    ignores_case: bool = False
    path: str = "."
    glob: GlobPattern | None = None
    with_ignored: bool = False
    after: tuple[str, int] | None = None
    limit: int
    seconds: float


# A matching line: the file's path, the line's number from 1, and the line without its newline
type Hit = tuple[str, int, str]


class SearchEngine:
    """Finds matching lines by one process, which is killed on timeout.

    There are two engines with the same results: ripgrep and Python."""

    def __init__(self, root: Path, query: FileQuery) -> None:
        self._root = root
        self._query = query
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self.too_much = 0  # Files whose lines take too much memory
        self._timer = Timer(max(0.0, query.seconds), self.stop)
        self._timer.daemon = True
        self._timer.start()

    def find(self, paths: Sequence[str]) -> Iterator[Hit]:
        """Yield the matching lines of ``paths`` (relative to the folder), in that order."""
        raise NotImplementedError

    def start(self, command: list[str], folder: str, **streams: Any) -> subprocess.Popen[bytes]:
        self._process = start_program(command, cwd=folder, **streams)
        if self._is_over:
            self._process.kill()
        return self._process

    def end(self) -> None:
        """Kill and reap the process."""
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process.wait()

    def stop(self) -> None:
        """Kill the process; can be called from any thread."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill and reap the process; to be called from the thread that searches."""
        self._timer.cancel()
        self.end()


_OPERATORS = re.compile(r"[\\.^$*+?{}()|\[\]]")
# For ripgrep Latin-1 is Windows-1252, which has other characters for these bytes.
_FROM_WINDOWS = {
    ord(character): byte
    for byte in range(0x80, 0xA0)
    if (character := bytes([byte]).decode("cp1252", "ignore"))
}


class RipgrepEngine(SearchEngine):
    """Runs ``rg`` with the names of the files, so that it applies no rules of its own.

    In a file that is not UTF-8, ripgrep only matches ASCII letters. A second engine with an
    ``encoding`` searches such files."""

    OPTIONS = (
        *("--no-config", "--no-ignore", "--hidden", "--no-messages", "--color=never", "--text"),
        *("--with-filename", "--no-heading", "--null", "--line-number", "--no-column", "--crlf"),
        *("--threads=1", "--no-mmap", f"--max-count={search_worker.MAX_LINES}"),
    )
    # Options that find files with a line that is not valid UTF-8
    NOT_UTF8 = ("--no-crlf", "--files-with-matches", "--invert-match", "--line-regexp", "(?s:.)*")

    def __init__(self, program: str, root: Path, query: FileQuery, *, encoding: str = "") -> None:
        is_plain = query.is_literal or not _OPERATORS.search(query.expression)
        self._latin: RipgrepEngine | None = None
        is_latin = all(character <= "\xff" for character in query.expression)
        if not encoding and is_latin and not (is_plain and query.expression.isascii()):
            self._latin = RipgrepEngine(program, root, query, encoding="latin1")
        super().__init__(root, query)
        self._encoding = encoding
        self._program = [program, *self.OPTIONS]
        case = "--ignore-case" if query.ignores_case else "--case-sensitive"
        kind = ("--fixed-strings",) if query.is_literal else ()
        read = (f"--encoding={encoding}",) if encoding else ()
        self._command = [*self._program, case, *kind, *read, f"--regexp={query.expression}"]

    def stop(self) -> None:
        super().stop()
        if self._latin is not None:
            self._latin.stop()

    def close(self) -> None:
        super().close()
        if self._latin is not None:
            self._latin.close()

    def knows_expression(self) -> bool:
        """Return whether ripgrep supports the expression.

        Ripgrep has neither look-around nor back-references."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        return self.start([*self._command, "-"], os.path.realpath(self._root), **quiet).wait() < 2

    def find(self, paths: Sequence[str]) -> Iterator[Hit]:
        if self._latin is None or not (others := self._find_not_utf8(paths)):
            return self._find_lines(paths)
        places = {path: place for place, path in enumerate(paths)}
        return heapq.merge(
            self._find_lines([path for path in paths if path not in others]),
            self._latin.find([path for path in paths if path in others]),
            key=lambda hit: places[hit[0]],
        )

    def _find_not_utf8(self, paths: Sequence[str]) -> set[str]:
        output = self._open([*self._program, *self.NOT_UTF8], paths)
        try:
            names = output.read().split(b"\0")[:-1]
            return {os.fsdecode(name).removeprefix("./") for name in names}
        finally:
            self.end()

    def _open(self, command: list[str], paths: Sequence[str]) -> IO[bytes]:
        process = self.start(
            [*command, "--", *(f"./{path}" for path in paths)],
            os.path.realpath(self._root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        return process.stdout

    def _find_lines(self, paths: Sequence[str]) -> Iterator[Hit]:
        if not paths:  # without paths, ripgrep would search the folder
            return
        try:
            # The lines have the form ``path NUL number : text``. A path may contain a newline.
            begun = b""
            for line in self._open(self._command, paths):
                name, nul, after_name = (begun + line).partition(b"\0")
                begun = b"" if nul else name
                number, colon, data = after_name.partition(b":")
                if colon and number.isdigit():
                    data = data.removesuffix(b"\n").removesuffix(b"\r")
                    try:
                        text = data.decode().removeprefix("\ufeff")
                    except UnicodeDecodeError:
                        text = data.decode("latin-1")
                    if self._encoding:
                        text = text.translate(_FROM_WINDOWS)
                    yield os.fsdecode(name).removeprefix("./"), int(number), text
        finally:
            self.end()


class PythonEngine(SearchEngine):
    """Reads the files here, and passes their text to the worker; raises BadExpression."""

    def __init__(self, root: Path, query: FileQuery) -> None:
        super().__init__(root, query)
        command = [sys.executable, "-I", "-S", search_worker.__file__]
        self._worker = self.start(command, os.sep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        text = re.escape(query.expression) if query.is_literal else query.expression
        query_data = {"expression": text, "ignores_case": query.ignores_case}
        answer = self._ask(json.dumps(query_data).encode() + b"\n")
        if isinstance(answer, str):
            self.close()
            raise BadExpression(
                "'pattern' is not a valid regular expression: %(reason)s.", reason=str(answer)
            )

    def find(self, paths: Sequence[str]) -> Iterator[Hit]:
        for path in paths:
            with suppress(Rejected):
                file = read_text(read_bytes(self._root, path, limit=self._query.limit).data)
                if file is not None:
                    text = file.text.encode("utf-8", "surrogatepass")
                    lines = file.lines
                    numbers = self._ask(b"%d\n%b" % (len(text), text))
                    self.too_much += numbers is None and not self._is_over
                    for number in numbers or ():
                        yield path, number, lines[number - 1]

    def _ask(self, question: bytes) -> Any:
        """Return the worker's answer, or None if the process was killed."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        with suppress(OSError, ValueError):
            self._worker.stdin.write(question)
            self._worker.stdin.flush()
            return json.loads(self._worker.stdout.readline())
        return None


def open_engine(root: Path, query: FileQuery) -> SearchEngine:
    """Return the engine for the query; raise BadExpression if the expression is invalid."""
    if program := shutil.which("rg"):
        engine = RipgrepEngine(program, root, query)
        if engine.knows_expression():
            return engine
        engine.close()
    return PythonEngine(root, query)


# The path of a file, its lines, and the numbers of the matching lines (from 1)
type FoundLines = tuple[str, list[str], list[int]]


class FileSearch:
    """A search, which runs on the thread that calls ``run``; other threads may call ``stop``.

    After the search, its attributes say what was left out."""

    def __init__(self, root: Path, query: FileQuery) -> None:
        self.root = root
        self.query = query
        self.too_large = self.too_much = self.looked_into = 0
        self.passed_over: list[str] = []
        self.was_late = False
        self._deadline = 0.0
        self._walk: FolderWalk | None = None
        self._engine: SearchEngine | None = None

    def run(self) -> Generator[FoundLines]:
        """Yield the matching files, in the walk's order.

        Raise Rejected for a path or an expression that cannot be used."""
        self._deadline = time.monotonic() + self.query.seconds
        self._engine = engine = open_engine(self.root, self.query)
        try:
            for batch in self._batches():
                self.looked_into += len(batch)
                for path, hits in groupby(engine.find(batch), key=itemgetter(0)):
                    file = None
                    with suppress(Rejected):
                        limit = self.query.limit
                        file = read_text(read_bytes(self.root, path, limit=limit).data)
                    if file is None:
                        continue
                    # Only hits whose line is in the file as read here, and after the cursor
                    lines, after = file.lines, self.query.after
                    first = after[1] + 1 if after is not None and path == after[0] else 1
                    numbers = [
                        number
                        for _, number, line in hits
                        if first <= number <= len(lines) and lines[number - 1] == line
                    ]
                    if numbers:
                        yield path, lines, numbers
                self.was_late = time.monotonic() > self._deadline
                if self.was_late:
                    break
        finally:
            engine.close()
            self.too_much = engine.too_much

    def stop(self) -> None:
        self._deadline = 0.0
        if self._walk is not None:
            self._walk.deadline = 0.0
        if self._engine is not None:
            self._engine.stop()

    def _batches(self) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        max_files = FIRST_BATCH_FILES
        for path in self._paths():
            batch.append(path)
            size += len(os.fsencode(path)) + 16
            if len(batch) >= max_files or size > MAX_ARGUMENT_BYTES:
                yield batch
                batch = []
                size = 0
                max_files = min(2 * max_files, MAX_BATCH_FILES)
        if batch:
            yield batch

    def _paths(self) -> Iterator[str]:
        query = self.query
        start = stat_file(self.root, query.path)
        if start is not None and start.kind == FILE:
            entries = iter([start])
            depth = start.path.count("/")
        else:
            depth = 0 if start is None or start.path == "." else start.path.count("/") + 1
            self._walk = FolderWalk(
                root=self.root,
                path=query.path,
                with_ignored=query.with_ignored,
                deadline=self._deadline,
            )
            self.passed_over = self._walk.passed_over
            entries = self._walk.files()
        after = query.after and path_order(query.after[0])
        for entry in entries:
            if query.glob is not None and not query.glob.matches(entry.path.split("/")[depth:]):
                continue
            if after and path_order(entry.path) < after:
                continue
            if entry.size > query.limit:
                self.too_large += 1
            elif entry.size:
                yield entry.path


def path_order(path: str) -> list[bytes]:
    """Return a key that sorts paths in the order of a walk."""
    return [os.fsencode(name) for name in path.split("/")]


# Finding files by part of their path, while a person types it. A folder may be huge, so reading it
# ends at a limit of time or number, and the result says so.

MAX_FOUND_FILES = 20
MAX_PATHS = 50_000
MAX_LISTING_SECONDS = 1.5  # The longest time to wait for a list

# The paths of a folder are cached for a moment, because each key press searches again. A value has
# the paths, the newest file first; whether the folder holds more; and when they were read.
LISTING_CACHE_SECONDS, MAX_FOLDERS_CACHED = 5.0, 8
_listings = LRUCache[tuple[str, str, bool], tuple[list[str], bool, float]](size=MAX_FOLDERS_CACHED)


def find_files(
    root: str | Path,
    query: str,
    *,
    path: str = ".",
    with_ignored: bool = False,
    limit: int = MAX_FOUND_FILES,
) -> tuple[list[str], bool]:
    """Return the files below ``path`` whose path has the query's characters in this order.

    The best match comes first: files whose name begins with the query, whose name contains it,
    whose path begins with it, whose path contains it, whose name has the characters in order, and
    the rest. Without a query, return the files that were changed last. If the folder is too large
    to be read, the part of the query before its last slash is searched as a folder. The second
    value says whether the folder holds more files than were read. Raise Rejected if the folder is
    gone."""
    paths, is_cut = _listed(str(root), path, with_ignored=with_ignored)
    folder, slash, name = query.rpartition("/")
    # A walk skips such folders, unless it begins there.
    is_passed_over = any(
        (part in HEAVY and not with_ignored) or is_git_name(part) for part in folder.split("/")
    )
    if is_cut and slash and not is_passed_over:
        with suppress(Rejected):
            below = folder if path == "." else f"{path}/{folder}"
            paths, is_cut = _listed(str(root), below, with_ignored=with_ignored)
            query = name
    chars = query.casefold().replace(" ", "").strip("/")
    if not chars:
        return paths[:limit], is_cut
    ranked = []
    for path in paths:
        plain = path.casefold()
        if not _has_in_order(plain, chars):
            continue
        name = plain.rpartition("/")[2]
        tests = (
            name.startswith(chars),
            chars in name,
            plain.startswith(chars),
            chars in plain,
            _has_in_order(name, chars),
            True,
        )
        ranked.append((tests.index(True), len(path), path))
    return [path for *_, path in sorted(ranked)[:limit]], is_cut


def _has_in_order(text: str, chars: str) -> bool:
    remaining = iter(text)  # each search continues where the one before ended
    return all(char in remaining for char in chars)


def _listed(root: str, path: str, *, with_ignored: bool) -> tuple[list[str], bool]:
    paths, is_cut, _ = _listing(root, path)
    if not with_ignored:
        return paths, is_cut
    # Files that are not ignored are listed separately, so any number of ignored files cannot crowd
    # them out.
    more, is_cut, _ = _listing(root, path, with_ignored=True)
    return [*dict.fromkeys((*paths, *more))], is_cut


def _listing(root: str, path: str, *, with_ignored: bool = False) -> tuple[list[str], bool, float]:
    key = (root, path, with_ignored)
    listing = _listings.find(key)
    if listing is None or time.monotonic() - listing[2] > LISTING_CACHE_SECONDS:
        walk = FolderWalk(
            root=Path(root),
            path=path,
            with_ignored=with_ignored,
            deadline=time.monotonic() + MAX_LISTING_SECONDS,
        )
        files = list(islice(walk.files(), MAX_PATHS + 1))
        newest = sorted(files[:MAX_PATHS], key=lambda file: (-file.mtime_ns, file.path))
        # A name with hidden characters cannot be typed, and a name with a quote cannot be quoted.
        paths = [f.path for f in newest if '"' not in f.path and shown(f.path) == f.path]
        listing = paths, walk.is_late or len(files) > MAX_PATHS, time.monotonic()
        _listings.store(key, listing)
    return listing
