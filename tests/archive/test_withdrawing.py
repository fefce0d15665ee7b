"""Withdrawing a queued message while its run is about to begin."""

import threading
import time
from uuid import UUID

import pytest
from django.db import connection, transaction

from conversations.archive.append import lock_session
from conversations.archive.messages import accept_message, withdraw_message
from conversations.archive.runs import claim_next_run
from conversations.domain.errors import Conflict
from conversations.domain.runs import COMPLETED
from conversations.models import Run, Session

WAITING = """
    SELECT EXISTS (
      SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
    )
"""
"""Whether another connection waits for this one.

``pg_stat_activity`` does not change within a transaction, so ``pg_locks`` is read.
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")
def test_message_whose_run_is_being_claimed_is_not_withdrawn(session: Session) -> None:
    """On PostgreSQL, the withdrawal waits for the claim and then raises ``Conflict``."""
    first, accepted = (
        accept_message(session, client_id=name, text="hello", user_pk=None, max_queued=9)
        for name in ("client-1", "client-2")
    )
    Run.objects.filter(uuid=first.run).update(state=COMPLETED)
    answers: list[Exception | None] = []

    def withdraw(run: UUID) -> None:
        try:
            withdraw_message(session, run=run, user_pk=session.owner_id)
            answers.append(None)
        except Conflict as error:
            answers.append(error)
        finally:
            connection.close()

    with transaction.atomic():
        lock_session(session.pk)
        other = threading.Thread(target=withdraw, args=(accepted.run,))
        other.start()
        deadline = time.monotonic() + 30
        while not answers and time.monotonic() < deadline:
            with connection.cursor() as cursor:
                cursor.execute(WAITING)
                if cursor.fetchone()[0]:
                    break
            time.sleep(0.01)
        assert claim_next_run(session.pk, owner="here") is not None
    other.join()
    [answer] = answers
    assert isinstance(answer, Conflict)
    assert Run.objects.get(uuid=accepted.run).state == "running"
