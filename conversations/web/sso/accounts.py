"""How allauth signs people in here: our limits, our pages, our words."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse

from conversations.web.addresses import client_address

from .refusals import INACTIVE, refuse

WORDS = {
    "mfa/messages/totp_activated.txt": "Two factors are on.",
    "mfa/messages/totp_deactivated.txt": "Two factors are off.",
    "mfa/messages/recovery_codes_generated.txt": "These are new recovery codes.",
    "socialaccount/messages/account_connected.txt": "Connected.",
    "socialaccount/messages/account_connected_updated.txt": "It is connected already.",
    "socialaccount/messages/account_connected_other.txt": (
        "That account is connected to somebody else here."
    ),
    "socialaccount/messages/account_disconnected.txt": "Disconnected.",
}
"""What is said on the next page; of all else that allauth would say, nothing."""

TOO_MANY = f"Too many attempts. Try again in {settings.LOOM.sign_in_lock_minutes} minutes."


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    error_messages = DefaultAccountAdapter.error_messages | {
        "incorrect_password": "This is not your password.",
        "rate_limited": TOO_MANY,
        "too_many_login_attempts": TOO_MANY,
    }

    def get_login_stages(self) -> list[str]:
        if settings.LOOM.two_factor == "off":
            return []
        return [
            "conversations.web.sso.second_factor.SecondFactorStage",
            "conversations.web.sso.second_factor.SetUpStage",
        ]

    def login(self, request: HttpRequest, user: User) -> None:
        """The last step. The backend says that all steps were taken."""
        login(request, user, backend=settings.AUTHENTICATION_BACKENDS[-1])

    def post_login(self, request: HttpRequest, user: User, **more: Any) -> HttpResponse:
        sociallogin = (more.get("signal_kwargs") or {}).get("sociallogin")
        if sociallogin is not None:
            from .groups import follow_groups

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
            messages.add_message(request, level, text)
