"""The active path: the turns and rows of a session that currently count.

Markers record, in order, what left the path. A marker that goes back to an earlier moment restores
the path of that moment, and removes everything that was said since.
"""

from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import NamedTuple

type Ranges = list[tuple[int, int]]  # Inclusive, of numbers of turns or of rows


class Marker(NamedTuple):
    """A marker that the numbers from ``low`` to ``high`` leave the path.

    The range is empty if ``high`` is below ``low``. With ``back_to``, all other numbers are off the
    path exactly if they were off it after that many markers of the session.
    """

    low: int
    high: int
    back_to: int | None


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of inclusive ranges as disjoint ranges in order, without empty ones."""
    merged: Ranges = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def are_within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether the number is in one of these disjoint, ordered ranges."""
    return _range_with(number, ranges) is not None


def _range_with(number: int, ranges: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    index = bisect(ranges, number, key=itemgetter(0)) - 1
    return ranges[index] if index >= 0 and number <= ranges[index][1] else None


def count_within(first: int, last: int, ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many numbers from ``first`` to ``last`` are in these disjoint ranges."""
    return sum(max(0, min(high, last) - max(low, first) + 1) for low, high in ranges)


def hidden_ranges(markers: Sequence[Marker]) -> Ranges:
    """Return the ranges that are off the path after these markers, the session's first ones."""
    last = deque(_replay(markers), maxlen=1)
    return merge_ranges(last[0]) if last else []


def _replay(markers: Sequence[Marker]) -> Iterator[Ranges]:
    """Yield, for each marker, the unmerged ranges that are off the path after it.

    A list is valid only until the next one is requested.
    """
    needed = {marker.back_to for marker in markers}
    saved: dict[int, Ranges] = {0: []}
    hidden: Ranges = []
    for count, (low, high, back_to) in enumerate(markers, 1):
        if back_to is not None:
            hidden = list(saved.get(back_to, hidden))
        hidden.append((low, high))
        if count in needed:
            saved[count] = merge_ranges(hidden)
        yield hidden


def first_difference(first: Ranges, second: Ranges) -> int:
    """Return the first number that is in only one of these two lists of disjoint, ordered ranges.

    If there is none, return a value greater than all numbers.
    """
    for a, b in zip_longest(first, second):
        if a is None or b is None:
            return int((a or b)[0])
        if a[0] != b[0]:
            return min(a[0], b[0])
        if a[1] != b[1]:
            return min(a[1], b[1]) + 1
    return 2**63 - 1


def _hidden_after_each(markers: Sequence[Marker]) -> list[Ranges]:
    """Return the ranges that are off the path before the first marker and after each marker."""
    return [[], *(merge_ranges(hidden) for hidden in _replay(markers))]


def _last_active(hidden: Ranges, end: int) -> int:
    """Return the last number up to ``end`` that is not hidden, or 0 if there is none."""
    around = _range_with(end, hidden)
    return end if around is None else around[0] - 1


def find_versions(
    markers: Sequence[Marker], *, last: int, parting: Iterable[int]
) -> list[tuple[int, ...]]:
    """Return groups of turns that are versions of each other, in the order in which they were said.

    The turns of a group are the first turns of their branches, which follow the same turn.
    ``parting`` are the indexes of the markers after which a message was edited or an answer was
    regenerated. ``last`` is the session's last turn.
    """
    hidden = _hidden_after_each(markers)
    parents: dict[int, int] = {}
    beginnings: set[int] = set()
    parting_indexes = set(parting)
    for index, marker in enumerate(markers):
        turn = marker.high + 1
        if turn > last:
            continue
        parents[turn] = _last_active(hidden[index + 1], marker.high)
        if index in parting_indexes:
            beginnings.add(turn)
        else:
            beginnings.discard(turn)
    groups: list[tuple[int, ...]] = []
    for parent in sorted({parents[turn] for turn in beginnings}):
        turns = {turn for turn, previous in parents.items() if previous == parent}
        if parents.get(parent + 1, parent) == parent:
            turns.add(parent + 1)
        groups.append(tuple(sorted(turns)))
    return [turns for turns in groups if len(turns) > 1]


class Branch(NamedTuple):
    """A branch: the part of an earlier path, from ``first`` to ``tip``, that was left.

    The path is the one after ``back_to`` markers, when ``end`` was the session's last turn. The
    turns in ``hidden`` are not on it. ``first`` is not on the active path.
    """

    first: int
    tip: int
    back_to: int
    end: int
    hidden: Ranges

    @property
    def length(self) -> int:
        """The number of its turns from ``first`` to ``tip``."""
        return self.tip - self.first + 1 - count_within(self.first, self.tip, self.hidden)


def markers_until_left(markers: Sequence[Marker], back_to: int, *, last: int) -> list[Marker]:
    """Return markers that give the path as it was before the marker after ``back_to`` others.

    The last of them hides everything that was said since, up to ``last``, the session's last
    number.
    """
    return [*markers[:back_to], Marker(markers[back_to].high + 1, last, None)]


def find_branches(markers: Sequence[Marker], *, last: int) -> Iterator[Branch]:
    """Yield the branches, beginning with the one that was left last.

    A path that was continued later is yielded once, as it was when it was longest.
    """
    hidden = _hidden_after_each(markers)
    left_at: dict[int, int] = {}  # The tip of a path → the number of markers before it was left.
    for index in reversed(range(len(markers))):
        tip = _last_active(hidden[index], markers[index].high)
        if are_within(tip, hidden[-1]):
            left_at.setdefault(tip, index)
    for tip, index in left_at.items():
        was_continued = any(
            tip < later_tip and not are_within(tip, hidden[later])
            for later_tip, later in left_at.items()
        )
        if not was_continued:
            gone = hidden[index]
            first = _first_apart(gone, hidden[-1], tip)
            yield Branch(first, tip, index, markers[index].high, gone)


def _first_apart(gone: Ranges, current: Ranges, tip: int) -> int:
    """Return the first number on a path up to ``tip`` that is not on the current path."""
    index = 0
    for low, high in current:
        while index < len(gone) and gone[index][1] < low:
            index += 1
        is_gone = index < len(gone) and gone[index][0] <= low
        first = gone[index][1] + 1 if is_gone else low
        if first <= high:
            return first
    return tip


def branch_with(markers: Sequence[Marker], turn: int) -> Branch | None:
    """Return the branch that begins at the turn, as it was when it was left last.

    Return None if the turn is on the active path, or if no branch has it.
    """
    hidden = _hidden_after_each(markers)
    if not are_within(turn, hidden[-1]):
        return None
    for index in reversed(range(len(markers))):
        end, gone = markers[index].high, hidden[index]
        if turn <= end and not are_within(turn, gone):
            return Branch(turn, _last_active(gone, end), index, end, gone)
    return None
