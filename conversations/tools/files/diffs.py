"""What is going to change, as a unified diff, however large or odd the files are."""

import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from conversations.domain.text import storable
from conversations.folder.paths import shown

NOWHERE = "/dev/null"
CONTEXT = 3
DIFF_CHARS = 100_000
LINE_CHARS = 5000

MAX_COMPARISONS = 4_000_000
"""Lines of one side by those of the other: beyond it comparing would hold up everyone,
and the part that differs is shown as replaced whole."""

MAX_COMPARISONS = 1_000_000
"""Of a line with another, for lines that both sides have many times."""


class TooManyComparisons(Exception):
    """The sides have too many lines in common, too often."""


class BoundedMatcher(difflib.SequenceMatcher[str]):
    """Counts what it compares. It looks for the longest run that both sides have, again
    and again in what is left and right of it, and each time through all equal pairs."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new)
        self.left = MAX_COMPARISONS
        self._sizes = len(old), len(new)
        known = Counter(old)
        self._pairs = sum(known[line] * count for line, count in Counter(new).items())

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        old = (self._sizes[0] if ahi is None else ahi) - alo
        new = (self._sizes[1] if bhi is None else bhi) - blo
        self.left -= old + min(self._pairs, old * new)
        if self.left < 0:
            raise TooManyComparisons
        return super().find_longest_match(alo, ahi, blo, bhi)


def unified_diff(path: str, before: str | None, after: str | None) -> str:
    """None: there was, or is, no such file. Empty if nothing differs."""
    old, new = _lines(before), _lines(after)
    body = list(_hunks(old, new))
    if not body:
        return ""
    name = shown(path)
    head = [
        f"--- {NOWHERE if before is None else f'a/{name}'}",
        f"+++ {NOWHERE if after is None else f'b/{name}'}",
    ]
    return _capped([*head, *body])


def _lines(text: str | None) -> list[str]:
    """By newlines only, which stay with their lines."""
    parts = storable(text or "").split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    """Lines of hunks without their newlines."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    rest_old, rest_new = old[start:], new[start:]
    both = zip(reversed(rest_old), reversed(rest_new), strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
    rest_old, rest_new = rest_old[: len(rest_old) - end], rest_new[: len(rest_new) - end]
    for group in _groups(_operations(rest_old, rest_new, start)):
        yield from _write_hunk(group, old, new)


type _Operation = tuple[int, int, int, int]
"""Lines a..b of the old text become c..d of the new one."""


def _operations(old: list[str], new: list[str], start: int) -> list[_Operation]:
    if not old and not new:
        return []
    if len(old) * len(new) > MAX_COMPARISONS:
        return [(start, start + len(old), start, start + len(new))]
    try:
        codes = BoundedMatcher(old, new).get_opcodes()
    except TooManyComparisons:
        return [(start, start + len(old), start, start + len(new))]
    return [
        (start + a, start + b, start + c, start + d) for tag, a, b, c, d in codes if tag != "equal"
    ]


def _groups(operations: list[_Operation]) -> Iterator[list[_Operation]]:
    """Operations whose surroundings touch are shown together."""
    group: list[_Operation] = []
    for operation in operations:
        if group and operation[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(operation)
    if group:
        yield group


def _write_hunk(group: list[_Operation], old: list[str], new: list[str]) -> Iterator[str]:
    before = min(CONTEXT, group[0][0])
    after = min(CONTEXT, len(old) - group[-1][1])
    a, b = group[0][0] - before, group[-1][1] + after
    c, d = group[0][2] - before, group[-1][3] + after
    yield f"@@ -{_range(a, b)} +{_range(c, d)} @@"
    at = a
    for start, end, new_start, new_end in group:
        yield from _marked(" ", old[at:start])
        yield from _marked("-", old[start:end])
        yield from _marked("+", new[new_start:new_end])
        at = end
    yield from _marked(" ", old[at:b])


def _range(start: int, end: int) -> str:
    """As ``diff`` counts: from 1, and an empty range names the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        text = line.removesuffix("\n")
        yield mark + (text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]}…")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def _capped(lines: list[str]) -> str:
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > DIFF_CHARS:
            rest = len(lines) - count
            return "\n".join([*lines[:count], f"\\ {rest:,} more lines of this diff"]) + "\n"
    return "\n".join(lines) + "\n"
