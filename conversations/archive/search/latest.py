"""The latest matches first, whatever their number and in however many sessions.

A stretch of time with few matches is put in order at once; one with many is taken
apart, a year into months and so on, the latest part first. So only what is shown is
read, and not all that matches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice

from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.moments import ALL_TIME, Span
from conversations.domain.search_query import Query
from conversations.models import Session
from conversations.models.search import TURN_BITS

from .best import keep_phrases
from .matching import Match, Place, session_place
from .source import Source

type Placed = tuple[datetime, int]
"""When a turn was written, and the id of its entry."""

AT_ONCE = 300
"""Matches of one stretch of time that are put in order at once."""

MOST_LOOKED = 1000
"""Turns with all words of a phrase in which one page looks for the phrase itself."""

_EPOCH, _MICROSECOND = datetime.min.replace(tzinfo=UTC), timedelta(microseconds=1)


def as_numbers(place: Placed) -> tuple[int, int]:
    moment, pk = place
    return (moment - _EPOCH) // _MICROSECOND, pk


def as_placed(numbers: Sequence[int]) -> Placed:
    """The place that these numbers stand for; that of no turn at all where they are none
    of ours."""
    try:
        return _EPOCH + numbers[0] * _MICROSECOND, numbers[1]
    except OverflowError:
        return _EPOCH, 0


@dataclass(kw_only=True)
class LatestFirst:
    """Walks through the matches after a place, of which so many are ``wanted``.
    ``stopped_at`` is set where the walk ended
    because it had looked at enough: what comes after that place was not looked at.
    ``looked`` counts the turns in which phrases were looked for."""

    source: Source
    query: Query
    match: Match
    sessions: QuerySet[Session]
    wanted: int
    after: Placed | None = None
    stopped_at: Placed | None = field(default=None, init=False)
    looked: int = field(default=0, init=False)

    def take(self) -> list[Placed]:
        return list(islice(self._walk(ALL_TIME), self.wanted))

    def _walk(self, span: Span) -> Iterator[Placed]:
        if self.stopped_at is not None:
            return
        during = self.match.during(span)
        source = self._listed if span.numbers else self.source
        ids = source.find(during, limit=AT_ONCE + 1 if self._can_count(span) else 1)
        if ids and not self._can_count(span):
            for part in self._parts(span):
                yield from self._walk(part)
        elif len(ids) <= AT_ONCE:
            yield from self._in_order(ids)
            self._stop_at(span)
        elif span.is_hour or span.is_odd:
            yield from self._walk_sessions(during)
        else:
            for part in self._parts(span):
                yield from self._walk(part)

    @cached_property
    def _listed(self) -> Source:
        return replace(self.source, places=tuple(p.listed for p in self.source.places))

    def _can_count(self, span: Span) -> bool:
        """In a whole year, the few that are of some sessions are too far apart."""
        return not (self._listed.is_sparse and len(span.numbers) == 1 and not span.is_odd)

    def _parts(self, span: Span) -> list[Span]:
        """Where something may lie, as far as the bounds say, the place to go on after,
        and the calendar: years to come are looked through only if there are any."""
        parts = [part for part in span.parts() if self._is_wanted(part)]
        if span.numbers:
            return parts
        year = timezone.now().year
        to_come = [part for part in parts if part.numbers[0] > year]
        marks = tuple(part.mark for part in to_come)
        if marks and not self.source.find(self.match.marked(marks), limit=1):
            return parts[len(to_come) :]
        return parts

    def _in_order(self, ids: Sequence[int]) -> Iterator[Placed]:
        if self.query.phrases:
            self.looked += len(ids)
            ids = keep_phrases(self.source, self.match, self.query.phrases, ids)
        yield from self._in_time(ids)

    def _in_time(self, ids: Sequence[int]) -> list[Placed]:
        moments = self.source.read_moments(ids)
        placed = ((moment, pk) for pk, moment in moments.items())
        return sorted((p for p in placed if self.after is None or p < self.after), reverse=True)

    def _stop_at(self, span: Span) -> None:
        if self.looked >= MOST_LOOKED and span.first is not None:
            self.stopped_at = (span.first, 0)

    def _is_wanted(self, span: Span) -> bool:
        first = span.first
        is_later = self.after is not None and first is not None and (first, 0) >= self.after
        bounds = (self.query.from_moment, self.query.before_moment)
        return not is_later and span.overlaps(*bounds)

    def _walk_sessions(self, match: Match) -> Iterator[Placed]:
        """Within a stretch that cannot be taken apart: session by session, the latest
        active first. What is later than the last activity of the next one is next."""
        waiting: list[Placed] = []
        rows = self.sessions.order_by("-last_active_at", "-pk").values_list("pk", "last_active_at")
        for pk, last_active_at in rows.iterator(chunk_size=100):
            while waiting and waiting[0][0] > last_active_at:
                yield waiting.pop(0)
            found = self._in_time(self._in_session(pk, self._earlier(match, pk)))
            waiting = sorted((*waiting, *found), reverse=True)[: self.wanted]
        yield from waiting

    def _in_session(self, session_pk: int, match: Match) -> list[int]:
        """The latest matches of one session."""
        source = replace(self.source, places=(self._place(session_pk),))
        found: list[int] = []
        below = None
        while True:
            ids = source.find(match, limit=self.wanted, below=below)
            found += keep_phrases(source, match, self.query.phrases, ids)
            if len(ids) < self.wanted or len(found) >= self.wanted:
                return found
            below = ids[-1]

    def _place(self, session_pk: int) -> Place:
        return session_place(
            session_pk,
            from_turn=self.query.from_turn or 1,
            before_turn=self.query.before_turn or 1 << TURN_BITS,
        )

    def _earlier(self, match: Match, session_pk: int) -> Match:
        """What comes after the place: of one moment, lower ids are later in the list."""
        if self.after is None:
            return match
        moment, pk = self.after
        bound = moment if session_pk > pk >> TURN_BITS else moment + _MICROSECOND
        earliest = min(bound, match.before_moment) if match.before_moment else bound
        return replace(match, before_moment=earliest)
