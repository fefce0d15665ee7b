"""Purges and holds through the API."""

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from conversations.archive.sessions import get_session
from conversations.archive.workspaces import add_member
from conversations.domain import audit
from conversations.features.retention.service import get_receipt
from conversations.models import AuditEntry, PurgeOrder, Session, Workspace
from tests.api.conftest import caller_of, fresh_rates  # noqa: F401 (a fixture)
from tests.api.test_conversations import API, open_bead, whole
from tests.web.conftest import MakePerson, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(user: User) -> Client:
    return caller_of(user)


def test_deleting_a_conversation_is_a_purge_with_a_receipt(
    workspace: Workspace, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = open_bead(owner, workspace)
    session = get_session(made["session_id"])
    say(session, "Investigate", "It leaks.")
    address = f"{API}/conversations/{made['session_id']}"
    monkeypatch.setattr(settings.LOOM, "purge_grace_days", 30)
    waits = owner.delete(address).json()
    assert (waits["success"], waits["receipt"]) == (True, None)
    assert owner.delete(address).json() == waits
    assert len(whole(owner, address)["messages"]) == 2
    assert open_bead(owner, workspace)["session_id"] != made["session_id"]  # its key is free

    monkeypatch.setattr(settings.LOOM, "purge_grace_days", 0)
    other = open_bead(owner, workspace)
    say(get_session(other["session_id"]), "Again")
    gone = owner.delete(f"{API}/conversations/{other['session_id']}?reason=Done").json()
    receipt = get_receipt(gone["receipt"])
    assert (receipt.turns, receipt.reason, str(receipt.session)) == (1, "Done", other["session_id"])
    assert owner.get(f"{API}/conversations/{other['session_id']}").status_code == 404


def test_deleting_requires_the_right_to_purge(workspace: Workspace, owner: Client) -> None:
    made = open_bead(owner, workspace)
    member = User.objects.create_user("member")
    add_member(workspace, user_pk=member.pk, role="member")
    address = f"{API}/conversations/{made['session_id']}"
    assert caller_of(member).delete(address).status_code == 403
    assert caller_of(User.objects.create_user("bob")).delete(address).status_code == 404
    assert (
        caller_of(member, scopes=["write"]).delete(address).json()["code"] == "insufficient_scope"
    )


def test_a_purge_is_previewed_ordered_and_called_off(owner: Client, session: Session) -> None:
    say(session, "Plant the beans", "In May")
    address = f"{API}/sessions/{session.uuid}/purge"
    found = owner.get(address).json()
    assert (found["counts"]["turns"], found["due_at"]) == (2, None)
    body = {"reason": "They asked for it."}
    ordered = owner.put(address, body, content_type="application/json").json()
    assert (ordered["reason"], ordered["ordered_by"], ordered["by_policy"]) == (
        "They asked for it.",
        "ann",
        False,
    )
    again = owner.put(address, {"reason": "Again"}, content_type="application/json").json()
    assert again == ordered == owner.get(address).json()
    assert owner.delete(address).status_code == 204
    assert get_session(session.uuid).archived_at is None
    assert owner.delete(address).json()["code"] == "no_purge_ordered"
    entries = AuditEntry.objects.order_by("number").values_list("action", "place")
    assert list(entries) == [
        (audit.PURGE_ORDERED, address),
        (audit.PURGE_CALLED_OFF, address),
    ]


def test_members_can_call_off_only_purges_ordered_by_the_policy(
    workspace: Workspace, session: Session, make_person: MakePerson
) -> None:
    member = make_person("member")
    assert member
    Session.objects.update(owner=member)
    caller, now = caller_of(member), session.created_at
    order = PurgeOrder.objects.create(session=session, reason="Idle", ordered_at=now, due_at=now)
    address = f"{API}/sessions/{session.uuid}/purge"
    assert caller.delete(address).status_code == 403
    PurgeOrder.objects.filter(pk=order.pk).update(by_policy=True)
    assert caller.delete(address).status_code == 204


def test_holds_are_placed_listed_and_released(
    owner: Client, session: Session, workspace: Workspace, make_person: MakePerson
) -> None:
    keeper = caller_of(make_person("administrator"))

    def place(what: str, reason: str = "A dispute") -> int:
        body = {"what": what, "reason": reason}
        return keeper.post(f"{API}/holds", body, content_type="application/json").status_code

    assert (place(str(session.uuid)), place(workspace.slug)) == (201, 201)
    assert (place("nowhere"), place(workspace.slug, "  ")) == (404, 400)
    first = keeper.get(f"{API}/holds?limit=1").json()
    rest = keeper.get(f"{API}/holds?limit=1&cursor={first['next']}").json()
    [of_workspace], [of_session] = first["items"], rest["items"]
    assert (of_workspace["session"], of_workspace["workspace"]) == (None, "garden")
    assert (of_session["session"], of_session["workspace"]) == (str(session.uuid), "garden")
    assert keeper.get(f"{API}/holds?limit=1&cursor={rest['previous']}").json()["items"] == [
        of_workspace
    ]
    held = owner.delete(f"{API}/conversations/{session.uuid}")
    assert (held.status_code, held.json()["code"]) == (409, "session_held")
    for hold in (of_workspace, of_session):
        released = keeper.post(f"{API}/holds/{hold['id']}/release").json()
        assert released["released_at"] is not None
    assert keeper.post(f"{API}/holds/{hold['id']}/release").json()["code"] == "hold_released"
    assert keeper.get(f"{API}/holds").json()["items"] == []
    assert owner.get(f"{API}/holds").status_code == 404
