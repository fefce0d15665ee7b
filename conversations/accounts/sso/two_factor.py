"""The pages that ask for a person's second factor, set it up and turn it off."""

from base64 import b64encode
from typing import Any

from allauth.account.internal.decorators import login_stage_required
from allauth.account.internal.flows.login import record_authentication
from allauth.account.stages import LoginStage
from allauth.account.utils import perform_login
from allauth.core import ratelimit
from allauth.core.internal.cryptokit import normalize_user_code
from allauth.mfa.adapter import DefaultMFAAdapter, get_adapter
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.base.internal.flows import post_authentication
from allauth.mfa.base.views import AuthenticateView, ReauthenticateView
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.recovery_codes.views import (
    DownloadRecoveryCodesView,
    GenerateRecoveryCodesView,
    ViewRecoveryCodesView,
)
from allauth.mfa.signals import authenticator_added
from allauth.mfa.stages import AuthenticateStage
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import TOTP, clear_totp_secret
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from allauth.mfa.utils import is_mfa_enabled
from cryptography.fernet import InvalidToken
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache

from conversations.domain.secrets import decrypt_secret, encrypt_secret

from .sign_in_starts import is_overtaken

_PURPOSE = "two_factor"
CODE_SECONDS = 30 * (1 + 2 * settings.MFA_TOTP_TOLERANCE)  # how long one code is valid


def totp_picture(user: User, secret: str) -> dict[str, str]:
    """Return the secret for an authenticator app as text and as a picture.

    ``secret`` is split into groups of four characters for typing. ``picture`` is a data URL of
    a QR code.
    """
    adapter = get_adapter()
    svg = adapter.build_totp_svg(adapter.build_totp_url(user, secret))
    groups = (secret[start : start + 4] for start in range(0, len(secret), 4))
    return {
        "secret": " ".join(groups),
        "picture": "data:image/svg+xml;base64," + b64encode(svg.encode()).decode(),
    }


ask_for_code = AuthenticateView.as_view(template_name="sso/ask.html")
ask_again = ReauthenticateView.as_view(template_name="sso/ask_again.html")


@method_decorator([never_cache, login_required], name="dispatch")
class TwoFactorSetUpView(ActivateTOTPView):  # type: ignore[misc]
    template_name = "sso/set_up.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | totp_picture(self.request.user, context["form"].secret)

    def form_valid(self, form: Any) -> HttpResponse:
        """Count the code as a confirmation of identity, which the recovery codes require."""
        response: HttpResponse = super().form_valid(form)
        record_authentication(
            self.request, self.request.user, "mfa", type="totp", reauthenticated=True
        )
        return response


@method_decorator([never_cache, login_required], name="dispatch")
class TwoFactorDisableView(DeactivateTOTPView):  # type: ignore[misc]
    """A view that turns the second factor off.

    If two factors are required, it signs the person out, and the next sign-in sets up a new one.
    """

    template_name = "ask.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        context["back"] = reverse("sign_in_ways")
        if settings.LOOM.two_factor == "required":
            heading = act = gettext("Move to another app")
            says = gettext(
                "Your app and recovery codes stop working and you are signed out. You set up the "
                "new app at the next sign-in."
            )
        else:
            heading = gettext("Turn off two-factor authentication")
            act = gettext("Turn off")
            says = gettext(
                "You will sign in with your password or provider alone. Recovery codes stop "
                "working too."
            )
        return context | {"heading": heading, "says": says, "act": act}

    def form_valid(self, form: Any) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        if settings.LOOM.two_factor != "required":
            return response
        logout(self.request)
        return redirect("sign_in")


@method_decorator(never_cache, name="dispatch")
class TwoFactorCodesView(ViewRecoveryCodesView):  # type: ignore[misc]
    template_name = "sso/recovery_codes.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add ``next``, the page that the person was going to when the codes were created."""
        next_url = self.request.GET.get("next", "")
        is_ours = url_has_allowed_host_and_scheme(next_url, allowed_hosts=None)
        if not is_ours:
            next_url = reverse("sign_in_ways")
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | {"next": next_url, "goes_on": is_ours}


new_recovery_codes = GenerateRecoveryCodesView.as_view(template_name="sso/new_recovery_codes.html")
new_recovery_codes = never_cache(login_required(new_recovery_codes))
recovery_codes_file = DownloadRecoveryCodesView.as_view(template_name="sso/recovery_codes.txt")


# Value in the claim ``amr`` if the provider has asked for several factors (RFC 8176).
VOUCHED = "mfa"


