"""The pages of holds, receipts, retention policies and purges."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import (
    access_context_of,
    get_workspace_for,
    person,
    post_by_person,
    require_administrator,
    require_hold_permission,
)
from conversations.archive.purge import digest_of_receipt, plan_purge
from conversations.archive.rights import MANAGE, WRITE, readable_workspaces
from conversations.archive.workspaces import lock_workspace
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.keyset import parse_optional_number
from conversations.domain.text import load_json, storable
from conversations.rendering.messages import translate
from conversations.web.addresses import page_before
from conversations.web.bulk import apply_to_each, count_of, read_chosen
from conversations.web.errors import refusal_as_message

from . import service
from .forms import HoldForm, PoliciesForm, PurgeForm

# Holds, for administrators and reviewers, and receipts, for administrators. These pages show no
# part of the transcript; a title is shown only to people who may read the session. The lists are
# paged by the primary key of their last row.

PAGE_ROWS = 50


def page_of(request: HttpRequest, name: str, rows: QuerySet[Any]) -> dict[str, Any]:
    """Return the context of a page of rows: those before the requested key, or the first ones."""
    before = parse_optional_number(request.GET.get("before"))
    if before is not None:
        rows = rows.filter(pk__lt=before)
    page_rows = list(rows[: PAGE_ROWS + 1])
    older = page_rows[PAGE_ROWS - 1].pk if len(page_rows) > PAGE_ROWS else None
    return {name: page_rows[:PAGE_ROWS], "older": older, "is_first": before is None}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def holds(request: HttpRequest) -> HttpResponse:
    """Show the holds in force and a form for a new one, which ``session`` prefills."""
    require_hold_permission(request)
    is_sent = request.method == "POST"
    initial = {"what": request.GET.get("session", "")[:120]}
    form = HoldForm(request.POST) if is_sent else HoldForm(initial=initial)
    if form.is_valid():
        target, reason = form.cleaned_data["what"], form.cleaned_data["reason"]
        try:
            service.place_hold(target, origin=access_context_of(request).origin, reason=reason)
        except Rejected as error:
            form.add_error("reason", translate(error.message))
        else:
            message = gettext("Hold placed. Permanent deletion is blocked.")
            messages.success(request, message)
            return redirect("holds")
    readable = set(readable_workspaces(person(request)).values_list("pk", flat=True))
    context = {"form": form, "readable": readable}
    context |= page_of(request, "holds", service.holds_in_force())
    return render(request, "retention/holds.html", context, status=400 if form.errors else 200)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def hold_release(request: HttpRequest, pk: int) -> HttpResponse:
    require_hold_permission(request)
    if request.method != "POST":
        # A release cannot be taken back, because deletions that are due no longer wait.
        hold = get_object_or_404(service.holds_in_force(), pk=pk)
        context = {
            "heading": gettext("Release the hold"),
            "says": gettext(
                "The hold “%(reason)s” ends. Sessions whose deletion it has delayed are then "
                "deleted within the hour. This cannot be undone."
            )
            % {"reason": hold.reason},
            "act": gettext("Release"),
            "back": reverse("holds"),
        }
        return render(request, "ask.html", context)
    with refusal_as_message(request):
        service.release_hold(pk, origin=access_context_of(request).origin)
        messages.success(request, gettext("Hold released."))
    return redirect("holds")


@login_required
@require_safe
def receipts(request: HttpRequest) -> HttpResponse:
    """Show receipts, the latest first. ``q`` is a session's uuid, a workspace or an owner."""
    require_administrator(request)
    query = storable(request.GET.get("q", "")).strip()[:150]
    context = {"query": query} | page_of(request, "receipts", service.find_receipts(query))
    return render(request, "retention/receipts.html", context)


@login_required
@require_safe
def receipt(request: HttpRequest, receipt: UUID) -> HttpResponse:
    require_administrator(request)
    found = service.get_receipt(receipt)
    context = {
        "receipt": found,
        "counts": _in_words(load_json(found.counts, default={})).items(),
        "is_whole": found.digest == digest_of_receipt(found),
    }
    return render(request, "retention/receipt.html", context)


def _in_words(counts: Mapping[str, int]) -> dict[str, int]:
    return {gettext(name): count for name, count in counts.items()}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def workspace_retention(request: HttpRequest, slug: str) -> HttpResponse:
    workspace, _ = get_workspace_for(request, slug, to=MANAGE)
    form, origin = PoliciesForm(workspace), access_context_of(request).origin
    if request.method == "POST":
        with transaction.atomic():
            form = PoliciesForm(lock_workspace(workspace), request.POST)
            if form.is_valid():
                service.change_policies(workspace, origin=origin, **form.cleaned_data)
        if form.is_valid():
            service.call_off_unwanted(workspace, origin=origin)
            messages.success(request, gettext("Saved."))
            return redirect("workspace_retention", slug=slug)
    context = {"workspace": workspace, "form": form}
    return render(request, "retention/policies.html", context, status=400 if form.errors else 200)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def session_purge(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session = service.get_purgeable(request, person(request), uuid)
    now, origin = timezone.now(), access_context_of(request).origin
    form = PurgeForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            service.order_purge(session, origin=origin, reason=form.cleaned_data["reason"], now=now)
        except Conflict as error:
            messages.error(request, translate(error.message))
            return redirect("session_purge", uuid=uuid)
        except Rejected as error:
            form.add_error("reason", translate(error.message))
        else:
            return redirect("session", uuid=uuid)
    plan = plan_purge(session)
    context = {
        "session": session,
        "plan": replace(plan, counts=_in_words(plan.counts)),
        "order": service.find_order(session),
        "holds": list(service.holds_on(session)),
        "grace": service.grace_period(),
        "due_at": now + service.grace_period(),
        "form": form,
    }
    return render(request, "retention/purge.html", context, status=400 if form.errors else 200)


@post_by_person
def workspace_purge(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask for a reason, then order the purge of the sessions that were chosen in the list.

    ``list`` is the query string of the list to which this redirects afterwards.
    """
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    query = request.POST.get("list", urlsplit(page_before(request, otherwise="")).query)
    listed = f"{reverse('workspace', args=[slug])}?{query}".rstrip("?")
    try:
        find = partial(service.get_purgeable, request, person(request))
        chosen = read_chosen(request, workspace, find=find)
    except Rejected as error:
        messages.error(request, translate(error.message))
        return redirect(listed)
    now, origin = timezone.now(), access_context_of(request).origin
    form = PurgeForm(request.POST if "reason" in request.POST else None)
    if form.is_valid():
        reason = form.cleaned_data["reason"]
        order = partial(service.order_purge, origin=origin, reason=reason, now=now)
        apply_to_each(request, chosen, order, said=gettext("scheduled for deletion"))
        return redirect(listed)
    # This makes the workspace the accessed object again, in place of the last session found.
    get_workspace_for(request, slug, to=WRITE)
    context = {
        "workspace": workspace,
        "sessions": chosen,
        "counted": count_of(len(chosen)),
        "grace": service.grace_period(),
        "due_at": now + service.grace_period(),
        "form": form,
        "query": query,
        "listed": listed,
    }
    status = 400 if form.errors else 200
    return render(request, "retention/purge_several.html", context, status=status)


@post_by_person
def session_purge_call_off(request: HttpRequest, uuid: UUID) -> HttpResponse:
    with refusal_as_message(request):
        service.call_off_for(request, person(request), uuid)
        messages.success(request, gettext("Deletion cancelled."))
    return redirect("session", uuid=uuid)
