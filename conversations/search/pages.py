"""Search pages for people: across sessions, and within one session."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from html import escape
from itertools import groupby
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from conversations.access import (
    get_session_for,
    get_workspace_for,
    person,
    record_reading,
    require_reason_to_search,
)
from conversations.archive.rights import is_reviewer, readable_sessions, readable_workspaces
from conversations.archive.session_records import SessionRecord, list_titled
from conversations.archive.sessions import has_expired
from conversations.archive.storage import is_storage_error
from conversations.domain.errors import Unavailable
from conversations.domain.text import number_text, storable
from conversations.models import Session
from conversations.web.addresses import query_of
from conversations.web.forms import FilterForm, date_field
from conversations.web.pages import render_page

from .best_matches import MAX_PHRASE_TURNS, MAX_RANKED_TURNS
from .find import search_session
from .find_everywhere import EVERYWHERE, SearchedSessions, search_sessions
from .query import SearchQuery, mark_words, parse_query, snippet
from .results import HitContext, SearchResults, TurnHit, read_hit_context

logger = logging.getLogger(__name__)

# Search forms: a text, and filters that are equivalent to filters of the query language.

MAX_QUERY_CHARS = 1000  # The rest of a longer query is ignored.

SAID_BY = (
    ("", gettext_lazy("Anyone")),
    ("user", gettext_lazy("People")),
    ("assistant", gettext_lazy("Assistant")),
    ("tool", gettext_lazy("Tools")),
)
SPEAKERS = {
    "user": gettext_lazy("Person"),
    "assistant": gettext_lazy("Assistant"),
    "system": gettext_lazy("System"),
}
ORDERS = (("best", gettext_lazy("Best match")), ("newest", gettext_lazy("Newest first")))


class FindForm(FilterForm):
    """The form for searching one session: a text and an order."""

    q = forms.CharField(required=False, label=gettext_lazy("Search for"), widget=forms.SearchInput)
    order = forms.ChoiceField(
        choices=ORDERS, required=False, label=gettext_lazy("Order"), widget=forms.Select
    )

    def __init__(self, data: Mapping[str, str], *, autofocus: bool = False, **kwargs: Any) -> None:
        text = storable(data.get("q", "")).strip()[:MAX_QUERY_CHARS]
        super().__init__({**data, "q": text}, **kwargs)
        self.fields["q"].widget.attrs |= {
            "maxlength": MAX_QUERY_CHARS,
            "autocomplete": "off",
            "enterkeyhint": "search",
            "autofocus": autofocus,
        }

    def clean_order(self) -> str:
        return self.cleaned_data["order"] or ORDERS[0][0]

    @property
    def query(self) -> str:
        """The text of the search, in the query language."""
        return str(self.cleaned_data["q"])

    @property
    def is_asked(self) -> bool:
        return bool(self.query)

    @property
    def asked(self) -> str:
        return self.address() if self.is_valid() else ""

    def address(self, **changes: str) -> str:
        """Return the query string of this search with changes; leave out empty values."""
        values = {**self.cleaned_data, **changes}
        if values["order"] == ORDERS[0][0]:
            values["order"] = ""
        return query_of(values)


class SearchForm(FindForm):
    workspace = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Workspace"),
        widget=forms.Select,
        error_messages={
            "invalid_choice": gettext_lazy("This workspace does not exist, or you have no access.")
        },
    )
    role = forms.ChoiceField(
        choices=SAID_BY, required=False, label=gettext_lazy("Said by"), widget=forms.Select
    )
    tool = forms.CharField(
        required=False, max_length=128, label=gettext_lazy("Tool"), widget=forms.TextInput
    )
    after = date_field(gettext_lazy("From"))
    before = date_field(gettext_lazy("Before"))

    field_order: tuple[str, ...] = ("q", "workspace", "role", "tool", "after", "before", "order")
    _FILTERS: tuple[str, ...] = ("role", "tool", "after", "before")
    _OF_SESSIONS: tuple[str, ...] = ("workspace",)

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = self.cleaned_data
        after, before = values.get("after"), values.get("before")
        if after and before and after >= before:
            self.add_error(
                "before", gettext("This is before the other date, so nothing can match.")
            )
        return values

    def clean_tool(self) -> str:
        return str(self.cleaned_data["tool"]).replace('"', "")

    @property
    def query(self) -> str:
        """The text with the filters as words of the query language."""
        filters = [
            f'{name}:"{self.cleaned_data[name]}"' for name in self._FILTERS if self._has(name)
        ]
        return " ".join([*filter(None, [super().query]), *filters])

    @property
    def filters(self) -> list[forms.BoundField]:
        return [self[name] for name in self.field_order if name != "q"]

    @property
    def has_filters(self) -> bool:
        names = (*self._FILTERS, *self._OF_SESSIONS)
        return self.is_valid() and any(self._has(name) for name in names)

    @property
    def without_filters(self) -> str:
        return urlencode({"q": self.cleaned_data["q"]})

    def _has(self, name: str) -> bool:
        return bool(self.cleaned_data[name])


MAX_TITLED_SESSIONS = 10  # Sessions whose titles match, shown before the turns.

MAX_SNIPPET_CHARS = 320


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPages:
    """Names of the URLs of a session and of a turn, and the function that records the reading."""

    session: str
    turn: str
    record: Callable[[HttpRequest, Iterable[Session]], None]


CHAT_PAGES = HitPages(session="session", turn="turn", record=record_reading)

type Finder = Callable[..., SearchResults]

PAGE_HITS = 20  # A search within one session shows more on a page.
FIND_PAGE_HITS = 50


@login_required
@require_safe
def search(request: HttpRequest) -> HttpResponse:
    user = person(request)
    workspaces = list(readable_workspaces(user).values_list("pk", "slug", "name"))
    named = [(slug, name) for _, slug, name in workspaces]
    form = SearchForm(request.GET.dict(), workspaces=named, autofocus=not request.GET.get("q"))
    slug = request.GET.get("workspace")
    if slug in dict(named):
        get_workspace_for(request, slug)  # Record the workspace, to which the page then belongs.

    def find(query: SearchQuery, **page: Any) -> SearchResults:
        chosen = form.cleaned_data["workspace"]
        pks = tuple(pk for pk, slug, _ in workspaces if chosen in ("", slug))
        within = SearchedSessions(workspaces=pks)
        if is_reviewer(user):
            require_reason_to_search(request, pks)
            if not chosen:
                within = EVERYWHERE
        return search_sessions(readable_sessions(user), query, within=within, **page)

    def find_titled() -> list[SessionRecord]:
        # The template calls this, so it runs only after the search was allowed.
        query, sessions = parse_query(form.query), readable_sessions(user)
        words = query.question.replace('"', " ")
        if not words.split() or replace(query, workspaces=()).has_filters:
            return []
        if query.workspaces:
            sessions = sessions.filter(workspace__slug__in=query.workspaces)
        chosen = form.cleaned_data["workspace"]
        if chosen:
            sessions = sessions.filter(workspace__slug=chosen)
        return list_titled(sessions, words, limit=MAX_TITLED_SESSIONS)

    context = {"titled": find_titled}
    return answer_search(request, "search.html", form, find, context, part="hits", limit=PAGE_HITS)


@login_required
@require_safe
def session_find(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid)

    find = partial(search_session, session.pk)
    form = FindForm(request.GET.dict(), autofocus=True)
    context = {"session": session, "tab": "find", "heading": gettext("Find in this session")}
    return answer_search(
        request, "panel/find.html", form, find, context, part="panel", limit=FIND_PAGE_HITS
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
    """Return the page of a search, or the part that htmx asks for. Hits link to ``pages``."""
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
) -> dict[str, Any]:
    cursor = storable(request.GET.get("cursor", ""))
    query, order = parse_query(form.query), form.cleaned_data["order"]
    results = find(query, limit=limit, cursor=cursor, order=order)
    context = read_hit_context(results.hits)
    pages.record(request, context.sessions.values())
    return {
        # Consecutive hits of the same session are shown together.
        "groups": [
            _group(
                request,
                context.sessions[pk],
                hits,
                query=query,
                context=context,
                pages=pages,
            )
            for pk, hits in groupby(results.hits, key=lambda hit: hit.session_pk)
        ],
        "counted": _count(results, is_more=bool(cursor)),
        "missing": results.missing,
        "more": form.address(cursor=results.cursor) if results.cursor else "",
        "is_first": not cursor,
        "newest": form.address(order="newest") if order == "best" else "",
        "phrase_turns": number_text(MAX_PHRASE_TURNS) if results.is_phrase_cut else "",
        # The list ends here, but more turns may match, because only the best ones are ranked.
        "is_cut": not results.cursor and order == "best" and results.total >= MAX_RANKED_TURNS,
    }


def _count(results: SearchResults, *, is_more: bool) -> str:
    if is_more and results.total_is_bound:
        counted = ngettext(
            "More of at least %(count)s turn", "More of at least %(count)s turns", results.total
        )
    elif is_more:
        counted = ngettext("More of %(count)s turn", "More of %(count)s turns", results.total)
    elif results.total_is_bound:
        counted = ngettext("At least %(count)s turn", "At least %(count)s turns", results.total)
    else:
        counted = ngettext("%(count)s turn", "%(count)s turns", results.total)
    return counted % {"count": number_text(results.total)}


def _group(
    request: HttpRequest,
    session: Session,
    hits: Iterable[TurnHit],
    *,
    query: SearchQuery,
    context: HitContext,
    pages: HitPages,
) -> dict[str, Any]:
    """Return the context of one session's hits.

    ``text`` is HTML: the snippet with marked matches, between the turns next to it. ``owner`` is
    empty for the reader's own sessions."""
    rows = []
    # A page has hundreds of these values. They are rendered here, because a template takes many
    # times as long.
    for hit in hits:
        moment = hit.created_at.astimezone(UTC)
        pieces = mark_words(snippet(hit.text, query, limit=MAX_SNIPPET_CHARS), query)
        marked = (f"<mark>{escape(t)}</mark>" if is_match else escape(t) for t, is_match in pieces)
        lines = [f'<p class="snippet">{"".join(marked)}</p>']
        lines = [
            *_neighbour_lines(context, hit, -1),
            *lines,
            *_neighbour_lines(context, hit, 1),
        ]
        rows.append(
            {
                "turn": hit.turn,
                "url": reverse(pages.turn, args=[hit.session, hit.turn]),
                "speaker": _speaker(hit.role, hit.tool_name),
                "moment": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
                "written": f"{moment:%Y-%m-%d %H:%M} UTC",
                "text": SafeString("\n".join(lines)),
                "is_similar": hit.is_near,  # On a page, turns next to a match are no hits.
                "replaced": (hit.session_pk, hit.turn) in context.replaced,
            }
        )
    return {
        "title": session.title,
        "url": reverse(pages.session, args=[session.uuid]),
        "workspace": session.workspace.name,
        "owner": "" if session.owner_id == request.user.pk else session.owner.get_username(),
        "archived": session.archived_at is not None,
        "expired": has_expired(session.expires_at),
        "hits": rows,
    }


def _neighbour_lines(context: HitContext, hit: TurnHit, step: int) -> list[str]:
    line = context.lines.get((hit.session_pk, hit.turn + step))
    if line is None:
        return []
    role, tool_name, text = line
    speaker = escape(_speaker(role, tool_name))
    return [f'<p class="near"><b>{speaker}:</b> {escape(text)}</p>']


def _speaker(role: str, tool_name: str | None) -> str:
    if role == "tool":
        return tool_name or gettext("Tool")
    return str(SPEAKERS.get(role, role))
