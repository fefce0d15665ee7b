"""The tool rules of a workspace: the policy, network access and what is always allowed."""

from pathlib import Path

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_POST

from conversations.access import access_context_of, get_workspace_for, post_by_person, sign_in_first
from conversations.agent.mcp.servers import ServerState, ToolServers
from conversations.agent.sandbox.support import describe
from conversations.agent.tools.registry import TOOLS, is_offered
from conversations.agent.window.system_prompt import describe_problems
from conversations.archive.rights import MANAGE, change_channel_recall
from conversations.archive.tool_calls import list_permissions, revoke_permission
from conversations.archive.tool_server_grants import list_grants
from conversations.archive.workspaces import change_tool_rules, lock_workspace
from conversations.domain.errors import NotFound
from conversations.domain.tool_calls import ToolScope
from conversations.models import ToolServerGrant
from conversations.rendering.messages import translate
from conversations.runtime.current import current_runtime, started_runtime

from .forms import ToolRulesForm


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_tools(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = ToolRulesForm(workspace)
    if request.method == "POST":
        with transaction.atomic():
            form = ToolRulesForm(lock_workspace(workspace), request.POST)
            if form.is_valid():
                rules = form.cleaned_data
                recall, origin = rules.pop("channel_recall"), access_context_of(request).origin
                change_channel_recall(workspace, channel_recall=recall, origin=origin)
                change_tool_rules(workspace, **rules)
                messages.success(request, gettext("Saved."))
                return redirect("workspace_tools", slug=slug)
    scope = ToolScope(
        workspace=workspace.slug,
        policy=workspace.tool_policy,
        allows_network=workspace.allows_network,
    )
    offered = [name for name, tool in TOOLS.items() if is_offered(tool, scope)]
    context = {
        "workspace": workspace,
        "form": form,
        "permissions": list_permissions(workspace),
        "offered": offered,
        "left_out": [name for name in TOOLS if name not in offered],
        "commands": translate(describe()),
        "tool_servers": tool_servers_with_grants(slug),
        "skill_problems": describe_problems(Path(workspace.root)),
    }
    return render(request, "settings/tools.html", context, status=400 if form.errors else 200)


@post_by_person
def workspace_permission_revoke(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Revoke a permission, so that calls of this kind ask again."""
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    revoke_permission(workspace, pk=pk, user_pk=request.user.pk)
    messages.success(request, gettext("Revoked. Calls of this kind need approval again."))
    return redirect("workspace_tools", slug=slug)


# The tool servers of a workspace, as people see them.


def list_tool_servers(workspace: str) -> list[ServerState]:
    """Return the workspace's servers with their state in this process."""
    runtime = started_runtime()
    servers = runtime.tool_servers if runtime is not None else ToolServers(settings.LOOM.mcp)
    return servers.describe(workspace)


def tool_servers_with_grants(workspace: str) -> list[tuple[ServerState, ToolServerGrant | None]]:
    """Return the workspace's servers, each with the grant of its authorization server, if any."""
    servers = list_tool_servers(workspace)
    grants = list_grants(workspace) if servers else {}
    return [(server, grants.get(server.name)) for server in servers]


def failed_tool_servers(workspace: str) -> list[str]:
    return [state.name for state in list_tool_servers(workspace) if state.is_failed]


def require_tool_server(workspace: str, name: str) -> None:
    """Raise NotFound if the workspace has no such server."""
    if name not in [state.name for state in list_tool_servers(workspace)]:
        raise NotFound("This workspace has no such tool server.")


@require_POST
async def workspace_tool_server_connect(
    request: HttpRequest, slug: str, name: str
) -> HttpResponseBase:
    """Connect a tool server again at once."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(slug=slug)
    workspace, _ = await sync_to_async(get_workspace_for)(
        access_context_of(request, user), slug, to=MANAGE
    )
    require_tool_server(slug, name)
    runtime = await current_runtime()
    state = await runtime.tool_servers.connect_again(slug, Path(workspace.root), name)
    if state is not None:
        message = f"{name}: {translate(state.state)}. {translate(state.reason)}"
        messages.info(request, message.strip())
    return redirect("workspace_tools", slug=slug)
