"""The sessions of a workspace as a feed, for readers that cannot fill in a form.

They sign in by a personal token: as the password of HTTP Basic, as a Bearer, or in the
address. An address is easily passed on, so only a token that is for feeds and nothing
else may stand there. A browser that is signed in reads it as well.
"""

import hashlib
import re
from base64 import b64decode
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.feedgenerator import Atom1Feed
from django.utils.html import escape
from django.utils.http import http_date
from django.views.decorators.http import require_safe

from conversations.access import AccessContext, get_workspace_for
from conversations.accounts.tokens import FEED, READ, find_caller
from conversations.archive.session_records import (
    SessionFilter,
    SessionRecord,
    list_session_records,
)
from conversations.domain.errors import NotPermitted
from conversations.domain.keyset import parse_list_cursor
from conversations.domain.runs import IDLE
from conversations.models import Workspace

from .addresses import client_address

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot say, not even escaped."""


def _sayable(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


class PagedFeed(Atom1Feed):
    """Atom (RFC 4287) with links to further pages (RFC 5005)."""

    def add_root_elements(self, handler: Any) -> None:
        super().add_root_elements(handler)
        handler.addQuickElement("generator", "Loom Web")
        for relation, address in self.feed["pages"].items():
            handler.addQuickElement(
                "link", "", {"rel": relation, "href": address, "type": "application/atom+xml"}
            )

    def latest_post_date(self) -> datetime:
        # A feed without entries has a date too, and the same one each time.
        updated: datetime = self.feed["updated"]
        return updated


PAGE = 50

IN_ADDRESS = "token"
"""The parameter of the address that may hold a token."""


@require_safe
def workspace_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """The latest active sessions; older ones behind the link ``next``."""
    person = _signed_in(request)
    if person is None:
        return _ask_to_sign_in()
    visit = AccessContext(
        user=person,
        action="",
        place=request.path,  # without a token
        address=client_address(request) or "",
        agent=request.headers.get("User-Agent", ""),
    )
    workspace, access = get_workspace_for(visit, slug)
    page = _read_page(request, workspace)
    feed = _make_feed(request, workspace, page, with_previews=access.role is not None)
    return _answer(request, feed.writeString("utf-8").encode(), feed.latest_post_date())


def _signed_in(request: HttpRequest) -> User | None:
    """Who asks; None where that is to be said first. Raises NotPermitted."""
    if given := request.headers.get("Authorization"):
        return _person_of(request, _token_of(given), needs=(FEED, READ))
    if token := request.GET.get(IN_ADDRESS):
        return _person_of(request, token, only=FEED)
    return request.user if isinstance(request.user, User) else None


def _token_of(header: str) -> str:
    """Of a Bearer, or the password of Basic; empty for anything else."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(rest, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _person_of(
    request: HttpRequest, token: str, *, needs: tuple[str, ...] = (), only: str = ""
) -> User | None:
    found = find_caller(token, address=client_address(request) or "")
    if found is None:
        return None
    if only and found.scopes != {only}:
        raise NotPermitted(f"Only tokens with the scope “{only}” may be used in a URL.")
    if needs and not found.scopes & set(needs):
        raise NotPermitted(f"The token has no scope “{needs[0]}”.")
    return found.user


def _ask_to_sign_in() -> HttpResponse:
    response = HttpResponse(
        "A personal token is needed, as the password.\n", status=401, content_type="text/plain"
    )
    response["WWW-Authenticate"] = 'Basic realm="Loom Web", charset="UTF-8"'
    return response


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """``newer`` and ``older`` are cursors; empty where there is nothing more."""

    records: list[SessionRecord]
    newer: str
    older: str


def _read_page(request: HttpRequest, workspace: Workspace) -> _Page:
    """The page before or after the cursor. Raises Rejected for what is none."""
    after, before = request.GET.get("after", ""), request.GET.get("before", "")
    cursor = after or before
    found = list_session_records(
        SessionFilter(workspaces=[workspace.pk], archived=False),
        mark=parse_list_cursor(cursor) if cursor else None,
        is_back=bool(after),
        limit=PAGE + 1,
    )
    shown, goes_on = found[:PAGE], len(found) > PAGE
    if after:
        shown.reverse()
    has_newer, has_older = (goes_on, True) if after else (bool(before), goes_on)
    return _Page(
        records=shown,
        newer=str(shown[0].cursor) if shown and has_newer else "",
        older=str(shown[-1].cursor) if shown and has_older else "",
    )


def _make_feed(
    request: HttpRequest, workspace: Workspace, page: _Page, *, with_previews: bool
) -> PagedFeed:
    address = request.build_absolute_uri(request.path)
    pages = {"first": _address_of(request, address)}
    if page.newer:
        pages["previous"] = _address_of(request, address, after=page.newer)
    if page.older:
        pages["next"] = _address_of(request, address, before=page.older)
    moments = [record.last_active_at for record in page.records]
    feed = PagedFeed(
        title=_sayable(f"Sessions of {workspace.name}"),
        link=request.build_absolute_uri(reverse("workspace", args=[workspace.slug])),
        description=None,
        feed_guid=address,
        feed_url=request.build_absolute_uri(),
        updated=max(moments, default=workspace.created_at),
        pages=pages,
    )
    for record in page.records:
        # The generator writes a summary as HTML.
        summary = escape(_sayable(record.preview or "")) if with_previews else ""
        feed.add_item(
            title=_sayable(record.title or "Untitled session"),
            link=request.build_absolute_uri(reverse("session", args=[record.uuid])),
            description=summary or None,  # type: ignore[arg-type]  # None: no summary
            author_name=_sayable(record.owner),
            pubdate=record.created_at,
            updateddate=record.last_active_at,
            unique_id=record.uuid.urn,
            categories=() if record.state == IDLE else (record.state,),
        )
    return feed


def _address_of(request: HttpRequest, address: str, **cursor: str) -> str:
    """A page of the feed. Who came by an address with a token goes on by one."""
    token = request.GET.get(IN_ADDRESS)
    query = urlencode(({IN_ADDRESS: token} if token else {}) | cursor)
    return f"{address}?{query}" if query else address


def _answer(request: HttpRequest, body: bytes, updated: datetime) -> HttpResponse:
    """The feed, or 304 for who has it already."""
    response: HttpResponse = HttpResponse(body, content_type=PagedFeed.content_type)
    response["Cache-Control"] = "private, no-cache"
    response["Referrer-Policy"] = "no-referrer"
    response["ETag"] = etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    response["Last-Modified"] = http_date(updated.timestamp())
    patch_vary_headers(response, ("Authorization", "Cookie"))
    answered = get_conditional_response(
        request, etag=etag, last_modified=int(updated.timestamp()), response=response
    )
    return answered if isinstance(answered, HttpResponse) else response
