"""A person's own account: preferences, devices, tokens and the export of their data."""

import zipfile
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.validators import MaxValueValidator
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.html import format_html_join
from django.utils.translation import (
    get_language_from_request,
    gettext,
    gettext_lazy,
    ngettext,
    override,
)
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import person, post_by_person, sign_in_first
from conversations.archive.rights import is_administrator, is_reviewer
from conversations.archive.workspaces import list_workspaces
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.text import dump_json, instant
from conversations.feature import features
from conversations.models import Device, Membership, Preferences, WorkspaceGroup
from conversations.rendering.messages import translate
from conversations.web.attachments import stream_download

from .devices import list_devices, sign_out_device, sign_out_devices
from .forms import PreferencesForm, choices_of
from .languages import preferences_of
from .people import read_preferences
from .sign_in import clear_browser_data
from .tokens import READ, SCOPES, WRITE, create_token, list_tokens, revoke_token


@login_required
@require_safe
def account(request: HttpRequest) -> HttpResponse:
    user = person(request)
    context = {
        "name": user.get_full_name(),
        "workspaces": list_workspaces(user.pk),
        "is_reviewer": is_reviewer(user),
        "is_administrator": is_administrator(user),
    }
    return render(request, "account/account.html", context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def account_preferences(request: HttpRequest) -> HttpResponse:
    user = person(request)
    form = PreferencesForm(
        request.POST if request.method == "POST" else None, initial=_chosen_by(user)
    )
    if form.is_valid():
        Preferences.objects.update_or_create(user=user, defaults=form.cleaned_data)
        language = form.cleaned_data["page_language"] or get_language_from_request(request)
        with override(language):
            messages.success(request, gettext("Saved."))
        return redirect("account_preferences")
    status = 400 if form.errors else 200
    return render(request, "account/preferences.html", {"form": form}, status=status)


@login_required
@require_safe
def account_devices(request: HttpRequest) -> HttpResponse:
    context = {
        "devices": list_devices(person(request).pk, current=request.session.session_key or ""),
        "days": settings.SESSION_COOKIE_AGE // 86_400,
    }
    return render(request, "account/devices.html", context)


@login_required
@require_safe
def account_data(request: HttpRequest) -> HttpResponse:
    return render(request, "account/data.html")


@post_by_person
def account_choose(request: HttpRequest) -> HttpResponse:
    """Save only the given preferences, for buttons on pages that change a single one."""
    user = person(request)
    preferences = _chosen_by(user)
    changes = {name: value for name, value in request.POST.items() if name in preferences}
    form = PreferencesForm(preferences | changes)
    if not form.is_valid():
        return HttpResponse(gettext("Invalid choice."), "text/plain", status=400)
    Preferences.objects.update_or_create(user=user, defaults=form.cleaned_data)
    return HttpResponse(status=204)


def _chosen_by(user: User) -> dict[str, Any]:
    return model_to_dict(read_preferences(user.pk), fields=list(PreferencesForm.base_fields))


@post_by_person
def device_sign_out(request: HttpRequest, pk: int) -> HttpResponse:
    if not sign_out_device(person(request).pk, device_pk=pk):
        raise NotFound("This device is no longer signed in.")
    return _back_to_devices(request)


@post_by_person
def devices_sign_out(request: HttpRequest) -> HttpResponse:
    """Sign out all devices, or with ``others`` all devices except this one."""
    others = bool(request.POST.get("others"))
    key = request.session.session_key or ""
    count = sign_out_devices(person(request).pk, but=key if others else "")
    if others:
        message = gettext("You are not signed in anywhere else.")
        if count:
            message = ngettext(
                "Signed out %(count)s device. Its open pages will close.",
                "Signed out %(count)s devices. Their open pages will close.",
                count,
            ) % {"count": count}
        messages.success(request, message)
    return _back_to_devices(request)


def _back_to_devices(request: HttpRequest) -> HttpResponse:
    response = redirect("account_devices")
    if request.session.exists(request.session.session_key or ""):
        return response
    # This device was signed out too, so the redirect leads on to the sign-in page.
    return clear_browser_data(response)


def describe_account(user: User) -> dict[str, Any]:
    """Return the account as plain JSON values, without anything that can sign somebody in."""
    return {
        "username": user.get_username(),
        "first_name": user.first_name,
        "last_name": user.last_name,
        "email": user.email,
        "joined_at": instant(user.date_joined),
        "last_sign_in": instant(user.last_login) if user.last_login else None,
        "is_reviewer": is_reviewer(user),
        "is_administrator": is_administrator(user),
        "preferences": _chosen_by(user),
        "workspaces": list(_memberships(user)),
        "groups": list(user.groups.order_by("name").values_list("name", flat=True)),
        "devices": [
            {
                "agent": device.agent,
                "address": device.address,
                "created_at": instant(device.created_at),
                "last_seen_at": instant(device.last_seen_at),
                "ended_at": instant(device.ended_at) if device.ended_at else None,
            }
            for device in Device.objects.filter(user=user).order_by("pk")
        ],
    }


def _memberships(user: User) -> Iterator[dict[str, Any]]:
    own = Membership.objects.filter(user=user).order_by("workspace__slug")
    for slug, role in own.values_list("workspace__slug", "role"):
        yield {"workspace": slug, "role": role}
    groups = WorkspaceGroup.objects.filter(group__user=user).order_by("workspace__slug", "pk")
    for slug, group, role in groups.values_list("workspace__slug", "group__name", "role"):
        yield {"workspace": slug, "group": group, "role": role}


def account_files(user: User) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the names and contents of the files that hold a person's data."""
    text = dump_json(describe_account(user)) + "\n"
    yield "account.json", iter([text.encode("utf-8", "backslashreplace")])
    for feature in features():
        yield from feature.account_files(user)


@require_safe
async def account_export(request: HttpRequest) -> HttpResponseBase:
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first()
    pieces = iter(()) if request.method == "HEAD" else zip_pieces(user)
    name = f"loom-account-{timezone.localdate():%Y-%m-%d}.zip"
    return stream_download(pieces, name=name, content_type="application/zip")


class _Sink:
    """A file that collects the ZIP's bytes. It cannot seek, so zipfile writes strictly forwards."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        return

    def drain(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written


def zip_pieces(user: User) -> Iterator[bytes]:
    """Yield the ZIP as it is written. A piece may be empty."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as whole:  # type: ignore[call-overload]
        for name, pieces in account_files(user):
            with whole.open(name, "w", force_zip64=True) as file:
                for data in pieces:
                    file.write(data)
                    yield sink.drain()
    yield sink.drain()


# Preference → the data attribute of the page that holds a value other than the default. It is
# there before anything is drawn, without a script that would request it.
ATTRIBUTES = {
    "keys": "keys",
    "enter": "enter",
    "language": "dates",
    "clock": "clock",
    "times": "times",
    "figures": "figures",
    "hears": "hears",
}


def preferences(request: HttpRequest) -> dict[str, Any]:
    """Provide ``chosen``, the person's preferences, to templates (a context processor).

    ``chosen`` is empty if nobody is signed in. It is lazy, because parts of pages do not use it.
    """
    return {"chosen": SimpleLazyObject(lambda: _chosen(request))}


def _chosen(request: HttpRequest) -> dict[str, Any]:
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return {}
    chosen, usual = preferences_of(request), Preferences()
    attributes = [("theme", chosen.theme)] + [
        (attribute, getattr(chosen, name))
        for name, attribute in ATTRIBUTES.items()
        if getattr(chosen, name) != getattr(usual, name)
    ]
    return {
        "theme": chosen.theme,
        "enter": chosen.enter,
        "attributes": format_html_join("", ' data-{}="{}"', attributes),
    }


MAX_TOKEN_DAYS = 3650  # longest lifetime of a token if the installation sets no limit


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=120,
        strip=True,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("Only shown to you."),
    )
    scopes = forms.MultipleChoiceField(
        choices=choices_of(SCOPES),
        widget=forms.CheckboxSelectMultiple,
        label=gettext_lazy("Scopes"),
        initial=[READ, WRITE],
        error_messages={"required": gettext_lazy("Choose at least one.")},
    )
    days = forms.IntegerField(min_value=1, label=gettext_lazy("Expires after (days)"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        max_days = settings.LOOM.token_days
        days = self.fields["days"]
        assert isinstance(days, forms.IntegerField)
        days.initial = max_days or None
        days.required = bool(max_days)
        days.help_text = gettext("Leave empty to never expire.")
        if max_days:
            days.help_text = gettext("At most %(days)s.") % {"days": max_days}
        days.validators.append(MaxValueValidator(max_days or MAX_TOKEN_DAYS))
        days.widget.attrs["max"] = max_days or MAX_TOKEN_DAYS

    @property
    def lifetime(self) -> timedelta | None:
        days = self.cleaned_data["days"]
        return timedelta(days=days) if days else None


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """List the working tokens. A new token is shown once, in the response that creates it."""
    form = TokenForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            token = create_token(
                person(request),
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                lifetime=form.lifetime,
            )
        except Rejected as error:
            form.add_error(None, translate(error.message))
        else:
            context = {"token": token, "name": form.cleaned_data["name"]}
            response = render(request, "account/token.html", context)
            response["Cache-Control"] = "no-store"
            return response
    context = {"tokens": list_tokens(person(request).pk), "form": form}
    return render(request, "account/tokens.html", context, status=400 if form.errors else 200)


@post_by_person
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    revoke_token(person(request).pk, token_pk=pk)
    messages.success(request, gettext("Token revoked."))
    return redirect("tokens")
