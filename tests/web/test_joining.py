"""Invitations: created by owners and used once, with or without an existing account."""

import re
from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.accounts.devices import list_devices
from conversations.accounts.invitations import (
    MAX_OPEN_INVITATIONS,
    accept_invitation,
    create_invitation,
    list_invitations,
)
from conversations.archive.audit import AuditOrigin
from conversations.archive.rights import ADMINISTRATORS, role_group, role_of
from conversations.archive.workspaces import add_member, remove_member
from conversations.domain.audit import ROLE
from conversations.domain.errors import Rejected
from conversations.models import AuditEntry, Invitation, Workspace
from tests.web.test_people import noted

from .conftest import browser_of, flat

pytestmark = pytest.mark.django_db

NEW = {"username": "eve", "password1": "staple battery", "password2": "staple battery"}


def invitation(workspace: Workspace | None, by: User, role: str = "member") -> str:
    """Create an invitation, and return its address."""
    token = create_invitation(
        workspace=workspace,
        role=role if workspace else "",
        label="Eve",
        lifetime=timedelta(days=1),
        origin=AuditOrigin(user=by),
    )
    return reverse("join", args=[token])


def test_invitation_link_is_shown_once_and_not_stored(
    owner: Client, user: User, workspace: Workspace
) -> None:
    page = owner.post(
        reverse("workspace_invite", args=["garden"]), {"label": "Eve", "role": "viewer"}
    )
    found = re.search(r'value="http://testserver(/join/[^"]+)"', page.text)
    assert found
    token = found[1].split("/")[2]
    assert page["Cache-Control"] == "no-store"
    members_page = owner.get(reverse("workspace_members", args=["garden"])).text
    assert "Eve" in members_page
    assert token not in members_page
    for model in apps.get_models():
        assert not [row for row in model._default_manager.values() if token in str(row)], model
    assert "ann invites you" in Client().get(found[1]).text
    assert noted() == ['{"invited":"Eve","role":"viewer"}']


def test_opening_an_invitation_does_not_use_it_up(
    client: Client, user: User, workspace: Workspace
) -> None:
    link = invitation(workspace, user)
    for _ in range(2):
        page = client.get(link)
        assert page.status_code == 200
        assert client.head(link).status_code == 200
    assert page["X-Robots-Tag"] == "noindex, nofollow"
    assert page["Referrer-Policy"] == "same-origin"
    assert "no-store" in page["Cache-Control"]


def test_person_with_an_account_joins(user: User, workspace: Workspace, other_user: User) -> None:
    client, link = browser_of(other_user), invitation(workspace, user)
    assert "Create an account" not in client.get(link).text
    response = client.post(link)
    assert response["Location"] == reverse("workspace", args=["garden"])
    assert role_of(workspace, other_user.pk) == "member"
    assert noted()[-1] == '{"joined":"bob","role":"member"}'
    assert AuditEntry.objects.latest("number").place == "/join/…/"
    assert not list_invitations(workspace)


def test_invitation_works_once(user: User, workspace: Workspace, other_user: User) -> None:
    link = invitation(workspace, user)
    browser_of(other_user).post(link)
    assert Client().post(link, NEW).status_code == 410
    assert not User.objects.filter(username="eve").exists()


def test_stranger_creates_an_account_and_joins(
    client: Client, user: User, workspace: Workspace
) -> None:
    link = invitation(workspace, user)
    response = client.post(link, NEW)
    assert response["Location"] == reverse("workspace", args=["garden"])
    assert client.get(response["Location"]).status_code == 200
    eve = User.objects.get(username="eve")
    assert eve.check_password("staple battery")
    assert {eve.is_staff, eve.is_superuser} == {False}
    assert role_of(workspace, eve.pk) == "member"
    assert len(list_devices(eve.pk)) == 1
    assert Invitation.objects.get().used_by == eve


