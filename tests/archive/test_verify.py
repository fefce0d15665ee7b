"""Verifying the archive: changes that bypass the product are found."""

from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from conversations.agent.window.manifest import find_damaged_calls
from conversations.agent.window.window import MANIFEST_VERSION
from conversations.archive.append import NewEvent, append
from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import create_session, get_session
from conversations.archive.verify import verify_session, verify_sessions
from conversations.domain.events import UserMessage
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import JournalGap, ModelCall, Run, Session, Turn, Workspace
from conversations.models.guards import GUARDED, guard_names, install_guards, missing_guards

pytestmark = pytest.mark.django_db


@pytest.fixture
def full(session: Session) -> Session:
    """A session of five turns, four of them with events, with a gap and a rewind."""
    for number in range(1, 6):
        append(
            session.pk,
            session_uuid=session.uuid,
            turns=[NewTurn(role="user", content=f"turn {number}")],
            events=[NewEvent(payload=UserMessage(text=f"turn {number}"), new=0)]
            if number != 3
            else [],
        )
    append_rewind(get_session(session.uuid), from_turn=5, from_seq=4, reason="undo", actor_pk=None)
    return get_session(session.uuid)


def test_session_purged_during_verification_is_not_damage(
    workspace: Workspace, full: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    walk = verify_sessions()
    assert next(walk).session == full.uuid
    purge(other, order=PurgeRequest(reason="Tidying"), origin=AuditOrigin(), now=timezone.now())
    assert list(walk) == []


def test_model_call_purged_during_verification_is_not_damage(
    workspace: Workspace, user: User
) -> None:
    sessions = [create_session(workspace, owner=user) for _ in range(2)]
    for session in sessions:
        of = {"session": session, "created_at": timezone.now()}
        run = Run.objects.create(**of, client_id="c", state="completed")
        manifest = dump_json({"v": MANIFEST_VERSION})
        ModelCall.objects.create(**of, run=run, ordinal=0, manifest=manifest)
    walk = find_damaged_calls(None)
    assert next(walk)[0] == sessions[0].uuid
    purge(
        sessions[1], order=PurgeRequest(reason="Tidying"), origin=AuditOrigin(), now=timezone.now()
    )
    assert list(walk) == []


def tamper(sql: str) -> None:
    """Change the database as another program would, without the guards."""
    with connection.cursor() as cursor:
        for table in GUARDED:
            for name in guard_names(table, connection.vendor):
                on_table = f" ON {table}" if connection.vendor == "postgresql" else ""
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}{on_table}")
        cursor.execute(sql)
    install_guards()


def problem(session: Session) -> str:
    return verify_session(get_session(session.uuid)).problem


def test_untouched_session_is_intact(full: Session) -> None:
    verified = verify_session(full)
    assert (verified.turns, verified.events, verified.problem) == (5, 4, "")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        (
            "UPDATE conversations_turn SET content = 'x' WHERE number = 2",
            "turn 2 differs from what",
        ),
        (
            "UPDATE conversations_turn SET role = 'tool' WHERE number = 4",
            "turn 4 differs from what",
        ),
        (
            "UPDATE conversations_turn SET metadata = '' WHERE number = 1",
            "turn 1 differs from what",
        ),
        ("DELETE FROM conversations_turn WHERE number = 3", "turn 3 is missing"),
        ("DELETE FROM conversations_turn WHERE number = 5", "turn 5 is missing"),
        (
            "UPDATE conversations_chatevent SET payload = '{}' WHERE seq = 3",
            "event 3 differs from what",
        ),
        ("DELETE FROM conversations_chatevent WHERE seq = 1", "event 1 is missing"),
        ("UPDATE conversations_session SET next_turn = 5", "does not end at turn 4"),
        ("UPDATE conversations_session SET next_seq = 9", "event 5 is missing"),
        ("UPDATE conversations_session SET turn_digest = ''", "does not end at turn 5"),
        ("DELETE FROM conversations_rewind", "there are 0 rewinds, but the session counts 1"),
        ("UPDATE conversations_rewind SET to_turn = 99", "rewind of turns 5 to 99"),
        ("UPDATE conversations_session SET journal_turn = 6", "journal covers turn 6"),
        ("UPDATE conversations_journalgap SET after_seq = 99", "gap of turns 3 to 3"),
        ("UPDATE conversations_journalgap SET from_turn = 0", "gap of turns 0 to 3"),
    ],
)
def test_damage_is_named(full: Session, sql: str, found: str) -> None:
    tamper(sql)
    assert found in problem(full)


def test_unreadable_value_is_damage(full: Session) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL does not store such a value")
    tamper("UPDATE conversations_turn SET created_at = 'never' WHERE number = 2")
    assert "a stored turn cannot be read" in problem(full)


def test_row_that_the_session_does_not_count_is_damage(full: Session) -> None:
    Session.objects.filter(pk=full.pk).update(
        next_turn=5, turn_digest=Turn.objects.get(session=full, number=4).digest
    )
    assert "number 5 is not counted by the session" in problem(full)


def test_overlapping_gaps_are_damage(full: Session) -> None:
    JournalGap.objects.create(session=full, from_turn=2, to_turn=4, after_seq=1)
    assert "does not match" in problem(full)


def test_every_session_is_verified(full: Session, workspace: Workspace) -> None:
    other = create_session(workspace, owner=full.owner)
    assert [v.session for v in verify_sessions()] == [full.uuid, other.uuid]
    assert [v.session for v in verify_sessions(session=other.uuid)] == [other.uuid]


# The command


def test_command_reports_only_totals_of_intact_sessions(
    full: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("verify_archive")
    assert capsys.readouterr().out == "1 sessions, 5 turns, 4 events: all intact\n"


def test_command_names_the_first_wrong_row_of_each_session(
    full: Session, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    create_session(workspace, owner=full.owner)
    tamper("UPDATE conversations_turn SET content = 'x' WHERE number > 2")
    with pytest.raises(SystemExit) as ended:
        call_command("verify_archive")
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{full.uuid}: turn 3 differs from what was written",
        "2 sessions, 3 turns, 4 events: 1 damaged",
    ]


def test_command_reports_a_missing_guard(full: Session, capsys: pytest.CaptureFixture[str]) -> None:
    name = guard_names("conversations_turn", connection.vendor)[0]
    with connection.cursor() as cursor:
        on_table = " ON conversations_turn" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER {name}{on_table}")
    with pytest.raises(SystemExit) as ended:
        call_command("verify_archive")
    install_guards()
    assert ended.value.code == 1
    assert f"the trigger {name} is missing" in capsys.readouterr().out
    assert missing_guards(connection) == []


def test_command_reports_a_damaged_file(
    full: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "conversations.management.commands.verify_archive.check_database_file"
    monkeypatch.setattr(where, lambda: "page 7 is torn")
    with pytest.raises(SystemExit):
        call_command("verify_archive")
    assert "the database file is damaged: page 7 is torn" in capsys.readouterr().out
    call_command("verify_archive", session=full.uuid)


@pytest.mark.parametrize("uuid", ["no-uuid", str(UUID(int=0))])
def test_command_refuses_an_unknown_session(full: Session, uuid: str) -> None:
    with pytest.raises(CommandError):
        call_command("verify_archive", f"--session={uuid}")


def test_command_can_verify_one_session(
    full: Session, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    create_session(workspace, owner=full.owner, uuid=uuid4())
    call_command("verify_archive", session=full.uuid)
    assert capsys.readouterr().out.startswith("1 sessions, 5 turns")
