"""Plain SQLite as the limit for writing turns and rows.

The tables are like the product's, in a separate file with the same journal mode and the same
``synchronous`` setting.
"""

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from time import perf_counter

from conversations.archive.append import PreparedEvent, turn_digest, turn_values
from conversations.domain.turns import NewTurn

_SCHEMA = """
CREATE TABLE session (id INTEGER PRIMARY KEY, next_turn INTEGER, next_seq INTEGER, digest TEXT);
CREATE TABLE turn (id INTEGER PRIMARY KEY, session_id INTEGER, number INTEGER, role TEXT,
    content TEXT, blocks TEXT, tool_calls TEXT, tool_call_id TEXT, tool_name TEXT,
    token_count INTEGER, stop_reason TEXT, complete INTEGER, metadata TEXT, created_at TEXT,
    digest TEXT, UNIQUE (session_id, number));
CREATE TABLE event (id INTEGER PRIMARY KEY, session_id INTEGER, seq INTEGER, type TEXT,
    payload TEXT, created_at TEXT, html TEXT, UNIQUE (session_id, seq));
INSERT INTO session VALUES (1, 1, 1, '');
"""
_INSERT_TURN = (
    "INSERT INTO turn (session_id, number, role, content, blocks, tool_calls, tool_call_id,"
    " tool_name, token_count, stop_reason, complete, metadata, created_at, digest)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_EVENT = (
    "INSERT INTO event (session_id, seq, type, payload, created_at, html) VALUES (1, ?, ?, ?, ?, ?)"
)
_COUNT = (
    "UPDATE session SET next_turn = next_turn + 1, next_seq = next_seq + 1, digest = ?"
    " WHERE id = 1 RETURNING next_turn"
)


class Store:
    """A database, which has to be closed after use."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def append(self, turn: NewTurn, event: PreparedEvent, *, times: int = 1) -> float:
        """Append the turn and its row ``times`` times in one transaction. Return the seconds."""
        began = perf_counter()
        self._db.execute("BEGIN IMMEDIATE")
        for _ in range(times):
            [(number,)] = self._db.execute(_COUNT, [event.event_type])
            values = turn_values(1, turn, number=number, created_at=event.created_at, digest="")
            self._db.execute(_INSERT_TURN, values)
            moment = values[-2]
            self._db.execute(
                _INSERT_EVENT, [number, event.event_type, event.payload, moment, event.html]
            )
        self._db.execute("COMMIT")
        return perf_counter() - began

    def append_all(self, turns: Iterable[NewTurn], *, session: int, at: datetime) -> float:
        """Append the turns without rows in one transaction. Return the seconds."""
        began, digest, rows = perf_counter(), "", []
        for number, turn in enumerate(turns, start=1):
            digest = turn_digest(digest, turn, number=number, created_at=at)
            rows.append(turn_values(session, turn, number=number, created_at=at, digest=digest))
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_INSERT_TURN, rows)
        self._db.execute("COMMIT")
        return perf_counter() - began

    def close(self) -> None:
        self._db.close()
