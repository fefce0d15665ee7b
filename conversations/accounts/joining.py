"""The page of an invitation link.

A person who is signed in joins, and a stranger creates an account and joins. Opening the link
changes nothing.
"""

from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from conversations.access import access_context_of
from conversations.archive.audit import AuditOrigin
from conversations.models import Invitation

from .forms import AccountForm
from .invitations import accept_invitation, create_account, find_invitation, is_redundant
from .sign_in import hide_token_from_log, sign_in_person


def unlisted(view: Any) -> Any:
    """Keep the page out of search engines, and its URL, which holds a token, out of the log."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        # The referrer policy of all pages already hides the URL from other sites. It must stay
        # "same-origin": without any referrer the browser sends the form with the origin "null",
        # which Django refuses.
        response["X-Robots-Tag"] = "noindex, nofollow"
        response._has_been_logged = True  # type: ignore[attr-defined]  # for django.request
        return response

    return answer


@unlisted
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def join(request: HttpRequest, token: str) -> HttpResponse:
    # Wrong tokens are not counted as attempts, because they cannot be guessed and several people
    # can share an address.
    hide_token_from_log(request)
    invitation = find_invitation(token)
    if invitation is None:
        return render(request, "account/join_over.html", status=410)
    if not isinstance(request.user, User):
        return _join_as_stranger(request, token, invitation)
    if is_redundant(invitation, request.user):
        return _page(request, invitation, is_there=True)
    if request.method != "POST":
        return _page(request, invitation)
    joined = accept_invitation(token, user=request.user, origin=access_context_of(request).origin)
    if joined is None:
        return redirect("home")
    messages.success(request, gettext("You joined %(workspace)s.") % {"workspace": joined.name})
    return redirect("workspace", slug=joined.slug)


def _join_as_stranger(request: HttpRequest, token: str, invitation: Invitation) -> HttpResponse:
    sign_in = f"{reverse('sign_in')}?{urlencode({'next': request.path})}"
    if not settings.LOOM.invite_strangers:
        return _page(request, invitation, sign_in=sign_in)
    form = AccountForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        context = access_context_of(request)
        origin = AuditOrigin(place=reverse("sign_in"), address=context.address, agent=context.agent)
        try:
            user, workspace = create_account(
                token,
                username=form.cleaned_data["username"],
                password=form.cleaned_data["password1"],
                origin=origin,
            )
        except IntegrityError:  # somebody else took the name just now
            form.add_error("username", gettext("A user with that username already exists."))
        else:
            to = reverse("workspace", args=[workspace.slug]) if workspace else reverse("home")
            return sign_in_person(request, user, to=to)
    return _page(request, invitation, sign_in=sign_in, form=form)


def _page(request: HttpRequest, invitation: Invitation, **more: Any) -> HttpResponse:
    form = more.get("form")
    context = {
        "workspace": invitation.workspace,
        "role": invitation.role,
        "by": invitation.created_by.get_full_name() or invitation.created_by.get_username(),
        "expires_at": invitation.expires_at,
    }
    status = 400 if form and form.errors else 200
    return render(request, "account/join.html", context | more, status=status)
