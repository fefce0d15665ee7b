"""Workspaces: create, change, and who belongs to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Max, Q
from django.utils import timezone
from django.utils.text import slugify

from conversations.domain.errors import NotFound, Rejected
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import one_line, storable
from conversations.models import Membership, Workspace

SLUG_LIMIT = 50


def resolve_root(
    folder: str, *, roots: Sequence[Path], data_dir: Path | None = None, user_pk: int | None = None
) -> Path:
    """The folder as a real path. Raises Rejected unless it is an existing folder
    that lies under an allowed root, symbolic links followed; that is not the data
    folder or around it; and that shares nothing with a workspace to which this
    person (``user_pk``, None for whoever runs the server) does not belong."""
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
            f"A workspace lies under one of: {allowed}. See LOOM_WORKSPACE_ROOTS.",
            code="root_not_allowed",
        )
    if not is_folder:
        raise Rejected(f"There is no folder {real} on the server.", code="root_missing")
    if data_dir is not None and _holds_data(real, data_dir.resolve()):
        raise Rejected("The server's own data lies there.", code="root_not_allowed")
    if user_pk is not None and _is_taken(real, user_pk):
        raise Rejected("Another workspace uses this folder, or part of it.", code="root_taken")
    return real


def _holds_data(folder: Path, data_dir: Path) -> bool:
    """The data folder or one around it; or in it, but for its own workspaces."""
    if folder == data_dir or folder in data_dir.parents:
        return True
    workspaces = data_dir / "workspaces"
    return data_dir in folder.parents and workspaces not in (folder, *folder.parents)


def _is_taken(folder: Path, user_pk: int) -> bool:
    others = Workspace.objects.exclude(memberships__user=user_pk).values_list("root", flat=True)
    for text in others.iterator():
        other = Path(text)
        if folder == other or folder in other.parents or other in folder.parents:
            return True
    return False


def create_workspace(
    *,
    root: Path,
    name: str = "",
    slug: str = "",
    owner: User | None = None,
    instructions: str = "",
) -> Workspace:
    """Create a workspace on a folder that has been checked by ``resolve_root``."""
    name = one_line(storable(name), limit=120) or root.name or "workspace"
    with transaction.atomic():
        workspace = _insert_workspace(root, name, slug or slugify(name)[:SLUG_LIMIT], instructions)
        if owner is not None:
            add_member(workspace, user_pk=owner.pk, role=Membership.Role.OWNER)
    return workspace


def _insert_workspace(root: Path, name: str, slug: str, instructions: str) -> Workspace:
    for attempt in range(1, 100):
        candidate = f"{slug or 'workspace'}-{attempt}" if attempt > 1 else slug or "workspace"
        try:
            with transaction.atomic():
                return Workspace.objects.create(
                    name=name,
                    slug=candidate,
                    root=str(root),
                    instructions=instructions,
                    created_at=timezone.now(),
                )
        except IntegrityError:
            continue
    raise Rejected("Too many workspaces have this name.", code="name_taken")


def change_workspace(
    workspace: Workspace,
    *,
    name: str,
    instructions: str,
    default_model: str,
    window_strategy: str = "",
    keep_recent: int | None = None,
    high_water: int | None = None,
    low_water: int | None = None,
    reads_instruction_files: bool | None = None,
) -> None:
    """Set what a workspace is. Empty or None: as the installation has it."""
    chosen = one_line(storable(name), limit=120)
    if not chosen:
        raise Rejected("A name needs at least one character.", code="name_empty")
    Workspace.objects.filter(pk=workspace.pk).update(
        name=chosen,
        instructions=storable(instructions),
        default_model=default_model,
        window_strategy=window_strategy,
        keep_recent=keep_recent,
        high_water=high_water,
        low_water=low_water,
        reads_instruction_files=reads_instruction_files,
    )


def change_tool_rules(workspace: Workspace, *, tool_policy: str, allows_network: bool) -> None:
    """Set what the workspace lets tools do; it holds from the next call on."""
    Workspace.objects.filter(pk=workspace.pk).update(
        tool_policy=tool_policy, allows_network=allows_network
    )


def add_member(workspace: Workspace, *, user_pk: int, role: str) -> None:
    """Give a person a role, or another one. The last owner stays one."""
    with transaction.atomic():
        if role != Membership.Role.OWNER:
            _keep_an_owner(workspace, user_pk)
        Membership.objects.update_or_create(
            workspace=workspace,
            user_id=user_pk,
            defaults={"role": role},
            create_defaults={"role": role, "created_at": timezone.now()},
        )


def remove_member(workspace: Workspace, *, user_pk: int) -> None:
    with transaction.atomic():
        _keep_an_owner(workspace, user_pk)
        Membership.objects.filter(workspace=workspace, user=user_pk).delete()


def _keep_an_owner(workspace: Workspace, user_pk: int) -> None:
    owners = Membership.objects.filter(workspace=workspace, role=Membership.Role.OWNER)
    locked = list(owners.select_for_update().order_by("pk").values_list("user_id", flat=True))
    if locked == [user_pk]:
        raise Rejected("A workspace keeps at least one owner.", code="last_owner")


def role_of(workspace: Workspace, user_pk: int | None) -> str | None:
    """The person's role in the workspace, None for no member."""
    if user_pk is None:
        return None
    with connection.cursor() as cursor:  # raw, because every request asks
        cursor.execute(
            "SELECT role FROM conversations_membership WHERE workspace_id = %s AND user_id = %s",
            [workspace.pk, user_pk],
        )
        found = cursor.fetchone()
    return found[0] if found else None


