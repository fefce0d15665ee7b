"""The list of a session's forks on its state page."""

import html
import re
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.archive.sessions import create_session
from conversations.models import Session, Workspace
from conversations.web.panel import MAX_FORKS_SHOWN

from .conftest import MakePerson, browser_of, flat, say

pytestmark = pytest.mark.django_db

LISTED = re.compile(r'class="item-text"><a href="/s/([0-9a-f-]+)/">([^<]*)</a></p>(.*?)</li>')


@pytest.fixture
def origin(session: Session) -> Session:
    say(session, "Plant the beans", "In May", "And peas?", "In March")
    return session


def fork(origin: Session, title: str, *, turn: int | None, **columns: object) -> Session:
    made = create_session(origin.workspace, owner=origin.owner, title=title)
    Session.objects.filter(pk=made.pk).update(parent=origin, fork_turn=turn, **columns)
    return made


def listed(client: Client, origin: Session) -> list[tuple[UUID, str, str]]:
    response = client.get(reverse("session_state", args=[origin.uuid]))
    assert response.status_code == 200
    return [
        (UUID(uuid), html.unescape(title), re.sub(r"<[^>]+>", " ", facts))
        for uuid, title, facts in LISTED.findall(flat(response.text))
    ]


def test_session_lists_its_forks(owner: Client, origin: Session) -> None:
    assert "created from this one" not in owner.get(f"/s/{origin.uuid}/state/").text
    branch = fork(origin, "Beans <2>", turn=2, archived_at=timezone.now())
    later = fork(origin, "", turn=None)
    [first, second] = listed(owner, origin)
    assert first[:2] == (branch.uuid, "Beans <2>")
    assert ("turn 2" in first[2], "archived" in first[2]) == (True, True)
    assert second[:2] == (later.uuid, "Untitled session")
    assert ("in its place" in second[2], "archived" in second[2]) == (True, False)
    assert listed(owner, branch) == []


def test_listed_fork_links_to_its_fork_turn(owner: Client, origin: Session) -> None:
    fork(origin, "Other beans", turn=2)
    text = owner.get(f"/s/{origin.uuid}/state/").text
    assert f'href="/s/{origin.uuid}/t/2/"' in text


def test_fork_that_the_reader_may_not_see_is_not_listed(
    origin: Session, make_person: MakePerson
) -> None:
    """A fork that was imported into another workspace is hidden from members of this one."""
    shed = Workspace.objects.create(
        name="Shed", slug="shed", root="/srv/shed", created_at=timezone.now()
    )
    fork(origin, "Secret beans", turn=2, workspace=shed)
    member = make_person("member")
    assert listed(browser_of(member), origin) == []


def test_long_list_of_forks_is_truncated_and_costs_no_more_queries(
    owner: Client, origin: Session
) -> None:
    fork(origin, "Branch 0", turn=2)
    address = reverse("session_state", args=[origin.uuid])
    with CaptureQueriesContext(connection) as one:
        owner.get(address)
    for number in range(1, MAX_FORKS_SHOWN + 1):
        fork(origin, f"Branch {number}", turn=2)
    with CaptureQueriesContext(connection) as many:
        text = owner.get(address).text
    assert len(many) == len(one)
    assert f"Only the first {MAX_FORKS_SHOWN} are shown." in text
    assert f"Branch {MAX_FORKS_SHOWN - 1}" in text
    # Look only at the main part, because the sidebar lists the newest sessions.
    assert f"Branch {MAX_FORKS_SHOWN}<" not in text.partition("<main")[2]
