"""Searching many sessions: access, ranking, order of time and pages."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import append
from conversations.archive.messages import accept_message
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import create_workspace
from conversations.domain.turns import NewTurn
from conversations.models import UNINDEXED, Session, Workspace
from conversations.search import find_everywhere, latest_matches
from conversations.search.find_everywhere import SearchedSessions
from conversations.search.indexing import index_waiting
from conversations.search.results import SearchResults
from tests.archive.searching import find_among

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def sessions(workspace: Workspace, user: User) -> list[Session]:
    return [
        create_session(workspace, owner=user, created_at=START, title=f"Session {number}")
        for number in range(5)
    ]


@pytest.fixture(params=["few", "many"])
def _is_few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search sessions one by one, or all of them in one range."""
    if request.param == "many":
        monkeypatch.setattr(find_everywhere, "MAX_SESSIONS_NAMED", 0)


@pytest.fixture(params=["all", "walked"])
def _is_walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort all matches by time at once, or walk through the sessions in small batches."""
    if request.param == "walked":
        monkeypatch.setattr(latest_matches, "BATCH_MATCHES", 3)


def write(session: Session, *texts: str, at: datetime = START) -> None:
    turns = [
        NewTurn(role="user", content=text, created_at=at + timedelta(minutes=number))
        for number, text in enumerate(texts)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    Session.objects.filter(pk=session.pk).update(last_active_at=turns[-1].created_at)


def places(found: SearchResults) -> list[tuple[int, int]]:
    return [(hit.session_pk, hit.turn) for hit in found.hits]


def everything() -> QuerySet[Session]:
    return Session.objects.all()


@pytest.mark.usefixtures("_is_few")
def test_only_the_given_sessions_are_searched(sessions: list[Session]) -> None:
    for session in sessions:
        write(session, "a stone")
    index_waiting()
    write(sessions[0], "another stone")
    some = Session.objects.filter(pk__in=[sessions[0].pk, sessions[2].pk])
    found = find_among(some, "stone")
    assert sorted(places(found)) == [(sessions[0].pk, 1), (sessions[0].pk, 2), (sessions[2].pk, 1)]
    assert found.total == 3
    assert found.hits[0].session in {sessions[0].uuid, sessions[2].uuid}
    assert find_among(Session.objects.none(), "stone").hits == []


@pytest.mark.usefixtures("_is_few")
def test_rare_words_count_more(sessions: list[Session]) -> None:
    for session in sessions:
        write(session, "the wall", "the wall again", "and the wall")
    write(sessions[3], "an obelisk")
    index_waiting()
    assert places(find_among(everything(), "wall obelisk"))[0] == (sessions[3].pk, 4)


@pytest.mark.usefixtures("_is_few")
def test_filters_apply_to_all_sessions(sessions: list[Session], workspace: Workspace) -> None:
    write(sessions[0], "a stone", "a stone")
    write(sessions[1], "a stone", at=START + timedelta(days=2))
    index_waiting()
    first, second = sessions[0].pk, sessions[1].pk

    def found(query: str) -> list[tuple[int, int]]:
        return sorted(places(find_among(everything(), query)))

    assert found("stone after:1") == [(first, 2)]
    assert found("stone before:2") == [(first, 1), (second, 1)]
    assert found("stone after:2026-03-02") == [(second, 1)]
    assert found(f"stone in:{workspace.slug}") == [(first, 1), (first, 2), (second, 1)]
    assert found("stone in:elsewhere") == []
    assert found("role:assistant") == []


@pytest.mark.usefixtures("_is_few", "_is_walked")
def test_newest_hits_come_first_across_sessions(sessions: list[Session]) -> None:
    for hour, session in zip((3, 0, 4, 1, 2), sessions, strict=True):
        write(session, "a stone", "sand", "a stone", at=START + timedelta(hours=hour))
    index_waiting()
    found = find_among(everything(), "stone", order="newest", limit=20)
    moments = [hit.created_at for hit in found.hits]
    assert len(moments) == 10
    assert moments == sorted(moments, reverse=True)


@pytest.mark.usefixtures("_is_few")
@pytest.mark.parametrize("is_one_moment", [True, False])
def test_pages_contain_every_hit_once(
    sessions: list[Session], is_one_moment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranked, by time in one batch, and by time in small batches."""
    for number, session in enumerate(sessions):
        at = START if is_one_moment else START + timedelta(minutes=number * 2)
        turns = [
            NewTurn(role="user", content=f"stone {'sand ' * (turn % 3)}", created_at=at)
            for turn in range(6)
        ]
        if not is_one_moment:
            turns = [replace(t, created_at=at + timedelta(minutes=n)) for n, t in enumerate(turns)]
        append(session.pk, session_uuid=session.uuid, turns=turns)
        Session.objects.filter(pk=session.pk).update(last_active_at=turns[-1].created_at)
    index_waiting()
    for order, at_once in (("best", 300), ("newest", 300), ("newest", 3)):
        monkeypatch.setattr(latest_matches, "BATCH_MATCHES", at_once)
        pages: list[tuple[int, int]] = []
        cursor = ""
        while True:
            found = find_among(everything(), "stone", order=order, limit=7, cursor=cursor)
            pages += places(found)
            cursor = found.cursor
            if not cursor:
                break
        assert len(pages) == len(set(pages)) == 30
        whole = find_among(everything(), "stone", order=order, limit=100)
        assert pages == places(whole)


