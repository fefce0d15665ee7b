"""Workspaces: which ones the caller is in, how they are set up, who belongs to them."""

from datetime import timedelta
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from ninja import Field, Router, Schema, Status

from conversations.access import Access, get_workspace_for, visit_of
from conversations.accounts.invitations import (
    create_invitation,
    list_invitations,
    revoke_invitation,
)
from conversations.accounts.tokens import MANAGE, READ
from conversations.archive.rights import MANAGE as TO_MANAGE
from conversations.archive.rights import change_channel_recall
from conversations.archive.workspaces import (
    add_member,
    change_tool_rules,
    change_workspace,
    create_workspace,
    find_user,
    list_workspaces,
    members_of,
    remove_member,
    resolve_root,
)
from conversations.domain.errors import NotFound, Rejected
from conversations.models import Workspace
from conversations.runtime.current import list_models
from conversations.web.forms import ToolRulesForm, WorkspaceSettingsForm

from .auth import caller_of, needs
from .fields import LongText, Moment, Page, ShortText, Title

router = Router(tags=["Workspaces"])

Role = Literal["owner", "member", "viewer"]


class WorkspaceOut(Schema):
    """``role`` is null for a reviewer who is no member."""

    slug: str
    name: str
    role: str | None


@router.get("", auth=needs(READ), response=Page[WorkspaceOut], url_name="workspaces")
def list_own_workspaces(request: HttpRequest) -> dict[str, Any]:
    """The workspaces that you are a member of, by name."""
    return {"items": list_workspaces(caller_of(request).user.pk)}


@router.get("/{slug:slug}", auth=needs(READ), response=WorkspaceOut, url_name="workspace")
def get_workspace(request: HttpRequest, slug: str) -> dict[str, Any]:
    """One workspace."""
    return _as_out(*get_workspace_for(request, slug))


def _as_out(workspace: Workspace, access: Access) -> dict[str, Any]:
    return {"slug": workspace.slug, "name": workspace.name, "role": access.role}


class NewWorkspace(Schema):
    """``root`` is the absolute path of a folder on the server, which no workspace of others
    uses; without a ``name`` it has the folder's."""

    root: str = Field(max_length=1024)
    name: Title | None = None


@router.post("", auth=needs(MANAGE), response={201: WorkspaceOut}, url_name="workspaces")
def make_workspace(
    request: HttpRequest, response: HttpResponse, new: NewWorkspace
) -> Status[dict[str, Any]]:
    """Make a workspace of a folder. You are its owner."""
    user = caller_of(request).user
    root = resolve_root(
        new.root.strip(),
        roots=settings.LOOM.workspace_roots,
        data_dir=settings.LOOM.data_dir,
        user_pk=user.pk,
    )
    workspace = create_workspace(root=root, name=new.name or "", owner=user)
    response["Location"] = reverse("api:workspace", args=[workspace.slug])
    return Status(201, _as_out(*get_workspace_for(request, workspace.slug)))


class WorkspaceSettings(Schema):
    """Empty or null: as the installation has it. The fields are those of the settings page."""

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
    """What is left out stays as it is."""

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


@router.get(
    "/{slug:slug}/settings",
    auth=needs(MANAGE),
    response=WorkspaceSettings,
    url_name="workspace_settings",
)
def get_workspace_settings(request: HttpRequest, slug: str) -> Workspace:
    """How a workspace is set up, for its owners."""
    workspace, _ = get_workspace_for(request, slug, to=TO_MANAGE)
    return workspace


@router.patch(
    "/{slug:slug}/settings",
    auth=needs(MANAGE),
    response=WorkspaceSettings,
    url_name="workspace_settings",
)
def change_workspace_settings(request: HttpRequest, slug: str, patch: WorkspacePatch) -> Workspace:
    """Set a workspace up: all that is given, or nothing where one value is refused."""
    visit = visit_of(request)
    workspace, _ = get_workspace_for(visit, slug, to=TO_MANAGE)
    given = patch.model_dump(include=patch.model_fields_set)
    values = {name: getattr(workspace, name) for name in WorkspaceSettings.model_fields} | given
    # The forms of the settings page have the rules of what goes with what.
    chosen = {None: "", True: "yes", False: "no"}[values["reads_instruction_files"]]
    models = [*(model.id for model in list_models()), workspace.default_model]
    form = WorkspaceSettingsForm(values | {"reads_instruction_files": chosen}, models=models)
    rules = ToolRulesForm(values)
    wrong = [text for one in (form, rules) for texts in one.errors.values() for text in texts]
    if wrong:
        raise Rejected(" ".join(map(str, wrong)), code="bad_settings")
    tools = dict(rules.cleaned_data)
    change_channel_recall(
        workspace, channel_recall=tools.pop("channel_recall"), origin=visit.origin
    )
    change_workspace(workspace, **form.cleaned_data)
    change_tool_rules(workspace, **tools)
    workspace.refresh_from_db()
    return workspace


