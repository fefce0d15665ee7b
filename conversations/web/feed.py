"""The sessions of a workspace as a feed, for feed readers that cannot fill in a sign-in form.

A feed reader signs in with a personal token: as the password of HTTP Basic, as a Bearer token or in
the URL. A URL is easily passed on, so it may only contain a token that is for feeds alone. A
signed-in browser can read the feed as well.
"""

import hashlib
import re
from base64 import b64decode
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.feedgenerator import Atom1Feed
from django.utils.html import escape
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import AccessContext, get_workspace_for
from conversations.accounts.tokens import FEED, READ, find_caller
from conversations.archive.session_records import SessionFilter, list_session_records
from conversations.domain.errors import NotPermitted
from conversations.domain.keyset import parse_list_cursor
from conversations.domain.runs import IDLE
from conversations.models import Workspace

from .addresses import client_address

# Characters that XML 1.0 does not allow, not even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_safe(text: str) -> str:
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
        # A feed without entries also has a date, which is the same each time.
        updated: datetime = self.feed["updated"]
        return updated


PAGE_SESSIONS = 50

IN_ADDRESS = "token"  # the URL parameter that may hold a token


@require_safe
def workspace_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the latest active sessions as a feed. The link ``next`` leads to older ones."""
    person = find_reader(request)
    if person is None:
        text = gettext("Sign in with a personal token as the password.")
        response = HttpResponse(f"{text}\n", status=401, content_type="text/plain; charset=utf-8")
        response["WWW-Authenticate"] = 'Basic realm="Loom Web", charset="UTF-8"'
        return response
    context = AccessContext(
        user=person,
        action="",
        place=request.path,  # without a token
        address=client_address(request) or "",
        agent=request.headers.get("User-Agent", ""),
    )
    workspace, access = get_workspace_for(context, slug)
    feed = make_feed(request, workspace, with_previews=access.role is not None)
    body = feed.writeString("utf-8").encode()
    response = HttpResponse(body, content_type=PagedFeed.content_type)
    response["Cache-Control"] = "private, no-cache"
    # The URL may hold a token, which no other site must see.
    response["Referrer-Policy"] = "no-referrer"
    # No Last-Modified, because renaming, archiving or purging a session does not change any time.
    response["ETag"] = etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    patch_vary_headers(response, ("Authorization", "Cookie"))
    not_modified = get_conditional_response(request, etag=etag, response=response)
    return not_modified if isinstance(not_modified, HttpResponse) else response


def find_reader(request: HttpRequest) -> User | None:
    """Return the person who sends the request, by a token or by their browser session.

    Return None if they have to sign in first. Raise NotPermitted if the token may not be used here.
    """
    authorization = request.headers.get("Authorization", "")
    token = request.GET.get(IN_ADDRESS, "")
    if not authorization and not token:
        return request.user if isinstance(request.user, User) else None
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        token = credentials.strip()
    elif scheme.lower() == "basic":
        try:
            token = b64decode(credentials, validate=True).decode().partition(":")[2]
        except ValueError:
            token = ""
    elif authorization:
        token = ""
    caller = find_caller(token, address=client_address(request) or "")
    if caller is None:
        return None
    # URLs are kept in logs and histories, so a token in a URL must give access to feeds only.
    if not authorization and caller.scopes != {FEED}:
        raise NotPermitted(
            "Only tokens with the scope “%(scope)s” may be used in a URL.", scope=FEED
        )
    if not caller.scopes & {FEED, READ}:
        raise NotPermitted("The token does not have the scope “%(scope)s”.", scope=FEED)
    return caller.user


def make_feed(request: HttpRequest, workspace: Workspace, *, with_previews: bool) -> PagedFeed:
    """Return the page of the feed before or after the cursor. Raise Rejected for a bad cursor."""
    after, before = request.GET.get("after", ""), request.GET.get("before", "")
    cursor = after or before
    rows = list_session_records(
        SessionFilter(workspaces=[workspace.pk], archived=False),
        mark=parse_list_cursor(cursor) if cursor else None,
        is_back=bool(after),
        limit=PAGE_SESSIONS + 1,
    )
    records = rows[:PAGE_SESSIONS]
    has_more = len(rows) > PAGE_SESSIONS
    if after:
        records.reverse()
        has_newer, has_older = has_more, True
    else:
        has_newer, has_older = bool(before), has_more
    address = request.build_absolute_uri(request.path)
    pages = {"first": _address_of(request, address)}
    if records and has_newer:
        pages["previous"] = _address_of(request, address, after=str(records[0].cursor))
    if records and has_older:
        pages["next"] = _address_of(request, address, before=str(records[-1].cursor))
    times = [record.last_active_at for record in records]
    feed = PagedFeed(
        title=xml_safe(gettext("Sessions of %(name)s") % {"name": workspace.name}),
        link=request.build_absolute_uri(reverse("workspace", args=[workspace.slug])),
        description=None,
        feed_guid=address,
        feed_url=request.build_absolute_uri(),
        updated=max(times, default=workspace.created_at),
        pages=pages,
    )
    for record in records:
        # The generator writes the summary as HTML.
        summary = escape(xml_safe(record.preview or "")) if with_previews else ""
        feed.add_item(
            title=xml_safe(record.title or gettext("Untitled session")),
            link=request.build_absolute_uri(reverse("session", args=[record.uuid])),
            description=summary or None,  # type: ignore[arg-type]  # None: no summary
            author_name=xml_safe(record.owner),
            pubdate=record.created_at,
            updateddate=record.last_active_at,
            unique_id=record.uuid.urn,
            categories=() if record.state == IDLE else (record.state,),
        )
    return feed


def _address_of(request: HttpRequest, address: str, **cursor: str) -> str:
    # The links of a feed that was requested with a token in the URL contain the token, too.
    token = request.GET.get(IN_ADDRESS)
    query = urlencode(({IN_ADDRESS: token} if token else {}) | cursor)
    return f"{address}?{query}" if query else address
