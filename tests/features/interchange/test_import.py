"""Importing sessions: complete, exact, repeatable and without crashes."""

import io
import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

import manage
from conversations.archive.append import NewEvent, append
from conversations.archive.rights import role_of
from conversations.archive.sessions import create_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.events import UserMessage
from conversations.domain.turns import NewTurn
from conversations.features.interchange.fields import (
    ATTACHMENT_COLUMNS,
    EVENT_COLUMNS,
    KEYS,
    MARKER_COLUMNS,
    SESSION_COLUMNS,
    TURN_COLUMNS,
)
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import (
    Attachment,
    ChatEvent,
    Compaction,
    JournalGap,
    Rewind,
    Run,
    Session,
    Turn,
    Workspace,
)
from conversations.rendering.rows import RENDER_VERSION
from tests.archive.turns import append_turn
from tests.properties import costly

pytestmark = pytest.mark.django_db

AN_UUID = "7b0b3ac2-6a0e-4c35-9bb1-3f8e6a2b8f11"


class Importing:
    """A callable that imports lines as one file and stores the reports."""

    def __init__(self, user: User, root: Path) -> None:
        self.target = ImportTarget(default_owner=user, root=root)
        self.reports: list[str] = []

    def __call__(self, *lines: Any) -> ImportCounts:
        self.reports = []
        data = b"".join(_raw(line) + b"\n" for line in lines)
        counts = ImportCounts()
        import_file(
            io.BytesIO(data),
            target=self.target,
            counts=counts,
            report=lambda line, text: self.reports.append(f"{line}: {text}"),
        )
        return counts


def _raw(line: Any) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


@pytest.fixture
def importing(user: User, workspace: Workspace, tmp_path: Path) -> Importing:
    return Importing(user, tmp_path)


def opening(**keys: Any) -> dict[str, Any]:
    return {"type": "session", "uuid": AN_UUID, "workspace": "garden", **keys}


def turn(number: Any, role: str = "user", content: Any = None, **keys: Any) -> dict[str, Any]:
    text = f"«{role} {number}»" if content is None else content
    return {"type": "turn", "number": number, "role": role, "content": text, **keys}


def event(seq: int, event_type: str = "user_message", **keys: Any) -> dict[str, Any]:
    payload = keys.pop("payload", {"text": f"«event {seq}»"})
    return {"type": "event", "seq": seq, "event_type": event_type, "payload": payload, **keys}


def imported(uuid: str = AN_UUID) -> Session:
    return Session.objects.get(uuid=uuid)


def stored_turn(number: int) -> Turn:
    return Turn.objects.get(session=imported(), number=number)


def metadata_of(number: int) -> dict[str, Any]:
    return json.loads(stored_turn(number).metadata)


def coverage() -> tuple[int, list[tuple[int, int, int]]]:
    session = imported()
    gaps = JournalGap.objects.filter(session=session).order_by("from_turn")
    return session.journal_turn, list(gaps.values_list("from_turn", "to_turn", "after_seq"))


def transcript() -> list[str]:
    """Return the cursors of the session's rows in order."""
    return [row.cursor for row in read_page(imported(), limit=500).rows]


# Stored values


def test_a_session_with_its_turns_and_events_is_imported(importing: Importing) -> None:
    counts = importing(
        opening(title="Roses", model="m-1", channel="cli", key="cli:default"),
        turn(1, created_at="2026-02-28T10:00:00.123456Z"),
        turn(2, "assistant", tool_calls=[{"id": "c1", "name": "ls", "input": {}}], token_count=7),
        turn(3, "tool", tool_call_id="c1", tool_name="ls", complete=False, stop_reason="x"),
        event(1, turn=1, created_at="2026-02-28T12:00:00+02:00"),
    )
    assert importing.reports == []
    assert (counts.sessions_added, counts.turns_added, counts.events_added) == (1, 3, 1)
    session = imported()
    assert (session.title, session.model, session.channel) == ("Roses", "m-1", "cli")
    assert session.key == "cli:default"
    assert session.workspace.slug == "garden"
    assert (session.next_turn, session.next_seq) == (4, 2)
    assert stored_turn(1).created_at == datetime(2026, 2, 28, 10, 0, 0, 123456, tzinfo=UTC)
    assert stored_turn(2).tool_calls == '[{"id":"c1","name":"ls","input":{}}]'
    assert stored_turn(2).token_count == 7
    last = stored_turn(3)
    assert (last.tool_call_id, last.tool_name, last.complete, last.stop_reason) == (
        "c1",
        "ls",
        False,
        "x",
    )
    assert ChatEvent.objects.get().payload == '{"text":"«event 1»"}'
    assert verify_session(session).problem == ""


def test_title_preview_and_last_activity_follow_from_the_turns(importing: Importing) -> None:
    importing(
        opening(created_at="2026-01-01T00:00:00Z"),
        turn(1, content="How do\nroses grow?"),
        turn(2, "assistant", "Slowly.", created_at="2026-01-02T00:00:00Z"),
        turn(3, "tool", "not for the list"),
    )
    session = imported()
    assert (session.title, session.title_is_chosen) == ("How do roses grow?", False)
    assert session.preview == "Slowly."
    assert session.last_active_at == datetime(2026, 1, 2, tzinfo=UTC)


def test_unknown_keys_are_kept_in_the_metadata(importing: Importing) -> None:
    counts = importing(
        opening(colour="red", metadata={"colour": "blue", "a": 1}),
        turn(1, mood="good", metadata={"b": 2}),
        event(1, extra=3),
    )
    assert counts.is_clean
    assert json.loads(imported().metadata) == {"colour": "blue", "a": 1, "colour_": "red"}
    assert metadata_of(1) == {"b": 2, "mood": "good"}
    assert json.loads(ChatEvent.objects.get().payload)["extra"] == 3


def test_a_turn_without_a_time_gets_the_time_of_its_session(importing: Importing) -> None:
    importing(opening(created_at="2026-01-01T00:00:00Z"), turn(1), event(1))
    assert stored_turn(1).created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert ChatEvent.objects.get().created_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_session_without_a_time_gets_the_time_of_its_first_row(importing: Importing) -> None:
    importing(opening(), turn(1, created_at="2026-01-01T00:00:00Z"), turn(2))
    assert imported().created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert imported().last_active_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert stored_turn(2).created_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_text_that_databases_cannot_store_is_kept_exactly(importing: Importing) -> None:
    importing(
        opening(),
        r'{"type":"turn","number":1,"role":"user","content":"a\u0000b"}',
        r'{"type":"turn","number":2,"role":"assistant","content":"x\ud800"}',
        b'{"type":"turn","number":3,"role":"tool","content":"\xff"}',
    )
    assert stored_turn(1).content == "a\ufffdb"
    assert json.loads(stored_turn(1).blocks or "") == [{"type": "text", "text": "a\0b"}]
    assert stored_turn(2).content == "x\ufffd"
    assert metadata_of(2)["content_escaped"] == "x\ud800"
    assert metadata_of(3)["content_escaped"] == "\udcff"


