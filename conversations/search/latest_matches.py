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

type MatchPosition = tuple[datetime, int]  # When a turn was written, and the id of its entry.

BATCH_MATCHES = 300

# Turns with all words of a phrase in which one page looks for the phrase itself. They are read at
# once.
MAX_TURNS_LOOKED_AT = 1000


def read_at_once(query: SearchQuery) -> int:
    """Return how many matches of one period are read and sorted at once."""
    return max(BATCH_MATCHES, MAX_TURNS_LOOKED_AT) if query.phrases else BATCH_MATCHES


_EPOCH, _MICROSECOND = datetime.min.replace(tzinfo=UTC), timedelta(microseconds=1)


def as_numbers(position: MatchPosition) -> tuple[int, int]:
    moment, pk = position
    return (moment - _EPOCH) // _MICROSECOND, pk


def as_position(numbers: Sequence[int]) -> MatchPosition:
    """Return the position that these numbers encode.

    Invalid numbers give a position after which no turn is listed."""
    try:
        return _EPOCH + numbers[0] * _MICROSECOND, numbers[1]
    except OverflowError:
        return _EPOCH, 0


@dataclass(kw_only=True)
class LatestSearch:
    """A search that yields matches after a position, up to ``limit`` of them.

    ``first_ids`` holds all matches, or more than are read at once. ``stopped_at`` is set if the
    search ended because it had checked enough turns. Turns after that position were not checked.
    ``checked_turns`` counts the turns that were checked for phrases."""

    source: IndexSource
    query: SearchQuery
    match: IndexMatch
    sessions: QuerySet[Session]
    limit: int
    first_ids: Sequence[int]
    after: MatchPosition | None
    stopped_at: MatchPosition | None = field(default=None, init=False)
    checked_turns: int = field(default=0, init=False)

    def find(self) -> list[MatchPosition]:
        are_few = len(self.first_ids) <= read_at_once(self.query)
        positions = self._check_and_sort(self.first_ids) if are_few else self._split_span(ALL_TIME)
        return list(islice(positions, self.limit))

    def _split_span(self, span: DateSpan) -> Iterator[MatchPosition]:
        """Yield the matches in a period with many matches, by searching groups of its parts.

        A group holds more parts if they have few matches."""
        if span.is_hour or span.is_odd:
            match = self.match.marked((span.mark,)) if span.numbers else self.match
            yield from self._walk_sessions(match)
            return
        parts = self._parts_with_matches(span)
        width = 1
        if len(parts) == 1 and self.after is None:  # All matches of the whole are in this part.
            yield from self._split_span(parts[0])
            return
        while parts and self.stopped_at is None:
            group = parts[: width if self._can_count(parts[0]) else 1]
            can_count = self._can_count(group[0])
            at_once = read_at_once(self.query)
            bounds = (self.query.from_moment, self.query.before_moment)
            match = self.match
            if all(span.is_within(*bounds) for span in group):
                # These parts lie within the query's bounds, so the many marks of the bounds are not
                # needed.
                marks, _ = covering_marks(*bounds)
                others = tuple(group_marks for group_marks in match.marks if group_marks != marks)
                match = replace(match, marks=others, from_moment=None, before_moment=None)
            match = match.marked(tuple(span.mark for span in group))
            limit = at_once + 1 if can_count else 1
            ids = self._listed.find(match, limit=limit, highest=False)
            is_whole = can_count and len(ids) <= at_once
            if ids and not is_whole and len(group) > 1:
                width = len(group) // 2
                continue
            if is_whole or not ids:
                yield from self._check_and_sort(ids)
                start = group[-1].first
                if self.checked_turns >= MAX_TURNS_LOOKED_AT and start is not None:
                    self.stopped_at = (start, 0)
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

    def _parts_with_matches(self, span: DateSpan) -> list[DateSpan]:
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
        future = [part for part in parts if part.numbers[0] > year]
        marks = tuple(part.mark for part in future)
        if marks and not self.source.has(self.match.marked(marks)):
            return parts[len(future) :]
        return parts

    def _check_and_sort(self, ids: Sequence[int]) -> Iterator[MatchPosition]:
        if self.query.phrases:
            self.checked_turns += len(ids)
            ids = filter_by_phrases(self.source, self.match, self.query.phrases, ids)
        yield from self._sort_by_time(ids)

    def _sort_by_time(self, ids: Sequence[int]) -> list[MatchPosition]:
        moments = self.source.read_moments(ids)
        positions = ((moment, pk) for pk, moment in moments.items())
        return sorted((p for p in positions if self.after is None or p < self.after), reverse=True)

    def _walk_sessions(self, match: IndexMatch) -> Iterator[MatchPosition]:
        """Yield the matches in a period that cannot be split, session by session.

        The sessions with the latest activity come first. A match later than the next session's last
        activity is yielded at once."""
        pending: list[MatchPosition] = []
        rows = self.sessions.order_by("-last_active_at", "-pk").values_list("pk", "last_active_at")
        for pk, last_active_at in rows.iterator(chunk_size=100):
            while pending and pending[0][0] > last_active_at:
                yield pending.pop(0)
            positions = self._sort_by_time(self._find_in_session(pk, match))
            pending = sorted((*pending, *positions), reverse=True)[: self.limit]
        yield from pending

    def _find_in_session(self, session_pk: int, match: IndexMatch) -> list[int]:
        if self.after is not None:
            # At the same moment, lower ids come later in the list.
            moment, pk = self.after
            bound = moment if session_pk > pk >> TURN_BITS else moment + _MICROSECOND
            earliest = min(bound, match.before_moment) if match.before_moment else bound
            match = replace(match, before_moment=earliest)
        scope = session_scope(
            session_pk,
            from_turn=self.query.from_turn or 1,
            before_turn=self.query.before_turn or 1 << TURN_BITS,
        )
        source = replace(self.source, scopes=(scope,))
        ids, _ = find_with_phrases(source, match, self.query.phrases, limit=self.limit)
        return ids
