"""What the chat's panel shows, each part a page of its own too: the session state and
what the model was given."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from conversations.models import Session

from .access import Access, get_session_for
from .pages import person, render_page


@login_required
@require_safe
def session_state(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The session state, with what a member may do to it."""
    found, access = get_session_for(person(request), uuid)
    return _panel(request, found, access, "state", heading="Session state")


@login_required
@require_safe
def session_window(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The window of the newest model call, and the calls before it."""
    found, access = get_session_for(person(request), uuid)
    return _panel(request, found, access, "window", heading="Window")


def _panel(
    request: HttpRequest, found: Session, access: Access, tab: str, **context: Any
) -> HttpResponse:
    session = {
        "uuid": found.uuid,
        "title": found.title,
        "can_write": access.can_write and found.archived_at is None,
    }
    context |= {"session": session, "tab": tab}
    return render_page(request, f"panel/{tab}.html", "panel", context)
