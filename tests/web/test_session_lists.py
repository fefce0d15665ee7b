"""The list of a workspace's sessions: filters, orders, paging and bulk actions."""

import os
import re
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from conversations.archive.audit import AuditOrigin
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.session_records import read_list_choices
from conversations.archive.sessions import create_session, rename_session
from conversations.archive.workspaces import add_member
from conversations.models import ReadingPosition, Run, Session, Workspace

from .conftest import MakePerson, browser_of, say

pytestmark = pytest.mark.django_db
NAMES = ("Beans", "apples", "Cherries", "Dill")


@pytest.fixture
def sessions(workspace: Workspace, user: User, other_user: User) -> dict[str, Session]:
    """Sessions of two people, in the order of :data:`NAMES`.

    The run in "apples" has failed, "Cherries" waits for approval, and "Dill" is partly read.
    """
    add_member(workspace, user_pk=other_user.pk, role="member")
    made = {}
    for name in NAMES:
        owner = other_user if name == "Dill" else user
        channel = "cli" if name == "Beans" else "web"
        made[name] = create_session(workspace, owner=owner, title=name, channel=channel)
        say(made[name], "one", "two")
    Session.objects.filter(pk=made["Beans"].pk).update(model="claude-haiku-5-5")
    for name, state in (("apples", "failed"), ("Cherries", "waiting_approval")):
        Run.objects.create(
            session=made[name], client_id=name, state=state, created_at=timezone.now()
        )
    ReadingPosition.objects.create(user=user, session=made["Dill"], turn=1)
    return made


def titles(client: Client, query: str) -> list[str]:
    page = client.get(f"/w/garden/?{query}", headers={"HX-Request": "true"}).text
    return re.findall(r'class="title">([^<]*)<', page)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("order=created", ["Dill", "Cherries", "apples", "Beans"]),
        ("order=title", ["apples", "Beans", "Cherries", "Dill"]),
        ("order=title&q=s", ["apples", "Beans", "Cherries"]),
        ("state=running", ["Cherries"]),
        ("state=waiting", ["Cherries"]),
        ("state=failed", ["apples"]),
        ("state=unread", ["Dill"]),
        ("model=claude-haiku-5-5", ["Beans"]),
        ("person=bob", ["Dill"]),
        ("channel=cli", ["Beans"]),
        ("channel=cli&person=bob", []),
        ("channel=cli&person=bob&order=title", []),
        ("state=nonsense&order=nonsense", ["Dill", "Cherries", "apples", "Beans"]),
    ],
)
def test_list_can_be_filtered_and_ordered(
    owner: Client, sessions: dict[str, Session], query: str, found: list[str]
) -> None:
    assert titles(owner, query) == found


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="PostgreSQL has its own collation")
def test_titles_with_non_ascii_letters_are_found_and_ordered(
    owner: Client, sessions: dict[str, Session], user: User, workspace: Workspace
) -> None:
    for title in ("Ärzte", "école", "zebra"):
        create_session(workspace, owner=user, title=title)
    assert titles(owner, "q=ärzte") == titles(owner, "q=ÄRZTE") == ["Ärzte"]
    assert titles(owner, "q=ÉC") == ["école"]
    whole = ["apples", "Ärzte", "Beans", "Cherries", "Dill", "école", "zebra"]
    assert titles(owner, "order=title") == whole


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="PostgreSQL plans by what there is")
def test_filter_choices_are_read_from_a_covering_index(
    workspace: Workspace, sessions: dict[str, Session]
) -> None:
    with CaptureQueriesContext(connection) as queries:
        choices = read_list_choices(workspace, archived=False)
    assert (choices.people, choices.channels) == (["ann", "bob"], ["cli", "web"])
    [statement] = queries.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {statement['sql']}")
        steps = [row[3] for row in cursor.fetchall()]
    assert any("COVERING INDEX session_choices" in step for step in steps), steps


