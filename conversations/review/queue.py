"""Lists and samples of everybody's sessions for reviewers, with keyset pagination.

Lists begin with the session that was used last. Only filters leave sessions out: archived, expired
and imported sessions and sessions of closed accounts are included. A list shows the title and no
other text of a transcript.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from itertools import batched
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
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
from conversations.search.matching import sessions_with_errors

# Condition on a session: a run failed or was interrupted, or a tool call failed. Imported sessions
# have no runs and tool calls. Their errors are found in the search index, which also counts
# answers that people stopped.
HAS_ERRORS = Exists(Run.objects.filter(BROKEN, session=OuterRef("pk"))) | Exists(
    ToolCall.objects.filter(session=OuterRef("pk"), ok=False)
)

SAMPLE_BATCH_SESSIONS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFilters:
    """Criteria for sessions.

    ``queue`` is ``unreviewed``, ``flagged`` or ``all``. A session matches the period if it was
    created before ``until`` and used at or after ``since``. ``person`` is the key of an account.
    """

    queue: str = "unreviewed"
    person: int | None = None
    workspace: str = ""
    channel: str = ""
    since: datetime | None = None
    until: datetime | None = None
    with_errors: bool = False

    @property
    def sessions(self) -> QuerySet[Session]:
        sessions = Session.objects.all()
        if self.queue == "unreviewed":
            sessions = sessions.filter(UNREVIEWED)
        if self.queue == "flagged":
            # Open flags are few, so the query goes from the flags to their sessions.
            flags = ReviewFlag.objects.filter(resolved_at=None).order_by()
            sessions = sessions.filter(pk__in=flags.values("session"))
        if self.person is not None:
            sessions = sessions.filter(involving(self.person))
        if self.workspace:
            sessions = sessions.filter(workspace__slug=self.workspace)
        if self.channel:
            sessions = sessions.filter(channel=self.channel)
        if self.since is not None:
            sessions = sessions.filter(last_active_at__gte=self.since)
        if self.until is not None:
            sessions = sessions.filter(created_at__lt=self.until)
        if self.with_errors:
            is_imported = ~Exists(Run.objects.filter(session=OuterRef("pk")))
            sessions = sessions.filter(HAS_ERRORS | Q(is_imported, pk__in=sessions_with_errors()))
        return sessions


def read_queue(filters: QueueFilters, *, before: str = "", limit: int) -> tuple[list[Any], str]:
    """Return a page of the list and the cursor of its last session, where the next page begins.

    The cursor is empty on the last page. Raise Rejected if ``before`` is not a valid cursor.
    """
    sessions = filters.sessions
    if before:
        sessions = _after(sessions, parse_list_cursor(before))
    places = list(_in_order(sessions).values_list("pk", "last_active_at")[: limit + 1])
    cursor = ""
    if len(places) > limit:
        pk, moment = places[limit - 1]
        cursor = str(SessionListCursor(moment, pk))
    return read_items([pk for pk, _ in places[:limit]]), cursor


def read_items(pks: list[int]) -> list[Any]:
    """Return the sessions in the order of ``pks``, with the values that a list shows.

    ``reviewed_by`` and ``reviewed_at`` belong to the newest mark (``reviewed_by`` is empty if
    there is none), ``new_turns`` counts the turns since then, and ``flags`` and ``notes`` count
    the open ones.
    """
    marks = ReviewMark.objects.filter(session=OuterRef("pk")).order_by("-id")
    sessions = Session.objects.filter(pk__in=pks).select_related("owner", "workspace")
    columns = ("uuid", "title", "channel", "created_at", "last_active_at", "next_turn")
    annotated = sessions.only(
        *columns, "reviewed_turn", "owner__username", "workspace__name"
    ).annotate(
        reviewed_by=Coalesce(Subquery(marks.values("author__username")[:1]), Value("")),
        reviewed_at=Subquery(marks.values("created_at")[:1]),
        new_turns=F("next_turn") - 1 - F("reviewed_turn"),
        flags=_count("review_flags", resolved_at=None),
        notes=_count("review_notes", withdrawn_at=None),
        is_archived=Q(archived_at__isnull=False),
        is_expired=Q(expires_at__isnull=False, expires_at__lte=timezone.now()),
        has_rewinds=Q(rewind_count__gt=0),
    )
    items = annotated.order_by().in_bulk(pks)
    return [items[pk] for pk in pks if pk in items]


def _count(relation: str, **conditions: None) -> Count:
    condition = Q(**{f"{relation}__{name}": value for name, value in conditions.items()})
    return Count(relation, filter=condition, distinct=True)


def next_unreviewed(filters: QueueFilters, *, after: Session | None = None) -> Session | None:
    """Return the unreviewed session that follows ``after`` in the list, or else the first one.

    Return None if no other session is unreviewed.
    """
    sessions = filters.sessions.filter(UNREVIEWED)
    if after is None:
        return _in_order(sessions).first()
    following = _in_order(
        _after(sessions, SessionListCursor(after.last_active_at, after.pk))
    ).first()
    return following or _in_order(sessions.exclude(pk=after.pk)).first()


def _in_order(sessions: QuerySet[Session]) -> QuerySet[Session]:
    return sessions.order_by("-last_active_at", "-pk")


def _after(sessions: QuerySet[Session], mark: SessionListCursor) -> QuerySet[Session]:
    """Return the sessions after a place in the list. Only the second condition uses the index."""
    is_later = Q(last_active_at__lt=mark.moment) | Q(pk__lt=mark.pk)
    return sessions.filter(is_later, last_active_at__lte=mark.moment)


def draw_sample(filters: QueueFilters, *, seed: str, count: int) -> list[int]:
    """Return the keys of up to ``count`` random sessions, the same ones for the same seed.

    The sessions have turns between ``since`` and ``until`` of the filters.
    """
    since, until = filters.since, filters.until
    assert since is not None
    assert until is not None
    candidates = replace(filters, person=None).sessions
    if filters.person is not None:
        candidates = candidates.filter(involving(filters.person, before=until))
    places = candidates.order_by().values_list("pk", "uuid")
    turns_in_period = Turn.objects.filter(
        session=OuterRef("pk"), created_at__gte=since, created_at__lt=until
    )
    # Turns are searched from the newest, because samples are mostly of recent days.
    newest_turn = Subquery(turns_in_period.order_by("-number").values("pk")[:1])
    sessions = Session.objects.alias(turn_in_period=newest_turn)
    with_turns = sessions.filter(turn_in_period__isnull=False).order_by()
    with_turns_pks = with_turns.values_list("pk", flat=True)
    drawn: list[int] = []
    # The place of a session in the random order depends only on the seed and its uuid. Later turns
    # and other sessions therefore do not change the sample of a past period.
    shuffled = sorted(places, key=lambda place: sha256(f"{seed}:{place[1]}".encode()).digest())
    for batch in batched((pk for pk, _ in shuffled), SAMPLE_BATCH_SESSIONS, strict=False):
        matching = set(with_turns_pks.filter(pk__in=batch))
        drawn += [pk for pk in batch if pk in matching]
        if len(drawn) >= count:
            break
    return drawn[:count]
