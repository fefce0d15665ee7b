"""The outline of a person's messages, and the first turn of a day."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import append
from conversations.archive.outline import first_turn_since, read_outline
from conversations.archive.rewinds import append_rewind
from conversations.archive.sessions import get_session
from conversations.domain.turns import NewTurn
from conversations.models import Session

pytestmark = pytest.mark.django_db

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def fill(session: Session, turns: int) -> Session:
    """Append one turn an hour, alternating between the person and the model."""
    append(
        session.pk,
        session_uuid=session.uuid,
        turns=[
            NewTurn(
                role="assistant" if number % 2 else "user",
                content=f"Row {number + 1}",
                created_at=BEGAN + timedelta(hours=number),
            )
            for number in range(turns)
        ],
    )
    return get_session(session.uuid)


def test_pages_of_the_outline_hold_each_message_once(session: Session) -> None:
    full = fill(session, 50)
    append_rewind(full, from_turn=41, from_seq=None, reason="edit", actor_pk=None)
    full, found, before = get_session(full.uuid), [], None
    while page := read_outline(full, before=before, limit=6):
        found = [entry.turn for entry in page] + found
        before = page[0].turn
    assert found == list(range(1, 41, 2))
    assert page == []
    assert all(first < second for first, second in pairwise(found))


FIRST_TURNS = {-50: 1, 0: 1, 0.5: 2, 11.9: 13, 12: 13, 997: 998, 5000: 1000}
"""The expected turn by hours after the beginning."""


def test_first_turn_since_a_moment_is_found_with_few_queries(session: Session) -> None:
    full = fill(session, 1000)
    for hours, turn in FIRST_TURNS.items():
        with CaptureQueriesContext(connection) as queries:
            assert first_turn_since(full, BEGAN + timedelta(hours=hours)) == turn, hours
        assert len(queries) <= 11