@pytest.mark.parametrize(
    "wrong",
    [
        {"password1": "12345678", "password2": "12345678"},
        {"password2": "something else"},
        {"username": "ann"},
        {"username": "ANN"},
        {"username": "a b"},
        {"username": "a\0b"},
        {"username": ""},
        {"username": "e" * 200},
    ],
)
def test_invalid_account_is_refused_and_does_not_use_up_the_invitation(
    client: Client, user: User, workspace: Workspace, wrong: dict[str, str]
) -> None:
    link = invitation(workspace, user)
    response = client.post(link, NEW | wrong)
    assert response.status_code == 400
    assert "staple battery" not in response.text
    assert User.objects.count() == 1
    assert client.post(link, NEW).status_code == 302


def test_stranger_can_sign_in_and_return_to_the_invitation(
    client: Client, user: User, workspace: Workspace, other_user: User
) -> None:
    link = invitation(workspace, user)
    found = re.search(r'Already have an account\? <a href="([^"]+)"', flat(client.get(link).text))
    assert found
    sign_in = {"username": "bob", "password": "battery staple", "next": link}
    assert client.post(found[1], sign_in)["Location"] == link
    assert client.post(link).status_code == 302
    assert role_of(workspace, other_user.pk) == "member"


def test_setting_forbids_new_accounts_by_invitation(
    client: Client, user: User, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "invite_strangers", False)
    link = invitation(workspace, user)
    assert "password" not in client.get(link).text
    assert client.post(link, NEW).status_code == 200
    assert User.objects.count() == 1


def expire(_: Workspace, __: User) -> None:
    Invitation.objects.update(expires_at=timezone.now())


def revoke(workspace: Workspace, user: User) -> None:
    [made] = list_invitations(workspace)
    address = reverse("workspace_invitation_revoke", args=["garden", made.pk])
    assert browser_of(user).post(address).status_code == 302


def demote(workspace: Workspace, user: User) -> None:
    add_member(workspace, user_pk=User.objects.create_user("dan").pk, role="owner")
    add_member(workspace, user_pk=user.pk, role="member")


