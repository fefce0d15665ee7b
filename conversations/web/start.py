"""Where a person begins: in the chat that they used last, or a new one."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET

from conversations.archive.sessions import open_first_session

from .pages import person


@login_required
@require_GET
def start(request: HttpRequest) -> HttpResponse:
    """Open the chat: the last session of the person's only workspace, or a new one;
    the list of workspaces when there are several or none."""
    session = open_first_session(person(request))
    return redirect("home") if session is None else redirect("session", uuid=session.uuid)
