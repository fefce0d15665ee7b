"""Session records: sessions as lists, programs and pages show them.

Lists are ordered by last activity, the latest first. A list over several workspaces reads at most
one page of each workspace through its own index, so the number of other people's sessions does not
slow it down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Lower
from django.utils import timezone

from conversations.domain.errors import Conflict, NotFound, Rejected, TooLarge
from conversations.domain.keyset import (
    SessionListCursor,
    parse_list_cursor,
    parse_number,
    parse_title_cursor,
)
from conversations.domain.runs import (
    ACTIVE_STATES,
    COMPACT,
    FAILED,
    IDLE,
    INTERRUPTED,
    QUEUED,
    WAITING_APPROVAL,
)
from conversations.domain.text import dump_json, load_object, number_text, storable
from conversations.models import ReadingPosition, Run, Session, Workspace

from .append import EXPIRED, lock_session, read_moment
from .rights import Person, workspaces_of
from .sessions import (
    archive_session,
    choose_model,
    has_expired,
    is_current,
    is_over,
    pin_session,
    rename_session,
)
from .turns import read_rewound_of

MAX_WORKSPACES_MERGED = 100  # Above this number, one query covers all workspaces
# Combinations of model, person and channel that are read for the choices of a list's filters.
MAX_CHOICES = 500
MAX_FILTER_WORDS = 8  # Further words of a query are ignored
MAX_METADATA_CHARS = 65_536  # Of a session's metadata as JSON


class _ListFields:
    """The fields and properties that all shapes of a listed session have."""

    __slots__ = ()

    pk: int
    uuid: UUID
    last_active_at: datetime

    @property
    def page(self) -> str:
        """Return the path of the session's page."""
        return f"/s/{self.uuid}/"

    @property
    def cursor(self) -> SessionListCursor:
        """Return the session's position in a list."""
        return SessionListCursor(self.last_active_at, self.pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord(_ListFields):
    """A session; all other shapes of a session are made from this.

    ``state`` is a run state or ``idle``. ``key`` is the session's key, or the key that it had until
    it expired. ``turns`` counts all turns, and ``active_turns`` counts those that were not rewound.
    ``fork_turn`` is the last turn that the session shares with its ``parent``; None means that it
    continues in the parent's place. ``metadata`` is empty if it cannot be read, and ``preview`` is
    None if it is not shown.
    """

    pk: int
    uuid: UUID
    workspace: str
    workspace_name: str
    owner: str
    key: str
    channel: str
    title: str
    preview: str | None
    instructions: str
    model: str
    state: str
    turns: int
    active_turns: int
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
    purge_due: datetime | None
    metadata: dict[str, Any]

    @property
    def archived(self) -> bool:
        return self.archived_at is not None

    @property
    def pinned(self) -> bool:
        return self.pinned_at is not None

    def without_words(self) -> "SessionRecord":
        """Return the record without texts that people and programs wrote into the session.

        These texts are only shown on request, because a request by a person who is not a member is
        entered in the audit log.
        """
        return replace(self, preview=None, instructions="", metadata={})


# The fields of the record whose columns have other names
_COLUMNS = {
    "workspace": "workspace__slug",
    "workspace_name": "workspace__name",
    "owner": "owner__username",
    "rewinds": "rewind_count",
    "parent": "parent__uuid",
    "purge_due": "purge_order__due_at",
}
# The fields that are computed from the sources below
_COMPUTED = {"state", "turns", "active_turns", "events", "expired"}
_SOURCES = ("former_key", "next_turn", "next_seq", "latest_state", "active_state", "is_queued")

# Columns of up to 100,000 characters, which lists on pages leave out
_LARGE = {"instructions": "", "metadata": "{}"}


def _read_records(sessions: QuerySet[Session], *, is_full: bool = True) -> list[SessionRecord]:
    """Return the records in the order of the query, with at most two queries."""
    answers = Run.objects.filter(session=OuterRef("pk")).exclude(kind=COMPACT)
    active = Run.objects.filter(session=OuterRef("pk"), state__in=ACTIVE_STATES)
    left_out = {} if is_full else _LARGE
    names = SessionRecord.__dataclass_fields__.keys() - _COMPUTED - left_out.keys()
    columns = {name: _COLUMNS.get(name, name) for name in names}
    rows = list(
        sessions.annotate(
            latest_state=Subquery(answers.order_by("-id").values("state")[:1]),
            active_state=Subquery(active.values("state")[:1]),
            is_queued=Exists(Run.objects.filter(session=OuterRef("pk"), state=QUEUED)),
        ).values(*columns.values(), *_SOURCES)
    )
    pks = [row["pk"] for row in rows if row["rewind_count"]]
    rewound = read_rewound_of(pks) if pks else {}
    return [
        _make_record(
            {name: row[column] for name, column in columns.items()} | left_out,
            row,
            rewound=rewound.get(row["pk"], []),
        )
        for row in rows
    ]


def _make_record(
    values: dict[str, Any], row: dict[str, Any], *, rewound: list[tuple[int, int]]
) -> SessionRecord:
    turns = row["next_turn"] - 1
    computed = {
        "key": row["key"] or row["former_key"] or "",
        "state": _state(row["active_state"], row["latest_state"], is_queued=row["is_queued"]),
        "turns": turns,
        "active_turns": turns - sum(last - first + 1 for first, last in rewound),
        "events": row["next_seq"] - 1,
        "expired": has_expired(row["expires_at"]),
        "metadata": load_object(values["metadata"]),
    }
    return SessionRecord(**values | computed)


def _state(active: str | None, latest: str | None, *, is_queued: bool) -> str:
    if active:
        return active
    # Show the end of the last answer only if it failed or was interrupted.
    ended = latest if latest in (INTERRUPTED, FAILED) else IDLE
    return QUEUED if is_queued else ended


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """The filters of a list of sessions; None means any value.

    ``workspaces`` are primary keys. ``key`` also finds sessions that had the key until they
    expired. ``query`` finds sessions whose title contains each of its words. ``parent`` finds the
    sessions that came from this session.
    """

    workspaces: Sequence[int]
    key: str | None = None
    channel: str | None = None
    archived: bool | None = None
    expired: bool | None = None
    query: str = ""
    parent: UUID | None = None

    def choose(self) -> QuerySet[Session]:
        """Return the matching sessions of all workspaces."""
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


def list_session_records(
    wanted: SessionFilter,
    *,
    mark: SessionListCursor | None = None,
    is_back: bool = False,
    limit: int,
) -> list[SessionRecord]:
    """Return at most ``limit`` sessions after the cursor, the latest active first.

    With ``is_back``, return the sessions before the cursor, the nearest first.
    """
    order = ("last_active_at", "pk") if is_back else ("-last_active_at", "-pk")
    sessions = wanted.choose()
    if mark is not None:
        sessions = sessions.filter(beyond(mark, is_back=is_back))
    if 1 < len(wanted.workspaces) <= MAX_WORKSPACES_MERGED:
        # The page can only contain the first sessions of each workspace.
        firsts = Q()
        for pk in wanted.workspaces:
            first = sessions.filter(workspace=pk).order_by(*order)
            firsts |= Q(pk__in=first.values("pk")[:limit])
        sessions = Session.objects.filter(firsts)
    else:
        sessions = sessions.filter(workspace__in=wanted.workspaces)
    return _read_records(sessions.order_by(*order)[:limit])


def beyond(mark: SessionListCursor, *, is_back: bool = False) -> Q:
    """Return a condition for sessions after the cursor, or before it with ``is_back``."""
    comparison = "gt" if is_back else "lt"
    same = Q(("last_active_at", mark.moment), (f"pk__{comparison}", mark.pk))
    return Q((f"last_active_at__{comparison}", mark.moment)) | same


def read_session_record(session_pk: int) -> SessionRecord:
    """Return the session's record. Raise NotFound if the session does not exist."""
    for record in _read_records(Session.objects.filter(pk=session_pk)):
        return record
    raise NotFound("This session does not exist.")


def change_session(session: Session, changes: Mapping[str, Any]) -> bool:
    """Change several columns, or none of them if one change fails.

    ``title``, ``model``, ``archived`` and ``pinned`` keep their value if they are None.
    ``metadata`` is merged into the stored metadata; names whose value is None are removed. If
    ``expires_at`` is None, the session never expires. Return True in the same cases as
    :func:`archive_session`. Raise the Rejected and Conflict errors of the functions for single
    changes, and TooLarge if there is too much metadata.
    """
    with transaction.atomic():
        closed = lock_session(session.pk)
        if changes.get("title") is not None:
            rename_session(session, title=changes["title"])
        if changes.get("model") is not None:
            choose_model(session, model=changes["model"])
        if changes.get("metadata") is not None:
            text = Session.objects.values_list("metadata", flat=True).get(pk=session.pk)
            merged = load_object(text) | changes["metadata"]
            merged = {name: value for name, value in merged.items() if value is not None}
            Session.objects.filter(pk=session.pk).update(metadata=dump_metadata(merged))
        if "expires_at" in changes:
            # An expired session stays expired, because another session may have its key by now.
            if EXPIRED in closed:
                raise Conflict("This session has already expired.", code="session_expired")
            require_future(changes["expires_at"])
            Session.objects.filter(pk=session.pk).update(expires_at=changes["expires_at"])
        if changes.get("pinned") is not None:
            pin_session(session, pinned=changes["pinned"])
        archived = changes.get("archived")
        return archived is not None and archive_session(session, archived=archived)


def dump_metadata(metadata: dict[str, Any]) -> str:
    """Return the metadata as stored. Raise TooLarge if there is too much."""
    text = dump_json(metadata)
    if len(text) > MAX_METADATA_CHARS:
        raise TooLarge(
            "Metadata can have at most %(limit)s characters as JSON; this has %(count)s.",
            limit=number_text(MAX_METADATA_CHARS),
            count=number_text(len(text)),
            code="metadata_too_large",
        )
    return text


def require_future(moment: datetime | None) -> None:
    """Raise Rejected if the moment is in the past, so that a session cannot expire then."""
    if moment is not None and moment <= timezone.now():
        raise Rejected("expires_at must be in the future, or null.", code="bad_expiry")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession(_ListFields):
    """A session as the lists on pages show it.

    The fields have the same meaning as in :class:`SessionRecord`. ``unread`` says that the person
    had the session open before and that it has turns since then. Equal instances look the same on a
    page.
    """

    pk: int
    uuid: UUID
    workspace_name: str
    owner_id: int
    title: str
    preview: str | None
    channel: str
    model: str
    state: str
    turns: int
    last_active_at: datetime
    expired: bool
    archived: bool
    pinned: bool
    purge_due: datetime | None
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A page of a session list.

    ``next_cursor`` is empty on the last page. ``has_current_first`` says that the first item is the
    current session, although its place is on a later page.
    """

    items: list[ListedSession]
    next_cursor: str
    has_current_first: bool = False


LATEST, CREATED, TITLE = "latest", "created", "title"
IS_RUNNING, IS_WAITING, HAS_FAILED, IS_UNREAD = "running", "waiting", "failed", "unread"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListFilters:
    """The filters of a session list and its order; an empty value means no filter.

    ``state`` is one of the constants above, ``model`` is the id of a model that was chosen for the
    session itself, and ``person`` is the owner's username.
    """

    query: str = ""
    archived: bool = False
    state: str = ""
    model: str = ""
    person: str = ""
    channel: str = ""
    order: str = LATEST


NO_FILTERS = SessionListFilters()

# An SQL statement that finds primary keys of sessions, and its parameters
type Statement = tuple[str, tuple[Any, ...]]


def list_sessions(
    workspace: Workspace,
    *,
    filters: SessionListFilters = NO_FILTERS,
    before: str = "",
    limit: int,
    with_previews: bool = True,
    reader_pk: int | None = None,
    current_pk: int | None = None,
) -> SessionPage:
    """Return a page of a workspace's sessions with one query.

    Pinned sessions come first, and the others are ordered by last activity, unless the filters
    choose another order. ``before`` is the cursor of the previous page. The query of the filters
    searches titles and previews. Without previews, no message text is shown, and the query does not
    search previews, so that their text cannot be guessed.

    Unread sessions are marked for ``reader_pk``. If nothing is filtered, the first page includes
    the session ``current_pk`` whatever its age, unless it is archived.
    """
    if filters == NO_FILTERS and not before:
        statements: list[Statement] = [(sql, (workspace.pk,)) for sql in _latest_sql(limit)]
        if current_pk is not None:
            statements.append((_CURRENT_SQL, (current_pk,)))
        page = _latest_page(statements, limit=limit, reader_pk=reader_pk, current_pk=current_pk)
    else:
        archived = filters.archived
        sessions = Session.objects.filter(workspace=workspace, archived_at__isnull=not archived)
        columns = ("title", "preview") if with_previews else ("title",)
        sessions = filter_by_words(sessions, filters.query, *columns)
        sessions = _apply_filters(sessions, filters, reader_pk=reader_pk)
        if filters.order == LATEST:
            statements = _latest_statements(sessions, before, limit=limit)
            page = _latest_page(statements, limit=limit, reader_pk=reader_pk)
        else:
            page = _ordered_page(
                sessions, filters.order, before=before, limit=limit, reader_pk=reader_pk
            )
    if with_previews:
        return page
    return replace(page, items=[replace(item, preview=None) for item in page.items])


def _apply_filters(
    sessions: QuerySet[Session], filters: SessionListFilters, *, reader_pk: int | None
) -> QuerySet[Session]:
    equal = {"model": filters.model, "owner__username": filters.person, "channel": filters.channel}
    sessions = sessions.filter(**{name: value for name, value in equal.items() if value})
    runs = Run.objects.filter(session=OuterRef("pk"))
    if filters.state == IS_RUNNING:
        return sessions.filter(Exists(runs.filter(state__in=(*ACTIVE_STATES, QUEUED))))
    if filters.state == IS_WAITING:
        return sessions.filter(Exists(runs.filter(state=WAITING_APPROVAL)))
    if filters.state == HAS_FAILED:
        latest = Subquery(runs.exclude(kind=COMPACT).order_by("-pk").values("state")[:1])
        return sessions.annotate(latest=latest).filter(latest__in=(FAILED, INTERRUPTED))
    if filters.state == IS_UNREAD:
        read = ReadingPosition.objects.filter(session=OuterRef("pk"), user=reader_pk)
        return sessions.filter(Exists(read.filter(turn__lt=OuterRef("next_turn") - 1)))
    return sessions


# The prefix of the cursor of a pinned session, if more pinned sessions follow.
_PINNED_PREFIX = "pinned~"


def _latest_statements(sessions: QuerySet[Session], before: str, *, limit: int) -> list[Statement]:
    others, pinned = sessions.filter(pinned_at=None), sessions.filter(pinned_at__isnull=False)
    if before and not before.startswith(_PINNED_PREFIX):
        queries = [_page_query(others, before, limit=limit)]
    else:
        cursor = before.removeprefix(_PINNED_PREFIX)
        queries = [_page_query(others, "", limit=limit), _page_query(pinned, cursor, limit=limit)]
    return [_select_pks(some) for some in queries]


_CURRENT_SQL = "SELECT id FROM conversations_session WHERE id = %s AND archived_at IS NULL"


@cache
def _latest_sql(limit: int) -> list[str]:
    """Return the SQL for the newest sessions, with the workspace as its only parameter.

    The result is cached because every chat page needs it.
    """
    sessions = Session.objects.filter(workspace=0, archived_at=None)
    return [sql for sql, _ in _latest_statements(sessions, "", limit=limit)]


def _latest_page(
    statements: Sequence[Statement],
    *,
    limit: int,
    reader_pk: int | None,
    current_pk: int | None = None,
) -> SessionPage:
    listed = _read_listed(statements, reader_pk=reader_pk)
    pinned = [item for item in listed if item.pinned]
    if len(pinned) > limit:  # the other sessions follow after the last pinned one
        page = _make_page(pinned, limit=limit)
        page = replace(page, next_cursor=_PINNED_PREFIX + page.next_cursor)
    else:
        page = _make_page([item for item in listed if not item.pinned], limit=limit)
        page.items[:0] = pinned
    current = [item for item in listed if item.pk == current_pk and item not in page.items]
    return replace(page, items=current + page.items, has_current_first=bool(current))


class _TitleSortKey(Lower):
    """The sort key of titles. PostgreSQL uses its own collation."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="LOOM_SORT_KEY", **context)


def _ordered_page(
    sessions: QuerySet[Session], order: str, *, before: str, limit: int, reader_pk: int | None
) -> SessionPage:
    """Return a page of the sessions ordered by creation, newest first, or by title.

    The cursor is the last item's primary key, followed by its title if the list is ordered by
    title.
    """
    if order == TITLE:
        sessions = sessions.annotate(by_title=_TitleSortKey("title")).order_by("by_title", "pk")
        if before:
            last, reached = parse_title_cursor(before)
            sessions = sessions.filter(Q(by_title__gt=reached) | Q(by_title=reached, pk__gt=last))
    else:
        sessions = sessions.order_by("-pk")
        if before:
            sessions = sessions.filter(pk__lt=parse_number(before))
    columns = ("pk", "by_title") if order == TITLE else ("pk",)
    rows = list(sessions.values_list(*columns)[: limit + 1])
    pks = [row[0] for row in rows]
    if not pks:
        return SessionPage(items=[], next_cursor="")
    by_pk = {
        item.pk: item
        for item in _read_listed(
            [_select_pks(Session.objects.filter(pk__in=pks))], reader_pk=reader_pk
        )
    }
    return SessionPage(
        items=[by_pk[pk] for pk in pks[:limit] if pk in by_pk],
        next_cursor="~".join(map(str, rows[limit - 1])) if len(rows) > limit else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListChoices:
    """The values that the sessions of a list have, as choices for its filters."""

    models: Sequence[str]
    people: Sequence[str]
    channels: Sequence[str]


def read_list_choices(workspace: Workspace, *, archived: bool) -> SessionListChoices:
    """Return the choices for the filters of a workspace's list, with one query."""
    # Raw SQL, so that the combinations are read from the index before the usernames are joined.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.model, u.username, c.channel FROM"  # noqa: S608
            " (SELECT DISTINCT model, owner_id, channel FROM conversations_session"
            f" WHERE workspace_id = %s AND archived_at IS {'NOT ' if archived else ''}NULL"
            " LIMIT %s) c LEFT JOIN auth_user u ON u.id = c.owner_id",
            [workspace.pk, MAX_CHOICES],
        )
        rows = cursor.fetchall()
    models, people, channels = (
        sorted({row[index] for row in rows if row[index]}) for index in range(3)
    )
    return SessionListChoices(models=models, people=people, channels=channels)


def list_recent_sessions(
    person: Person, *, query: str = "", before: str = "", limit: int
) -> SessionPage:
    """Return sessions of the person's workspaces, without archived sessions.

    Sessions that the person may read only as a reviewer are not listed. ``query`` searches the same
    columns as in the session list, and also the workspace's name.
    """
    sessions = Session.objects.filter(workspace__in=workspaces_of(person.pk), archived_at=None)
    sessions = filter_by_words(sessions, query, "title", "preview", "workspace__name")
    statement = _select_pks(_page_query(sessions, before, limit=limit))
    return _make_page(_read_listed([statement]), limit=limit)


def _page_query(sessions: QuerySet[Session], before: str, *, limit: int) -> QuerySet[Session]:
    # Read one session more than needed to know whether there is a next page.
    if before:
        sessions = sessions.filter(beyond(parse_list_cursor(before)))
    return sessions.order_by("-last_active_at", "-pk")[: limit + 1]


def _make_page(listed: list[ListedSession], *, limit: int) -> SessionPage:
    next_cursor = str(listed[limit - 1].cursor) if len(listed) > limit else ""
    return SessionPage(items=listed[:limit], next_cursor=next_cursor)


# The columns that are read for :class:`ListedSession`, by name
_LISTED = {
    "owner_id": "s.owner_id",
    "pk": "s.id",
    "uuid": "s.uuid",
    "workspace_name": "w.name",
    "title": "s.title",
    "preview": "s.preview",
    "channel": "s.channel",
    "model": "s.model",
    "turns": "s.next_turn - 1",
    "last_active_at": "s.last_active_at",
    "expires_at": "s.expires_at",
    "archived_at": "s.archived_at",
    "pinned_at": "s.pinned_at",
    "purge_due": "p.due_at",
    "active": "(SELECT r.state FROM conversations_run r"
    " WHERE r.session_id = s.id AND r.state IN (%s, %s) LIMIT 1)",
    "latest": "(SELECT r.state FROM conversations_run r"
    " WHERE r.session_id = s.id AND r.kind <> %s ORDER BY r.id DESC LIMIT 1)",
    "is_queued": "EXISTS(SELECT 1 FROM conversations_run r"
    " WHERE r.session_id = s.id AND r.state = %s)",
    "unread": "EXISTS(SELECT 1 FROM conversations_readingposition o"
    " WHERE o.user_id = %s AND o.session_id = s.id AND o.turn < s.next_turn - 1)",
}


def _select_pks(sessions: QuerySet[Session]) -> Statement:
    return sessions.values("pk").query.sql_with_params()


def _read_listed(
    statements: Sequence[Statement], *, reader_pk: int | None = None
) -> list[ListedSession]:
    """Return the sessions that any of the statements finds, the latest active first."""
    found = " UNION ALL ".join(f"SELECT * FROM ({sql}) q" for sql, _ in statements)  # noqa: S608
    # This uses raw SQL because every chat page has such a list, and Django takes ten times as long
    # to build the statement as SQLite takes to answer it.
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {', '.join(_LISTED.values())} FROM conversations_session s"  # noqa: S608
            " JOIN conversations_workspace w ON w.id = s.workspace_id"
            " LEFT JOIN conversations_purgeorder p ON p.session_id = s.id"
            f" WHERE s.id IN ({found}) ORDER BY s.last_active_at DESC, s.id DESC",
            [
                *(*ACTIVE_STATES, COMPACT, QUEUED, reader_pk),
                *(value for _, part in statements for value in part),
            ],
        )
        return [_make_listed(dict(zip(_LISTED, row, strict=True))) for row in cursor.fetchall()]


