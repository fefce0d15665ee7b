"""What people have always allowed in a workspace, and the rules that a call runs under."""

from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from conversations.domain.errors import NotFound
from conversations.domain.tool_calls import ToolScope, is_kind
from conversations.models import ToolPermission, Workspace

from .rights import may_write_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """``allowed`` are the keys of the kinds that run without a question."""

    scope: ToolScope
    allowed: frozenset[str]


def read_rules(session_pk: int, *, user_pk: int | None) -> Rules:
    """The rules in force now, for the person whose message is answered (``user_pk``
    None: a program of the server, which may what members may)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT w.slug, w.tool_policy, w.allows_network,"  # noqa: S608 (our own)
            f" CAST(%s AS bigint) IS NULL OR {may_write_sql('w.id')}"
            " FROM conversations_session s"
            " JOIN conversations_workspace w ON w.id = s.workspace_id WHERE s.id = %s",
            [user_pk, user_pk, user_pk, session_pk],
        )
        slug, policy, allows_network, may_change = cursor.fetchone()
    scope = ToolScope(
        workspace=slug,
        policy=policy,
        may_change=bool(may_change),
        allows_network=bool(allows_network),
    )
    return Rules(scope=scope, allowed=allowed_kinds(session_pk))


def allowed_kinds(session_pk: int) -> frozenset[str]:
    """The keys of the kinds that are always allowed in the session's workspace."""
    found = ToolPermission.objects.filter(workspace__sessions=session_pk, revoked_at=None)
    return frozenset(filter(is_kind, found.order_by("pk").values_list("kind", flat=True)))


def grant_permission(workspace_pk: int, *, kind: str, label: str, user_pk: int | None) -> None:
    """Allow a kind of call in a workspace until it is taken back. Twice is once."""
    try:
        with transaction.atomic():
            ToolPermission.objects.create(
                workspace_id=workspace_pk,
                kind=kind,
                label=label[:255],
                granted_by_id=user_pk,
                granted_at=timezone.now(),
            )
    except IntegrityError:
        found = ToolPermission.objects.filter(workspace=workspace_pk, revoked_at=None, kind=kind)
        if not found.exists():
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionItem:
    """A permission as the workspace's settings show it. ``applies`` False: it was given
    for what is no kind any more, and calls ask again."""

    pk: int
    kind: str
    label: str
    granted_by: str
    granted_at: datetime
    applies: bool


def list_permissions(workspace: Workspace) -> list[PermissionItem]:
    """Those in force, in the order in which they were given."""
    found = ToolPermission.objects.filter(workspace=workspace, revoked_at=None).order_by("pk")
    rows = found.values_list("pk", "kind", "label", "granted_by__username", "granted_at")
    return [
        PermissionItem(
            pk=pk,
            kind=kind,
            label=label,
            granted_by=name or "",
            granted_at=moment,
            applies=is_kind(kind),
        )
        for pk, kind, label, name, moment in rows
    ]


def revoke_permission(workspace: Workspace, *, pk: int, user_pk: int | None) -> None:
    """Take a permission back; twice is once. Raises NotFound for one of another
    workspace."""
    found = ToolPermission.objects.filter(workspace=workspace, pk=pk)
    if not found.exists():
        raise NotFound("There is no such permission in this workspace.")
    found.filter(revoked_at=None).update(revoked_at=timezone.now(), revoked_by_id=user_pk)
