"""Workspaces: create, change, and who belongs to them."""

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

# People: single-use sign-in links, as a terminal prints them; names.

LINK_LIFETIME = timedelta(hours=12)


def create_first_superuser(username: str) -> User:
    """The account of whoever starts the server, where no superuser can sign in yet."""
    with transaction.atomic():
        user = User.objects.create_superuser(username=username)
        metadata = {"person": username, "account": "made", "rank": "superuser, staff"}
        record(AuditOrigin(name=FIRST_START), AuditEvent(action=ROLE, metadata=metadata))
    return user


def create_sign_in_link(user: User) -> str:
    """A token that signs this person in once, within twelve hours. Only its digest
    is kept; links that are over are removed."""
    token = secrets.token_urlsafe(32)
    now = timezone.now()
    SignInLink.objects.filter(expires_at__lt=now).delete()
    SignInLink.objects.create(
        digest=digest_of(token), user=user, created_at=now, expires_at=now + LINK_LIFETIME
    )
    return token


def use_sign_in_link(token: str) -> User | None:
    """The person whom the token signs in; None when it was used, is over or unknown.
    Marking it used is one statement, so two requests cannot both succeed."""
    digest = digest_of(token)
    used = unused_links(digest).update(used_at=timezone.now())
    return SignInLink.objects.select_related("user").get(digest=digest).user if used else None


def unused_links(digest: str) -> QuerySet[SignInLink]:
    """The link of this digest; none when it was used, is over or unknown."""
    return SignInLink.objects.filter(
        digest=digest, used_at=None, expires_at__gte=timezone.now(), user__is_active=True
    )


def read_name(user_pk: int) -> str:
    """What a person is called: the full name, else the name to sign in with."""
    user = User.objects.filter(pk=user_pk).only("first_name", "last_name", "username").first()
    return "" if user is None else user.get_full_name() or user.get_username()


def read_username(user_pk: int) -> str:
    """The name to sign in with."""
    return User.objects.values_list("username", flat=True).filter(pk=user_pk).first() or ""


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


MAX_SLUG_CHARS = 50


def resolve_root(
    folder: str, *, roots: Sequence[Path], data_dir: Path | None = None, user_pk: int | None = None
) -> Path:
    """The folder as a real path. Raises Rejected unless it is an existing folder
    that lies under an allowed root, symbolic links followed; that is not the data
    folder or around it; and that shares nothing with a workspace of which this person
    (``user_pk``, None for whoever runs the server) is no owner, since they would be one here."""
    try:
        path = Path(folder).expanduser()
        if "\0" in folder or not path.is_absolute():
            raise Rejected("A workspace needs the absolute path of a folder.", code="root_invalid")
        real = path.resolve()
        is_folder = real.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop, no such person
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
    """The data folder or one around it; or in it, but for its own workspaces."""
    if folder == data_dir or folder in data_dir.parents:
        return True
    workspaces = data_dir / "workspaces"
    return data_dir in folder.parents and workspaces not in (folder, *folder.parents)


def create_workspace(
    *, root: Path, name: str = "", slug: str = "", owner: User | None = None
) -> Workspace:
    """Create a workspace on a folder that has been checked by ``resolve_root``."""
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
    """As it is stored now; until the transaction ends, nobody else changes it."""
    return Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)


def change_workspace(
    workspace: Workspace, *, name: str, instructions: str, **columns: str | int | bool | None
) -> None:
    """Set what a workspace is. Of the other columns, empty or None: as the installation has it."""
    chosen = one_line(storable(name), limit=120)
    if not chosen:
        raise Rejected("A name must have at least one character.", code="name_empty")
    Workspace.objects.filter(pk=workspace.pk).update(
        name=chosen, instructions=storable(instructions), **columns
    )


def change_tool_rules(workspace: Workspace, *, tool_policy: str, allows_network: bool) -> None:
    """Set what the workspace lets tools do; it holds from the next call on."""
    Workspace.objects.filter(pk=workspace.pk).update(
        tool_policy=tool_policy, allows_network=allows_network
    )


