"""Walking through a folder and its subfolders without following links.

Entries that git ignores and well-known heavy folders are skipped, unless the walk begins inside
them. Skipped folders are named. A time limit makes sure that a walk ends.
"""

import fnmatch
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from conversations.domain.errors import Rejected

from . import paths
from .executed_files import is_git_name
from .paths import FILE, FOLDER, FileStatus, ResolvedPath

# Patterns for paths: ``*.py``, ``src/**/test_*.py``, ``*.{js,css}``

MAX_PATTERN_CHARS = 1000
MAX_ALTERNATIVES = 64  # Per pattern with braces

# A pattern for one name; None stands for any number of names (``**``).
type Segment = re.Pattern[str] | None

_BRACES = re.compile(r"\{([^{}]*)\}")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GlobPattern:
    """A pattern for paths; ``matches`` takes the names of a path.

    A pattern without a slash matches names in every folder."""

    alternatives: tuple[tuple[Segment, ...], ...]

    def matches(self, parts: Sequence[str]) -> bool:
        return any(match_segments(segments, parts) for segments in self.alternatives)


def read_pattern(text: str, *, folder: Path) -> GlobPattern:
    """Return the pattern for paths below ``folder``.

    The pattern may be absolute, as paths may. Raise Rejected for an invalid pattern."""
    if not text.strip() or len(text) > MAX_PATTERN_CHARS:
        raise Rejected(
            "A pattern must have 1 to %(limit)s characters, such as '**/*.py'.",
            limit=MAX_PATTERN_CHARS,
        )
    if ".." in text.split("/"):
        raise Rejected("A pattern cannot contain '..'; give the folder as 'path'.")
    above = os.path.normpath(folder)
    if text.startswith(f"{above}/"):
        text = text.removeprefix(above)
    return GlobPattern(tuple(map(read_segments, _unfold(text.removeprefix("./")))))


def read_segments(text: str) -> tuple[Segment, ...]:
    """Return the segments between the slashes; a pattern without a slash is for any folder."""
    names = (None if name == "**" else _read_name(name) for name in text.split("/") if name)
    return tuple(names) if "/" in text else (None, *names)


def match_segments(segments: Sequence[Segment], parts: Sequence[str]) -> bool:
    """Return whether the names match; ``**`` at the end needs at least one name."""
    places = {0}
    for segment in segments:
        if segment is None:
            places = set(range(min(places), len(parts) + 1))
        else:
            places = {
                place + 1 for place in places if place < len(parts) and segment.match(parts[place])
            }
        if not places:
            return False
    if segments and segments[-1] is None:
        return len(parts) in places and (len(parts) - 1 in places)
    return len(parts) in places


def _unfold(text: str) -> Iterator[str]:
    """Yield the pattern with all combinations of the choices in braces."""
    waiting = [text]
    count = 0
    while waiting:
        text = waiting.pop()
        match = _BRACES.search(text)
        if match is None:
            yield text
            continue
        choices = match[1].split(",")
        count += len(choices)
        if count > MAX_ALTERNATIVES:
            raise Rejected(
                "The braces of a pattern may expand to at most %(limit)s alternatives.",
                limit=MAX_ALTERNATIVES,
            )
        waiting += [text[: match.start()] + choice + text[match.end() :] for choice in choices]


@lru_cache(maxsize=1024)
def _read_name(text: str) -> re.Pattern[str]:
    """Compile the pattern of one name.

    ``fnmatch`` uses atomic groups, so a ``*`` takes the shortest run that fits and is not tried
    again."""
    plain = _ESCAPED.sub(_in_brackets, text.replace("[^", "[!"))
    # ``translate`` would scan the rest of the text for each bracket that is not closed.
    closed = plain.rfind("]") + 1
    return re.compile(fnmatch.translate(plain[:closed] + plain[closed:].replace("[", "[[]")))


def _in_brackets(match: re.Match[str]) -> str:
    return f"[{match[1]}]" if match[1] in "*?[" else match[1]


FILE_NAME = ".gitignore"
MAX_IGNORE_FILE_BYTES = 64_000
MAX_RULES = 500

# Folders with files that tools made or fetched; skipped even without a rule
HEAVY = frozenset(
    (
        *("node_modules", "bower_components", "__pycache__", ".venv", "venv", ".tox", ".nox"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".gradle", ".terraform"),
        *(".next", ".nuxt", ".hg", ".svn"),
    )
)

_ESCAPED_PAIR = re.compile(r"\\.", re.DOTALL)
_CLOSED = re.compile(r"\\.|\[[!^]?\]?[^]]*\]")  # Escaped characters, and closed character classes

