"""The search index: building it, rebuilding it to the same bytes, and purging."""

import pytest
from django.db import connection, transaction
from django.utils import timezone

from conversations.archive.append import append
from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session
from conversations.domain import search_tokens
from conversations.domain.text import dump_json
from conversations.domain.turns import NewTurn
from conversations.models import SearchEntry, SearchProgress, Session
from conversations.search.indexing import (
    IndexTotals,
    index_session,
    index_waiting,
    merge_index,
    prepare_batch,
    read_progress,
    remove_session,
    sessions_to_index,
    store_batch,
)
from conversations.search.rebuild import check_index, check_session, rebuild_session
from conversations.search.source import MAX_UNINDEXED_TURNS
from tests.archive.searching import find_among, find_in
from tests.refused import refused_entries

pytestmark = pytest.mark.django_db


def write(session: Session, *texts: str) -> None:
    turns = [NewTurn(role="user", content=text) for text in texts]
    append(session.pk, session_uuid=session.uuid, turns=turns)


def damage(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_progress_follows_the_indexed_turns(session: Session) -> None:
    assert index_waiting() == 0
    write(session, "one", "two words")
    [waiting] = sessions_to_index()
    assert (waiting.indexed_turn, waiting.last_turn) == (0, 2)
    assert index_waiting() == 1
    assert sessions_to_index() == []
    progress = read_progress(session.pk)
    assert progress is not None
    assert (progress.indexed_turn, progress.sums) == (2, IndexTotals(3, 2, 3))


def test_two_indexers_store_a_batch_once(session: Session) -> None:
    write(session, "one", "two")
    progress = read_progress(session.pk)
    assert progress is not None
    first, second = prepare_batch(progress, size=1), prepare_batch(progress)
    after = store_batch(first)
    assert after is not None
    assert after.indexed_turn == 1
    assert store_batch(second) is None
    assert SearchEntry.objects.count() == 1
    index_session(session.pk)
    assert check_session(session.pk) == ""


def test_batch_is_stored_completely_or_not_at_all(session: Session) -> None:
    write(session, "one", "two")
    progress = read_progress(session.pk)
    assert progress is not None
    with transaction.atomic():
        store_batch(prepare_batch(progress))
        transaction.set_rollback(True)
    assert SearchEntry.objects.count() == 0
    assert find_in(session.pk, "two").total == 1
    index_session(session.pk)
    assert check_session(session.pk) == ""


def test_batches_of_any_size_give_the_same_bytes(session: Session) -> None:
    write(session, *[f"turn {number} of many" for number in range(10)])
    made = set()
    for size in (1, 3, 100):
        remove_session(session.pk)
        progress = read_progress(session.pk)
        while progress and progress.waiting:
            progress = store_batch(prepare_batch(progress, size=size))
        made.add(tuple(SearchEntry.objects.values_list()))
    assert len(made) == 1
    for _ in rebuild_session(session.pk):
        pass
    made.add(tuple(SearchEntry.objects.values_list()))
    assert len(made) == 1
    assert check_session(session.pk) == ""


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE conversations_searchentry SET said = 'forged' WHERE id & 3 = 2", "turn 2"),
        ("DELETE FROM conversations_searchentry WHERE id & 3 = 2", "turn 2"),
        ("UPDATE conversations_searchprogress SET total_length = 1", "total_length"),
        ("UPDATE conversations_searchprogress SET asked_turns = 1", "asked_turns"),
        ("UPDATE conversations_searchprogress SET indexed_turn = 7", "turn 4"),
        ("UPDATE conversations_searchprogress SET indexed_turn = 2", "turn 3"),
        ("DELETE FROM conversations_searchprogress", "turn 1"),
    ],
)
def test_damage_is_named_and_repaired(session: Session, statement: str, problem: str) -> None:
    write(session, "one", "two", "three")
    index_session(session.pk)
    assert check_session(session.pk) == ""
    damage(statement)
    assert problem in check_session(session.pk)
    for _ in rebuild_session(session.pk):
        pass
    assert check_session(session.pk) == ""
    assert find_in(session.pk, "two").total == 1
    assert find_in(session.pk, "forged").total == 0
    assert check_index() == ""


