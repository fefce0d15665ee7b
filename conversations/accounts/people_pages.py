"""Pages on which administrators manage people and groups. No page shows a transcript."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import access_context_of, person, post_by_person, require_administrator
from conversations.archive.audit import AuditOrigin
from conversations.archive.workspaces import LINK_LIFETIME, find_user
from conversations.domain.errors import LoomError, NotFound
from conversations.domain.text import storable
from conversations.rendering.messages import translate
from conversations.web.errors import refusal_as_message
from conversations.web.pages import MAX_FILTER_CHARS

from . import people as archive_people
from .devices import list_devices
from .forms import InvitationForm
from .invitations import list_invitations, revoke_invitation
from .members import invite
from .tokens import list_tokens

PER_PAGE = 50
MAX_GROUP_MEMBERS = 500

type View = Callable[..., HttpResponse]


def for_administrators(view: View) -> View:
    """Answer everybody who is not an administrator as if the page did not exist."""

    @wraps(view)
    def checked(request: HttpRequest, **url_kwargs: Any) -> HttpResponse:
        require_administrator(request)
        return view(request, **url_kwargs)

    return checked


def administrator_page(view: View) -> View:
    return require_safe(login_required(for_administrators(view)))


def administrator_form(view: View) -> View:
    return post_by_person(for_administrators(view))


def _act(view: Callable[[HttpRequest, int], HttpResponse | None]) -> View:
    """Wrap a form view that redirects to the page of the person, where errors are shown."""

    @wraps(view)
    def answer(request: HttpRequest, pk: int) -> HttpResponse:
        with refusal_as_message(request):
            if answered := view(request, pk):
                return answered
        return redirect("person", pk=pk)

    return administrator_form(answer)


def _origin(request: HttpRequest) -> AuditOrigin:
    return access_context_of(request).origin


@administrator_page
def people(request: HttpRequest) -> HttpResponse:
    """List people who match ``q``, or with ``closed=1`` people whose account is closed."""
    query = request.GET.get("q", "").strip()[:MAX_FILTER_CHARS]
    closed = request.GET.get("closed") == "1"
    found, next_cursor = archive_people.list_people(
        query=query, closed=closed, after=request.GET.get("after", ""), limit=PER_PAGE
    )
    context = {
        "people": found,
        "next_cursor": next_cursor,
        "query": query,
        "closed": closed,
        "invitations": list_invitations(None),
        "invitation_form": InvitationForm(auto_id="invite_%s"),
    }
    return render(request, "people/people.html", context)


@administrator_page
def person_page(request: HttpRequest, pk: int) -> HttpResponse:
    context = archive_people.read_person(pk)
    shown_person, viewer = context["person"], person(request)
    context |= {
        "devices": list_devices(pk),
        "tokens": len(list_tokens(pk)),
        "is_self": shown_person == viewer,
        "is_superuser": viewer.is_superuser,
        "can_change": shown_person != viewer
        and (viewer.is_superuser or not shown_person.is_superuser),
    }
    return render(request, "people/person.html", context)


@_act
def person_roles(request: HttpRequest, pk: int) -> None:
    archive_people.set_roles(pk, names=request.POST.getlist("roles"), origin=_origin(request))
    messages.success(request, gettext("Saved."))


@_act
def person_close(request: HttpRequest, pk: int) -> None:
    archive_people.set_active(pk, is_active=False, origin=_origin(request))
    messages.success(request, gettext("Account closed."))


@_act
def person_open(request: HttpRequest, pk: int) -> None:
    archive_people.set_active(pk, is_active=True, origin=_origin(request))
    messages.success(request, gettext("Account reopened."))


@_act
def person_owner(request: HttpRequest, pk: int) -> None:
    archive_people.make_owner(
        pk,
        slug=request.POST.get("workspace", ""),
        username=request.POST.get("username", "").strip(),
        origin=_origin(request),
    )
    messages.success(request, gettext("Saved."))


@_act
def person_sign_out(request: HttpRequest, pk: int) -> None:
    archive_people.sign_out_person(pk, origin=_origin(request))
    message = gettext("Signed out everywhere. Tokens were revoked, and open pages will close.")
    messages.success(request, message)


@_act
def person_rank(request: HttpRequest, pk: int) -> None:
    """Set the rank: the values of ``rank`` are ``superuser``, ``staff``, both or neither."""
    chosen = request.POST.getlist("rank")
    archive_people.set_rank(
        pk, is_superuser="superuser" in chosen, is_staff="staff" in chosen, origin=_origin(request)
    )
    messages.success(request, gettext("Saved."))


@_act
def person_unlock(request: HttpRequest, pk: int) -> None:
    archive_people.unlock_sign_in(pk, origin=_origin(request))
    messages.success(request, gettext("Sign-in unlocked."))


@_act
def person_reset_password(request: HttpRequest, pk: int) -> HttpResponse:
    """Reset the password and show a sign-in link, which is shown only once."""
    token = archive_people.reset_password(pk, origin=_origin(request))
    link = request.build_absolute_uri(reverse("sign_in_link", args=[token]))
    context = {"link": link, "pk": pk, "hours": LINK_LIFETIME.total_seconds() / 3600}
    response = render(request, "people/password_reset.html", context)
    response["Cache-Control"] = "no-store"
    return response


@administrator_form
def people_invite(request: HttpRequest) -> HttpResponse:
    form = InvitationForm(request.POST)
    if not form.is_valid():
        messages.error(request, gettext("Choose a shorter name."))
        return redirect("people")
    return invite(request, form, workspace=None, back=reverse("people"), back_to=gettext("People"))


@administrator_form
def people_invitation_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    if not revoke_invitation(None, pk=pk, origin=_origin(request)):
        raise NotFound("This invitation is no longer open.")
    return redirect(reverse("people") + "#invitations")


@administrator_page
def groups(request: HttpRequest) -> HttpResponse:
    return _groups_page(request)


def _groups_page(request: HttpRequest, *, name: str = "", error: str = "") -> HttpResponse:
    groups = archive_people.list_groups().annotate(
        people=Count("user", distinct=True), places=Count("workspaces", distinct=True)
    )
    context = {"groups": groups, "name": name, "error": error}
    return render(request, "people/groups.html", context, status=400 if error else 200)


@administrator_form
def group_create(request: HttpRequest) -> HttpResponse:
    name = storable(request.POST.get("name", ""))
    try:
        group = archive_people.create_group(name, origin=_origin(request))
    except LoomError as error:
        return _groups_page(request, name=name, error=translate(error.message))
    return redirect("group", pk=group.pk)


@administrator_page
def group(request: HttpRequest, pk: int) -> HttpResponse:
    return _group_page(request, archive_people.find_group(pk))


def _group_page(
    request: HttpRequest, group: Group, *, username: str = "", error: str = ""
) -> HttpResponse:
    context = {
        "username": username,
        "error": error,
        "group": group,
        "people": group.user_set.order_by("username")[:MAX_GROUP_MEMBERS],
        "workspaces": group.workspaces.select_related("workspace").order_by("workspace__name"),
    }
    return render(request, "people/group.html", context, status=400 if error else 200)


@administrator_form
def group_add(request: HttpRequest, pk: int) -> HttpResponse:
    group = archive_people.find_group(pk)
    username = storable(request.POST.get("username", "").strip())
    try:
        user = find_user(username)
        archive_people.add_to_group(group, user=user, origin=_origin(request))
    except LoomError as error:
        return _group_page(request, group, username=username, error=translate(error.message))
    return redirect("group", pk=pk)


@administrator_form
def group_take_out(request: HttpRequest, pk: int, user_pk: int) -> HttpResponse:
    group = archive_people.find_group(pk)
    archive_people.remove_from_group(group, user_pk=user_pk, origin=_origin(request))
    messages.success(request, gettext("Removed."))
    return redirect("group", pk=pk)


@administrator_form
def group_remove(request: HttpRequest, pk: int) -> HttpResponse:
    group = archive_people.find_group(pk)
    archive_people.remove_group(group, origin=_origin(request))
    messages.success(request, gettext("%(name)s was removed.") % {"name": group.name})
    return redirect("groups")
