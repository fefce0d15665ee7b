"""Sessions as programs list and read them: every column, a page at a time.

Ordered by last activity, the latest first. Each workspace is read by its own index and
no further than a page, so that neither other people's sessions nor their number cost
anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations.domain.errors import NotFound
from conversations.domain.jsontext import load_json
from conversations.models import Session

from .expiry import is_current, is_over
from .sessions import filter_by_words, has_expired, list_state, with_run_states

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
