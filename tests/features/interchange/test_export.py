"""Exporting: an import restores the session exactly, and Markdown is readable."""

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as moment
from hypothesis import given
from hypothesis import strategies as st

from conversations.archive.append import NewEvent, append, walk_rows
from conversations.archive.audit import AuditOrigin
from conversations.archive.branches import use_branch
from conversations.archive.purge import PurgeRequest, purge, purged_tables
from conversations.archive.rewinds import append_rewind
from conversations.archive.rights import is_for_members, quotable_sessions
from conversations.archive.session_records import SessionFilter
from conversations.archive.sessions import (
    begin_anew,
    create_session,
    get_or_create_by_key,
    get_session,
    release_expired_key,
)
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.archive.workspaces import create_workspace
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.events import AssistantText, Info, UserMessage
from conversations.domain.text import dump_json, storable
from conversations.domain.turns import NewTurn
from conversations.features.interchange.export import (
    FORMATS,
    choose_sessions,
    fenced,
    own_session_text,
    session_lines,
    session_markdown,
)
from conversations.features.interchange.import_rows import (
    EVENTS,
    TURNS,
    ImportedChain,
    ImportedRowSource,
    store_rows,
)
from conversations.features.interchange.import_sessions import ImportCounts, import_file
from conversations.features.interchange.import_targets import ImportTarget
from conversations.models import ChatEvent, JournalGap, Rewind, Session, Turn, Workspace
from tests.conftest import purge_everything
from tests.properties import costly

pytestmark = pytest.mark.django_db


def exported(session: Session) -> list[str]:
    return list(session_lines(get_session(session.uuid)))


