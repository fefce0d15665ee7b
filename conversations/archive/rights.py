"""Rights: the only rules for who may do what in a workspace.

Entry points check rights through ``access``. Code that acts for a person without a request, such as
a tool or a search, uses this module.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import batched
from typing import Any

from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from conversations.domain.audit import RECALL
from conversations.domain.people import MEMBER, OWNER, VIEWER, strongest
from conversations.domain.session_keys import MEMBER_CHANNELS
from conversations.models import Membership, Session, Workspace, WorkspaceGroup

from .append import moment_value
from .audit import AuditEvent, AuditOrigin, record

# The only rules for who belongs to a workspace, and in which role. A person has the strongest of
# their own role and the roles of their groups in the workspace. The rules exist as SQL, for raw
# statements, and as queries.


type Pair = tuple[int, int]


def _memberships_sql(columns: str, *, workspace: str = "") -> str:
    """Return a SELECT of columns of ``m``, which are a person's memberships.

    Memberships by groups are included. If ``workspace`` is empty, the SELECT covers all workspaces.
    The person's primary key is needed twice as a parameter.
    """
    condition = f"m.workspace_id = {workspace} AND" if workspace else ""
    return (
        f"SELECT {columns} FROM conversations_membership m WHERE {condition} m.user_id = %s"
        f" UNION ALL SELECT {columns} FROM conversations_workspacegroup m"
        f" JOIN auth_user_groups p ON p.group_id = m.group_id WHERE {condition} p.user_id = %s"
    )


def roles_sql(workspace: str) -> str:
    """Return a SELECT of a person's roles in one workspace, as the column ``role``.

    The person's primary key is needed twice as a parameter.
    """
    return _memberships_sql("m.role", workspace=workspace)


# A SELECT of the primary keys of a person's workspaces. The person's primary key is needed twice as
# a parameter.
WORKSPACES_SQL = _memberships_sql("m.workspace_id")


def may_write_sql(workspace: str) -> str:
    """Return an SQL condition that is true if one of the person's roles is more than a viewer's."""
    return f"EXISTS(SELECT 1 FROM ({roles_sql(workspace)}) r WHERE r.role <> '{VIEWER}')"


def role_of(workspace: Workspace, user_pk: int | None) -> str | None:
    """Return the person's role in the workspace, or None if they are not a member."""
    if user_pk is None:
        return None
    with connection.cursor() as cursor:  # raw SQL, because every request needs this
        cursor.execute(roles_sql(str(workspace.pk)), [user_pk, user_pk])
        return strongest(role for (role,) in cursor.fetchall())


def roles_of_person(user_pk: int | None) -> dict[int, str]:
    """Return the person's role in each of their workspaces, by the workspace's primary key."""
    with connection.cursor() as cursor:
        cursor.execute(_memberships_sql("m.workspace_id, m.role"), [user_pk, user_pk])
        return _strongest_by_key(cursor.fetchall())


def workspaces_of(user_pk: int | None) -> RawSQL:
    """Return the primary keys of the person's workspaces, for ``…__in=``."""
    return RawSQL(WORKSPACES_SQL, [user_pk, user_pk])  # noqa: S611


def roles_of_pairs(
    people: Collection[int] | QuerySet[User], workspaces: Collection[int]
) -> dict[Pair, str]:
    """Return the roles of these people by (person, workspace), with one query."""
    own = Membership.objects.filter(user__in=people, workspace__in=workspaces)
    by_group = WorkspaceGroup.objects.filter(group__user__in=people, workspace__in=workspaces)
    rows = (
        own.order_by()
        .values_list("user", "workspace", "role")
        .union(by_group.order_by().values_list("group__user", "workspace", "role"), all=True)
        .order_by()
    )
    return _strongest_by_key(((person, workspace), role) for person, workspace, role in rows)


def _strongest_by_key[K](rows: Iterable[tuple[K, str]]) -> dict[K, str]:
    strongest_roles: dict[K, str] = {}
    for key, role in rows:
        strongest_roles[key] = strongest((role, strongest_roles.get(key, role))) or role
    return strongest_roles


READ, WRITE, MANAGE = "read", "write", "manage"
"""The kinds of access: reading, taking part, and changing the workspace itself."""

ALLOWED = {
    VIEWER: frozenset({READ}),
    MEMBER: frozenset({READ, WRITE}),
    OWNER: frozenset({READ, WRITE, MANAGE}),
}

REVIEW_PERMISSION = "conversations.review_transcripts"
"""A reviewer may read all sessions but not change them. Each reading of a session in a workspace
that the reviewer is not a member of is entered in the audit log."""

