"""Looking things up, for people: across sessions, and in one."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from conversations.access import get_session_for, record_reading, require_reason_to_search
from conversations.archive.rights import is_reviewer, readable_sessions, readable_workspaces
from conversations.archive.storage import is_storage_error
from conversations.domain.errors import Unavailable
from conversations.domain.text import storable
from conversations.models import Session
from conversations.web.pages import person, render_page

from . import (
    EVERYWHERE,
    SearchQuery,
    SearchResults,
    Surroundings,
    TurnHit,
    Within,
    mark_words,
    parse_query,
    read_surroundings,
    search_session,
    search_sessions,
    snippet,
)
from .forms import FindForm, SearchForm

# What a search found, as its pages show it.


SNIPPET = 320  # Characters of a hit that are shown.

BEST = 200  # From so many matches on, not all may be among the best that are put in order.

_SPEAKERS = {"user": "Person", "assistant": "Assistant", "system": "System"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPages:
    """Names of the URLs of a session and of a turn, and how reading there is entered."""

    session: str
    turn: str
    note: Callable[[HttpRequest, Iterable[Session]], None]


CHAT_PAGES = HitPages(session="session", turn="turn", note=record_reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResultRow:
    """A hit as the page shows it. ``text`` is HTML: its snippet, marked where it matches,
    between the turns next to it. What a page has hundreds of is put together here; a
    template takes many times as long."""

    turn: int
    url: str
    speaker: str
    moment: str
    written: str
    text: SafeString
    replaced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    """Hits of one session that follow each other. ``owner`` is empty for one's own."""

    title: str
    url: str
    workspace: str
    owner: str
    archived: bool
    expired: bool
    hits: list[SearchResultRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A page of hits. ``more`` is the query string of the next one, if there is one;
    ``missing`` are words that match nothing. ``newest`` is the query string of the
    same in the order of time, if this is not."""

    groups: list[FoundGroup]
    total: int
    total_is_bound: bool
    missing: tuple[str, ...]
    more: str
    is_first: bool
    newest: str

    @property
    def is_cut(self) -> bool:
        """It ends here, but there may be more: only the best are put in order."""
        return not self.more and bool(self.newest) and self.total >= BEST

    @property
    def counted(self) -> str:
        """How many turns matched, and no more than is known."""
        words = f"{self.total:,} turn{'' if self.total == 1 else 's'}"
        words = f"at least {words}" if self.total_is_bound else words
        words = words if self.is_first else f"more of {words}"
        return words[0].upper() + words[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """What one person is shown of hits."""

    user_pk: int
    query: SearchQuery
    around: Surroundings
    pages: HitPages
    now: datetime = field(default_factory=timezone.now)

    def groups(self, hits: Sequence[TurnHit]) -> list[FoundGroup]:
        """In their order; those of one session that follow each other together."""
        return [
            self.group(self.around.sessions[pk], list(group))
            for pk, group in groupby(hits, key=lambda hit: hit.session_pk)
        ]

    def group(self, session: Session, hits: list[TurnHit]) -> FoundGroup:
        return FoundGroup(
            title=session.title,
            url=reverse(self.pages.session, args=[session.uuid]),
            workspace=session.workspace.name,
            owner="" if session.owner_id == self.user_pk else session.owner.get_username(),
            archived=session.archived_at is not None,
            expired=session.expires_at is not None and session.expires_at <= self.now,
            hits=[self.hit(hit) for hit in hits],
        )

    def hit(self, hit: TurnHit) -> SearchResultRow:
        at = hit.created_at.astimezone(UTC)
        lines = (
            self.line(hit.session_pk, hit.turn - 1),
            _snippet(hit.text, self.query),
            self.line(hit.session_pk, hit.turn + 1),
        )
        return SearchResultRow(
            turn=hit.turn,
            url=reverse(self.pages.turn, args=[hit.session, hit.turn]),
            speaker=_speaker(hit.role, hit.tool_name),
            moment=f"{at:%Y-%m-%dT%H:%M:%SZ}",
            written=f"{at:%Y-%m-%d %H:%M} UTC",
            text=SafeString("\n".join(filter(None, lines))),
            replaced=(hit.session_pk, hit.turn) in self.around.replaced,
        )

    def line(self, session_pk: int, turn: int) -> str:
        """The HTML of a turn next to a hit; empty where there is nothing to show."""
        found = self.around.lines.get((session_pk, turn))
        if found is None:
            return ""
        speaker = escape(_speaker(found.role, found.tool_name))
        return f'<p class="near"><b>{speaker}:</b> {escape(found.text)}</p>'


def _snippet(text: str, query: SearchQuery) -> str:
    pieces = mark_words(snippet(text, query, limit=SNIPPET), query)
    marked = (
        f"<mark>{escape(piece)}</mark>" if is_match else escape(piece) for piece, is_match in pieces
    )
    return f'<p class="snippet">{"".join(marked)}</p>'


def _speaker(role: str, tool_name: str | None) -> str:
    if role == "tool":
        return tool_name or "Tool"
    return _SPEAKERS.get(role, role)


logger = logging.getLogger(__name__)

type Finder = Callable[..., SearchResults]

PAGE = 20  # Hits of a page; more where one person walks through one session.
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
