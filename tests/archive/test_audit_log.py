"""Reading the audit log: filters, order and cost."""

from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.audit import AuditEvent, AuditOrigin, record
from conversations.domain.audit import EXPORT, NOTE, TRANSCRIPT
from conversations.models import AuditEntry, Session
from conversations.review import audit_log
from conversations.review.audit_log import AuditLogFilter, AuditLogPage, read_log_page, walk_log

pytestmark = pytest.mark.django_db

DAY = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def log(session: Session, user: User, other_user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record thirty entries, one an hour.

    The entries are of two people, three actions and two workspaces. Entries with an even
    number belong to a session.
    """
    for place in range(30):
        moment = DAY + timedelta(hours=place)
        monkeypatch.setattr("django.utils.timezone.now", lambda moment=moment: moment)
        note = AuditEvent(
            action=(TRANSCRIPT, EXPORT, NOTE)[place % 3],
            session=session.uuid if place % 2 else None,
            workspace="garden" if place < 20 else "orchard",
        )
        record(AuditOrigin(user=user if place % 5 else other_user), note)


def all_pages(wanted: AuditLogFilter, *, limit: int) -> list[AuditLogPage]:
    pages = [read_log_page(wanted, limit=limit)]
    while (cursor := pages[-1].cursor) is not None:
        pages.append(read_log_page(wanted, before=cursor, limit=limit))
    return pages


def numbers(pages: list[AuditLogPage]) -> list[int]:
    return [entry.number for page in pages for entry in page.entries]


@pytest.fixture
def filters(user: User, session: Session) -> dict[str, object]:
    return {
        "person": user,
        "action": EXPORT,
        "session": session.uuid,
        "workspace": "garden",
        "after": DAY + timedelta(hours=4),
        "before": DAY + timedelta(hours=26),
    }


KINDS = ("person", "action", "session", "workspace", "after", "before")


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("looked_through", [3, 2000])
def test_combined_filters_find_the_entries_that_match_all(
    looked_through: int, filters: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result does not depend on how many entries a page scans."""
    monkeypatch.setattr(audit_log, "MAX_SCANNED_ENTRIES", looked_through)
    log = list(AuditEntry.objects.select_related("actor"))
    limit = 2 if looked_through == 3 else 20
    for count in (0, 1, 2, len(KINDS)):  # each filter only adds a condition
        for used in combinations(KINDS, count):
            wanted = AuditLogFilter(**{kind: filters[kind] for kind in used})  # type: ignore[arg-type]
            expected = [entry.number for entry in log if fits(entry, wanted)]
            assert numbers(all_pages(wanted, limit=limit)) == expected, used
            assert [entry.number for entry in walk_log(wanted)] == expected[::-1], used


def fits(entry: AuditEntry, wanted: AuditLogFilter) -> bool:
    return (
        wanted.person in (None, entry.actor)
        and wanted.action in ("", entry.action)
        and wanted.session in (None, entry.session)
        and wanted.workspace in ("", entry.workspace)
        and (wanted.after is None or entry.at >= wanted.after)
        and (wanted.before is None or entry.at < wanted.before)
    )


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("action", "found"), [("readings", 20), ("decisions", 10)])
def test_log_can_be_filtered_by_readings_and_decisions(action: str, found: int) -> None:
    assert len(numbers(all_pages(AuditLogFilter(action=action), limit=7))) == found


@pytest.mark.usefixtures("log")
def test_date_after_the_last_entry_is_a_valid_limit() -> None:
    assert numbers(all_pages(AuditLogFilter(after=DAY + timedelta(days=9)), limit=7)) == []
    assert len(numbers(all_pages(AuditLogFilter(before=DAY + timedelta(days=9)), limit=7))) == 30


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("kind", ["", *KINDS])
def test_log_page_is_read_with_an_index(kind: str, filters: dict[str, object]) -> None:
    wanted = AuditLogFilter(**{kind: filters[kind]} if kind else {})  # type: ignore[arg-type]
    with CaptureQueriesContext(connection) as queries:
        read_log_page(wanted, limit=2)
    assert len(queries) <= 3
    assert all("LIMIT" in query["sql"] or 'number" IN (' in query["sql"] for query in queries)
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            for query in queries:
                cursor.execute("EXPLAIN QUERY PLAN " + query["sql"])
                plan = " ".join(str(step[3]) for step in cursor.fetchall())
                assert "USE TEMP B-TREE FOR ORDER BY" not in plan, plan
                assert "SCAN conversations_auditentry USING" in plan or "SEARCH" in plan, plan
