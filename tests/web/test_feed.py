"""The Atom feed of a workspace's sessions: its access rules, content and pages."""

from base64 import b64encode
from datetime import timedelta
from time import time
from typing import Any
from xml.etree import ElementTree

import feedparser
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.http import http_date

from conversations.accounts.tokens import create_token
from conversations.archive.sessions import archive_session, create_session
from conversations.domain.text import storable
from conversations.models import AuditEntry, Session, Workspace
from conversations.web.feed import PAGE_SESSIONS

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db

FEED = "/w/garden/feed.atom"


def token_of(person: User, *scopes: str) -> str:
    return create_token(person, name="Reader", scopes=scopes, lifetime=timedelta(days=1))


def basic(token: str, user: str = "") -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{user}:{token}'.encode()).decode()}"}


def read(response: Any) -> Any:
    """Parse the feed as a feed reader does, and fail if it is not valid Atom."""
    assert response.status_code == 200
    assert response["Content-Type"].startswith("application/atom+xml")
    found = feedparser.parse(response.content)
    assert not found.bozo, found
    assert found.version == "atom10"
    return found


def links(found: Any) -> dict[str, str]:
    return {link.rel: link.href for link in found.feed.links}


def test_feed_lists_sessions_by_their_escaped_titles(
    owner: Client, session: Session, workspace: Workspace, user: User
) -> None:
    say(session, "Is <b>5 > 3</b> & “so”?\x0b")
    other = create_session(workspace, owner=user)
    Session.objects.filter(pk=other.pk).update(last_active_at=timezone.now() - timedelta(days=1))
    gone = create_session(workspace, owner=user, title="Away")
    archive_session(gone, archived=True)
    response = owner.get(FEED)
    found = read(response)
    assert found.feed.title == "Sessions of Garden"
    assert links(found) == {
        "alternate": "http://testserver/w/garden/",
        "self": f"http://testserver{FEED}",
        "first": f"http://testserver{FEED}",
    }
    first, second = found.entries
    assert first.id == f"urn:uuid:{session.uuid}"
    assert first.link == f"http://testserver/s/{session.uuid}/"
    assert first.author == "ann"
    assert second.title == "Untitled session"
    atom = "{http://www.w3.org/2005/Atom}"
    titles = ElementTree.fromstring(response.content).findall(f"{atom}entry/{atom}title")
    assert titles[0].text == storable(session.title).replace("\x0b", "\ufffd")
    assert "<b>" in titles[0].text
    assert b"<b>" not in response.content


def test_feed_pages_contain_every_session_once_in_both_directions(
    owner: Client, workspace: Workspace, user: User
) -> None:
    now = timezone.now()
    for number in range(2 * PAGE_SESSIONS + 1):
        create_session(workspace, owner=user, created_at=now - timedelta(minutes=number // 2))
    there = walk(owner, FEED, "next")
    ids = [entry.id for found in there for entry in found.entries]
    assert [len(found.entries) for found in there] == [PAGE_SESSIONS, PAGE_SESSIONS, 1]
    assert len(set(ids)) == 2 * PAGE_SESSIONS + 1
    assert len({found.feed.id for found in there}) == 1
    back = walk(owner, links(there[-1])["self"], "previous")
    assert [entry.id for found in reversed(back) for entry in found.entries] == ids
    assert owner.get(f"{FEED}?before=nonsense").status_code == 400


def walk(client: Client, address: str, relation: str) -> list[Any]:
    pages = [read(client.get(address))]
    while address := links(pages[-1]).get(relation, ""):
        pages.append(read(client.get(address)))
    return pages


def test_unchanged_feed_answers_304(owner: Client, session: Session) -> None:
    first = owner.get(FEED)
    seen = {"If-None-Match": first["ETag"]}
    again = owner.get(FEED, headers=seen)
    assert (again.status_code, again.content) == (304, b"")
    assert "Last-Modified" not in first, "a title that changes has no time"
    tomorrow = {"If-Modified-Since": http_date(time() + 86_400)}
    assert owner.get(FEED, headers=tomorrow).status_code == 200
    Session.objects.filter(pk=session.pk).update(title="Beans")
    assert owner.get(FEED, headers=seen).status_code == 200
    assert "Authorization" in first["Vary"]
    assert "private" in first["Cache-Control"]


def test_feed_reader_signs_in_with_a_token(user: User, session: Session) -> None:
    for scope in ("feed", "read"):
        token = token_of(user, scope)
        for headers in (basic(token), basic(token, "ann"), {"Authorization": f"Bearer {token}"}):
            assert read(Client().get(FEED, headers=headers)).entries
    refused = Client().get(FEED, headers=basic(token_of(user, "write")))
    assert refused.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{}, basic("wrong"), {"Authorization": "Basic !"}, {"Authorization": "Digest x"}],
)
def test_invalid_credentials_answer_401(session: Session, headers: dict[str, str]) -> None:
    response = Client().get(FEED, headers=headers)
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Basic ")


def test_token_in_the_address_opens_only_the_feed(
    user: User, other_user: User, workspace: Workspace
) -> None:
    now = timezone.now()
    for number in range(PAGE_SESSIONS + 1):
        create_session(workspace, owner=user, created_at=now - timedelta(minutes=number))
    token = token_of(user, "feed")
    pages = walk(Client(), f"{FEED}?token={token}", "next")
    assert sum(len(found.entries) for found in pages) == PAGE_SESSIONS + 1
    assert token not in str([found.entries for found in pages])
    assert token not in pages[0].feed.id
    assert Client().get(f"{FEED}?token={token_of(user, 'feed', 'read')}").status_code == 403
    assert Client().get(f"{FEED}?token={token_of(other_user, 'feed')}").status_code == 404
    assert Client().get(f"{FEED}?token=wrong").status_code == 401
    assert Client().get(f"/w/garden/?token={token}").status_code == 302


def test_reviewer_without_membership_sees_no_text_of_messages(
    session: Session, make_person: MakePerson
) -> None:
    say(session, "«Plant the beans»", "«In May»")
    Session.objects.filter(pk=session.pk).update(title="Spring")
    found = browser_of(make_person("reviewer")).get(FEED)
    assert read(found).entries[0].title == "Spring"
    assert "«" not in found.content.decode()
    assert "«" in browser_of(session.owner).get(FEED).content.decode()
    assert not AuditEntry.objects.exists()


def test_query_count_is_independent_of_the_number_of_sessions(
    owner: Client, workspace: Workspace, user: User
) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            read(owner.get(FEED))
        return len(queries)

    create_session(workspace, owner=user)
    few = cost()
    for _ in range(5):
        create_session(workspace, owner=user)
    assert cost() == few
