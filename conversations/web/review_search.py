"""Looking things up in everybody's sessions, for reviewers."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from conversations.archive.review import QueueFilters
from conversations.archive.rights import readable_workspaces
from conversations.archive.search import SearchQuery, SearchResults, Within, search_sessions
from conversations.models import Session
from conversations.runtime.choices import list_models

from .access import record_hits, require_reason_to_search, require_reviewer
from .pages import person
from .reasons import reason_context
from .review_queue import queue_tabs
from .review_search_forms import ReviewSearchForm
from .search import PAGE, answer_search
from .search_results import HitPages

REVIEW_PAGES = HitPages(session="review_session", turn="review_turn", note=record_hits)


@login_required
@require_safe
def review_search(request: HttpRequest) -> HttpResponse:
    """Nothing that anybody did is left out unless a filter says so."""
    require_reviewer(request)
    workspaces = list(readable_workspaces(person(request)).values_list("pk", "slug", "name"))
    form = ReviewSearchForm(
        request.GET.dict(),
        workspaces=[(slug, name) for _, slug, name in workspaces],
        autofocus=not request.GET.get("q"),
    )

    def find(query: SearchQuery, **page: Any) -> SearchResults:
        require_reason_to_search(request)
        wanted = form.cleaned_data["workspace"]
        chosen = tuple(pk for pk, slug, _ in workspaces if slug == wanted) if wanted else None
        person_pk = getattr(form.cleaned_data["person"], "pk", None)
        within = Within(person=person_pk, workspaces=chosen)
        return search_sessions(_sessions(form), query, within=within, lists_all=True, **page)

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
        limit=PAGE,
        pages=REVIEW_PAGES,
    )


def _sessions(form: ReviewSearchForm) -> QuerySet[Session]:
    return QueueFilters(queue=form.cleaned_data["queue"] or "all").sessions