def continue_sign_in(request: HttpRequest, user: User, *, to: str) -> HttpResponse:
    """Continue after the first factor with the second one, or sign in if none is needed."""
    response: HttpResponse = perform_login(request, user, redirect_url=to)
    return response


def _is_vouched_for(login: Any) -> bool:
    sociallogin = (login.signal_kwargs or {}).get("sociallogin")
    return sociallogin is not None and VOUCHED in sociallogin.account.extra_data.get("amr", ())


class SecondFactorStage(AuthenticateStage):  # type: ignore[misc]
    """The step that asks for the second factor, if one is set up and the provider did not ask."""

    def handle(self) -> tuple[HttpResponse | None, bool]:
        if _is_vouched_for(self.login):
            record_authentication(self.request, self.login.user, "mfa", type="provider")
            return None, True
        response, goes_on = super().handle()
        return response, goes_on


class SetUpStage(LoginStage):  # type: ignore[misc]
    """The step that sets up a second factor if two are required and the person has only one."""

    key = "two_factor_set_up"
    urlname = "two_factor_set_up"

    def handle(self) -> tuple[HttpResponse | None, bool]:
        is_asked = settings.LOOM.two_factor == "required" and not _is_vouched_for(self.login)
        if is_asked and not is_mfa_enabled(self.login.user, [Authenticator.Type.TOTP]):
            return redirect(self.urlname), True
        return None, True


@login_stage_required(stage=SetUpStage.key, redirect_urlname="account_login")  # type: ignore[untyped-decorator]
def two_factor_set_up(request: HttpRequest) -> HttpResponse:
    """Set up a second factor during the sign-in, and show the recovery codes afterwards."""
    stage = request._login_stage  # type: ignore[attr-defined]
    user = stage.login.user
    if is_overtaken(request, user):
        return redirect("sign_in")
    form = ActivateTOTPForm(request.POST if request.method == "POST" else None, user=user)
    if not form.is_valid():
        context = {"form": form, "is_required": True} | totp_picture(user, form.secret)
        return render(request, "sso/set_up.html", context)
    # These are the steps that allauth takes for a person who is signed in. The code also counts
    # as a confirmation of identity.
    with transaction.atomic():
        added = [TOTP.activate(user, form.secret).instance, RecoveryCodes.activate(user).instance]
    clear_totp_secret(request)
    post_authentication(request, added[0], reauthenticated=True)
    for authenticator in added:
        authenticator_added.send(
            sender=Authenticator, request=request, user=user, authenticator=authenticator
        )
    wanted = urlencode({"next": stage.login.redirect_url or reverse("home")})
    stage.login.redirect_url = f"{reverse('mfa_view_recovery_codes')}?{wanted}"
    response: HttpResponse = stage.exit()
    return response


def forget_wrong_codes(user_pk: int) -> None:
    # The key is allauth's. It does not depend on a request.
    ratelimit.clear(None, action="login_failed", key=f"mfa-auth-user-{user_pk}")


class _SingleUseCode:
    """A form mixin that accepts each code only once.

    allauth remembers used codes for 30 seconds only, although the tolerance makes a code valid
    for longer.
    """

    user: User
    authenticator: Authenticator

    def clean_code(self) -> str:
        code: str = super().clean_code()  # type: ignore[misc]
        key = f"two_factor.used:{self.user.pk}:{normalize_user_code(code)}"
        is_app = self.authenticator.type == Authenticator.Type.TOTP
        if is_app and not cache.add(key, True, timeout=CODE_SECONDS):
            raise get_adapter().validation_error("incorrect_code")
        return code


class CodeForm(_SingleUseCode, AuthenticateForm):  # type: ignore[misc]
    pass


class CodeAgainForm(_SingleUseCode, ReauthenticateForm):  # type: ignore[misc]
    pass


class TwoFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """The adapter of allauth for second factors, which encrypts them with the secret key."""

    def encrypt(self, text: str) -> str:
        return encrypt_secret(text, purpose=_PURPOSE, secret_key=settings.SECRET_KEY)

    def decrypt(self, encrypted_text: str) -> str:
        """Return the plain text. Raise InvalidToken if the secret key has changed."""
        key = settings.SECRET_KEY
        text = decrypt_secret(encrypted_text, purpose=_PURPOSE, secret_key=key)
        if text is None:
            raise InvalidToken
        return text

    def get_totp_label(self, user: User) -> str:
        return user.get_username()
