"""Sessions as programs list and read them: every column, a page at a time.

Ordered by last activity, the latest first. Each workspace is read by its own index and
no further than a page, so that neither other people's sessions nor their number cost
anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations.domain.errors import Conflict, NotFound, Rejected, TooLarge
from conversations.domain.text import dump_json, load_json
from conversations.models import Session

from .expiry import is_current, is_over
from .rights import Person, workspaces_of
from .sessions import (
    EXPIRED,
    archive_session,
    choose_model,
    filter_by_words,
    has_expired,
    list_state,
    lock_session,
    parse_list_cursor,
    pin_session,
    rename_session,
    with_run_states,
)

MAX_WORKSPACES_MERGED = 100
"""Workspaces that are read one by one."""

_COLUMNS = (
    *("uuid", "workspace__slug", "owner__username", "key", "former_key", "channel", "title"),
    *("preview", "instructions", "model", "next_turn", "next_seq", "input_tokens", "output_tokens"),
    *("cached_tokens", "cost_microusd", "context_tokens", "context_limit", "rewind_count"),
    *("parent__uuid", "fork_turn", "created_at", "last_active_at", "expires_at"),
    *("archived_at", "pinned_at", "metadata"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session in full. ``state`` is a run state or ``idle``; ``key`` the one that it
    has, or had until it expired; ``metadata`` empty where it cannot be read; ``preview`` None where
    it is not shown."""

    uuid: UUID
    workspace: str
    owner: str
    key: str
    channel: str
    title: str
    preview: str | None
    instructions: str
    model: str
    state: str
    turns: int
    events: int
    rewinds: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    context_tokens: int
    context_limit: int
    cost_microusd: int
    parent: UUID | None
    fork_turn: int | None
    created_at: datetime
    last_active_at: datetime
    expires_at: datetime | None
    expired: bool
    archived_at: datetime | None
    pinned_at: datetime | None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """``workspaces`` are keys. None: whatever it is. ``key`` finds those too that had it
    until they expired; ``query`` those that have each of its words in the title; ``parent``
    those that came from this session."""

    workspaces: Sequence[int]
    key: str | None = None
    channel: str | None = None
    archived: bool | None = None
    expired: bool | None = None
    query: str = ""
    parent: UUID | None = None

    def choose(self) -> QuerySet[Session]:
        """Those of all workspaces."""
        sessions, now = Session.objects.all(), timezone.now()
        if self.key is not None:
            sessions = sessions.filter(Q(key=self.key) | Q(former_key=self.key))
        if self.parent is not None:
            sessions = sessions.filter(parent__uuid=self.parent)
        if self.channel is not None:
            sessions = sessions.filter(channel=self.channel)
        if self.archived is not None:
            sessions = sessions.filter(archived_at__isnull=not self.archived)
        if self.expired is not None:
            sessions = sessions.filter(is_over(now) if self.expired else is_current(now))
        return filter_by_words(sessions, self.query, "title")


@dataclass(frozen=True, slots=True)
class SessionListCursor:
    """The place of a session in the list."""

    moment: datetime
    pk: int


def list_session_records(
    wanted: SessionFilter,
    *,
    mark: SessionListCursor | None = None,
    is_back: bool = False,
    limit: int,
) -> list[tuple[SessionListCursor, SessionRecord]]:
    """At most so many sessions after the mark, the latest active first; with ``is_back``
    those before it, the nearest first."""
    order = ("last_active_at", "pk") if is_back else ("-last_active_at", "-pk")
    sessions = wanted.choose()
    if mark is not None:
        to = "gt" if is_back else "lt"
        later = Q((f"last_active_at__{to}", mark.moment))
        same = Q(("last_active_at", mark.moment), (f"pk__{to}", mark.pk))
        sessions = sessions.filter(later | same)
    some = _in_workspaces(sessions, wanted.workspaces, order, limit)
    rows = with_run_states(some.order_by(*order), "pk", *_COLUMNS)[:limit]
    return [(SessionListCursor(row["last_active_at"], row["pk"]), _record(row)) for row in rows]


def read_session_record(session_pk: int) -> SessionRecord:
    """Raises NotFound."""
    rows = with_run_states(Session.objects.filter(pk=session_pk), *_COLUMNS)
    for row in rows:
        return _record(row)
    raise NotFound("There is no such session.")


def _in_workspaces(
    sessions: QuerySet[Session], workspaces: Sequence[int], order: Sequence[str], limit: int
) -> QuerySet[Session]:
    """Where there are several, the first of each: the page is among them."""
    if not 1 < len(workspaces) <= MAX_WORKSPACES_MERGED:
        return sessions.filter(workspace__in=workspaces)
    among = Q()
    for pk in workspaces:
        first = sessions.filter(workspace=pk).order_by(*order)
        among |= Q(pk__in=first.values("pk")[:limit])
    return Session.objects.filter(among)


