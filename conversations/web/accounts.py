"""Signing in and out, by password or by the link that the terminal printed."""

from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from conversations.archive.accounts import use_sign_in_link


class SignIn(LoginView):
    template_name = "registration/sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        locked = self.request.method == "POST" and not AxesProxyHandler.is_allowed(self.request)
        return context | {"is_locked": locked, "message": locked_message() if locked else ""}


def locked_message() -> str:
    minutes = settings.LOOM.sign_in_lock_minutes
    return f"Too many attempts. Try again in {minutes} minutes."


def locked_out(request: HttpRequest, credentials: Any = None, *_: Any, **__: Any) -> HttpResponse:
    """The page for too many attempts (429), with the form still there."""
    view = SignIn()
    view.setup(request)
    context = view.get_context_data(form=view.form_class(request)) | {
        "is_locked": True,
        "message": locked_message(),
    }
    return render(request, view.template_name, context, status=429)


class PasswordChange(PasswordChangeView):
    template_name = "registration/password_change.html"
    success_url = reverse_lazy("password_change_done")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"done": False}


def password_change_done(request: HttpRequest) -> HttpResponse:
    return render(request, "registration/password_change.html", {"done": True, "form": None})


@never_cache
@require_GET
def sign_in_link(request: HttpRequest, token: str) -> HttpResponse:
    """Sign in by a link from the terminal; it works once. It opens the chat."""
    user = use_sign_in_link(token)
    if user is None:
        if request.user.is_authenticated:
            return redirect("home")
        return render(request, "registration/link_invalid.html", status=410)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("start")
