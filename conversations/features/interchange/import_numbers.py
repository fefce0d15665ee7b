"""Which number in the archive a line of an interchange file has."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conversations.domain.text import dump_json, load_json
from conversations.models import Session

from .fields import add_metadata

MAX_RUNS = 10_000
"""Renumbered runs that are remembered of a session's chain."""


@dataclass(slots=True)
class NumberedLines:
    """Lines with the original numbers ``first`` to ``last``, the first of which
    has the number ``number`` in the archive, the next one the next."""

    first: int
    last: int
    number: int

    @property
    def end(self) -> int:
        return self.number + self.last - self.first


class Numbering:
    """Gives the lines of one chain their numbers, which have no gaps.

    A line keeps its own number where that names a row of the session or the next
    one. Where it does not, the line gets the next number, and so does every later
    line whose number has been given away. Lines without a usable number follow the
    line before them. What was renumbered is remembered with the session (``known``),
    so the same file imported again finds the same rows; memory grows with the
    number of holes, not of lines.

    ``end`` is the last number that the session has so far.
    """

    def __init__(self, *, end: int, known: Iterable[NumberedLines] = ()) -> None:
        self.end = end
        self.is_renumbered = False
        self.has_begun = False
        self._cursor = 1
        self._known = sorted(known, key=lambda run: run.first)
        self._taken = sorted((run.number, run.end) for run in self._known)
        self._is_full = len(self._known) >= MAX_RUNS
        self._latest: NumberedLines | None = None

    def place(self, original: Any) -> int:
        """The number of the next line, which says ``original`` itself."""
        given = original if type(original) is int else None
        number = self._cursor if given is None else self._number_for(given)
        self.has_begun = True
        self.is_renumbered = self.is_renumbered or given != number
        self._cursor = number + 1
        if given is None:
            self._take(number, number)
        self.end = max(self.end, number)
        return number

    def refer(self, original: int) -> int | None:
        """The number of the row that the file calls ``original``, None for one that
        has none. A row that is not there yet keeps its name."""
        if not self.is_renumbered and not self._known:
            return original
        known = self._find(original)
        if known is not None:
            return known
        return original if 1 <= original <= self.end and not self._is_taken(original) else None

    def runs(self) -> list[NumberedLines]:
        """What to remember with the session, in the order of the archive."""
        return sorted(self._known, key=lambda run: run.number)[:MAX_RUNS]

    def _number_for(self, given: int) -> int:
        known = self._find(given)
        if known is not None:
            return known
        if self._is_full:
            return self._cursor
        if 1 <= given <= self.end + 1 and not self._is_taken(given):
            return given
        number = self.end + 1
        self._remember(given, number)
        return number

    def _find(self, original: int) -> int | None:
        index = bisect_right(self._known, original, key=lambda run: run.first) - 1
        if index < 0 or original > self._known[index].last:
            return None
        return self._known[index].number + original - self._known[index].first

    def _is_taken(self, number: int) -> bool:
        index = bisect_right(self._taken, (number, number)) - 1
        around = self._taken[max(0, index) : index + 2]
        return any(low <= number <= high for low, high in around)

    def _take(self, low: int, high: int) -> None:
        if self._taken and self._taken[-1][1] + 1 == low:
            self._taken[-1] = (self._taken[-1][0], high)
        else:
            insort(self._taken, (low, high))

    def _remember(self, given: int, number: int) -> None:
        self._take(number, number)
        run = self._latest
        if run and given == run.last + 1 and number == run.end + 1:
            run.last = given
            return
        self._latest = NumberedLines(given, given, number)
        insort(self._known, self._latest, key=lambda run: run.first)


def remembered_runs(session: Session, name: str) -> tuple[NumberedLines, ...]:
    """What an earlier import renumbered, from the session's metadata."""
    try:
        found = load_json(session.metadata, default={})
        return tuple(NumberedLines(*map(int, run)) for run in found.get(name, ()))
    except (ValueError, TypeError, AttributeError):
        return ()


def remember_runs(session: Session, name: str, numbering: Numbering) -> None:
    """Keep in the session's metadata what was renumbered, as triples of the first
    and last original number and the first number in the archive."""
    runs = [[run.first, run.last, run.number] for run in numbering.runs()]
    if runs == [[run.first, run.last, run.number] for run in remembered_runs(session, name)]:
        return
    metadata = add_metadata(_without(session.metadata, name), {name: runs})
    Session.objects.filter(pk=session.pk).update(metadata=metadata)
    session.metadata = metadata


def _without(text: str, name: str) -> str:
    try:
        metadata = load_json(text, default={})
    except ValueError:
        return text
    if not isinstance(metadata, dict) or name not in metadata:
        return text
    return dump_json({key: value for key, value in metadata.items() if key != name})
