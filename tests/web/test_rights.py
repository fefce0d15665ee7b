"""The rule in its two forms: for one workspace, and as a query over sessions."""

import pytest
from django.contrib.auth.models import AnonymousUser

from conversations.archive.rights import (
    READ,
    find_person,
    readable_sessions,
    readable_workspaces,
    rights_in,
)
from conversations.models import Session, Workspace

from .conftest import ROLES, MakePerson


@pytest.mark.parametrize("role", ROLES)
def test_the_query_finds_exactly_what_may_be_read(
    role: str, make_person: MakePerson, workspace: Workspace, session: Session
) -> None:
    person = make_person(role) or AnonymousUser()
    may_read = READ in rights_in(workspace, person).allowed
    assert readable_sessions(person).filter(pk=session.pk).exists() == may_read
    assert readable_workspaces(person).filter(pk=workspace.pk).exists() == may_read


def test_a_closed_account_is_nobody(make_person: MakePerson, session: Session) -> None:
    person = make_person("member")
    assert person is not None
    assert find_person(person.pk) == person
    person.is_active = False
    person.save()
    assert not find_person(person.pk).is_authenticated
    assert not find_person(None).is_authenticated
    assert not readable_sessions(find_person(person.pk)).exists()
