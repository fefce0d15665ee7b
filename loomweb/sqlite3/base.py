"""The database backend.

Under ASGI each request has a thread of its own, and Django a connection for each thread. To open
one, register Django's functions on it and read the schema takes ten times as long as a query, so
what one request has closed the next one gets.

SQLite lets one connection write at a time. The others ask again after pauses of up to 100 ms, so
that one may wait for seconds while others write thousands of times. Here they stand in line: who is
first asks at short intervals, and nobody else asks until that one writes.

SQLite knows the letters of English alone. Two functions know the others: ``LOOM_FOLD``, by which
``icontains`` tells no case, and ``LOOM_SORT_KEY``, which puts a letter with an accent beside the
one without it.
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

# About as many as are read from at once. Each holds pages of the database in memory.
MAX_IDLE_CONNECTIONS = 4

# Between two tries to become first in the line for the write lock, and of who is first to get it.
LINE_PAUSE_SECONDS, FIRST_PAUSE_SECONDS = 0.001, 0.0002

# What belongs to a database beside its own file: SQLite's, and the line's.
FILE_ENDS = ("", "-wal", "-shm", "-journal", LINE_END := "-line")

# By the name of the database, the one that was closed last at the end.
_idle_of: defaultdict[str, list[Any]] = defaultdict(list)


def fold(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def sort_key(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def _is_first(line: int) -> bool:
    """It stays so until the file is closed. Raises OSError where the file system has no locks."""
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
        with suppress(OSError):  # it is there, or connecting says what is wrong
            # For the server's user alone, and so are the files that SQLite puts beside it.
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
        """The file whose lock is held by who is first. Not the database: to close that would end
        SQLite's own locks. Raises OSError."""
        database = str(self.settings_dict["NAME"])
        try:
            return os.open(database + LINE_END, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
            line = os.open(database + LINE_END, flags, mode=0o600)
            # For whoever may write to the database, as SQLite's own files are.
            about = os.stat(database)
            with suppress(PermissionError):
                os.fchmod(line, stat.S_IMODE(about.st_mode))
                os.fchown(line, about.st_uid, about.st_gid)
            return line

    def _begin_in_line(self, line: int) -> None:
        # Not by Django's cursors: one that has failed keeps the connection from being used again.
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
        # A statement that is not read to its end keeps its connection at what the database was
        # then. Nothing but its cursor can tell of one.
        is_clean = not (self.errors_occurred or connection.in_transaction or self._cursors)
        if is_clean and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            super()._close()  # type: ignore[misc]


@atexit.register
def close_idle() -> None:
    """The last connection to be closed writes the log into the database."""
    for idle in _idle_of.values():
        while idle:
            idle.pop().close()
