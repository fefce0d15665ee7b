"""Workspace memory by the API."""

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


def test_a_state_item_is_kept_in_the_workspace_memory(
    owner: Client, workspace: Workspace, session: Session, user: User
) -> None:
    say(session, "All dates must be UTC")
    path = f"/api/v1/sessions/{session.uuid}/state"
    state = owner.post(f"{path}/r1.0/keep", {"scope": "workspace"}, content_type=JSON)
    assert state.status_code == 200
    [entry] = list_entries(workspace, user.pk)
    assert (entry.session, entry.turn) == (session, 1)
    # The session's state shows its own item instead of the kept entry.
    assert (state.json()["kept"], [one["kind"] for one in state.json()["items"]]) == (
        [],
        ["rule", "focus"],
    )


def test_a_session_state_lists_the_workspace_memory(
    owner: Client, workspace: Workspace, session: Session
) -> None:
    new = {"text": "Short answers", "scope": "person", "kind": "preference"}
    entry = owner.post(address(workspace), new, content_type=JSON).json()
    state = owner.get(f"/api/v1/sessions/{session.uuid}/state").json()
    assert state["kept"] == [{name: entry[name] for name in ("id", "kind", "text", "scope")}]


def test_a_personal_entry_is_invisible_to_others(
    owner: Client, workspace: Workspace, make_person: MakePerson
) -> None:
    new = {"text": "Call me Sam", "scope": "person"}
    entry = owner.post(address(workspace), new, content_type=JSON).json()
    member = caller_of(make_person("member"))
    assert member.get(address(workspace)).json()["items"] == []
    assert member.delete(address(workspace, entry["id"])).status_code == 404
    new["scope"] = "workspace"
    assert member.post(address(workspace), new, content_type=JSON).status_code == 403


def test_a_reviewers_reading_of_the_memory_is_recorded(
    owner: Client, workspace: Workspace, session: Session, make_person: MakePerson
) -> None:
    say(session, "All dates must be UTC")
    keep = f"/api/v1/sessions/{session.uuid}/state/r1.0/keep"
    owner.post(keep, {"scope": "workspace"}, content_type=JSON)
    for person, read in ((make_person("member"), []), (make_person("reviewer"), ["api"])):
        assert len(caller_of(person).get(address(workspace)).json()["items"]) == 1
        assert [entry.action for entry in readings_of(session.uuid)] == read


def test_a_reviewers_reading_through_another_state_is_recorded(
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
