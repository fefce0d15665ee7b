"""Signing in and out: passwords, sign-in links, and limits on wrong attempts.

Passwords, sign-in links and invitations call ``sign_in_person``, which asks for a second factor
if one is needed. Code that bypasses this function is safe too: if two factors are required, a
session counts only if the last step of the sign-in has created it (see ``sso.backends``).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.handlers.proxy import AxesProxyHandler
from axes.helpers import get_client_username
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME, login
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import password_validators_help_texts
from django.contrib.auth.views import LoginView, LogoutView, PasswordChangeView
from django.db.models import Sum
from django.db.models.signals import pre_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render, resolve_url
from django.urls import reverse, reverse_lazy
from django.utils.http import urlencode
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from conversations.archive.workspaces import use_sign_in_link
from conversations.domain.text import storable

from .devices import move_device, sign_out_devices
from .people import BACKEND


def sign_in_person(request: HttpRequest, user: User, *, to: str) -> HttpResponse:
    """Sign this person in, after the second factor if there is one, and redirect to ``to``.

    ``to`` must be a URL of this site.
    """
    if settings.LOOM.two_factor == "off":
        login(request, user, backend=BACKEND)
        return redirect(to)
    from conversations.accounts.sso.two_factor import continue_sign_in

    return continue_sign_in(request, user, to=to)


# Parts of the User-Agent header of programs that fetch a link to show a preview of it.
PREVIEWERS = (
    *("bingbot", "bingpreview", "discordbot", "embedly", "facebookexternalhit", "googlebot"),
    *("iframely", "linkedinbot", "mattermost", "redditbot", "skypeuripreview", "slackbot"),
    *("telegrambot", "twitterbot", "whatsapp"),
)

# Longest username that the table of attempts can hold. PostgreSQL refuses longer values.
LOGGED_NAME = AccessAttempt._meta.get_field("username").max_length


# Query parameter that tells the sign-in page that a submitted form was not saved.
UNSAVED = "unsaved"


class SignInForm(AuthenticationForm):
    # Django's German sentence only asks for a name and a password.
    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": gettext_lazy(
            "The username or the password is wrong. Upper and lower case matter in both."
        )
    }


class SignInView(LoginView):
    form_class = SignInForm
    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True

    def get_redirect_url(self, request: HttpRequest | None = None) -> str:
        """Return the page to open after the sign-in: a page of this site, but not this one."""
        target = super().get_redirect_url(request)
        return "" if target == self.request.path else target

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        message = ""
        if UNSAVED in self.request.GET:
            message = gettext(
                "Nothing was saved because you are signed out. Sign in and try again."
            )
        more = {"provider_name": settings.LOOM.oidc_name, "message": message}
        return super().get_context_data(**kwargs) | more

    def form_valid(self, form: Any) -> HttpResponse:
        return sign_in_person(self.request, form.get_user(), to=self.get_success_url())


def locked_out(request: HttpRequest, *_: Any) -> HttpResponse:
    """Return the sign-in page with status 429 and a message about too many attempts."""
    view = SignInView()
    view.setup(request)
    form = view.form_class(request, initial={"username": request.POST.get("username", "")})
    message = too_many_attempts(is_address_locked=hasattr(request, "is_address_locked"))
    context = view.get_context_data(form=form) | {"message": message}
    return render(request, view.template_name, context, status=429)


def too_many_attempts(*, is_address_locked: bool = False) -> str:
    minutes = settings.LOOM.sign_in_lock_minutes
    if is_address_locked:
        message = ngettext(
            "Too many attempts from your network address. Try again in %(minutes)s minute.",
            "Too many attempts from your network address. Try again in %(minutes)s minutes.",
            minutes,
        )
    else:
        message = ngettext(
            "Too many attempts. Try again in %(minutes)s minute.",
            "Too many attempts. Try again in %(minutes)s minutes.",
            minutes,
        )
    return message % {"minutes": minutes}


def tried_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str:
    """Return the submitted username in a form that the table of attempts can hold."""
    username = (credentials or request.POST).get("username") or ""
    return storable(str(username))[:LOGGED_NAME]


# A cookie that the sign-in page's script reads and deletes.
SIGNED_OUT = "loom_signed_out"


def clear_browser_data(response: HttpResponse) -> HttpResponse:
    """Tell the browser to delete the person's data after a deliberate sign-out.

    This includes cached pages that "back" would show and messages that wait to be sent. They stay
    in the browser if a session merely expires, so that they are there after the next sign-in.
    """
    response["Clear-Site-Data"] = '"cache"'
    response.set_cookie(SIGNED_OUT, "1", samesite="Lax", secure=settings.SESSION_COOKIE_SECURE)
    return response


class SignOutView(LogoutView):
    next_page = "sign_in"

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return clear_browser_data(super().post(request, *args, **kwargs))


class PasswordView(PasswordChangeView):
    """A view to change the password, or to set the first one after signing in by a link."""

    template_name = "registration/password_change.html"
    success_url = reverse_lazy("password_change_done")

    def get_form_class(self) -> Any:
        assert isinstance(self.request.user, User)
        return PasswordChangeForm if self.request.user.has_usable_password() else SetPasswordForm

    def get_form(self, form_class: Any = None) -> Any:
        form = super().get_form(form_class)
        # Django's own help text is a list, which HTML does not allow inside a field's help.
        form.fields["new_password1"].help_text = " ".join(password_validators_help_texts())
        return form

    def form_valid(self, form: Any) -> HttpResponse:
        """Save the password and sign out all other devices. Django changes this session's key."""
        before = self.request.session.session_key or ""
        response = super().form_valid(form)
        now = self.request.session.session_key or ""
        move_device(before, now)
        sign_out_devices(form.user.pk, but=now)
        return response

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"done": False}