def test_change_of_the_word_rules_rebuilds_the_index(session: Session) -> None:
    write(session, "one", "two")
    index_session(session.pk)
    SearchProgress.objects.update(version=search_tokens.VERSION - 1)
    SearchEntry.objects.update(said="old")
    assert find_in(session.pk, "two").total == 1
    assert find_in(session.pk, "old").total == 0
    index_session(session.pk)
    assert check_session(session.pk) == ""
    assert check_index() == ""


def test_purge_removes_a_session_from_the_index(session: Session) -> None:
    write(session, "a secret")
    index_session(session.pk)
    assert remove_session(session.pk) == 1
    assert not SearchEntry.objects.exists()
    assert not SearchProgress.objects.exists()
    assert check_index() == ""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT rowid FROM conversations_searchindex"
                " WHERE conversations_searchindex MATCH 'secret'"
            )
            assert cursor.fetchall() == []


@pytest.mark.django_db(transaction=True)
def test_session_purged_during_indexing_leaves_no_entries(session: Session) -> None:
    write(session, "one")
    [progress] = sessions_to_index()
    batch = prepare_batch(progress)
    purge(session, order=PurgeRequest(reason="Tidying"), origin=AuditOrigin(), now=timezone.now())
    assert store_batch(batch) is None
    assert not SearchEntry.objects.exists()
    assert not SearchProgress.objects.exists()


def test_tool_with_a_very_long_name_is_indexed_and_found(session: Session) -> None:
    """PostgreSQL's index refuses words of more than 2,700 bytes."""
    name = "𐐷" * 9_000
    call = dump_json([{"type": "tool_use", "id": "c", "name": name, "input": {}}])
    turn = NewTurn(role="assistant", content="a stone", blocks=call)
    append(session.pk, session_uuid=session.uuid, turns=[turn])
    index_session(session.pk)
    marks = SearchEntry.objects.get().marks.split()
    assert max(len(mark.encode()) for mark in marks) < 2_000
    assert find_in(session.pk, f"tool:{name}").total == 1
    assert find_in(session.pk, "tool:another").total == 0


def test_session_that_cannot_be_indexed_does_not_block_others(session: Session) -> None:
    other = create_session(session.workspace, owner=session.owner)
    for one in (other, session):  # the session that was used last is indexed first
        write(one, *["a stone"] * (MAX_UNINDEXED_TURNS // 2 + 1))
    with refused_entries(session):
        found = find_among(Session.objects.all(), "stone")
        assert found.total == MAX_UNINDEXED_TURNS + 2
        assert [progress.session_pk for progress in sessions_to_index()] == [session.pk]


def test_session_that_cannot_be_indexed_is_not_retried_at_once(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    write(session, *["a stone"] * (MAX_UNINDEXED_TURNS + 1))
    with refused_entries(session):
        for _ in range(2):
            assert find_in(session.pk, "stone").total == MAX_UNINDEXED_TURNS + 1
            assert find_among(Session.objects.all(), "stone").total == MAX_UNINDEXED_TURNS + 1
    ours = [one for one in caplog.records if one.name == "conversations.search.indexing"]
    assert [record.getMessage() for record in ours] == ["session_not_indexed"]


def test_merging_the_index_keeps_all_hits(session: Session) -> None:
    for number in range(40):
        write(session, f"stone {number}")
        index_session(session.pk)
    for _ in range(50):
        if not merge_index():
            break
    else:
        pytest.fail("merging has no end")
    assert find_in(session.pk, "stone").total == 40
    assert check_index() == ""


def test_index_without_its_words_fails_the_check(session: Session) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL keeps its index itself")
    write(session, "a stone")
    index_session(session.pk)
    damage("DROP TRIGGER conversations_searchentry_removed")
    SearchEntry.objects.all()._raw_delete("default")
    assert check_index() != ""
