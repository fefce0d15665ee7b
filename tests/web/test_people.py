"""The administrators' pages for people and groups."""

import json
from itertools import product

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.accounts import people as archive_people
from conversations.accounts import people_pages
from conversations.accounts.devices import list_devices
from conversations.accounts.tokens import create_token, find_caller
from conversations.archive.audit import AuditOrigin
from conversations.archive.rights import (
    ADMINISTRATORS,
    REVIEWERS,
    is_administrator,
    is_reviewer,
    role_group,
    role_of,
)
from conversations.archive.workspaces import add_group, add_member, remove_member
from conversations.domain.audit import READINGS, ROLE
from conversations.domain.errors import NotPermitted, Rejected
from conversations.models import AuditEntry, Membership, Session, Workspace
from tests.test_admin import changed_tables, rows_of_all_tables

from .conftest import browser_of

pytestmark = pytest.mark.django_db

PEOPLE = reverse("people")


@pytest.fixture
def head(db: None) -> User:
    """An administrator who belongs to no workspace."""
    person = User.objects.create_user("head")
    person.groups.add(role_group(ADMINISTRATORS))
    return person


@pytest.fixture
def office(head: User) -> Client:
    return browser_of(head)


def noted() -> list[str]:
    entries = AuditEntry.objects.filter(action=ROLE).order_by("number")
    return list(entries.values_list("metadata", flat=True))


def fresh(person: User) -> User:
    """Load the person again, without the permissions that Django has cached on the object."""
    return User.objects.get(pk=person.pk)


def names(page: str) -> list[str]:
    return [part.split("</b>")[0] for part in page.split("<b>")[1:]]


