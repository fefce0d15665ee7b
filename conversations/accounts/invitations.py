"""Invitations: links by which one person joins a workspace, or the installation."""

import secrets
from dataclasses import replace
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from conversations.archive.audit import AuditEvent, AuditOrigin, record
from conversations.archive.rights import MANAGE, is_administrator, rights_in, role_of
from conversations.archive.workspaces import add_member, digest_of
from conversations.domain.audit import ROLE
from conversations.domain.errors import Rejected
from conversations.domain.people import strongest
from conversations.domain.text import one_line, storable
from conversations.models import Invitation, Workspace

MAX_OPEN_INVITATIONS = 100  # to a workspace, or to the installation, at once


def create_invitation(
    *, workspace: Workspace | None, role: str, label: str, lifetime: timedelta, origin: AuditOrigin
) -> str:
    """A token that lets one person join. Only its digest is kept."""
    assert origin.user is not None
    if list_invitations(workspace).count() >= MAX_OPEN_INVITATIONS:
        raise Rejected("Too many open invitations. Revoke some first.", code="too_many_invitations")
    token, now = secrets.token_urlsafe(32), timezone.now()
    with transaction.atomic():
        made = Invitation.objects.create(
            digest=digest_of(token),
            label=one_line(storable(label), limit=120),
            workspace=workspace,
            role=role,
            created_by=origin.user,
            created_at=now,
            expires_at=now + lifetime,
        )
        _record(origin, made, invited=made.label or "somebody")
    return token


def list_invitations(workspace: Workspace | None) -> QuerySet[Invitation]:
    """Those to the workspace, or to the installation alone, that still work, the latest first."""
    return _open().filter(workspace=workspace).select_related("created_by").order_by("-pk")


def revoke_invitation(workspace: Workspace | None, *, pk: int, origin: AuditOrigin) -> bool:
    """False where there is no such open one."""
    with transaction.atomic():
        made = list_invitations(workspace).filter(pk=pk).first()
        # Of two who revoke it, or one who joins meanwhile, one is in time.
        if made is None or not _open().filter(pk=pk).update(revoked_at=timezone.now()):
            return False
        _record(origin, made, revoked=made.label or "somebody")
    return True


def find_invitation(token: str) -> Invitation | None:
    """The invitation, if it still works."""
    found = _open().select_related("workspace", "created_by").filter(digest=digest_of(token))
    made = found.first()
    if made is None:
        return None
    # Only while whoever made it could still make it.
    by = made.created_by
    if made.workspace is None:
        return made if is_administrator(by) else None
    return made if by.is_active and MANAGE in rights_in(made.workspace, by).allowed else None


def _open() -> QuerySet[Invitation]:
    return Invitation.objects.filter(used_at=None, revoked_at=None, expires_at__gt=timezone.now())


def accept_invitation(token: str, *, user: User, origin: AuditOrigin) -> Workspace | None:
    """The person joins; the workspace, if it is one. Who is there already keeps the
    stronger role. Raises Rejected when the link does not work (any more): of two
    people at once, one joins."""
    with transaction.atomic():
        made = find_invitation(token)
        used = {"used_at": timezone.now(), "used_by": user}
        if made is None or not _open().filter(pk=made.pk).update(**used):
            raise Rejected("This invitation is no longer valid.", code="invitation_over")
        if made.workspace is not None:
            own = made.workspace.memberships.filter(user=user).values_list("role", flat=True)
            role = strongest((made.role, *own)) or made.role
            add_member(made.workspace, user_pk=user.pk, role=role)
        _record(origin, made, joined=user.get_username())
    return made.workspace


def is_redundant(invitation: Invitation, user: User) -> bool:
    """The person is there already, and would be no more than now."""
    workspace = invitation.workspace
    if workspace is None:
        return True
    now = role_of(workspace, user.pk)
    return now is not None and strongest((now, invitation.role)) == now


def create_account(
    token: str, *, username: str, password: str, origin: AuditOrigin
) -> tuple[User, Workspace | None]:
    """A new account for a stranger who was invited. One transaction with the joining:
    without an invitation there is no account. Raises Rejected when the link does not
    work, IntegrityError when the name is taken."""
    with transaction.atomic():
        user = User.objects.create_user(username, password=password)
        joined = accept_invitation(token, user=user, origin=replace(origin, user=user))
    return user, joined


def _record(origin: AuditOrigin, made: Invitation, **metadata: str) -> None:
    slug = made.workspace.slug if made.workspace else ""
    about = metadata | ({"role": made.role} if made.role else {})
    record(origin, AuditEvent(action=ROLE, workspace=slug, metadata=about))
