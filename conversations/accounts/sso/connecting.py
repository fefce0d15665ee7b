"""Views that send people to the provider and receive them back, to sign in or to connect."""

from typing import Any

import requests
from allauth.account.decorators import reauthentication_required
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.internal.flows.connect import disconnect, validate_disconnect
from allauth.socialaccount.models import SocialAccount
from allauth.socialaccount.providers.base import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.crypto import get_random_string
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from conversations.access import access_context_of
from conversations.accounts.people import record_provided_account
from conversations.accounts.sign_in import SignInView

from .accounts import LATE, refuse
from .oidc import OidcAdapter, nonce_of

SALT = "loom.oidc.connect"
LINK_SECONDS = 60 * 60


@never_cache
@require_safe
def oidc_sign_in(request: HttpRequest) -> HttpResponse:
    """Redirect to the provider to sign in.

    The page has a link instead of a form, because its Content Security Policy for forms also
    restricts redirects after a submission, and a provider may redirect to any site.
    """
    page = SignInView()
    page.setup(request)
    next_url = page.get_success_url()
    if request.user.is_authenticated:
        return redirect(next_url)
    return _go_to_provider(request, AuthProcess.LOGIN, next_url)


@login_required
@require_safe
@reauthentication_required(app="allauth.socialaccount")  # type: ignore[untyped-decorator]
def oidc_connect(request: HttpRequest, token: str) -> HttpResponse:
    """Redirect to the provider to connect an account.

    This is a link too (see ``oidc_sign_in``). Its token shows that it comes from the person's own
    page. Without it any website could connect a person to somebody else's account.
    """
    try:
        is_own = signing.loads(token, salt=SALT, max_age=LINK_SECONDS) == request.user.pk
    except signing.BadSignature:
        is_own = False
    return _go_to_provider(request, AuthProcess.CONNECT) if is_own else refuse(request, LATE)


@never_cache
@require_safe
def oidc_callback(request: HttpRequest) -> HttpResponse:
    adapter = OidcAdapter(request)
    try:
        response: HttpResponse = OAuth2CallbackView.adapter_view(adapter)(request)
    except (OAuth2Error, requests.RequestException) as error:  # before the code is used
        return _failed(request, error)
    return response


@login_required
@require_POST
@reauthentication_required(app="allauth.socialaccount")  # type: ignore[untyped-decorator]
def oidc_disconnect(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    account = account_of(request.user)
    if account is not None:
        try:
            validate_disconnect(request, account)
        except ValidationError:
            message = gettext("Set a password first; otherwise you could no longer sign in.")
            messages.error(request, message)
        else:
            with transaction.atomic():
                disconnect(request, account)
                origin = access_context_of(request).origin
                record_provided_account(request.user, change="disconnected", origin=origin)
    return redirect("sign_in_ways")


def connect_token(user: User) -> str:
    """Return the token that makes a link to ``oidc_connect`` valid for this person."""
    return signing.dumps(user.pk, salt=SALT)


def account_of(user: User) -> Any:
    accounts = SocialAccount.objects.filter(user=user, provider=settings.LOOM.oidc_issuer)
    return accounts.order_by("pk").first()


def _go_to_provider(
    request: HttpRequest, process: str, next_url: str | None = None
) -> HttpResponse:
    state = get_random_string(32)
    provider = get_adapter().get_provider(request, settings.LOOM.oidc_issuer)
    try:
        response: HttpResponse = provider.redirect(
            request,
            process,
            next_url=next_url,
            state_id=state,
            auth_params={"nonce": nonce_of(state)},
        )
    except (OAuth2Error, requests.RequestException) as error:
        return _failed(request, error)
    return response


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    provider = get_adapter().get_provider(request, settings.LOOM.oidc_issuer)
    response: HttpResponse = render_authentication_error(request, provider, exception=error)
    return response


def too_late(request: HttpRequest, **_: Any) -> HttpResponse:
    """Refuse a request to a URL that allauth needs by name but that is not used here."""
    return refuse(request, LATE)
