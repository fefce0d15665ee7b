"""What a failure of the database or of the disk means for whoever asked.

The drivers report the same two misfortunes, "no room" and "no database", in many ways.
Everything that answers a person or a program asks here which of them it was.
"""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import DataError, connection
from psycopg import errors as postgres

from conversations.domain.errors import (
    DATABASE_RETRY_AFTER_SECONDS,
    DATABASE_UNAVAILABLE,
    LoomError,
    StorageFull,
    Unavailable,
)

FULL = "The server’s disk is full. Nothing that was saved is lost."
AWAY = "The database is not responding at the moment. Nothing that was saved is lost."

# How statements begin that change nothing by themselves.
READING_SQL = ("SELECT", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

# A shared-memory file that cannot grow is reported as an I/O error and not as FULL.
_SQLITE_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_SQLITE_PRIMARY = 0xFF  # The bits of an extended result code that are its primary code.

_POSTGRES_AWAY = (
    postgres.ConnectionException,
    postgres.TooManyConnections,
    postgres.AdminShutdown,
    postgres.CrashShutdown,
    postgres.CannotConnectNow,
    postgres.IdleSessionTimeout,
    postgres.IdleInTransactionSessionTimeout,
    # After a failover the old address may be a standby for a moment.
    postgres.ReadOnlySqlTransaction,
)
_CONNECTION_CLASS = "08"

MAX_END_MS = 2000  # For which the server waits until a process of its own has ended.

_STATUS = "SELECT pg_xact_status(%s::xid8)"
_END_PROCESS = """
    SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE backend_xid = %s::xid8::xid
"""


def translate_storage_error(error: BaseException) -> LoomError | None:
    """StorageFull where nothing can be written, Unavailable (``database_unavailable``) where
    the database cannot be reached; None for any other error. Looks at what caused it too."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, LoomError):
            is_storage = isinstance(one, StorageFull) or one.code == DATABASE_UNAVAILABLE
            return one if is_storage else None
        if _is_full(one):
            return StorageFull(FULL)
        if _is_away(one):
            return database_unavailable()
        one = one.__cause__
    return None


def database_unavailable() -> Unavailable:
    """What a caller is told while the database cannot be reached."""
    return Unavailable(AWAY, code=DATABASE_UNAVAILABLE, retry_after=DATABASE_RETRY_AFTER_SECONDS)


def is_storage_error(error: BaseException) -> bool:
    return translate_storage_error(error) is not None


class Writes:
    """Whether a statement that writes was sent. Sent is enough: the answer to it can be
    lost as well."""

    def __init__(self) -> None:
        self.were_sent = False

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.were_sent = self.were_sent or not sql.lstrip(" (\n").startswith(READING_SQL)
        return execute(sql, params, many, context)


@contextmanager
def watch_writes() -> Iterator[Writes]:
    """What this thread writes meanwhile."""
    writes = Writes()
    with connection.execute_wrapper(writes):
        yield writes


def transaction_id() -> str:
    """Of the transaction that is about to be committed, where the database can be asked for
    its fate later. Empty: it has written nothing, or SQLite, which always answers."""
    if connection.vendor != "postgresql":
        return ""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(pg_current_xact_id_if_assigned()::text, '')")
        return str(cursor.fetchone()[0])


def status_of(transaction: str) -> str:
    """What became of a transaction whose COMMIT had no answer: ``committed``, ``aborted`` or,
    where its end cannot be brought about, ``in progress``."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_STATUS, [transaction])
            status = str(cursor.fetchone()[0])
            if status == "in progress":
                # Its client is gone. A server that does not notice, with a network that broke,
                # would keep its locks for hours.
                cursor.execute(_END_PROCESS, [MAX_END_MS, transaction])
                cursor.execute(_STATUS, [transaction])
                status = str(cursor.fetchone()[0])
            return status
    except DataError:  # the server crashed before any of it was on disk: it has no such id
        return "aborted"


def _is_full(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in _SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno in _FULL_ERRNOS
    return isinstance(error, postgres.DiskFull)


def _is_away(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        primary = _sqlite_code(error) & _SQLITE_PRIMARY
        return primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN)
    if isinstance(error, _POSTGRES_AWAY):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    # Without a state it does not come from the server: the connection was refused or lost.
    return error.sqlstate is None or error.sqlstate.startswith(_CONNECTION_CLASS)


def _sqlite_code(error: sqlite3.Error) -> int:
    """The extended result code; 0 for an error that the module itself made."""
    return getattr(error, "sqlite_errorcode", 0)
