"""The palette: where one can go, found by typing, on every page."""

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.archive.rights import is_administrator
from conversations.archive.session_records import RecentPage, list_recent_sessions
from conversations.archive.workspaces import list_workspaces
from conversations.feature import links_at
from conversations.models import Membership

from .pages import MAX_FILTER_CHARS, person

PALETTE_PAGE = 12


@login_required
@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """Sessions that fit to ``q``, the last used first, paged by ``before``; with
    ``all=1`` the workspaces and pages too."""
    user = person(request)
    found = list_recent_sessions(
        user,
        query=request.GET.get("q", "")[:MAX_FILTER_CHARS],
        before=request.GET.get("before", ""),
        limit=PALETTE_PAGE,
    )
    answer: dict[str, Any] = {"sessions": _sessions(found), "more": found.next_cursor}
    if request.GET.get("all") == "1":
        answer |= {"places": list(_places(request, user)), "style": static("css/commands.css")}
    return JsonResponse(answer)


def _sessions(page: RecentPage) -> list[dict[str, str]]:
    return [
        {
            "name": item.title or "Untitled session",
            "says": item.workspace,
            "url": reverse("session", args=[item.uuid]),
        }
        for item in page.items
    ]


def _places(request: HttpRequest, user: User) -> Iterator[dict[str, str]]:
    """``form``: the address is that of a form without fields."""
    for item in list_workspaces(user.pk):
        yield {
            "name": item.name,
            "says": "Workspace",
            "url": reverse("workspace", args=[item.slug]),
        }
        if item.role != Membership.Role.VIEWER:
            new = reverse("session_create", args=[item.slug])
            yield {"name": f"New session in {item.name}", "says": "", "url": new, "form": "yes"}
        if item.role == Membership.Role.OWNER:
            rules = reverse("workspace_settings", args=[item.slug])
            yield {"name": f"Settings of {item.name}", "says": "", "url": rules}
    yield {"name": "All workspaces", "says": "", "url": reverse("home")}
    yield {"name": "Search what was said", "says": "", "url": reverse("search")}
    yield {"name": "Commands and keys", "says": "", "url": reverse("help")}
    yield {"name": "Account", "says": "", "url": reverse("account")}
    yield from _feature_places("menu.account", request)
    yield {"name": "Tokens", "says": "", "url": reverse("tokens")}
    yield {"name": "API", "says": "", "url": reverse("api_docs")}
    yield from _feature_places("menu.api", request)
    yield {"name": "Change password", "says": "", "url": reverse("password_change")}
    if is_administrator(user):
        yield {"name": "People", "says": "", "url": reverse("people")}
    if user.is_staff:
        yield {"name": "Admin", "says": "", "url": reverse("admin:index")}


def _feature_places(place: str, request: HttpRequest) -> Iterator[dict[str, str]]:
    for link in links_at(place, request):
        yield {"name": link.label, "says": link.says, "url": link.url}
