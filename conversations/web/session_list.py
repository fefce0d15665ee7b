"""The session list as a page shows it: pinned, then by date."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from urllib.parse import urlencode

from django.conf import settings
from django.utils import timezone

from conversations.archive.session_records import SessionRecord, list_sessions
from conversations.models import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGroup:
    label: str
    items: list[SessionRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionList:
    """``next_cursor`` is empty on the last page."""

    groups: list[SessionGroup]
    next_cursor: str
    query: str
    archived: bool

    @property
    def next_query(self) -> str:
        """The query string of the next page."""
        values = {"before": self.next_cursor, "q": self.query, "archived": self.archived and 1}
        return urlencode({name: value for name, value in values.items() if value})


def read_session_list(
    workspace: Workspace,
    *,
    query: str = "",
    archived: bool = False,
    before: str = "",
    is_member: bool = True,
) -> SessionList:
    """The sessions as a member of the workspace sees them, or somebody who is none."""
    page = list_sessions(
        workspace,
        query=query,
        archived=archived,
        before=before,
        limit=settings.LOOM.session_list_size,
        with_previews=is_member,
    )
    return SessionList(
        groups=_grouped(page.items),
        next_cursor=page.next_cursor,
        query=query,
        archived=archived,
    )


def _grouped(items: Iterable[SessionRecord]) -> list[SessionGroup]:
    today = timezone.localdate()
    return [
        SessionGroup(label=label, items=list(group))
        for label, group in groupby(items, key=lambda item: _label(item, today))
    ]


def _label(item: SessionRecord, today: date) -> str:
    if item.pinned_at:
        return "Pinned"
    day = timezone.localtime(item.last_active_at).date()
    if day >= today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    if day > today - timedelta(days=7):
        return "Previous 7 days"
    if day > today - timedelta(days=30):
        return "Previous 30 days"
    return f"{day:%B %Y}"
