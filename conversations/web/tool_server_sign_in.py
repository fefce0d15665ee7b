"""Signing in to a tool server at the authorization server that it names."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from conversations.access import (
    access_context_of,
    get_workspace_for,
    require_administrator,
    sign_in_first,
)
from conversations.agent.mcp.servers import ToolServers
from conversations.archive.rights import MANAGE
from conversations.archive.tool_server_grants import read_outcome, save_answer
from conversations.domain.errors import Rejected
from conversations.domain.text import storable
from conversations.models import Workspace
from conversations.rendering.messages import translate
from conversations.runtime.current import current_runtime
from conversations.web.errors import refusal_as_message

from .tool_rules import require_tool_server

MAX_WAIT_SECONDS, PAUSE_SECONDS = 20.0, 0.2  # Waiting for the server after the callback
ANSWER_FIELDS = ("code", "state", "iss", "error", "error_description")
MAX_FIELD_CHARS = 2_000


@require_POST
async def workspace_tool_server_sign_in(
    request: HttpRequest, slug: str, name: str
) -> HttpResponseBase:
    """Show where the person is sent to sign in, and what signing in means."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(slug=slug)
    workspace, servers = await _get_managed(request, user, slug, name)
    redirect_uri = request.build_absolute_uri(reverse("tool_server_callback"))
    with refusal_as_message(request):
        url = await servers.begin_sign_in(
            slug, Path(workspace.root), name, user_pk=user.pk, redirect_uri=redirect_uri
        )
        context = {
            "workspace": workspace,
            "server": name,
            "url": url,
            "host": urlsplit(url).hostname,
            "is_shared": servers.is_shared(slug, name),
        }
        return await sync_to_async(render)(request, "tool_server_sign_in.html", context)
    return redirect("workspace_tools", slug=slug)


@require_POST
async def workspace_tool_server_sign_out(
    request: HttpRequest, slug: str, name: str
) -> HttpResponseBase:
    """Delete what an authorization server has granted for a tool server."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(slug=slug)
    workspace, servers = await _get_managed(request, user, slug, name)
    with refusal_as_message(request):
        await servers.sign_out(slug, Path(workspace.root), name)
        messages.success(request, gettext("Signed out of %(server)s.") % {"server": name})
    return redirect("workspace_tools", slug=slug)


@never_cache
@require_GET
async def tool_server_callback(request: HttpRequest) -> HttpResponseBase:
    """Handle the callback with which an authorization server sends a person back."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first()
    answer = {
        field: storable(request.GET[field])[:MAX_FIELD_CHARS]
        for field in ANSWER_FIELDS
        if field in request.GET
    }
    try:
        request_pk = await sync_to_async(save_answer)(answer, user_pk=user.pk)
    except Rejected as error:
        messages.error(request, translate(error.message))
        return redirect("home")
    outcome = await sync_to_async(read_outcome)(request_pk)
    for _ in range(int(MAX_WAIT_SECONDS / PAUSE_SECONDS)):
        if outcome.is_over:
            break
        await asyncio.sleep(PAUSE_SECONDS)
        outcome = await sync_to_async(read_outcome)(request_pk)
    if outcome.problem:
        messages.error(request, f"{outcome.server}: {outcome.problem}")
    elif outcome.is_over:
        message = gettext("Signed in to %(server)s.") % {"server": outcome.server}
        messages.success(request, message)
    else:
        message = gettext("%(server)s is still connecting.") % {"server": outcome.server}
        messages.info(request, message)
    return redirect("workspace_tools", slug=outcome.slug)


async def _get_managed(
    request: HttpRequest, user: User, slug: str, name: str
) -> tuple[Workspace, ToolServers]:
    """Return the workspace and its servers if the person may sign in for all users of a server.

    Managers of the workspace may. If other workspaces have the server as well, only administrators
    may.
    """
    workspace, _ = await sync_to_async(get_workspace_for)(
        access_context_of(request, user), slug, to=MANAGE
    )
    require_tool_server(slug, name)
    servers = (await current_runtime()).tool_servers
    if servers.is_shared(slug, name):
        await sync_to_async(require_administrator)(request)
    return workspace, servers
