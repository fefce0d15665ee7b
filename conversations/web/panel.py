"""The chat's panel, each part a page of its own too: the session state, and which
sessions came from this one."""

from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from conversations.archive.forks import list_forks
from conversations.archive.rights import WRITE
from conversations.archive.session_state import read_state_view
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.text import storable
from conversations.models import Session
from conversations.runtime.current import current_runtime

from .access import Access, get_session_for, sign_in_first, visit_of
from .forms import check_state_action
from .pages import is_fragment, render_page
from .state_items import DONE, group_items, show_items

MAX_FORKS_SHOWN = 50
"""How many sessions that came from one are listed with it."""


@login_required
@require_safe
def session_state(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The session state, with what a member may do to it."""
    found, access = get_session_for(request, uuid)
    return _state(request, found, access)


@require_POST
async def session_state_edit(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """Pin, unpin, reword, strike or restore one item."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(uuid=uuid)
    found, access = await sync_to_async(get_session_for)(visit_of(request, user), uuid, to=WRITE)
    names = ("item", "action", "text")
    item, action, text = (storable(request.POST.get(name, "")) for name in names)
    try:
        check_state_action(action)
        runtime = await current_runtime()
        await runtime.edit_state(found, actor_pk=user.pk, action=action, item=item, text=text)
    except Rejected as error:
        drafts = {item: text} if text else {}
        return await sync_to_async(_state)(request, found, access, error=error, drafts=drafts)
    if is_fragment(request):
        said = DONE.get(action, "")
        return await sync_to_async(_state)(request, found, access, said=said)
    return redirect("session_state", uuid=uuid)


def _state(
    request: HttpRequest,
    found: Session,
    access: Access,
    *,
    said: str = "",
    error: LoomError | None = None,
    drafts: dict[str, str] | None = None,
) -> HttpResponse:
    view, forks = read_state_view(found.pk), list_forks(found, limit=MAX_FORKS_SHOWN + 1)
    context = {
        "heading": "Session state",
        "groups": group_items(view, drafts=drafts or {}),
        "struck": show_items(reversed(view.struck), drafts={}),
        "said": said,
        "error": error.message if error else "",
        "forks": forks[:MAX_FORKS_SHOWN],
        "most_forks": MAX_FORKS_SHOWN if len(forks) > MAX_FORKS_SHOWN else 0,
    }
    status = error.status if error else 200
    return render_panel(request, found, access, "state", context, status=status)


def render_panel(
    request: HttpRequest,
    found: Session,
    access: Access,
    tab: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    """A part of the panel: alone for the panel, with a frame as a page."""
    session = {
        "uuid": found.uuid,
        "title": found.title,
        "can_write": access.can_write and found.archived_at is None,
    }
    context |= {"session": session, "tab": tab}
    return render_page(request, f"panel/{tab}.html", "panel", context, status=status)
