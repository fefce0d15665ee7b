"""Holds, for administrators and reviewers. Nothing of what was said is shown here."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from conversations.archive.holds import hold_session, hold_workspace, list_holds, release_hold
from conversations.domain.errors import Conflict, Rejected
from conversations.models import Session

from .access import post_by_person, require_keeper, visit_of
from .page_cursors import read_cursor
from .retention_forms import HoldForm

PAGE = 50


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def holds(request: HttpRequest) -> HttpResponse:
    """What is on hold now, and the form for another one; ``session`` fills that in."""
    require_keeper(request)
    is_sent = request.method == "POST"
    asked = {"what": request.GET.get("session", "")[:120]}
    form = HoldForm(request.POST) if is_sent else HoldForm(initial=asked)
    if form.is_valid() and _set(request, form):
        messages.success(request, "On hold: nothing of it is purged.")
        return redirect("holds")
    before = read_cursor(request)
    found = list_holds(before=before, limit=PAGE + 1)
    context = {
        "form": form,
        "holds": found[:PAGE],
        "older": found[PAGE - 1].pk if len(found) > PAGE else None,
        "is_first": before is None,
    }
    return render(request, "retention/holds.html", context, status=400 if form.errors else 200)


def _set(request: HttpRequest, form: HoldForm) -> bool:
    what, reason = form.cleaned_data["what"], form.cleaned_data["reason"]
    origin = visit_of(request).origin
    try:
        if isinstance(what, Session):
            hold_session(what, origin=origin, reason=reason)
        else:
            hold_workspace(what, origin=origin, reason=reason)
    except Rejected as error:
        form.add_error("reason", error.message)
        return False
    return True


@post_by_person
def hold_release(request: HttpRequest, pk: int) -> HttpResponse:
    require_keeper(request)
    try:
        release_hold(pk, origin=visit_of(request).origin)
    except Conflict as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "Released.")
    return redirect("holds")
