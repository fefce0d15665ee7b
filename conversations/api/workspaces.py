"""API operations of workspaces: settings, memory, members, groups and invitations."""

from copy import copy
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Field, Path, Router, Schema, Status

from conversations.access import (
    Access,
    access_context_of,
    get_memory_entry_for,
    get_memory_for,
    get_workspace_for,
    permission_for_memory,
)
from conversations.accounts.invitations import (
    create_invitation,
    list_invitations,
    revoke_invitation,
)
from conversations.accounts.people import find_group
from conversations.accounts.tokens import MANAGE, READ, WRITE
from conversations.archive import workspaces as archive_workspaces
from conversations.archive.audit import AuditOrigin
from conversations.archive.memory import add_entry, change_entry, remove_entry
from conversations.archive.rights import MANAGE as TO_MANAGE
from conversations.archive.rights import change_channel_recall
from conversations.domain.errors import NotFound, Rejected
from conversations.models import MemoryEntry, Workspace
from conversations.web.forms import ToolRulesForm, WorkspaceSettingsForm, make_workspace_at

from .auth import caller_of, needs
from .fields import LongText, Moment, Page, ShortText, Title

router = Router(tags=["Workspaces"])
of_one = Router(tags=["Workspaces"])

Role = Literal["owner", "member", "viewer"]


def _get_managed(request: HttpRequest, slug: str) -> tuple[Workspace, AuditOrigin]:
    context = access_context_of(request)
    workspace, _ = get_workspace_for(context, slug, to=TO_MANAGE)
    return workspace, context.origin


class WorkspaceOut(Schema):
    """A workspace. ``role`` is your role, and null for a reviewer who is not a member."""

    slug: str
    name: str
    role: str | None


@router.get("", auth=needs(READ), response=Page[WorkspaceOut], url_name="workspaces")
def list_own_workspaces(request: HttpRequest) -> dict[str, Any]:
    """List the workspaces that you are a member of, ordered by name."""
    return {"items": archive_workspaces.list_workspaces(caller_of(request).user.pk)}


@of_one.get("", auth=needs(READ), response=WorkspaceOut, url_name="workspace")
def get_workspace(request: HttpRequest, slug: Path[str]) -> dict[str, Any]:
    """Return one workspace."""
    return _as_out(*get_workspace_for(request, slug))


def _as_out(workspace: Workspace, access: Access) -> dict[str, Any]:
    return {"slug": workspace.slug, "name": workspace.name, "role": access.role}


class NewWorkspace(Schema):
    """A new workspace.

    ``root`` is the absolute path of a folder on the server. Other people's workspaces must not use
    it. The default of ``name`` is the name of the folder.
    """

    root: str = Field(max_length=1024)
    name: Title | None = None


@router.post("", auth=needs(MANAGE), response={201: WorkspaceOut}, url_name="workspaces")
def make_workspace(
    request: HttpRequest, response: HttpResponse, new: NewWorkspace
) -> Status[dict[str, Any]]:
    """Create a workspace for a folder. You become its owner."""
    workspace = make_workspace_at(new.root.strip(), new.name or "", owner=caller_of(request).user)
    response["Location"] = reverse("api:workspace", args=[workspace.slug])
    return Status(201, _as_out(*get_workspace_for(request, workspace.slug)))


class WorkspaceSettings(Schema):
    """The settings of a workspace, with the same fields as the settings page.

    If a value is empty or null, the installation's default applies.
    """

    name: str
    instructions: str
    default_model: str
    window_strategy: str
    keep_recent: int | None
    high_water: int | None
    low_water: int | None
    reads_instruction_files: bool | None
    tool_policy: str
    allows_network: bool
    channel_recall: str


class WorkspacePatch(Schema):
    """Changes of a workspace's settings. Fields that are missing keep their value."""

    name: Title | None = None
    instructions: LongText | None = None
    default_model: ShortText | None = None
    window_strategy: ShortText | None = None
    keep_recent: int | None = None
    high_water: int | None = None
    low_water: int | None = None
    reads_instruction_files: bool | None = None
    tool_policy: ShortText | None = None
    allows_network: bool | None = None
    channel_recall: ShortText | None = None


@of_one.get(
    "/settings", auth=needs(MANAGE), response=WorkspaceSettings, url_name="workspace_settings"
)
def get_workspace_settings(request: HttpRequest, slug: Path[str]) -> Workspace:
    """Return the settings of a workspace. Only its owners may read them."""
    workspace, _ = _get_managed(request, slug)
    return workspace


