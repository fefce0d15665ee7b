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
    "regenerate": gettext_lazy("An answer was regenerated"),
    "reset": gettext_lazy("Message taken back"),
    "undo": gettext_lazy("Message taken back"),
    "switch": gettext_lazy("Another branch was chosen"),
}


@login_required
@require_safe
def session_branches(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """List the branches that were left, with links to them and a way to use each again."""
    session, access = get_session_for(request, uuid)
    branches = [
        {"branch": branch, "reason": REASONS.get(branch.reason, "")}
        for branch in list_branches(session)
    ]
    context = {"heading": gettext("Branches"), "branches": branches}
    return render_panel(request, session, access, "branches", context)


@login_required
@require_safe
def session_versions(request: HttpRequest, uuid: UUID) -> JsonResponse:
    """Return the versions of turns as JSON.

    ``versions`` are lists of turns that are versions of each other. ``is_due`` says whether the
    next turn begins a branch.
    """
    session, _ = get_session_for(request, uuid)
    return JsonResponse({"versions": list_versions(session), "is_due": is_branch_due(session)})


@login_required
@require_safe
def session_branch(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Show the first rows of the branch that contains the turn, starting at the turn.

    If htmx does not request a part of a page, or if the turn is on no other branch, show the page
    around the turn.
    """
    session, access = get_session_for(request, uuid)
    if not is_fragment(request):
        return show_turn(request, session, access, number)
    try:
        branch, page = read_branch(session, turn=number, limit=settings.LOOM.page_size)
    except Rejected:
        return show_turn(request, session, access, number)
    context: dict[str, Any] = {
        "session": session,
        "branch": branch,
        "rows": join_rows([row.html for row in page.rows]),
        "has_more": page.newer is not None,
        "can_use": access.can_write and session.archived_at is None,
    }
    return render(request, "conversations/branch.html", context)


@post_by_person
def session_fork(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Create a session of the person's own with the turns up to this one."""
    session, _ = get_session_for(request, uuid, to=WRITE)
    fork = fork_session(session, turn=number, owner=person(request))
    return redirect("session", uuid=fork.uuid)


@post_to_session
async def session_branch_use(
    request: HttpRequest, session: Session, access: Access, user: User, *, number: int
) -> HttpResponse:
    """Continue the session from that branch."""
    with refusal_as_message(request):
        await sync_to_async(require_branch)(session.pk, number)
        runtime = await current_runtime()
        await runtime.use_branch(session, turn=number, user_pk=user.pk)
    return redirect("session", uuid=session.uuid)
