"""Looking at what other processes write costs the same for any number of pages."""

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.sessions import create_session
from conversations.models import Session
from conversations.runtime.engine import Runtime

pytestmark = pytest.mark.django_db(transaction=True)


async def test_the_number_of_queries_does_not_grow_with_the_pages(
    runtime: Runtime, garden: Session
) -> None:
    def count(sessions: list[int]) -> int:
        with CaptureQueriesContext(connection) as captured:
            runtime.watcher._read(sessions)
        return len(captured)

    def more() -> list[int]:
        made = [create_session(garden.workspace, owner=garden.owner) for _ in range(20)]
        return [garden.pk, *(session.pk for session in made)]

    one = await sync_to_async(count)([garden.pk])
    many = await sync_to_async(count)(await sync_to_async(more)())
    assert one == many == 3


async def test_what_is_not_watched_any_more_is_forgotten(runtime: Runtime, garden: Session) -> None:
    runtime.watcher._rewinds[garden.pk] = 1
    runtime.watcher._forget_unwatched()
    assert runtime.watcher._rewinds == {}
