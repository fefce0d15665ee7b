"""The database backend.

Under ASGI each request has a thread of its own, and Django a connection for each thread. To open
one, register Django's functions on it and read the schema takes ten times as long as a query, so
what one request has closed the next one gets.

SQLite knows the letters of English alone. Two functions know the others: ``LOOM_FOLD``, by which
``icontains`` tells no case, and ``LOOM_SORT_KEY``, which puts a letter with an accent beside the
one without it.
"""

import atexit
import os
import unicodedata
from collections import defaultdict
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.operations import DatabaseOperations as SQLiteOperations

# About as many as are read from at once. Each holds pages of the database in memory.
MAX_IDLE_CONNECTIONS = 4

# By the name of the database, the one that was closed last at the end.
_idle_of: defaultdict[str, list[Any]] = defaultdict(list)


def fold(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def sort_key(text: str) -> str:
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


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
