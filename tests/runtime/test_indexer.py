"""The indexer: new turns are indexed when there is time, whichever process wrote them."""

import pytest

from conversations.archive.append import append
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.service import Runtime
from conversations.runtime.watch import TURNS_AT_ONCE, IndexWorker
from conversations.search.indexing import sessions_to_index
from conversations.search.rebuild import check_session
from tests.refused import refused_entries

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


async def test_waiting_turns_are_indexed_in_small_steps(runtime: Runtime, garden: Session) -> None:
    turns = [NewTurn(role="user", content=f"turn {n}") for n in range(2 * TURNS_AT_ONCE + 1)]
    await runtime.writer.write(append, garden.pk, session_uuid=garden.uuid, turns=turns)
    await IndexWorker(runtime.database).catch_up()
    assert await runtime.readers.read(sessions_to_index) == []
    assert await runtime.readers.read(check_session, garden.pk) == ""


async def test_a_session_that_cannot_be_indexed_does_not_block_others(
    runtime: Runtime, garden: Session
) -> None:
    def write() -> Session:
        shed = create_session(garden.workspace, owner=garden.owner)
        for session in (shed, garden):  # the most recently active session is indexed first
            turns = [NewTurn(role="user", content="a stone")]
            append(session.pk, session_uuid=session.uuid, turns=turns)
        return shed

    worker = IndexWorker(runtime.database)
    context = refused_entries(garden)
    await runtime.writer.write(context.__enter__)
    try:
        shed = await runtime.writer.write(write)
        assert await worker.catch_up()
        waiting = await runtime.readers.read(sessions_to_index)
        assert [progress.session_pk for progress in waiting] == [garden.pk]
        assert await runtime.readers.read(check_session, shed.pk) == ""
        assert not await worker.catch_up()  # the session is skipped for a while
    finally:
        await runtime.writer.write(context.__exit__, None, None, None)
