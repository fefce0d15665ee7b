"""Receivers of allauth's signals.

They log changes to sign-in methods, record in the audit log which accounts at the provider can
sign in to an account here, and count wrong codes as failed sign-ins.
"""

import logging
from functools import partial, wraps
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.db import transaction
from django.dispatch import Signal
from django.http import HttpRequest

from conversations.access import access_context_of
from conversations.accounts.people import record_provided_account

logger = logging.getLogger("conversations.accounts.sso")


def connect_signals() -> None:
    changes: list[tuple[Signal, str]] = []
    if apps.is_installed("allauth.mfa"):
        from allauth.mfa import signals as second_factors

        changes += [
            (second_factors.authenticator_added, "second_factor_added"),
            (second_factors.authenticator_removed, "second_factor_removed"),
            (second_factors.authenticator_reset, "second_factor_renewed"),
        ]
        second_factors.authentication_failed.connect(_count_wrong_code, dispatch_uid="sso-wrong")
    if apps.is_installed("allauth.socialaccount"):
        from allauth.socialaccount import signals as accounts
        from allauth.socialaccount.models import SocialLogin

        changes += [
            (accounts.social_account_added, "provider_connected"),
            (accounts.social_account_removed, "provider_disconnected"),
        ]
        # All code paths to a new account or connection call this method. A subclass would not be
        # enough, because allauth creates the object itself if the person has to confirm the
        # password first.
        SocialLogin.save = _with_audit_entry(SocialLogin.save)
    for signal, change in changes:
        receiver = partial(_log_change, change=change)
        signal.connect(receiver, weak=False, dispatch_uid=f"sso-{change}")


def _with_audit_entry(save: Any) -> Any:
    @wraps(save)
    def save_and_enter(login: Any, request: HttpRequest, connect: bool = False) -> None:
        change = "connected" if connect else "account created"
        with transaction.atomic():
            save(login, request, connect=connect)
            origin = access_context_of(request, login.user).origin
            record_provided_account(login.user, change=change, origin=origin)

    return save_and_enter


def _count_wrong_code(
    sender: Any, *, request: HttpRequest, user: User, reauthentication: bool, **_: Any
) -> None:
    if not reauthentication:
        credentials = {"username": user.get_username()}
        user_login_failed.send(sender, credentials=credentials, request=request)


def _log_change(*, change: str, **signal_arguments: Any) -> None:
    # Depending on the signal, the user comes from one of three arguments.
    account = signal_arguments.get("socialaccount") or signal_arguments.get("sociallogin")
    user = signal_arguments.get("user") or account.user  # type: ignore[union-attr]
    fields = {"user": user.get_username(), "change": change}
    if (authenticator := signal_arguments.get("authenticator")) is not None:
        fields["kind"] = authenticator.type
    logger.info("sign_in_way_changed", extra={"fields": fields})
