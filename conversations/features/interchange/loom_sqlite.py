"""Reading databases of earlier Loom versions.

Their tables are ``cowork_sessions``, ``conversation_turns`` and ``cowork_chat_events``. Only the
table names and the column ``session_id`` are assumed. A missing column counts as empty and a
missing table as having no rows. Unknown columns go into the metadata. Sessions without a row of
their own are found by their turns and events. Rows are read by rowid, so that only rows on damaged
pages are lost.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from conversations.domain.messages import say, say_number

from .lines import (
    ImportHistory,
    ImportLine,
    ImportNote,
    Item,
    Object,
    load_given,
    own_uuid,
    stable_uuid,
    without,
)
from .sources import SQLITE_DAMAGE, ImportSource, NoDatabase, SourceFile, open_unchanged

SESSIONS, TURNS, EVENTS = "cowork_sessions", "conversation_turns", "cowork_chat_events"
TABLES = (SESSIONS, TURNS, EVENTS)
BATCH_ROWS = 200
HEAD_BYTES = 64 * 1024
MAX_DEFAULT_CHARS = 200  # Total length of the default values of a table's columns.

# Columns of a turn that are keys of its line.
_TURN_KEYS = (
    "role", "content", "tool_calls", "tool_call_id", "tool_name", "token_count", "metadata",
    "created_at",
)  # fmt: skip


def is_loom_database(path: Path) -> bool:
    """Return whether the database has a table of Loom.

    If it cannot be read, return whether the beginning of the file has the name of such a table."""
    try:
        with open_unchanged(path) as connection:
            return bool(_tables(connection))
    except (NoDatabase, *SQLITE_DAMAGE):
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        return any(name.encode() in head for name in TABLES)


def _tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    # Use only stored tables and columns. A view could be any query. A computed column, or a long
    # default that applies to each older row, could turn a few bytes into gigabytes.
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    try:
        rows = connection.execute(query).fetchall()
    except SQLITE_DAMAGE:  # with this setting SQLite ignores errors in the schema
        connection.execute("PRAGMA writable_schema = ON")
        rows = connection.execute(query).fetchall()
    names = [row["name"] for row in rows if row["name"] in TABLES]
    tables: dict[str, list[str]] = {}
    for name in names:
        tables[name] = []
        chars_left = MAX_DEFAULT_CHARS
        for column in connection.execute(f"PRAGMA table_info({name})"):
            default_chars = len(column["dflt_value"] or "")
            if default_chars <= chars_left:
                tables[name].append(column["name"])
                chars_left -= default_chars
    return tables


def read_loom_database(
    file: SourceFile, source: ImportSource, archive: ImportHistory
) -> Iterator[Item]:
    """Yield the database's sessions in the order of their ids, each with its turns and events."""
    try:
        with file.on_disk() as path, open_unchanged(path) as connection:
            yield from _Database(connection, file.name).read()
    except (NoDatabase, *SQLITE_DAMAGE) as error:
        yield ImportNote(file.name, say("the database cannot be read: %(error)s", error=str(error)))


