"""Sessions of any length that are made by copying rows within the database."""

from django.db import connection, transaction
from django.db.models import Sum

from conversations.archive.append import INSERT_TURN
from conversations.domain.searchable import role_mark
from conversations.domain.turns import USER
from conversations.models import SearchEntry, SearchProgress, Session, Turn
from conversations.models.search import ENTRIES, entry_id
from conversations.search.indexing import ENTRY_COLUMNS, index_session


def repeat_turns(session: Session, *, first: int, turns: int) -> None:
    """Repeat the turns from ``first`` on until the session has ``turns`` turns, and index them.

    Copying a row takes a few microseconds, whereas appending 100,000 turns would take minutes. Such
    an archive cannot be verified, because the copies have the digests of the original turns and are
    missing in the session state.
    """
    index_session(session.pk)
    session.refresh_from_db()
    columns = INSERT_TURN.partition("(")[2].partition(")")[0].split(", ")
    kept = ", ".join(column for column in columns if column != "number")
    words = ", ".join(column for column in ENTRY_COLUMNS if column != "id")
    last = session.turn_count
    with transaction.atomic(), connection.cursor() as cursor:
        while last < turns:
            offset = last - first + 1
            end = min(last, turns - offset)
            cursor.execute(
                f"INSERT INTO {Turn._meta.db_table} ({kept}, number) SELECT {kept}, number + %s"
                f" FROM {Turn._meta.db_table} WHERE session_id = %s AND number BETWEEN %s AND %s",
                [offset, session.pk, first, end],
            )
            cursor.execute(
                f"INSERT INTO {ENTRIES} ({words}, id) SELECT {words}, id + %s FROM {ENTRIES}"
                " WHERE id BETWEEN %s AND %s ORDER BY id",
                [offset, entry_id(session.pk, first), entry_id(session.pk, end)],
            )
            last = offset + end
        entries = SearchEntry.objects.filter(session=session)
        asked = entries.filter(marks__contains=role_mark(USER))
        SearchProgress.objects.filter(session=session).update(
            indexed_turn=last,
            total_length=entries.aggregate(sum=Sum("length"))["sum"],
            asked_turns=asked.count(),
            asked_length=asked.aggregate(sum=Sum("length"))["sum"],
        )
        numbers = {"next_turn": last + 1, "unindexed_turn": last + 1, "state_turn": last}
        Session.objects.filter(pk=session.pk).update(**numbers)
    session.refresh_from_db()
