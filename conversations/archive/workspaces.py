"""Workspaces: creating and changing them, their members and groups, and sign-in links."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Max, Q, QuerySet
from django.utils import timezone
from django.utils.text import slugify

from conversations.domain.audit import FIRST_START, ROLE
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.people import OWNER
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import is_storable, one_line, storable
from conversations.models import Membership, SignInLink, Workspace, WorkspaceGroup

from .audit import AuditEvent, AuditOrigin, record
from .rights import WORKSPACES_SQL, roles_of_pairs, roles_of_person

# People: single-use sign-in links, which are printed in a terminal, and names

LINK_LIFETIME = timedelta(hours=12)


def create_first_superuser(username: str) -> User:
    """Create the account of the person who starts the server, if no superuser can sign in yet."""
    with transaction.atomic():
        user = User.objects.create_superuser(username=username)
        metadata = {"person": username, "account": "made", "rank": "superuser, staff"}
        record(AuditOrigin(name=FIRST_START), AuditEvent(action=ROLE, metadata=metadata))
    return user


def create_sign_in_link(user: User) -> str:
    """Return a token that signs this person in once, within twelve hours.

    Only the token's digest is stored. Expired links are deleted.
    """
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    SignInLink.objects.filter(expires_at__lt=now).delete()
    SignInLink.objects.create(
        digest=digest_of(token), user=user, created_at=now, expires_at=now + LINK_LIFETIME
    )
    return token


def use_sign_in_link(token: str) -> User | None:
    """Return the person whom the token signs in, or None if the token is used, expired or unknown.

    One statement marks the token as used, so that two requests cannot both succeed.
    """
    digest = digest_of(token)
    used = unused_links(digest).update(used_at=timezone.now())
    return SignInLink.objects.select_related("user").get(digest=digest).user if used else None


def unused_links(digest: str) -> QuerySet[SignInLink]:
    """Return the link with this digest, or an empty queryset if it is used, expired or unknown."""
    return SignInLink.objects.filter(
        digest=digest, used_at=None, expires_at__gte=timezone.now(), user__is_active=True
    )


def read_name(user_pk: int) -> str:
    """Return the person's full name, or the username if there is none."""
    user = User.objects.filter(pk=user_pk).only("first_name", "last_name", "username").first()
    return "" if user is None else user.get_full_name() or user.get_username()


def read_username(user_pk: int) -> str:
    return User.objects.values_list("username", flat=True).filter(pk=user_pk).first() or ""


def digest_of(token: str) -> str:
    """Return the stored digest of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


MAX_SLUG_CHARS = 50


def resolve_root(
    folder: str, *, roots: Sequence[Path], data_dir: Path | None = None, user_pk: int | None = None
) -> Path:
    """Return the folder as a real path.

    Raise Rejected unless the folder exists and is under an allowed root after following symbolic
    links. The folder must not contain the data folder, and must not be inside it except in its
    ``workspaces`` folder. The folder must not overlap a workspace that this person does not own,
    because they become an owner of the new one. ``user_pk`` is None for the person who runs the
    server, for whom overlaps are not checked.
    """
    try:
        path = Path(folder).expanduser()
        if "\0" in folder or not path.is_absolute():
            raise Rejected("A workspace needs the absolute path of a folder.", code="root_invalid")
        real = path.resolve()
        is_folder = real.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop, unknown user
        raise Rejected("This is not the path of a folder.", code="root_invalid") from error
    if not any(real == root or root in real.parents for root in (r.resolve() for r in roots)):
        allowed = ", ".join(str(root) for root in roots)
        raise Rejected(
            "A workspace must be under one of: %(allowed)s. See LOOM_WORKSPACE_ROOTS.",
            allowed=allowed,
            code="root_not_allowed",
        )
    if not is_folder:
        raise Rejected(
            "The folder %(path)s does not exist on the server.", path=str(real), code="root_missing"
        )
    if data_dir is not None and _holds_data(real, data_dir.resolve()):
        raise Rejected("This folder contains the server's own data.", code="root_not_allowed")
    if user_pk is not None:
        others = Workspace.objects.exclude(pk__in=_owned_by(user_pk))
        for other in map(Path, others.values_list("root", flat=True).iterator()):
            if real == other or real in other.parents or other in real.parents:
                raise Rejected(
                    "Another workspace already uses this folder or a part of it.", code="root_taken"
                )
    return real


def _holds_data(folder: Path, data_dir: Path) -> bool:
    """Return whether the folder contains the data folder, or is in it but not in ``workspaces``."""
    if folder == data_dir or folder in data_dir.parents:
        return True
    workspaces = data_dir / "workspaces"
    return data_dir in folder.parents and workspaces not in (folder, *folder.parents)


def create_workspace(
    *, root: Path, name: str = "", slug: str = "", owner: User | None = None
) -> Workspace:
    """Create a workspace in a folder that has been checked by :func:`resolve_root`."""
    name = one_line(storable(name), limit=120) or root.name or "workspace"
    slug = slug or slugify(name)[:MAX_SLUG_CHARS] or "workspace"
    for attempt in range(1, 100):
        try:
            with transaction.atomic():
                workspace = Workspace.objects.create(
                    name=name,
                    slug=f"{slug}-{attempt}" if attempt > 1 else slug,
                    root=str(root),
                    created_at=timezone.now(),
                )
                if owner is not None:
                    add_member(workspace, user_pk=owner.pk, role=OWNER)
                return workspace
        except IntegrityError:
            continue  # the slug is taken
    raise Rejected("Too many workspaces have this name.", code="name_taken")


def lock_workspace(workspace: Workspace) -> Workspace:
    """Lock the workspace's row until the transaction ends, and return it as it is now."""
    return Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)