class _Database:
    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self.connection = connection
        self.tables = _tables(connection)
        self.name = name
        self.seen = Counter[str]()

    def read(self) -> Iterator[Item]:
        rows: dict[Any, int] = {}
        if "id" in self.tables.get(SESSIONS, ()):
            ids = self._fetch(SESSIONS, columns=["id"])  # all rows could be larger than memory
            for rowid, row in ids:
                if isinstance(row, ImportNote):
                    yield row
                elif row["id"] is not None:
                    rows[row["id"]] = rowid
        session_ids = dict.fromkeys(rows)
        for table in (TURNS, EVENTS):
            if "session_id" not in self.tables.get(table, ()):
                continue
            query = f"SELECT DISTINCT session_id FROM {table} WHERE session_id IS NOT NULL"  # noqa: S608
            try:
                for row in self.connection.execute(query):
                    session_ids.setdefault(row["session_id"])
            except SQLITE_DAMAGE as error:
                text = say("not all sessions could be listed: %(error)s", error=str(error))
                yield ImportNote(self._place(table), text)
        uuids: set[str] = set()
        for session in session_ids:
            head: Object | ImportNote = {}
            if session in rows:
                # Another process that has the database open may have deleted the row meanwhile.
                head = next((row for _, row in self._read(SESSIONS, [rows[session]])), {})
            if isinstance(head, ImportNote):
                yield head
                head = {}
            line = _session(_text(session), head)
            if line["uuid"] in uuids:  # two ids that are spellings of the same uuid
                line["uuid"] = str(stable_uuid("loom", _text(session)))
            uuids.add(line["uuid"])
            yield ImportLine(self._place(SESSIONS, _text(session)), line)
            yield from self._rows(TURNS, session, "turn_number", _turn)
            yield from self._rows(EVENTS, session, "seq", _event)
        for table in (TURNS, EVENTS):
            if table not in self.tables:
                continue
            with suppress(*SQLITE_DAMAGE):
                query = f"SELECT COUNT(*) AS n FROM {table} NOT INDEXED"  # noqa: S608
                missed = self.connection.execute(query).fetchone()["n"] - self.seen[table]
                # The missed rows have no session, or a damaged index hides them.
                if missed > 0:
                    text = say_number(
                        "%(count)s row belongs to no session",
                        "%(count)s rows belong to no session",
                        missed,
                    )
                    yield ImportNote(self._place(table), text)

    def _place(self, table: str, row: Any = None) -> str:
        return f"{self.name}: {table}" + ("" if row is None else f" {row}")

    def _rows(
        self, table: str, session: Any, number: str, read: Callable[[Object, int | None], Object]
    ) -> Iterator[Item]:
        columns = self.tables.get(table, ())
        if "session_id" not in columns:
            return
        order = f"ORDER BY {number}, rowid" if number in columns else "ORDER BY rowid"
        # Text with bytes that are not UTF-8 cannot be passed as a text parameter.
        is_text = isinstance(session, str)
        parameter = session.encode("utf-8", "surrogateescape") if is_text else session
        condition = f"WHERE session_id = {'CAST(? AS TEXT)' if is_text else '?'} {order}"
        last_number = 0
        for rowid, row in self._fetch(table, condition, (parameter,), session):
            self.seen[table] += 1
            if isinstance(row, ImportNote):
                yield row
                continue
            value = row.get(number)
            row_number = value if isinstance(value, int) and value > last_number else None
            last_number = last_number + 1 if row_number is None else row_number
            yield ImportLine(self._place(table, rowid), read(row, row_number))

    def _fetch(
        self,
        table: str,
        condition: str = "",
        values: tuple[Any, ...] = (),
        session: Any = None,
        columns: list[str] | None = None,
    ) -> Iterator[tuple[int, Object | ImportNote]]:
        """Yield rows with their rowids, in order.

        If the index is damaged, yield the rows that can be read from the table, and last a note
        that not all could be listed."""
        ids: list[int] = []
        problem: Exception | None = None
        for source in (table, f"{table} NOT INDEXED"):
            query = f"SELECT rowid AS n FROM {source} {condition}"  # noqa: S608 - names of ours
            try:
                ids = [row["n"] for row in self.connection.execute(query, values)]
            except SQLITE_DAMAGE as error:
                problem = error
            else:
                problem = None
                break
        if problem is not None:
            with suppress(*SQLITE_DAMAGE):
                key = "NULL" if session is None else "session_id"
                query = f"SELECT rowid AS n, {key} AS key FROM {table} NOT INDEXED"  # noqa: S608
                for row in self.connection.execute(query):
                    if row["key"] == session:
                        ids.append(row["n"])
        yield from self._read(table, ids, columns)
        if problem is not None:
            reason = say("not all rows could be listed: %(error)s", error=str(problem))
            yield 0, ImportNote(self._place(table), reason)

    def _read(
        self, table: str, ids: list[int], columns: list[str] | None = None
    ) -> Iterator[tuple[int, Object | ImportNote]]:
        names = (name.replace('"', '""') for name in columns or self.tables[table])
        selected = ", ".join(f'"{name}"' for name in names)

        def read(batch: list[int]) -> dict[int, Object]:
            marks = ",".join("?" * len(batch))
            query = f"SELECT rowid AS loom_rowid, {selected} FROM {table} WHERE rowid IN ({marks})"  # noqa: S608
            rows = [dict(row) for row in self.connection.execute(query, batch)]
            return {row.pop("loom_rowid"): row for row in rows}

        for start in range(0, len(ids), BATCH_ROWS):
            batch = ids[start : start + BATCH_ROWS]
            try:
                rows = read(batch)
            except SQLITE_DAMAGE:  # read the rows one by one, so that only damaged ones are lost
                for rowid in batch:
                    try:
                        yield rowid, read([rowid])[rowid]
                    except (*SQLITE_DAMAGE, KeyError) as error:
                        reason = say("the row cannot be read: %(error)s", error=str(error))
                        yield rowid, ImportNote(self._place(table, rowid), reason)
            else:
                yield from ((rowid, rows[rowid]) for rowid in batch if rowid in rows)


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _plain(row: Object) -> Object:
    return without({name: _text(v) if isinstance(v, bytes) else v for name, v in row.items()})


