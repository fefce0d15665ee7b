"""Maintenance of the search index.

Indexing is never part of an append. The index is brought up to date before it is needed.

The watermark of a session says up to which turn it has entries. Entries are made from turns, which
never change, without a lock. A short transaction then stores a batch and moves the watermark from
the value that was read. If another process has moved it meanwhile, nothing is stored. A crash
leaves whole batches.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from operator import attrgetter
from time import monotonic
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models import Q, QuerySet

from conversations.archive.append import moment_value
from conversations.archive.storage import is_storage_error
from conversations.archive.turns import COLUMNS as TURN_COLUMNS
from conversations.domain.search_tokens import VERSION
from conversations.domain.searchable import Searchable, SearchableTurn, make_entry, read_searchable
from conversations.domain.turns import ASSISTANT, TOOL, USER, StoredTurn, calls_of
from conversations.models import (
    UNINDEXED,
    SearchEntry,
    SearchProgress,
    Session,
    Turn,
    TurnEmbedding,
)
from conversations.models.search import COLUMNS, ENTRIES, INDEX, entry_id, session_rows

logger = logging.getLogger(__name__)

MAX_TURNS_LOOKED_BACK = 20  # Turns before a result that are searched for its call.

ENTRY_COLUMNS = ("id", "session_id", "length", "created_at", *COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEntry:
    session_pk: int
    turn: StoredTurn
    entry: SearchableTurn

    @property
    def id(self) -> int:
        return entry_id(self.session_pk, self.turn.number)

    @property
    def row(self) -> tuple[Any, ...]:
        """The values of :data:`ENTRY_COLUMNS`."""
        words = (getattr(self.entry, name) for name in COLUMNS)
        return (self.id, self.session_pk, self.entry.length, self.turn.created_at, *words)


# A session's key, and the numbers of the first and the last turn of a range.
type TurnRange = tuple[int, int, int]


def read_entries(*ranges: TurnRange) -> list[TurnEntry]:
    """Make the entries of these turns.

    This takes one query for each range, because SQLite reads the whole table for ranges joined by
    OR. It takes one more for each tool result that does not name its tool."""
    entries: list[TurnEntry] = []
    for session_pk, first, last in ranges:
        rows = Turn.objects.filter(session=session_pk, number__range=(first, last))
        columns = (*TURN_COLUMNS, "session__owner_id", "session__workspace_id")
        for row in rows.order_by("number").values(*columns):
            owner, workspace = row.pop("session__owner_id"), row.pop("session__workspace_id")
            turn = StoredTurn(**row)
            searchable = searchable_of(session_pk, turn)
            entry = make_entry(turn, searchable, owner=owner, workspace=workspace)
            entries.append(TurnEntry(session_pk=session_pk, turn=turn, entry=entry))
    return entries


def searchable_of(session_pk: int, turn: StoredTurn) -> Searchable:
    """Return the searchable texts of a turn.

    In some older archives, a tool result does not name its tool. The name is then read from its
    call."""
    name = None
    if turn.role == TOOL and not turn.tool_name and turn.tool_call_id:
        before = (turn.number - MAX_TURNS_LOOKED_BACK, turn.number - 1)
        rows = Turn.objects.filter(session=session_pk, number__range=before, role=ASSISTANT)
        answers = (StoredTurn(**row) for row in rows.order_by("-number").values(*TURN_COLUMNS))
        calls = (call for answer in answers for call in calls_of(answer))
        names = (str(c.get("name") or "") for c in calls if c.get("id") == turn.tool_call_id)
        name = next(names, None)
    return read_searchable(turn, call_name=name)


BATCH_TURNS = 100  # Turns of one transaction.

MAX_LOCK_WAIT_MS = 50  # A search does not wait longer for the write lock.

MERGED_PAGES, BATCHES_PER_MERGE = 16, 8  # A step of merging takes a few milliseconds.

_INSERT = (
    f"INSERT INTO {ENTRIES} ({', '.join(ENTRY_COLUMNS)})"
    f" VALUES ({', '.join(['%s'] * len(ENTRY_COLUMNS))})"
)


@dataclass(frozen=True, slots=True)
class IndexTotals:
    """Totals of entries, which a session's watermark stores for the entries up to it.

    They are the sum of all lengths, the number of the person's turns, and the sum of their
    lengths."""

    total_length: int = 0
    asked_turns: int = 0
    asked_length: int = 0

    def __add__(self, other: "IndexTotals") -> "IndexTotals":
        return IndexTotals(
            **{name: value + getattr(other, name) for name, value in asdict(self).items()}
        )


def sum_up(entries: Iterable[TurnEntry]) -> IndexTotals:
    lengths = [(item.entry.length, item.turn.role == USER) for item in entries]
    asked = [length for length, is_asked in lengths if is_asked]
    return IndexTotals(
        total_length=sum(length for length, _ in lengths),
        asked_turns=len(asked),
        asked_length=sum(asked),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProgress:
    """How far a session's index reaches, and how far its turns go."""

    session_pk: int
    indexed_turn: int
    last_turn: int
    sums: IndexTotals
    active_at: datetime

    @property
    def waiting(self) -> int:
        return self.last_turn - self.indexed_turn


