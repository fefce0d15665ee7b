"""The writer: writes share a transaction, and a failed write does not affect the others."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from django.db import IntegrityError, connection

from conversations.domain.errors import Unavailable
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.runtime.current import recover_session
from conversations.runtime.database import Readers, Writer
from tests.archive.turns import append_turn, read_turns

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def writer(transactional_db: None) -> AsyncIterator[Writer]:
    started = Writer()
    yield started
    await asyncio.to_thread(started.close)


def say(session: Session, text: str) -> int:
    return append_turn(session, NewTurn(role="user", content=text))


def fail() -> None:
    raise ValueError("mine alone")


def break_a_rule_at_the_end() -> None:
    """Break a foreign key, which the database checks at the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO conversations_journalgap (session_id, from_turn, to_turn, after_seq)"
            " VALUES (987654321, 1, 1, 0)"
        )


def texts(session: Session) -> list[str]:
    return [turn.content for turn in read_turns(session.pk)]


async def hold(writer: Writer) -> threading.Event:
    """Keep the writer busy, so that the next writes are executed as one group."""
    go_on = threading.Event()
    asyncio.ensure_future(writer.write(go_on.wait))  # noqa: RUF006
    await asyncio.sleep(0.05)
    return go_on


async def test_a_failed_write_does_not_affect_the_others_in_its_group(
    writer: Writer, garden: Session
) -> None:
    go_on = await hold(writer)
    writes = [writer.write(say, garden, "a"), writer.write(fail), writer.write(say, garden, "b")]
    group = asyncio.gather(*writes, return_exceptions=True)
    go_on.set()
    first, failed, second = await group
    assert (first, second) == (1, 2)
    assert isinstance(failed, ValueError)
    assert await asyncio.to_thread(texts_and_close, garden) == ["a", "b"]


async def test_a_constraint_broken_at_commit_fails_only_its_own_write(
    writer: Writer, garden: Session
) -> None:
    go_on = await hold(writer)
    writes = [
        writer.write(say, garden, "a"),
        writer.write(break_a_rule_at_the_end),
        writer.write(say, garden, "b"),
    ]
    group = asyncio.gather(*writes, return_exceptions=True)
    await asyncio.sleep(0)
    go_on.set()
    first, failed, second = await group
    assert (first, second) == (1, 2)
    assert isinstance(failed, IntegrityError)
    assert await asyncio.to_thread(texts_and_close, garden) == ["a", "b"]


async def test_a_write_is_committed_even_if_its_caller_is_cancelled(
    writer: Writer, garden: Session
) -> None:
    task = asyncio.create_task(writer.write(say, garden, "kept"))
    await asyncio.sleep(0)
    task.cancel()
    await writer.write(say, garden, "after")
    assert await asyncio.to_thread(texts_and_close, garden) == ["kept", "after"]


async def test_closing_the_writer_executes_the_queued_writes(garden: Session) -> None:
    writer = Writer()
    waiting = [asyncio.ensure_future(writer.write(say, garden, str(n))) for n in range(5)]
    await asyncio.sleep(0)
    await asyncio.to_thread(writer.close)
    assert await asyncio.gather(*waiting) == [1, 2, 3, 4, 5]
    with pytest.raises(Unavailable, match="stopping"):
        await asyncio.wait_for(writer.write(say, garden, "too late"), 10)


async def test_a_slow_read_does_not_hold_up_a_write(writer: Writer, garden: Session) -> None:
    readers = Readers()
    go_on = threading.Event()
    slow = asyncio.ensure_future(readers.read(go_on.wait))
    await asyncio.wait_for(writer.write(say, garden, "quick"), 30)
    assert not slow.done()
    go_on.set()
    await slow
    await asyncio.to_thread(readers.close)


def test_a_page_recovers_no_session_without_a_runtime(garden: Session) -> None:
    assert recover_session(garden.pk) is False


def texts_and_close(session: Session) -> list[str]:
    try:
        return texts(session)
    finally:
        connection.close()


async def test_readers_close_even_if_the_pool_has_too_few_threads() -> None:
    """A pool can count a busy thread as idle and then starts fewer threads."""
    readers = Readers()
    thread = await readers.read(threading.current_thread)
    [own] = readers._connections
    await readers.read(own.ensure_connection)
    readers._pool._idle_semaphore.release()
    await asyncio.wait_for(asyncio.to_thread(readers.close), 30)
    assert not thread.is_alive()
    assert own.connection is None