def close(_: Workspace, user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


@pytest.mark.parametrize("end", [expire, revoke, demote, close])
def test_expired_revoked_or_unauthorised_invitation_answers_410(
    client: Client, user: User, workspace: Workspace, other_user: User, end: Any
) -> None:
    link = invitation(workspace, user)
    end(workspace, user)
    page = client.get(link)
    assert page.status_code == 410
    assert "This invitation is no longer valid" in page.text
    assert browser_of(other_user).post(link).status_code == 410
    assert role_of(workspace, other_user.pk) is None


@pytest.mark.parametrize(
    ("now", "invited", "then", "is_used"),
    [
        ("viewer", "member", "member", True),
        ("member", "viewer", "member", False),
        ("owner", "owner", "owner", False),
    ],
)
def test_joining_never_lowers_a_role(
    user: User,
    workspace: Workspace,
    other_user: User,
    now: str,
    invited: str,
    then: str,
    is_used: bool,
) -> None:
    add_member(workspace, user_pk=other_user.pk, role=now)
    response = browser_of(other_user).post(invitation(workspace, user, invited))
    assert role_of(workspace, other_user.pk) == then
    assert (Invitation.objects.get().used_at is not None) == is_used
    assert is_used or "already" in response.text


def test_second_acceptance_of_an_invitation_is_rejected(
    user: User, workspace: Workspace, other_user: User
) -> None:
    token = invitation(workspace, user).split("/")[2]
    accept_invitation(token, user=other_user, origin=AuditOrigin(user=other_user))
    third = User.objects.create_user("eve")
    with pytest.raises(Rejected, match="no longer valid"):
        accept_invitation(token, user=third, origin=AuditOrigin(user=third))
    assert role_of(workspace, third.pk) is None


def test_administrator_invites_to_the_installation_only(client: Client, other_user: User) -> None:
    other_user.groups.add(role_group(ADMINISTRATORS))
    link = invitation(None, other_user)
    assert "to the workspace" not in client.get(link).text
    assert client.post(link, NEW)["Location"] == reverse("home")
    assert client.get(reverse("home")).status_code == 200
    second = invitation(None, other_user)
    Group.objects.all().delete()
    assert Client().get(second).status_code == 410, "who is no administrator any more"


def test_unknown_invitation_links_cause_no_lockout(
    user: User,
    workspace: Workspace,
    caplog: pytest.LogCaptureFixture,
    django_assert_max_num_queries: Any,
) -> None:
    link = invitation(workspace, user)
    with django_assert_max_num_queries(2 * 60):
        for number in range(60):
            assert Client().get(reverse("join", args=[f"x{number}"])).status_code == 410
    assert not AccessAttempt.objects.exists()
    assert Client().get(link).status_code == 200
    assert Client().post(link, NEW).status_code == 302
    assert "/join/" not in caplog.text


def test_attempt_log_stores_no_password_and_no_invitation_link(
    client: Client, user: User, workspace: Workspace
) -> None:
    client.post(reverse("join", args=["over"]), NEW)
    link = invitation(workspace, user)
    wrong = {"username": "ann", "password": "secret word", "next": link}
    client.post(f"{reverse('sign_in')}?next={link}", wrong)
    for attempt in AccessAttempt.objects.values():
        kept = str(attempt)
        assert "staple" not in kept
        assert "secret word" not in kept
        assert link.split("/")[2] not in kept
    assert AccessAttempt.objects.count() == 1


@pytest.mark.parametrize("token", ["x", "a" * 5000, "%00", "%ff%fe", "💥"])
def test_malformed_invitation_token_causes_no_error(client: Client, token: str) -> None:
    assert client.get(f"/join/{token}/").status_code in (404, 410)


def test_the_number_of_open_invitations_is_limited(
    owner: Client, user: User, workspace: Workspace
) -> None:
    now = timezone.now()
    Invitation.objects.bulk_create(
        Invitation(
            digest=f"{n:064}",
            workspace=workspace,
            role="viewer",
            created_by=user,
            created_at=now,
            expires_at=now + timedelta(days=1),
        )
        for n in range(MAX_OPEN_INVITATIONS)
    )
    data = {"role": "viewer"}
    page = owner.post(reverse("workspace_invite", args=["garden"]), data, follow=True)
    assert "Too many open invitations." in page.text


def test_a_group_is_added_and_removed_in_the_settings(
    owner: Client, workspace: Workspace, other_user: User
) -> None:
    gardeners = Group.objects.create(name="Gardeners")
    other_user.groups.add(gardeners)
    role_group(ADMINISTRATORS)
    add = reverse("workspace_group_add", args=["garden"])
    page = owner.post(add, {"group": gardeners.pk, "role": "member"}, follow=True)
    assert "group of 1 person" in flat(page.text)
    assert role_of(workspace, other_user.pk) == "member"
    reviewers = role_group("Reviewers")
    page = owner.post(add, {"group": reviewers.pk, "role": "member"}, follow=True)
    assert "Choose a group and a role." in page.text, "it would read without an entry"
    remove = reverse("workspace_group_remove", args=["garden", gardeners.pk])
    assert "Gardeners was removed." in owner.post(remove, follow=True).text
    assert role_of(workspace, other_user.pk) is None
    assert noted() == ['{"group":"Gardeners","role":"member"}', '{"group":"Gardeners","role":""}']


def test_membership_changes_are_in_the_audit_log(
    owner: Client, user: User, workspace: Workspace, other_user: User
) -> None:
    owner.post(
        reverse("workspace_member_add", args=["garden"]), {"username": "bob", "role": "viewer"}
    )
    owner.post(reverse("workspace_member_remove", args=["garden"]), {"username": "bob"})
    entries = AuditEntry.objects.order_by("number")
    assert [(entry.action, entry.actor, entry.workspace) for entry in entries] == [
        (ROLE, user, "garden")
    ] * 2
    assert noted() == ['{"person":"bob","role":"viewer"}', '{"person":"bob","role":""}']
    remove_member(workspace, user_pk=other_user.pk)
    assert len(noted()) == 2
