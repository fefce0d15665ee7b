"""A person's sessions in all their workspaces, the last used first: to go to one."""

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from conversations.models import Session

from .rights import Person
from .roles import workspaces_of
from .sessions import filter_by_words, parse_list_cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentSession:
    uuid: UUID
    title: str
    preview: str
    workspace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentPage:
    """``next_cursor`` is empty on the last page."""

    items: list[RecentSession]
    next_cursor: str


def list_recent_sessions(
    person: Person, *, query: str = "", before: str = "", limit: int
) -> RecentPage:
    """Sessions of the workspaces that the person belongs to, archived ones left out;
    what somebody may read as staff is not listed. ``query`` filters as in the session
    list, and by the workspace's name. Paged by the cursor of the last one."""
    sessions = Session.objects.filter(workspace__in=workspaces_of(person.pk), archived_at=None)
    sessions = filter_by_words(sessions, query, "title", "preview", "workspace__name")
    if before:
        moment, pk = parse_list_cursor(before)
        sessions = sessions.filter(
            Q(last_active_at__lt=moment) | Q(last_active_at=moment, pk__lt=pk)
        )
    columns = ("uuid", "title", "preview", "workspace__name", "last_active_at", "pk")
    rows = list(sessions.order_by("-last_active_at", "-pk").values_list(*columns)[: limit + 1])
    last = rows[limit - 1] if len(rows) > limit else None
    return RecentPage(
        items=[
            RecentSession(uuid=uuid, title=title, preview=preview, workspace=workspace)
            for uuid, title, preview, workspace, *_ in rows[:limit]
        ],
        next_cursor=f"{last[4].isoformat()}~{last[5]}" if last else "",
    )
