"""Looking things up, for people: across sessions, and in one."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.archive.rights import readable_sessions, readable_workspaces
from conversations.archive.search import (
    Found,
    Hit,
    Query,
    Surroundings,
    mark_words,
    parse_query,
    read_surroundings,
    search_session,
    search_sessions,
    snippet,
)
from conversations.domain.errors import Unavailable
from conversations.domain.text import storable
from conversations.models import Session

from .access import get_session_for, note_reading
from .pages import person, render_page
from .search_forms import FindForm, SearchForm

logger = logging.getLogger(__name__)

PAGE = 20
"""Hits of a page; more where one person walks through one session."""
FIND_PAGE = 50
SNIPPET = 320

_SPEAKERS = {"user": "Person", "assistant": "Assistant", "system": "System"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourLine:
    speaker: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTurn:
    """A hit as the page shows it. ``pieces`` is its text, cut up where it matches."""

    turn: int
    url: str
    speaker: str
    created_at: datetime
    pieces: list[tuple[str, bool]]
    before: NeighbourLine | None
    after: NeighbourLine | None
    replaced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    """Hits of one session that follow each other. ``owner`` is empty for one's own."""

    title: str
    url: str
    workspace: str
    owner: str
    archived: bool
    hits: list[FoundTurn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A page of hits. ``more`` is the query string of the next one, if there is one;
    ``missing`` are words that match nothing."""

    groups: list[FoundGroup]
    total: int
    total_is_bound: bool
    missing: tuple[str, ...]
    more: str
    is_first: bool

    @property
    def counted(self) -> str:
        """How many turns matched, and no more than is known."""
        words = f"{self.total:,} turn{'' if self.total == 1 else 's'}"
        words = f"at least {words}" if self.total_is_bound else words
        words = words if self.is_first else f"more of {words}"
        return words[0].upper() + words[1:]


@login_required
@require_safe
def search(request: HttpRequest) -> HttpResponse:
    """All that the person may read."""
    user = person(request)
    workspaces = list(readable_workspaces(user).values_list("slug", "name"))
    form = SearchForm(request.GET.dict(), workspaces=workspaces, autofocus=not request.GET.get("q"))

    def find(query: Query, **page: Any) -> Found:
        sessions = readable_sessions(user)
        if slug := form.cleaned_data["workspace"]:
            sessions = sessions.filter(workspace__slug=slug)
        return search_sessions(sessions, query, **page)

    return _answer(request, "search.html", form, find, {}, part="hits", limit=PAGE)


@login_required
@require_safe
def session_find(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """One session, as a page or as the chat's panel."""
    session, _ = get_session_for(person(request), uuid)

    def find(query: Query, **page: Any) -> Found:
        return search_session(session.pk, query, **page)

    form = FindForm(request.GET.dict(), autofocus=True)
    context = {"session": session, "tab": "find", "heading": "Find in this session"}
    return _answer(request, "panel/find.html", form, find, context, part="panel", limit=FIND_PAGE)


def _answer(
    request: HttpRequest,
    template: str,
    form: FindForm,
    find: Callable[..., Found],
    context: dict[str, Any],
    *,
    part: str,
    limit: int,
) -> HttpResponse:
    status = 200
    context |= {"form": form, "results": None, "failed": False}
    if not form.is_valid():
        status = 400
    elif form.query:
        try:
            context["results"] = _search(request, form, find, limit=limit)
        except (DatabaseError, Unavailable):
            logger.exception("search_failed")
            context["failed"], status = True, 503
    partial = "hits" if request.GET.get("cursor") else part
    return render_page(request, template, partial, context, status=status)


def _search(
    request: HttpRequest, form: FindForm, find: Callable[..., Found], *, limit: int
) -> Results:
    cursor = storable(request.GET.get("cursor", ""))
    query = parse_query(form.query)
    found = find(query, limit=limit, cursor=cursor, order=form.cleaned_data["order"])
    around = read_surroundings(found.hits)
    user = person(request)
    note_reading(user, around.sessions.values())
    show = _Show(user_pk=user.pk, query=query, around=around)
    return Results(
        groups=[
            show.group(around.sessions[pk], list(hits))
            for pk, hits in groupby(found.hits, key=lambda hit: hit.session_pk)
        ],
        total=found.total,
        total_is_bound=found.total_is_bound,
        missing=found.missing,
        more=form.address(cursor=found.cursor) if found.cursor else "",
        is_first=not cursor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Show:
    """Makes what the page shows of what was found."""

    user_pk: int
    query: Query
    around: Surroundings

    def group(self, session: Session, hits: list[Hit]) -> FoundGroup:
        return FoundGroup(
            title=session.title,
            url=reverse("session", args=[session.uuid]),
            workspace=session.workspace.name,
            owner="" if session.owner_id == self.user_pk else session.owner.get_username(),
            archived=session.archived_at is not None,
            hits=[self.hit(hit) for hit in hits],
        )

    def hit(self, hit: Hit) -> FoundTurn:
        return FoundTurn(
            turn=hit.turn,
            url=reverse("turn", args=[hit.session, hit.turn]),
            speaker=_speaker(hit.role, hit.tool_name),
            created_at=hit.created_at,
            pieces=mark_words(snippet(hit.text, self.query, limit=SNIPPET), self.query),
            before=self.line(hit.session_pk, hit.turn - 1),
            after=self.line(hit.session_pk, hit.turn + 1),
            replaced=(hit.session_pk, hit.turn) in self.around.replaced,
        )

    def line(self, session_pk: int, turn: int) -> NeighbourLine | None:
        found = self.around.lines.get((session_pk, turn))
        if found is None:
            return None
        return NeighbourLine(speaker=_speaker(found.role, found.tool_name), text=found.text)


def _speaker(role: str, tool_name: str | None) -> str:
    if role == "tool":
        return tool_name or "Tool"
    return _SPEAKERS.get(role, role)
