"""The one rule of who belongs to a workspace, and as what: a person has the strongest
of the role given to them and those of their groups there. As SQL, for statements of
which that is a part, and as queries.
"""

from collections.abc import Collection, Iterable
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from conversations.domain.roles import VIEWER, strongest
from conversations.models import Membership, Workspace, WorkspaceGroup

type Pair = tuple[int, int]


def roles_sql(workspace: str, person: str = "%s") -> str:
    """A SELECT of the roles of one person in one workspace, in a column ``role``.
    Where a parameter stands for the ``person``, it is wanted twice."""
    return (
        f"SELECT m.role FROM conversations_membership m"
        f" WHERE m.workspace_id = {workspace} AND m.user_id = {person}"
        f" UNION ALL SELECT g.role FROM conversations_workspacegroup g"
        f" JOIN auth_user_groups p ON p.group_id = g.group_id"
        f" WHERE g.workspace_id = {workspace} AND p.user_id = {person}"
    )


def may_write_sql(workspace: str, person: str = "%s") -> str:
    """A condition: one of these roles is more than a reader's."""
    roles = roles_sql(workspace, person)
    return f"EXISTS(SELECT 1 FROM ({roles}) r WHERE r.role <> '{VIEWER}')"


def role_of(workspace: Workspace, user_pk: int | None) -> str | None:
    """The person's role in the workspace, None for no member."""
    if user_pk is None:
        return None
    with connection.cursor() as cursor:  # raw, because every request asks
        cursor.execute(roles_sql(str(workspace.pk)), [user_pk, user_pk])
        return strongest(role for (role,) in cursor.fetchall())


def roles_of_person(user_pk: int | None) -> dict[int, str]:
    """Workspace → role, for all workspaces of the person."""
    rows = _union(user_pk, "workspace", "role")
    return _strongest_by_key((workspace, role) for workspace, role in rows)


def workspaces_of(user_pk: int | None) -> QuerySet[Membership, Any]:
    """The keys of the workspaces that the person belongs to, for ``…__in=``."""
    return _union(user_pk, "workspace")


def roles_of_pairs(people: Collection[int], workspaces: Collection[int]) -> dict[Pair, str]:
    """(Person, workspace) → role, for these. One statement, however many they are."""
    own = Membership.objects.filter(user__in=people, workspace__in=workspaces)
    by_group = WorkspaceGroup.objects.filter(group__user__in=people, workspace__in=workspaces)
    rows = (
        own.order_by()
        .values_list("user", "workspace", "role")
        .union(by_group.order_by().values_list("group__user", "workspace", "role"), all=True)
        .order_by()
    )
    return _strongest_by_key(((person, workspace), role) for person, workspace, role in rows)


def _union(user_pk: int | None, *columns: str) -> QuerySet[Membership, Any]:
    own = Membership.objects.filter(user=user_pk).order_by().values_list(*columns)
    by_group = WorkspaceGroup.objects.filter(group__user=user_pk).order_by()
    return own.union(by_group.values_list(*columns), all=True).order_by()


def _strongest_by_key[K](rows: Iterable[tuple[K, str]]) -> dict[K, str]:
    found: dict[K, str] = {}
    for key, role in rows:
        found[key] = strongest((role, found.get(key, role))) or role
    return found
