"""How allauth signs people in here: our limits, our pages, our words; and the page for a
sign-in that does not go on: what happened, and what to do."""

import logging
from dataclasses import dataclass
from typing import Any

import requests
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthError, AuthProcess
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import Promise, lazy
from django.utils.translation import gettext_lazy

from conversations.access import access_context_of
from conversations.accounts.people import set_provided_groups
from conversations.accounts.signing_in import too_many_attempts
from conversations.domain.text import storable
from conversations.web.addresses import client_address

from .oidc import OidcError, VerificationError
from .two_factor import is_overtaken, record_sign_in_start

logger = logging.getLogger("conversations.accounts.sso")


@dataclass(frozen=True, slots=True)
class Refusal:
    """``code`` is for the log; ``text`` may name the provider as ``%(name)s``."""

    code: str
    text: str | Promise
    status: int = 403


CANCELLED = Refusal(
    "cancelled",
    gettext_lazy("The sign-in with %(name)s was cancelled. Nothing has changed."),
    400,
)
STATE = Refusal(
    "unknown_state",
    gettext_lazy(
        "This sign-in was started in another browser, was already used, or took too long. "
        "Start again."
    ),
    400,
)
UNREACHABLE = Refusal(
    "unreachable", gettext_lazy("%(name)s is not responding correctly. Try again later."), 502
)
NOT_VERIFIED = Refusal(
    "not_verified", gettext_lazy("The response from %(name)s could not be verified."), 403
)
PROVIDER = Refusal("provider_error", gettext_lazy("%(name)s refused to sign you in."), 403)
NOBODY = Refusal(
    "nobody",
    gettext_lazy(
        "No account here is connected to this account at %(name)s. Sign in the way you usually do "
        "and connect it under “Sign-in methods”, or ask an administrator for an account."
    ),
)
TAKEN = Refusal(
    "address_taken",
    gettext_lazy(
        "Another account here already uses this email address. If it is yours, sign in the way "
        "you usually do and connect %(name)s under “Sign-in methods”."
    ),
)
INACTIVE = Refusal(
    "inactive", gettext_lazy("This account is closed. An administrator can reopen it.")
)
LATE = Refusal(
    "late", gettext_lazy("This page was open for too long. Go back and start again."), 400
)


def refuse(request: HttpRequest, refusal: Refusal, *, detail: str = "") -> HttpResponse:
    """The page; the log says why. ``detail`` holds nothing of what the provider sent."""
    fields = {"reason": refusal.code} | ({"detail": detail} if detail else {})
    logger.warning("sign_in_refused", extra={"fields": fields})
    text = str(refusal.text) % {"name": settings.LOOM.oidc_name}
    return render(request, "sso/refused.html", {"text": text}, status=refusal.status)


def follow_groups(request: HttpRequest, user: User, account: dict[str, Any]) -> None:
    """At each sign-in a person is in those of the groups in ``LOOM_OIDC_GROUPS`` that
    the claim names, and in no others of them. Groups that are not listed there stay as
    they are."""
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
    "mfa/messages/totp_activated.txt": gettext_lazy("Two-factor authentication is on."),
    "mfa/messages/totp_deactivated.txt": gettext_lazy("Two-factor authentication is off."),
    "mfa/messages/recovery_codes_generated.txt": gettext_lazy("Your new recovery codes are ready."),
    "socialaccount/messages/account_connected.txt": gettext_lazy("Connected."),
    "socialaccount/messages/account_connected_updated.txt": gettext_lazy("Already connected."),
    "socialaccount/messages/account_connected_other.txt": gettext_lazy(
        "That account is connected to another person here."
    ),
    "socialaccount/messages/account_disconnected.txt": gettext_lazy("Disconnected."),
}
"""What is said on the next page; of all else that allauth would say, nothing."""

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
        """The last step. The backend says that all steps were taken."""
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


MAX_NAME_CHARS = 150  # characters of a first or last name in Django's table


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Who it is that the provider vouches for, and whether they may come in."""

    def list_apps(
        self, request: HttpRequest | None, provider: Any = None, client_id: Any = None
    ) -> list[SocialApp]:
        """The one provider, by the settings alone; the table of apps is not read."""
        loom = settings.LOOM
        app = SocialApp(
            provider="oidc",
            provider_id=loom.oidc_issuer,
            name=loom.oidc_name,
            client_id=loom.oidc_client_id,
            secret=loom.oidc_client_secret,
            settings={
                "server_url": loom.oidc_issuer.rstrip("/") + "/.well-known/openid-configuration"
            },
        )
        return [app] if provider in (None, "oidc", loom.oidc_issuer) else []

    def get_requests_session(self) -> requests.Session:
        """A few seconds at most, and no redirection: a secret goes where it is meant to."""
        session: requests.Session = super().get_requests_session()
        session.max_redirects = 0
        return session

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Somebody who is not connected yet: is it somebody here, or somebody new?"""
        sociallogin.token, sociallogin.email_addresses = None, []  # kept nowhere
        if sociallogin.is_existing or sociallogin.state.get("process") == AuthProcess.CONNECT:
            return
        email = sociallogin.user.email
        same = User.objects.filter(email__iexact=email).order_by("pk")
        namesakes = list(same[:2]) if email else []
        if settings.LOOM.oidc_link_by_email and len(namesakes) == 1:
            sociallogin.connect(request, namesakes[0])
        elif namesakes:
            raise ImmediateHttpResponse(refuse(request, TAKEN))
        elif not settings.LOOM.oidc_create_people:
            raise ImmediateHttpResponse(refuse(request, NOBODY))

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return bool(settings.LOOM.oidc_create_people)

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: Any) -> User:
        """Claims can be anything; a name is a text that the table can hold."""
        texts = {
            key: storable(value)[:MAX_NAME_CHARS] if key.endswith("name") else value
            for key, value in data.items()
            if isinstance(value, str)
        }
        user: User = super().populate_user(request, sociallogin, texts)
        return user

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("sign_in_ways")

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Exception | None = None,
        extra_context: dict[str, Any] | None = None,
    ) -> None:
        if error == AuthError.CANCELLED:
            refusal = CANCELLED
        elif isinstance(exception, requests.RequestException | OidcError):
            refusal = UNREACHABLE
        elif exception is not None:
            refusal = NOT_VERIFIED
        else:
            refusal = PROVIDER if "state" in (extra_context or {}) else STATE
        # What others raise may quote what the provider sent.
        is_ours = isinstance(exception, OidcError | VerificationError)
        detail = str(exception) if is_ours else type(exception).__name__ if exception else ""
        raise ImmediateHttpResponse(refuse(request, refusal, detail=detail))