ADMINISTER_PERMISSION = "conversations.administer_installation"
"""An administrator manages people and policies and reads the audit log. The permission does not
allow reading transcripts. A superuser has both permissions."""

type Person = User | AnonymousUser


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a person in a workspace. ``role`` is None if the person is not a member."""

    role: str | None
    allowed: frozenset[str]


def rights_in(workspace: Workspace, person: Person) -> Rights:
    """Return the person's rights in the workspace."""
    role = role_of(workspace, person.pk) if person.is_authenticated else None
    if role is not None:
        return Rights(role, ALLOWED[role])
    return Rights(None, frozenset({READ}) if is_reviewer(person) else frozenset())


def readable_sessions(person: Person) -> QuerySet[Session]:
    """Return all sessions that this person may read, by the same rule as :func:`rights_in`."""
    if not person.is_authenticated:
        return Session.objects.none()
    return Session.objects.all() if is_reviewer(person) else sessions_as_member(person)


def sessions_as_member(person: Person) -> QuerySet[Session]:
    """Return the sessions of the workspaces that this person is a member of.

    Code that reads for a person without a request must use this, because a reviewer's reading has
    to be entered in the audit log and that needs a request.
    """
    if not person.is_authenticated:
        return Session.objects.none()
    return Session.objects.filter(workspace__in=workspaces_of(person.pk))


def readable_workspaces(person: Person) -> QuerySet[Workspace]:
    """Return the workspaces whose sessions this person may read, ordered by name."""
    workspaces = Workspace.objects.order_by("name", "pk")
    if person.is_authenticated and is_reviewer(person):
        return workspaces
    return workspaces.filter(pk__in=workspaces_of(person.pk))


def writable_workspaces(person: Person) -> QuerySet[Workspace]:
    """Return the workspaces in which this person may write, ordered by name."""
    roles = roles_of_person(person.pk) if person.is_authenticated else {}
    pks = [pk for pk, role in roles.items() if WRITE in ALLOWED[role]]
    return Workspace.objects.filter(pk__in=pks).order_by("name", "pk")


def read_as_reviewer(person: Person, sessions: Iterable[Session]) -> list[Session]:
    """Return the sessions that this person may read as a reviewer without being a member."""
    if not is_reviewer(person):
        return []
    own = roles_of_person(person.pk)
    return [session for session in sessions if session.workspace_id not in own]


def find_person(user_pk: int | None) -> Person:
    """Return the active user with this primary key, or AnonymousUser if there is none."""
    user = User.objects.filter(pk=user_pk, is_active=True).first() if user_pk else None
    return user or AnonymousUser()


def is_reviewer(person: Person) -> bool:
    return person.is_active and person.has_perm(REVIEW_PERMISSION)


def is_administrator(person: Person) -> bool:
    return person.is_active and person.has_perm(ADMINISTER_PERMISSION)


# The groups that give the permissions of reviewers and administrators. They are created after every
# migration. A person can also have the permissions as a superuser or individually.


REVIEWERS, ADMINISTRATORS = "Reviewers", "Administrators"

ROLE_GROUPS = {REVIEWERS: REVIEW_PERMISSION, ADMINISTRATORS: ADMINISTER_PERMISSION}
"""The permission of each group's people, by the group's name."""


def role_group(name: str, *, using: str = DEFAULT_DB_ALIAS) -> Group:
    """Return the group with this name, and add its permission to it."""
    group, _ = Group.objects.using(using).get_or_create(name=name)
    app, _, codename = ROLE_GROUPS[name].partition(".")
    permissions = Permission.objects.using(using)
    group.permissions.add(*permissions.filter(content_type__app_label=app, codename=codename))
    return group


