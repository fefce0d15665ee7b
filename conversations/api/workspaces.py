"""Workspaces: which ones the caller is in."""

from django.http import HttpRequest
from ninja import Router, Schema

from conversations.access import Access, get_workspace_for
from conversations.accounts.tokens import READ
from conversations.archive.workspaces import list_workspaces
from conversations.models import Workspace

from .auth import caller_of, needs, visit_of
from .fields import Page

router = Router(tags=["Workspaces"])


class WorkspaceOut(Schema):
    """``role`` is null for a reviewer who is no member."""

    slug: str
    name: str
    role: str | None


@router.get("", auth=needs(READ), response=Page[WorkspaceOut], url_name="workspaces")
def list_own_workspaces(request: HttpRequest) -> Page[WorkspaceOut]:
    """The workspaces that you are a member of, by name."""
    found = list_workspaces(caller_of(request).user.pk)
    items = [WorkspaceOut(slug=one.slug, name=one.name, role=one.role) for one in found]
    return Page(items=items)


@router.get("/{slug:slug}", auth=needs(READ), response=WorkspaceOut, url_name="workspace")
def get_workspace(request: HttpRequest, slug: str) -> WorkspaceOut:
    """One workspace."""
    return _as_out(*get_workspace_for(visit_of(request), slug))


def _as_out(workspace: Workspace, access: Access) -> WorkspaceOut:
    return WorkspaceOut(slug=workspace.slug, name=workspace.name, role=access.role)
