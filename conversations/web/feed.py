"""The sessions of a workspace as a feed, for readers that cannot fill in a form.

They sign in by a personal token: as the password of HTTP Basic, as a Bearer, or in the
address. An address is easily passed on, so only a token that is for feeds and nothing
else may stand there. A browser that is signed in reads it as well.
"""

import hashlib
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlencode
from xml.etree import ElementTree

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.http import http_date
from django.views.decorators.http import require_safe

from conversations.access import AccessContext, get_workspace_for
from conversations.accounts.tokens import FEED, READ, find_caller
from conversations.archive.session_records import (
    SessionFilter,
    SessionListCursor,
    SessionRecord,
    list_session_records,
)
from conversations.archive.sessions import parse_list_cursor
from conversations.domain.errors import NotPermitted
from conversations.domain.runs import IDLE
from conversations.models import Workspace

from .addresses import client_address

# Atom feeds (RFC 4287), in pages (RFC 5005).


NAMESPACE = "http://www.w3.org/2005/Atom"

MEDIA_TYPE = "application/atom+xml; charset=utf-8"

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot say, not even escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """``summary`` is plain text; ``states`` become categories."""

    id: str
    title: str
    link: str
    author: str
    published: datetime
    updated: datetime
    summary: str = ""
    states: Iterable[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A page of a feed. All pages have the same ``id``; ``links`` are relation → address."""

    id: str
    title: str
    updated: datetime
    links: Mapping[str, str]
    entries: list[FeedEntry] = field(default_factory=list)


def render_feed(feed: Feed) -> bytes:
    root = ElementTree.Element("feed", xmlns=NAMESPACE)
    _add(root, "id", feed.id)
    _add(root, "title", feed.title)
    _add(root, "updated", feed.updated.isoformat())
    _add(root, "generator", "Loom Web")
    for relation, address in feed.links.items():
        kind = "text/html" if relation == "alternate" else "application/atom+xml"
        _add(root, "link", rel=relation, href=address, type=kind)
    for entry in feed.entries:
        _add_entry(root, entry)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _add_entry(root: ElementTree.Element, entry: FeedEntry) -> None:
    element = _add(root, "entry")
    _add(element, "id", entry.id)
    _add(element, "title", entry.title)
    _add(element, "link", rel="alternate", href=entry.link, type="text/html")
    _add(_add(element, "author"), "name", entry.author)
    _add(element, "published", entry.published.isoformat())
    _add(element, "updated", entry.updated.isoformat())
    for state in entry.states:
        _add(element, "category", term=state)
    if entry.summary:
        _add(element, "summary", entry.summary)


def _add(
    parent: ElementTree.Element, name: str, text: str = "", **attributes: str
) -> ElementTree.Element:
    said = {key: _sayable(value) for key, value in attributes.items()}
    element = ElementTree.SubElement(parent, name, said)
    element.text = _sayable(text) or None
    return element


def _sayable(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


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
    return _answer(request, render_feed(feed), feed.updated)


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
        mark=SessionListCursor(*parse_list_cursor(cursor)) if cursor else None,
        is_back=bool(after),
        limit=PAGE + 1,
    )
    shown, goes_on = found[:PAGE], len(found) > PAGE
    if after:
        shown.reverse()
    has_newer, has_older = (goes_on, True) if after else (bool(before), goes_on)
    return _Page(
        records=[record for _, record in shown],
        newer=_cursor(shown[0][0]) if shown and has_newer else "",
        older=_cursor(shown[-1][0]) if shown and has_older else "",
    )


def _cursor(mark: SessionListCursor) -> str:
    return f"{mark.moment.isoformat()}~{mark.pk}"


def _make_feed(
    request: HttpRequest, workspace: Workspace, page: _Page, *, with_previews: bool
) -> Feed:
    home = request.build_absolute_uri(reverse("workspace", args=[workspace.slug]))
    address = request.build_absolute_uri(request.path)
    links = {"alternate": home, "self": request.build_absolute_uri()}
    links["first"] = _address_of(request, address)
    if page.newer:
        links["previous"] = _address_of(request, address, after=page.newer)
    if page.older:
        links["next"] = _address_of(request, address, before=page.older)
    moments = [record.last_active_at for record in page.records]
    return Feed(
        id=address,
        title=f"Sessions of {workspace.name}",
        updated=max(moments, default=workspace.created_at),
        links=links,
        entries=[_entry(request, record, with_previews) for record in page.records],
    )


def _address_of(request: HttpRequest, address: str, **cursor: str) -> str:
    """A page of the feed. Who came by an address with a token goes on by one."""
    token = request.GET.get(IN_ADDRESS)
    query = urlencode(({IN_ADDRESS: token} if token else {}) | cursor)
    return f"{address}?{query}" if query else address


def _entry(request: HttpRequest, record: SessionRecord, with_preview: bool) -> FeedEntry:
    return FeedEntry(
        id=record.uuid.urn,
        title=record.title or "Untitled session",
        link=request.build_absolute_uri(reverse("session", args=[record.uuid])),
        author=record.owner,
        published=record.created_at,
        updated=record.last_active_at,
        summary=record.preview or "" if with_preview else "",
        states=() if record.state == IDLE else (record.state,),
    )


def _answer(request: HttpRequest, body: bytes, updated: datetime) -> HttpResponse:
    """The feed, or 304 for who has it already."""
    response: HttpResponse = HttpResponse(body, content_type=MEDIA_TYPE)
    response["Cache-Control"] = "private, no-cache"
    response["Referrer-Policy"] = "no-referrer"
    response["ETag"] = etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    response["Last-Modified"] = http_date(updated.timestamp())
    patch_vary_headers(response, ("Authorization", "Cookie"))
    answered = get_conditional_response(
        request, etag=etag, last_modified=int(updated.timestamp()), response=response
    )
    return answered if isinstance(answered, HttpResponse) else response
