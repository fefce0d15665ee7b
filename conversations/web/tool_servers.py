"""The tool servers of a workspace as people see them."""

from pathlib import Path

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from conversations.archive.rights import MANAGE
from conversations.domain.errors import NotFound
from conversations.runtime.current import current_runtime, started_runtime
from conversations.tools.mcp.servers import ServerState, ToolServers

from .access import get_workspace_for, sign_in_first, visit_of


def list_tool_servers(workspace: str) -> list[ServerState]:
    """The workspace's servers as this process knows them."""
    runtime = started_runtime()
    servers = runtime.tool_servers if runtime is not None else ToolServers(settings.LOOM.mcp)
    return servers.describe(workspace)


def failed_tool_servers(workspace: str) -> list[str]:
    """The names of those that do not answer."""
    return [state.name for state in list_tool_servers(workspace) if state.is_failed]


@require_POST
async def workspace_tool_server_connect(
    request: HttpRequest, slug: str, name: str
) -> HttpResponseBase:
    """Have one connected again, at once."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(slug=slug)
    found, _ = await sync_to_async(get_workspace_for)(visit_of(request, user), slug, to=MANAGE)
    if name not in [state.name for state in list_tool_servers(slug)]:
        raise NotFound("There is no such tool server in this workspace.")
    runtime = await current_runtime()
    state = await runtime.tool_servers.connect_again(slug, Path(found.root), name)
    if state is not None:
        messages.info(request, f"{name}: {state.state}. {state.reason}".strip())
    return redirect("workspace_settings", slug=slug)
