"""The groups whose people are reviewers and administrators. They are there after every
migration; who else has the permission (a superuser, a person of their own) has it too.
"""

from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import DEFAULT_DB_ALIAS

from .rights import ADMINISTER_PERMISSION, REVIEW_PERMISSION

REVIEWERS, ADMINISTRATORS = "Reviewers", "Administrators"

ROLE_GROUPS = {REVIEWERS: REVIEW_PERMISSION, ADMINISTRATORS: ADMINISTER_PERMISSION}
"""Name → the permission that its people have."""


def role_group(name: str, *, using: str = DEFAULT_DB_ALIAS) -> Group:
    """The group of this name, with its permission."""
    group, _ = Group.objects.using(using).get_or_create(name=name)
    app, _, codename = ROLE_GROUPS[name].partition(".")
    permissions = Permission.objects.using(using)
    group.permissions.add(*permissions.filter(content_type__app_label=app, codename=codename))
    return group


def make_role_groups(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """A post_migrate receiver; the permissions are made by an earlier one."""
    for name in ROLE_GROUPS:
        role_group(name, using=using)
