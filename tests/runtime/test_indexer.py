"""The indexer: what comes in is indexed when there is time, whoever wrote it."""

import pytest

from conversations.archive.append import append
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.service import Runtime
from conversations.runtime.watch import TURNS_AT_ONCE, IndexWorker
from conversations.search.indexing import sessions_to_index
from conversations.search.rebuild import check_session

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


async def test_it_indexes_what_waits_in_small_steps(runtime: Runtime, garden: Session) -> None:
    turns = [NewTurn(role="user", content=f"turn {n}") for n in range(2 * TURNS_AT_ONCE + 1)]
    await runtime.writer.write(append, garden.pk, session_uuid=garden.uuid, turns=turns)
    await IndexWorker(runtime.database).catch_up()
    assert await runtime.readers.read(sessions_to_index) == []
    assert await runtime.readers.read(check_session, garden.pk) == ""