@login_required
def password_change_done(request: HttpRequest) -> HttpResponse:
    return render(request, "registration/password_change.html", {"done": True, "form": None})


@never_cache
@require_safe
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """Sign in by a link, which works once, and open the chat."""
    # Prefetching browsers and robots that preview links would use the link up with their GET
    # request. They do not get an error status, because errors are logged with the URL, which can
    # still be used to sign in.
    purposes = (request.headers.get(name, "") for name in ("Sec-Purpose", "Purpose", "X-Moz"))
    agent = request.headers.get("User-Agent", "").lower()
    if (
        request.method == "HEAD"
        or any("prefetch" in purpose for purpose in purposes)
        or any(name in agent for name in PREVIEWERS)
    ):
        return HttpResponse(gettext("Open this link in a browser to sign in."), "text/plain")
    user = use_sign_in_link(token)
    if user is None:
        if request.user.is_authenticated:
            return redirect("home")
        return render(request, "registration/link_invalid.html", status=410)
    hide_token_from_log(request)
    return sign_in_person(request, user, to=reverse("start"))


def hide_token_from_log(request: HttpRequest) -> None:
    """Replace the URL that the log of sign-ins stores, because it contains a token."""
    AxesProxyHandler.update_request(request)
    request.axes_path_info = reverse("sign_in")  # type: ignore[attr-defined]


class SignedOutMiddleware:
    """A middleware that changes redirects to the sign-in page for people who are signed out.

    After a submitted form the sign-in page says that nothing was saved. An htmx request for a part
    of a page sends the whole page to the sign-in. An htmx request that submits a form, or that
    comes from a chat, gets a 401 with a sentence instead, so that unsaved text stays on the page.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        sign_in = resolve_url("sign_in")
        target = urlsplit(response.get("Location", ""))
        is_post = request.method == "POST"
        signs_out = is_post and REDIRECT_FIELD_NAME not in QueryDict(target.query)
        if target.path != sign_in or signs_out:
            return response
        if request.headers.get("HX-Request") != "true":
            if is_post:
                response["Location"] += f"&{UNSAVED}=1"
            return response
        page = "/"
        with suppress(ValueError):  # a client can send anything in this header
            page = urlsplit(request.headers.get("HX-Current-URL", "")).path or page
        if is_post or page.startswith("/s/"):
            message = gettext(
                "You are signed out. Sign in using another tab, then try again here. Your "
                "text is kept."
            )
            return HttpResponse(message, content_type="text/plain; charset=utf-8", status=401)
        answer = HttpResponse(status=204)
        answer["HX-Redirect"] = f"{sign_in}?{urlencode({'next': page})}"
        return answer


@receiver(pre_save, sender=AccessAttempt)
def clear_form_data(instance: AccessAttempt, **_: Any) -> None:
    # Otherwise every attempt would append its form data to the row. The data is never read.
    instance.get_data = instance.post_data = ""


class AttemptCounter(AxesDatabaseHandler):  # type: ignore[misc]
    """A counter of wrong passwords per name and address, and per address for all names."""

    def is_locked(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        return super().is_locked(request, credentials) or self.is_address_locked(
            request, credentials
        )

    def user_login_failed(
        self,
        sender: Any,
        credentials: dict[str, Any],
        request: HttpRequest | None = None,
        **more: Any,
    ) -> None:
        super().user_login_failed(sender, credentials, request, **more)
        if request is not None and self.is_address_locked(request, credentials):
            request.is_address_locked = True  # type: ignore[attr-defined]  # for the page
            request.axes_locked_out = True  # type: ignore[attr-defined]
            request.axes_credentials = credentials  # type: ignore[attr-defined]

    def is_address_locked(
        self, request: HttpRequest, credentials: dict[str, Any] | None = None
    ) -> bool:
        # Trying one password on many names would stay below the limit of each name.
        address = request.axes_ip_address  # type: ignore[attr-defined]
        if address is None:
            return False
        since = get_cool_off_threshold(request)
        attempts = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=since)
        failures = attempts.aggregate(Sum("failures_since_start"))["failures_since_start__sum"]
        if (failures or 0) < settings.LOOM.sign_in_address_attempts:
            return False
        # Many people can share an address. If a person has signed in from it before, only the
        # limit for their own name applies to them.
        name = get_client_username(request, credentials)
        return not AccessLog.objects.filter(username=name, ip_address=address).exists()
