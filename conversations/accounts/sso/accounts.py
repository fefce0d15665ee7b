"""The adapter of allauth for accounts, and the page that is shown when a sign-in is refused."""

import logging
from dataclasses import dataclass
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.functional import Promise, lazy
from django.utils.translation import gettext_lazy

from conversations.access import access_context_of
from conversations.accounts.people import set_provided_groups
from conversations.accounts.sign_in import too_many_attempts
from conversations.web.addresses import client_address

from .sign_in_starts import is_overtaken, record_sign_in_start

logger = logging.getLogger("conversations.accounts.sso")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason to refuse a sign-in.

    ``code`` is written to the log. ``text`` is shown and may name the provider as ``%(name)s``.
    """

    code: str
    text: str | Promise
    status: int = 403


INACTIVE = Refusal(
    "inactive", gettext_lazy("This account is closed. An administrator can reopen it.")
)
LATE = Refusal("late", gettext_lazy("This page has expired. Go back and start again."), 400)


def refuse(request: HttpRequest, refusal: Refusal, *, detail: str = "") -> HttpResponse:
    """Log the refusal and return its page. ``detail`` must not quote the provider's response."""
    fields = {"reason": refusal.code} | ({"detail": detail} if detail else {})
    logger.warning("sign_in_refused", extra={"fields": fields})
    text = str(refusal.text) % {"name": settings.LOOM.oidc_name}
    return render(request, "sso/refused.html", {"text": text}, status=refusal.status)


def follow_groups(request: HttpRequest, user: User, account: dict[str, Any]) -> None:
    """Set the person's membership in the groups of ``LOOM_OIDC_GROUPS`` as the claim names them.

    This happens at each sign-in. Groups that the setting does not list stay as they are.
    """
    offered = settings.LOOM.oidc_groups
    if offered:
        named = {offered[name] for name in account.get("groups", ()) if name in offered}
        set_provided_groups(
            user,
            named=named,
            offered=set(offered.values()),
            origin=access_context_of(request, user).origin,
        )


WORDS = {
    "mfa/messages/totp_activated.txt": gettext_lazy("Two-factor authentication turned on."),
    "mfa/messages/totp_deactivated.txt": gettext_lazy("Two-factor authentication turned off."),
    "mfa/messages/recovery_codes_generated.txt": gettext_lazy("Your new recovery codes are ready."),
    "socialaccount/messages/account_connected.txt": gettext_lazy("Connected."),
    "socialaccount/messages/account_connected_updated.txt": gettext_lazy("Already connected."),
    "socialaccount/messages/account_connected_other.txt": gettext_lazy(
        "That account is connected to another person here."
    ),
    "socialaccount/messages/account_disconnected.txt": gettext_lazy("Disconnected."),
}
"""Messages that replace those of allauth. Its other messages are not shown."""

TOO_MANY = lazy(too_many_attempts, str)()


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    error_messages = DefaultAccountAdapter.error_messages | {
        "incorrect_password": gettext_lazy("Wrong password."),
        "rate_limited": TOO_MANY,
        "too_many_login_attempts": TOO_MANY,
    }

    def get_login_stages(self) -> list[str]:
        if settings.LOOM.two_factor == "off":
            return []
        return [
            "conversations.accounts.sso.two_factor.SecondFactorStage",
            "conversations.accounts.sso.two_factor.SetUpStage",
        ]

    def pre_login(self, request: HttpRequest, user: User, **more: Any) -> HttpResponse | None:
        record_sign_in_start(request, user)
        response: HttpResponse | None = super().pre_login(request, user, **more)
        return response

    def login(self, request: HttpRequest, user: User) -> None:
        """Complete the sign-in. The session's backend shows that all steps were taken."""
        if is_overtaken(request, user):
            raise ImmediateHttpResponse(redirect("sign_in"))
        login(request, user, backend=settings.AUTHENTICATION_BACKENDS[-1])

    def post_login(self, request: HttpRequest, user: User, **more: Any) -> HttpResponse:
        sociallogin = (more.get("signal_kwargs") or {}).get("sociallogin")
        if sociallogin is not None:
            follow_groups(request, user, sociallogin.account.extra_data)
        response: HttpResponse = super().post_login(request, user, **more)
        return response

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        return refuse(request, INACTIVE)

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_address(request) or "unknown"

    def add_message(
        self,
        request: HttpRequest,
        level: int,
        message_template: str | None = None,
        message_context: dict[str, Any] | None = None,
        extra_tags: str = "",
        message: str | None = None,
    ) -> None:
        text = message or WORDS.get(message_template or "")
        if text:
            messages.add_message(request, level, str(text))
