"""The palette: where one can go, found by typing, on every page."""

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.access import person
from conversations.archive.rights import is_administrator
from conversations.archive.session_records import list_recent_sessions
from conversations.archive.workspaces import list_workspaces
from conversations.feature import Link, links_at
from conversations.models import Membership

from .pages import MAX_FILTER_CHARS

PALETTE_PAGE = 12


@login_required
@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """Sessions that fit to ``q``, the last used first, paged by ``before``; with
    ``all=1`` the workspaces and pages too."""
    found = list_recent_sessions(
        person(request),
        query=request.GET.get("q", "")[:MAX_FILTER_CHARS],
        before=request.GET.get("before", ""),
        limit=PALETTE_PAGE,
    )
    sessions = [
        {
            "name": item.title or "Untitled session",
            "says": item.workspace_name,
            "url": reverse("session", args=[item.uuid]),
        }
        for item in found.items
    ]
    answer: dict[str, Any] = {"sessions": sessions, "more": found.next_cursor}
    if request.GET.get("all") == "1":
        answer |= {"places": list(list_places(request)), "style": static("css/commands.css")}
    return JsonResponse(answer)


def list_places(request: HttpRequest) -> Iterator[dict[str, str]]:
    """``form``: the address is that of a form without fields."""
    user = person(request)
    for item in list_workspaces(user.pk):
        url = reverse("workspace", args=[item.slug])
        yield {"name": item.name, "says": "Workspace", "url": url}
        if item.role != Membership.Role.VIEWER:
            new = reverse("session_create", args=[item.slug])
            yield {"name": f"New session in {item.name}", "says": "", "url": new, "form": "yes"}
        if item.role == Membership.Role.OWNER:
            rules = reverse("workspace_settings", args=[item.slug])
            yield {"name": f"Settings of {item.name}", "says": "", "url": rules}
    pages = [
        Link("All workspaces", reverse("home")),
        Link("Search what was said", reverse("search")),
        Link("Commands and keys", reverse("help")),
        Link("Account", reverse("account")),
        *links_at("menu.account", request),
        Link("Tokens", reverse("tokens")),
        Link("API", reverse("api_docs")),
        *links_at("menu.api", request),
        Link("Change password", reverse("password_change")),
    ]
    if is_administrator(user):
        pages.append(Link("People", reverse("people")))
    if user.is_staff:
        pages.append(Link("Admin", reverse("admin:index")))
    for page in pages:
        yield {"name": page.label, "says": page.says, "url": page.url}
