"""Looking things up, for people: across sessions, and in one."""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from conversations.archive.rights import is_reviewer, readable_sessions, readable_workspaces
from conversations.archive.search import (
    EVERYWHERE,
    SearchQuery,
    SearchResults,
    Within,
    parse_query,
    read_surroundings,
    search_session,
    search_sessions,
)
from conversations.archive.storage_errors import is_storage_error
from conversations.domain.errors import Unavailable
from conversations.domain.text import storable

from .access import get_session_for, require_reason_to_search
from .pages import person, render_page
from .search_forms import FindForm, SearchForm
from .search_results import CHAT_PAGES, HitPages, Results, Show

logger = logging.getLogger(__name__)

type Finder = Callable[..., SearchResults]

PAGE = 20
"""Hits of a page; more where one person walks through one session."""
FIND_PAGE = 50


@login_required
@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """All that the person may read."""
    user = person(request)
    workspaces = list(readable_workspaces(user).values_list("pk", "slug", "name"))
    named = [(slug, name) for _, slug, name in workspaces]
    form = SearchForm(request.GET.dict(), workspaces=named, autofocus=not request.GET.get("q"))

    def find(query: SearchQuery, **page: Any) -> SearchResults:
        wanted = form.cleaned_data["workspace"]
        chosen = tuple(pk for pk, slug, _ in workspaces if wanted in ("", slug))
        is_all = not wanted and is_reviewer(user)
        if is_reviewer(user):
            require_reason_to_search(request, chosen)
        within = EVERYWHERE if is_all else Within(workspaces=chosen)
        return search_sessions(readable_sessions(user), query, within=within, **page)

    return answer_search(request, "search.html", form, find, {}, part="hits", limit=PAGE)


@login_required
@require_safe
def session_find(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """One session, as a page or as the chat's panel."""
    session, _ = get_session_for(request, uuid)

    def find(query: SearchQuery, **page: Any) -> SearchResults:
        return search_session(session.pk, query, **page)

    form = FindForm(request.GET.dict(), autofocus=True)
    context = {"session": session, "tab": "find", "heading": "Find in this session"}
    return answer_search(
        request, "panel/find.html", form, find, context, part="panel", limit=FIND_PAGE
    )


def answer_search(
    request: HttpRequest,
    template: str,
    form: FindForm,
    find: Finder,
    context: dict[str, Any],
    *,
    part: str,
    limit: int,
    pages: HitPages = CHAT_PAGES,
) -> HttpResponse:
    """The page of a search, or the part of it that htmx asks for. ``pages`` are those
    that hits lead to."""
    status = 200
    context |= {"form": form, "results": None, "failed": False}
    if not form.is_valid():
        status = 400
    elif form.is_asked:
        try:
            context["results"] = _search(request, form, find, limit=limit, pages=pages)
        except (DatabaseError, Unavailable) as error:
            if is_storage_error(error):
                raise
            logger.exception("search_failed")
            context["failed"], status = True, 503
    partial = "hits" if request.GET.get("cursor") else part
    return render_page(request, template, partial, context, status=status)


def _search(
    request: HttpRequest, form: FindForm, find: Finder, *, limit: int, pages: HitPages
) -> Results:
    cursor = storable(request.GET.get("cursor", ""))
    query = parse_query(form.query)
    found = find(query, limit=limit, cursor=cursor, order=form.cleaned_data["order"])
    around = read_surroundings(found.hits)
    user = person(request)
    pages.note(request, around.sessions.values())
    show = Show(user_pk=user.pk, query=query, around=around, pages=pages)
    return Results(
        groups=show.groups(found.hits),
        total=found.total,
        total_is_bound=found.total_is_bound,
        missing=found.missing,
        more=form.address(cursor=found.cursor) if found.cursor else "",
        is_first=not cursor,
        newest=form.address(order="newest") if form.cleaned_data["order"] == "best" else "",
    )