@pytest.mark.parametrize("order", ["latest", "created", "title"])
def test_every_order_is_paginated_without_a_gap(
    owner: Client, sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    whole = titles(owner, f"order={order}")
    monkeypatch.setattr(settings.LOOM, "session_list_size", 3)
    page = owner.get(f"/w/garden/?order={order}").text
    [following] = re.findall(r'hx-get="/w/garden/\?([^"]*)"', page)
    assert titles(owner, f"order={order}") + titles(owner, following.replace("&amp;", "&")) == whole


@pytest.mark.parametrize("is_renamed", [True, False])
def test_paging_by_title_continues_after_a_changed_last_row(
    owner: Client,
    sessions: dict[str, Session],
    monkeypatch: pytest.MonkeyPatch,
    is_renamed: bool,
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 2)
    page = owner.get("/w/garden/?order=title").text
    [following] = re.findall(r'hx-get="/w/garden/\?([^"]*)"', page)
    if is_renamed:
        rename_session(sessions["Beans"], title="Zinnias ~ 1")
    else:
        order = PurgeRequest(reason="Told to.")
        purge(sessions["Beans"], order=order, origin=AuditOrigin(name="t"), now=timezone.now())
    assert titles(owner, following.replace("&amp;", "&"))[:2] == ["Cherries", "Dill"]
    for wrong in ("x", "1", "x~y", "~"):
        assert owner.get(f"/w/garden/?order=title&before={wrong}").status_code == 400


def do(client: Client, action: str, *sessions: Session, **more: Any) -> list[str]:
    """Apply a bulk action, and return the messages of the page that follows."""
    data = {"do": action, "session": [str(session.uuid) for session in sessions]} | more
    page = client.post(reverse("workspace_sessions", args=["garden"]), data, follow=True)
    return re.findall(r"<p data-level[^>]*>([^<]*)</p>", page.text)


def test_several_sessions_are_pinned_and_archived_at_once(
    owner: Client, sessions: dict[str, Session], make_person: MakePerson, other_user: User
) -> None:
    beans, dill = sessions["Beans"], sessions["Dill"]
    assert do(owner, "pin", beans, dill) == ["2 sessions pinned."]
    assert do(owner, "archive", beans) == ["1 session archived."]
    assert titles(owner, "") == ["Dill", "Cherries", "apples"]
    assert titles(owner, "archived=1") == ["Beans"]
    assert do(owner, "unarchive", beans, beans) == ["1 session unarchived."]
    assert do(owner, "unpin", beans, dill) == ["2 sessions unpinned."]
    assert not Session.objects.exclude(pinned_at=None, archived_at=None).exists()
    assert do(owner, "archive") == ["Choose at least one session."]
    assert do(owner, "sell", beans) == ["Choose an action."]
    assert do(owner, "archive", session=["x"]) == ["session must be a UUID."]
    # The action redirects to the page on which the sessions were chosen.
    address = reverse("workspace_sessions", args=["garden"])
    came_from = "http://testserver/w/garden/?q=beans&archived=1"
    chosen = {"do": "unpin", "session": str(beans.uuid)}
    for data in (chosen, {"do": "unpin"}):
        page = owner.post(address, data, headers={"Referer": came_from}, follow=True)
        assert page.redirect_chain == [(came_from, 302)]
    # A viewer is refused, and a session of another workspace is left as it is.
    viewer = browser_of(make_person("viewer"))
    assert viewer.post(address, {"do": "pin", "session": str(beans.uuid)}).status_code == 403
    elsewhere = Workspace.objects.create(
        slug="shed", name="Shed", root="/tmp/shed", created_at=timezone.now()
    )
    theirs = create_session(elsewhere, owner=other_user)
    gone = "This session does not exist in this workspace."
    one_left = [f"1 not changed: {gone}", "1 session pinned."]
    for other in (theirs.uuid, uuid4()):
        assert do(owner, "pin", session=[str(beans.uuid), str(other)]) == one_left
        assert do(owner, "unpin", session=[str(other)]) == [gone]
    assert [one.uuid for one in Session.objects.exclude(pinned_at=None)] == [beans.uuid]


def test_sidebar_contains_the_open_session_even_if_it_is_old(
    owner: Client, sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 2)

    def shown(name: str) -> tuple[list[str], list[str], list[str]]:
        side = owner.get(f"/s/{sessions[name].uuid}/").text.partition("</aside>")[0]
        current = re.findall(r'aria-current="page">\s*<span class="title">([^<]*)<', side)
        found = (re.findall(rf"{tag}>([^<]*)<", side) for tag in ("<h2", 'class="title"'))
        return (*found, current)  # type: ignore[return-value]

    newest = ["Dill", "Cherries"]
    assert shown("Dill") == (["Today"], newest, ["Dill"])
    oldest = (["This session", "Today"], ["Beans", *newest], ["Beans"])
    assert shown("Beans") == oldest
    do(owner, "pin", sessions["Dill"], sessions["Cherries"], sessions["apples"])
    assert shown("Beans") == (["This session", "Pinned"], ["Beans", "Dill", "Cherries"], ["Beans"])
    assert shown("apples")[0] == ["This session", "Pinned"]
    do(owner, "archive", sessions["Beans"])
    assert shown("Beans") == (["Pinned"], newest, [])
    # The next page continues after the last session of the list, not after the open one.
    page = owner.get(f"/s/{sessions['apples'].uuid}/").text
    [following] = re.findall(r'hx-get="/w/garden/\?([^"]*)"', page)
    assert titles(owner, following.replace("&amp;", "&")) == ["apples"]


def test_unchanged_list_answers_304(
    owner: Client, sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "session_list_size", 2)
    page = f"http://testserver/s/{sessions['Beans'].uuid}/"

    def ask(version: str, query: str = "") -> Any:
        headers = {"HX-Request": "true", "If-None-Match": version, "Referer": page}
        return owner.get(f"/w/garden/?{query}", headers=headers)

    first = ask("")
    assert re.findall(r'class="title">([^<]*)<', first.text) == ["Beans", "Dill", "Cherries"]
    assert first.text.count('aria-current="page"') == 1
    again = ask(first["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    Run.objects.filter(session=sessions["Cherries"]).update(state="completed")
    changed = ask(first["ETag"])
    assert changed.status_code == 200
    assert "Waiting for approval" in first.text
    assert "Waiting for approval" not in changed.text
    rename_session(sessions["Beans"], title="Broad beans")
    assert "Broad beans" in ask(changed["ETag"]).text
    assert ask(changed["ETag"], "q=dill").status_code == 200
    # The version of the list does not apply to a whole page.
    assert owner.get("/w/garden/", headers={"If-None-Match": first["ETag"]}).status_code == 200
