"""A SQLite database backend that reuses connections and queues writers.

Under ASGI each request has its own thread, and Django opens a connection for each thread. Opening
a connection, registering Django's functions and reading the schema takes ten times as long as a
query. A connection that one request closes is therefore kept for the next one.

SQLite lets one connection write at a time. The other connections retry after pauses of up to
100 ms, so one of them may wait for seconds while others write thousands of times. This backend
makes writers queue in a line: the first one retries at short intervals, and the others do not try
until it has got the write lock.

SQLite ignores case only for ASCII letters. Two functions handle all letters: ``LOOM_FOLD`` makes
``icontains`` ignore case, and ``LOOM_SORT_KEY`` sorts letters with accents next to the letters
without them.
"""

import atexit
import fcntl
import os
import sqlite3
import stat
import unicodedata
from collections import defaultdict
from contextlib import suppress
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.operations import DatabaseOperations as SQLiteOperations

# About the number of connections that read at the same time. Each keeps database pages in memory.
MAX_IDLE_CONNECTIONS = 4

# Pauses between two attempts to become the first in the line, and of the first one between two
# attempts to get the write lock.
LINE_PAUSE_SECONDS, FIRST_PAUSE_SECONDS = 0.001, 0.0002

# Suffixes of a database's files: the database, SQLite's own files, and the file of the line.
FILE_ENDS = ("", "-wal", "-shm", "-journal", LINE_END := "-line")

# Idle connections by database name. The connection that was closed last is at the end.
_idle_of: defaultdict[str, list[Any]] = defaultdict(list)


def fold(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def sort_key(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def _is_first(line: int) -> bool:
    """Try to become the first in the line. The place is kept until the file is closed.

    Raise OSError if the file system does not support locks.
    """
    try:
        fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class DatabaseOperations(SQLiteOperations):
    def lookup_cast(self, lookup_type: str, internal_type: str | None = None) -> str:
        if lookup_type == "icontains":
            return "LOOM_FOLD(%s)"
        return super().lookup_cast(lookup_type, internal_type)


class DatabaseWrapper(base.DatabaseWrapper):
    ops_class = DatabaseOperations
    operators = base.DatabaseWrapper.operators | {"icontains": "LIKE LOOM_FOLD(%s) ESCAPE '\\'"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: WeakSet[Any] = WeakSet()

    @property
    def _idle(self) -> list[Any]:
        return _idle_of[str(self.settings_dict["NAME"])]

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        with suppress(IndexError):
            return self._idle.pop()
        with suppress(OSError):  # the file exists, or connecting reports the problem
            # Only the server's user may read the file. SQLite's other files copy its mode.
            flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(conn_params["database"], flags, mode=0o600))
        connection = super().get_new_connection(conn_params)
        connection.create_function("LOOM_FOLD", 1, fold, deterministic=True)
        connection.create_function("LOOM_SORT_KEY", 1, sort_key, deterministic=True)
        return connection

    def _start_transaction_under_autocommit(self) -> None:
        with suppress(OSError):
            line = self._open_line()
            try:
                self._begin_in_line(line)
            finally:
                os.close(line)  # the next one is first
            return
        super()._start_transaction_under_autocommit()  # type: ignore[misc]

    def _open_line(self) -> int:
        """Open the file that the first writer in the line locks. Raise OSError.

        The database file itself cannot be used, because closing it would release SQLite's locks.
        """
        database = str(self.settings_dict["NAME"])
        try:
            return os.open(database + LINE_END, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            line = os.open(database + LINE_END, flags, mode=0o600)
            # Users who may write to the database may also use this file, as with SQLite's files.
            about = os.stat(database)
            with suppress(PermissionError):
                os.fchmod(line, stat.S_IMODE(about.st_mode))
                os.fchown(line, about.st_uid, about.st_gid)
            return line

    def _begin_in_line(self, line: int) -> None:
        # Django's cursors are not used, because an error in one prevents the connection's reuse.
        execute, is_first = self.connection.execute, False
        [wait_ms] = execute("PRAGMA busy_timeout").fetchone()
        until = monotonic() + wait_ms / 1000
        execute("PRAGMA busy_timeout = 0")
        try:
            while monotonic() < until:
                is_first = is_first or _is_first(line)
                if is_first and self._try_to_begin():
                    return
                sleep(FIRST_PAUSE_SECONDS if is_first else LINE_PAUSE_SECONDS)
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        finally:
            execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _try_to_begin(self) -> bool:
        with self.wrap_database_errors:
            try:
                self.connection.execute(f"BEGIN {self.transaction_mode}")  # type: ignore[attr-defined]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                return False
        return True

    def create_cursor(self, name: str | None = None) -> Any:
        cursor = super().create_cursor(name)
        self._cursors.add(cursor)
        return cursor

    def _close(self) -> None:
        connection = self.connection
        # A statement that was not read to its end keeps the connection at an old state of the
        # database. Only its cursor shows that there is such a statement.
        is_clean = not (self.errors_occurred or connection.in_transaction or self._cursors)
        if is_clean and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            super()._close()  # type: ignore[misc]


@atexit.register
def close_idle() -> None:
    """Close idle connections. The last one to close writes SQLite's log into the database."""
    for idle in _idle_of.values():
        while idle:
            idle.pop().close()
