"""Workspaces by the API: creation, settings, members, groups and invitations."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from conversations.archive.rights import REVIEWERS, role_group, role_of
from conversations.models import AuditEntry, Invitation, Membership, Workspace

from .conftest import token_of

ROUNDS = 15

API = "/api/v1/workspaces"

pytestmark = pytest.mark.django_db


def send(caller: Client, method: str, path: str, **body: Any) -> Any:
    return getattr(caller, method)(f"{API}{path}", body, content_type="application/json")


def test_a_workspace_is_created_from_a_folder(
    owner: Client, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "workspace_roots", (tmp_path,))
    (tmp_path / "shed").mkdir()
    made = send(owner, "post", "", root=str(tmp_path / "shed"))
    assert (made.status_code, made.json()) == (
        201,
        {"slug": "shed", "name": "shed", "role": "owner"},
    )
    assert owner.get(made["Location"]).json() == made.json()
    for wrong in ("shed", str(tmp_path / "none"), "/etc"):
        assert send(owner, "post", "", root=wrong).status_code == 400


def test_a_patch_changes_only_the_given_settings(owner: Client, workspace: Workspace) -> None:
    before = owner.get(f"{API}/garden/settings").json()
    patch = {"instructions": "Briefly.", "keep_recent": 3, "reads_instruction_files": False}
    after = send(owner, "patch", "/garden/settings", **patch, allows_network=True).json()
    assert after == before | patch | {"allows_network": True}
    assert owner.get(f"{API}/garden/settings").json() == after
    assert send(owner, "patch", "/garden/settings", keep_recent=None).json()["keep_recent"] is None


def test_an_invalid_setting_changes_nothing(owner: Client, workspace: Workspace) -> None:
    before = owner.get(f"{API}/garden/settings").json()
    wrong: dict[str, Any]
    for wrong in (
        {"default_model": "none"},
        {"window_strategy": "none"},
        {"tool_policy": "none"},
        {"high_water": 10, "low_water": 50},
        {"keep_recent": 0},
    ):
        answer = send(owner, "patch", "/garden/settings", name="Other", **wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_settings"), wrong
        assert owner.get(f"{API}/garden/settings").json() == before, wrong


def test_members_are_added_changed_and_removed(
    owner: Client, workspace: Workspace, user: User, other_user: User
) -> None:
    assert send(owner, "put", "/garden/members/bob", role="viewer").status_code == 200
    send(owner, "put", "/garden/members/bob", role="member")
    found = owner.get(f"{API}/garden/members").json()["items"]
    assert found == [
        {"username": "ann", "role": "owner"},
        {"username": "bob", "role": "member"},
    ]
    assert owner.delete(f"{API}/garden/members/bob").status_code == 204
    assert not Membership.objects.filter(user=other_user).exists()
    assert AuditEntry.objects.filter(actor=user, action="role").count() == 3
    assert owner.delete(f"{API}/garden/members/ann").json()["code"] == "last_owner"
    for nobody in ("nobody", "%00"):
        assert send(owner, "put", f"/garden/members/{nobody}", role="member").status_code == 400
        assert owner.delete(f"{API}/garden/members/{nobody}").status_code == 400
    assert send(owner, "put", "/garden/members/bob", role="king").status_code == 422


def test_groups_are_added_changed_and_removed(
    owner: Client, workspace: Workspace, user: User, other_user: User
) -> None:
    group, role = Group.objects.create(name="Gardeners"), role_group(REVIEWERS)
    other_user.groups.add(group)
    address = f"/garden/groups/{group.pk}"
    known = {"id": group.pk, "name": "Gardeners"}

    def listed() -> Any:
        return owner.get(f"{API}/garden/groups").json()["items"]

    assert listed() == [known | {"role": None, "people": None}]
    added = send(owner, "put", address, role="viewer")
    assert (added.status_code, added.json()) == (200, known | {"role": "viewer", "people": 1})
    assert listed() == [added.json()]
    assert role_of(workspace, other_user.pk) == "viewer"
    assert send(owner, "put", address, role="member").json()["role"] == "member"
    assert owner.delete(f"{API}{address}").status_code == 204
    assert role_of(workspace, other_user.pk) is None
    assert AuditEntry.objects.filter(actor=user, action="role").count() == 3
    assert owner.delete(f"{API}{address}").status_code == 204
    # A group that stands for a role in the installation cannot be added to a workspace.
    assert send(owner, "put", f"/garden/groups/{role.pk}", role="owner").status_code == 404
    assert send(owner, "put", address, role="king").status_code == 422


def test_an_invitation_is_a_link_that_can_be_revoked(owner: Client, workspace: Workspace) -> None:
    made = send(owner, "post", "/garden/invitations", role="viewer", label="Eve")
    assert made.status_code == 201
    link = made.json()["link"].removeprefix("http://testserver")
    assert Client().get(link).status_code == 200
    [shown] = owner.get(f"{API}/garden/invitations").json()["items"]
    assert (shown["label"], shown["role"], shown["created_by"]) == ("Eve", "viewer", "ann")
    assert link not in str(shown)
    assert owner.delete(f"{API}/garden/invitations/{shown['id']}").status_code == 204
    assert owner.delete(f"{API}/garden/invitations/{shown['id']}").status_code == 404
    assert Invitation.objects.get().revoked_at


@pytest.mark.django_db(transaction=True)
def test_concurrent_patches_keep_each_others_fields(workspace: Workspace, user: User) -> None:
    token, together = token_of(user, scopes=["manage"]), Barrier(2, timeout=30)

    def change(name: str) -> None:
        client = Client(headers={"Authorization": f"Bearer {token}"})
        try:
            for number in range(ROUNDS):
                together.wait()
                value = f"{name} {number}"
                assert send(client, "patch", "/garden/settings", **{name: value}).status_code == 200
                together.wait()
                now = Workspace.objects.values("name", "instructions").get()
                assert now == {one: f"{one} {number}" for one in ("name", "instructions")}
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(change, ("name", "instructions")))
