"""The audit log: numbered, chained and append-only in the database."""

import threading

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from conversations.archive.audit import (
    AuditOrigin,
    readings_of,
    record,
    session_event,
    verify_audit,
)
from conversations.domain.audit import FLAG, TRANSCRIPT
from conversations.models import AuditEntry, AuditHead, Session
from conversations.models.guards import guard_names, install_guards

pytestmark = pytest.mark.django_db


def read(session: Session, user: User, *, times: int = 1) -> None:
    origin = AuditOrigin(
        user=user, place="/s/", address="::1", agent="Browser", reason="a question"
    )
    for _ in range(times):
        record(origin, session_event(session, TRANSCRIPT))


def test_entry_records_reader_session_origin_and_reason(session: Session, user: User) -> None:
    read(session, user)
    [entry] = readings_of(session.uuid)
    assert (entry.number, entry.actor, entry.actor_name) == (1, user, "ann")
    assert (entry.workspace, entry.place) == (session.workspace.slug, "/s/")
    assert (entry.address, entry.agent, entry.reason) == ("::1", "Browser", "a question")


def test_decisions_are_not_counted_as_readings(session: Session, user: User) -> None:
    record(AuditOrigin(user=user), session_event(session, FLAG, turn=3))
    assert not readings_of(session.uuid)
    assert AuditEntry.objects.get().metadata == '{"turn":3}'


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "UPDATE conversations_auditentry SET reason = 'x' WHERE number = 2",
            "2 differs from what",
        ),
        ("DELETE FROM conversations_auditentry WHERE number = 2", "2 is missing"),
        ("DELETE FROM conversations_auditentry WHERE number = 3", "3 is missing"),
        ("UPDATE conversations_auditentry SET number = 9 WHERE number = 1", "1 is missing"),
        ("UPDATE conversations_audithead SET digest = 'x'", "end of the audit log"),
    ],
)
def test_verification_finds_a_change_made_without_the_guards(
    session: Session, user: User, statement: str, problem: str
) -> None:
    read(session, user, times=3)
    assert verify_audit() == (3, "")
    table = AuditEntry._meta.db_table
    for name in guard_names(table, connection.vendor):
        on_table = f" ON {table}" if connection.vendor == "postgresql" else ""
        run(f"DROP TRIGGER {name}{on_table}")
    run(statement)
    install_guards()
    assert problem in verify_audit()[1]


def test_verify_archive_command_checks_the_audit_log(
    session: Session, user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    read(session, user, times=2)
    call_command("verify_archive")
    assert capsys.readouterr().out.splitlines()[-1] == "2 audit entries: all intact"
    AuditHead.objects.update(number=3)
    with pytest.raises(SystemExit):
        call_command("verify_archive")
    assert capsys.readouterr().out.splitlines()[-1] == "audit entry 3 is missing"


@pytest.mark.django_db(transaction=True)
def test_concurrent_readers_keep_one_chain(session: Session, user: User) -> None:
    def work() -> None:
        try:
            read(session, user, times=10)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verify_audit() == (40, "")


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
