"""Groups that the identity provider manages."""

import json

import pytest
from django.contrib.auth.models import Group, User

from conversations.accounts.people import set_provided_groups
from conversations.archive.audit import AuditOrigin
from conversations.models import AuditEntry

pytestmark = pytest.mark.django_db

OFFERED = {"Reading", "Running"}


def groups_of(user: User) -> set[str]:
    return set(user.groups.values_list("name", flat=True))


def test_sign_in_changes_only_the_groups_that_the_provider_manages(user: User) -> None:
    user.groups.add(Group.objects.create(name="Ours"), Group.objects.create(name="Reading"))
    set_provided_groups(user, named={"Running"}, offered=OFFERED, origin=AuditOrigin(user=user))
    assert groups_of(user) == {"Ours", "Running"}
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.actor_name) == ("role", "ann")
    expected = {"person": "ann", "joined": ["Running"], "left": ["Reading"]}
    assert json.loads(entry.metadata) == expected


def test_unchanged_groups_leave_no_audit_entry(user: User) -> None:
    for _ in range(2):
        set_provided_groups(user, named={"Running"}, offered=OFFERED, origin=AuditOrigin(user=user))
    set_provided_groups(user, named=set(), offered=set(), origin=AuditOrigin(user=user))
    assert groups_of(user) == {"Running"}
    assert AuditEntry.objects.count() == 1
