"""Searching for the latest matches, in any number of sessions.

A period with few matches is sorted at once. A period with many is split, a year into months and so
on, and the latest part is searched first. So only the matches that are shown are read, and not all
of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice

from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.searchable import ALL_TIME, DateSpan, covering_marks
from conversations.models import Session
from conversations.models.search import TURN_BITS

from .best_matches import filter_by_phrases, find_with_phrases
from .matching import IndexMatch, session_scope
from .query import SearchQuery
from .source import IndexSource

type Placed = tuple[datetime, int]  # When a turn was written, and the id of its entry.

BATCH_MATCHES = 300

# Turns with all words of a phrase in which one page looks for the phrase itself. They are read at
# once.
MAX_TURNS_LOOKED_AT = 1000


def read_at_once(query: SearchQuery) -> int:
    """Return how many matches of one period are read and sorted at once."""
    return max(BATCH_MATCHES, MAX_TURNS_LOOKED_AT) if query.phrases else BATCH_MATCHES


_EPOCH, _MICROSECOND = datetime.min.replace(tzinfo=UTC), timedelta(microseconds=1)


def as_numbers(place: Placed) -> tuple[int, int]:
    moment, pk = place
    return (moment - _EPOCH) // _MICROSECOND, pk


def as_placed(numbers: Sequence[int]) -> Placed:
    """Return the position that these numbers encode.

    Invalid numbers give a position after which no turn is listed."""
    try:
        return _EPOCH + numbers[0] * _MICROSECOND, numbers[1]
    except OverflowError:
        return _EPOCH, 0


@dataclass(kw_only=True)
class LatestSearch:
    """A search that yields matches after a position, up to ``wanted`` of them.

    ``some`` holds all matches, or more than are read at once. ``stopped_at`` is set if the search
    ended because it had checked enough turns. Turns after that position were not checked.
    ``looked`` counts the turns that were checked for phrases."""

    source: IndexSource
    query: SearchQuery
    match: IndexMatch
    sessions: QuerySet[Session]
    wanted: int
    some: Sequence[int]
    after: Placed | None = None
    stopped_at: Placed | None = field(default=None, init=False)
    looked: int = field(default=0, init=False)

    def find(self) -> list[Placed]:
        is_few = len(self.some) <= read_at_once(self.query)
        found = self._in_order(self.some) if is_few else self._split_span(ALL_TIME)
        return list(islice(found, self.wanted))

    def _split_span(self, span: DateSpan) -> Iterator[Placed]:
        """Yield the matches in a period with many matches, by searching groups of its parts.

        A group holds more parts if they have few matches."""
        if span.is_hour or span.is_odd:
            match = self.match.marked((span.mark,)) if span.numbers else self.match
            yield from self._walk_sessions(match)
            return
        parts, width = self._parts(span), 1
        if len(parts) == 1 and self.after is None:  # All matches of the whole are in this part.
            yield from self._split_span(parts[0])
            return
        while parts and self.stopped_at is None:
            group = parts[: width if self._can_count(parts[0]) else 1]
            can_count = self._can_count(group[0])
            at_once = read_at_once(self.query)
            bounds, match = (self.query.from_moment, self.query.before_moment), self.match
            if all(span.is_within(*bounds) for span in group):
                # These parts lie within the query's bounds, so the many marks of the bounds are not
                # needed.
                marks, _ = covering_marks(*bounds)
                others = tuple(one for one in match.marks if one != marks)
                match = replace(match, marks=others, from_moment=None, before_moment=None)
            match = match.marked(tuple(span.mark for span in group))
            most = at_once + 1 if can_count else 1
            ids = self._listed.find(match, limit=most, highest=False)
            is_whole = can_count and len(ids) <= at_once
            if ids and not is_whole and len(group) > 1:
                width = len(group) // 2
                continue
            if is_whole or not ids:
                yield from self._in_order(ids)
                begins = group[-1].first
                if self.looked >= MAX_TURNS_LOOKED_AT and begins is not None:
                    self.stopped_at = (begins, 0)
            else:
                yield from self._split_span(group[0])
            parts = parts[len(group) :]
            # Double the group, unless that would have too many matches.
            width = max(1, min(2 * len(group), len(group) * at_once // max(1, len(ids))))

    @cached_property
    def _listed(self) -> IndexSource:
        return replace(self.source, scopes=tuple(p.listed for p in self.source.scopes))

    def _can_count(self, span: DateSpan) -> bool:
        """Return whether the matches of this period can be counted quickly.

        In a whole year or month, the few matches of some sessions are too far apart."""
        return not (self._listed.is_sparse and len(span.numbers) in (1, 2) and not span.is_odd)

    def _parts(self, span: DateSpan) -> list[DateSpan]:
        """Return the parts of a period that may have matches.

        They depend on the query's bounds, the position to continue after, and the calendar: future
        years are included only if they have matches."""
        bounds = (self.query.from_moment, self.query.before_moment)
        parts = [
            part
            for part in span.parts()
            if part.overlaps(*bounds)
            and not (self.after and part.first and (part.first, 0) >= self.after)
        ]
        if span.numbers:
            return parts
        year = timezone.now().year
        to_come = [part for part in parts if part.numbers[0] > year]
        marks = tuple(part.mark for part in to_come)
        if marks and not self.source.has(self.match.marked(marks)):
            return parts[len(to_come) :]
        return parts

    def _in_order(self, ids: Sequence[int]) -> Iterator[Placed]:
        if self.query.phrases:
            self.looked += len(ids)
            ids = filter_by_phrases(self.source, self.match, self.query.phrases, ids)
        yield from self._in_time(ids)

    def _in_time(self, ids: Sequence[int]) -> list[Placed]:
        moments = self.source.read_moments(ids)
        placed = ((moment, pk) for pk, moment in moments.items())
        return sorted((p for p in placed if self.after is None or p < self.after), reverse=True)

    def _walk_sessions(self, match: IndexMatch) -> Iterator[Placed]:
        """Yield the matches in a period that cannot be split, session by session.

        The sessions with the latest activity come first. A match later than the next session's last
        activity is yielded at once."""
        waiting: list[Placed] = []
        rows = self.sessions.order_by("-last_active_at", "-pk").values_list("pk", "last_active_at")
        for pk, last_active_at in rows.iterator(chunk_size=100):
            while waiting and waiting[0][0] > last_active_at:
                yield waiting.pop(0)
            found = self._in_time(self._in_session(pk, match))
            waiting = sorted((*waiting, *found), reverse=True)[: self.wanted]
        yield from waiting

    def _in_session(self, session_pk: int, match: IndexMatch) -> list[int]:
        if self.after is not None:
            # At the same moment, lower ids come later in the list.
            moment, pk = self.after
            bound = moment if session_pk > pk >> TURN_BITS else moment + _MICROSECOND
            earliest = min(bound, match.before_moment) if match.before_moment else bound
            match = replace(match, before_moment=earliest)
        place = session_scope(
            session_pk,
            from_turn=self.query.from_turn or 1,
            before_turn=self.query.before_turn or 1 << TURN_BITS,
        )
        source = replace(self.source, scopes=(place,))
        found, _ = find_with_phrases(source, match, self.query.phrases, limit=self.wanted)
        return found