@of_one.patch(
    "/settings", auth=needs(MANAGE), response=WorkspaceSettings, url_name="workspace_settings"
)
def change_workspace_settings(
    request: HttpRequest, slug: Path[str], patch: WorkspacePatch
) -> Workspace:
    """Change the settings of a workspace. If one value is refused, none is changed."""
    unlocked, origin = _get_managed(request, slug)
    with transaction.atomic():
        # The lock prevents that concurrent changes are overwritten with old values.
        workspace = archive_workspaces.lock_workspace(unlocked)
        changed = copy(workspace)
        for name, value in patch.dict(exclude_unset=True).items():
            setattr(changed, name, value)
        # The forms of the settings page check which values are valid together.
        form = WorkspaceSettingsForm(workspace, WorkspaceSettingsForm.values_of(changed))
        rules = ToolRulesForm(workspace, ToolRulesForm.values_of(changed))
        errors = [*form.errors.values(), *rules.errors.values()]
        problems = [text for texts in errors for text in texts]
        if problems:
            raise Rejected(" ".join(map(str, problems)), code="bad_settings")
        tools = dict(rules.cleaned_data)
        change_channel_recall(workspace, channel_recall=tools.pop("channel_recall"), origin=origin)
        archive_workspaces.change_workspace(workspace, **form.cleaned_data)
        archive_workspaces.change_tool_rules(workspace, **tools)
    workspace.refresh_from_db()
    return workspace


# The workspace memory.


class MemoryOut(Schema):
    """A rule or a preference of the workspace memory.

    With the ``scope`` ``workspace``, it is in the state of all sessions of the workspace, and with
    ``person``, only of your own sessions. ``session`` and ``turn`` say where it was said. They are
    null if it was entered by hand or if the session is gone.
    """

    id: UUID
    kind: str
    text: str
    scope: str
    session: UUID | None
    turn: int | None
    created_by: str
    created_at: Moment

    @staticmethod
    def resolve_id(entry: MemoryEntry) -> UUID:
        return entry.uuid

    @staticmethod
    def resolve_session(entry: MemoryEntry) -> UUID | None:
        return entry.session.uuid if entry.session else None

    @staticmethod
    def resolve_created_by(entry: MemoryEntry) -> str:
        return entry.created_by.get_username() if entry.created_by else ""


class MemoryIn(Schema):
    """A new entry of the workspace memory. Only owners may use the scope ``workspace``."""

    kind: Literal["rule", "preference"] = "rule"
    text: ShortText
    scope: Literal["person", "workspace"]


class MemoryPatch(Schema):
    text: ShortText


@of_one.get("/memory", auth=needs(READ), response=Page[MemoryOut], url_name="workspace_memory")
def list_memory(request: HttpRequest, slug: Path[str]) -> dict[str, Any]:
    """List the entries of the memory for the workspace and for you, the oldest first."""
    _, _, entries = get_memory_for(request, slug)
    return {"items": entries}


@of_one.post("/memory", auth=needs(WRITE), response={201: MemoryOut}, url_name="workspace_memory")
def keep_in_memory(request: HttpRequest, slug: Path[str], new: MemoryIn) -> Status[MemoryEntry]:
    """Save a rule or a preference. If it is saved already, nothing changes."""
    context = access_context_of(request)
    workspace, _ = get_workspace_for(context, slug, to=permission_for_memory(new.scope))
    by = caller_of(request).user
    return Status(201, add_entry(workspace, **new.dict(), by=by, origin=context.origin))


@of_one.patch(
    "/memory/{uuid:entry}", auth=needs(WRITE), response=MemoryOut, url_name="workspace_memory_entry"
)
def reword_memory(
    request: HttpRequest, slug: Path[str], entry: Path[UUID], patch: MemoryPatch
) -> MemoryEntry:
    """Change the text of an entry."""
    context = access_context_of(request)
    _, memory_entry = get_memory_entry_for(context, slug, entry)
    change_entry(memory_entry, text=patch.text, origin=context.origin)
    return memory_entry


@of_one.delete(
    "/memory/{uuid:entry}",
    auth=needs(WRITE),
    response={204: None},
    url_name="workspace_memory_entry",
)
def forget_memory(request: HttpRequest, slug: Path[str], entry: Path[UUID]) -> Status[None]:
    """Remove an entry."""
    context = access_context_of(request)
    _, memory_entry = get_memory_entry_for(context, slug, entry)
    remove_entry(memory_entry, origin=context.origin)
    return Status(204, None)


# Members, groups and invitations.


class MemberOut(Schema):
    username: str
    role: str


class MemberIn(Schema):
    role: Role


class GroupOut(Schema):
    """A group of people.

    ``role`` is the role that its people have in the workspace, and null for a group that could be
    added. ``people`` is the number of its people who can sign in.
    """

    id: int
    name: str
    role: str | None
    people: int | None


class InvitationIn(Schema):
    """A new invitation. ``label`` is a note for you about whom the link is for."""

    role: Role = "member"
    label: str = Field("", max_length=120)


class InvitationOut(Schema):
    id: int
    label: str
    role: str
    created_by: str
    created_at: Moment
    expires_at: Moment

    @staticmethod
    def resolve_created_by(item: Any) -> str:
        return str(item.created_by.get_username())


class NewInvitationOut(Schema):
    """The ``link`` that lets one person join. It is not shown again."""

    link: str


