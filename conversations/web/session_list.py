"""The session list of the pages: pinned sessions first, then by date.

An item looks the same to all people who may see it, so its HTML is cached until its data change.
The database is asked for each page which items a person may see.
"""

import hashlib
import secrets
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, QueryDict
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext, gettext_lazy, override

from conversations.access import Access, person
from conversations.accounts.languages import preferences_of, zone_of_browser
from conversations.archive.session_records import (
    CREATED,
    HAS_FAILED,
    IS_RUNNING,
    IS_UNREAD,
    IS_WAITING,
    LATEST,
    NO_FILTERS,
    TITLE,
    ListedSession,
    SessionListFilters,
    list_sessions,
)
from conversations.domain.text import storable
from conversations.feature import Link, links_at
from conversations.models import Session, Workspace
from conversations.runtime.current import has_open

from .addresses import query_of

_ANY_SESSION = UUID(int=0)  # Placeholder in the URL of a link that is the same for each session.

ORDERS = {
    LATEST: gettext_lazy("Last active"),
    CREATED: gettext_lazy("Newest"),
    TITLE: gettext_lazy("By title"),
}
STATES = {
    "": gettext_lazy("Any state"),
    IS_RUNNING: gettext_lazy("Running"),
    IS_WAITING: gettext_lazy("Waiting for approval"),
    HAS_FAILED: gettext_lazy("Failed or interrupted"),
    IS_UNREAD: gettext_lazy("Unread"),
}


def read_filters(query: QueryDict, *, max_chars: int) -> SessionListFilters:
    """Return the filters in a URL. Unknown states and orders are ignored."""

    def text(name: str) -> str:
        return storable(query.get(name, "")).strip()[:max_chars]

    state, order = text("state"), text("order")
    return SessionListFilters(
        query=text("q"),
        archived=query.get("archived") == "1",
        state=state if state in STATES else "",
        model=text("model"),
        person=text("person"),
        channel=text("channel"),
        order=order if order in ORDERS else LATEST,
    )


MAX_ITEMS_RENDERED = 2000  # of 1 to 3 kB each

# Placeholder in an item for the CSRF token of the person. It cannot be guessed, so no text that a
# person wrote is mistaken for it.
_TOKEN_MARK = f"@token-{secrets.token_hex(8)}@"


def read_session_list(
    request: HttpRequest,
    workspace: Workspace,
    *,
    access: Access,
    current: Session | None,
    filters: SessionListFilters = NO_FILTERS,
    before: str = "",
    focuses_first: bool = False,
) -> dict[str, Any]:
    """Return the template data of the session list.

    Non-members get no previews. Menus and boxes are for people with ``access`` to write. The
    ``current`` session is included whatever its age, and marked. With ``focuses_first``, the first
    item gets the focus. ``next_query`` is the query string of the next page, or empty on the last
    page. Two lists with the same ``version`` look the same. The version is empty if the request
    does not send one.
    """
    user_pk = person(request).pk
    current_pk = current.pk if current else None
    page = list_sessions(
        workspace,
        filters=filters,
        before=before,
        limit=settings.LOOM.session_list_size,
        with_previews=access.role is not None,
        reader_pk=user_pk,
        current_pk=current_pk,
    )
    items = [
        replace(item, unread=False)
        if item.unread and (item.pk == current_pk or has_open(item.pk, user_pk=user_pk))
        else item
        for item in page.items
    ]
    query = {"q": filters.query, "archived": filters.archived and 1}
    query |= {name: getattr(filters, name) for name in ("state", "model", "person", "channel")}
    query["order"] = "" if filters.order == LATEST else filters.order
    following = {"before": page.next_cursor} | query
    zone, language = zone_of_browser(request), get_language() or ""
    dates = preferences_of(request).language or language
    has_actions = access.can_write
    links = _row_links(request, workspace, access) if has_actions else {}

    def label(item: ListedSession) -> str:
        if page.has_current_first and item.pk == current_pk:
            return gettext("This session")
        if filters.order != LATEST:
            return str(ORDERS[filters.order])
        return label_of(item, zone, dates)

    groups = []
    for name, group in groupby(items, key=label):
        html = "".join(
            render_item(
                item,
                is_current=item.pk == current_pk,
                has_actions=has_actions,
                is_focused=focuses_first and item is items[0],
                language=language,
                links=links.get(item.owner_id == user_pk, ()),
            )
            for item in group
        )
        if has_actions:
            html = html.replace(_TOKEN_MARK, get_token(request))
        groups.append({"label": name, "items": mark_safe(html)})
    version = ""
    if "If-None-Match" in request.headers:  # not for pages that only have the list in the sidebar
        # Not computed from the HTML, which has another token each time.
        labels = [group["label"] for group in groups]
        version_parts = [labels, items, page.next_cursor, current_pk, has_actions, language, links]
        version = hashlib.sha256(repr(version_parts).encode()).hexdigest()[:32]
    return {
        "version": version,
        "groups": groups,
        "query": filters.query,
        "archived": filters.archived,
        "is_narrowed": any(query[name] for name in query if name != "archived"),
        "next_query": query_of(following) if page.next_cursor else "",
    }


def _row_links(
    request: HttpRequest, workspace: Workspace, access: Access
) -> dict[bool, tuple[Link, ...]]:
    """Return the features' links in the menus of the person's own sessions and of others'."""
    return {
        is_own: tuple(
            links_at(
                "session.row",
                request,
                uuid=_ANY_SESSION,
                workspace=workspace,
                access=access,
                is_own=is_own,
            )
        )
        for is_own in (True, False)
    }


def label_of(item: ListedSession, zone: ZoneInfo, dates: str) -> str:
    """Return the group of an item. Days are in ``zone``, months in the language ``dates``."""
    if item.pinned:
        return gettext("Pinned")
    today = timezone.localdate(timezone=zone)
    day = timezone.localdate(item.last_active_at, zone)
    if day >= today:
        return gettext("Today")
    if day == today - timedelta(days=1):
        return gettext("Yesterday")
    if day > today - timedelta(days=7):
        return gettext("Previous 7 days")
    if day > today - timedelta(days=30):
        return gettext("Previous 30 days")
    with override(dates):
        return date_format(day, "YEAR_MONTH_FORMAT")


@lru_cache(maxsize=MAX_ITEMS_RENDERED)
def render_item(
    item: ListedSession,
    *,
    is_current: bool,
    has_actions: bool,
    is_focused: bool,
    language: str,
    links: tuple[Link, ...],
) -> SafeString:
    """Render an item. Its template shows only the arguments, in the active ``language``."""
    any_session, uuid = str(_ANY_SESSION), str(item.uuid)
    context = {
        "item": item,
        "is_current": is_current,
        "has_actions": has_actions,
        "is_focused": is_focused,
        "links": [replace(link, url=link.url.replace(any_session, uuid)) for link in links],
        "csrf_token": _TOKEN_MARK,
    }
    return render_to_string("workspace.html#session_item", context)