def _session(session: str, row: Object) -> Object:
    row = _plain(row)
    folder = str(row.get("workspace_path") or "")
    state = _object(row.pop("session_state", None))
    title = state.get("title") if isinstance(state, dict) else None
    uuid = own_uuid("", session)
    if str(uuid).replace("-", "") != session.replace("-", "").lower():
        uuid = stable_uuid("loom", folder, str(row.get("started_at", "")), session)
    line: Object = {
        "type": "session",
        "uuid": str(uuid),
        "workspace": Path(folder).name,
        "channel": "loom",
        "title": title if isinstance(title, str) else None,
        "title_is_chosen": False,  # The state does not say who made it.
        "model": row.pop("model_name", None),
        "system_prompt": row.pop("system_prompt", None),
        "created_at": row.pop("started_at", None),
        "last_active_at": row.pop("last_active_at", None),
        "state": state,
        "metadata": _object(row.pop("metadata", None)),
        "source": {"format": "loom-sqlite", "id": session},
    }
    values = {name: value for name, value in line.items() if value is not None}
    return values | without(row, "id", *line)


def _object(value: Any) -> Any:
    try:
        return load_given(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _turn(row: Object, number: int | None) -> Object:
    row = _plain(row)
    line: Object = {"type": "turn"} | {name: row.pop(name) for name in _TURN_KEYS if name in row}
    turn_number = row.pop("turn_number", None)
    if number is not None:
        line["number"] = number
    elif turn_number is not None:
        line["turn_number"] = turn_number
    # Content of a recorded tool result besides its text becomes blocks, so that rows indicate it.
    content = line.get("content")
    if line.get("role") == "tool" and isinstance(content, str) and content.startswith("{"):
        result = _object(content)
        blocks = result.get("content_blocks") if isinstance(result, dict) else None
        if isinstance(blocks, list) and blocks and all(isinstance(b, dict) for b in blocks):
            names = (Path(str(block.get("source_path") or "")).name for block in blocks)
            line["blocks"] = [{"title": name} | b for name, b in zip(names, blocks, strict=True)]
    return line | without(row, "id", "session_id", *line)


def _event(row: Object, seq: int | None) -> Object:
    # Leave out other columns: an import would add them to the payload.
    row = _plain(row)
    line = {"type": "event", "payload": "", "seq": seq}
    line |= {name: row[name] for name in ("payload", "event_type", "created_at") if name in row}
    return {name: value for name, value in line.items() if value is not None}