def test_people_are_listed_found_and_paged(
    office: Client, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    User.objects.create_user("zoe", first_name="Zoe", last_name="Bean", email="z@example.org")
    User.objects.create_user("gone", is_active=False)
    assert names(office.get(PEOPLE).text) == ["ann", "head", "zoe"]
    for query in ("ZOE", "bean", "example.org"):
        assert names(office.get(PEOPLE, {"q": query}).text) == ["zoe"]
    assert names(office.get(PEOPLE, {"closed": "1"}).text) == ["gone"]
    assert "No name or e-mail address contains “&lt;b&gt;”" in office.get(PEOPLE, {"q": "<b>"}).text
    monkeypatch.setattr(people_pages, "PER_PAGE", 2)
    first = office.get(PEOPLE).text
    assert names(first) == ["ann", "head"]
    assert '?after=head"' in first
    assert names(office.get(PEOPLE, {"after": "head"}).text) == ["zoe"]
    assert office.get(PEOPLE, {"after": "a\0b", "q": "\0"}).status_code == 200


def test_query_count_is_independent_of_the_number_of_people(office: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            office.get(PEOPLE)
        return len(queries)

    before = count()
    for number in range(20):
        person = User.objects.create(username=f"person {number:02}")
        person.groups.add(role_group(REVIEWERS))
    assert count() == before


def test_roles_are_given_and_taken(office: Client, head: User, user: User) -> None:
    roles = reverse("person_roles", args=[user.pk])
    office.post(roles, {"roles": [REVIEWERS, ADMINISTRATORS, "Gardeners"]})
    assert (is_reviewer(fresh(user)), is_administrator(fresh(user))) == (True, True)
    page = office.get(reverse("person", args=[user.pk])).text
    assert page.count(" checked") == 2
    office.post(roles, {"roles": [REVIEWERS]})
    office.post(roles, {"roles": [REVIEWERS]})  # nothing changes, so there is no entry
    office.post(roles)
    assert (is_reviewer(fresh(user)), is_administrator(fresh(user))) == (False, False)
    assert noted() == [
        '{"person":"ann","roles":"Administrators, Reviewers"}',
        '{"person":"ann","roles":"Reviewers"}',
        '{"person":"ann","roles":""}',
    ]
    assert set(AuditEntry.objects.values_list("actor", flat=True)) == {head.pk}


@pytest.mark.parametrize("name", ["person_roles", "person_close", "person_sign_out"])
def test_administrator_cannot_change_themselves_or_a_superuser(
    office: Client, head: User, name: str
) -> None:
    root = User.objects.create_superuser("root")
    for person in (head, root):
        response = office.post(reverse(name, args=[person.pk]), {"roles": [REVIEWERS]})
        assert response.status_code == 403
        assert fresh(person).is_active
    assert not is_reviewer(fresh(head))
    assert noted() == []
    page = office.get(reverse("person", args=[head.pk])).text
    assert "This is your own account." in page
    assert reverse("person_close", args=[head.pk]) not in page
    assert "Only a superuser can change a superuser." in (
        office.get(reverse("person", args=[root.pk])).text
    )
    other = browser_of(User.objects.create_superuser("second"))
    assert other.post(reverse(name, args=[root.pk])).status_code == 302


def test_a_closed_account_is_signed_out_and_can_be_opened_again(office: Client, user: User) -> None:
    theirs = browser_of(user)
    assert len(list_devices(user.pk)) == 1
    page = office.post(reverse("person_close", args=[user.pk]), follow=True).text
    assert "Account closed." in page
    assert theirs.get(reverse("home")).status_code == 302
    assert not fresh(user).is_active
    assert list_devices(user.pk) == []
    page = office.post(reverse("person_open", args=[user.pk]), follow=True).text
    assert "Account reopened." in page
    assert fresh(user).is_active
    assert theirs.get(reverse("home")).status_code == 302, "the old cookie is of no use"
    assert noted() == [
        '{"person":"ann","account":"closed"}',
        '{"person":"ann","account":"opened"}',
    ]


def test_person_is_signed_out_everywhere(office: Client, user: User) -> None:
    theirs = browser_of(user)
    office.post(reverse("person_sign_out", args=[user.pk]))
    assert theirs.get(reverse("home")).status_code == 302
    assert noted() == ['{"person":"ann","signed_out":"1"}']


@pytest.mark.parametrize("name", ["person_sign_out", "person_close"])
def test_signing_out_or_closing_revokes_tokens_permanently(
    office: Client, user: User, name: str
) -> None:
    scopes, lifetime = ["read"], None
    token = create_token(user, name="Nightly", scopes=scopes, lifetime=lifetime)
    assert "1 API token" in office.get(reverse("person", args=[user.pk])).text
    office.post(reverse(name, args=[user.pk]))
    office.post(reverse("person_open", args=[user.pk]))
    assert find_caller(token, address="") is None


def test_group_is_created_filled_and_removed(
    office: Client, workspace: Workspace, user: User, other_user: User
) -> None:
    made = office.post(reverse("group_create"), {"name": " Gardeners "})
    group = Group.objects.get(name="Gardeners")
    assert made["Location"] == reverse("group", args=[group.pk])
    add = reverse("group_add", args=[group.pk])
    office.post(add, {"username": "bob"})
    add_group(workspace, group=group, role="viewer", origin=AuditOrigin(user=user))
    page = office.get(reverse("group", args=[group.pk])).text
    assert "bob" in page
    assert "Garden" in page
    assert "1 person" in office.get(reverse("groups")).text
    assert role_of(workspace, other_user.pk) == "viewer"
    take_out = reverse("group_take_out", args=[group.pk, other_user.pk])
    assert "Removed." in office.post(take_out, follow=True).text
    assert role_of(workspace, other_user.pk) is None
    office.post(add, {"username": "bob"})
    removed = office.post(reverse("group_remove", args=[group.pk]), follow=True)
    assert "Gardeners was removed." in removed.text
    assert role_of(workspace, other_user.pk) is None
    assert len(noted()) == 6


def test_unchanged_group_leaves_no_audit_entry(office: Client, other_user: User) -> None:
    group = Group.objects.create(name="Gardeners")
    take_out = reverse("group_take_out", args=[group.pk, other_user.pk])
    office.post(take_out)
    assert noted() == []
    for _ in range(2):
        office.post(reverse("group_add", args=[group.pk]), {"username": "bob"})
    for _ in range(2):
        office.post(take_out)
    assert [json.loads(entry)["change"] for entry in noted()] == ["added", "removed"]


@pytest.mark.parametrize("name", ["", " ", "Reviewers"])
def test_empty_or_taken_group_name_is_refused(office: Client, name: str) -> None:
    role_group(REVIEWERS)
    before = Group.objects.count()
    page = office.post(reverse("group_create"), {"name": name})
    assert page.status_code == 400
    assert 'class="error"' in page.text
    assert f'value="{name}"' in page.text
    assert Group.objects.count() == before


def test_unknown_username_stays_in_its_field(office: Client) -> None:
    group = Group.objects.create(name="Gardeners")
    page = office.post(reverse("group_add", args=[group.pk]), {"username": "nobdy"})
    assert page.status_code == 400
    assert 'value="nobdy"' in page.text
    assert "The account “nobdy” does not exist." in page.text


def test_administrator_cannot_join_a_workspace_through_a_group(
    office: Client, head: User, workspace: Workspace, user: User, session: Session
) -> None:
    """Being an administrator does not include the right to read transcripts."""
    group = Group.objects.create(name="Gardeners")
    add_group(workspace, group=group, role="owner", origin=AuditOrigin(user=user))
    page = office.post(reverse("group_add", args=[group.pk]), {"username": "head"}, follow=True)
    assert "You cannot change your own permissions" in page.text
    assert role_of(workspace, head.pk) is None
    assert office.get(reverse("session", args=[session.uuid])).status_code == 404
    assert not AuditEntry.objects.filter(action__in=READINGS).exists()


def test_groups_with_permissions_cannot_be_changed_on_these_pages(office: Client) -> None:
    reviewers = role_group(REVIEWERS)
    assert REVIEWERS not in office.get(reverse("groups")).text
    assert office.get(reverse("group", args=[reviewers.pk])).status_code == 404
    add = reverse("group_add", args=[reviewers.pk])
    assert office.post(add, {"username": "head"}).status_code == 404


def test_an_invitation_is_made_and_revoked(office: Client) -> None:
    page = office.post(reverse("people_invite"), {"label": "Eve"})
    assert "/join/" in page.text
    listed = office.get(PEOPLE).text
    assert "Eve" in listed
    address = listed.split('action="/people/invitations/')[1].split('"')[0]
    office.post(f"/people/invitations/{address}")
    assert "Eve" not in office.get(PEOPLE).text
    assert noted() == ['{"invited":"Eve"}', '{"revoked":"Eve"}']


ACTS = {
    "set_rank": lambda pk, origin: archive_people.set_rank(
        pk, is_superuser=True, is_staff=True, origin=origin
    ),
    "reset_password": lambda pk, origin: archive_people.reset_password(pk, origin=origin),
    "unlock_sign_in": lambda pk, origin: archive_people.unlock_sign_in(pk, origin=origin),
    "set_roles": lambda pk, origin: archive_people.set_roles(pk, names=[REVIEWERS], origin=origin),
    "close_account": lambda pk, origin: archive_people.set_active(
        pk, is_active=False, origin=origin
    ),
    "open_account": lambda pk, origin: archive_people.set_active(pk, is_active=True, origin=origin),
    "sign_out_person": lambda pk, origin: archive_people.sign_out_person(pk, origin=origin),
    "add_to_group": lambda pk, origin: archive_people.add_to_group(
        Group.objects.get(name="Gardeners"), user=User.objects.get(pk=pk), origin=origin
    ),
    "remove_from_group": lambda pk, origin: archive_people.remove_from_group(
        Group.objects.get(name="Cooks"), user_pk=pk, origin=origin
    ),
}
SUPERUSERS_ONLY = ("set_rank", "reset_password")


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def ann(user: User) -> User:
    """A person who is in a group and locked out."""
    Group.objects.create(name="Gardeners")
    user.groups.add(Group.objects.create(name="Cooks"))
    AccessAttempt.objects.create(username="ann", ip_address="127.0.0.1", failures_since_start=9)
    return user


@pytest.mark.parametrize("act", ACTS)
def test_change_of_rights_and_its_entry_are_one_transaction(
    act: str, root: User, ann: User
) -> None:
    if act == "open_account":
        User.objects.filter(pk=ann.pk).update(is_active=False)
    before = rows_of_all_tables()
    with transaction.atomic():
        ACTS[act](ann.pk, AuditOrigin(user=root))
        assert len(noted()) == 1
        assert len(changed_tables(before) - {"conversations_auditentry"}) > 0
        transaction.set_rollback(True)
    assert changed_tables(before) == set(), "neither without the other"


@pytest.mark.parametrize(
    ("act", "who"),
    [
        *product(sorted(ACTS.keys() - {"remove_from_group"}), ("self", "demoted", "on one")),
        *((act, "as administrator") for act in SUPERUSERS_ONLY),
    ],
)
def test_forbidden_changes_of_rights_are_refused(
    act: str, who: str, root: User, head: User, ann: User
) -> None:
    """People may not change their own rights, or any rights after losing their own.

    An administrator may not change a superuser, make somebody a superuser, or reset a password
    and so sign in as somebody else.
    """
    actor, pk = head, ann.pk
    if who == "self":
        actor, pk = root, root.pk
    elif who == "demoted":
        actor = User.objects.create_superuser("old")
        User.objects.filter(pk=actor.pk).update(is_superuser=False)
    elif who == "on one":
        pk = root.pk
    before = rows_of_all_tables()
    with pytest.raises(NotPermitted):
        ACTS[act](pk, AuditOrigin(user=actor))
    assert changed_tables(before) == set()


@pytest.mark.parametrize("act", ["set_rank", "close_account"])
def test_last_superuser_cannot_be_demoted_or_closed(act: str, root: User) -> None:
    """This holds even for server commands, to which the rule about oneself does not apply."""
    acts = ACTS | {
        "set_rank": lambda pk, origin: archive_people.set_rank(
            pk, is_superuser=False, is_staff=True, origin=origin
        )
    }
    User.objects.create_superuser("closed", is_active=False)
    with pytest.raises(Rejected):
        acts[act](root.pk, AuditOrigin())
    assert noted() == []
    second = User.objects.create_superuser("second")
    acts[act](root.pk, AuditOrigin(user=second))
    assert len(noted()) == 1


def test_workspace_of_a_closed_account_can_get_another_owner(
    office: Client, head: User, root: User, user: User, workspace: Workspace, other_user: User
) -> None:
    """Otherwise nobody could manage it. While an owner can sign in, the decision is theirs."""
    page, make_owner = (reverse(name, args=[user.pk]) for name in ("person", "person_owner"))
    top = browser_of(root)

    def choose(username: str, browser: Client = top) -> str:
        form = {"workspace": workspace.slug, "username": username}
        return browser.post(make_owner, form, follow=True).text

    assert "Only ann can manage Garden." in office.get(page).text
    assert "has an owner who can sign in" in choose("bob")
    add_member(workspace, user_pk=other_user.pk, role="owner")
    assert "can manage Garden" not in office.get(page).text
    User.objects.filter(pk__in=[user.pk, other_user.pk]).update(is_active=False)
    assert make_owner in top.get(page).text
    assert "does not exist" in choose("bob"), "nor can he sign in"
    # An administrator may not make an owner, because an owner can read the transcripts.
    assert make_owner not in office.get(page).text
    assert "A superuser can choose a new owner" in office.get(page).text
    assert "Only a superuser can do this." in choose("head", office)
    assert noted() == []
    assert make_owner not in choose("root")
    assert (role_of(workspace, root.pk), role_of(workspace, user.pk)) == ("owner", "owner")
    assert noted() == ['{"person":"root","role":"owner"}']
    remove_member(workspace, user_pk=user.pk)
    with pytest.raises(Rejected, match="whose account is open"):
        remove_member(workspace, user_pk=root.pk)
    # A person who is an owner through a group can manage the workspace too.
    root.groups.add(group := Group.objects.create(name="Gardeners"))
    Membership.objects.filter(user=root).update(role="viewer")
    add_group(workspace, group=group, role="owner", origin=AuditOrigin())
    assert archive_people.read_person(root.pk)["owned_alone"] == [workspace]
    group.user_set.add(head)
    assert archive_people.read_person(root.pk)["owned_alone"] == []


def test_superuser_promotes_unlocks_and_resets_a_person(root: User, ann: User) -> None:
    office = browser_of(root)
    page = office.get(reverse("person", args=[ann.pk])).text
    assert "9 failed sign-in attempts" in page
    office.post(reverse("person_unlock", args=[ann.pk]))
    office.post(reverse("person_rank", args=[ann.pk]), {"rank": ["superuser", "staff"]})
    assert (fresh(ann).is_superuser, fresh(ann).is_staff) == (True, True)
    token = create_token(ann, name="laptop", scopes=["read"], lifetime=None)
    shown = office.post(reverse("person_reset_password", args=[ann.pk]))
    program = Client(headers={"Authorization": f"Bearer {token}"})
    assert program.get("/api/v1/workspaces").status_code == 401
    assert "no-store" in shown["Cache-Control"]
    assert not fresh(ann).has_usable_password()
    link = shown.text.partition('readonly value="http://testserver')[2].partition('"')[0]
    browser = Client()
    assert browser.get(link).status_code == 302
    new = {"new_password1": "a longer horse", "new_password2": "a longer horse"}
    assert browser.post(reverse("password_change"), new).status_code == 302
    assert fresh(ann).check_password("a longer horse")
    assert noted() == [
        '{"person":"ann","sign_in":"unlocked"}',
        '{"person":"ann","rank":"superuser, staff"}',
        '{"person":"ann","password":"reset","tokens":"1"}',
    ]


def test_role_from_a_personal_permission_can_be_revoked(office: Client, user: User) -> None:
    user.user_permissions.add(Permission.objects.get(codename="review_transcripts"))
    office.post(reverse("person_roles", args=[user.pk]))
    assert not is_reviewer(fresh(user))
    assert noted() == ['{"person":"ann","roles":""}']
