"""The pages for creating, listing, revoking and opening links to a session."""

from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import access_context_of, get_session_for, post_by_person
from conversations.archive.rights import WRITE
from conversations.domain.errors import Rejected
from conversations.domain.keyset import parse_optional_number
from conversations.rendering.messages import translate
from conversations.rendering.rows import join_rows
from conversations.web.attachments import serve_attachment, serve_thumbnail

from . import service
from .models import ShareLink

MAX_PAGE_TURNS = 100


class ShareForm(forms.Form):
    def __init__(self, data: Any = None, *, turn_count: int) -> None:
        super().__init__(data)
        max_days = settings.LOOM.share_days
        for name, label, initial, max_value in (
            ("from_turn", gettext("First turn"), 1, turn_count),
            ("to_turn", gettext("Last turn"), turn_count, turn_count),
            ("days", gettext("Expires after (days)"), max_days, max_days),
        ):
            self.fields[name] = forms.IntegerField(
                label=label, initial=initial, min_value=1, max_value=max_value
            )
        self.fields["with_tools"] = forms.BooleanField(
            label=gettext("Include thinking, tool calls and their output"),
            required=False,
            help_text=gettext("Tool output may contain parts of files in the workspace."),
        )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def session_share(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    name = session.title or gettext("Untitled session")
    if request.method != "POST" and not settings.LOOM.share_links:
        off = {"name": name, "who": gettext("this session")}
        return render(request, "sharing/off.html", off)
    service.require_sharing()
    form = ShareForm(
        request.POST if request.method == "POST" else None, turn_count=session.turn_count
    )
    if form.is_valid():
        try:
            origin = access_context_of(request).origin
            service.create_share_link(session, **form.cleaned_data, origin=origin)
        except Rejected as error:
            form.add_error(None, translate(error.message))
        else:
            messages.success(
                request, gettext("Link created. Anyone with the link can read the session.")
            )
            return redirect("session_share", uuid=uuid)
    context = {
        "name": name,
        "form": form if session.turn_count else None,
        "links": [
            {
                "link": link,
                "address": address_of_link(request, link),
                "revoke_url": reverse("session_share_revoke", args=[uuid, link.uuid]),
            }
            for link in service.open_links(session)
        ],
    }
    return render(request, "sharing/share.html", context, status=400 if form.errors else 200)


def address_of_link(request: HttpRequest, link: ShareLink) -> str:
    return request.build_absolute_uri(reverse("shared", args=[service.share_token(link)]))


@post_by_person
def session_share_revoke(request: HttpRequest, uuid: UUID, link: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    service.revoke_share_link(session, link, origin=access_context_of(request).origin)
    messages.success(request, gettext("Link revoked."))
    return redirect("session_share" if settings.LOOM.share_links else "session", uuid=uuid)


@require_safe
def shared(request: HttpRequest, share: str) -> HttpResponse:
    """Show the turns of a link. ``from`` is the first turn of a page."""
    link = service.get_shared(share)
    first = parse_optional_number(request.GET.get("from")) or link.from_turn
    files_url = f"{reverse('shared', args=[share])}files/"
    rows, next_turn = service.read_shared_page(
        link, from_turn=first, limit=MAX_PAGE_TURNS, files_url=files_url
    )
    if request.method == "GET" and "from" not in request.GET:
        service.count_opening(link)
    title = link.session.title if service.shows_title(link) else gettext("A shared session")
    context = {
        "link": link,
        "title": title,
        "rows": join_rows(rows),
        "next_turn": next_turn,
        "is_first": first <= link.from_turn,
    }
    return unlisted(render(request, "sharing/shared.html", context))


@require_safe
def shared_file(request: HttpRequest, share: str, attachment: UUID) -> HttpResponse:
    found = service.shared_attachment(service.get_shared(share), attachment)
    return unlisted(serve_attachment(request, found))


@require_safe
def shared_thumb(request: HttpRequest, share: str, attachment: UUID) -> HttpResponse:
    found = service.shared_attachment(service.get_shared(share), attachment)
    return unlisted(serve_thumbnail(request, found))


def unlisted(response: HttpResponse) -> HttpResponse:
    # Robots may fetch the page, because otherwise they would not see that they must not index it.
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive, noimageindex"
    # Anybody who has the address can read the page, so the address is not sent to other sites.
    response["Referrer-Policy"] = "no-referrer"
    response["Cache-Control"] = "private, no-store"
    return response
