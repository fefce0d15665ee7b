"""The active path: the turns and rows of a session that currently count.

The turns of a session are a tree. A turn follows the turn before it; only the first turn after a
marker follows the turn at which the marker ended the path. Markers record, in order, which numbers
left the path. A marker that goes back to an earlier moment restores the path of that moment, and
removes everything that was said since.

For example, turns 1 to 4 are said, 3 is edited (5, answered by 6), and then 3 is used again::

    Marker(3, 4, None)      off the path: 3–4      turn 5 follows turn 2
    Marker(5, 6, 0)         off the path: 5–6      turn 7 will follow turn 4

Here 3 and 5 are versions, and the turns 5 to 6 are a branch that was left.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import NamedTuple

type Ranges = list[tuple[int, int]]  # Inclusive, of numbers of turns or of rows


class Marker(NamedTuple):
    """A marker that the numbers from ``low`` to ``high`` leave the path.

    The range is empty if ``high`` is below ``low``. With ``back_to``, all other numbers are off the
    path exactly if they were off it after that many markers of the session, which are before it.
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
    ranges = []
    count = len(markers)
    while count:
        low, high, back_to = markers[count - 1]
        ranges.append((low, high))
        # The markers since the moment to which a marker goes back have no effect any more.
        count = count - 1 if back_to is None else back_to
    return merge_ranges(ranges)


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


def _last_active(hidden: Ranges, end: int) -> int:
    """Return the last number up to ``end`` that is not hidden, or 0 if there is none."""
    around = _range_with(end, hidden)
    return end if around is None else around[0] - 1


def _first_active(hidden: Ranges, start: int) -> int:
    """Return the first number from ``start`` on that is not hidden."""
    around = _range_with(start, hidden)
    return start if around is None else around[1] + 1


def _hidden_after_each(markers: Sequence[Marker]) -> list[Ranges]:
    """Return the ranges that are off the path before the first marker and after each marker."""
    hidden: list[Ranges] = [[]]
    for low, high, back_to in markers:
        before = hidden[-1 if back_to is None else back_to]
        hidden.append(merge_ranges([*before, (low, high)]))
    return hidden


def _find_parents(markers: Sequence[Marker], hidden: Sequence[Ranges]) -> dict[int, int]:
    """Return the turns that the first turns after markers follow, also those not said yet.

    ``hidden`` are the ranges after each marker. Any other turn follows the turn before it.
    """
    return {
        marker.high + 1: _last_active(after, marker.high)
        for marker, after in zip(markers, hidden[1:], strict=True)
    }


def find_versions(
    markers: Sequence[Marker], *, last: int, parting: Iterable[int]
) -> list[tuple[int, ...]]:
    """Return groups of turns that are versions of each other, in the order in which they were said.

    The turns of a group are the first turns of their branches, which follow the same turn.
    ``parting`` are the indexes of the markers after which a message was edited or an answer was
    regenerated. ``last`` is the session's last turn.
    """
    parents = _find_parents(markers, _hidden_after_each(markers))
    parents.pop(last + 1, None)
    begun_by = {marker.high + 1: index for index, marker in enumerate(markers)}
    parting_indexes = set(parting)
    groups = []
    for parent in sorted({parents[turn] for turn in parents if begun_by[turn] in parting_indexes}):
        turns = {turn for turn in (parent + 1, *parents) if parents.get(turn, turn - 1) == parent}
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


def find_branches(markers: Sequence[Marker]) -> Iterator[Branch]:
    """Yield the branches, beginning with the one that was left last.

    A path that was continued later is yielded once, as it was when it was longest.
    """
    hidden = _hidden_after_each(markers)
    parents = _find_parents(markers, hidden)
    # A branch ends at a turn that no other turn follows.
    seen = set(parents.values())
    for index in reversed(range(len(markers))):
        branch_end, gone = markers[index].high, hidden[index]
        tip = _last_active(gone, branch_end)
        if tip in seen or tip + 1 not in parents or not are_within(tip, hidden[-1]):
            continue
        seen.add(tip)
        firsts = ((_first_active(gone, low), high) for low, high in hidden[-1])
        first = next(first for first, high in firsts if first <= high)
        yield Branch(first, tip, index, branch_end, gone)


def branch_with(markers: Sequence[Marker], turn: int) -> Branch | None:
    """Return the branch that begins at the turn, as it was when it was left last.

    Return None if the turn is on the active path, or if no branch has it.
    """
    if not are_within(turn, hidden_ranges(markers)):
        return None
    for index in reversed(range(len(markers))):
        end, gone = markers[index].high, hidden_ranges(markers[:index])
        if turn <= end and not are_within(turn, gone):
            return Branch(turn, _last_active(gone, end), index, end, gone)
    return None
