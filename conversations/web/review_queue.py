"""The lists of the reviewers: what is not reviewed, what is flagged, all, a sample."""

import secrets
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from conversations.archive.review import draw_sample, next_unreviewed, read_items, read_queue
from conversations.archive.rights import readable_workspaces
from conversations.archive.sessions import get_session
from conversations.domain.errors import NotFound
from conversations.models import Session

from .access import require_reviewer
from .pages import person
from .reasons import reason_context
from .review_forms import QUEUES, QueueForm, SampleForm, carried_filters


@login_required
@require_safe
def review(request: HttpRequest) -> HttpResponse:
    """A list of everybody's sessions."""
    require_reviewer(request)
    form = QueueForm(request.GET.dict(), workspaces=_workspaces(request))
    if not form.is_valid():
        return render(request, "review/queue.html", _context(request, form), status=400)
    before = request.GET.get("before", "")
    page = read_queue(form.filters, before=before, limit=settings.LOOM.session_list_size)
    context = _context(request, form) | {
        "items": page.items,
        "is_first": not before,
        "more": carried_filters(request.GET, before=page.next_cursor) if page.next_cursor else "",
    }
    return render(request, "review/queue.html", context)


def _workspaces(request: HttpRequest) -> list[tuple[str, str]]:
    return list(readable_workspaces(person(request)).values_list("slug", "name"))


def _context(request: HttpRequest, form: QueueForm) -> dict[str, Any]:
    queue = request.GET.get("queue") or "unreviewed"
    return {
        "form": form,
        "queue": queue,
        "tabs": queue_tabs(request, queue),
        "carried": carried_filters(request.GET),
        **reason_context(request, None),
    }


def queue_tabs(request: HttpRequest, current: str) -> list[dict[str, Any]]:
    """The lists, with the filters of this one."""
    return [
        {
            "label": label,
            "query": carried_filters(request.GET.dict() | {"queue": name}),
            "is_current": name == current,
        }
        for name, label in QUEUES.items()
    ]


@login_required
@require_safe
def review_next(request: HttpRequest) -> HttpResponse:
    """To what is new in the session that follows in the queue. Which one follows is no
    reading."""
    require_reviewer(request)
    form = QueueForm(request.GET.dict(), workspaces=_workspaces(request))
    if not form.is_valid():
        return redirect(reverse("review") + carried_filters(request.GET))
    found = next_unreviewed(form.filters, after=_session_of(request.GET.get("after", "")))
    if found is None:
        messages.success(request, "Nothing is left to be reviewed here.")
        return redirect(reverse("review") + carried_filters(request.GET))
    turn = found.reviewed_turn + 1
    address = reverse("review_turn", args=[found.uuid, turn])
    return redirect(f"{address}{carried_filters(request.GET)}#turn-{turn}")


def _session_of(text: str) -> Session | None:
    try:
        return get_session(UUID(text))
    except (ValueError, NotFound):
        return None


@login_required
@require_safe
def review_sample(request: HttpRequest) -> HttpResponse:
    """Random sessions; the address of the list gives the same ones again."""
    require_reviewer(request)
    asked = request.GET.dict() if request.GET else {"n": "10", "days": "7"}
    form = SampleForm(asked, workspaces=_workspaces(request))
    context = {"form": form, "queue": "sample", "tabs": queue_tabs(request, "sample")}
    if not form.is_valid():
        return render(request, "review/sample.html", context, status=400)
    if not request.GET:
        return render(request, "review/sample.html", context)
    if not (form.cleaned_data["seed"] and form.cleaned_data["until"]):
        return redirect(_with_seed(request))
    found = draw_sample(form.filters, seed=form.cleaned_data["seed"], count=form.cleaned_data["n"])
    context |= {"items": read_items(found), "filters": form.filters, "wanted": form["n"].value()}
    return render(request, "review/sample.html", context)


def _with_seed(request: HttpRequest) -> str:
    query = request.GET.copy()
    query["seed"] = query.get("seed") or secrets.token_hex(4)
    query["until"] = query.get("until") or timezone.now().isoformat()
    return f"{reverse('review_sample')}?{query.urlencode()}"