def get_workspace(slug: str) -> Workspace:
    """Raises NotFound. Authorises nobody: entry points use ``web.access``."""
    found = Workspace.objects.filter(slug=slug).first()
    if found is None:
        raise NotFound("There is no such workspace.")
    return found


def find_user(username: str, *, even_closed: bool = False) -> User:
    """The account of this name; a closed one only if asked for. Raises Rejected."""
    people = User.objects.filter(username=username)
    found = (people if even_closed else people.filter(is_active=True)).first()
    if found is None:
        raise Rejected(f"There is no account “{username}”.", code="unknown_user")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceItem:
    """A workspace as a list shows it to one person."""

    name: str
    slug: str
    root: str
    role: str
    session_count: int
    running_count: int
    last_active_at: datetime | None


def list_workspaces(user_pk: int) -> list[WorkspaceItem]:
    """The workspaces that a person belongs to, by name."""
    rows = (
        Membership.objects.filter(user=user_pk)
        .order_by("workspace__name", "workspace_id")
        .annotate(
            session_count=Count("workspace__sessions", filter=_LISTED, distinct=True),
            running_count=Count("workspace__sessions", filter=_RUNNING, distinct=True),
            last_active_at=Max("workspace__sessions__last_active_at", filter=_LISTED),
        )
        .values_list(
            "workspace__name",
            "workspace__slug",
            "workspace__root",
            "role",
            "session_count",
            "running_count",
            "last_active_at",
        )
    )
    return [
        WorkspaceItem(
            name=name,
            slug=slug,
            root=root,
            role=role,
            session_count=session_count,
            running_count=running_count,
            last_active_at=last_active_at,
        )
        for name, slug, root, role, session_count, running_count, last_active_at in rows
    ]


_LISTED = Q(workspace__sessions__archived_at=None)
_RUNNING = Q(workspace__sessions__runs__state__in=ACTIVE_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A workspace's slug and folder."""

    workspace: str
    root: Path


def list_places() -> list[Place]:
    """Those of all workspaces."""
    places = Workspace.objects.order_by("slug").values_list("slug", "root")
    return [Place(workspace=slug, root=Path(root)) for slug, root in places]


def members_of(workspace: Workspace) -> list[tuple[str, str]]:
    """Names and roles of the workspace's members."""
    return list(
        Membership.objects.filter(workspace=workspace)
        .order_by("user__username")
        .values_list("user__username", "role")
    )


def owner_of(workspace: Workspace) -> User:
    """The workspace's first owner. Raises Rejected when it has none."""
    owners = Membership.objects.filter(workspace=workspace, role=Membership.Role.OWNER)
    found = owners.select_related("user").order_by("pk").first()
    if found is None:
        raise Rejected("This workspace has no owner.", code="no_owner")
    return found.user


def has_workspaces() -> bool:
    return Workspace.objects.exists()
