"""What a workspace lets tools do: policy, network, what is always allowed."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from conversations.archive.audience import change_channel_recall
from conversations.archive.rights import MANAGE
from conversations.archive.tool_permissions import list_permissions, revoke_permission
from conversations.archive.workspaces import change_tool_rules
from conversations.domain.tool_policy import ToolScope
from conversations.models import Workspace
from conversations.sandbox.support import describe
from conversations.tools.registry import TOOLS, is_offered

from .access import get_workspace_for, post_by_person, visit_of
from .forms import ToolRulesForm


def tool_rules_context(workspace: Workspace) -> dict[str, Any]:
    """For the card of the workspace's settings."""
    scope = ToolScope(
        workspace=workspace.slug,
        policy=workspace.tool_policy,
        allows_network=workspace.allows_network,
    )
    fields = ("tool_policy", "allows_network", "channel_recall")
    initial = {name: getattr(workspace, name) for name in fields}
    offered = {name: is_offered(tool, scope) for name, tool in TOOLS.items()}
    return {
        "form": ToolRulesForm(initial=initial, auto_id="id_tools_%s"),
        "permissions": list_permissions(workspace),
        "offered": [name for name, is_there in offered.items() if is_there],
        "left_out": [name for name, is_there in offered.items() if not is_there],
        "commands": describe(),
    }


@post_by_person
def workspace_tools(request: HttpRequest, slug: str) -> HttpResponse:
    found, _ = get_workspace_for(request, slug, to=MANAGE)
    form = ToolRulesForm(request.POST)
    if form.is_valid():
        rules = form.cleaned_data
        change_channel_recall(
            found, channel_recall=rules.pop("channel_recall"), origin=visit_of(request).origin
        )
        change_tool_rules(found, **rules)
        messages.success(request, "Saved.")
    else:
        messages.error(request, "Choose what tools may do.")
    return redirect("workspace_settings", slug=slug)


@post_by_person
def workspace_permission_revoke(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Calls of this kind ask again."""
    found, _ = get_workspace_for(request, slug, to=MANAGE)
    revoke_permission(found, pk=pk, user_pk=request.user.pk)
    messages.success(request, "Taken back: calls of this kind ask again.")
    return redirect("workspace_settings", slug=slug)
