"""The database backend.

Under ASGI each request has a thread of its own, and Django a connection for each thread. To open
one, register Django's functions on it and read the schema takes ten times as long as a query, so
what one request has closed the next one gets.
"""

import atexit
from collections import defaultdict
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from django.db.backends.sqlite3 import base

# About as many as are read from at once. Each holds pages of the database in memory.
MAX_IDLE = 4

# By the name of the database, the one that was closed last at the end.
_idle_of: defaultdict[str, list[Any]] = defaultdict(list)


class DatabaseWrapper(base.DatabaseWrapper):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: WeakSet[Any] = WeakSet()

    @property
    def _idle(self) -> list[Any]:
        return _idle_of[str(self.settings_dict["NAME"])]

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        with suppress(IndexError):
            return self._idle.pop()
        return super().get_new_connection(conn_params)

    def create_cursor(self, name: str | None = None) -> Any:
        cursor = super().create_cursor(name)
        self._cursors.add(cursor)
        return cursor

    def _close(self) -> None:
        connection = self.connection
        # A statement that is not read to its end keeps its connection at what the database was
        # then. Nothing but its cursor can tell of one.
        is_clean = not (self.errors_occurred or connection.in_transaction or self._cursors)
        if is_clean and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            super()._close()  # type: ignore[misc]


@atexit.register
def close_idle() -> None:
    """The last connection to be closed writes the log into the database."""
    for idle in _idle_of.values():
        while idle:
            idle.pop().close()
