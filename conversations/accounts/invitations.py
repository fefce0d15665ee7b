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
    """Return a token that lets one person join. Only its digest is stored."""
    assert origin.user is not None
    if list_invitations(workspace).count() >= MAX_OPEN_INVITATIONS:
        raise Rejected("Too many open invitations. Revoke some first.", code="too_many_invitations")
    token, now = secrets.token_urlsafe(32), timezone.now()
    with transaction.atomic():
        invitation = Invitation.objects.create(
            digest=digest_of(token),
            label=one_line(storable(label), limit=120),
            workspace=workspace,
            role=role,
            created_by=origin.user,
            created_at=now,
            expires_at=now + lifetime,
        )
        _record(origin, invitation, invited=invitation.label or "somebody")
    return token


def list_invitations(workspace: Workspace | None) -> QuerySet[Invitation]:
    """Return the open invitations to the workspace, the latest first.

    None stands for invitations to the installation that are not for a workspace.
    """
    return _open().filter(workspace=workspace).select_related("created_by").order_by("-pk")


def revoke_invitation(workspace: Workspace | None, *, pk: int, origin: AuditOrigin) -> bool:
    """Revoke an invitation. Return False if there is no such open invitation."""
    with transaction.atomic():
        invitation = list_invitations(workspace).filter(pk=pk).first()
        # Somebody may revoke or accept the invitation at the same time. Only one request succeeds.
        if invitation is None or not _open().filter(pk=pk).update(revoked_at=timezone.now()):
            return False
        _record(origin, invitation, revoked=invitation.label or "somebody")
    return True


def find_invitation(token: str) -> Invitation | None:
    """Return the invitation, or None if it does not work any more."""
    invitations = _open().select_related("workspace", "created_by")
    invitation = invitations.filter(digest=digest_of(token)).first()
    if invitation is None:
        return None
    # An invitation works only while its creator could still create it.
    creator = invitation.created_by
    if invitation.workspace is None:
        is_allowed = is_administrator(creator)
    else:
        is_allowed = (
            creator.is_active and MANAGE in rights_in(invitation.workspace, creator).allowed
        )
    return invitation if is_allowed else None


def _open() -> QuerySet[Invitation]:
    return Invitation.objects.filter(used_at=None, revoked_at=None, expires_at__gt=timezone.now())


def accept_invitation(token: str, *, user: User, origin: AuditOrigin) -> Workspace | None:
    """Let the person join by an invitation, and return its workspace, if it has one.

    A person who is a member already keeps the stronger role. Raise Rejected when the link does
    not work (any more). If two people use it at once, one of them joins.
    """
    with transaction.atomic():
        invitation = find_invitation(token)
        used = {"used_at": timezone.now(), "used_by": user}
        if invitation is None or not _open().filter(pk=invitation.pk).update(**used):
            raise Rejected("This invitation is no longer valid.", code="invitation_over")
        if invitation.workspace is not None:
            own = invitation.workspace.memberships.filter(user=user).values_list("role", flat=True)
            role = strongest((invitation.role, *own)) or invitation.role
            add_member(invitation.workspace, user_pk=user.pk, role=role)
        _record(origin, invitation, joined=user.get_username())
    return invitation.workspace


def is_redundant(invitation: Invitation, user: User) -> bool:
    """Return whether the invitation would give the person nothing that they do not have."""
    workspace = invitation.workspace
    if workspace is None:
        return True
    now = role_of(workspace, user.pk)
    return now is not None and strongest((now, invitation.role)) == now


def create_account(
    token: str, *, username: str, password: str, origin: AuditOrigin
) -> tuple[User, Workspace | None]:
    """Create an account for an invited stranger and accept the invitation in one transaction.

    No account is created without a valid invitation. Raise Rejected when the link does not
    work, and IntegrityError when the name is taken.
    """
    with transaction.atomic():
        user = User.objects.create_user(username, password=password)
        joined = accept_invitation(token, user=user, origin=replace(origin, user=user))
    return user, joined


def _record(origin: AuditOrigin, invitation: Invitation, **metadata: str) -> None:
    slug = invitation.workspace.slug if invitation.workspace else ""
    about = metadata | ({"role": invitation.role} if invitation.role else {})
    record(origin, AuditEvent(action=ROLE, workspace=slug, metadata=about))