def change_workspace(
    workspace: Workspace, *, name: str, instructions: str, **columns: str | int | bool | None
) -> None:
    """Set the workspace's name, instructions and other columns.

    In the other columns, an empty value or None stands for the installation's setting.
    """
    chosen = one_line(storable(name), limit=120)
    if not chosen:
        raise Rejected("A name must have at least one character.", code="name_empty")
    Workspace.objects.filter(pk=workspace.pk).update(
        name=chosen, instructions=storable(instructions), **columns
    )


def change_tool_rules(workspace: Workspace, *, tool_policy: str, allows_network: bool) -> None:
    """Set what the workspace lets tools do. The change applies from the next call on."""
    Workspace.objects.filter(pk=workspace.pk).update(
        tool_policy=tool_policy, allows_network=allows_network
    )


def add_member(
    workspace: Workspace, *, user_pk: int, role: str, origin: AuditOrigin | None = None
) -> None:
    """Give a person a role, or change their role.

    Raise Rejected if the workspace would lose its last owner. ``origin`` is used for the audit log;
    if it is None, the server itself makes the change and no entry is added.
    """
    with transaction.atomic():
        if role != OWNER:
            _require_other_owner(workspace, user_pk)
        Membership.objects.update_or_create(
            workspace=workspace,
            user_id=user_pk,
            defaults={"role": role},
            create_defaults={"role": role, "created_at": timezone.now()},
        )
        _record_role(workspace, origin, person=read_username(user_pk), role=role)


def remove_member(workspace: Workspace, *, user_pk: int, origin: AuditOrigin | None = None) -> None:
    with transaction.atomic():
        _require_other_owner(workspace, user_pk)
        if Membership.objects.filter(workspace=workspace, user=user_pk).delete()[0]:
            _record_role(workspace, origin, person=read_username(user_pk), role="")


def _require_other_owner(workspace: Workspace, user_pk: int) -> None:
    """Raise Rejected if the person is the only active owner by their own membership.

    Owners by a group do not count, because they can leave the group at any time.
    """
    owners = Membership.objects.filter(workspace=workspace, role=OWNER).order_by("pk")
    rows = owners.select_for_update(of=("self",)).values_list("user_id", "user__is_active")
    locked = dict(rows)
    if user_pk in locked and not any(is_open for pk, is_open in locked.items() if pk != user_pk):
        raise Rejected(
            "A workspace must keep at least one owner whose account is open.", code="last_owner"
        )


def add_group(workspace: Workspace, *, group: Group, role: str, origin: AuditOrigin) -> None:
    """Give all people of a group a role, or change the group's role."""
    with transaction.atomic():
        WorkspaceGroup.objects.update_or_create(
            workspace=workspace,
            group=group,
            defaults={"role": role},
            create_defaults={"role": role, "created_at": timezone.now()},
        )
        _record_role(workspace, origin, group=group.name, role=role)


def remove_group(workspace: Workspace, *, group: Group, origin: AuditOrigin) -> None:
    with transaction.atomic():
        if WorkspaceGroup.objects.filter(workspace=workspace, group=group).delete()[0]:
            _record_role(workspace, origin, group=group.name, role="")


def _record_role(workspace: Workspace, origin: AuditOrigin | None, **metadata: str) -> None:
    if origin is not None:
        record(origin, AuditEvent(action=ROLE, workspace=workspace.slug, metadata=metadata))


def get_workspace(slug: str) -> Workspace:
    """Return a workspace. Raise NotFound if it does not exist.

    This does not check rights: entry points use ``access``.
    """
    workspace = Workspace.objects.filter(slug=slug).first() if is_storable(slug) else None
    if workspace is None:
        raise NotFound("This workspace does not exist.")
    return workspace


