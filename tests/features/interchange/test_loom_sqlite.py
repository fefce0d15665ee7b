"""Databases of earlier Loom versions: with a full, partial or no journal, and damaged."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.events import Info
from conversations.models import JournalGap, Session, Turn

from .conftest import Importing, assert_nothing_new, metadata_of, payloads_of, rows_of, words_of

pytestmark = pytest.mark.django_db

SCHEMA = """
CREATE TABLE cowork_sessions (
    id TEXT PRIMARY KEY, workspace_path TEXT NOT NULL, model_name TEXT NOT NULL,
    system_prompt TEXT, started_at TEXT NOT NULL DEFAULT (datetime('now')),
    last_active_at TEXT NOT NULL DEFAULT (datetime('now')), total_tokens INTEGER DEFAULT 0,
    turn_count INTEGER DEFAULT 0, session_state TEXT, is_active INTEGER DEFAULT 1);
CREATE TABLE conversation_turns (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, turn_number INTEGER NOT NULL,
    role TEXT NOT NULL, content TEXT, tool_calls TEXT, tool_call_id TEXT, tool_name TEXT,
    token_count INTEGER DEFAULT 0, created_at TEXT NOT NULL DEFAULT (datetime('now')),
    UNIQUE(session_id, turn_number));
CREATE TABLE cowork_chat_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, seq INTEGER NOT NULL,
    event_type TEXT NOT NULL, payload TEXT NOT NULL,
    created_at TEXT NOT NULL DEFAULT (datetime('now')));