# Entries that are ready to be stored after a session's watermark.
type IndexBatch = tuple[IndexProgress, Sequence[TurnEntry]]


def read_progress(session_pk: int) -> IndexProgress | None:
    """Return the session's progress, or None if the session does not exist."""
    return next(_read_progresses(Session.objects.filter(pk=session_pk)), None)


def sessions_to_index(sessions: QuerySet[Session] | None = None) -> list[IndexProgress]:
    """Return the sessions with turns that have no current entries, the latest active first.

    Entries made by another version of the rules are not current. This takes two queries, each on an
    index with few rows."""
    if sessions is not None:
        # Most of the time all turns are indexed, and these queries tell so quickly.
        old = SearchProgress.objects.filter(Q(version__lt=VERSION) | Q(version__gt=VERSION))
        unindexed = Session.objects.filter(UNINDEXED)
        if not unindexed.order_by().exists() and not old.order_by().exists():
            return []
    searched = Session.objects.all() if sessions is None else sessions
    others = Q(search_progress__version__lt=VERSION) | Q(search_progress__version__gt=VERSION)
    by_session = {
        progress.session_pk: progress
        for behind in (UNINDEXED, others & Q(next_turn__gt=1))
        for progress in _read_progresses(searched.filter(behind).order_by())
    }
    return sorted(by_session.values(), key=attrgetter("active_at", "session_pk"), reverse=True)


def prepare_batch(progress: IndexProgress, *, size: int = BATCH_TURNS) -> IndexBatch:
    """Make the next entries of a session. Takes no lock."""
    first, last = progress.indexed_turn + 1, progress.indexed_turn + size
    return progress, read_entries((progress.session_pk, first, min(progress.last_turn, last)))


def store_batch(batch: IndexBatch) -> IndexProgress | None:
    """Store entries and move the watermark.

    Return None and store nothing if the watermark has moved meanwhile or the session is gone."""
    before, entries = batch
    if not entries:
        return None
    last = entries[-1].turn.number
    after = replace(before, indexed_turn=last, sums=before.sums + sum_up(entries))
    stored = {"indexed_turn": last, "version": VERSION, **asdict(after.sums)}
    rows = SearchProgress.objects.filter(session=before.session_pk)
    try:
        with transaction.atomic():
            # Update only a watermark that is where the batch begins: another process may have moved
            # it.
            if before.indexed_turn:
                current = rows.filter(indexed_turn=before.indexed_turn, version=VERSION)
                is_moved = bool(current.update(**stored))
            else:
                is_moved = bool(rows.exclude(version=VERSION).update(**stored))
                if not is_moved:
                    pk = before.session_pk
                    _, is_moved = rows.get_or_create(session_id=pk, defaults=stored)
            if not is_moved:
                return None
            replace_entries(entries)  # Another version of the rules may have left entries there.
            repeat_watermark(before.session_pk, after.indexed_turn)
    except IntegrityError:
        if read_progress(before.session_pk) is not None:
            raise
        return None
    return after


def repeat_watermark(session_pk: int, indexed_turn: int) -> None:
    """Copy the watermark to the session's own row.

    Call it at the end of a transaction, because on PostgreSQL an append to the session waits until
    the transaction ends."""
    Session.objects.filter(pk=session_pk).update(unindexed_turn=indexed_turn + 1)


def replace_entries(entries: Sequence[TurnEntry]) -> None:
    """Store the entries of consecutive turns of one session, and remove any that were there."""
    ids = (entries[0].id, entries[-1].id)
    rows = [(*item.row[:3], moment_value(item.row[3]), *item.row[4:]) for item in entries]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {ENTRIES} WHERE id BETWEEN %s AND %s", ids)
        cursor.executemany(_INSERT, rows)


