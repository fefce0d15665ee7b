"""Searching the files of a folder for lines that match.

Which files are looked into is decided by one walk, whoever matches the lines; and a line is shown
as it is read from the file itself, opened as :mod:`confined` does it. So neither what is found nor
what is shown depends on the engine, nor on a link that was put somewhere meanwhile.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple, Protocol

from conversations.domain.errors import Rejected

from . import search_worker
from .confined import read_bytes, stat_file
from .paths import FILE, FileStatus
from .text_files import read_text
from .walking import FolderWalk, Pattern

# Two ways to find the lines that match, with the same results: ripgrep and Python.


class LineMatch(NamedTuple):
    """A line that matches. ``number`` counts from 1; ``line`` has no newline."""

    path: str
    number: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """``text`` is a regular expression, or with ``is_literal`` words as they stand."""

    text: str
    is_literal: bool = False
    ignores_case: bool = False


class BadExpression(Rejected):
    code = "bad_expression"


class Engine(Protocol):
    def find(self, paths: Sequence[str]) -> Iterator[LineMatch]:
        """The lines of these files (relative to the folder), in their order."""

    def stop(self) -> None:
        """End what runs; from any thread."""

    def close(self) -> None:
        """End and reap it; from the thread that searches."""


def open_engine(root: Path, expression: Expression, *, limit: int, seconds: float) -> Engine:
    """Raises BadExpression. ``limit``: bytes of a file; ``seconds``: for all of it."""
    program = shutil.which("rg")
    if program is not None:
        engine = RipgrepEngine(program, root, expression, seconds=seconds)
        if engine.knows_expression():
            return engine
        engine.close()
    return PythonEngine(root, expression, limit=limit, seconds=seconds)


class _Processes:
    """The one process that runs, ended when time is up."""

    def __init__(self, seconds: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._timer = Timer(max(0.0, seconds), self.stop)
        self._timer.daemon = True
        self._timer.start()

    def start(self, command: list[str], folder: str, **streams: Any) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(  # noqa: S603 (ripgrep or ourselves, no shell)
            command,
            cwd=folder,
            env={"LC_ALL": "C.UTF-8"},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **streams,
        )
        if self._is_over:
            self._process.kill()
        return self._process

    def end(self) -> None:
        """End and reap it."""
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process.wait()

    def stop(self) -> None:
        self._is_over = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        self._timer.cancel()
        self.end()


class RipgrepEngine:
    """``rg`` with files named one by one, so that it follows no rules of its own."""

    OPTIONS = (
        *("--no-config", "--no-ignore", "--hidden", "--no-messages", "--color=never", "--text"),
        *("--with-filename", "--no-heading", "--null", "--line-number", "--no-column", "--crlf"),
        *("--threads=1", "--no-mmap", f"--max-count={search_worker.MAX_LINES}"),
    )

    def __init__(self, program: str, root: Path, expression: Expression, *, seconds: float) -> None:
        self._root = os.path.realpath(root)
        case = "--ignore-case" if expression.ignores_case else "--case-sensitive"
        kind = ("--fixed-strings",) if expression.is_literal else ()
        self._command = [program, *self.OPTIONS, case, *kind, f"--regexp={expression.text}"]
        self._processes = _Processes(seconds)

    def knows_expression(self) -> bool:
        """Its syntax has no look-around and no references back."""
        process = self._processes.start(
            [*self._command, "-"], self._root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        return process.wait() in (0, 1)

    def find(self, paths: Sequence[str]) -> Iterator[LineMatch]:
        names = [f"./{path}" for path in paths]
        process = self._processes.start(
            [*self._command, "--", *names],
            self._root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            # From lines ``path NUL number : text``; a path may hold a newline itself
            begun = b""
            for line in process.stdout:
                name, nul, rest = (begun + line).partition(b"\0")
                begun = b"" if nul else name
                number, colon, text = rest.partition(b":")
                if colon and number.isdigit():
                    path = os.fsdecode(name).removeprefix("./")
                    yield LineMatch(path, int(number), _read_line(text))
        finally:
            self._processes.end()

    def stop(self) -> None:
        self._processes.stop()

    def close(self) -> None:
        self._processes.close()


def _read_line(data: bytes) -> str:
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return data.decode("latin-1")


class PythonEngine:
    """Files are read here, and their text is handed to the worker."""

    def __init__(self, root: Path, expression: Expression, *, limit: int, seconds: float) -> None:
        self._root, self._limit = root, limit
        self._processes = _Processes(seconds)
        self._process = self._processes.start(
            [sys.executable, "-I", "-S", search_worker.__file__],
            os.sep,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        text = re.escape(expression.text) if expression.is_literal else expression.text
        asked = {"expression": text, "ignores_case": expression.ignores_case}
        answer = self._ask(json.dumps(asked).encode() + b"\n")
        if isinstance(answer, str):
            self.close()
            raise BadExpression(f"'pattern' is no regular expression: {answer}.")

    def find(self, paths: Sequence[str]) -> Iterator[LineMatch]:
        for path in paths:
            yield from self._find_in(path)

    def stop(self) -> None:
        self._processes.stop()

    def close(self) -> None:
        self._processes.close()

    def _find_in(self, path: str) -> Iterator[LineMatch]:
        with suppress(Rejected):
            data = read_bytes(self._root, path, limit=self._limit).data
            file = read_text(data)
            if file is None:
                return
            text = file.text.encode("utf-8", "surrogatepass")
            numbers = self._ask(b"%d\n%b" % (len(text), text))
            lines = file.lines
            yield from (LineMatch(path, number, lines[number - 1]) for number in numbers or ())

    def _ask(self, question: bytes) -> Any:
        """None once the process has been ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(question)
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        return None


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