CREATE UNIQUE INDEX idx_cce_session_seq ON cowork_chat_events(session_id, seq);
"""

FIRST, SECOND = "5f0c2d3e4b5a69788796a5b4c3d2e1f0", "11111111222233334444555555555555"
STARTED = "2026-02-28T09:00:00"
CALLS = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
RESULT = json.dumps({"success": True, "output": "roses.txt", "error": None})


class Database:
    """A Loom database that is written row by row."""

    def __init__(self, path: Path, schema: str = SCHEMA) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        self.connection.executescript(schema)

    def insert(self, table: str, **values: Any) -> None:
        marks = ", ".join("?" * len(values))
        self.connection.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values())
        )

    def session(self, id: str = FIRST, **values: Any) -> None:
        told = {"workspace_path": "/home/ann/garden", "model_name": "m-1", "started_at": STARTED}
        self.insert("cowork_sessions", id=id, **told | values)

    def turn(
        self, number: Any, role: str, content: Any, session: str = FIRST, **values: Any
    ) -> None:
        told = {"turn_number": number, "role": role, "content": content}
        self.insert("conversation_turns", session_id=session, **told | values)

    def exchange(self, session: str = FIRST, *, start: int = 1) -> None:
        """Insert a question, a call, its result and an answer."""
        self.turn(start, "user", "What is here?", session)
        self.turn(start + 1, "assistant", "", session, tool_calls=json.dumps(CALLS))
        self.turn(start + 2, "tool", RESULT, session, tool_call_id="c1", tool_name="ls")
        self.turn(start + 3, "assistant", "Roses.", session)

    def event(self, seq: int, event_type: str, session: str = FIRST, **payload: Any) -> None:
        told = {"seq": seq, "event_type": event_type, "payload": json.dumps(payload)}
        self.insert("cowork_chat_events", session_id=session, **told)

    def journal(self, session: str = FIRST, *, start: int = 1) -> None:
        """Insert the events of an exchange as Loom journalled them."""
        self.event(start, "user_message", session, text="What is here?")
        self.event(
            start + 1, "tool_call_started", session, tool_call_id="c1", tool_name="ls", args={}
        )
        self.event(
            start + 2, "tool_call_completed", session,
            tool_call_id="c1", tool_name="ls", success=True, output="roses.txt",
        )  # fmt: skip
        self.event(start + 3, "assistant_text", session, text="Roses.")
        self.event(start + 4, "turn_separator", session, tool_count=1, tokens=12, model="m-1")

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "loom.db")


def stored(id: str = FIRST) -> Session:
    return Session.objects.get(uuid=UUID(id))


SAID = [("user", "What is here?"), ("assistant", ""), ("tool", RESULT), ("assistant", "Roses.")]


def test_a_journalled_session_replays_as_it_was_seen(
    importing: Importing, database: Database
) -> None:
    state = {"title": "The garden", "current_focus": "roses"}
    database.session(
        system_prompt="Be kind.", session_state=json.dumps(state), total_tokens=99, turn_count=4
    )
    database.exchange()
    database.journal()
    counts = importing(database.close())
    assert importing.reports == []
    assert importing.format == "loom-sqlite"
    assert (counts.sessions_added, counts.turns_added, counts.events_added) == (1, 4, 5)
    session = stored()
    assert words_of(session) == SAID
    assert rows_of(session) == [f"seq:{seq}" for seq in range(1, 6)]
    assert (session.title, session.model, session.channel) == ("The garden", "m-1", "loom")
    assert not session.title_is_chosen
    assert session.system_prompt == "Be kind."
    assert session.created_at.isoformat() == "2026-02-28T09:00:00+00:00"
    kept = json.loads(session.metadata)
    assert kept["state"] == state
    assert (kept["workspace_path"], kept["total_tokens"]) == ("/home/ann/garden", 99)
    assert verify_session(session).problem == ""


def test_a_session_without_a_journal_gets_rows_from_its_turns(
    importing: Importing, database: Database
) -> None:
    database.session()
    database.exchange()
    database.connection.execute("DROP TABLE cowork_chat_events")
    importing(database.close())
    assert importing.reports == []
    assert rows_of(stored()) == ["turn:1.0", "turn:2.0", "turn:3.0", "turn:4.0"]


def test_a_legacy_result_names_its_image_beside_the_text(
    importing: Importing, database: Database
) -> None:
    database.session()
    block = {"type": "image", "source_path": "/tmp/bed.png", "media_type": "image/png"}
    result = {"success": True, "output": "A bed.", "error": None, "content_blocks": [block]}
    database.turn(1, "tool", json.dumps(result), tool_call_id="c1", tool_name="read_file")
    importing(database.close())
    rows = read_page(stored(), limit=10).rows
    assert [row.cursor for row in rows] == ["turn:1.0", "turn:1.1"]
    assert "bed.png" in rows[1].html


def test_a_notice_is_shown_without_its_terminal_styles(
    importing: Importing, database: Database
) -> None:
    database.session()
    database.event(1, "info", text="[dim]New session: a[1]b \\[x][/dim]", markup=True)
    importing(database.close())
    [shown] = payloads_of(stored())
    assert shown == Info(text="New session: a[1]b [x]")


def test_a_partly_journalled_session_replays_in_order(
    importing: Importing, database: Database
) -> None:
    """The first exchange is older than the journal; the last is from after it was turned off."""
    database.session()
    for start in (1, 5, 9):
        database.exchange(start=start)
    database.journal()
    database.connection.execute("UPDATE conversation_turns SET content = 'Later?' WHERE id = 1")
    importing(database.close())
    session = stored()
    journal = [f"seq:{seq}" for seq in range(1, 6)]
    before, after = ([f"turn:{n}.0" for n in turns] for turns in (range(1, 5), range(9, 13)))
    assert rows_of(session) == before + journal + after
    assert JournalGap.objects.filter(session=session).count() == 1


def test_a_repeated_import_adds_only_new_rows(importing: Importing, database: Database) -> None:
    database.session()
    database.session(SECOND)
    for session in (FIRST, SECOND):
        database.exchange(session)
    database.journal()
    database.connection.commit()
    importing(database.path)
    assert_nothing_new(importing(database.path))
    database.turn(5, "user", "And now?")
    database.event(6, "user_message", text="And now?")
    counts = importing(database.close())
    assert (counts.sessions_extended, counts.sessions_unchanged) == (1, 1)
    assert (counts.turns_added, counts.events_added, counts.conflicts) == (1, 1, 0)


def test_turns_with_invalid_numbers_are_all_kept_in_order(
    importing: Importing, tmp_path: Path
) -> None:
    database = Database(tmp_path / "odd.db", SCHEMA.replace(",\n    UNIQUE", ");--"))
    database.session()
    for number, text in ((1, "a"), (2, "b"), (2, "c"), (7, "d"), ("x", "e")):
        database.turn(number, "user", text)
    path = database.close()
    importing(path)
    assert [text for _, text in words_of(stored())] == ["a", "b", "c", "d", "e"]
    assert metadata_of(stored(), 3)["turn_number"] == 2
    assert_nothing_new(importing(path))


def test_missing_and_unknown_columns_and_tables_are_accepted(
    importing: Importing, tmp_path: Path
) -> None:
    schema = "CREATE TABLE conversation_turns (session_id, turn_number, role, content, mood);"
    database = Database(tmp_path / "bare.db", schema)
    database.turn(1, "user", "Hello", mood="calm")
    database.turn(2, "assistant", None)
    database.turn(3, "oracle", b"\xff\xfebytes")
    importing(database.close())
    session = stored()
    assert [role for role, _ in words_of(session)] == ["user", "assistant", "system"]
    assert metadata_of(session, 1)["mood"] == "calm"
    assert metadata_of(session, 3)["content_escaped"] == "\udcff\udcfebytes"
    assert len(rows_of(session)) >= 2


def test_broken_json_stays_readable_in_its_row(importing: Importing, database: Database) -> None:
    database.session(session_state="{not json")
    database.turn(1, "assistant", "I look.", tool_calls='[{"id": "c1"')
    database.insert(
        "cowork_chat_events", session_id=FIRST, seq=1, event_type="assistant_text", payload="{oops"
    )
    database.event(2, "steer_failed", text="never mind")
    importing(database.close())
    session = stored()
    assert metadata_of(session, 1)["original_tool_calls"] == '[{"id": "c1"'
    assert json.loads(session.metadata)["state"] == "{not json"
    shown = rows_of(session)
    assert shown[:2] == ["seq:1", "seq:2"]


def test_only_the_rows_of_a_damaged_page_are_lost(importing: Importing, database: Database) -> None:
    database.session()
    for number in range(1, 301):
        database.turn(number, "user", f"{number} " + "x" * 400)
    path = database.close()
    with path.open("r+b") as file:
        file.seek(40 * 4096)
        file.write(b"\x99" * 4096)
    counts = importing(path)
    kept = Turn.objects.filter(session=stored()).count()
    assert counts.skipped
    assert 200 < kept < 300
    assert all("conversation_turns" in line for line in importing.reports if "skipped" in line)
    assert_nothing_new_but_the_damage(importing(path))


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_the_readable_rows_of_a_truncated_database_are_imported(
    importing: Importing, database: Database, share: float
) -> None:
    database.session()
    for number in range(1, 301):
        database.turn(number, "user", f"{number} " + "x" * 400)
    path = database.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    counts = importing(path)
    assert counts.skipped
    assert 50 < Turn.objects.filter(session=stored()).count() < 300
    assert len(path.read_bytes()) == int(len(whole) * share)
    assert_nothing_new_but_the_damage(importing(path))


def test_rows_without_a_session_are_counted(importing: Importing, tmp_path: Path) -> None:
    schema = "CREATE TABLE conversation_turns (session_id, turn_number, role, content);"
    database = Database(tmp_path / "bare.db", schema)
    for session in (b"\xff bytes", 7, None, None):
        database.turn(1, "user", f"of {session!r}", session)  # type: ignore[arg-type]
    counts = importing(database.close())
    assert (counts.sessions_added, counts.turns_added) == (2, 2)
    assert importing.reports[-1].endswith("2 rows belong to no session")


def assert_nothing_new_but_the_damage(counts: Any) -> None:
    assert (counts.turns_added, counts.conflicts) == (0, 0)
    assert counts.skipped


@pytest.mark.parametrize("has_shared_memory", [False, True])
def test_the_write_ahead_log_is_read_and_no_file_changes(
    importing: Importing, tmp_path: Path, has_shared_memory: bool
) -> None:
    """The files are those of a crashed Loom, or of a Loom that has the database open."""
    database = Database(tmp_path / "origin.db", "PRAGMA journal_mode = WAL;" + SCHEMA)
    database.session()
    database.exchange()
    database.connection.commit()
    folder = tmp_path / "copy"
    folder.mkdir()
    for end in ("", "-wal", *(["-shm"] if has_shared_memory else [])):
        (folder / f"loom.db{end}").write_bytes((tmp_path / f"origin.db{end}").read_bytes())
    before = {path.name: path.read_bytes() for path in folder.iterdir() if "shm" not in path.name}
    importing(folder / "loom.db")
    assert words_of(stored()) == SAID
    after = {path.name: path.read_bytes() for path in folder.iterdir() if "shm" not in path.name}
    assert after == before
    database.close()


def test_reading_a_database_in_wal_mode_creates_no_files(
    importing: Importing, tmp_path: Path
) -> None:
    database = Database(tmp_path / "loom.db", "PRAGMA journal_mode = WAL;" + SCHEMA)
    database.session()
    database.exchange()
    path = database.close()
    assert [file.name for file in tmp_path.iterdir() if "loom" in file.name] == ["loom.db"]
    importing(path)
    assert [file.name for file in tmp_path.iterdir() if "loom" in file.name] == ["loom.db"]
    assert words_of(stored()) == SAID


def test_sessions_of_two_databases_with_the_same_id_stay_separate(
    importing: Importing, tmp_path: Path
) -> None:
    for folder in ("garden", "kitchen"):
        database = Database(tmp_path / f"{folder}.db")
        database.session("default", workspace_path=f"/home/ann/{folder}")
        database.turn(1, "user", folder, "default")
        path = database.close()
        importing(path)
        assert_nothing_new(importing(path))
    assert {s.preview or s.title for s in Session.objects.all()} == {"garden", "kitchen"}


def test_files_that_are_no_loom_database_are_refused(importing: Importing, tmp_path: Path) -> None:
    from conversations.features.interchange.sources import UnreadableSource

    path = tmp_path / "x"
    path.write_bytes(b"SQLite format 3\x00" + b"\x00" * 50)
    with pytest.raises(UnreadableSource):
        importing(path)
    with closing(sqlite3.connect(tmp_path / "y.db")) as connection:
        connection.execute("CREATE TABLE other (id)")
        connection.commit()
    with pytest.raises(UnreadableSource):
        importing(tmp_path / "y.db")


def test_a_computed_column_is_left_out(importing: Importing, tmp_path: Path) -> None:
    """A computed column of a few bytes could produce gigabytes."""
    path = tmp_path / "bomb.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE cowork_sessions (id TEXT)")
        connection.execute(
            "CREATE TABLE conversation_turns (session_id TEXT, turn_number INTEGER, role TEXT,"
            ' content TEXT, "od""d" TEXT, bomb TEXT AS (hex(zeroblob(1000000))))'
        )
        row = ("s", 1, "user", "Hello", "kept")
        connection.execute("INSERT INTO conversation_turns VALUES (?, ?, ?, ?, ?)", row)
        connection.commit()
    importing(path)
    assert words_of(Session.objects.get()) == [("user", "Hello")]
    assert metadata_of(Session.objects.get(), 1)['od"d'] == "kept"
    assert "bomb" not in metadata_of(Session.objects.get(), 1)


def test_a_column_with_a_long_default_is_left_out(importing: Importing, database: Database) -> None:
    """Rows older than the column have the default value without storing a byte of it."""
    database.session()
    database.turn(1, "user", "Hello")
    for table, size in (("cowork_sessions", 4_000_000), ("conversation_turns", 300)):
        for name, default in (("bomb", "x" * size), ("short", "kept")):
            add = f"ALTER TABLE {table} ADD COLUMN {name} TEXT DEFAULT '{default}'"
            database.connection.execute(add)
    importing(database.close())
    session = Session.objects.get()
    assert words_of(session) == [("user", "Hello")]
    for kept in (json.loads(session.metadata), metadata_of(session, 1)):
        assert kept["short"] == "kept"
        assert "bomb" not in kept


def test_two_spellings_of_one_uuid_are_two_sessions(
    importing: Importing, database: Database
) -> None:
    for id, words in ((FIRST, "roses"), (FIRST.upper(), "herbs")):
        database.session(id)
        database.turn(1, "user", words, id)
    path = database.close()
    assert importing(path).conflicts == 0
    said = sorted(words_of(session) for session in Session.objects.all())
    assert said == [[("user", "herbs")], [("user", "roses")]]
    assert_nothing_new(importing(path))
