"""The page of sign-in methods, and the confirmation of the password before a change to them."""

from typing import Any

from allauth.account.forms import ReauthenticateForm
from allauth.account.internal.flows.reauthentication import did_recently_reauthenticate
from allauth.account.views import ReauthenticateView
from django import forms
from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from conversations.accounts.sign_in import PasswordView


class PasswordAgainForm(ReauthenticateForm):  # type: ignore[misc]
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


# A change to sign-in methods needs the password again, so that an unattended browser is not enough.
password_again = ReauthenticateView.as_view(
    template_name="sso/ask_again.html", form_class=PasswordAgainForm
)


class ConfirmedPasswordView(PasswordView):
    """A view to change the password that asks people without a password to confirm first.

    The form for a first password does not ask for a current one.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = request.user
        is_first = user.is_authenticated and not user.has_usable_password()
        if is_first and not did_recently_reauthenticate(request):
            # The form has to be sent again after the confirmation. allauth would store it in the
            # session, where the new password could be read.
            next_page = urlencode({REDIRECT_FIELD_NAME: request.path})
            return redirect(f"{reverse('account_reauthenticate')}?{next_page}")
        return super().dispatch(request, *args, **kwargs)


@login_required
@require_safe
def sign_in_ways(request: HttpRequest) -> HttpResponse:
    """Show the sign-in methods of a person."""
    user = request.user
    assert isinstance(user, User)
    context: dict[str, Any] = {"has_password": user.has_usable_password()}
    if settings.LOOM.two_factor != "off":
        from allauth.mfa.models import Authenticator

        authenticators = {row.type: row for row in Authenticator.objects.filter(user=user)}
        codes = authenticators.get("recovery_codes")
        context["two_factor"] = {
            "since": authenticators["totp"].created_at if "totp" in authenticators else None,
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
