"""By which ways a person can sign in, and the question for the password again."""

from typing import Any

from allauth.account.forms import ReauthenticateForm
from allauth.account.views import ReauthenticateView
from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from .refusals import LATE, refuse


class PasswordAgainForm(ReauthenticateForm):  # type: ignore[misc]
    password = forms.CharField(
        strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )


class PasswordAgain(ReauthenticateView):  # type: ignore[misc]
    """Before a way to sign in is changed: a browser that was left open is not enough."""

    template_name = "sso/ask_again.html"
    form_class = PasswordAgainForm


@login_required
@require_safe
def sign_in_ways(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    context: dict[str, Any] = {"has_password": request.user.has_usable_password()}
    if settings.LOOM.two_factor != "off":
        context |= {"two_factor": _read_second_factor(request.user)}
    if settings.LOOM.oidc_issuer:
        from .connecting import read_connection

        context |= {"provider": read_connection(request.user)}
    return render(request, "sso/ways.html", context)


def _read_second_factor(user: User) -> dict[str, Any]:
    from allauth.mfa.models import Authenticator

    found = {one.type: one for one in Authenticator.objects.filter(user=user)}
    codes = found.get("recovery_codes")
    return {
        "since": found["totp"].created_at if "totp" in found else None,
        "codes": len(codes.wrap().get_unused_codes()) if codes else 0,
        "is_required": settings.LOOM.two_factor == "required",
    }


def too_late(request: HttpRequest, **_: Any) -> HttpResponse:
    """An address that allauth names and that leads nowhere here."""
    return refuse(request, LATE)