def find_user(username: str, *, even_closed: bool = False) -> User:
    """Return the account with this username. Raise Rejected if there is none.

    Inactive accounts are only found with ``even_closed``.
    """
    people = User.objects.filter(username=storable(username))
    user = (people if even_closed else people.filter(is_active=True)).first()
    if user is None:
        raise Rejected(
            "The account “%(username)s” does not exist.", username=username, code="unknown_user"
        )
    return user


def list_workspaces(user_pk: int) -> list[dict[str, Any]]:
    """Return the workspaces that a person belongs to, ordered by name, with two queries.

    Each dict has ``name``, ``slug``, ``root``, the person's ``role``, ``session_count``,
    ``running_count`` and ``last_active_at``.
    """
    roles = roles_of_person(user_pk)
    is_listed = Q(sessions__archived_at=None)
    is_running = Q(sessions__runs__state__in=ACTIVE_STATES)
    rows = (
        Workspace.objects.filter(pk__in=roles)
        .order_by("name", "pk")
        .annotate(
            session_count=Count("sessions", filter=is_listed, distinct=True),
            running_count=Count("sessions", filter=is_running, distinct=True),
            last_active_at=Max("sessions__last_active_at", filter=is_listed),
        )
    )
    columns = ("name", "slug", "root", "session_count", "running_count", "last_active_at")
    return [{"role": roles[row.pop("pk")], **row} for row in rows.values("pk", *columns)]


def list_workspace_names(user_pk: int) -> list[dict[str, str]]:
    """Return ``name`` and ``slug`` of a person's workspaces, ordered by name, with one query.

    This is for the menu of every chat page, so the sessions are not counted.
    """
    with connection.cursor() as cursor:  # raw SQL, because every page needs this
        cursor.execute(
            "SELECT name, slug FROM conversations_workspace"  # noqa: S608
            f" WHERE id IN ({WORKSPACES_SQL}) ORDER BY name, id",
            [user_pk, user_pk],
        )
        return [{"name": name, "slug": slug} for name, slug in cursor.fetchall()]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceDir:
    """A workspace's slug and folder."""

    workspace: str
    root: Path


def list_workspace_dirs() -> list[WorkspaceDir]:
    """Return the slugs and folders of all workspaces, ordered by slug."""
    rows = Workspace.objects.order_by("slug").values_list("slug", "root")
    return [WorkspaceDir(workspace=slug, root=Path(root)) for slug, root in rows]


def workspace_names() -> list[tuple[str, str]]:
    """Return the slug and name of each workspace, ordered by name."""
    return list(Workspace.objects.order_by("name", "pk").values_list("slug", "name"))


def members_of(workspace: Workspace) -> list[tuple[str, str]]:
    """Return the usernames and roles of the workspace's own members, without those by a group."""
    members = Membership.objects.filter(workspace=workspace).order_by("user__username")
    return list(members.values_list("user__username", "role"))


def groups_of(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the groups whose people are members of the workspace, ordered by name.

    Each dict has ``pk``, ``name``, ``role`` and ``people``, the number of active people.
    """
    rows = (
        WorkspaceGroup.objects.filter(workspace=workspace)
        .annotate(people=Count("group__user", filter=Q(group__user__is_active=True)))
        .order_by("group__name", "pk")
        .values_list("group", "group__name", "role", "people")
    )
    return [dict(zip(("pk", "name", "role", "people"), row, strict=True)) for row in rows]


def groups_to_add(workspace: Workspace) -> list[tuple[int, str]]:
    """Return primary keys and names of the groups that can be added to the workspace.

    Groups with permissions are left out, because they stand for a role in the whole installation.
    """
    groups = Group.objects.filter(permissions=None).exclude(workspaces__workspace=workspace)
    return list(groups.order_by("name").values_list("pk", "name"))


def workspaces_owned_alone(user_pk: int) -> QuerySet[Workspace]:
    """Return the workspaces that this person owns and no other active person does, ordered by name.

    If the person's account is closed, nobody can manage these workspaces.
    """
    own, others = _owned_by(user_pk), User.objects.filter(is_active=True).exclude(pk=user_pk)
    shared = {pk for (_, pk), role in roles_of_pairs(others, own).items() if role == OWNER}
    return Workspace.objects.filter(pk__in=own - shared).order_by("name", "pk")


def _owned_by(user_pk: int) -> set[int]:
    return {pk for pk, role in roles_of_person(user_pk).items() if role == OWNER}


def owner_of(workspace: Workspace) -> User:
    """Return the first active owner by their own membership. Raise Rejected if there is none."""
    owners = Membership.objects.filter(workspace=workspace, role=OWNER, user__is_active=True)
    membership = owners.select_related("user").order_by("pk").first()
    if membership is None:
        raise Rejected("This workspace has no owner.", code="no_owner")
    return membership.user


def has_workspaces() -> bool:
    return Workspace.objects.exists()
