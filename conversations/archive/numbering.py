"""Which number in the archive a line of an interchange file has."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Run:
    """Lines with the original numbers ``first`` to ``last``, the first of which
    has the number ``number`` in the archive, the next one the next."""

    first: int
    last: int
    number: int


@dataclass(slots=True)
class Numbering:
    """Gives the lines of one chain their numbers.

    A line keeps its own number while those are gapless. From a hole on, the lines
    that follow get the next numbers in the order of the file; a number that came
    before names the same row again. Beyond where the file begins, the outcome
    depends on the file alone, so the same file imported again finds the same rows.
    Memory grows with the number of holes, not with the number of lines.

    ``end`` is the last number that the session has when the file begins with it,
    ``before`` what an earlier import of it renumbered.
    """

    end: int
    before: tuple[Run, ...] = ()
    next: int | None = None
    is_renumbered: bool = False
    _runs: list[Run] = field(default_factory=list)
    _latest: Run | None = None

    def place(self, original: Any) -> int:
        """The number of the next line, which says ``original`` itself."""
        given = original if type(original) is int else None
        known = self.number_of(given) if given is not None else None
        if known is not None:
            return known
        number = self._start(given) if self.next is None else self.next
        self.next = number + 1
        self.is_renumbered = self.is_renumbered or given != number
        if given is not None:
            self._remember(given, number)
        return number

    def number_of(self, original: int) -> int | None:
        """The number that an earlier line with that original number got."""
        index = bisect_right(self._runs, original, key=lambda run: run.first) - 1
        if index < 0 or original > self._runs[index].last:
            return None
        return self._runs[index].number + original - self._runs[index].first

    def runs(self) -> list[Run]:
        """What was renumbered so far, in the order of the original numbers."""
        return [run for run in self._runs if run.first != run.number]

    def _start(self, given: int | None) -> int:
        if given is None or given < 1:
            return 1
        if given <= self.end + 1:
            return given
        for run in self.before:
            if run.first <= given <= run.last:
                return run.number + given - run.first
        return self.end + 1

    def _remember(self, given: int, number: int) -> None:
        run = self._latest
        if run and given == run.last + 1 and number == run.number + given - run.first:
            run.last = given
            return
        self._latest = Run(given, given, number)
        index = bisect_right(self._runs, given, key=lambda run: run.first)
        self._runs.insert(index, self._latest)
