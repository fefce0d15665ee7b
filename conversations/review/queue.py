"""The sessions of everybody, for reviewers: the last used first, by keyset.

Nothing is left out unless it is asked for: archived, expired and imported sessions, and those of
closed accounts, are in the lists. No list shows words of a transcript but the title.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from conversations.domain.keyset import SessionListCursor, parse_list_cursor
from conversations.models import (
    BROKEN,
    UNREVIEWED,
    ReviewFlag,
    ReviewMark,
    Run,
    Session,
    ToolCall,
    Turn,
    involving,
)

QUEUES = ("unreviewed", "flagged", "all")

# Of a session: it has a flag that nobody has resolved.
FLAGGED = Exists(ReviewFlag.objects.filter(session=OuterRef("pk"), resolved_at=None))

# Of a session: a run of it failed or was cut off, or a call of a tool failed.
HAS_ERRORS = Exists(Run.objects.filter(BROKEN, session=OuterRef("pk"))) | Exists(
    ToolCall.objects.filter(session=OuterRef("pk"), ok=False)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFilters:
    """Which sessions are wanted. ``queue`` is one of QUEUES; a session is in the time from
    ``since`` until (without) ``until`` if it existed then and was used since. ``person``
    is the key of an account."""

    queue: str = "unreviewed"
    person: int | None = None
    workspace: str = ""
    channel: str = ""
    since: datetime | None = None
    until: datetime | None = None
    has_errors: bool = False

    @property
    def sessions(self) -> QuerySet[Session]:
        found = Session.objects.all()
        if self.queue == "unreviewed":
            found = found.filter(UNREVIEWED)
        if self.queue == "flagged":
            # Few: from the flags to their sessions.
            flags = ReviewFlag.objects.filter(resolved_at=None).order_by()
            found = found.filter(pk__in=flags.values("session"))
        if self.person is not None:
            found = found.filter(involving(self.person))
        if self.workspace:
            found = found.filter(workspace__slug=self.workspace)
        if self.channel:
            found = found.filter(channel=self.channel)
        if self.since is not None:
            found = found.filter(last_active_at__gte=self.since)
        if self.until is not None:
            found = found.filter(created_at__lt=self.until)
        return found.filter(HAS_ERRORS) if self.has_errors else found


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A session as reviewers see it in a list. ``reviewed_by`` is who said last how far
    it is reviewed; empty: nobody ever did."""

    uuid: UUID
    title: str
    owner: str
    workspace: str
    channel: str
    created_at: datetime
    last_active_at: datetime
    turn_count: int
    reviewed_turn: int
    reviewed_by: str
    reviewed_at: datetime | None
    flags: int
    notes: int
    is_archived: bool
    is_expired: bool
    has_rewinds: bool

    @property
    def new_turns(self) -> int:
        return self.turn_count - self.reviewed_turn

    @property
    def is_reviewed(self) -> bool:
        return self.turn_count > 0 and self.new_turns == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """``next_cursor`` is empty on the last page."""

    items: list[QueueItem]
    next_cursor: str = ""


def read_queue(filters: QueueFilters, *, before: str = "", limit: int) -> QueuePage:
    """A page of the list, paged by the cursor of its last session. Raises Rejected for a
    cursor that is none."""
    found = filters.sessions
    if before:
        found = _after(found, parse_list_cursor(before))
    places = list(_in_order(found).values_list("pk", "last_active_at")[: limit + 1])
    pks = [pk for pk, _ in places[:limit]]
    cursor = ""
    if len(places) > limit:
        pk, moment = places[limit - 1]
        cursor = str(SessionListCursor(moment, pk))
    return QueuePage(items=read_items(pks), next_cursor=cursor)


def read_items(pks: list[int]) -> list[QueueItem]:
    """What a list shows of these sessions, in this order."""
    now = timezone.now()
    rows = {row["pk"]: row for row in _listed(Session.objects.filter(pk__in=pks))}
    return [_item(rows[pk], now) for pk in pks if pk in rows]