def test_number_of_queries_does_not_grow_with_the_sessions(
    workspace: Workspace, user: User
) -> None:
    def count(order: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            find_among(everything(), "stone wall", order=order)
        return len(queries)

    def add(number: int) -> None:
        for _ in range(number):
            write(create_session(workspace, owner=user), "a stone wall", "a wall")

    add(3)
    index_waiting()
    few = [count("best"), count("newest")]
    add(30)
    index_waiting()
    assert [count("best"), count("newest")] == few
    add(2)
    add(2)
    each = 5  # unindexed sessions are looked up and read one by one
    assert [count("best"), count("newest")] == [few[0] + each, few[1] + each]


def fail(session: Session, *, ok: bool, name: str = "read_file") -> None:
    turn = NewTurn(
        role="tool",
        content="a stone",
        tool_name=name,
        tool_call_id="c",
        metadata=f'{{"ok": {"true" if ok else "false"}}}',
        created_at=START,
    )
    append(session.pk, session_uuid=session.uuid, turns=[turn])


def answer(session: Session, *, model: str, complete: bool = True) -> None:
    turn = NewTurn(
        role="assistant",
        content="a stone",
        metadata=f'{{"model": "{model}"}}',
        complete=complete,
        created_at=START,
    )
    append(session.pk, session_uuid=session.uuid, turns=[turn])


@pytest.mark.parametrize("is_indexed", [True, False])
def test_errors_and_models_can_be_searched_for(sessions: list[Session], is_indexed: bool) -> None:
    first = sessions[0]
    fail(first, ok=True)
    fail(first, ok=False)
    answer(first, model="claude-opus-5")
    answer(first, model="Other Model", complete=False)
    if is_indexed:
        index_waiting()

    def found(query: str) -> list[int]:
        return sorted(turn for _, turn in places(find_among(everything(), query)))

    assert found("stone is:error") == [2, 4]
    assert found("stone model:claude-opus-5") == [3]
    assert found('stone model:"other model"') == [4]
    assert found("is:error tool:read_file") == [2]
    assert found("stone is:nonsense") == [1, 2, 3, 4]


@pytest.fixture
def others(workspace: Workspace) -> list[Session]:
    """Two sessions of somebody else, in another workspace."""
    ben = User.objects.create_user("ben")
    place = create_workspace(root=Path("/tmp"), name="Elsewhere", owner=ben)
    return [create_session(place, owner=ben, created_at=START) for _ in range(2)]


@pytest.mark.usefixtures("_is_few")
@pytest.mark.parametrize("is_indexed", [True, False])
def test_search_can_be_limited_to_a_person_and_workspaces(
    sessions: list[Session], others: list[Session], is_indexed: bool
) -> None:
    for session in (*sessions, *others):
        write(session, "a stone")
    if is_indexed:
        index_waiting()
    ben, elsewhere = others[0].owner_id, others[0].workspace_id

    def found(within: SearchedSessions) -> set[int]:
        best, newest = (
            {hit.session_pk for hit in find_among(everything(), "stone", **how).hits}
            for how in ({"within": within}, {"within": within, "order": "newest"})
        )
        assert best == newest
        return best

    theirs = {session.pk for session in others}
    assert found(SearchedSessions(person=ben)) == theirs
    assert found(SearchedSessions(workspaces=(elsewhere,))) == theirs
    assert found(SearchedSessions(person=ben, workspaces=(sessions[0].workspace_id,))) == set()
    assert found(SearchedSessions(workspaces=())) == set()
    assert len(found(SearchedSessions(workspaces=(elsewhere, sessions[0].workspace_id)))) == 7


@pytest.mark.usefixtures("_is_few")
def test_filter_by_person_finds_sessions_in_which_they_wrote(
    sessions: list[Session], others: list[Session]
) -> None:
    write(sessions[1], "a stone")
    write(sessions[2], "a stone")
    ben = others[0].owner
    accept_message(sessions[1], client_id="one", text="stone", user_pk=ben.pk, max_queued=5)
    index_waiting()
    found = find_among(everything(), "stone", within=SearchedSessions(person=ben.pk))
    assert {pk for pk, _ in places(found)} == {sessions[1].pk}


def test_every_way_to_select_sessions_finds_the_same_hits(
    sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, session in enumerate(sessions):
        write(session, *["a stone"] * 5, at=START + timedelta(days=100 * number))
    index_waiting()
    chosen = [sessions[0].pk, sessions[3].pk]
    few = Session.objects.filter(pk__in=chosen)
    # Sessions are selected by their ranges, by a list of keys or by a subquery. With a subquery,
    # each entry's session is looked up if the share is at least ``MIN_MAJORITY_SHARE``.
    for named, listed, share in ((24, 100, 0), (0, 100, 0), (0, 1, 0.0), (0, 1, 2.0)):
        monkeypatch.setattr(find_everywhere, "MAX_SESSIONS_NAMED", named)
        monkeypatch.setattr(find_everywhere, "MAX_SESSIONS_LISTED", listed)
        monkeypatch.setattr(find_everywhere, "MIN_MAJORITY_SHARE", share)
        for order, at_once in (("best", 300), ("newest", 300), ("newest", 3)):
            monkeypatch.setattr(latest_matches, "BATCH_MATCHES", at_once)
            how = (named, listed, share, order, at_once)
            found = find_among(few, "stone", order=order, limit=20)
            expected = [(pk, turn) for pk in chosen for turn in range(1, 6)]
            assert sorted(places(found)) == expected, how
        everywhere = find_among(few, "", order="newest", limit=20, lists_all=True)
        assert len(everywhere.hits) == 10, how


def test_rare_phrase_of_frequent_words_is_found_on_a_later_page(
    sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_matches, "BATCH_MATCHES", 3)
    monkeypatch.setattr(latest_matches, "MAX_TURNS_LOOKED_AT", 4)
    write(sessions[0], "dry wall")
    for number in range(1, 8):
        write(sessions[1], "wall so dry", at=START + timedelta(days=number))
    index_waiting()
    pages, cursor = 0, ""
    while True:
        found = find_among(everything(), '"dry wall"', order="newest", cursor=cursor)
        pages += 1
        cursor = found.cursor
        if found.hits or not cursor:
            break
    assert places(found) == [(sessions[0].pk, 1)]
    assert pages == 2


def test_empty_periods_are_skipped_with_few_queries(
    sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_matches, "BATCH_MATCHES", 3)
    write(sessions[0], *["a stone"] * 3, at=datetime(2026, 1, 1, 0, tzinfo=UTC))
    write(sessions[1], *["a stone"] * 3, at=datetime(2026, 1, 1, 3, tzinfo=UTC))
    index_waiting()
    with CaptureQueriesContext(connection) as queries:
        found = find_among(everything(), "stone", order="newest")
    assert len(found.hits) == 6
    assert len(queries) < 55  # eleven months, thirty days and twenty hours are empty


@pytest.mark.usefixtures("_is_walked")
def test_turns_of_any_year_are_sorted_by_time(sessions: list[Session]) -> None:
    for session, year in zip(sessions, (1815, 1969, 2026, 2120), strict=False):
        write(session, *["a stone"] * 6, at=datetime(year, 5, 1, tzinfo=UTC))
    index_waiting()
    pages: list[datetime] = []
    cursor = ""
    while True:
        found = find_among(everything(), "stone", order="newest", limit=5, cursor=cursor)
        pages += [hit.created_at for hit in found.hits]
        cursor = found.cursor
        if not cursor:
            break
    assert len(pages) == 24
    assert pages == sorted(pages, reverse=True)


def test_unindexed_sessions_are_found_with_an_index() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL reads a small table whole")
    plan = Session.objects.filter(UNINDEXED).order_by().values("pk").explain()
    assert "session_unindexed" in plan