class PurgesAnother(io.StringIO):
    """A file that purges a session while its first piece is written."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.waiting = [session]

    def write(self, text: str) -> int:
        for session in self.waiting:
            self.waiting = []
            purge(
                session,
                order=PurgeRequest(reason="Tidying"),
                origin=AuditOrigin(),
                now=moment.now(),
            )
        return super().write(text)


def test_a_session_purged_during_an_export_is_left_out(workspace: Workspace, user: User) -> None:
    first, second, third = (create_session(workspace, owner=user) for _ in range(3))
    file = PurgesAnother(second)
    call_command("export_sessions", "--all", stdout=file)
    assert [str(each.uuid) in file.getvalue() for each in (first, second, third)] == [
        True,
        False,
        True,
    ]


def test_own_data_leaves_out_a_session_purged_meanwhile(workspace: Workspace, user: User) -> None:
    _, second, third = (create_session(workspace, owner=user) for _ in range(3))
    pieces = own_session_text(user)
    next(pieces)
    purge(second, order=PurgeRequest(reason="Tidying"), origin=AuditOrigin(), now=moment.now())
    [left] = pieces
    assert json.loads(left)["uuid"] == str(third.uuid)


def forget_sessions() -> None:
    """Delete all sessions and their rows."""
    purge_everything()
    for fold in purged_tables().folded.values():
        for pk in Session.objects.values_list("pk", flat=True):
            fold(pk)
    JournalGap.objects.all().delete()
    Session.objects.update(parent=None)
    Session.objects.all().delete()


def restore(lines: list[str], user: User) -> tuple[ImportCounts, list[str]]:
    counts, reports = ImportCounts(), list[str]()
    import_file(
        io.BytesIO("\n".join(lines).encode()),
        target=ImportTarget(default_owner=user, root=Path("/nonexistent")),
        counts=counts,
        report=lambda line, text: reports.append(f"{line}: {text}"),
    )
    return counts, reports


def say(session: Session, text: str, *, role: str = "user", shown: bool = True) -> int:
    payload = UserMessage(text=text) if role == "user" else AssistantText(text=text)
    return append(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role=role, content=text)],
        events=[NewEvent(payload=payload, new=0)] if shown else [],
    ).turns[0]


# Export and import


_text = st.text(st.characters(), max_size=30).map(storable)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
_odd_json_text = st.sampled_from(
    ['{"a": 1}', '{"a":1,"a":2}', "[]", "[1]", "{", "", "null", "NaN", '{"a":NaN}', "1e5", '"{}"']
)
_json_text = (
    _json.map(dump_json)
    | _odd_json_text
    | _text
    | st.lists(st.dictionaries(_text, _json, max_size=3), max_size=3).map(dump_json)
)
_moments = st.datetimes(
    min_value=datetime(1970, 1, 2),  # noqa: DTZ001
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
_turns = st.builds(
    NewTurn,
    role=st.sampled_from(["user", "assistant", "tool", "system"]),
    content=_text,
    blocks=st.none() | _json_text,
    tool_calls=st.none() | _json_text,
    tool_call_id=st.none() | _text,
    tool_name=st.none() | _text,
    token_count=st.integers(0, 2**62),
    stop_reason=_text,
    complete=st.booleans(),
    metadata=_json_text,
    created_at=_moments,
)
_events = st.tuples(
    st.sampled_from(["user_message", "assistant_text", "info", "hologram"]),
    _json_text | _text.map(lambda text: dump_json({"v": 1, "text": text})),
    st.none() | st.integers(1, 6),
    _moments,
)


KEY = "cli:report"


def expired_under_key(workspace: Workspace, user: User) -> Session:
    first = get_or_create_by_key(workspace, key=KEY, owner=user)
    say(first, "Plant the beans.")
    now = moment.now()
    Session.objects.filter(pk=first.pk).update(expires_at=now)
    assert release_expired_key(first.uuid, now=now)
    return first


def test_an_import_restores_the_former_key_of_a_session(workspace: Workspace, user: User) -> None:
    first = expired_under_key(workspace, user)
    lines = exported(first)
    second = get_or_create_by_key(workspace, key=KEY, owner=user)
    lines += exported(second)
    columns = ("channel", "key", "former_key", "expires_at", "expired_at")
    before = list(Session.objects.order_by("pk").values("uuid", *columns))
    forget_sessions()
    assert restore(lines, user)[0].is_clean
    assert list(Session.objects.order_by("pk").values("uuid", *columns)) == before
    came, again = get_session(first.uuid), get_session(second.uuid)
    assert not is_for_members(came.channel, came.key, came.former_key)
    assert list(quotable_sessions(again.pk, user.pk)) == [came]
    found = SessionFilter(workspaces=[workspace.pk], key=KEY).choose()
    assert list(found.order_by("pk")) == [came, again]


def test_the_former_key_continues_an_imported_expired_session(
    workspace: Workspace, user: User
) -> None:
    first = expired_under_key(workspace, user)
    lines = exported(first)
    forget_sessions()
    restore(lines, user)
    again = get_or_create_by_key(workspace, key=KEY, owner=user)
    assert again.parent == get_session(first.uuid)


def test_a_key_in_use_becomes_the_former_key_of_the_imported_session(
    workspace: Workspace, user: User
) -> None:
    """The imported session is not for members alone.

    A new session under the key continues the other session.
    """
    first = get_or_create_by_key(workspace, key=KEY, owner=user)
    say(first, "Plant the beans.")
    lines = exported(first)
    forget_sessions()
    other = get_or_create_by_key(workspace, key=KEY, owner=user)
    # The imported session was created later.
    Session.objects.filter(pk=other.pk).update(created_at=first.created_at - timedelta(days=1))
    restore(lines, user)
    came = get_session(first.uuid)
    assert (came.key, came.former_key) == (None, KEY)
    assert not is_for_members(came.channel, came.key, came.former_key)
    again = begin_anew(workspace, key=KEY, owner=user)
    assert again.parent == other
    Session.objects.filter(pk=again.pk).update(expires_at=moment.now())
    assert get_or_create_by_key(workspace, key=KEY, owner=user).parent == again


def test_a_complete_import_restores_the_floor_after_a_partial_one(
    workspace: Workspace, user: User
) -> None:
    session = create_session(workspace, owner=user)
    for number in range(8):
        say(session, f"Message {number}")
    Session.objects.update(floor_turn=6)
    lines = exported(session)
    forget_sessions()
    restore(lines[:4], user)
    assert get_session(session.uuid).floor_turn == 1
    restore(lines, user)
    assert get_session(session.uuid).floor_turn == 6


@given(
    turns=st.lists(_turns, max_size=5),
    events=st.lists(_events, max_size=5),
    metadata=_json_text,
    title=_text,
)
@costly
def test_export_and_import_give_the_same_digests(
    workspace: Workspace,
    user: User,
    turns: list[NewTurn],
    events: list[Any],
    metadata: str,
    title: str,
) -> None:
    session = create_session(workspace, owner=user, title=title)
    Session.objects.filter(pk=session.pk).update(metadata=metadata)
    imported_turns = ImportedChain(TURNS, session, file_metadata="{}")
    imported_turns.pending = [
        (ImportedRowSource(0), number, replace(turn, created_at=turn.created_at or _NOW))
        for number, turn in enumerate(turns, start=1)
    ]
    imported_events = ImportedChain(EVENTS, session, file_metadata="{}")
    imported_events.pending = [
        (
            ImportedRowSource(0),
            seq,
            ChatEvent(event_type=kind, payload=text, turn_number=turn, created_at=moment),
        )
        for seq, (kind, text, turn, moment) in enumerate(events, start=1)
    ]
    store_rows(
        session,
        turns=imported_turns,
        events=imported_events,
        moves_activity=True,
    )
    before = get_session(session.uuid)
    lines = exported(session)
    assert all("\n" not in line for line in lines)
    forget_sessions()
    _, reports = restore(lines, user)
    after = get_session(session.uuid)
    assert reports == []
    assert (after.turn_digest, after.event_digest) == (before.turn_digest, before.event_digest)
    assert verify_session(after).problem == ""
    assert exported(after) == lines
    again, _ = restore(lines, user)
    assert (again.turns_added, again.events_added, again.is_clean) == (0, 0, True)


_NOW = datetime(2026, 2, 28, tzinfo=UTC)


def a_lived_session(workspace: Workspace, user: User) -> Session:
    """Create a session with a gap, rewinds, an uncovered tail, a parent and all columns set."""
    parent = create_session(workspace, owner=user)
    session = create_session(
        workspace, owner=user, key="cli:default", channel="cli", title="Chosen", model="m-1"
    )
    say(session, "one")
    say(session, "bare", role="assistant", shown=False)
    append(session.pk, session_uuid=session.uuid, events=[NewEvent(payload=Info(text="notice"))])
    say(session, "two")
    say(session, "answer", role="assistant")
    append_rewind(
        get_session(session.uuid), from_turn=4, from_seq=4, reason="edit", actor_pk=user.pk
    )
    use_branch(get_session(session.uuid), turn=4, actor_pk=user.pk)
    say(session, "tail", role="assistant", shown=False)
    Session.objects.filter(pk=session.pk).update(
        parent=parent,
        fork_turn=1,
        floor_turn=3,
        system_prompt="Be brief.",
        input_tokens=5,
        output_tokens=6,
        cached_tokens=7,
        cost_microusd=8,
        pinned_at=_NOW,
        archived_at=_NOW,
        expires_at=_NOW,
    )
    return session


def test_coverage_rewinds_and_session_columns_are_restored(
    workspace: Workspace, user: User
) -> None:
    session = a_lived_session(workspace, user)
    lines = [line for found in choose_sessions() for line in session_lines(found)]
    page = read_page(get_session(session.uuid), limit=50, include_rewound=True)
    ignored = {"id", "workspace_id", "owner_id", "parent_id", "rewind_count"}
    columns = {f.attname for f in Session._meta.concrete_fields} - ignored
    before = Session.objects.values(*columns).get(pk=session.pk)
    forget_sessions()
    counts, reports = restore(lines, user)
    assert (reports, counts.sessions_added, counts.rewinds_added) == ([], 2, 2)
    restored = get_session(session.uuid)
    assert Session.objects.values(*columns).get(pk=restored.pk) == before
    assert restored.parent is not None
    assert restored.rewind_count == 2
    assert [(rewind.back_to, rewind.actor) for rewind in Rewind.objects.all()] == [
        (None, user),
        (0, user),
    ]
    assert list(JournalGap.objects.values_list("from_turn", "to_turn", "after_seq")) == [(2, 2, 1)]
    shown = read_page(restored, limit=50, include_rewound=True)
    assert [(row.cursor, row.html) for row in shown.rows] == [
        (row.cursor, row.html) for row in page.rows
    ]
    assert [line for found in choose_sessions() for line in session_lines(found)] == lines


def test_a_truncated_export_is_reported_and_completed_later(
    workspace: Workspace, user: User
) -> None:
    session = a_lived_session(workspace, user)
    lines = exported(session)
    forget_sessions()
    counts, reports = restore(lines[:7], user)
    assert counts.damaged == 1
    assert not counts.is_clean
    assert "some are missing or changed" in reports[0]
    counts, reports = restore(lines, user)
    assert counts.is_clean
    assert verify_session(get_session(session.uuid)).problem == ""
    assert get_session(session.uuid).journal_turn == 4
    assert list(JournalGap.objects.values_list("from_turn", "to_turn", "after_seq")) == [(2, 2, 1)]


def opening(workspace: Workspace) -> dict[str, Any]:
    uuid = str(uuid4())
    return {"type": "session", "uuid": uuid, "workspace": workspace.slug, "title": "Source"}


def a_turn(number: int) -> dict[str, Any]:
    return {"type": "turn", "number": number, "role": "user", "content": f"«{number}»"}


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (5, 6, 9, 10), (1, 2, 4, 5), (1, 4, 2, 3)])
def test_renumbered_turns_keep_their_archive_numbers_in_an_export(
    workspace: Workspace, user: User, numbers: tuple[int, ...]
) -> None:
    source = [opening(workspace)]
    source += [a_turn(number) for number in numbers]
    for number in numbers:
        event = {"type": "event", "seq": number, "event_type": "user_message", "turn": number}
        source.append(event | {"payload": {"v": 1, "text": f"«{number}»"}})
    original = [json.dumps(line) for line in source]
    restore(original, user)
    before = Session.objects.get(title="Source")
    lines = exported(before)
    for repeated in (lines, original, lines):
        counts, _ = restore(repeated, user)
        assert (counts.turns_unchanged, counts.events_unchanged, counts.is_clean) == (4, 4, True)
        assert exported(before) == lines
    forget_sessions()
    counts, reports = restore(lines, user)
    assert (reports, counts.turns_added, counts.events_added, counts.damaged) == ([], 4, 4, 0)
    after = get_session(before.uuid)
    assert (after.turn_digest, after.event_digest) == (before.turn_digest, before.event_digest)
    assert exported(after) == lines
    for repeated in (original, lines):
        counts, _ = restore(repeated, user)
        assert (counts.turns_unchanged, counts.events_unchanged, counts.is_clean) == (4, 4, True)


def test_a_damaged_export_of_renumbered_turns_is_completed_later(
    workspace: Workspace, user: User
) -> None:
    source = [opening(workspace)]
    source += [a_turn(number) for number in range(5)]
    restore([json.dumps(line) for line in source], user)
    lines = exported(Session.objects.get(title="Source"))
    forget_sessions()
    counts, _ = restore([*lines[:2], lines[2][:-9], *lines[3:]], user)
    assert (counts.turns_added, counts.skipped, counts.damaged) == (4, 1, 1)
    for added in (1, 0):
        counts, _ = restore(lines, user)
        assert (counts.turns_added, counts.conflicts) == (added, 0)
    restored = Session.objects.get(title="Source")
    assert verify_session(restored).problem == ""
    texts = Turn.objects.filter(session=restored).values_list("content", flat=True)
    assert sorted(texts) == [f"«{number}»" for number in range(5)]


def test_rows_written_during_an_export_are_not_in_it(
    workspace: Workspace, session: Session
) -> None:
    say(session, "one")
    lines = session_lines(session)
    head = json.loads(next(lines))
    say(session, "two")
    kinds = [json.loads(line)["type"] for line in lines]
    assert (head["turns"], head["events"]) == (1, 1)
    assert kinds == ["turn", "event"]


@pytest.mark.parametrize("name", [*FORMATS, "own data"])
def test_an_export_of_a_session_purged_meanwhile_breaks_off(
    session: Session, user: User, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.archive.append.FIRST_PAGE_ROWS", 1)
    monkeypatch.setattr("conversations.archive.append.MAX_PAGE_CHARS", 500)
    for number in range(5):
        say(session, str(number) * 500)
    found = get_session(session.uuid)
    pieces = own_session_text(user) if name == "own data" else FORMATS[name].write(found)
    read = [next(pieces)]
    forget_sessions()
    with pytest.raises(Conflict, match="permanently deleted"):
        read.extend(pieces)
    assert len(read) < 5
    assert not str(read[-1]).endswith("]}\n")


def test_a_session_is_read_in_pages(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conversations.archive.append.FIRST_PAGE_ROWS", 1)
    monkeypatch.setattr("conversations.archive.append.MAX_PAGE_CHARS", 500)
    for number in range(5):
        say(session, str(number))
    with CaptureQueriesContext(connection) as queries:
        lines = exported(session)
    assert len(lines) == 11
    assert all("OFFSET" not in query["sql"] for query in queries)


def test_a_workspace_or_one_session_or_all_can_be_chosen(
    workspace: Workspace, session: Session, user: User, tmp_path: Path
) -> None:
    other = create_session(create_workspace(root=tmp_path, name="Other", owner=user), owner=user)
    assert [s.pk for s in choose_sessions()] == [session.pk, other.pk]
    assert [s.pk for s in choose_sessions(workspace="other")] == [other.pk]
    assert [s.pk for s in choose_sessions(session=session.uuid)] == [session.pk]
    with pytest.raises(NotFound):
        choose_sessions(session=UUID(int=0))


# Markdown


def markdown(session: Session) -> str:
    return "".join(session_markdown(get_session(session.uuid)))


def test_markdown_has_a_heading_for_each_speaker(workspace: Workspace, user: User) -> None:
    session = create_session(workspace, owner=user, title="Roses & *thorns*")
    call = {"type": "tool_use", "id": "c", "name": "ls", "input": {"path": "."}}
    turns = [
        NewTurn(role="user", content="What is here?"),
        NewTurn(
            role="assistant",
            content="Let me look.",
            blocks=dump_json([{"type": "thinking", "thinking": "Hm."}, call]),
        ),
        NewTurn(role="tool", content="\x1b[1ma\x1b[0m\nb", tool_call_id="c", tool_name="ls"),
        NewTurn(role="assistant", content="Two files and", complete=False),
        NewTurn(role="system", content="hint", metadata="{broken"),
        NewTurn(role="assistant", content="x", blocks="{broken", tool_calls="{broken"),
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns, now=_NOW)
    text = markdown(session)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        r"# Roses & \*thorns\*",
        "## You",
        "## Assistant",
        "## Tool: ls",
        "## Assistant",
        "## System",
        "## Assistant",
    ]
    assert "*turn 4, 2026-02-28 00:00 UTC, cut off*" in text
    assert 'Tool call `ls`:\n\n```json\n{\n  "path": "."\n}\n```' in text
    assert "```\na\nb\n```" in text
    assert "Thinking:\n\n```\nHm.\n```" in text


def test_markdown_marks_replaced_turns(session: Session) -> None:
    say(session, "old")
    append_rewind(get_session(session.uuid), from_turn=1, from_seq=1, reason="edit", actor_pk=None)
    say(session, "new")
    marks = [line for line in markdown(session).splitlines() if line.startswith("*turn")]
    assert [mark.endswith("replaced*") for mark in marks] == [True, False]


@given(text=st.text(st.sampled_from("`\na ~"), max_size=40))
def test_a_fence_is_longer_than_any_fence_inside(text: str) -> None:
    lines = fenced(text).split("\n")
    fence = lines[0]
    assert lines[-1] == fence
    assert not any(line.strip().startswith(fence) for line in lines[1:-1])


# The command


@pytest.fixture
def full(session: Session) -> Iterator[Session]:
    say(session, "«hello»")
    return session


def test_the_command_writes_to_standard_output(full: Session) -> None:
    out = io.StringIO()
    call_command("export_sessions", all=True, stdout=out)
    assert [json.loads(line)["type"] for line in out.getvalue().splitlines()] == [
        "session",
        "turn",
        "event",
    ]


def test_the_command_writes_a_file_that_only_its_owner_can_read(
    full: Session, tmp_path: Path
) -> None:
    path = tmp_path / "out.md"
    call_command("export_sessions", session=full.uuid, format="markdown", output=str(path))
    assert "«hello»" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob(".*")) == []


def test_a_failed_export_leaves_the_old_file(
    full: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")

    def breaking(_: Session) -> Iterator[str]:
        yield "{"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("conversations.features.interchange.export.session_lines", breaking)
    with pytest.raises(CommandError, match="No space left"):
        call_command("export_sessions", all=True, output=str(path))
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir() if child.is_file()] == ["out.jsonl"]


def test_the_command_fails_if_its_session_is_purged_meanwhile(
    full: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(*asked: Any, **more: Any) -> Iterator[dict[str, Any]]:
        yield from walk_rows(*asked, **more)
        forget_sessions()

    monkeypatch.setattr("conversations.features.interchange.export.walk_rows", walk)
    with pytest.raises(CommandError, match="permanently deleted") as ended:
        call_command("export_sessions", session=full.uuid, output=str(tmp_path / "out.jsonl"))
    assert ended.value.returncode == 1
    assert [child for child in tmp_path.iterdir() if child.is_file()] == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"all": True, "workspace": "garden"},
        {"session": "no-uuid"},
        {"session": str(UUID(int=0))},
        {"workspace": "nowhere"},
        {"all": True, "format": "pdf"},
        {"all": True, "output": "/nonexistent/x"},
    ],
)
def test_the_command_refuses_invalid_options(full: Session, options: dict[str, Any]) -> None:
    words = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    with pytest.raises(CommandError) as refused:
        call_command("export_sessions", *words)
    if "session" in options or "workspace" in options:
        assert refused.value.returncode in (1, 2)


def test_a_closed_pipe_ends_the_export_without_an_error(
    full: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        os.close(reading)
        call_command("export_sessions", all=True, stdout=out)
        out.write("what the interpreter flushes at its end")
        out.flush()
