"""What git would leave out of a folder: the rules of ``.gitignore`` files.

Written here, since a rule is matched against every file of a folder that anybody may
have filled: each match has to be quick, whatever the rule (see :mod:`patterns`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .patterns import PATTERN_CHARS, Segment, match_segments, read_segments

FILE_NAME = ".gitignore"
FILE_BYTES = 64_000
MAX_RULES = 500

HEAVY = frozenset(
    (
        *("node_modules", "bower_components", "__pycache__", ".venv", "venv", ".tox", ".nox"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".gradle", ".terraform"),
        *(".next", ".nuxt", ".hg", ".svn"),
    )
)
"""Folders with what tools made or fetched: left out even where no rule says so."""

_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLOSED = re.compile(r"\\.|\[[!^]?\]?[^]]*\]")
"""Escaped signs, and classes of signs that end."""


@dataclass(frozen=True, slots=True)
class Rule:
    segments: tuple[Segment, ...]
    is_negated: bool
    only_folders: bool


type Rules = tuple[Rule, ...]


def read_rules(data: bytes) -> Rules:
    """The rules of one file; lines that are none are left out."""
    lines = data.decode("utf-8", "replace").splitlines()
    return tuple(_read_all(lines[:MAX_RULES]))


def decide(rules: Rules, parts: Sequence[str], *, is_folder: bool) -> bool | None:
    """Whether the path, by its names below the rules' folder, is ignored; None where
    no rule says anything. The last rule that matches counts."""
    for rule in reversed(rules):
        if (is_folder or not rule.only_folders) and match_segments(rule.segments, parts):
            return not rule.is_negated
    return None


def _read_all(lines: list[str]) -> Iterator[Rule]:
    for line in lines:
        text = _without_space(line)
        if text and not text.startswith("#") and len(text) <= PATTERN_CHARS:
            rule = _read_rule(text)
            if rule is not None:
                yield rule


def _read_rule(text: str) -> Rule | None:
    """None for what can match nothing."""
    is_negated = text.startswith("!")
    body = text.removeprefix("!").removeprefix("\\")
    if text.startswith("\\") and not text.startswith(("\\#", "\\!")):
        body = text
    only_folders = body.endswith("/")
    body = body.removesuffix("/")
    if not body or "//" in body or _is_open(body):
        return None
    segments = read_segments(body)
    if "/" not in body:
        segments = (None, *segments)
    return Rule(segments, is_negated, only_folders)


def _is_open(body: str) -> bool:
    """Whether a class of signs does not end."""
    # Where a bracket follows the last closing one, each would be looked for to the end.
    tail = body[body.rfind("]") + 1 :]
    return "[" in _ESCAPED.sub("", tail) or "[" in _CLOSED.sub("", body)


def _without_space(line: str) -> str:
    """Without the space at the end, unless a backslash keeps it."""
    text = line.rstrip()
    return f"{text} " if text.endswith("\\") and text != line else text
