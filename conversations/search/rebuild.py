"""Rebuilding the index and comparing it with the turns, while it is in use."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import Count, Q, Sum
from django.db.models.functions import Coalesce

from conversations.domain.search_tokens import VERSION
from conversations.domain.searchable import role_mark
from conversations.domain.turns import USER
from conversations.models import SearchEntry, SearchProgress, Session
from conversations.models.search import (
    INDEX,
    entry_id,
    install_search,
    rebuild_fts5,
    session_rows,
)

from . import indexing, meaning
from .matching import TURN_MASK

ASKED = Q(marks__startswith=role_mark(USER))  # Entries of the person's turns.


def rebuild_session(session_pk: int) -> Iterator[int]:
    """Rebuild a session's entries batch by batch; yield the number of turns done so far.

    Each batch is a small transaction. Searches find the old entries until they are replaced."""
    done, sums = 0, indexing.IndexTotals()
    # Later turns are indexed as usual.
    current = SearchProgress.objects.filter(session=session_pk, version=VERSION).first()
    end = current.indexed_turn if current else 0
    while done < end:
        entries = indexing.read_entries(
            (session_pk, done + 1, min(end, done + indexing.BATCH_TURNS))
        )
        if not entries:
            break
        indexing.replace_entries(entries)
        done = entries[-1].turn.number
        sums += indexing.sum_up(entries)
        yield done
    with transaction.atomic():
        # Set the watermark to the last rebuilt turn, or leave it where other processes moved it.
        rows = SearchProgress.objects.select_for_update().filter(session=session_pk)
        progress = rows.filter(version=VERSION).first()
        if progress is None or progress.indexed_turn < done:
            indexing.remove_session(session_pk)
        else:
            last = Session.objects.values_list("next_turn", flat=True).get(pk=session_pk) - 1
            indexed = min(progress.indexed_turn, last)
            session_rows(SearchEntry, session_pk, first=indexed + 1)._raw_delete(connection.alias)
            later = indexing.IndexTotals(
                *session_rows(SearchEntry, session_pk, first=done + 1)
                .aggregate(
                    total=Coalesce(Sum("length"), 0),
                    turns=Count("pk", filter=ASKED),
                    asked=Coalesce(Sum("length", filter=ASKED), 0),
                )
                .values()
            )
            rows.update(indexed_turn=indexed, **asdict(sums + later))
            indexing.repeat_watermark(session_pk, indexed)
            meaning.forget_session(session_pk)
    indexing.index_session(session_pk)


def check_session(session_pk: int) -> str:
    """Return what is wrong with a session's entries, or an empty text if they match its turns.

    Turns that wait to be indexed do not count as wrong."""
    current = SearchProgress.objects.filter(session=session_pk, version=VERSION)
    progress = current.select_related("session").first()
    indexed = progress.indexed_turn if progress else 0
    done, sums = 0, indexing.IndexTotals()
    while done < indexed:
        last = min(indexed, done + indexing.BATCH_TURNS)
        entries = indexing.read_entries((session_pk, done + 1, last))
        expected = {item.id: item.row for item in entries}
        stored = {row[0]: row for row in _read_stored_rows(session_pk, done + 1, last)}
        for number in range(done + 1, last + 1):
            pk = entry_id(session_pk, number)
            if pk not in expected:
                return f"turn {number} is marked as indexed but has no entry"
            if expected[pk] != stored.get(pk):
                return f"the entry of turn {number} does not match its words"
        sums += indexing.sum_up(entries)
        done = last
    surplus = session_rows(SearchEntry, session_pk, first=indexed + 1).order_by("pk").first()
    if surplus is not None and progress is None:
        is_old = SearchProgress.objects.filter(session=session_pk).exists()
        return "" if is_old else "turn 1 has an entry but is not marked as indexed"
    if surplus is not None:
        return f"turn {surplus.pk & TURN_MASK} has an entry but is not marked as indexed"
    for name, value in asdict(sums).items():
        stored_value = getattr(progress, name, 0)
        if stored_value != value:
            return f"the stored {name} is {stored_value} instead of {value}"
    if progress is not None and progress.session.unindexed_turn != indexed + 1:
        next_turn = progress.session.unindexed_turn
        return f"the session says that the next turn to index is {next_turn}"
    return ""


def check_index() -> str:
    """Return what is wrong with the database's index, or an empty text.

    On PostgreSQL, this checks that the index exists. On SQLite, it compares the words of all
    entries, and holds the write lock meanwhile."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT 1 FROM pg_indexes WHERE indexname = %s", [INDEX])
            return "" if cursor.fetchone() else "the index is missing"
        if INDEX not in connection.introspection.table_names(cursor):
            return "the index is missing"
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('integrity-check', 1)")
    except DatabaseError as error:
        return f"the index does not match the words of the entries ({error})"
    return ""


def repair_index() -> None:
    install_search(using=connection.alias)
    if connection.vendor == "sqlite":
        rebuild_fts5(connection)


def sessions_in_order(session_pk: int | None) -> list[int]:
    sessions = Session.objects.all()
    if session_pk is not None:
        sessions = sessions.filter(pk=session_pk)
    return list(sessions.order_by("pk").values_list("pk", flat=True))


def _read_stored_rows(session_pk: int, first: int, last: int) -> list[tuple[Any, ...]]:
    ids = (entry_id(session_pk, first), entry_id(session_pk, last))
    rows = SearchEntry.objects.filter(pk__range=ids).order_by("pk")
    return list(rows.values_list(*indexing.ENTRY_COLUMNS))