# Who belongs to a workspace, and whom an invitation lets in.


class MemberOut(Schema):
    username: str
    role: str


class MemberIn(Schema):
    role: Role


class InvitationIn(Schema):
    """``label`` is for you: whom the link is for."""

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
    """``link`` lets one person join. It is shown this once."""

    link: str


@router.get(
    "/{slug:slug}/members",
    auth=needs(MANAGE),
    response=Page[MemberOut],
    url_name="workspace_members",
)
def list_members(request: HttpRequest, slug: str) -> dict[str, Any]:
    """The members of a workspace by name, for its owners."""
    workspace, _ = get_workspace_for(request, slug, to=TO_MANAGE)
    members = members_of(workspace)
    return {"items": [{"username": name, "role": role} for name, role in members]}


@router.put(
    "/{slug:slug}/members/{username}",
    auth=needs(MANAGE),
    response=MemberOut,
    url_name="workspace_member",
)
def set_member(request: HttpRequest, slug: str, username: str, new: MemberIn) -> dict[str, Any]:
    """Give a person a role in the workspace, or another one. The last owner stays one."""
    visit = visit_of(request)
    workspace, _ = get_workspace_for(visit, slug, to=TO_MANAGE)
    add_member(workspace, user_pk=find_user(username).pk, role=new.role, origin=visit.origin)
    return {"username": username, "role": new.role}


@router.delete(
    "/{slug:slug}/members/{username}",
    auth=needs(MANAGE),
    response={204: None},
    url_name="workspace_member",
)
def take_member_out(request: HttpRequest, slug: str, username: str) -> Status[None]:
    """Take a person out of the workspace; nothing happens for one who is not in it."""
    visit = visit_of(request)
    workspace, _ = get_workspace_for(visit, slug, to=TO_MANAGE)
    person = find_user(username, even_closed=True)
    remove_member(workspace, user_pk=person.pk, origin=visit.origin)
    return Status(204, None)


@router.get(
    "/{slug:slug}/invitations",
    auth=needs(MANAGE),
    response=Page[InvitationOut],
    url_name="workspace_invitations",
)
def list_open_invitations(request: HttpRequest, slug: str) -> dict[str, Any]:
    """The invitations to a workspace that still work, the latest first."""
    workspace, _ = get_workspace_for(request, slug, to=TO_MANAGE)
    return {"items": list_invitations(workspace)}


@router.post(
    "/{slug:slug}/invitations",
    auth=needs(MANAGE),
    response={201: NewInvitationOut},
    url_name="workspace_invitations",
)
def invite(request: HttpRequest, slug: str, new: InvitationIn) -> Status[dict[str, Any]]:
    """Make a link by which one person joins the workspace."""
    visit = visit_of(request)
    workspace, _ = get_workspace_for(visit, slug, to=TO_MANAGE)
    token = create_invitation(
        workspace=workspace,
        role=new.role,
        label=new.label,
        lifetime=timedelta(days=settings.LOOM.invitation_days),
        origin=visit.origin,
    )
    return Status(201, {"link": request.build_absolute_uri(reverse("join", args=[token]))})


@router.delete(
    "/{slug:slug}/invitations/{int:id}",
    auth=needs(MANAGE),
    response={204: None},
    url_name="workspace_invitation",
)
def revoke_open_invitation(request: HttpRequest, slug: str, id: int) -> Status[None]:
    """Revoke an invitation that was not used."""
    visit = visit_of(request)
    workspace, _ = get_workspace_for(visit, slug, to=TO_MANAGE)
    if not revoke_invitation(workspace, pk=id, origin=visit.origin):
        raise NotFound("This invitation is not open any more.")
    return Status(204, None)
