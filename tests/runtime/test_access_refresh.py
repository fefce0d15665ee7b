"""The access of all open pages is checked together, whoever the pages belong to."""

import asyncio

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from conversations.archive.rights import MAX_PAGES_AT_ONCE, OpenPage, read_snapshots
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member
from conversations.models import Session, Workspace
from conversations.runtime import access_refresh
from conversations.runtime.access_refresh import WatchedAccess
from conversations.runtime.service import Runtime


async def test_a_page_signed_out_before_it_was_added_is_rechecked(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has no access from the beginning, so its snapshot never changes."""
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.01)
    asked = asyncio.Event()
    access = WatchedAccess(OpenPage("no-such-session", 1, 1, 1), None, asked.set)
    runtime.access_refresher.add(access)
    await asyncio.wait_for(asked.wait(), 20)
    runtime.access_refresher.remove(access)


def place_of(person: User, session: Session) -> OpenPage:
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    key = client.session.session_key or ""
    return OpenPage(key, person.pk, session.workspace_id, session.pk)


@pytest.mark.django_db
def test_the_number_of_queries_does_not_grow_with_the_pages(
    workspace: Workspace, session: Session, user: User
) -> None:
    places = {place_of(user, session)}
    with CaptureQueriesContext(connection) as few:
        read_snapshots(places)
    for number in range(5):
        person = User.objects.create(username=f"person {number}")
        add_member(workspace, user_pk=person.pk, role="viewer")
        places.add(place_of(person, create_session(workspace, owner=user)))
    with CaptureQueriesContext(connection) as many:
        standings = read_snapshots(places)
    assert (len(few), len(many)) == (4, 4)
    assert sorted(standing.role or "" for standing in standings.values() if standing) == [
        "owner",
        *["viewer"] * 5,
    ]
    assert MAX_PAGES_AT_ONCE >= 100