# The pattern of a rule, whether it is negated, and whether it is for folders only
type Rule = tuple[tuple[Segment, ...], bool, bool]
type Rules = tuple[Rule, ...]


def read_rules(data: bytes) -> Rules:
    """Return the rules of one file; skip invalid lines."""
    rules: list[Rule] = []
    for line in data.decode("utf-8", "replace").splitlines()[:MAX_RULES]:
        # Remove trailing spaces, unless a backslash keeps one
        text = line.rstrip()
        text = f"{text} " if text.endswith("\\") and text != line else text
        if not text or text.startswith("#") or len(text) > MAX_PATTERN_CHARS:
            continue
        is_negated = text.startswith("!")
        body = text.removeprefix("!").removeprefix("\\")
        if text.startswith("\\") and not text.startswith(("\\#", "\\!")):
            body = text
        only_folders = body.endswith("/")
        body = body.removesuffix("/")
        # A character class that is not closed can match nothing. After the last closing bracket,
        # the search for each open one would run to the end of the text.
        tail = _ESCAPED_PAIR.sub("", body[body.rfind("]") + 1 :])
        is_open = "[" in tail or "[" in _CLOSED.sub("", body)
        if body and "//" not in body and not is_open:
            rules.append((read_segments(body), is_negated, only_folders))
    return tuple(rules)


def decide(rules: Rules, parts: Sequence[str], *, is_folder: bool) -> bool | None:
    """Return whether the path is ignored, or None if no rule matches.

    ``parts`` are the names below the rules' folder. The last rule that matches counts."""
    for segments, is_negated, only_folders in reversed(rules):
        if (is_folder or not only_folders) and match_segments(segments, parts):
            return not is_negated
    return None


MAX_DEPTH = 64

type _Layer = tuple[int, Rules]  # The rules of a folder, and the folder's depth


@dataclass(slots=True, kw_only=True)
class FolderWalk:
    """A walk through a folder, and afterwards a record of what it left out.

    ``deadline`` is a time of ``time.monotonic``. With ``max_depth`` 1 the walk lists only the
    folder's own entries."""

    root: Path
    path: str = "."
    with_ignored: bool = False
    deadline: float
    max_depth: int = MAX_DEPTH
    passed_over: list[str] = field(default_factory=list)
    is_late: bool = False
    _private: tuple[str, ...] = ()

    def entries(self) -> Iterator[FileStatus]:
        """Yield everything below the folder, sorted by name, each folder before its contents.

        Skipped folders are yielded, too."""
        place = paths.find_place(self.root, self.path)
        self._private = paths.private_places()
        with paths.guarded(self.path), paths.open_folder(place) as folder:
            layers: list[_Layer] = []
            # The rules of the folders above the walk's start
            for depth in range(0 if self.with_ignored else len(place.parts)):
                above = ResolvedPath(place.root, place.parts[:depth])
                with suppress(OSError), paths.open_folder(above) as outer:
                    layers += self._layer(outer, above)
            yield from self._below(folder, place, layers, 1)

    def files(self) -> Iterator[FileStatus]:
        return (entry for entry in self.entries() if entry.kind == FILE)

    def _layer(self, folder: int, place: ResolvedPath) -> Iterator[_Layer]:
        own = ResolvedPath(place.root, (*place.parts, FILE_NAME))
        with suppress(OSError, Rejected):
            file = paths.open_regular(folder, own, FILE_NAME)
            try:
                yield len(place.parts), read_rules(os.read(file, MAX_IGNORE_FILE_BYTES))
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
            inside = ResolvedPath(place.root, (*place.parts, name))
            if inside.real in self._private:
                continue
            try:
                entry = paths.found_at(inside, os.lstat(name, dir_fd=folder))
            except OSError:
                continue
            # Skip ignored files. An ignored folder is yielded, but not entered.
            if entry.kind != FOLDER and self._is_ignored(entry, layers):
                continue
            yield entry
            if entry.kind != FOLDER or depth >= self.max_depth:
                continue
            if is_git_name(name) or (
                not self.with_ignored and (name in HEAVY or self._is_ignored(entry, layers))
            ):
                self.passed_over.append(entry.path)
            else:
                with suppress(OSError):
                    below = paths.enter(folder, name)
                    try:
                        yield from self._below(below, inside, layers, depth + 1)
                    finally:
                        os.close(below)

    def _is_ignored(self, entry: FileStatus, layers: list[_Layer]) -> bool:
        parts = entry.path.split("/")
        for depth, rules in reversed(layers):
            ignored = decide(rules, parts[depth:], is_folder=entry.kind == FOLDER)
            if ignored is not None:
                return ignored
        return False
