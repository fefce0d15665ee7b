"""A person's own account: how pages are for them, and where they are signed in."""

from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from conversations.archive.devices import list_devices, sign_out_device, sign_out_devices
from conversations.archive.preferences import Chosen, read_preferences, write_preferences
from conversations.archive.rights import is_administrator, is_reviewer
from conversations.archive.workspaces import list_workspaces
from conversations.domain.errors import NotFound

from .access import post_by_person
from .account_forms import PreferencesForm
from .pages import person


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """Preferences, devices, what belongs to the person."""
    user = person(request)
    chosen = asdict(read_preferences(user.pk))
    form = PreferencesForm(request.POST if request.method == "POST" else None, initial=chosen)
    if form.is_valid():
        write_preferences(user.pk, Chosen(**form.cleaned_data))
        messages.success(request, "Saved.")
        return redirect("account")
    context: dict[str, Any] = {
        "form": form,
        "name": user.get_full_name(),
        "devices": list_devices(user.pk, current=request.session.session_key or ""),
        "workspaces": list_workspaces(user.pk),
        "is_reviewer": is_reviewer(user),
        "is_administrator": is_administrator(user),
        "days": settings.SESSION_COOKIE_AGE // 86_400,
    }
    return render(request, "account/account.html", context, status=400 if form.errors else 200)


@post_by_person
def account_choose(request: HttpRequest) -> HttpResponse:
    """Some of the preferences, by themselves: what a button on a page changes."""
    user = person(request)
    known = asdict(read_preferences(user.pk))
    given = {name: value for name, value in request.POST.items() if name in known}
    form = PreferencesForm(known | given)
    if not form.is_valid():
        return HttpResponse("This cannot be chosen.", "text/plain", status=400)
    write_preferences(user.pk, Chosen(**form.cleaned_data))
    return HttpResponse(status=204)


@post_by_person
def device_sign_out(request: HttpRequest, pk: int) -> HttpResponse:
    if not sign_out_device(person(request).pk, device_pk=pk):
        raise NotFound("This device is not signed in any more.")
    return _back_to_devices(request)


@post_by_person
def devices_sign_out(request: HttpRequest) -> HttpResponse:
    """Everywhere; with ``others``, everywhere else."""
    others = bool(request.POST.get("others"))
    key = request.session.session_key or ""
    count = sign_out_devices(person(request).pk, but=key if others else "")
    if others:
        messages.success(request, _told(count))
    return _back_to_devices(request)


def _told(count: int) -> str:
    if not count:
        return "You were signed in nowhere else."
    return f"Signed out: {count} device{'' if count == 1 else 's'}. Pages open there close now."


def _back_to_devices(request: HttpRequest) -> HttpResponse:
    """Where the own device was signed out, that leads to the sign-in page."""
    return redirect(reverse("account") + "#devices")
