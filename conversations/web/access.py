"""Who may do what. Every object that a request names is obtained here.

A person who may not know of an object gets the same answer as if it did not
exist; one who may read it but not change it is told so.
"""

import logging
from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.models import AnonymousUser, User

from conversations.archive.sessions import get_session
from conversations.archive.workspaces import get_workspace, role_of
from conversations.domain.errors import NotFound, NotPermitted
from conversations.models import Membership, Session, Workspace

logger = logging.getLogger(__name__)

READ, WRITE, MANAGE = "read", "write", "manage"
"""What a request wants to do: look, take part, change the workspace itself."""

_ALLOWED = {
    Membership.Role.VIEWER: {READ},
    Membership.Role.MEMBER: {READ, WRITE},
    Membership.Role.OWNER: {READ, WRITE, MANAGE},
}

STAFF_PERMISSION = "conversations.view_session"
"""Staff who have it may open any transcript, as the admin's links do. Read only."""

type Person = User | AnonymousUser


@dataclass(frozen=True, slots=True)
class Access:
    """What a person may do. ``role`` is None for staff without membership."""

    role: str | None
    can_write: bool
    can_manage: bool


def get_session_for(user: Person, uuid: UUID, *, to: str = READ) -> tuple[Session, Access]:
    """The session, if this person may do that with it. Raises NotFound, NotPermitted."""
    session = get_session(uuid)
    return session, _access(user, session.workspace, to, what=f"session {uuid}")


def get_workspace_for(user: Person, slug: str, *, to: str = READ) -> tuple[Workspace, Access]:
    """The workspace, if this person may do that with it. Raises NotFound, NotPermitted."""
    workspace = get_workspace(slug)
    return workspace, _access(user, workspace, to, what=f"workspace {slug}")


def _access(user: Person, workspace: Workspace, to: str, *, what: str) -> Access:
    role = role_of(workspace, user.pk) if user.is_authenticated else None
    allowed = _ALLOWED[Membership.Role(role)] if role else set()
    if role is None:
        if not (user.is_active and user.is_staff and user.has_perm(STAFF_PERMISSION)):
            raise NotFound("There is no such page, or it is not yours.")
        allowed = {READ}
        logger.info("read_by_staff", extra={"fields": {"user": user.pk, "what": what}})
    if to not in allowed:
        raise NotPermitted("You may read this, and not change it.")
    return Access(role=role, can_write=WRITE in allowed, can_manage=MANAGE in allowed)