def test_content_given_as_blocks_becomes_text_and_blocks(importing: Importing) -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    importing(opening(), turn(1, content=blocks))
    assert stored_turn(1).content == "one\n\ntwo"
    assert json.loads(stored_turn(1).blocks or "") == blocks


def test_json_values_may_be_given_as_strings(importing: Importing) -> None:
    importing(
        opening(metadata='{"a":1}'),
        turn(1, "assistant", tool_calls='[{"id": "c", "name": "ls"}]'),
        event(1, payload='{"text": "hello"}'),
    )
    assert importing.reports == []
    assert stored_turn(1).tool_calls == '[{"id":"c","name":"ls"}]'
    assert ChatEvent.objects.get().payload == '{"text": "hello"}'


def test_rows_of_five_million_characters_are_kept(importing: Importing) -> None:
    big = "ü" * 5_000_000
    counts = importing(opening(), turn(1, content=big), event(1, payload={"text": big}, turn=1))
    assert counts.is_clean
    assert stored_turn(1).content == big


def test_a_fork_may_come_before_its_parent_in_the_file(importing: Importing) -> None:
    child = str(uuid4())
    importing(opening(uuid=child, parent=AN_UUID, fork_turn=1), opening(), turn(1))
    session = imported(child)
    assert session.parent == imported()
    assert session.fork_turn == 1


# Repeated imports


def some_lines() -> list[Any]:
    return [
        opening(title="Roses"),
        turn(1),
        turn(2, "assistant", metadata={"a": 1}),
        turn(3),
        event(1, turn=1),
        event(2, "assistant_text", turn=2),
        {
            "type": "rewind",
            "from_turn": 2,
            "to_turn": 2,
            "from_seq": 2,
            "to_seq": 2,
            "reason": "edit",
        },
    ]


def everything() -> list[Any]:
    """Return all rows of the archive, including their HTML and primary keys."""
    models = (Workspace, Session, Turn, ChatEvent, Rewind, JournalGap, Attachment, Compaction)
    return [list(model.objects.order_by("pk").values()) for model in models]


def test_importing_twice_changes_nothing(importing: Importing) -> None:
    importing(*some_lines())
    before = everything()
    counts = importing(*some_lines())
    assert everything() == before
    assert (counts.turns_unchanged, counts.events_unchanged) == (3, 2)
    assert (counts.sessions_unchanged, counts.turns_added, counts.rewinds_added) == (1, 0, 0)
    assert counts.is_clean


def test_new_turns_and_events_are_appended(importing: Importing) -> None:
    importing(*some_lines())
    counts = importing(opening(), turn(3), turn(4), turn(5), event(3, turn=4))
    assert (counts.turns_unchanged, counts.turns_added, counts.events_added) == (1, 2, 1)
    assert counts.sessions_extended == 1
    assert verify_session(imported()).problem == ""


def test_different_content_under_a_number_is_a_conflict(
    importing: Importing,
) -> None:
    importing(*some_lines())
    counts = importing(opening(), turn(1), turn(2, "assistant", "other"), turn(4), event(1))
    assert counts.conflicts == 2
    assert importing.reports == [
        "3: conflict: turn 2 is archived with different content",
        "4: skipped: the archived session differs from turn 2 on",
        "5: conflict: event 1 is archived with different content",
    ]
    assert stored_turn(2).content == "«assistant 2»"
    assert not counts.is_clean


