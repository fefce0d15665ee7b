"""The entries that a search reads: stored ones, and those of turns that are not indexed yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from time import monotonic

from django.db.models import QuerySet

from conversations.domain.searchable import role_mark
from conversations.domain.turns import USER
from conversations.models import SearchEntry, Session

from .indexing import (
    IndexProgress,
    IndexTotals,
    TurnEntry,
    index_if_free,
    read_entries,
    read_progress,
    sessions_to_index,
)
from .matching import IndexMatch, IndexScope, find_entries, read_columns

# Up to this number, turns are read before a search instead of being indexed.
MAX_UNINDEXED_TURNS = 60

# The newest turns without entries that are read if they cannot be indexed.
MAX_TAIL_TURNS = 1000

MAX_INDEXING_SECONDS = 5.0  # Within a search, as after a large import that is not indexed yet.


MAX_WORDINESS = 30.0


@dataclass(frozen=True, slots=True)
class TurnLengths:
    """How the lengths of the person's turns and of the other turns compare.

    ``asked_share`` is the share of turns that are the person's. ``wordiness`` is how many times as
    long the others are, at least 1. ``average`` is the average length if the others were shorter by
    that factor."""

    asked_share: float = 1.0
    wordiness: float = 1.0
    average: float = 1.0

    @classmethod
    def of(cls, sums: IndexTotals, turn_count: int) -> "TurnLengths":
        others, length = turn_count - sums.asked_turns, sums.total_length - sums.asked_length
        wordiness = 1.0
        if others > 0 and sums.asked_length:
            wordiness = length / others * sums.asked_turns / sums.asked_length
        wordiness = min(max(1.0, wordiness), MAX_WORDINESS)
        average = (sums.asked_length + length / wordiness) / max(1, turn_count)
        return cls(sums.asked_turns / max(1, turn_count), wordiness, max(1.0, average))

    def weigh(self, turn_count: int) -> float:
        """Return the total weight of that many turns, where the other turns count less."""
        return turn_count * (self.asked_share + (1 - self.asked_share) / self.wordiness)


ASKED = role_mark(USER) + " "  # The marks of the person's turns begin with this.


@dataclass(frozen=True, kw_only=True)
class IndexSource:
    """The entries that a search reads.

    ``tail`` holds entries in memory, and ``stored_to`` is the highest id that is stored.
    ``turn_count`` and ``lengths`` describe all turns in the scopes, whether they match filters or
    not."""

    scopes: tuple[IndexScope, ...]
    tail: Sequence[TurnEntry]
    turn_count: int = 0
    lengths: TurnLengths = TurnLengths()
    stored_to: int = (1 << 63) - 2
    _tail_by_id: dict[int, TurnEntry] = field(default_factory=dict, init=False)
    _words: dict[tuple[str, ...], dict[int, list[str]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._tail_by_id.update({item.id: item for item in self.tail})

    @cached_property
    def low(self) -> int:
        return min((scope.low for scope in self.scopes), default=0)

    @cached_property
    def high(self) -> int:
        return max((scope.high for scope in self.scopes), default=0)

    @property
    def is_sparse(self) -> bool:
        """Whether most of the entries that have to be read are of other sessions."""
        return any(scope.is_sparse for scope in self.scopes)

    def find(
        self, match: IndexMatch, *, limit: int, below: int | None = None, highest: bool = True
    ) -> list[int]:
        """Return ids of entries that match: the highest ones, or whichever are found first."""
        scopes = [scope.below(below) for scope in self.scopes]
        stored = [scope.below(self.stored_to + 1) for scope in scopes]
        found = find_entries(match, stored, limit=limit, highest=highest)
        if not self.tail:
            return found
        in_tail = {
            item.id
            for item in self.tail
            if match.fits(item) and any(scope.has(item.id) for scope in scopes)
        }
        return sorted({*found, *in_tail}, reverse=True)[:limit]

    def has(self, match: IndexMatch) -> bool:
        return bool(self.find(match, limit=1, highest=False))

    def read_moments(self, ids: Iterable[int]) -> dict[int, datetime]:
        distinct = set(ids)
        rows = SearchEntry.objects.filter(pk__in=distinct).values_list("pk", "created_at")
        moments = dict(rows.order_by())
        fresh = self._tail_by_id.keys() & distinct
        return moments | {pk: self._tail_by_id[pk].turn.created_at for pk in fresh}

    def read_lengths(self, ids: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Return the length and the marks of each entry."""
        distinct = set(ids)
        columns = read_columns(distinct, ("length", "marks"))
        rows = {pk: (length, marks) for pk, (length, marks) in columns.items()}
        for pk in self._tail_by_id.keys() & distinct:
            entry = self._tail_by_id[pk].entry
            rows[pk] = (entry.length, entry.marks)
        return rows

    def read_words(self, ids: Sequence[int], columns: Sequence[str]) -> dict[int, list[str]]:
        """Return the words of entries by column; cached."""
        words = self._words.setdefault(tuple(columns), {})
        words |= read_columns([pk for pk in ids if pk not in words], columns)
        for pk in self._tail_by_id.keys() & set(ids):
            words[pk] = [getattr(self._tail_by_id[pk].entry, column) for column in columns]
        return {pk: words[pk] for pk in ids if pk in words}


def catch_up(progress: IndexProgress) -> tuple[IndexProgress, list[TurnEntry]]:
    """Return a session's progress, and entries for its turns that have none stored.

    If these turns are many and the database can be written to, index them now. Else make their
    entries in memory."""
    if progress.waiting > MAX_UNINDEXED_TURNS and index_if_free(
        progress.session_pk, seconds=MAX_INDEXING_SECONDS
    ):
        progress = read_progress(progress.session_pk) or progress
    if progress.waiting <= 0:
        return progress, []
    return progress, read_entries(_range_to_read(progress, MAX_TAIL_TURNS))


def catch_up_all(sessions: QuerySet[Session]) -> list[TurnEntry]:
    """Return the same entries for many sessions, few of which have turns waiting."""
    waiting = sessions_to_index(sessions)
    if sum(progress.waiting for progress in waiting) > MAX_UNINDEXED_TURNS:
        end = monotonic() + MAX_INDEXING_SECONDS
        for progress in waiting:
            seconds = end - monotonic()
            if seconds < 0 or not index_if_free(progress.session_pk, seconds=seconds):
                break
        waiting = sessions_to_index(sessions)
    ranges, remaining = [], MAX_TAIL_TURNS
    for progress in waiting:
        if remaining > 0:
            ranges.append(_range_to_read(progress, remaining))
            remaining -= progress.waiting
    return read_entries(*ranges) if ranges else []


def _range_to_read(progress: IndexProgress, limit: int) -> tuple[int, int, int]:
    first = max(progress.indexed_turn, progress.last_turn - limit) + 1
    return progress.session_pk, first, progress.last_turn
