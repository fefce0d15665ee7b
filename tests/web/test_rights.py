"""The access rule in its two forms: for one workspace, and as a query over sessions."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.archive.audit import AuditOrigin
from conversations.archive.rights import (
    READ,
    ROLE_GROUPS,
    OpenPage,
    find_person,
    quotable_sessions,
    read_snapshot,
    read_snapshots,
    readable_sessions,
    readable_workspaces,
    rights_in,
    role_of,
    roles_of_person,
)
from conversations.archive.session_records import list_recent_sessions
from conversations.archive.sessions import create_session, open_first_session, read_window_facts
from conversations.archive.tool_calls import read_rules
from conversations.archive.workspaces import (
    add_group,
    add_member,
    create_workspace,
    groups_of,
    list_workspaces,
    remove_group,
)
from conversations.domain.people import ROLES as WORKSPACE_ROLES
from conversations.models import Session, Workspace

from .conftest import ROLES, MakePerson, browser_of


@pytest.mark.parametrize("role", ROLES)
def test_queries_find_exactly_what_the_person_may_read(
    role: str, make_person: MakePerson, workspace: Workspace, session: Session
) -> None:
    person = make_person(role) or AnonymousUser()
    may_read = READ in rights_in(workspace, person).allowed
    assert readable_sessions(person).filter(pk=session.pk).exists() == may_read
    assert readable_workspaces(person).filter(pk=workspace.pk).exists() == may_read


@pytest.mark.parametrize("role", ROLES)
def test_model_may_quote_other_sessions_only_for_members(
    role: str, make_person: MakePerson, workspace: Workspace, session: Session, user: User
) -> None:
    """A reviewer's rights do not count, because the model makes no request that is recorded."""
    other = create_session(workspace, owner=user)
    person = make_person(role)
    others = quotable_sessions(session.pk, person.pk if person else None)
    assert list(others) == ([other] if role in ("viewer", "member", "owner") else [])


def test_closed_account_counts_as_anonymous(make_person: MakePerson, session: Session) -> None:
    person = make_person("member")
    assert person is not None
    assert find_person(person.pk) == person
    person.is_active = False
    person.save()
    assert not find_person(person.pk).is_authenticated
    assert not find_person(None).is_authenticated
    assert not readable_sessions(find_person(person.pk)).exists()


# --- groups ---

type JoinBy = Callable[[User, str], Group]


@pytest.fixture
def join_by(workspace: Workspace, user: User) -> JoinBy:
    """Return a function that puts a person into a group with a role in the workspace."""

    def join(person: User, role: str) -> Group:
        group = Group.objects.create(name=f"{role}s of the garden")
        person.groups.add(group)
        add_group(workspace, group=group, role=role, origin=AuditOrigin(user=user))
        return group

    return join


def place_of(person: User, session: Session) -> OpenPage:
    key = browser_of(person).session.session_key or ""
    return OpenPage(key, person.pk, session.workspace_id, session.pk)


@pytest.mark.parametrize("by_group", WORKSPACE_ROLES)
@pytest.mark.parametrize("own", ["", *WORKSPACE_ROLES])
def test_strongest_of_own_and_group_roles_applies_everywhere(
    own: str,
    by_group: str,
    join_by: JoinBy,
    workspace: Workspace,
    session: Session,
    other_user: User,
) -> None:
    if own:
        add_member(workspace, user_pk=other_user.pk, role=own)
    join_by(other_user, by_group)
    expected = max(filter(None, (own, by_group)), key=WORKSPACE_ROLES.index)
    place = place_of(other_user, session)
    standing = read_snapshot(place)
    assert standing is not None
    assert (
        role_of(workspace, other_user.pk),
        roles_of_person(other_user.pk),
        rights_in(workspace, other_user).role,
        standing.role,
        read_snapshots([place])[place],
        [item["role"] for item in list_workspaces(other_user.pk)],
    ) == (expected, {workspace.pk: expected}, expected, expected, standing, [expected])
    writes = expected != "viewer"
    assert read_window_facts(session.pk, user_pk=other_user.pk).may_change == writes
    assert read_rules(session.pk, user_pk=other_user.pk).scope.may_change == writes
    assert (open_first_session(other_user) is not None) == writes
    assert readable_sessions(other_user).filter(pk=session.pk).exists()
    assert readable_workspaces(other_user).get() == workspace
    found = list_recent_sessions(other_user, limit=9).items
    assert session.uuid in {item.uuid for item in found}


def test_model_may_change_nothing_for_a_closed_account(session: Session, user: User) -> None:
    User.objects.update(is_active=False)
    assert not read_window_facts(session.pk, user_pk=user.pk).may_change
    assert not read_rules(session.pk, user_pk=user.pk).scope.may_change
    assert read_window_facts(session.pk).may_change


def test_leaving_or_removing_a_group_ends_the_membership(
    join_by: JoinBy, workspace: Workspace, user: User, other_user: User
) -> None:
    group = join_by(other_user, "member")
    assert [(item["name"], item["role"], item["people"]) for item in groups_of(workspace)] == [
        ("members of the garden", "member", 1)
    ]
    other_user.groups.clear()
    assert role_of(workspace, other_user.pk) is None
    other_user.groups.add(group)
    assert role_of(workspace, other_user.pk) == "member"
    remove_group(workspace, group=group, origin=AuditOrigin(user=user))
    assert role_of(workspace, other_user.pk) is None
    assert not list_workspaces(other_user.pk)
    assert not readable_workspaces(other_user)


def test_query_count_is_independent_of_groups_and_workspaces(
    join_by: JoinBy, workspace: Workspace, session: Session, user: User, other_user: User
) -> None:
    join_by(other_user, "member")

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            list_workspaces(other_user.pk)
            role_of(workspace, other_user.pk)
            read_snapshot(place)
            read_snapshots([place])
            list(readable_sessions(other_user))
            list_recent_sessions(other_user, limit=9)
        return len(queries)

    place = place_of(other_user, session)
    count()  # fills Django's cache on the person
    before = count()
    for number in range(5):
        other = create_workspace(root=workspace_root(workspace), name=f"Bed {number}", owner=user)
        group = Group.objects.create(name=f"group {number}")
        other_user.groups.add(group)
        add_group(other, group=group, role="viewer", origin=AuditOrigin(user=user))
        add_group(workspace, group=group, role="viewer", origin=AuditOrigin(user=user))
    assert count() == before


def workspace_root(workspace: Workspace) -> Path:
    return Path(workspace.root)


@pytest.mark.django_db
def test_migrate_creates_the_reviewer_and_administrator_groups(
    other_user: User,
) -> None:
    Group.objects.all().delete()
    call_command("migrate", verbosity=0)
    for name, permission in ROLE_GROUPS.items():
        person = User.objects.create(username=name)
        person.groups.add(Group.objects.get(name=name))
        assert person.get_all_permissions() == {permission}
