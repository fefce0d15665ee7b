"""Runs of the retention worker: expiry, policies, holds, grace periods, purges and receipts."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.blobs import has_blob
from conversations.archive.messages import accept_message
from conversations.archive.purge import PurgeRequest, contents_of, plan_purge, purge
from conversations.archive.sessions import archive_session, create_session, get_session
from conversations.domain import audit
from conversations.domain.errors import Conflict, NotFound, Rejected
from conversations.domain.text import load_json
from conversations.features.retention.service import (
    call_off_purge,
    call_off_unwanted,
    change_policies,
    order_purge,
    place_hold,
    release_hold,
    verify_receipts,
)
from conversations.features.retention.worker import RetentionReport, run_retention
from conversations.models import (
    AuditEntry,
    PurgedContent,
    PurgeOrder,
    Receipt,
    Run,
    Session,
    Turn,
    Workspace,
)
from conversations.models.guards import guard_names, install_guards
from tests.archive.test_purge import count_all, stock
from tests.web.conftest import say

from .conftest import Configure, age_contents

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def acts() -> list[str]:
    return list(AuditEntry.objects.order_by("number").values_list("action", flat=True))


def uuids(report: RetentionReport, kind: str) -> list[str]:
    return [item["session"] for item in getattr(report, kind)]


def set_policies(workspace: Workspace, user: User, **values: Any) -> None:
    usual: dict[str, Any] = {
        "expire_after_hours": None,
        "retention_days": None,
        "members_may_purge": False,
    }
    origin = AuditOrigin(user=user)
    change_policies(workspace, origin=origin, **usual | values)
    call_off_unwanted(workspace, origin=origin)
    workspace.refresh_from_db()


@contextmanager
def during_first(verb: str, model: type[Model], work: Callable[[], Any]) -> Iterator[None]:
    """Call ``work`` right before the first such statement, as if another process did it."""
    waiting = [work]

    def execute(call: Any, sql: str, *args: Any) -> Any:
        if waiting and sql.startswith(verb) and model._meta.db_table in sql:
            waiting.pop()()
        return call(sql, *args)

    with connection.execute_wrapper(execute):
        yield


def test_a_session_is_expired_ordered_and_purged_when_due(workspace: Workspace, user: User) -> None:
    """Each step happens when it is due, and the report says what has happened."""
    set_policies(workspace, user, expire_after_hours=24, retention_days=60)
    start = timezone.now()
    session = create_session(workspace, owner=user, key="bead:1")
    stock(session, user)
    PurgeOrder.objects.all().delete()
    PurgedContent.objects.all().delete()  # rows that features have recorded
    age_contents(start)
    session = get_session(session.uuid)

    assert not any(run_retention(now=start + DAY - timedelta(minutes=1)).counts.values())

    expired = run_retention(now=start + DAY + timedelta(minutes=1))
    assert uuids(expired, "expired") == [str(session.uuid)]
    assert expired.expired[0]["key"] == "bead:1"
    assert not any(run_retention(now=start + 2 * DAY).counts.values())

    hold = place_hold(session, origin=AuditOrigin(user=user), reason="A dispute")
    held = run_retention(now=start + 61 * DAY)
    assert (uuids(held, "held"), held.ordered) == ([str(session.uuid)], [])
    release_hold(hold.pk, origin=AuditOrigin(user=user))

    ordered = run_retention(now=start + 62 * DAY)
    assert uuids(ordered, "ordered") == [str(session.uuid)]
    assert get_session(session.uuid).archived_at is not None
    assert not any(run_retention(now=start + 91 * DAY).counts.values())

    planned = run_retention(now=start + 93 * DAY, dry_run=True)
    plan, before = plan_purge(get_session(session.uuid)), count_all()
    assert planned.purged[0]["rows"] == plan.row_count
    purged = run_retention(now=start + 93 * DAY)
    assert uuids(purged, "purged") == uuids(planned, "purged") == [str(session.uuid)]
    after = count_all()
    assert {name: before[name] - after[name] for name in plan.counts} == plan.counts
    assert purged.contents.removed == len(plan.contents)
    assert not any(map(has_blob, plan.contents))
    assert not PurgedContent.objects.exists()
    with pytest.raises(NotFound):
        get_session(session.uuid)
    assert verify_receipts() == (1, [])

    receipt = Receipt.objects.get()
    assert (receipt.session, receipt.by_policy, receipt.key) == (session.uuid, True, "bead:1")
    assert receipt.ordered_by_name == "expire_sessions"
    assert receipt.reason == "Idle for 60 days."
    assert acts()[-3:] == [audit.RELEASE, audit.PURGE_ORDERED, audit.PURGED]


def test_calling_off_an_ordered_purge_restores_the_session(session: Session, user: User) -> None:
    now, origin = timezone.now(), AuditOrigin(user=user)
    say(session, "Plant the beans")
    order = order_purge(session, origin=origin, reason="Mine", now=now, grace=30 * DAY)
    assert order.due_at == now + 30 * DAY
    with pytest.raises(Conflict, match="already scheduled for deletion"):
        order_purge(session, origin=origin, reason="Mine", now=now, grace=30 * DAY)
    with pytest.raises(Conflict, match="archived"):
        accept_message(session, client_id="client-1", text="x", user_pk=None, max_queued=5)
    with pytest.raises(Conflict, match="Cancel the deletion"):
        archive_session(session, archived=False)
    call_off_purge(session, origin=origin, now=now)
    assert get_session(session.uuid).archived_at is None
    assert not any(run_retention(now=now + 31 * DAY).counts.values())
    with pytest.raises(Conflict, match="not scheduled for deletion"):
        call_off_purge(session, origin=origin, now=now)
    assert acts() == [audit.PURGE_ORDERED, audit.PURGE_CALLED_OFF]


def test_a_session_archived_before_the_order_stays_archived(session: Session, user: User) -> None:
    now, origin = timezone.now(), AuditOrigin(user=user)
    archive_session(session, archived=True)
    order_purge(session, origin=origin, reason="Mine", now=now, grace=DAY)
    call_off_purge(session, origin=origin, now=now)
    assert get_session(session.uuid).archived_at is not None


def test_a_purge_order_needs_a_reason_and_an_idle_session_without_hold(
    session: Session, user: User
) -> None:
    now, origin = timezone.now(), AuditOrigin(user=user)
    with pytest.raises(Rejected, match="Enter a reason"):
        order_purge(session, origin=origin, reason=" ", now=now, grace=DAY)
    accept_message(session, client_id="client-1", text="Hello", user_pk=user.pk, max_queued=5)
    with pytest.raises(Conflict, match="still running"):
        order_purge(session, origin=origin, reason="Mine", now=now, grace=DAY)
    place_hold(session, origin=origin, reason="A dispute")
    with pytest.raises(Conflict, match="on hold"):
        order_purge(session, origin=origin, reason="Mine", now=now, grace=DAY)
    assert not PurgeOrder.objects.exists()


def test_calling_off_a_policy_purge_counts_as_use_of_the_session(
    workspace: Workspace, session: Session, user: User
) -> None:
    set_policies(workspace, user, retention_days=10)
    later = timezone.now() + 11 * DAY
    assert uuids(run_retention(now=later), "ordered") == [str(session.uuid)]
    call_off_purge(get_session(session.uuid), origin=AuditOrigin(user=user), now=later)
    assert not any(run_retention(now=later + DAY).counts.values())
    assert uuids(run_retention(now=later + 10 * DAY), "ordered") == [str(session.uuid)]


@pytest.mark.parametrize("days", [None, 300])
def test_relaxing_a_policy_calls_off_the_orders_it_no_longer_covers(
    workspace: Workspace, session: Session, user: User, days: int | None
) -> None:
    now = timezone.now()
    old, mine = (create_session(workspace, owner=user) for _ in range(2))
    for one, idle in ((session, 10), (old, 400)):
        Session.objects.filter(pk=one.pk).update(last_active_at=now - idle * DAY)
    order_purge(mine, origin=AuditOrigin(user=user), reason="Mine", now=now)
    set_policies(workspace, user, retention_days=3)
    assert len(run_retention(now=now).ordered) == 2
    set_policies(workspace, user, retention_days=days)
    kept = get_session(session.uuid)
    assert (kept.archived_at, kept.last_active_at) == (None, now - 10 * DAY)
    purged = uuids(run_retention(now=now + 31 * DAY), "purged")
    assert set(purged) == {str(mine.uuid), *([str(old.uuid)] if days else [])}
    assert audit.PURGE_CALLED_OFF in acts()


def test_an_order_made_while_its_policy_is_removed_is_called_off(
    workspace: Workspace, session: Session, user: User
) -> None:
    now = timezone.now()
    set_policies(workspace, user, retention_days=3)
    taken_back = partial(set_policies, workspace, user, retention_days=None)
    with during_first("INSERT", PurgeOrder, taken_back):
        assert len(run_retention(now=now + 4 * DAY).ordered) == 1
    later = now + 40 * DAY
    for dry_run in (True, False):
        assert not run_retention(now=later, dry_run=dry_run).purged
    assert get_session(session.uuid).archived_at is None
    assert not PurgeOrder.objects.exists()


def test_a_session_with_an_open_run_is_kept_and_reported_as_busy(
    workspace: Workspace, session: Session, user: User
) -> None:
    set_policies(workspace, user, retention_days=1)
    accept_message(session, client_id="client-1", text="Hi", user_pk=None, max_queued=5, owner="x")
    later = timezone.now() + 40 * DAY
    for state in ("running", "waiting_approval", "queued"):
        Run.objects.update(state=state)
        for dry_run in (True, False):
            report = run_retention(now=later, dry_run=dry_run)
            assert (uuids(report, "busy"), report.ordered) == ([str(session.uuid)], []), state
    Run.objects.update(state="completed")
    report = run_retention(now=later)
    assert (report.busy, uuids(report, "ordered")) == ([], [str(session.uuid)])


def test_a_hold_placed_after_the_order_stops_the_purge(session: Session, user: User) -> None:
    now, origin = timezone.now(), AuditOrigin(user=user)
    order_purge(session, origin=origin, reason="Mine", now=now, grace=DAY)
    hold = place_hold(session, origin=origin, reason="A dispute")
    report = run_retention(now=now + 2 * DAY)
    assert (uuids(report, "held"), report.purged) == ([str(session.uuid)], [])
    release_hold(hold.pk, origin=origin)
    assert uuids(run_retention(now=now + 2 * DAY), "purged") == [str(session.uuid)]


def test_a_purge_called_off_during_the_run_is_reported_as_failed(
    workspace: Workspace, session: Session, user: User
) -> None:
    """Due sessions are read in batches and purged one by one.

    A failure is reported, and the other sessions are still purged.
    """
    other, third = (create_session(workspace, owner=user) for _ in range(2))
    now, origin = timezone.now(), AuditOrigin(user=user)
    for each in (session, other, third):
        order_purge(each, origin=origin, reason="Mine", now=now, grace=DAY)
    with during_first("INSERT", Receipt, lambda: call_off_purge(other, origin=origin, now=now)):
        report = run_retention(now=now + 2 * DAY)
    assert uuids(report, "purged") == [str(session.uuid), str(third.uuid)]
    assert uuids(report, "failed") == [str(other.uuid)]
    assert "cancelled in the meantime" in report.failed[0]["reason"]
    assert get_session(other.uuid).archived_at is None


def test_a_session_purged_by_another_host_meanwhile_is_skipped(
    workspace: Workspace, session: Session, user: User
) -> None:
    second, third = (create_session(workspace, owner=user) for _ in range(2))
    now, origin = timezone.now(), AuditOrigin(user=user)
    for each in (session, second, third):
        order_purge(each, origin=origin, reason="Mine", now=now, grace=DAY)

    def work_there() -> None:
        purge(second, order=PurgeRequest(reason="Mine"), origin=origin, now=now)

    with during_first("INSERT", Receipt, work_there):
        report = run_retention(now=now + 2 * DAY)
    assert uuids(report, "purged") == [str(session.uuid), str(third.uuid)]
    assert report.failed == []


def test_a_session_that_is_used_during_the_run_is_not_ordered(
    workspace: Workspace, session: Session, user: User
) -> None:
    """Idle sessions are read in batches, and their purges are ordered one by one."""
    other = create_session(workspace, owner=user)
    set_policies(workspace, user, retention_days=10)
    later = timezone.now() + 11 * DAY

    def use_the_other() -> None:
        Session.objects.filter(pk=other.pk).update(last_active_at=later)

    with during_first("INSERT", PurgeOrder, use_the_other):
        report = run_retention(now=later)
    assert uuids(report, "ordered") == [str(session.uuid)]
    assert "used in the meantime" in report.failed[0]["reason"]
    assert get_session(other.uuid).archived_at is None
    assert not any(run_retention(now=later).counts.values())


def test_a_dry_run_changes_nothing_and_reports_the_same_counts(
    workspace: Workspace, session: Session, user: User, configure: Configure
) -> None:
    configure(purge_grace_days=0)
    set_policies(workspace, user, retention_days=1)
    Session.objects.update(expires_at=timezone.now())
    before, later = count_all(), timezone.now() + 2 * DAY
    planned = run_retention(now=later, dry_run=True)
    assert count_all() == before
    done = run_retention(now=later)
    assert planned.counts == done.counts
    kept = {"held": 0, "busy": 0, "failed": 0}
    assert planned.counts == {"expired": 1, "ordered": 1, "purged": 1} | kept
    counts = load_json(Receipt.objects.get().counts)
    assert planned.purged[0]["rows"] == sum(counts.values())


def test_shared_contents_stay_and_recently_used_ones_wait(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    for each in (session, other):
        stock(each, user)
    PurgeOrder.objects.all().delete()
    PurgedContent.objects.all().delete()  # rows that features have recorded
    now = timezone.now()
    own = contents_of(session.pk) - contents_of(other.pk)
    order_purge(session, origin=AuditOrigin(user=user), reason="Mine", now=now, grace=timedelta(0))
    assert len(own) == 1
    age_contents(now)
    soon = run_retention(now=now)
    assert (soon.contents.removed, soon.contents.waiting) == (0, 1)
    assert soon.contents.shared == len(contents_of(other.pk)) - 1
    later = run_retention(now=now + timedelta(minutes=61))
    assert later.contents.removed == 1
    assert not any(map(has_blob, own))
    assert all(map(has_blob, contents_of(other.pk)))
    assert not PurgedContent.objects.exists()


def test_contents_of_a_session_purged_during_a_removal_are_removed(
    workspace: Workspace, session: Session, user: User
) -> None:
    other = create_session(workspace, owner=user)
    for each in (session, other):
        stock(each, user)
    PurgeOrder.objects.all().delete()
    PurgedContent.objects.all().delete()  # rows that features have recorded
    now, order, origin = timezone.now(), PurgeRequest(reason="Mine"), AuditOrigin(user=user)
    contents = contents_of(session.pk) | contents_of(other.pk)
    age_contents(now - DAY)
    purge(session, order=order, origin=origin, now=now)

    def work() -> None:
        purge(other, order=order, origin=origin, now=now - timedelta(seconds=1))

    with during_first("DELETE", PurgedContent, work):
        run_retention(now=now)
    run_retention(now=now)
    assert not any(map(has_blob, contents))
    assert not PurgedContent.objects.exists()


def test_policy_changes_are_entered_in_the_audit_log(workspace: Workspace, user: User) -> None:
    set_policies(workspace, user, retention_days=30)
    set_policies(workspace, user, retention_days=30)
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.workspace) == (audit.RETENTION, "garden")
    assert load_json(entry.metadata) == {
        "before": {"retention_days": None},
        "after": {"retention_days": 30},
    }


# Receipts


@pytest.fixture
def receipt(session: Session, user: User) -> Receipt:
    say(session, "Plant the beans", "In May")
    order = PurgeRequest(reason="x", by=user)
    return purge(session, order=order, origin=AuditOrigin(user=user), now=timezone.now())


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE conversations_receipt SET reason = 'other'", "differs from what was written"),
        ("UPDATE conversations_receipt SET uuid = '{other}'", "differs from what was written"),
        ("DELETE FROM conversations_receipt", "is missing"),
    ],
)
def test_a_receipt_that_was_changed_past_the_guards_is_reported(
    receipt: Receipt, statement: str, problem: str
) -> None:
    with connection.cursor() as cursor:
        for name in guard_names("conversations_receipt", connection.vendor):
            on_table = " ON conversations_receipt" if connection.vendor == "postgresql" else ""
            cursor.execute(f"DROP TRIGGER {name}{on_table}")
        cursor.execute(statement.format(other="0" * 32))
    install_guards()
    _, problems = verify_receipts()
    assert problem in problems[0]


# Commands


def run_command(name: str, *args: str) -> str:
    out = io.StringIO()
    call_command(name, *args, stdout=out)
    return out.getvalue()


def test_expire_sessions_reports_as_text_and_as_json(session: Session, user: User) -> None:
    Session.objects.update(expires_at=timezone.now() - DAY, key="bead:1")
    planned = load_json(run_command("expire_sessions", "--dry-run", "--json"))
    assert planned["dry_run"] is True
    assert planned["expired"][0]["session"] == str(session.uuid)
    text = run_command("expire_sessions")
    assert text.startswith(f"expired  {session.uuid} garden expires_at=")
    assert "key=bead:1" in text
    assert "1 expired, 0 ordered, 0 purged, 0 held, 0 busy, 0 failed" in text
    assert load_json(run_command("expire_sessions", "--json"))["expired"] == []


def test_commands_preview_order_and_call_off_a_purge(session: Session) -> None:
    say(session, "Plant the beans")
    uuid = str(session.uuid)
    assert "1 turns" in run_command("purge_session", uuid, "--reason", "x", "--dry-run")
    assert not PurgeOrder.objects.exists()
    assert "it will be purged on" in run_command("purge_session", uuid, "--reason", "x")
    with pytest.raises(CommandError, match="already scheduled for deletion"):
        run_command("purge_session", uuid, "--reason", "x")
    assert "cancelled" in run_command("restore_session", uuid)
    assert get_session(session.uuid).archived_at is None


def test_an_immediate_purge_needs_confirmation_and_leaves_a_receipt(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(session, "Plant the beans")
    uuid = str(session.uuid)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CommandError, match="Confirm with --yes"):
        run_command("purge_session", uuid, "--reason", "x", "--now")
    text = run_command("purge_session", uuid, "--reason", "They asked", "--now", "--yes")
    receipt = Receipt.objects.get()
    assert f"receipt {receipt.uuid}" in text
    assert (receipt.ordered_by_name, receipt.reason) == ("purge_session", "They asked")
    assert not Turn.objects.exists()
    assert "1 receipts" in run_command("verify_archive")
    with pytest.raises(CommandError, match="This session does not exist") as refused:
        run_command("restore_session", uuid)
    assert refused.value.returncode == 2


def test_a_purge_needs_a_session_and_a_reason(session: Session) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    for uuid, reason, said in (
        (unknown, "x", "This session does not exist"),
        (str(session.uuid), " ", "Enter a reason"),
    ):
        with pytest.raises(CommandError, match=said):
            run_command("purge_session", uuid, "--reason", reason)