def make_role_groups(*, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """Create the groups. This post_migrate receiver runs after the permissions are created."""
    for name in ROLE_GROUPS:
        role_group(name, using=using)


# The rule for quoting a session in another one: everyone who can read the other session must be
# able to read the quoted session too.


# A session with a key is never for members alone, whatever its channel, because callers of the API
# choose the channel. A session that had a key is not either, because its program has read it.
FOR_MEMBERS = Q(key=None, former_key=None, channel__in=sorted(MEMBER_CHANNELS))
"""A condition for sessions whose answers only members of the workspace read."""


def is_for_members(channel: str, key: str | None, former_key: str | None) -> bool:
    """Return whether :data:`FOR_MEMBERS` applies to a session with these columns."""
    return key is None and former_key is None and channel in MEMBER_CHANNELS


def quotable_sessions(session_pk: int, user_pk: int | None) -> QuerySet[Session]:
    """Return the other sessions that can be quoted in this session while it answers this person.

    If only members read this session, these are the sessions of its workspace. The expired session
    that this session continues under the same key can also be quoted. Tools and the window reach
    other sessions only through this function.
    """
    quoting = Session.objects.filter(pk=session_pk).filter(
        FOR_MEMBERS | Q(workspace__channel_recall=Workspace.ChannelRecall.WORKSPACE)
    )
    # A caller with the key has read both sessions. A session that was reset to begin anew is not
    # continued, so it cannot be quoted.
    continued = Session.objects.filter(
        pk=session_pk,
        key=F("parent__former_key"),
        workspace=F("parent__workspace"),
        parent__expired_at__lte=F("created_at"),
    )
    sessions = sessions_as_member(find_person(user_pk))
    quotable = Q(workspace__in=quoting.values("workspace")) | Q(pk__in=continued.values("parent"))
    return sessions.filter(quotable).exclude(pk=session_pk)


def change_channel_recall(
    workspace: Workspace, *, channel_recall: str, origin: AuditOrigin
) -> None:
    """Set which sessions the sessions of channels and programs can quote.

    A change is entered in the audit log and applies from the next call on.
    """
    with transaction.atomic():
        current = Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)
        before = current.channel_recall
        if before == channel_recall:
            return
        Workspace.objects.filter(pk=workspace.pk).update(channel_recall=channel_recall)
        metadata = {"before": before, "after": channel_recall}
        record(origin, AuditEvent(action=RECALL, workspace=workspace.slug, metadata=metadata))


# Snapshots of the data behind a signed-in person's rights in a workspace. They are read again while
# a page is open: before each message, and every few seconds for all pages at once.


MAX_PAGES_AT_ONCE = 500
"""The number of pages for which :func:`read_snapshots` reads the data at once."""


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """The data behind a person's rights. ``role`` is None if the person is not a member."""

    password: str
    is_active: bool
    role: str | None


@dataclass(frozen=True, slots=True)
class OpenPage:
    """An open page: the browser session, the person, and the session with its workspace."""

    session_key: str
    user_pk: int
    workspace_pk: int
    session_pk: int


_ROLES = roles_sql("%s")


def read_snapshot(page: OpenPage) -> AccessSnapshot | None:
    """Return what the person may do now.

    Return None if the browser session has ended or the open session was purged. This is one query,
    because a socket calls it before every message.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT u.password, u.is_active, r.role"
            " FROM auth_user u JOIN django_session s ON s.session_key = %s"
            " JOIN conversations_session o ON o.id = %s"
            f" LEFT JOIN ({_ROLES}) r ON TRUE WHERE u.id = %s AND s.expire_date > %s",
            [
                *(page.session_key, page.session_pk),
                *(page.workspace_pk, page.user_pk),
                *(page.workspace_pk, page.user_pk),
                page.user_pk,
                moment_value(timezone.now()),
            ],
        )
        rows = cursor.fetchall()
    if not rows:
        return None
    password, is_active, _ = rows[0]
    roles = [role for *_, role in rows if role]
    role = roles[0] if len(roles) == 1 else strongest(roles)
    return AccessSnapshot(password, bool(is_active), role)


def read_snapshots(pages: Collection[OpenPage]) -> dict[OpenPage, AccessSnapshot | None]:
    """Return the snapshots of many pages, with four queries for each 500 pages."""
    snapshots: dict[OpenPage, AccessSnapshot | None] = {}
    for chunk in batched(pages, MAX_PAGES_AT_ONCE, strict=False):
        keys = {page.session_key for page in chunk}
        live = BrowserSession.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
        live_keys = set(live.values_list("session_key", flat=True))
        sessions = Session.objects.filter(pk__in={page.session_pk for page in chunk})
        session_pks = set(sessions.values_list("pk", flat=True))
        people = {page.user_pk for page in chunk}
        users = User.objects.filter(pk__in=people).values_list("pk", "password", "is_active")
        accounts = {pk: (password, is_active) for pk, password, is_active in users}
        roles = roles_of_pairs(people, {page.workspace_pk for page in chunk})
        for page in chunk:
            is_over = page.session_key not in live_keys or page.user_pk not in accounts
            is_over |= page.session_pk not in session_pks
            role = roles.get((page.user_pk, page.workspace_pk))
            snapshots[page] = None if is_over else AccessSnapshot(*accounts[page.user_pk], role)
    return snapshots
