"""Stretches of time as words of the search index.

Each turn is marked with its year, month, day and hour. So any stretch is covered by a
handful of marks, however long it is, and what lies in it is found as any other word is.
Times are UTC. Years outside :data:`FIRST` to :data:`LAST` share one mark on each side.
"""

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

FIRST, LAST = 2000, 2049

_MARK = "\ue003"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A year, a month, a day or an hour, by as many numbers; with none: all time."""

    numbers: tuple[int, ...] = ()

    @property
    def mark(self) -> str:
        """The word that stands for it; all time has none."""
        year, *rest = self.numbers
        return f"{_MARK}{year}" + "".join(f"{number:02}" for number in rest)

    @property
    def is_hour(self) -> bool:
        return len(self.numbers) == 4

    @property
    def is_odd(self) -> bool:
        """It stands for all years before the first, or all after the last."""
        return bool(self.numbers) and not FIRST <= self.numbers[0] <= LAST

    @property
    def first(self) -> datetime | None:
        """When it begins; None: there is no beginning."""
        if not self.numbers or self.numbers[0] < FIRST:
            return None
        year, month, day, hour = (*self.numbers, *(1, 1, 0)[len(self.numbers) - 1 :])
        return datetime(year, month, day, hour, tzinfo=UTC)

    @property
    def end(self) -> datetime | None:
        """When it is over; None: it has no end."""
        if not self.numbers or self.numbers[0] > LAST:
            return None
        year, month, *_ = (*self.numbers, 1)
        match len(self.numbers):
            case 1:
                return datetime(year + 1, 1, 1, tzinfo=UTC)
            case 2:
                return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        first = self.first
        assert first is not None
        return first + (_HOUR if self.is_hour else 24 * _HOUR)

    def parts(self) -> Iterator["DateSpan"]:
        """The spans one step smaller, the latest first; an hour and the years that
        share a mark have none."""
        if self.is_hour or self.is_odd:
            return
        match self.numbers:
            case ():
                numbers = range(FIRST - 1, LAST + 2)
            case (_,):
                numbers = range(1, 13)
            case (year, month):
                numbers = range(1, monthrange(year, month)[1] + 1)
            case _:
                numbers = range(24)
        for number in reversed(numbers):
            yield DateSpan((*self.numbers, number))

    def overlaps(self, start: datetime | None, end: datetime | None) -> bool:
        """Whether some of it lies between these, ``end`` excluded."""
        begins, ends = self.first, self.end
        return (end is None or begins is None or begins < end) and (
            start is None or ends is None or ends > start
        )

    def is_within(self, start: datetime | None, end: datetime | None) -> bool:
        begins, ends = self.first, self.end
        return (start is None or (begins is not None and begins >= start)) and (
            end is None or (ends is not None and ends <= end)
        )


ALL_TIME = DateSpan()


def marks_of(moment: datetime) -> list[str]:
    """The marks of a turn that was written then."""
    at = moment.astimezone(UTC)
    year = min(max(at.year, FIRST - 1), LAST + 1)
    if year != at.year or not FIRST <= year <= LAST:
        return [DateSpan((year,)).mark]
    numbers = (year, at.month, at.day, at.hour)
    return [DateSpan(numbers[:count]).mark for count in range(1, 5)]


def cover(start: datetime | None, end: datetime | None) -> tuple[tuple[str, ...], bool]:
    """Marks of which every moment from ``start`` to before ``end`` has one, and
    whether no other moment has."""
    found = list(_cover(ALL_TIME, start, end))
    return tuple(span.mark for span in found), all(s.is_within(start, end) for s in found)


def _cover(span: DateSpan, start: datetime | None, end: datetime | None) -> Iterator[DateSpan]:
    for part in span.parts():
        if not part.overlaps(start, end):
            continue
        if part.is_hour or part.is_odd or part.is_within(start, end):
            yield part
        else:
            yield from _cover(part, start, end)
