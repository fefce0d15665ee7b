"""The one rule of who may do what in a workspace.

Entry points ask through ``web.access``; what works for a person without a request
(a tool, a search) asks here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import QuerySet

from conversations.domain.roles import MEMBER, OWNER, VIEWER
from conversations.models import Session, Workspace

from .roles import role_of, roles_of_person, workspaces_of

READ, WRITE, MANAGE = "read", "write", "manage"
"""What somebody wants to do: look, take part, change the workspace itself."""

ALLOWED = {
    VIEWER: frozenset({READ}),
    MEMBER: frozenset({READ, WRITE}),
    OWNER: frozenset({READ, WRITE, MANAGE}),
}

REVIEW_PERMISSION = "conversations.review_transcripts"
"""A reviewer may read any session, and change nothing of it. Each reading of what is
not theirs is entered in the audit log."""

ADMINISTER_PERMISSION = "conversations.administer_installation"
"""An administrator manages people and policies and reads the audit log. It does not
let anybody read transcripts; a superuser has both."""

type Person = User | AnonymousUser


@dataclass(frozen=True, slots=True)
class Rights:
    """``role`` is None for somebody who is no member."""

    role: str | None
    allowed: frozenset[str]


def rights_in(workspace: Workspace, person: Person) -> Rights:
    """What this person may do there."""
    role = role_of(workspace, person.pk) if person.is_authenticated else None
    if role is not None:
        return Rights(role, ALLOWED[role])
    return Rights(None, frozenset({READ}) if is_reviewer(person) else frozenset())


def readable_sessions(person: Person) -> QuerySet[Session]:
    """All sessions that this person may read; the same rule, as a query."""
    if not person.is_authenticated:
        return Session.objects.none()
    return Session.objects.all() if is_reviewer(person) else sessions_as_member(person)


def sessions_as_member(person: Person) -> QuerySet[Session]:
    """Those of the workspaces that this person is a member of: all that may be read for
    them without a request, which could be entered in the audit log."""
    if not person.is_authenticated:
        return Session.objects.none()
    return Session.objects.filter(workspace__in=workspaces_of(person.pk))


def readable_workspaces(person: Person) -> QuerySet[Workspace]:
    """The workspaces whose sessions this person may read, by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    if person.is_authenticated and is_reviewer(person):
        return workspaces
    return workspaces.filter(pk__in=workspaces_of(person.pk))


def writable_workspaces(person: Person) -> QuerySet[Workspace]:
    """The workspaces in which this person may take part, by name."""
    roles = roles_of_person(person.pk) if person.is_authenticated else {}
    pks = [pk for pk, role in roles.items() if WRITE in ALLOWED[role]]
    return Workspace.objects.filter(pk__in=pks).order_by("name", "pk")


def read_as_reviewer(person: Person, sessions: Iterable[Session]) -> list[Session]:
    """Those of the sessions that this person may read without being a member."""
    if not is_reviewer(person):
        return []
    own = roles_of_person(person.pk)
    return [session for session in sessions if session.workspace_id not in own]


def find_person(user_pk: int | None) -> Person:
    """Who asked for a run; nobody, if the account is closed or there is none."""
    found = User.objects.filter(pk=user_pk, is_active=True).first() if user_pk else None
    return found or AnonymousUser()


def is_reviewer(person: Person) -> bool:
    return person.is_active and person.has_perm(REVIEW_PERMISSION)


def is_administrator(person: Person) -> bool:
    return person.is_active and person.has_perm(ADMINISTER_PERMISSION)
