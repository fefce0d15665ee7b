"""Searching many sessions: only those given, ranked or in order of time, page by page."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import append
from conversations.archive.search import Found, find_everywhere, search_sessions
from conversations.archive.search.indexing import index_waiting
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace

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
    """Sessions one by one, or all of them in one range."""
    if request.param == "many":
        monkeypatch.setattr(find_everywhere, "FEW_SESSIONS", 0)


@pytest.fixture(params=["all", "walked"])
def _is_walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All matches put in order of time, or the sessions walked through."""
    if request.param == "walked":
        monkeypatch.setattr(find_everywhere, "COUNTED", 3)


def write(session: Session, *texts: str, at: datetime = START) -> None:
    turns = [
        NewTurn(role="user", content=text, created_at=at + timedelta(minutes=number))
        for number, text in enumerate(texts)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    Session.objects.filter(pk=session.pk).update(last_active_at=turns[-1].created_at)


def places(found: Found) -> list[tuple[int, int]]:
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
    found = search_sessions(some, "stone")
    assert sorted(places(found)) == [(sessions[0].pk, 1), (sessions[0].pk, 2), (sessions[2].pk, 1)]
    assert found.total == 3
    assert found.hits[0].session in {sessions[0].uuid, sessions[2].uuid}
    assert search_sessions(Session.objects.none(), "stone").hits == []


@pytest.mark.usefixtures("_is_few")
def test_rare_words_count_more(sessions: list[Session]) -> None:
    for session in sessions:
        write(session, "the wall", "the wall again", "and the wall")
    write(sessions[3], "an obelisk")
    index_waiting()
    assert places(search_sessions(everything(), "wall obelisk"))[0] == (sessions[3].pk, 4)


@pytest.mark.usefixtures("_is_few")
def test_filters_hold_everywhere(sessions: list[Session], workspace: Workspace) -> None:
    write(sessions[0], "a stone", "a stone")
    write(sessions[1], "a stone", at=START + timedelta(days=2))
    index_waiting()
    first, second = sessions[0].pk, sessions[1].pk

    def found(query: str) -> list[tuple[int, int]]:
        return sorted(places(search_sessions(everything(), query)))

    assert found("stone after:1") == [(first, 2)]
    assert found("stone before:2") == [(first, 1), (second, 1)]
    assert found("stone after:2026-03-02") == [(second, 1)]
    assert found(f"stone in:{workspace.slug}") == [(first, 1), (first, 2), (second, 1)]
    assert found("stone in:elsewhere") == []
    assert found("role:assistant") == []


@pytest.mark.usefixtures("_is_few", "_is_walked")
def test_the_newest_come_first_whatever_the_session(sessions: list[Session]) -> None:
    for hour, session in zip((3, 0, 4, 1, 2), sessions, strict=True):
        write(session, "a stone", "sand", "a stone", at=START + timedelta(hours=hour))
    index_waiting()
    found = search_sessions(everything(), "stone", order="newest", limit=20)
    moments = [hit.created_at for hit in found.hits]
    assert len(moments) == 10
    assert moments == sorted(moments, reverse=True)


@pytest.mark.usefixtures("_is_few", "_is_walked")
@pytest.mark.parametrize("order", ["best", "newest"])
@pytest.mark.parametrize("is_one_moment", [True, False])
def test_pages_have_every_hit_once(
    sessions: list[Session], order: str, is_one_moment: bool
) -> None:
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
    pages: list[tuple[int, int]] = []
    cursor = ""
    while True:
        found = search_sessions(everything(), "stone", order=order, limit=7, cursor=cursor)
        pages += places(found)
        cursor = found.cursor
        if not cursor:
            break
    assert len(pages) == len(set(pages)) == 30
    whole = search_sessions(everything(), "stone", order=order, limit=100)
    assert pages == places(whole)


def test_the_number_of_queries_does_not_grow(workspace: Workspace, user: User) -> None:
    def count(order: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            search_sessions(everything(), "stone wall", order=order)
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
    each = 4  # sessions with something new are read one by one
    assert [count("best"), count("newest")] == [few[0] + each, few[1] + each]