def next_unreviewed(filters: QueueFilters, *, after: Session | None = None) -> Session | None:
    """The session that follows in the queue of what is not reviewed; at the end of the
    list its first one, unless that is where one comes from."""
    found = replace(filters, queue="unreviewed").sessions.select_related("workspace")
    if after is None:
        return _in_order(found).first()
    following = _in_order(_after(found, SessionListCursor(after.last_active_at, after.pk))).first()
    return following or _in_order(found.exclude(pk=after.pk)).first()


def _in_order(sessions: QuerySet[Session]) -> QuerySet[Session]:
    return sessions.order_by("-last_active_at", "-pk")


def _after(sessions: QuerySet[Session], mark: SessionListCursor) -> QuerySet[Session]:
    """What follows a place of the list. The second condition alone is a range of the index."""
    is_later = Q(last_active_at__lt=mark.moment) | Q(pk__lt=mark.pk)
    return sessions.filter(is_later, last_active_at__lte=mark.moment)


def _listed(sessions: QuerySet[Session]) -> QuerySet[Session, Any]:
    marks = ReviewMark.objects.filter(session=OuterRef("pk")).order_by("-id")
    return (
        sessions.order_by()
        .annotate(
            marked_by=Subquery(marks.values("author__username")[:1]),
            marked_at=Subquery(marks.values("created_at")[:1]),
            open_flags=_count("review_flags", resolved_at=None),
            open_notes=_count("review_notes", withdrawn_at=None),
        )
        .values(
            "pk",
            "uuid",
            "title",
            "owner__username",
            "workspace__name",
            "channel",
            "created_at",
            "last_active_at",
            "next_turn",
            "reviewed_turn",
            "marked_by",
            "marked_at",
            "open_flags",
            "open_notes",
            "archived_at",
            "expires_at",
            "rewind_count",
        )
    )


def _count(relation: str, **conditions: Any) -> Count:
    return Count(
        relation,
        filter=Q(**{f"{relation}__{name}": value for name, value in conditions.items()}),
        distinct=True,
    )


def _item(row: dict[str, Any], now: datetime) -> QueueItem:
    return QueueItem(
        uuid=row["uuid"],
        title=row["title"],
        owner=row["owner__username"],
        workspace=row["workspace__name"],
        channel=row["channel"],
        created_at=row["created_at"],
        last_active_at=row["last_active_at"],
        turn_count=row["next_turn"] - 1,
        reviewed_turn=row["reviewed_turn"],
        reviewed_by=row["marked_by"] or "",
        reviewed_at=row["marked_at"],
        flags=row["open_flags"],
        notes=row["open_notes"],
        is_archived=row["archived_at"] is not None,
        is_expired=row["expires_at"] is not None and row["expires_at"] <= now,
        has_rewinds=row["rewind_count"] > 0,
    )


# Random sessions for review, the same ones again for the same seed.


def draw_sample(filters: QueueFilters, *, seed: str, count: int) -> list[int]:
    """Keys of up to ``count`` sessions active from ``since`` until ``until`` of the filters.

    Each session has a place by lot of its own, made from the seed and its uuid: what is said later,
    and by whom, changes nothing about the sample of a time that is over.
    """
    since, until = filters.since, filters.until
    assert since is not None
    assert until is not None
    places = filters.sessions.order_by().values_list("pk", "uuid")
    drawn: list[int] = []
    for pk, _ in sorted(places, key=lambda place: sha256(f"{seed}:{place[1]}".encode()).digest()):
        if len(drawn) == count:
            break
        if _has_turn(pk, since, until):
            drawn.append(pk)
    return drawn


def _has_turn(session_pk: int, since: datetime, until: datetime) -> bool:
    """The newest first: what is looked at is mostly said of late."""
    said = Turn.objects.filter(session=session_pk, created_at__gte=since, created_at__lt=until)
    return bool(said.order_by("-number").values_list("pk")[:1])
