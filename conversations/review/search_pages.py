"""The search in everybody's sessions, for reviewers."""

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import person, record_hits, require_reason_to_search, require_reviewer
from conversations.archive.rights import readable_workspaces
from conversations.runtime.current import list_models
from conversations.search.find_everywhere import SearchedSessions, search_sessions
from conversations.search.pages import PAGE_HITS, HitPages, SearchForm, answer_search
from conversations.search.query import SearchQuery
from conversations.search.results import SearchResults
from conversations.web.forms import PersonField

from .queue import QueueFilters
from .queue_pages import queue_tabs
from .reasons import reason_context

SESSIONS = (
    ("", gettext_lazy("All sessions")),
    ("flagged", gettext_lazy("Flagged")),
    ("unreviewed", gettext_lazy("Not reviewed")),
)
OUTCOMES = (("", gettext_lazy("Everything")), ("error", gettext_lazy("Errors only")))


class ReviewSearchForm(SearchForm):
    """The search text and filters over the sessions of all people. Every field may be empty."""

    person = PersonField()
    model = forms.CharField(
        required=False, max_length=120, label=gettext_lazy("Model"), widget=forms.TextInput
    )
    outcome = forms.ChoiceField(
        choices=OUTCOMES, required=False, label=gettext_lazy("Outcome"), widget=forms.Select
    )
    queue = forms.ChoiceField(
        choices=SESSIONS, required=False, label=gettext_lazy("Sessions"), widget=forms.Select
    )

    field_order = (
        *("q", "person", "workspace", "queue", "role", "tool", "model", "outcome"),
        *("after", "before", "order"),
    )
    _FILTERS = ("role", "tool", "model", "after", "before")
    _OF_SESSIONS = ("person", "workspace", "queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        plain = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        self.fields["person"].widget.attrs |= plain
        self.fields["model"].widget.attrs |= plain | {"list": "models"}

    def clean_model(self) -> str:
        return str(self.cleaned_data["model"]).replace('"', "")

    @property
    def query(self) -> str:
        errors = "is:error" if self._has("outcome") else ""
        return " ".join(filter(None, (super().query, errors)))

    @property
    def is_asked(self) -> bool:
        """Whether to search. A filter of sessions is enough: it lists all turns in them."""
        return super().is_asked or any(self._has(name) for name in self._OF_SESSIONS)

    @property
    def has_filters(self) -> bool:
        return super().has_filters or (self.is_valid() and self._has("outcome"))

    def address(self, **changes: str) -> str:
        """Return the query string with the person's name as it was typed."""
        return super().address(**{"person": str(self["person"].value() or ""), **changes})


REVIEW_PAGES = HitPages(session="review_session", turn="review_turn", record=record_hits)


@login_required
@require_safe
def review_search(request: HttpRequest) -> HttpResponse:
    """Search the sessions of all people. Only filters leave anything out."""
    require_reviewer(request)
    workspaces = list(readable_workspaces(person(request)).values_list("pk", "slug", "name"))
    form = ReviewSearchForm(
        request.GET.dict(),
        workspaces=[(slug, name) for _, slug, name in workspaces],
        autofocus=not request.GET.get("q"),
    )

    def find(query: SearchQuery, **page: Any) -> SearchResults:
        require_reason_to_search(request)
        chosen_slug = form.cleaned_data["workspace"]
        chosen = None
        if chosen_slug:
            chosen = tuple(pk for pk, slug, _ in workspaces if slug == chosen_slug)
        person_pk = getattr(form.cleaned_data["person"], "pk", None)
        within = SearchedSessions(person=person_pk, workspaces=chosen)
        sessions = QueueFilters(queue=form.cleaned_data["queue"] or "all").sessions
        return search_sessions(sessions, query, within=within, lists_all=True, **page)

    context = {
        "queue": "search",
        "tabs": queue_tabs(request, "search"),
        "models": [model.id for model in list_models()],
        **reason_context(request, None),
    }
    return answer_search(
        request,
        "review/search.html",
        form,
        find,
        context,
        part="hits",
        limit=PAGE_HITS,
        pages=REVIEW_PAGES,
    )