def add_member(
    workspace: Workspace, *, user_pk: int, role: str, origin: AuditOrigin | None = None
) -> None:
    """Give a person a role, or another one. The last owner stays one. ``origin`` is who
    does it, for the audit log; None: the server itself."""
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
    """Of its own: who is one by a group only may leave that group any time."""
    owners = Membership.objects.filter(workspace=workspace, role=OWNER).order_by("pk")
    rows = owners.select_for_update(of=("self",)).values_list("user_id", "user__is_active")
    locked = dict(rows)
    if user_pk in locked and not any(is_open for pk, is_open in locked.items() if pk != user_pk):
        raise Rejected(
            "A workspace must keep at least one owner whose account is open.", code="last_owner"
        )


def add_group(workspace: Workspace, *, group: Group, role: str, origin: AuditOrigin) -> None:
    """Give all people of a group a role, or another one."""
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
    """Raises NotFound. Authorises nobody: entry points use ``access``."""
    found = Workspace.objects.filter(slug=slug).first() if is_storable(slug) else None
    if found is None:
        raise NotFound("This workspace does not exist.")
    return found


def find_user(username: str, *, even_closed: bool = False) -> User:
    """The account of this name; a closed one only if asked for. Raises Rejected."""
    people = User.objects.filter(username=storable(username))
    found = (people if even_closed else people.filter(is_active=True)).first()
    if found is None:
        raise Rejected(
            "The account “%(username)s” does not exist.", username=username, code="unknown_user"
        )
    return found


def list_workspaces(user_pk: int) -> list[dict[str, Any]]:
    """The workspaces that a person belongs to, by name: ``name``, ``slug``, ``root``, the person's
    ``role``, ``session_count``, ``running_count`` and ``last_active_at``. Two statements."""
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
    """``name`` and ``slug`` of these workspaces, by name, for the menu on every chat: how many
    sessions they have is not counted. One statement."""
    with connection.cursor() as cursor:  # raw, because every page asks
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
    """Those of all workspaces."""
    places = Workspace.objects.order_by("slug").values_list("slug", "root")
    return [WorkspaceDir(workspace=slug, root=Path(root)) for slug, root in places]


def workspace_names() -> list[tuple[str, str]]:
    """Slug and name of every workspace, by name."""
    return list(Workspace.objects.order_by("name", "pk").values_list("slug", "name"))


def members_of(workspace: Workspace) -> list[tuple[str, str]]:
    """Names and roles of the workspace's members."""
    members = Membership.objects.filter(workspace=workspace).order_by("user__username")
    return list(members.values_list("user__username", "role"))


def groups_of(workspace: Workspace) -> list[dict[str, Any]]:
    """The groups whose people are in the workspace, by name: ``pk``, ``name``, ``role`` and
    how many ``people``."""
    rows = (
        WorkspaceGroup.objects.filter(workspace=workspace)
        .annotate(people=Count("group__user", filter=Q(group__user__is_active=True)))
        .order_by("group__name", "pk")
        .values_list("group", "group__name", "role", "people")
    )
    return [dict(zip(("pk", "name", "role", "people"), row, strict=True)) for row in rows]


def groups_to_add(workspace: Workspace) -> list[tuple[int, str]]:
    """Keys and names of the groups that are not in the workspace yet. Groups that give
    permissions stand for a role in the whole installation, and for none in it."""
    groups = Group.objects.filter(permissions=None).exclude(workspaces__workspace=workspace)
    return list(groups.order_by("name").values_list("pk", "name"))


def workspaces_owned_alone(user_pk: int) -> QuerySet[Workspace]:
    """Those that this person owns and nobody else with an open account does, by name. If the
    person's is closed, nobody can manage them."""
    own, others = _owned_by(user_pk), User.objects.filter(is_active=True).exclude(pk=user_pk)
    shared = {pk for (_, pk), role in roles_of_pairs(others, own).items() if role == OWNER}
    return Workspace.objects.filter(pk__in=own - shared).order_by("name", "pk")


def _owned_by(user_pk: int) -> set[int]:
    return {pk for pk, role in roles_of_person(user_pk).items() if role == OWNER}


def owner_of(workspace: Workspace) -> User:
    """The workspace's first owner whose account is open. Raises Rejected when it has none."""
    owners = Membership.objects.filter(workspace=workspace, role=OWNER, user__is_active=True)
    found = owners.select_related("user").order_by("pk").first()
    if found is None:
        raise Rejected("This workspace has no owner.", code="no_owner")
    return found.user


def has_workspaces() -> bool:
    return Workspace.objects.exists()
