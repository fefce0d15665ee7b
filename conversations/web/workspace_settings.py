"""The settings of a workspace, except those of features and those for tools."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import get_workspace_for
from conversations.archive.rights import MANAGE
from conversations.archive.workspaces import change_workspace, lock_workspace
from conversations.runtime.current import list_models
from conversations.runtime.model_routing import group_models

from .forms import WorkspaceSettingsForm


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_settings(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = WorkspaceSettingsForm(workspace)
    if request.method == "POST":
        with transaction.atomic():
            form = WorkspaceSettingsForm(lock_workspace(workspace), request.POST)
            if form.is_valid():
                change_workspace(workspace, **form.cleaned_data)
                messages.success(request, gettext("Saved."))
                return redirect("workspace_settings", slug=slug)
    models = group_models(list_models(), chosen=workspace.default_model)
    context = {"workspace": workspace, "form": form, "models": models}
    return render(request, "settings/general.html", context, status=400 if form.errors else 200)


@login_required
@require_safe
def workspace_programs(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    return render(request, "settings/programs.html", {"workspace": workspace})
