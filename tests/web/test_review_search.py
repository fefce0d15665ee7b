"""The search over all sessions, which is for reviewers and records each reading."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import append
from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.sessions import archive_session, create_session
from conversations.archive.workspaces import add_member
from conversations.domain.turns import NewTurn
from conversations.models import Session, Workspace
from conversations.review.remarks import mark_reviewed, set_flag
from conversations.search.indexing import index_waiting

from .conftest import MakePerson, browser_of

pytestmark = pytest.mark.django_db

ADDRESS = "/review/search/"
HIT = re.compile(r'href="/review/s/([0-9a-f-]{36})/t/(\d+)/"')


def tell(session: Session, *texts: str, role: str = "user", day: int = 1, **fields: Any) -> None:
    at = datetime(2026, 3, day, tzinfo=UTC)
    turns = [NewTurn(role=role, content=text, created_at=at, **fields) for text in texts]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    session.refresh_from_db()


@pytest.fixture
def reviewer(make_person: MakePerson) -> User:
    person = make_person("reviewer")
    assert person is not None
    return person


@pytest.fixture
def browser(reviewer: User) -> Client:
    return browser_of(reviewer)


def found(browser: Client, **query: str) -> list[tuple[str, int]]:
    response = browser.get(ADDRESS, query)
    assert response.status_code == 200
    return sorted((uuid, int(turn)) for uuid, turn in HIT.findall(response.text))


def test_hits_in_any_session_are_found_and_recorded_once(
    browser: Client, session: Session, reviewer: User
) -> None:
    tell(session, "a stone", "another stone")
    archive_session(session, archived=True)
    assert found(browser, q="stone") == [(str(session.uuid), 1), (str(session.uuid), 2)]
    [entry] = readings_of(session.uuid)
    assert (entry.actor, entry.action) == (reviewer, "search_hit")
    assert entry.place == f"{ADDRESS}?q=stone"


def test_session_without_a_hit_is_not_recorded(browser: Client, session: Session) -> None:
    tell(session, "a stone")
    assert found(browser, q="brick") == []
    assert found(browser) == []
    assert not readings_of(session.uuid).exists()


def test_hits_are_recorded_for_members_but_not_in_own_sessions(
    workspace: Workspace, session: Session, reviewer: User, browser: Client
) -> None:
    add_member(workspace, user_pk=reviewer.pk, role="viewer")
    own = create_session(workspace, owner=reviewer)
    for each in (session, own):
        tell(each, "a stone")
    assert len(found(browser, q="stone")) == 2
    assert readings_of(session.uuid).count() == 1
    assert readings_of(own.uuid).count() == 0


def test_filters_limit_the_hits(
    browser: Client, workspace: Workspace, session: Session, reviewer: User
) -> None:
    own = create_session(workspace, owner=reviewer)
    tell(session, "a stone")
    tell(session, "a stone", role="tool", tool_name="read_file", metadata='{"ok": false}', day=5)
    tell(own, "a stone", role="assistant", metadata='{"model": "claude-opus-5"}', day=9)
    index_waiting()
    theirs = str(session.uuid)
    mine = (str(own.uuid), 1)

    assert found(browser, q="stone", person=session.owner.username) == [(theirs, 1), (theirs, 2)]
    assert found(browser, person=reviewer.username) == [mine]
    assert found(browser, q="stone", outcome="error") == [(theirs, 2)]
    assert found(browser, outcome="error") == [(theirs, 2)]
    assert found(browser, q="stone", tool="read_file") == [(theirs, 2)]
    assert found(browser, q="stone", model="claude-opus-5") == [mine]
    assert found(browser, after="2026-03-05", before="2026-03-09") == [(theirs, 2)]
    assert len(found(browser, workspace=workspace.slug)) == 3


def test_hits_can_be_limited_to_flagged_or_unreviewed_sessions(
    browser: Client, workspace: Workspace, session: Session, reviewer: User
) -> None:
    other = create_session(workspace, owner=session.owner)
    for each in (session, other):
        tell(each, "a stone")
    origin = AuditOrigin(user=reviewer)
    set_flag(session, origin, label="quality", turn=1)
    mark_reviewed(session, origin, through=1)
    assert found(browser, q="stone", queue="flagged") == [(str(session.uuid), 1)]
    assert found(browser, queue="unreviewed") == [(str(other.uuid), 1)]


def test_invalid_filter_shows_an_error_and_no_hits(browser: Client, session: Session) -> None:
    tell(session, "a stone")
    response = browser.get(ADDRESS, {"q": "stone", "person": "nobody-here"})
    assert response.status_code == 400
    assert "This username does not exist." in response.text
    assert re.search(r"<details [^>]*filters-box[^>]* open>", response.text)
    assert not readings_of(session.uuid).exists()


def test_pages_keep_the_filters(browser: Client, session: Session) -> None:
    tell(session, *["a stone"] * 30)
    response = browser.get(ADDRESS, {"q": "stone", "person": session.owner.username})
    more = re.search(r'id="more-hits">\s*<a[^>]* href="([^"]+)"', response.text)
    assert more is not None
    address = more.group(1).replace("&amp;", "&")
    assert f"person={session.owner.username}" in address
    assert len(HIT.findall(browser.get(address).text)) == 10


def test_query_count_is_independent_of_the_number_of_hits(
    browser: Client, workspace: Workspace, session: Session
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert found(browser, q="stone", order="newest")
        return len(queries)

    tell(session, "a stone")
    index_waiting()
    count()  # the first audit entry takes more queries
    few = count()
    for _ in range(10):
        tell(create_session(workspace, owner=session.owner), "a stone")
    index_waiting()
    assert count() == few
