"""The workspace's memory by the API."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.archive.audit import readings_of
from conversations.archive.memory import list_entries
from conversations.archive.sessions import create_session
from conversations.models import Session, Workspace
from tests.web.conftest import MakePerson, say

from .conftest import caller_of

pytestmark = pytest.mark.django_db

JSON = "application/json"


def address(workspace: Workspace, *rest: object) -> str:
    return "/".join(["/api/v1/workspaces", workspace.slug, "memory", *map(str, rest)])


def test_an_entry_is_added_changed_and_removed(owner: Client, workspace: Workspace) -> None:
    new = {"text": "Use tabs", "scope": "workspace"}
    made = owner.post(address(workspace), new, content_type=JSON)
    assert made.status_code == 201
    entry = made.json()
    assert {name: entry[name] for name in ("kind", "text", "scope", "session", "turn")} == {
        "kind": "rule",
        "text": "Use tabs",
        "scope": "workspace",
        "session": None,
        "turn": None,
    }
    changed = owner.patch(
        address(workspace, entry["id"]), {"text": "Use spaces"}, content_type=JSON
    )
    assert changed.json() == entry | {"text": "Use spaces"}
    assert owner.get(address(workspace)).json()["items"] == [changed.json()]
    assert owner.delete(address(workspace, entry["id"])).status_code == 204
    assert owner.get(address(workspace)).json()["items"] == []


def test_an_item_of_a_state_is_kept(
    owner: Client, workspace: Workspace, session: Session, user: User
) -> None:
    say(session, "All dates must be UTC")
    path = f"/api/v1/sessions/{session.uuid}/state"
    state = owner.post(f"{path}/r1.0/keep", {"scope": "workspace"}, content_type=JSON)
    assert state.status_code == 200
    [entry] = list_entries(workspace, user.pk)
    assert (entry.session, entry.turn) == (session, 1)
    # The session's own item stands in its place.
    assert (state.json()["kept"], [one["kind"] for one in state.json()["items"]]) == (
        [],
        ["rule", "focus"],
    )


def test_a_state_tells_what_is_kept(owner: Client, workspace: Workspace, session: Session) -> None:
    new = {"text": "Short answers", "scope": "person", "kind": "preference"}
    entry = owner.post(address(workspace), new, content_type=JSON).json()
    state = owner.get(f"/api/v1/sessions/{session.uuid}/state").json()
    assert state["kept"] == [{name: entry[name] for name in ("id", "kind", "text", "scope")}]


def test_what_is_a_person_s_own_is_not_there_for_others(
    owner: Client, workspace: Workspace, make_person: MakePerson
) -> None:
    new = {"text": "Call me Sam", "scope": "person"}
    entry = owner.post(address(workspace), new, content_type=JSON).json()
    member = caller_of(make_person("member"))
    assert member.get(address(workspace)).json()["items"] == []
    assert member.delete(address(workspace, entry["id"])).status_code == 404
    new["scope"] = "workspace"
    assert member.post(address(workspace), new, content_type=JSON).status_code == 403


def test_what_a_reviewer_reads_of_sessions_is_entered(
    owner: Client, workspace: Workspace, session: Session, make_person: MakePerson
) -> None:
    say(session, "All dates must be UTC")
    keep = f"/api/v1/sessions/{session.uuid}/state/r1.0/keep"
    owner.post(keep, {"scope": "workspace"}, content_type=JSON)
    for person, read in ((make_person("member"), []), (make_person("reviewer"), ["api"])):
        assert len(caller_of(person).get(address(workspace)).json()["items"]) == 1
        assert [entry.action for entry in readings_of(session.uuid)] == read


def test_what_the_state_of_another_session_shows_of_it_is_entered_too(
    owner: Client, workspace: Workspace, session: Session, make_person: MakePerson
) -> None:
    say(session, "All dates must be UTC")
    keep = f"/api/v1/sessions/{session.uuid}/state/r1.0/keep"
    owner.post(keep, {"scope": "workspace"}, content_type=JSON)
    other = create_session(workspace, owner=session.owner)
    for person, read in ((make_person("member"), []), (make_person("reviewer"), ["api"])):
        state = caller_of(person).get(f"/api/v1/sessions/{other.uuid}/state").json()
        assert [kept["text"] for kept in state["kept"]] == ["All dates must be UTC"]
        assert [entry.action for entry in readings_of(session.uuid)] == read
