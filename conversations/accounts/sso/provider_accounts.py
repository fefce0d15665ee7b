"""The adapter of allauth for accounts at the provider."""

from typing import Any

import requests
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthError, AuthProcess
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy

from conversations.access import access_context_of
from conversations.accounts.people import follow_email
from conversations.domain.text import storable

from .accounts import Refusal, refuse
from .oidc import OidcError, VerificationError

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
    "not_verified",
    gettext_lazy(
        "The response from %(name)s could not be verified. Try again. If it fails again, tell an "
        "administrator."
    ),
    403,
)
PROVIDER = Refusal(
    "provider_error",
    gettext_lazy("%(name)s refused to sign you in. Ask the people who manage your account there."),
    403,
)
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

MAX_NAME_CHARS = 150  # longest first or last name in Django's table


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Decides which person an account at the provider belongs to and whether they may sign in."""

    def list_apps(
        self, request: HttpRequest | None, provider: Any = None, client_id: Any = None
    ) -> list[SocialApp]:
        """Return the provider from the settings. allauth's table of apps is not read."""
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
        """Return a session with allauth's timeout of a few seconds and without redirects.

        A redirect could send a secret to another host.
        """
        session: requests.Session = super().get_requests_session()
        session.max_redirects = 0
        return session

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Connect an unknown account at the provider to a person with its address, or refuse it.

        A known account gives the person its address.
        """
        sociallogin.token, sociallogin.email_addresses = None, []  # must not be stored
        if sociallogin.state.get("process") == AuthProcess.CONNECT:
            return
        if sociallogin.is_existing:
            origin = access_context_of(request, sociallogin.user).origin
            follow_email(sociallogin.user, sociallogin.verified_email, origin=origin)
            return
        email = sociallogin.user.email
        same = User.objects.filter(email__iexact=email).order_by("pk")
        namesakes = list(same[:2]) if email else []
        # A connected person is found by their subject. If another subject has the same address,
        # the provider has reassigned the address.
        connected = SocialAccount.objects.filter(
            user__in=namesakes, provider=settings.LOOM.oidc_issuer
        )
        is_found = len(namesakes) == 1 and not connected.exists()
        if settings.LOOM.oidc_link_by_email and is_found:
            sociallogin.connect(request, namesakes[0])
        elif namesakes:
            raise ImmediateHttpResponse(refuse(request, TAKEN))
        elif not settings.LOOM.oidc_create_people:
            raise ImmediateHttpResponse(refuse(request, NOBODY))

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return bool(settings.LOOM.oidc_create_people)

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: Any) -> User:
        """Fill the user from the claims, which can have any type and length."""
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
        # The texts of other exceptions may quote the provider's response.
        if isinstance(exception, OidcError | VerificationError):
            detail = str(exception)
        else:
            detail = type(exception).__name__ if exception else ""
        raise ImmediateHttpResponse(refuse(request, refusal, detail=detail))
