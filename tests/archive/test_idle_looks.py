"""Queries that every process repeats now and then and every open page repeats constantly."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.messages import queued_messages_of
from conversations.archive.runs import active_runs, sessions_with_queue
from conversations.models import Session

pytestmark = pytest.mark.django_db


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's plans")
def test_idle_queries_do_not_read_ended_runs(session: Session) -> None:
    """A database may hold a million ended runs."""
    with CaptureQueriesContext(connection) as queries:
        assert active_runs(stale_seconds=60) == []
        assert active_runs(stale_seconds=60, session_pks=[session.pk]) == []
        assert sessions_with_queue() == []
        assert queued_messages_of([session.pk]) == {}
    assert len(queries) == 4
    for query in queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plan = [row[3] for row in cursor.fetchall()]
        of_runs = [step for step in plan if step.split()[1] in ("r", "q", "conversations_run")]
        assert of_runs
        assert all(" USING INDEX run_" in step for step in of_runs), plan
