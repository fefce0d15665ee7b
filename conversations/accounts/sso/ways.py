"""By which ways a person signs in, and the password that is asked for before one is changed."""

from typing import Any

from allauth.account.forms import ReauthenticateForm
from allauth.account.views import ReauthenticateView
from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe


class PasswordAgainForm(ReauthenticateForm):  # type: ignore[misc]
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


# Before a way to sign in is changed: a browser that was left open is not enough.
password_again = ReauthenticateView.as_view(
    template_name="sso/ask_again.html", form_class=PasswordAgainForm
)


@login_required
@require_safe
def sign_in_ways(request: HttpRequest) -> HttpResponse:
    """By which ways a person can sign in."""
    user = request.user
    assert isinstance(user, User)
    context: dict[str, Any] = {"has_password": user.has_usable_password()}
    if settings.LOOM.two_factor != "off":
        from allauth.mfa.models import Authenticator

        found = {one.type: one for one in Authenticator.objects.filter(user=user)}
        codes = found.get("recovery_codes")
        context["two_factor"] = {
            "since": found["totp"].created_at if "totp" in found else None,
            "codes": len(codes.wrap().get_unused_codes()) if codes else 0,
            "is_required": settings.LOOM.two_factor == "required",
        }
    if settings.LOOM.oidc_issuer:
        from .connecting import account_of, connect_token

        account = account_of(user)
        context["provider"] = {
            "name": settings.LOOM.oidc_name,
            "account": account.extra_data.get("name", account.uid) if account else "",
            "connect": connect_token(user),
        }
    return render(request, "sso/ways.html", context)
