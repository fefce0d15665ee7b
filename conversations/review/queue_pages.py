"""Pages of the queue and of samples, and the forms to add notes, flags and marks."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import (
    access_context_of,
    get_session_for_review,
    origin_of_act,
    person,
    post_by_person,
    require_reviewer,
)
from conversations.archive.rights import readable_workspaces
from conversations.archive.sessions import get_session
from conversations.domain.audit import TRANSCRIPT
from conversations.domain.errors import NotFound
from conversations.models import Session
from conversations.web.errors import refusal_as_message

from . import remarks
from .forms import QUEUES, QueueForm, RemarkForm, SampleForm, carried_filters
from .queue import draw_sample, next_unreviewed, read_items, read_queue
from .reasons import ReasonNeeded, reason_context
from .transcript_pages import show_for_review


@login_required
@require_safe
def review(request: HttpRequest) -> HttpResponse:
    require_reviewer(request)
    form = QueueForm(request.GET.dict(), workspaces=_workspaces(request))
    queue, before = request.GET.get("queue") or "unreviewed", request.GET.get("before", "")
    context = {
        "form": form,
        "queue": queue,
        "tabs": queue_tabs(request, queue),
        "carried": carried_filters(request.GET),
        **reason_context(request, None),
    }
    if form.is_valid():
        size = settings.LOOM.session_list_size
        items, cursor = read_queue(form.filters, before=before, limit=size)
        more = carried_filters(request.GET, before=cursor) if cursor else ""
        context |= {"items": items, "is_first": not before, "more": more}
    return render(request, "review/queue.html", context, status=400 if form.errors else 200)


def _workspaces(request: HttpRequest) -> list[tuple[str, str]]:
    return list(readable_workspaces(person(request)).values_list("slug", "name"))


def queue_tabs(request: HttpRequest, current: str) -> list[dict[str, Any]]:
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
    """Redirect to the first new turn of the next session in the queue.

    The redirect itself is not recorded as a reading.
    """
    require_reviewer(request)
    form = QueueForm(request.GET.dict(), workspaces=_workspaces(request))
    if not form.is_valid():
        return redirect(reverse("review") + carried_filters(request.GET))
    after = None
    with suppress(ValueError, NotFound):
        after = get_session(UUID(request.GET.get("after", "")))
    session = next_unreviewed(form.filters, after=after)
    if session is None:
        messages.success(request, gettext("Nothing left to review here."))
        return redirect(reverse("review") + carried_filters(request.GET))
    turn = session.reviewed_turn + 1
    address = reverse("review_turn", args=[session.uuid, turn])
    return redirect(f"{address}{carried_filters(request.GET)}#turn-{turn}")


@login_required
@require_safe
def review_sample(request: HttpRequest) -> HttpResponse:
    require_reviewer(request)
    data = request.GET.dict() if request.GET else {"n": "10", "days": "7"}
    form = SampleForm(data, workspaces=_workspaces(request))
    context = {"form": form, "queue": "sample", "tabs": queue_tabs(request, "sample")}
    if not form.is_valid() or not request.GET:
        return render(request, "review/sample.html", context, status=400 if form.errors else 200)
    if not (form.cleaned_data["seed"] and form.cleaned_data["until"]):
        query = request.GET.copy()
        query["seed"] = query.get("seed") or secrets.token_hex(4)
        query["until"] = query.get("until") or timezone.now().isoformat()
        return redirect(f"{reverse('review_sample')}?{query.urlencode()}")
    count = form.cleaned_data["n"]
    pks = draw_sample(form.filters, seed=form.cleaned_data["seed"], count=count)
    context |= {"items": read_items(pks), "filters": form.filters, "wanted": count}
    return render(request, "review/sample.html", context)


@post_by_person
def review_remark(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session = get_session_for_review(request, uuid)
    form = RemarkForm(request.POST)
    if not form.is_valid():
        problems = [str(text) for texts in form.errors.values() for text in texts]
        messages.error(request, " ".join(problems))
        return _show_refused(request, session, form)
    fields: dict[str, Any] = dict(form.cleaned_data)
    act: Callable[..., Any]
    if fields["label"]:
        act = remarks.set_flag
        message = gettext("Flag saved.")
    else:
        del fields["label"]
        act = remarks.write_note
        message = gettext("Note saved.")
    if not _execute(request, session, message, act, **fields):
        return _show_refused(request, session, form)
    return _back(request, session, turn=fields["turn"])


def _show_refused(request: HttpRequest, session: Session, form: RemarkForm) -> HttpResponse:
    """Show the page of the session with the refused text. This is recorded as a reading."""
    try:
        get_session_for_review(replace(access_context_of(request), action=TRANSCRIPT), session.uuid)
    except ReasonNeeded:
        return _back(request, session)  # that page asks for the reason; this URL takes forms only
    turn = form.cleaned_data.get("turn")
    if turn is not None and turn > session.turn_count:
        turn = None
    return show_for_review(request, session, turn=turn, draft=form)


@post_by_person
def review_note_withdraw(request: HttpRequest, uuid: UUID, note: UUID) -> HttpResponse:
    session = get_session_for_review(request, uuid)
    message = gettext("Note withdrawn.")
    _execute(request, session, message, remarks.withdraw_note, uuid=note)
    return _back(request, session, turn=_number(request, "turn"))


@post_by_person
def review_flag_resolve(request: HttpRequest, uuid: UUID, flag: UUID) -> HttpResponse:
    session = get_session_for_review(request, uuid)
    message = gettext("Flag resolved.")
    _execute(request, session, message, remarks.resolve_flag, uuid=flag)
    return _back(request, session, turn=_number(request, "turn"))


@post_by_person
def review_mark(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Mark the session as reviewed ``through`` a turn, or with 0 as not reviewed.

    With ``then=next`` redirect to the next session in the queue.
    """
    session = get_session_for_review(request, uuid)
    turn = _number(request, "through")
    message = gettext("Session reviewed through turn %(turn)s.") % {"turn": turn}
    if turn == 0:
        message = gettext("Session marked as not reviewed.")
    _execute(request, session, message, remarks.mark_reviewed, through=turn)
    if request.POST.get("then") == "next":
        return redirect(reverse("review_next") + carried_filters(request.GET, after=session.uuid))
    return _back(request, session)


def _number(request: HttpRequest, name: str) -> int:
    text = request.POST.get(name, "")[:18]
    return int(text) if text.isascii() and text.isdigit() else -1


def _execute(
    request: HttpRequest, session: Session, message: str, act: Callable[..., Any], **arguments: Any
) -> bool:
    with refusal_as_message(request):
        act(session, origin_of_act(request, session), **arguments)
        messages.success(request, message)
        return True
    return False


def _back(request: HttpRequest, session: Session, *, turn: int | None = None) -> HttpResponse:
    carried = carried_filters(request.GET)
    if turn is None or not 1 <= turn <= session.turn_count:
        return redirect(reverse("review_session", args=[session.uuid]) + carried)
    address = reverse("review_turn", args=[session.uuid, turn])
    return redirect(f"{address}{carried}#turn-{turn}")
