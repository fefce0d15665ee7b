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
import unicodedata
from collections import defaultdict
from contextlib import suppress
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

from django.db import OperationalError
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


def _take(line: int | None) -> bool:
    """Returns whether one is first, which holds until the file is closed."""
    if line is None:
        return True
    try:
        fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_busy(error: OperationalError) -> bool:
    return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


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
        execute = self.connection.execute
        [wait_ms] = execute("PRAGMA busy_timeout").fetchone()
        execute("PRAGMA busy_timeout = 0")
        line = self._open_line()
        try:
            self._begin_in_line(line, until=monotonic() + wait_ms / 1000)
        finally:
            if line is not None:
                os.close(line)  # the next one is first
            execute(f"PRAGMA busy_timeout = {wait_ms}")

    def _open_line(self) -> int | None:
        """The file whose lock is held by who is first. Not the database: to close that would end
        SQLite's own locks. None where no file can be made: then only SQLite decides."""
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(f"{self.settings_dict['NAME']}{LINE_END}", flags, mode=0o600)
        except OSError:
            return None

    def _begin_in_line(self, line: int | None, *, until: float) -> None:
        is_first, had_errors = False, self.errors_occurred
        while True:
            now = monotonic()
            is_first = is_first or _take(line)
            if is_first or now >= until:
                try:
                    super()._start_transaction_under_autocommit()  # type: ignore[misc]
                    return
                except OperationalError as error:
                    if now >= until or not _is_busy(error):
                        raise
                    self.errors_occurred = had_errors  # nothing is wrong with the connection
            sleep(FIRST_PAUSE_SECONDS if is_first else LINE_PAUSE_SECONDS)

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
