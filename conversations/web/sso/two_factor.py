"""The pages of a person's second factor: to ask for it, set it up, end it."""

from typing import Any

from allauth.account.internal.flows.login import record_authentication
from allauth.mfa.base.views import AuthenticateView, ReauthenticateView
from allauth.mfa.recovery_codes.views import (
    DownloadRecoveryCodesView,
    GenerateRecoveryCodesView,
    ViewRecoveryCodesView,
)
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from .pictures import totp_picture


class AskForCode(AuthenticateView):  # type: ignore[misc]
    template_name = "sso/ask.html"


class AskAgain(ReauthenticateView):  # type: ignore[misc]
    template_name = "sso/ask_again.html"


@method_decorator([never_cache, login_required], name="dispatch")
class SetUp(ActivateTOTPView):  # type: ignore[misc]
    template_name = "sso/set_up.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | totp_picture(self.request.user, context["form"].secret)

    def form_valid(self, form: Any) -> HttpResponse:
        """The code that turned it on also shows who it is: the recovery codes come next."""
        response: HttpResponse = super().form_valid(form)
        record_authentication(
            self.request, self.request.user, "mfa", type="totp", reauthenticated=True
        )
        return response


@method_decorator([never_cache, login_required], name="dispatch")
class TurnOff(DeactivateTOTPView):  # type: ignore[misc]
    """Where two factors are required, this leads to a new sign-in, which sets up the
    next one."""

    template_name = "sso/turn_off.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        is_required = settings.LOOM.two_factor == "required"
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | {"is_required": is_required}

    def form_valid(self, form: Any) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        if settings.LOOM.two_factor != "required":
            return response
        logout(self.request)
        return redirect("sign_in")


@method_decorator(never_cache, name="dispatch")
class RecoveryCodes(ViewRecoveryCodesView):  # type: ignore[misc]
    template_name = "sso/recovery_codes.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """``next`` is where the person was going when the codes were made."""
        wanted = self.request.GET.get("next", "")
        is_ours = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)
        next_page = wanted if is_ours else reverse("sign_in_ways")
        context: dict[str, Any] = super().get_context_data(**kwargs)
        return context | {"next": next_page, "goes_on": is_ours}


@method_decorator([never_cache, login_required], name="dispatch")
class NewRecoveryCodes(GenerateRecoveryCodesView):  # type: ignore[misc]
    template_name = "sso/new_recovery_codes.html"


class RecoveryCodesFile(DownloadRecoveryCodesView):  # type: ignore[misc]
    template_name = "sso/recovery_codes.txt"