def _make_listed(row: dict[str, Any]) -> ListedSession:
    for name in ("last_active_at", "expires_at", "purge_due"):
        row[name] = row[name] and read_moment(row[name])
    return ListedSession(
        uuid=UUID(str(row.pop("uuid"))),
        state=_state(row.pop("active"), row.pop("latest"), is_queued=row.pop("is_queued")),
        expired=has_expired(row.pop("expires_at")),
        archived=row.pop("archived_at") is not None,
        pinned=row.pop("pinned_at") is not None,
        unread=bool(row.pop("unread")),
        **row,
    )


def filter_by_words(sessions: QuerySet[Session], query: str, *columns: str) -> QuerySet[Session]:
    """Return the sessions that have each word of the query in one of the columns."""
    for word in storable(query).split()[:MAX_FILTER_WORDS]:
        has_word = (Q((f"{column}__icontains", word)) for column in columns)
        sessions = sessions.filter(reduce(or_, has_word))
    return sessions


def list_titled(sessions: QuerySet[Session], query: str, *, limit: int) -> list[SessionRecord]:
    """Return the sessions with each word of the query in the title, the latest active first."""
    sessions = filter_by_words(sessions, query, "title").order_by("-last_active_at", "-pk")
    return _read_records(sessions[:limit], is_full=False)


def list_forks(session: Session, *, limit: int) -> list[SessionRecord]:
    """Return the first sessions that came from this one, in the order of creation.

    These are its forks and the sessions that continue in its place. Only sessions of the same
    workspace are returned, because readers of the session may read those too.
    """
    forks = Session.objects.filter(parent=session.pk, workspace=session.workspace_id)
    return _read_records(forks.order_by("pk")[:limit], is_full=False)