@pytest.mark.parametrize("batch_rows", [1, 500])
def test_a_session_that_was_continued_differently_here_is_unchanged(
    importing: Importing, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr("conversations.features.interchange.import_sessions.BATCH_ROWS", batch_rows)
    shared = [opening(), turn(1), turn(2, "assistant"), event(1, turn=1), event(2, turn=2)]
    importing(*shared, turn(3, content="here"), event(3, turn=3, payload={"text": "here"}))
    before = everything()
    text = b64encode(b"words").decode()
    told = {"uuid": str(uuid4()), "digest": sha256(b"words").hexdigest(), "data": text}
    span = {"from_turn": 1, "to_turn": 2, "reason": "manual"}
    counts = importing(
        *shared,
        *(turn(number) for number in (3, 4, 5)),
        {"type": "attachment", "turn": 5, **told},
        *(event(number, turn=number) for number in (3, 4, 5)),
        {"type": "rewind", **span, "from_seq": 1, "to_seq": 2, "reason": "reset"},
        {"type": "compaction", **span, "summary": "What was said there."},
    )
    assert everything() == before
    differs = "skipped: the archived session differs from turn 3 on"
    assert importing.reports == [
        "6: conflict: turn 3 is archived with different content",
        *(f"{line}: {differs}" for line in (7, 8, 9)),
        "10: conflict: event 3 is archived with different content",
        *(f"{line}: {differs}" for line in (11, 12, 13, 14)),
    ]
    assert (counts.conflicts, counts.skipped, counts.sessions_unchanged) == (2, 7, 1)


@pytest.mark.parametrize("batch_rows", [1, 500])
def test_a_number_repeated_in_the_file_does_not_stop_the_import(
    importing: Importing, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    """The lines of the file differ from each other, not from the archive."""
    monkeypatch.setattr("conversations.features.interchange.import_sessions.BATCH_ROWS", batch_rows)
    again = {"content": "other"}
    counts = importing(
        opening(),
        *(turn(1), turn(2), turn(2, **again), turn(3), turn(4)),
        *(
            event(1, turn=1),
            event(2, turn=2),
            event(2, payload={"text": "other"}),
            event(3, turn=3),
        ),
    )
    assert (counts.conflicts, counts.skipped) == (2, 0)
    assert (counts.turns_added, counts.events_added) == (4, 3)
    assert stored_turn(2).content == "«user 2»"


@pytest.mark.parametrize("names", [{"turn": 1}, {}])
def test_events_of_conflicting_turns_are_not_added(
    importing: Importing, names: dict[str, Any]
) -> None:
    importing(opening(), turn(1, content="true"))
    shown = transcript()
    counts = importing(
        opening(), turn(1, content="other"), event(1, payload={"text": "other"}, **names)
    )
    assert (counts.conflicts, counts.skipped, counts.events_added) == (1, 1, 0)
    assert transcript() == shown


def test_turns_after_a_turn_with_other_metadata_are_imported(
    importing: Importing,
) -> None:
    importing(opening(), turn(1), turn(2, "assistant", model="a"))
    counts = importing(opening(), turn(1), turn(2, "assistant", model="b"), turn(3))
    assert (counts.conflicts, counts.skipped, counts.turns_added) == (1, 0, 1)


def test_attachments_between_turns_do_not_split_the_batches(importing: Importing) -> None:
    """Each attachment follows its turn, as in the lines of the readers for other programs."""

    def statements(*, first: int, last: int) -> int:
        lines: list[Any] = []
        for number in range(first, last + 1):
            words = b"words %d" % number
            told = {"digest": sha256(words).hexdigest(), "data": b64encode(words).decode()}
            uuid = str(UUID(int=number))
            lines += [turn(number), {"type": "attachment", "turn": number, "uuid": uuid, **told}]
        with CaptureQueriesContext(connection) as queries:
            assert importing(opening(), *lines).attachments_added == last - first + 1
        return sum("INSERT INTO conversations_turn" in query["sql"] for query in queries)

    assert statements(first=1, last=20) == 1
    assert statements(first=21, last=40) == 1


@pytest.mark.parametrize("stop_after", [1, 3, 6])
def test_a_repeat_of_an_interrupted_import_gives_the_same_result(
    importing: Importing, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    lines = [
        opening(created_at="2026-01-01T00:00:00Z"),
        *(turn(n, "user" if n % 2 else "assistant") for n in range(1, 21)),
        *(event(n, turn=n) for n in (1, 2, 5, 6, 7)),
    ]
    importing(*lines)
    expected = [transcript(), coverage(), imported().turn_digest, imported().event_digest]
    uuid = str(uuid4())
    lines[0]["uuid"] = uuid
    monkeypatch.setattr("conversations.features.interchange.import_sessions.BATCH_ROWS", 4)

    from conversations.features.interchange import import_rows

    insert, calls = import_rows._append, iter(range(100))

    def failing(*args: Any, **kwargs: Any) -> bool:
        if next(calls) == stop_after:
            raise KeyboardInterrupt
        return insert(*args, **kwargs)

    monkeypatch.setattr(import_rows, "_append", failing)
    with pytest.raises(KeyboardInterrupt):
        importing(*lines)
    monkeypatch.setattr(import_rows, "_append", insert)
    counts = importing(*lines)
    assert counts.is_clean
    session = imported(uuid)
    gaps = JournalGap.objects.filter(session=session).order_by("from_turn")
    assert [
        [row.cursor for row in read_page(session, limit=500).rows],
        (session.journal_turn, list(gaps.values_list("from_turn", "to_turn", "after_seq"))),
    ] == expected[:2]
    assert verify_session(session).problem == ""


def test_a_session_without_a_uuid_is_found_again(importing: Importing) -> None:
    lines = [
        {"type": "session", "workspace": "garden"},
        turn(1, content="one"),
        {"type": "session", "workspace": "garden"},
        turn(1, content="two"),
        {"type": "session", "workspace": "garden"},
        turn(1, content="two"),
    ]
    assert importing(*lines).sessions_added == 3
    counts = importing(*lines[:2], turn(2), *lines[2:])
    assert (counts.sessions_added, counts.turns_added, counts.conflicts) == (0, 1, 0)


def test_a_key_identifies_a_session_without_a_uuid(importing: Importing) -> None:
    keyed = {"type": "session", "workspace": "garden", "key": "cli:default"}
    importing(keyed, turn(1))
    counts = importing(keyed | {"title": "other"}, turn(1), turn(2))
    assert (counts.sessions_extended, counts.turns_added) == (1, 1)


def test_an_id_that_is_no_uuid_identifies_the_same_session_again(importing: Importing) -> None:
    importing(opening(uuid="chat-17"), turn(1))
    importing(opening(uuid="chat-17"), turn(1))
    session = Session.objects.get()
    assert json.loads(session.metadata)["original_uuid"] == "chat-17"


def test_a_key_in_use_is_not_assigned_again(importing: Importing) -> None:
    importing(opening(key="k"))
    other = str(uuid4())
    importing(opening(uuid=other, key="k"))
    assert imported(other).key is None
    assert json.loads(imported(other).metadata)["original_key"] == "k"
    assert importing.reports


def test_rows_appended_meanwhile_are_not_overwritten(
    importing: Importing, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conversations.features.interchange import import_rows

    store = import_rows._append
    raced = []

    def racing(*args: Any, **kwargs: Any) -> bool:
        if not raced:
            raced.append(append(session.pk, session_uuid=session.uuid, turns=[_said("live")]))
        return store(*args, **kwargs)

    monkeypatch.setattr(import_rows, "_append", racing)
    counts = importing(opening(uuid=str(session.uuid)), turn(1), turn(2))
    assert (counts.conflicts, counts.skipped) == (1, 1)
    assert list(Turn.objects.values_list("content", flat=True)) == ["live"]


def _said(text: str) -> NewTurn:
    return NewTurn(role="user", content=text)


def test_a_session_with_an_active_run_is_skipped(importing: Importing, session: Session) -> None:
    Run.objects.create(
        session=session, client_id="c", state="running", created_at=session.created_at
    )
    counts = importing(opening(uuid=str(session.uuid)), turn(1))
    assert (counts.skipped, counts.turns_added) == (1, 0)


# Numbers


def test_turns_after_a_missing_number_are_renumbered_and_reported(importing: Importing) -> None:
    lines = [opening(), turn(1), turn(2), '{"type":"turn","number":3,', turn(4), turn(5)]
    counts = importing(*lines, event(1, turn=5))
    assert [report.partition(":")[0] for report in importing.reports] == ["4", "5"]
    assert counts.skipped == 1
    assert stored_turn(3).content == "«user 4»"
    assert [metadata_of(n).get("original_number") for n in (1, 2, 3, 4)] == [None, None, 4, 5]
    assert ChatEvent.objects.get().turn_number == 4
    assert json.loads(imported().metadata)["renumbered_turns"] == [[4, 5, 3]]
    before = everything()
    again = importing(*lines, event(1, turn=5))
    assert (again.turns_unchanged, again.turns_added, again.conflicts) == (4, 0, 0)
    assert everything() == before
    later = importing(*lines, turn(6), event(1, turn=5))
    assert (later.turns_added, later.conflicts) == (1, 0)


@pytest.mark.parametrize(
    "numbers",
    [
        (0, 1, 2),
        (1, 3, 2),
        (10, 20, 30),
        (1, "2", 3),
        (1, None, 2.5),
        (-3, True, 10**40),
        ([], {}, "x"),
        (3, 2, 1),
    ],
)
def test_turns_with_any_numbers_keep_the_order_of_the_file(
    importing: Importing, numbers: tuple[Any, ...]
) -> None:
    lines = [
        opening(),
        *(turn(number, content=f"t{i}") for i, number in enumerate(numbers)),
        *({**event(1), "seq": number} for number in numbers),
    ]
    counts = importing(*lines)
    assert counts.turns_added == counts.events_added == 3
    rows = Turn.objects.order_by("number")
    assert list(rows.values_list("content", flat=True)) == ["t0", "t1", "t2"]
    for row, number in zip(rows, numbers, strict=True):
        if type(number) is not int or number != row.number:
            assert json.loads(row.metadata)["original_number"] == number
    again = importing(*lines)
    assert (again.turns_unchanged, again.events_unchanged) == (3, 3)
    assert verify_session(imported()).problem == ""


def test_renumbering_is_reported_once_for_each_session(importing: Importing) -> None:
    importing(opening(), *(turn(n) for n in range(0, 20, 3)))
    assert len(importing.reports) == 1


def test_a_repeated_line_is_the_same_turn(importing: Importing) -> None:
    counts = importing(opening(), turn(1), turn(1), turn(2), turn(1, content="else"))
    assert (counts.turns_added, counts.turns_unchanged, counts.conflicts) == (2, 1, 1)


def test_turns_numbered_beyond_the_end_are_recognised_again(importing: Importing) -> None:
    importing(opening(), turn(1))
    late = [opening(), turn(51), turn(52), event(51), event(52)]
    assert importing(*late).turns_added == 2
    again = importing(*late)
    assert (again.turns_added, again.turns_unchanged, again.events_unchanged) == (0, 2, 2)


# Damage


def test_each_damaged_line_is_reported_with_its_number(importing: Importing) -> None:
    counts = importing(
        turn(1),
        opening(),
        "{",
        "[1]",
        "null",
        {"type": "poem"},
        {"type": ["turn"]},
        {"role": "user"},
        "[" * 100_000,
        turn(1),
        b"\xff\xfe",
        {"type": "gap", "from_turn": 1},
        {"type": "rewind", "from_turn": 9, "to_turn": 9, "from_seq": 9, "to_seq": 9},
    )
    numbers = [int(report.partition(":")[0]) for report in importing.reports]
    assert sorted(numbers) == [1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert counts.skipped == 11
    assert counts.turns_added == 1


def test_invalid_values_go_to_the_metadata_and_the_rest_is_kept(importing: Importing) -> None:
    counts = importing(
        opening(title=["x"], created_at="yesterday", system_prompt=5, state="x", pinned_at={}),
        turn(1, blocks="no", tool_calls={"a": 1}, token_count="many", complete="yes"),
        turn(2, created_at=1767225600) | {"content": None},
        turn(3, content={"a": 1}, metadata=[1], stop_reason="s" * 100),
        turn(4, role="narrator", content="Once"),
        {"type": "turn", "number": 5},
        {"type": "event", "seq": 1},
        event(2, turn="x", created_at=[]),
    )
    assert counts.skipped == 0
    assert json.loads(imported().metadata)["original_title"] == ["x"]
    assert metadata_of(1) == {
        "original_blocks": "no",
        "original_tool_calls": {"a": 1},
        "original_token_count": "many",
        "original_complete": "yes",
    }
    assert stored_turn(2).content == ""
    assert stored_turn(2).created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert stored_turn(3).content == '{"a":1}'
    assert stored_turn(3).stop_reason == "s" * 64
    assert (stored_turn(4).role, metadata_of(4)["original_role"]) == ("system", "narrator")
    assert stored_turn(5).role == "system"
    assert verify_session(imported()).problem == ""


def test_an_unreadable_event_becomes_a_visible_row(importing: Importing) -> None:
    counts = importing(
        opening(),
        turn(1),
        event(1, "hologram", turn=1),
        event(2, payload=[1, 2], turn=1),
        event(3, payload="plain", turn=1),
        {"type": "event", "seq": 4, "event_type": "info", "payload_raw": "{broken", "turn": 1},
        event(5, turn=1),
    )
    assert counts.is_clean
    assert list(ChatEvent.objects.values_list("payload", flat=True)) == [
        '{"text":"«event 1»"}',
        "[1,2]",
        '"plain"',
        "{broken",
        '{"text":"«event 5»"}',
    ]
    page = read_page(imported(), limit=50)
    versions = ChatEvent.objects.order_by("seq").values_list("render_version", flat=True)
    assert list(versions) == [0, 0, 0, 0, RENDER_VERSION]
    assert [row.is_fallback for row in page.rows] == [True, True, True, True, False]


def test_keys_that_an_unreadable_event_cannot_hold_are_reported(importing: Importing) -> None:
    broken = {"type": "event", "seq": 1, "payload_raw": "{broken", "event_type": "info", "mood": 1}
    importing(opening(), broken, event(2, payload="{broken", mood=1))
    assert importing.reports == [
        "2: imported with changes: mood (left out)",
        "3: imported with changes: mood (left out)",
    ]


def test_a_parent_whose_id_is_no_uuid_is_found(importing: Importing) -> None:
    importing(opening(uuid="a"), opening(uuid="b", parent="a"), opening(uuid="c", parent="c"))
    child = Session.objects.get(metadata__contains='"original_uuid":"b"')
    assert child.parent is not None
    assert json.loads(child.parent.metadata)["original_uuid"] == "a"
    assert Session.objects.get(metadata__contains='"original_uuid":"c"').parent is None


def test_a_line_that_is_nested_too_deeply_is_skipped(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(_: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr("conversations.features.interchange.import_sessions.read_turn", too_deep)
    assert importing(opening(), turn(1)).skipped == 1
    assert importing.reports == ["2: skipped: nested too deeply"]


def test_rows_after_a_damaged_session_line_are_skipped(
    importing: Importing,
) -> None:
    counts = importing(
        opening(), turn(1), '{"type": "session", "uuid": "x', turn(1), turn(2), event(1)
    )
    assert (counts.turns_added, counts.skipped) == (1, 4)
    counts = importing(opening(), turn(1), '{"ty', turn(1), turn(2), opening(), turn(2))
    assert (counts.turns_added, counts.skipped) == (1, 3)


def test_a_line_that_is_too_long_is_skipped(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.features.interchange.fields.MAX_LINE_BYTES", 300)
    counts = importing(opening(), turn(1, content="x" * 1000), turn(2))
    assert counts.skipped == 1
    assert stored_turn(1).content == "«user 2»"


def test_a_line_with_too_many_values_is_skipped(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.features.interchange.fields.MAX_ITEM_VALUES", 60)
    counts = importing(opening(), turn(1, metadata={"x": [[]] * 60}), turn(2, content="[{," * 60))
    assert (counts.skipped, counts.turns_added) == (1, 1)


def test_blank_lines_byte_order_marks_and_crlf_are_accepted(
    importing: Importing,
) -> None:
    first = b"\xef\xbb\xbf" + _raw(opening()) + b"\r"
    counts = importing(first, b"", b"  \r", _raw(turn(1)) + b"\r")
    assert (counts.skipped, counts.turns_added) == (0, 1)


_odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(
        ["2026-01-01T00:00:00Z", AN_UUID, "user", "garden", "0001-01-01", "{}", "[]"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_keys = {
    "session": "title key model workspace owner state created_at parent metadata metadata_raw odd"
    " journal_turn turns events turn_digest channel expires_at last_active_at fork_turn floor_turn"
    " system_prompt",
    "turn": "number role content blocks blocks_raw tool_calls tool_calls_raw tool_call_id odd"
    " tool_name token_count stop_reason complete metadata metadata_raw created_at content_escaped",
    "event": "seq event_type payload payload_raw turn created_at odd",
    "rewind": "from_turn to_turn from_seq to_seq reason actor created_at",
    "gap": "from_turn to_turn after_seq",
}


@st.composite
def _odd_lines(draw: st.DrawFn) -> list[Any]:
    lines: list[Any] = [opening()]
    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from([*_keys, "turn", "event", "broken"]))
        if kind == "broken":
            lines.append(draw(st.binary(max_size=20)).replace(b"\n", b""))
            continue
        line = {"type": kind, "number": index, "seq": index, "role": "user"}
        names = draw(st.lists(st.sampled_from(_keys[kind].split()), max_size=6))
        lines.append(line | {name: draw(_odd) for name in names})
    return lines


@given(lines=_odd_lines())
@costly
def test_no_file_can_break_the_import_or_the_archive(
    importing: Importing, lines: list[Any]
) -> None:
    from tests.conftest import purge_everything

    importing(*lines)
    for session in Session.objects.all():
        assert verify_session(session).problem == ""
        read_page(session, limit=50)
    before = everything()
    counts = importing(*lines)
    assert (counts.turns_added, counts.events_added, counts.sessions_added) == (0, 0, 0)
    assert everything()[2:] == before[2:]
    purge_everything()
    JournalGap.objects.all().delete()
    Session.objects.update(parent=None)
    Session.objects.all().delete()


# Coverage


def conversation(*, turns: int = 6) -> list[Any]:
    return [turn(n, "user" if n % 2 else "assistant") for n in range(1, turns + 1)]


def test_rows_are_rendered_at_the_first_read_and_cached(importing: Importing) -> None:
    importing(opening(), *conversation(), event(1, turn=1))
    assert coverage() == (1, [])
    assert not Turn.objects.exclude(html="").exists()
    assert not ChatEvent.objects.exclude(html="").exists()
    first = read_page(imported(), limit=3)
    assert [row.cursor for row in first.rows] == [f"turn:{n}.0" for n in (4, 5, 6)]
    assert Turn.objects.filter(render_version=RENDER_VERSION).count() == 3
    with CaptureQueriesContext(connection) as queries:
        assert read_page(imported(), limit=3) == first
    assert not [q for q in queries if "content" in q["sql"]]
    assert transcript() == ["seq:1", *(f"turn:{n}.0" for n in range(2, 7))]
    assert ChatEvent.objects.get().render_version == RENDER_VERSION


def test_rows_after_the_last_event_are_made_from_turns(importing: Importing) -> None:
    importing(opening(), *conversation(), event(1, turn=1), event(2, turn=2))
    assert coverage() == (2, [])
    assert transcript() == ["seq:1", "seq:2", "turn:3.0", "turn:4.0", "turn:5.0", "turn:6.0"]


def test_turns_that_the_journal_skips_become_gaps(importing: Importing) -> None:
    importing(
        opening(),
        *conversation(turns=9),
        event(1, turn=3),
        event(2, turn=4),
        event(3, turn=4),
        event(4, turn=8),
    )
    assert coverage() == (8, [(1, 2, 0), (5, 7, 3)])
    assert transcript() == [
        *("turn:1.0", "turn:2.0", "seq:1", "seq:2", "seq:3"),
        *("turn:5.0", "turn:6.0", "turn:7.0", "seq:4", "turn:9.0"),
    ]


def test_turn_and_event_lines_may_alternate(importing: Importing) -> None:
    importing(
        opening(),
        turn(1),
        event(1, turn=1),
        turn(2, "assistant"),
        turn(3),
        event(2, turn=3),
        turn(4, "assistant"),
    )
    assert coverage() == (3, [(2, 2, 1)])


def test_system_hints_need_no_event(importing: Importing) -> None:
    importing(
        opening(),
        turn(1),
        turn(2, "system"),
        turn(3, "system", metadata={"user_facing": True}),
        turn(4, "assistant"),
        turn(5, "system"),
        turn(6),
        event(1, turn=1),
        event(2, "assistant_text", turn=4),
        event(3, turn=6),
    )
    assert coverage() == (6, [(3, 3, 1)])


def test_a_late_event_still_covers_its_turn(importing: Importing) -> None:
    importing(
        opening(),
        *conversation(turns=5),
        event(1, turn=1),
        event(2, turn=5),
        event(3, turn=3),
        event(4, turn=2),
        event(5, turn=2),
    )
    assert coverage() == (5, [(4, 4, 1)])


def test_a_notice_without_a_turn_is_placed_by_its_time(importing: Importing) -> None:
    def at(second: int) -> dict[str, str]:
        return {"created_at": f"2026-01-01T00:00:{second:02}Z"}

    importing(
        opening(),
        turn(1, **at(1)),
        turn(2, "assistant", **at(3)),
        turn(3, **at(5)),
        event(1, turn=1, **at(1)),
        event(2, "info", **at(2)),
        event(3, "turn_separator", **at(4)),
        event(4, turn=3, **at(5)),
    )
    assert coverage() == (3, [(2, 2, 2)])


def said(seq: int, role: str, number: int, **keys: Any) -> dict[str, Any]:
    """Return an event that names no turn but has the text of one."""
    kind = {"user": "user_message", "assistant": "assistant_text"}[role]
    return event(seq, kind, payload={"text": f"«{role} {number}»"}, **keys)


def test_a_journal_without_turn_numbers_covers_whole_exchanges(importing: Importing) -> None:
    importing(
        opening(),
        *conversation(turns=7),
        said(1, "user", 1),
        said(2, "assistant", 2),
        event(3, "turn_separator", payload={}),
        said(4, "user", 5),
        said(5, "assistant", 6),
        event(6, "turn_separator", payload={}),
    )
    assert coverage() == (6, [(3, 4, 3)])
    assert transcript()[-2:] == ["seq:6", "turn:7.0"]


def test_answers_missing_from_a_journal_are_shown_in_their_places(
    importing: Importing,
) -> None:
    """The journal names no turns. Answers may be missing, and it may end anywhere."""
    calls = [{"id": "a", "name": "ls", "input": {}}]
    started = {"name": "ls", "call_id": "a"}
    turns = [
        *conversation(turns=5),
        turn(6, "assistant", "", tool_calls=calls),
        turn(7, "tool", tool_call_id="a"),
        turn(8, "assistant"),
    ]
    rows = [
        *(said(n, "user" if n % 2 else "assistant", n) for n in range(1, 6)),
        event(6, "tool_call_started", payload=started),
        event(7, "tool_call_completed", payload=started),
        said(8, "assistant", 8),
    ]
    journals = [
        *(set(range(1, 9)) - missing for missing in ({2}, {4}, {8}, {2, 4}, {4, 8})),
        *(set(range(1, end)) for end in (2, 4, 7, 8)),
    ]
    lines: list[Any] = []
    for number, kept in enumerate(journals):
        lines += [opening(uuid=str(UUID(int=number + 1))), *turns]
        lines += [rows[n - 1] | {"seq": seq} for seq, n in enumerate(sorted(kept), 1)]
    importing(*lines)
    for number, kept in enumerate(journals):
        seqs = {n: seq for seq, n in enumerate(sorted(kept), 1)}
        page = read_page(imported(str(UUID(int=number + 1))), limit=50)
        assert [row.cursor for row in page.rows] == [
            f"seq:{seqs[n]}" if n in kept else f"turn:{n}.0" for n in range(1, 9)
        ], kept


def test_an_answer_with_other_text_in_the_journal_is_shown_once(
    importing: Importing,
) -> None:
    """The journal names no turns. It may join texts or lack white space and texts before calls."""
    started = {"name": "ls", "call_id": "a"}
    cases: list[tuple[str, str, list[str], list[str]]] = [
        ("\n\n", "B", ["B"], []),
        ("\n\n", "B", [], ["turn:4.0"]),
        ("\n\n", "B", ["\n\n"], ["turn:4.0"]),
        ("Let me look.", "B", ["B"], []),
        ("Let me look.", "B", [], ["turn:4.0"]),
        ("A", "B\n\nC", ["A\n\nB\n\nC"], []),
        ("A", "B", ["A"], ["turn:4.0"]),
    ]
    for number, (first, second, texts, made) in enumerate(cases, 1):
        uuid = str(UUID(int=number))
        importing(
            opening(uuid=uuid),
            turn(1),
            turn(2, "assistant", first, tool_calls=[{"id": "a", "name": "ls", "input": {}}]),
            turn(3, "tool", tool_call_id="a"),
            turn(4, "assistant", second),
            said(1, "user", 1),
            event(2, "tool_call_started", payload=started),
            event(3, "tool_call_completed", payload=started),
            *(event(4, "assistant_text", payload={"text": text}) for text in texts),
        )
        rows = read_page(imported(uuid), limit=50).rows
        shown = [f"seq:{seq}" for seq in range(1, 4 + len(texts))]
        assert [row.cursor for row in rows] == shown + made, (first, second, texts)


def test_turns_before_a_late_journal_become_a_gap(importing: Importing) -> None:
    turns = [turn(n, "user" if n % 2 else "assistant") for n in range(1, 131)]
    importing(opening(), *turns, said(1, "user", 121), said(2, "assistant", 122))
    assert coverage() == (122, [(1, 120, 0)])


def test_calls_and_results_belong_to_the_exchange_of_their_message(importing: Importing) -> None:
    calls = [{"id": "a", "name": "ls", "input": {}}, {"id": "b", "name": "ls", "input": {}}]
    started = {"name": "ls", "call_id": "a"}
    importing(
        opening(),
        turn(1),
        turn(2, "assistant", "", tool_calls=calls),
        turn(3, "tool", tool_call_id="a"),
        turn(4, "tool", tool_call_id="b"),
        turn(5, "assistant"),
        said(1, "user", 1),
        event(2, "tool_call_started", payload=started),
        event(3, "tool_call_started", payload=started | {"call_id": "b"}),
        event(4, "tool_call_completed", payload=started | {"call_id": "b"}),
        event(5, "tool_call_completed", payload=started),
        said(6, "assistant", 5),
    )
    assert coverage() == (5, [])
    assert transcript() == [f"seq:{n}" for n in range(1, 7)]


def test_coverage_needs_no_extra_queries_for_each_gap(importing: Importing) -> None:
    def statements(exchanges: int) -> int:
        asked = [said(n, "user", 2 * n - 1) for n in range(1, exchanges + 1)]
        with CaptureQueriesContext(connection) as queries:
            importing(opening(uuid=str(uuid4())), *conversation(turns=2 * exchanges), *asked)
        return len(queries)

    few = statements(20)
    assert JournalGap.objects.count() == 19
    assert statements(60) - few <= 15


def test_later_events_may_fill_an_earlier_gap(importing: Importing) -> None:
    importing(opening(), *conversation(), event(1, turn=1), event(2, turn=4))
    assert coverage() == (4, [(2, 3, 1)])
    importing(opening(), event(3, turn=3), event(4, turn=5))
    assert coverage() == (5, [(2, 2, 1)])


def test_an_import_does_not_change_the_gaps_of_a_session_in_use(
    importing: Importing, session: Session
) -> None:
    append(session.pk, session_uuid=session.uuid, turns=[_said("bare")])
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[_said("shown")],
        events=[NewEvent(payload=UserMessage(text="shown"), new=0)],
    )
    Run.objects.create(
        session=session, client_id="c", state="completed", created_at=session.created_at
    )
    before = list(JournalGap.objects.values())
    importing(opening(uuid=str(session.uuid)))
    assert list(JournalGap.objects.values()) == before


def test_a_long_journal_is_read_in_pages(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.archive.append.FIRST_PAGE_ROWS", 2)
    monkeypatch.setattr("conversations.archive.append.MAX_PAGE_ROWS", 2)
    notices = (event(n, "info") for n in range(5, 9))
    covering = (event(n, turn=2 * n) for n in range(1, 5))
    importing(opening(), *conversation(turns=12), *covering, *notices)
    assert coverage() == (8, [(1, 1, 0), (3, 3, 1), (5, 5, 2), (7, 7, 3)])


def test_an_unreadable_turn_is_shown_as_a_fallback_row(importing: Importing) -> None:
    started = {"call_id": "a", "name": "ls"}
    broken = turn(2, "assistant") | {"tool_calls_raw": "{broken"}
    importing(
        opening(),
        turn(1),
        broken,
        event(1, "tool_call_started", payload=started),
    )
    assert coverage() == (0, [])
    assert stored_turn(2).render_version == 0
    assert read_page(imported(), limit=9).rows[-1].is_fallback


def test_a_message_event_with_other_text_covers_no_turn(importing: Importing) -> None:
    worded = event(1, payload={"text": "worded"})
    importing(opening(), *conversation(), worded, said(2, "user", 3), said(3, "assistant", 4))
    assert coverage() == (4, [(1, 2, 1)])
    assert transcript()[:3] == ["seq:1", "turn:1.0", "turn:2.0"]


def test_a_gap_line_is_imported_only_if_it_fits_the_archive(importing: Importing) -> None:
    importing(opening(), *conversation(), event(1, turn=1), event(2, turn=4))
    session = imported()
    announced = {
        "turns": 6,
        "events": 2,
        "turn_digest": session.turn_digest,
        "event_digest": session.event_digest,
        "journal_turn": 5,
    }
    gaps = [
        {"type": "gap", "from_turn": low, "to_turn": high, "after_seq": after}
        for low, high, after in ((2, 2, 1), (3, 9, 1), (4, 4, 7), (2, 3, 0))
    ]
    counts = importing(opening(**announced), *gaps)
    assert counts.skipped == 3
    assert coverage() == (5, [(2, 2, 1)])


@pytest.mark.parametrize(
    "change",
    [
        {"to_turn": 9},
        {"from_turn": 0},
        {"to_seq": 9},
        {"from_seq": 0},
        {"reason": "whim"},
        {"from_turn": "x"},
    ],
)
def test_an_invalid_rewind_is_skipped(importing: Importing, change: dict[str, Any]) -> None:
    lines = some_lines()
    lines[-1] |= change
    counts = importing(*lines)
    assert (counts.skipped, counts.rewinds_added) == (1, 0)
    assert imported().rewind_count == 0


def test_a_rewind_follows_its_renumbered_turns(importing: Importing) -> None:
    marker = {
        "type": "rewind",
        "from_turn": 4,
        "to_turn": 5,
        "from_seq": 1,
        "to_seq": 0,
        "reason": "undo",
    }
    counts = importing(
        opening(), turn(1), turn(4), turn(5), marker, marker | {"from_turn": 3, "to_turn": 3}
    )
    assert (counts.rewinds_added, counts.skipped) == (1, 1)
    rewind = Rewind.objects.get()
    assert (rewind.from_turn, rewind.to_turn) == (2, 3)


def test_a_file_with_more_holes_than_are_recorded_is_recognised(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.features.interchange.import_rows.MAX_RUNS", 3)
    lines = [opening(), *(turn(n) for n in range(1, 30, 2)), *(event(n) for n in range(9, 30, 2))]
    importing(*lines)
    again = importing(*lines, turn(31))
    assert (again.turns_unchanged, again.events_unchanged) == (15, 11)
    assert (again.turns_added, again.conflicts) == (1, 0)


def test_renumbering_is_recorded_beside_damaged_metadata(importing: Importing) -> None:
    importing(opening(metadata_raw="{broken"), turn(2), turn(9))
    again = importing(opening(), turn(2), turn(9), turn(12))
    assert (again.turns_unchanged, again.turns_added) == (2, 1)
    assert json.loads(imported().metadata) == {
        "metadata_raw": "{broken",
        "renumbered_turns": [[2, 2, 1], [9, 9, 2], [12, 12, 3]],
    }


def test_an_import_gives_up_on_a_session_that_keeps_changing(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "conversations.features.interchange.import_rows._append", lambda *_, **__: False
    )
    counts = importing(opening(), turn(1), event(1))
    assert counts.skipped == 2
    assert "Import it again later" in importing.reports[0]


def test_an_empty_file_imports_nothing(importing: Importing) -> None:
    assert importing() == ImportCounts()


# Workspaces and owners


def test_a_missing_workspace_is_created(importing: Importing, tmp_path: Path) -> None:
    importing(opening(workspace="My Plants!"))
    workspace = imported().workspace
    assert workspace.slug == "my-plants"
    assert Path(workspace.root) == tmp_path / "my-plants"
    assert Path(workspace.root).is_dir()
    assert role_of(workspace, importing.target.default_owner.pk) == "owner"


@pytest.mark.parametrize("named", [None, "", "../../etc", 5, ["x"], "\0"])
def test_a_workspace_name_cannot_lead_out_of_the_root(
    importing: Importing, tmp_path: Path, named: Any
) -> None:
    importing(opening(workspace=named))
    assert Path(imported().workspace.root).parent == tmp_path


def test_an_import_counts_as_activity_if_idle_sessions_are_deleted(
    importing: Importing, workspace: Workspace
) -> None:
    Workspace.objects.filter(pk=workspace.pk).update(retention_days=90)
    long_ago, begun = "2020-09-13T12:00:00+00:00", timezone.now()
    lines = (opening(workspace=workspace.slug, last_active_at=long_ago), turn(1))
    importing(*lines)
    active_at = imported().last_active_at
    assert active_at >= begun
    importing(*lines)  # adds nothing, so it is no activity
    assert imported().last_active_at == active_at


def test_the_file_may_name_an_existing_owner(importing: Importing, other_user: User) -> None:
    importing(opening(owner="bob"))
    assert imported().owner == other_user
    assert role_of(imported().workspace, other_user.pk) is None
    assert "not a member" in importing.reports[0]


def test_an_unknown_owner_is_kept_in_the_metadata(importing: Importing) -> None:
    importing(opening(owner="zoe"))
    assert imported().owner == importing.target.default_owner
    assert json.loads(imported().metadata) == {"original_owner": "zoe"}
    assert importing.reports == ["1: its owner zoe has no account here; it belongs to ann"]
    importing(opening(owner="zoe"), turn(1))
    assert importing.reports == []


# The command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"\n".join(map(_raw, some_lines())))
    return path


@pytest.fixture
def admin(db: None) -> Iterator[User]:
    return User.objects.create_superuser("root")


def test_the_command_prints_its_counts(
    workspace: Workspace, admin: User, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("import_sessions", str(file))
    out = capsys.readouterr().out
    assert "sessions: 1 added, 0 extended, 0 unchanged" in out
    assert "turns: 3 added, 0 unchanged" in out
    assert "events: 2 added, 0 unchanged" in out
    assert imported().owner == admin


def test_the_command_uses_the_given_workspace_and_owner(
    workspace: Workspace, admin: User, other_user: User, file: Path
) -> None:
    call_command("import_sessions", str(file), workspace="garden", owner="bob")
    assert imported().owner == other_user
    assert role_of(workspace, other_user.pk) == "member"


def test_the_command_fails_when_a_line_was_skipped(
    workspace: Workspace, admin: User, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(file.read_bytes() + b"\n{")
    with pytest.raises(SystemExit) as ended:
        call_command("import_sessions", str(file))
    assert ended.value.code == 1
    assert f"{file}:8: skipped: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"workspace": "nowhere"}, {"owner": "nobody"}, {"files": ["/nonexistent"]}]
)
def test_the_command_refuses_invalid_arguments(
    workspace: Workspace, admin: User, file: Path, options: dict[str, Any]
) -> None:
    files = options.pop("files", [str(file)])
    with pytest.raises(CommandError) as refused:
        call_command("import_sessions", *files, **options)
    assert refused.value.returncode == 2
    assert not Session.objects.exists()


def test_the_command_refuses_a_folder_without_sessions(
    workspace: Workspace, admin: User, tmp_path: Path
) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("import_sessions", str(tmp_path))
    assert refused.value.returncode == 2


def test_progress_is_shown_on_a_terminal(
    workspace: Workspace,
    admin: User,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = "management.commands"
    own = f"conversations.features.interchange.{commands}"
    monkeypatch.setattr(f"{own}.import_sessions.PROGRESS_LINES", 5)
    monkeypatch.setattr(f"{own}.export_sessions.PROGRESS_LINES", 5)
    monkeypatch.setattr(f"conversations.{commands}.verify_archive.PROGRESS_SESSIONS", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    call_command("import_sessions", str(file))
    assert "\r5 lines" in capsys.readouterr().err
    call_command("export_sessions", all=True, stdout=io.StringIO())
    assert "\r5 lines" in capsys.readouterr().err
    call_command("verify_archive")
    assert "\r1 sessions" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["import_sessions", "verify_archive"])
def test_a_database_failure_is_a_command_error(
    workspace: Workspace,
    admin: User,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OperationalError("disk I/O error")

    commands = "conversations.management.commands"
    monkeypatch.setattr("conversations.features.interchange.pipeline.import_file", failing)
    monkeypatch.setattr(f"{commands}.verify_archive.verify_sessions", failing)
    files = [str(file)] if command == "import_sessions" else []
    with pytest.raises(CommandError, match="disk I/O error"):
        call_command(command, *files)


def test_an_interrupted_command_prints_that_it_stopped(
    workspace: Workspace,
    admin: User,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopping(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("conversations.features.interchange.pipeline.import_file", stopping)
    monkeypatch.setattr("conversations.management.commands.serve.open_listener", stopping)
    monkeypatch.setattr(connections, "close_all", lambda: None)  # the test still needs its own
    for words in (["import_sessions", str(file)], ["serve"]):
        monkeypatch.setattr(sys, "argv", ["manage.py", *words])
        with pytest.raises(SystemExit) as stopped:
            manage.main()  # type: ignore[no-untyped-call]
        assert stopped.value.code == 130
        assert capsys.readouterr().err == "Stopped.\n"


def test_a_truncated_export_fails_the_command(
    workspace: Workspace, admin: User, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = {"turns": 9, "events": 2, "turn_digest": "0" * 64}
    file.write_bytes(b"\n".join(map(_raw, [opening(**digest), turn(1)])))
    with pytest.raises(SystemExit):
        call_command("import_sessions", str(file))
    assert "sessions that differ from their export: 1" in capsys.readouterr().out


def test_the_command_reads_standard_input(
    workspace: Workspace, admin: User, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    call_command("import_sessions", "-")
    assert imported().turn_count == 3
    assert isinstance(imported().uuid, UUID)


# The documentation


DOCS = Path(__file__).parents[3] / "docs" / "interchange.md"


def test_the_documented_examples_can_be_imported(importing: Importing) -> None:
    examples = re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert importing(*example.splitlines()).is_clean
        assert [
            report for report in importing.reports if "created the workspace" not in report
        ] == []


def test_every_key_is_documented(importing: Importing) -> None:
    text = DOCS.read_text()
    columns = (SESSION_COLUMNS, TURN_COLUMNS, EVENT_COLUMNS, ATTACHMENT_COLUMNS)
    for name in {name for names in (*columns, *MARKER_COLUMNS.values()) for name in names}:
        assert f"`{KEYS.get(name, name)}`" in text, name


def test_imported_and_written_sessions_get_the_same_title_and_preview(
    importing: Importing, workspace: Workspace, user: User
) -> None:
    said = "## Beans\n\n**Plant** them in `May`"
    importing(opening(), turn(1, content=said))
    written = create_session(workspace, owner=user)
    append_turn(written, NewTurn(role="user", content=said))
    written.refresh_from_db()
    assert (imported().title, imported().preview) == (written.title, written.preview)
