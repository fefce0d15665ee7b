"""The steps of a sign-in after the first factor."""

from typing import Any

from allauth.account.internal.decorators import login_stage_required
from allauth.account.internal.flows.login import record_authentication
from allauth.account.stages import LoginStage
from allauth.account.utils import perform_login
from allauth.mfa.base.internal.flows import post_authentication
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.signals import authenticator_added
from allauth.mfa.stages import AuthenticateStage
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import TOTP, clear_totp_secret
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode

from .pictures import totp_picture

VOUCHED = "mfa"
"""What a provider names in the claim ``amr`` when it asked for several factors (RFC 8176)."""


def continue_sign_in(request: HttpRequest, user: User, *, to: str) -> HttpResponse:
    """After the first factor: on to the second, or, where none is asked for, in."""
    response: HttpResponse = perform_login(request, user, redirect_url=to)
    return response


def _is_vouched_for(login: Any) -> bool:
    """The provider has asked for more than one factor just now."""
    sociallogin = (login.signal_kwargs or {}).get("sociallogin")
    return sociallogin is not None and VOUCHED in sociallogin.account.extra_data.get("amr", ())


class SecondFactorStage(AuthenticateStage):  # type: ignore[misc]
    """Asks those who have set a second factor up, unless the provider has asked."""

    def handle(self) -> tuple[HttpResponse | None, bool]:
        if _is_vouched_for(self.login):
            record_authentication(self.request, self.login.user, "mfa", type="provider")
            return None, True
        response, goes_on = super().handle()
        return response, goes_on


class SetUpStage(LoginStage):  # type: ignore[misc]
    """Where two factors are required, nobody gets in who has not set one up."""

    key = "two_factor_set_up"
    urlname = "two_factor_set_up"

    def handle(self) -> tuple[HttpResponse | None, bool]:
        is_asked = settings.LOOM.two_factor == "required" and not _is_vouched_for(self.login)
        if is_asked and not is_mfa_enabled(self.login.user, [Authenticator.Type.TOTP]):
            return redirect(self.urlname), True
        return None, True


@login_stage_required(stage=SetUpStage.key, redirect_urlname="account_login")  # type: ignore[untyped-decorator]
def two_factor_set_up(request: HttpRequest) -> HttpResponse:
    """The second factor is set up before the person is signed in; the recovery codes
    are the first page after that."""
    stage = request._login_stage  # type: ignore[attr-defined]
    user = stage.login.user
    form = ActivateTOTPForm(request.POST if request.method == "POST" else None, user=user)
    if not form.is_valid():
        context = {"form": form, "is_required": True} | totp_picture(user, form.secret)
        return render(request, "sso/set_up.html", context)
    _turn_on(request, user, form.secret)
    wanted = urlencode({"next": stage.login.redirect_url or reverse("home")})
    stage.login.redirect_url = f"{reverse('mfa_view_recovery_codes')}?{wanted}"
    response: HttpResponse = stage.exit()
    return response


def _turn_on(request: HttpRequest, user: User, secret: str) -> None:
    """As allauth does for somebody who is signed in; recorded as shown just now."""
    with transaction.atomic():
        added = [TOTP.activate(user, secret).instance, RecoveryCodes.activate(user).instance]
    clear_totp_secret(request)
    post_authentication(request, added[0], reauthenticated=True)
    for authenticator in added:
        authenticator_added.send(
            sender=Authenticator, request=request, user=user, authenticator=authenticator
        )
