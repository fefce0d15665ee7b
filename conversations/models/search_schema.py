"""What full-text search needs of each database beyond its tables.

On SQLite an FTS5 table keeps, for each word, the ids of the entries that have it;
the words themselves stay in the entries. Triggers keep it in step, whoever removes
an entry. It merges its segments only when asked, so no write waits for that. On
PostgreSQL a GIN index over the words does the same, by session where the extension
``btree_gin`` can be had. All is put back after every migration.
"""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

ENTRIES = "conversations_searchentry"
INDEX = "conversations_searchindex"
COLUMNS = ("said", "tools", "paths", "marks")

CRISIS_SEGMENTS = 1000
"""Unmerged segments at which FTS5 merges within a write; the indexer is far earlier."""

_LIST = ", ".join(COLUMNS)
_NEW = ", ".join(f"NEW.{column}" for column in COLUMNS)
_OLD = ", ".join(f"OLD.{column}" for column in COLUMNS)

WORDS = f"string_to_array({" || ' ' || ".join(COLUMNS)}, ' ')"
"""The words of an entry as PostgreSQL's index knows them."""


def install_search(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create what is missing on one database (a post_migrate receiver)."""
    connection = connections[using]
    if ENTRIES in connection.introspection.table_names():
        {"sqlite": _install_fts5, "postgresql": _install_gin}[connection.vendor](connection)


def rebuild_fts5(connection: BaseDatabaseWrapper) -> None:
    """Make the FTS5 table anew from the entries, in one step."""
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {INDEX} ({INDEX}) VALUES ('rebuild')")


def _install_fts5(connection: BaseDatabaseWrapper) -> None:
    is_there = INDEX in connection.introspection.table_names()
    with connection.cursor() as cursor:
        if not is_there:
            cursor.execute(
                f"CREATE VIRTUAL TABLE {INDEX} USING fts5 ({_LIST}, content='{ENTRIES}',"
                " content_rowid='id', tokenize='ascii', detail=column, columnsize=0)"
            )
            for option, value in (("automerge", 0), ("crisismerge", CRISIS_SEGMENTS)):
                cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('{option}', {value})")
        for name, statement in _triggers().items():
            cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
            cursor.execute(statement)
    if not is_there:
        rebuild_fts5(connection)


def _triggers() -> dict[str, str]:
    insert = f"INSERT INTO {INDEX} (rowid, {_LIST}) VALUES (NEW.id, {_NEW});"
    remove = f"INSERT INTO {INDEX} ({INDEX}, rowid, {_LIST}) VALUES ('delete', OLD.id, {_OLD});"
    return {
        f"{ENTRIES}_{kind}": f"CREATE TRIGGER {ENTRIES}_{kind} AFTER {event} ON {ENTRIES}"
        f" BEGIN {body} END"
        for kind, event, body in (
            ("added", "INSERT", insert),
            ("removed", "DELETE", remove),
            ("changed", "UPDATE", remove + insert),
        )
    }


def _install_gin(connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_indexes WHERE indexname = %s", [INDEX])
        if cursor.fetchone():
            return
    columns = f"session_id, ({WORDS})" if _has_btree_gin(connection) else f"({WORDS})"
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE INDEX {INDEX} ON {ENTRIES} USING gin ({columns}) WITH (fastupdate = off)"
        )


def _has_btree_gin(connection: BaseDatabaseWrapper) -> bool:
    """Without it, a search within a session reads the matches of all sessions."""
    try:
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS btree_gin")
    except DatabaseError:
        return False
    return True