def _record(row: dict[str, Any]) -> SessionRecord:
    return SessionRecord(
        uuid=row["uuid"],
        workspace=row["workspace__slug"],
        owner=row["owner__username"],
        key=row["key"] or row["former_key"] or "",
        channel=row["channel"],
        title=row["title"],
        preview=row["preview"],
        instructions=row["instructions"],
        model=row["model"],
        state=list_state(row),
        turns=row["next_turn"] - 1,
        events=row["next_seq"] - 1,
        rewinds=row["rewind_count"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cached_tokens=row["cached_tokens"],
        context_tokens=row["context_tokens"],
        context_limit=row["context_limit"],
        cost_microusd=row["cost_microusd"],
        parent=row["parent__uuid"],
        fork_turn=row["fork_turn"],
        created_at=row["created_at"],
        last_active_at=row["last_active_at"],
        expires_at=row["expires_at"],
        expired=has_expired(row["expires_at"]),
        archived_at=row["archived_at"],
        pinned_at=row["pinned_at"],
        metadata=read_metadata(row["metadata"]),
    )


def read_metadata(text: str) -> dict[str, Any]:
    """A session's metadata; empty where it cannot be read."""
    try:
        value = load_json(text, default={})
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Several columns of a session changed at once, or none of them.


MAX_METADATA_CHARS = 65_536
"""Characters of a session's metadata as JSON."""


class _Kept:
    """Stands for a value that stays what it is."""


KEPT: Final = _Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """None: that stays as it is. ``metadata`` is merged: its names are set, those with
    null are removed. ``expires_at`` None: never."""

    title: str | None = None
    model: str | None = None
    archived: bool | None = None
    pinned: bool | None = None
    metadata: dict[str, Any] | None = None
    expires_at: datetime | _Kept | None = KEPT


def change_session(session: Session, change: SessionChange) -> None:
    """Raises Rejected and Conflict as the functions do that change one thing, TooLarge for
    too much metadata; then nothing has changed."""
    with transaction.atomic():
        closed = lock_session(session.pk)
        if change.title is not None:
            rename_session(session, title=change.title)
        if change.model is not None:
            choose_model(session, model=change.model)
        if change.metadata is not None:
            _merge_metadata(session.pk, change.metadata)
        if not isinstance(change.expires_at, _Kept):
            _set_expiry(session.pk, change.expires_at, is_expired=closed == EXPIRED)
        if change.pinned is not None:
            pin_session(session, pinned=change.pinned)
        if change.archived is not None:
            archive_session(session, archived=change.archived)


def _merge_metadata(session_pk: int, changes: dict[str, Any]) -> None:
    text = Session.objects.values_list("metadata", flat=True).get(pk=session_pk)
    merged = read_metadata(text) | changes
    merged = {name: value for name, value in merged.items() if value is not None}
    Session.objects.filter(pk=session_pk).update(metadata=dump_metadata(merged))


def dump_metadata(metadata: dict[str, Any]) -> str:
    """As it is stored. Raises TooLarge."""
    text = dump_json(metadata)
    if len(text) > MAX_METADATA_CHARS:
        raise TooLarge(
            f"Metadata has at most {MAX_METADATA_CHARS:,} characters as JSON;"
            f" this has {len(text):,}.",
            code="metadata_too_large",
        )
    return text


def require_future(moment: datetime | None) -> None:
    """Raises Rejected for a moment at which a session cannot expire any more."""
    if moment is not None and moment <= timezone.now():
        raise Rejected("expires_at lies in the future, or is null.", code="bad_expiry")


def _set_expiry(session_pk: int, moment: datetime | None, *, is_expired: bool) -> None:
    """An expired session stays so: its key may be another's by now."""
    if is_expired:
        raise Conflict("This session has expired already.", code="session_expired")
    require_future(moment)
    Session.objects.filter(pk=session_pk).update(expires_at=moment)


# A person's sessions in all their workspaces, the last used first: to go to one.


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


# The sessions that came from another: branches of it, and those that go on in its place.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """``fork_turn`` is the last turn that both share; None: it goes on in the other's
    place."""

    uuid: UUID
    title: str
    fork_turn: int | None
    turn_count: int
    is_archived: bool
    last_active_at: datetime


def list_forks(session: Session, *, limit: int) -> list[Fork]:
    """The first of them, as they were made. Only those of the same workspace, which
    whoever reads the session may read too."""
    forks = Session.objects.filter(parent=session.pk, workspace=session.workspace_id)
    columns = ("uuid", "title", "fork_turn", "next_turn", "archived_at", "last_active_at")
    return [
        Fork(
            uuid=uuid,
            title=title,
            fork_turn=fork_turn,
            turn_count=next_turn - 1,
            is_archived=archived_at is not None,
            last_active_at=last_active_at,
        )
        for uuid, title, fork_turn, next_turn, archived_at, last_active_at in forks.order_by(
            "pk"
        ).values_list(*columns)[:limit]
    ]