@of_one.get("/members", auth=needs(MANAGE), response=Page[MemberOut], url_name="workspace_members")
def list_members(request: HttpRequest, slug: Path[str]) -> dict[str, Any]:
    """List the members of a workspace by name. Only its owners may do this."""
    workspace, _ = _get_managed(request, slug)
    members = archive_workspaces.members_of(workspace)
    return {"items": [{"username": name, "role": role} for name, role in members]}


@of_one.put(
    "/members/{username}", auth=needs(MANAGE), response=MemberOut, url_name="workspace_member"
)
def set_member(
    request: HttpRequest, slug: Path[str], username: str, new: MemberIn
) -> dict[str, Any]:
    """Set the role of a person in the workspace. The last owner cannot get another role."""
    workspace, origin = _get_managed(request, slug)
    archive_workspaces.add_member(
        workspace, user_pk=archive_workspaces.find_user(username).pk, role=new.role, origin=origin
    )
    return {"username": username, "role": new.role}


@of_one.delete(
    "/members/{username}", auth=needs(MANAGE), response={204: None}, url_name="workspace_member"
)
def take_member_out(request: HttpRequest, slug: Path[str], username: str) -> Status[None]:
    """Remove a person from the workspace. If they are not a member, nothing happens."""
    workspace, origin = _get_managed(request, slug)
    person = archive_workspaces.find_user(username, even_closed=True)
    archive_workspaces.remove_member(workspace, user_pk=person.pk, origin=origin)
    return Status(204, None)


@of_one.get("/groups", auth=needs(MANAGE), response=Page[GroupOut], url_name="workspace_groups")
def list_groups(request: HttpRequest, slug: Path[str]) -> dict[str, Any]:
    """List the groups of a workspace by name, followed by groups that could be added.

    Only owners of the workspace may do this.
    """
    workspace, _ = _get_managed(request, slug)
    return {"items": _list_groups(workspace)}


@of_one.put("/groups/{int:id}", auth=needs(MANAGE), response=GroupOut, url_name="workspace_group")
def set_group(request: HttpRequest, slug: Path[str], id: int, new: MemberIn) -> dict[str, Any]:
    """Set the role of a group's people in the workspace."""
    workspace, origin = _get_managed(request, slug)
    # Groups that grant a role in the installation cannot be groups of a workspace.
    if id not in [group["id"] for group in _list_groups(workspace)]:
        raise NotFound("This group does not exist.")
    archive_workspaces.add_group(workspace, group=find_group(id), role=new.role, origin=origin)
    [group] = [group for group in _list_groups(workspace) if group["id"] == id]
    return group


@of_one.delete(
    "/groups/{int:id}", auth=needs(MANAGE), response={204: None}, url_name="workspace_group"
)
def take_group_out(request: HttpRequest, slug: Path[str], id: int) -> Status[None]:
    """Remove a group from the workspace. If it is not in the workspace, nothing happens."""
    workspace, origin = _get_managed(request, slug)
    archive_workspaces.remove_group(workspace, group=find_group(id), origin=origin)
    return Status(204, None)


def _list_groups(workspace: Workspace) -> list[dict[str, Any]]:
    groups = [group | {"id": group["pk"]} for group in archive_workspaces.groups_of(workspace)]
    for pk, name in archive_workspaces.groups_to_add(workspace):
        groups.append({"id": pk, "name": name, "role": None, "people": None})
    return groups


@of_one.get(
    "/invitations",
    auth=needs(MANAGE),
    response=Page[InvitationOut],
    url_name="workspace_invitations",
)
def list_open_invitations(request: HttpRequest, slug: Path[str]) -> dict[str, Any]:
    """List the invitations to a workspace that still work, the latest first."""
    workspace, _ = _get_managed(request, slug)
    return {"items": list_invitations(workspace)}


@of_one.post(
    "/invitations",
    auth=needs(MANAGE),
    response={201: NewInvitationOut},
    url_name="workspace_invitations",
)
def invite(request: HttpRequest, slug: Path[str], new: InvitationIn) -> Status[dict[str, Any]]:
    """Create a link with which one person can join the workspace."""
    workspace, origin = _get_managed(request, slug)
    token = create_invitation(
        workspace=workspace,
        role=new.role,
        label=new.label,
        lifetime=timedelta(days=settings.LOOM.invitation_days),
        origin=origin,
    )
    return Status(201, {"link": request.build_absolute_uri(reverse("join", args=[token]))})


@of_one.delete(
    "/invitations/{int:id}",
    auth=needs(MANAGE),
    response={204: None},
    url_name="workspace_invitation",
)
def revoke_open_invitation(request: HttpRequest, slug: Path[str], id: int) -> Status[None]:
    """Revoke an invitation that was not used yet."""
    workspace, origin = _get_managed(request, slug)
    if not revoke_invitation(workspace, pk=id, origin=origin):
        raise NotFound("This invitation is no longer open.")
    return Status(204, None)
