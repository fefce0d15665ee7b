"""The branches of a session: listing them, showing one in place, and continuing from one."""

from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import (
    Access,
    get_session_for,
    person,
    post_by_person,
    post_to_session,
)
from conversations.archive.branches import is_branch_due, list_branches, list_versions, read_branch
from conversations.archive.forking import fork_session
from conversations.archive.rewinds import require_branch
from conversations.archive.rights import WRITE
from conversations.domain.errors import Rejected
from conversations.models import Session
from conversations.rendering.rows import join_rows
from conversations.runtime.current import current_runtime
from conversations.web.errors import refusal_as_message

from .pages import is_fragment, show_turn
from .panel import render_panel

REASONS = {
    "edit": gettext_lazy("A message was edited"),
    "regenerate": gettext_lazy("An answer was made again"),
    "reset": gettext_lazy("Taken back"),
    "undo": gettext_lazy("Taken back"),
    "switch": gettext_lazy("Another branch was used"),
}


@login_required
@require_safe
def session_branches(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """List the branches that were left, with links to them and a way to use each again."""
    found, access = get_session_for(request, uuid)
    branches = [
        {"branch": branch, "reason": REASONS.get(branch.reason, "")}
        for branch in list_branches(found)
    ]
    context = {"heading": gettext("Branches"), "branches": branches}
    return render_panel(request, found, access, "branches", context)


@login_required
@require_safe
def session_versions(request: HttpRequest, uuid: UUID) -> JsonResponse:
    """Return the versions of turns as JSON.

    ``versions`` are lists of turns that are versions of each other. ``is_due`` says whether the
    next turn begins a branch.
    """
    found, _ = get_session_for(request, uuid)
    return JsonResponse({"versions": list_versions(found), "is_due": is_branch_due(found)})


@login_required
@require_safe
def session_branch(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Show the first rows of the branch that contains the turn, starting at the turn.

    If htmx does not request a part of a page, or if the turn is on no other branch, show the page
    around the turn.
    """
    found, access = get_session_for(request, uuid)
    if not is_fragment(request):
        return show_turn(request, found, access, number)
    try:
        branch, page = read_branch(found, turn=number, limit=settings.LOOM.page_size)
    except Rejected:
        return show_turn(request, found, access, number)
    context: dict[str, Any] = {
        "session": found,
        "branch": branch,
        "rows": join_rows([row.html for row in page.rows]),
        "has_more": page.newer is not None,
        "can_use": access.can_write and found.archived_at is None,
    }
    return render(request, "conversations/branch.html", context)


@post_by_person
def session_fork(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Create a session of the person's own with the turns up to this one."""
    found, _ = get_session_for(request, uuid, to=WRITE)
    made = fork_session(found, turn=number, owner=person(request))
    return redirect("session", uuid=made.uuid)


@post_to_session
async def session_branch_use(
    request: HttpRequest, found: Session, access: Access, user: User, *, number: int
) -> HttpResponse:
    """Continue the session from that branch."""
    with refusal_as_message(request):
        await sync_to_async(require_branch)(found.pk, number)
        runtime = await current_runtime()
        await runtime.use_branch(found, turn=number, user_pk=user.pk)
    return redirect("session", uuid=found.uuid)
