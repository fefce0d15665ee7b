"""Members of a workspace: people, groups and open invitations."""

from datetime import timedelta

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import access_context_of, get_workspace_for, post_by_person
from conversations.archive import workspaces as archive_workspaces
from conversations.archive.rights import MANAGE
from conversations.domain.errors import LoomError, NotFound, Rejected
from conversations.domain.text import storable
from conversations.models import Workspace
from conversations.rendering.messages import translate
from conversations.web.errors import refusal_as_message

from .forms import GroupRoleForm, InvitationForm, MemberForm, WorkspaceInvitationForm
from .invitations import create_invitation, list_invitations, revoke_invitation
from .people import find_group


@login_required
@require_safe
def workspace_members(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    return _members_page(request, workspace, MemberForm())


def _members_page(request: HttpRequest, workspace: Workspace, form: MemberForm) -> HttpResponse:
    groups = archive_workspaces.groups_to_add(workspace)
    context = {
        "workspace": workspace,
        "form": form,
        "people": archive_workspaces.members_of(workspace),
        "groups": archive_workspaces.groups_of(workspace),
        "group_form": GroupRoleForm(groups=groups, auto_id="group_%s") if groups else None,
        "invitations": list_invitations(workspace),
        "invitation_form": WorkspaceInvitationForm(auto_id="invite_%s"),
    }
    return render(request, "settings/members.html", context, status=400 if form.errors else 200)


@post_by_person
def workspace_member_add(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = MemberForm(request.POST)
    if form.is_valid():
        origin, role = access_context_of(request).origin, form.cleaned_data["role"]
        try:
            user = archive_workspaces.find_user(form.cleaned_data["username"])
            archive_workspaces.add_member(workspace, user_pk=user.pk, role=role, origin=origin)
        except Rejected as error:
            form.add_error("username", translate(error.message))
        else:
            return _to_members(request, slug)
    return _members_page(request, workspace, form)


@post_by_person
def workspace_member_remove(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    name = storable(request.POST.get("username", ""))
    with refusal_as_message(request):
        user = archive_workspaces.find_user(name, even_closed=True)
        archive_workspaces.remove_member(
            workspace, user_pk=user.pk, origin=access_context_of(request).origin
        )
        messages.success(request, gettext("%(name)s was removed.") % {"name": user.username})
    return _to_members(request, slug)


@post_by_person
def workspace_group_add(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = GroupRoleForm(request.POST, groups=archive_workspaces.groups_to_add(workspace))
    if form.is_valid():
        archive_workspaces.add_group(
            workspace,
            group=find_group(int(form.cleaned_data["group"])),
            role=form.cleaned_data["role"],
            origin=access_context_of(request).origin,
        )
    else:
        messages.error(request, gettext("Choose a group and a role."))
    return _to_members(request, slug)


@post_by_person
def workspace_group_remove(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    group = find_group(pk)
    archive_workspaces.remove_group(
        workspace, group=group, origin=access_context_of(request).origin
    )
    messages.success(request, gettext("%(name)s was removed.") % {"name": group.name})
    return _to_members(request, slug)


@post_by_person
def workspace_invite(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form = WorkspaceInvitationForm(request.POST)
    if not form.is_valid():
        messages.error(request, gettext("Choose a role, and a shorter name."))
        return _to_members(request, slug)
    back = reverse("workspace_members", args=[slug])
    return invite(request, form, workspace=workspace, back=back, back_to=gettext("Members"))


def invite(
    request: HttpRequest,
    form: InvitationForm,
    *,
    workspace: Workspace | None,
    back: str,
    back_to: str,
) -> HttpResponse:
    """Create an invitation and return the page with its link, which is shown only once."""
    days = settings.LOOM.invitation_days
    try:
        token = create_invitation(
            workspace=workspace,
            role=form.cleaned_data.get("role", ""),
            label=form.cleaned_data["label"],
            lifetime=timedelta(days=days),
            origin=access_context_of(request).origin,
        )
    except Rejected as error:
        messages.error(request, translate(error.message))
        return redirect(back)
    context = {
        "link": request.build_absolute_uri(reverse("join", args=[token])),
        "label": form.cleaned_data["label"],
        "back": back,
        "back_to": back_to,
        "days": days,
    }
    response = render(request, "account/invited.html", context)
    response["Cache-Control"] = "no-store"
    return response


@post_by_person
def workspace_invitation_revoke(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    if not revoke_invitation(workspace, pk=pk, origin=access_context_of(request).origin):
        raise NotFound("This invitation is no longer open.")
    return _to_members(request, slug)


def _to_members(request: HttpRequest, slug: str) -> HttpResponseRedirect:
    # People who removed or demoted themselves cannot open the page of members any more.
    try:
        get_workspace_for(request, slug, to=MANAGE)
    except LoomError:
        return redirect("home")
    return redirect("workspace_members", slug=slug)