def index_session(session_pk: int, *, seconds: float = float("inf")) -> None:
    """Index the waiting turns of one session, batch by batch, for at most that many seconds."""
    end = monotonic() + seconds
    progress = read_progress(session_pk)
    batches = 0
    while progress is not None and progress.waiting > 0 and monotonic() < end:
        progress = store_batch(prepare_batch(progress)) or read_progress(session_pk)
        batches += 1
        if batches % BATCHES_PER_MERGE == 0:
            merge_index(pages=MERGED_PAGES * BATCHES_PER_MERGE)


def index_waiting() -> int:
    """Index the waiting turns of all sessions, and return how many sessions had any."""
    waiting = sessions_to_index()
    for number, progress in enumerate(waiting, start=1):
        index_session(progress.session_pk)
        if number % BATCHES_PER_MERGE == 0:  # Each session left at least one segment.
            merge_index(pages=MERGED_PAGES * BATCHES_PER_MERGE)
    return len(waiting)


FAILED_PAUSE_SECONDS = 300.0  # The time for which a session that could not be indexed is skipped.

_suspended_until: dict[int, float] = {}  # Skipped sessions, and until when.


def is_suspended(session_pk: int) -> bool:
    return _suspended_until.get(session_pk, 0.0) > monotonic()


def suspend_session(session_pk: int, error: Exception) -> None:
    """Log that a session's entries cannot be stored, and skip the session for a while.

    Only this process skips it."""
    _suspended_until[session_pk] = monotonic() + FAILED_PAUSE_SECONDS
    fields = {"session_pk": session_pk}
    logger.error("session_not_indexed", exc_info=error, extra={"fields": fields})


def index_if_free(session_pk: int, *, seconds: float) -> bool:
    """Index a session, and return False if the database cannot be written to now.

    That is the case if another connection holds the write lock, for example. For a session that is
    skipped after an error this returns True, so that the caller goes on with other sessions."""
    if is_suspended(session_pk):
        return True
    timeout_ms = None
    try:
        if connection.vendor == "sqlite" and not connection.in_atomic_block:
            # Give up soon if the lock is held, instead of after many seconds.
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout")
                [(timeout_ms,)] = cursor.fetchall()
                cursor.execute(f"PRAGMA busy_timeout = {MAX_LOCK_WAIT_MS}")
        try:
            index_session(session_pk, seconds=seconds)
        finally:
            if timeout_ms is not None:
                with connection.cursor() as cursor:
                    cursor.execute(f"PRAGMA busy_timeout = {int(timeout_ms)}")
    except DatabaseError as error:
        is_sqlite = connection.vendor == "sqlite"
        if is_storage_error(error) or (is_sqlite and isinstance(error, OperationalError)):
            return False
        suspend_session(session_pk, error)
    return True


def remove_session(session_pk: int) -> int:
    """Remove a session from the index, and return the number of entries.

    A purge calls this within its transaction, before it deletes the session's rows."""
    SearchProgress.objects.filter(session=session_pk).delete()
    repeat_watermark(session_pk, 0)
    embeddings = session_rows(TurnEmbedding, session_pk)
    embeddings._raw_delete(embeddings.db)
    entries = session_rows(SearchEntry, session_pk)
    return entries._raw_delete(entries.db)


def merge_index(*, pages: int = MERGED_PAGES) -> bool:
    """Do a small step of merging the segments of many small writes.

    Return True if there is more to do. PostgreSQL does this by itself."""
    if connection.vendor != "sqlite":
        return False
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT total_changes()")
        [(before,)] = cursor.fetchall()
        cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('merge', %s)", [pages])
        cursor.execute("SELECT total_changes()")
        [(after,)] = cursor.fetchall()
    return bool(after - before >= 2)


def _read_progresses(sessions: QuerySet[Session]) -> Iterator[IndexProgress]:
    names = ("version", "indexed_turn", "total_length", "asked_turns", "asked_length")
    columns = ("pk", "next_turn", "last_active_at", *(f"search_progress__{name}" for name in names))
    for pk, next_turn, active_at, version, indexed, *sums in sessions.values_list(*columns):
        is_current = version == VERSION
        yield IndexProgress(
            session_pk=pk,
            indexed_turn=indexed if is_current else 0,
            last_turn=next_turn - 1,
            sums=IndexTotals(*sums) if is_current else IndexTotals(),
            active_at=active_at,
        )
