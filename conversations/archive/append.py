"""Appending turns and events: one transaction for the rows, counters and digests.

This module uses raw SQL through Django's cursor because every stored turn passes through it. Raw
SQL takes about a quarter of the ORM's time, so the lock is held for less time.

A writer locks the session's row first (:func:`locked_session`). The next numbers, the previous
digests and the session state come from that row, so numbering has no gaps under any number of
writers. All changes that a block of appends makes to the row are saved once, at the end.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.db.models import Field, Model, QuerySet
from django.utils import timezone

from conversations.domain.errors import Conflict, NotFound
from conversations.domain.events import Payload, UserMessage, dump_payload, event_type_of
from conversations.domain.messages import say
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import (
    instant,
    next_digest,
    one_line,
    storable,
    strip_invisible,
    strip_marks,
)
from conversations.domain.turns import CONTENT_COLUMNS, NewTurn, content_values
from conversations.models import ModelCall
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_row

from .state_updates import StateUpdate, advance_state, edit_of, read_facts_of
from .storage import is_storage_error

logger = logging.getLogger(__name__)

MAX_PREVIEW_CHARS = 160
MAX_MADE_TITLE_CHARS = 80  # Of a title made from the first message


def placeholders(values: Sized) -> str:
    """Return one placeholder for each value, for a list in an SQL statement."""
    return ", ".join(["%s"] * len(values))


def read_row(statement: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the first row that an SQL statement finds, or None.

    This is for frequent queries, because the ORM takes ten times as long to build a statement as
    the database takes to answer it.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row


def has_row(statement: str, values: Sequence[Any] = ()) -> bool:
    return read_row(statement, values) is not None


_TURN_COLUMNS = ("session_id", "number", *CONTENT_COLUMNS, "created_at", "digest")
INSERT_TURN = (
    f"INSERT INTO conversations_turn ({', '.join(_TURN_COLUMNS)})"  # noqa: S608 (constants)
    f" VALUES ({placeholders(_TURN_COLUMNS)})"
)
INSERT_EVENT = (
    "INSERT INTO conversations_chatevent (session_id, seq, event_type, payload,"
    " turn_number, created_at, digest, html, render_version)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)


def turn_values(
    session_pk: int, turn: NewTurn, *, number: int, created_at: datetime, digest: str
) -> tuple[Any, ...]:
    """Return the parameters of :data:`INSERT_TURN`."""
    return (session_pk, number, *content_values(turn), moment_value(created_at), digest)


def moment_value(moment: datetime) -> Any:
    """Convert a datetime to the value that the database stores."""
    return connection.ops.adapt_datetimefield_value(moment.astimezone(UTC))


def read_moment(value: datetime) -> datetime:
    """Make a datetime from the database aware: SQLite returns naive datetimes in UTC."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def updated_words(turn: NewTurn, *, title: str, preview: str) -> tuple[str, str]:
    """Return the session's title and preview after this turn.

    The session list shows the first message of the person as title and the last message as preview.
    """
    if turn.role not in ("user", "assistant") or not turn.content.strip():
        return title, preview
    if turn.role == "user" and not title:
        title = make_title(turn.content)
    return title, one_line(strip_invisible(strip_marks(turn.content)), limit=MAX_PREVIEW_CHARS)


def make_title(content: str) -> str:
    """Return the title of a session that begins with this message."""
    return one_line(strip_invisible(strip_marks(content)), limit=MAX_MADE_TITLE_CHARS)


FIRST_PAGE_ROWS, MAX_PAGE_ROWS, MAX_PAGE_CHARS = 10, 50, 2_000_000
BATCH_ROWS = 500


def walk_rows(rows: QuerySet[Any], *columns: str, key: str) -> Iterator[dict[str, Any]]:
    """Yield the rows as dicts of these columns, in the order of ``key``, in bounded memory.

    ``key`` must be one of the columns, unique among the rows, and positive.
    """
    # Do not use one long-running cursor: on SQLite it would keep the write-ahead log from being
    # checkpointed, and on PostgreSQL it needs a transaction.
    last, size = 0, FIRST_PAGE_ROWS
    while True:
        page = list(rows.filter(**{f"{key}__gt": last}).order_by(key).values(*columns)[:size])
        if not page:
            return
        is_last, last = len(page) < size, page[-1][key]
        # Read fewer rows at a time when the rows are long, and more when they have no texts.
        lengths = [len(value) for row in page for value in row.values() if isinstance(value, str)]
        max_rows = MAX_PAGE_ROWS if lengths else BATCH_ROWS
        size = max(1, min(max_rows, MAX_PAGE_CHARS * len(page) // max(1, sum(lengths))))
        yield from page
        if is_last:
            return


def walk_by_key[M: Model](rows: QuerySet[M], *, key: str = "pk") -> Iterator[M]:
    """Yield the rows in the order of ``key``, reading a page at a time.

    ``key`` must be a column that is unique among the rows and positive.
    """
    rows, last = rows.order_by(key), 0
    while page := list(rows.filter(**{f"{key}__gt": last})[:BATCH_ROWS]):
        yield from page
        last = getattr(page[-1], key)


def remove_in_pieces(rows: QuerySet[Any]) -> int:
    """Delete the rows and their dependent rows, a page at a time. Return how many were deleted."""
    removed = 0
    while keys := list(rows.values_list("pk", flat=True)[:BATCH_ROWS]):
        removed += rows.model.objects.filter(pk__in=keys).delete()[0]
    return removed


@cache
def _insert_of(model: type[Model]) -> tuple[str, list["Field[Any, Any]"]]:
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns = ", ".join(str(field.column) for field in fields)
    values = f"({columns}) VALUES ({placeholders(fields)})"
    return f"INSERT INTO {model._meta.db_table} {values} RETURNING id", fields


def insert_row(row: Model) -> None:
    """Insert a new row and set its primary key.

    This does the same as ``save(force_insert=True)`` in a third of the time, because the statement
    is built only once for each model.
    """
    statement, fields = _insert_of(type(row))
    values = [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        [row.pk] = cursor.fetchone()
    row._state.adding, row._state.db = False, connection.alias


def require_first[M: Model](rows: QuerySet[M], message: str) -> M:
    """Return the first row. Raise NotFound with this message if there is none."""
    row = rows.first()
    if row is None:
        raise NotFound(message)
    return row


# Rows are rendered before the lock is taken, when their numbers are not known yet. The placeholders
# for the numbers contain a random value, so a person's text cannot contain one.
_NONCE = secrets.token_hex(8)
_SEQ_MARK = f"@seq-{_NONCE}@"
_TURN_MARK = f"@turn-{_NONCE}@"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append.

    ``new`` is the index of a turn that is appended with the event, ``turn`` is the number of an
    earlier turn. If both are None, the event belongs to the session's last turn.
    """

    payload: Payload
    turn: int | None = None
    new: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A completed row as it is sent to a page."""

    seq: int
    event_type: str
    turn: int | None
    html: str
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSize:
    """The fill level of the window after a model call: ``tokens`` out of ``limit``.

    ``ratio`` is how many tokens ``model`` counts for each estimated token. 0 means not reported.
    """

    tokens: int
    limit: int
    ratio: float
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The result of an append.

    ``turns`` are the numbers of the new turns, in order. ``title`` is the session's title if this
    append set it, and empty otherwise.
    """

    turns: list[int]
    rows: list[Row]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEvent:
    """An event that is serialised and rendered, except for its numbers."""

    event: NewEvent
    event_type: str
    payload: str
    html: str
    created_at: datetime


ARCHIVED, EXPIRED = "archived", "expired"  # Reasons why a session cannot be continued


def joined_transaction() -> transaction.Atomic:
    """Return a transaction that nested calls join without a savepoint.

    The outermost caller opens the transaction. An error in a nested call undoes the whole
    transaction.
    """
    # Use a savepoint inside the transaction of a TestCase, because an error must not end the test's
    # transaction.
    outer = connection.atomic_blocks[-1] if connection.in_atomic_block else None
    return transaction.atomic(savepoint=outer is None or getattr(outer, "_from_testcase", False))


def lock_session(session_pk: int) -> tuple[str, ...]:
    """Lock the session's row in the caller's transaction.

    The lock keeps two callers from both finding the session idle. Return the reasons why the
    session cannot be continued; the tuple is empty if it can. Raise NotFound if the session does
    not exist.
    """
    with connection.cursor() as cursor:
        return _select_locked(cursor, session_pk, "archived_at")[1]


def _select_locked(
    cursor: Any, session_pk: int, *columns: str
) -> tuple[list[Any], tuple[str, ...]]:
    assert connection.in_atomic_block
    # On SQLite no row lock is needed, because each transaction begins by locking the whole database
    # (IMMEDIATE).
    lock = " FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
    cursor.execute(
        f"SELECT {', '.join(columns)}, expires_at <= %s FROM conversations_session"  # noqa: S608 (our own columns)
        f" WHERE id = %s{lock}",
        [moment_value(timezone.now()), session_pk],
    )
    row = cursor.fetchone()
    if row is None:
        raise NotFound("This session does not exist.")
    *values, archived_at, is_over = row
    closed = (ARCHIVED,) if archived_at is not None else ()
    return values, (*closed, EXPIRED) if is_over else closed


# The columns that an append may change, and the other columns that it reads.
_CHANGED = (
    *("next_turn", "next_seq", "turn_digest", "event_digest", "journal_turn", "title", "preview"),
    *("context_tokens", "context_limit", "floor_turn"),
)
_READ = ("owner_id", "rewind_count", "cost_microusd")


def sums_of(call: ModelCall) -> dict[str, int]:
    """Return the amounts that a model call adds to the totals of its session."""
    cached = call.cache_read_tokens or 0
    return {
        "input_tokens": (call.input_tokens or 0) + cached + (call.cache_write_tokens or 0),
        "output_tokens": call.output_tokens or 0,
        "cached_tokens": cached,
        "cost_microusd": call.cost_microusd or 0,
    }


class RunLost(Conflict):
    """The error for a run that has ended or that another process has taken over."""

    code = "run_lost"

    def __init__(self) -> None:
        super().__init__(say("This run has already ended, or continues in another process."))


_RUN_IS_OWN = (
    "EXISTS(SELECT 1 FROM conversations_run"  # noqa: S608 (nothing but placeholders)
    f" WHERE id = %s AND owner = %s AND state IN ({placeholders(ACTIVE_STATES)}))"
)


@dataclass(slots=True, kw_only=True)
class LockedSession:
    """A session whose row is locked, with the values that will be saved.

    ``closed`` holds the reasons why the session cannot be continued, and is empty if it can.
    ``added`` holds the amounts by which the session's totals grow. If ``run`` is set, the row is
    saved only while that run is active and belongs to ``owner``.
    """

    cursor: Any
    pk: int
    uuid: UUID
    owner_id: int
    closed: tuple[str, ...]
    next_turn: int
    next_seq: int
    turn_digest: str
    event_digest: str
    journal_turn: int
    title: str
    preview: str
    floor_turn: int
    rewind_count: int
    context_tokens: int
    context_limit: int
    cost_microusd: int
    state: StateUpdate
    run: int | None = None
    owner: str = ""
    added: Counter[str] = field(default_factory=Counter)
    size: ContextSize | None = None
    changed_at: datetime | None = None

    def append(
        self,
        *,
        turns: Sequence[NewTurn] = (),
        events: Sequence[NewEvent | PreparedEvent] = (),
        call: ModelCall | None = None,
        size: ContextSize | None = None,
        now: datetime | None = None,
    ) -> AppendResult:
        """Append turns and their events.

        ``call`` is the model call that produced the turns; its usage is added to the session's
        totals. ``size`` is the fill level of the window after that call.

        An event that cannot be stored is logged as ``chat_event_append_failed`` and left out. Its
        turn is kept, and the turn's rows will be synthesised.
        """
        now = self.changed_at = now or timezone.now()
        prepared = [prepare_event(event, session_uuid=self.uuid, now=now) for event in events]
        had_title = bool(self.title)
        numbers, facts = [], []
        for turn in turns:
            number, created_at = self.next_turn, turn.created_at or now
            digest = turn_digest(self.turn_digest, turn, number=number, created_at=created_at)
            self.cursor.execute(
                INSERT_TURN,
                turn_values(self.pk, turn, number=number, created_at=created_at, digest=digest),
            )
            self.next_turn, self.turn_digest = number + 1, digest
            self.title, self.preview = updated_words(turn, title=self.title, preview=self.preview)
            numbers.append(number)
            facts.append((number, read_facts_of(turn)))
        rows = _insert_events(self, prepared, numbers)
        # Only take edits from stored events, because the state must be reproducible from the
        # journal.
        edits = [
            (row.seq, edit)
            for prepared_event, row in zip(prepared, rows, strict=False)
            if (edit := edit_of(prepared_event.event.payload)) is not None
        ]
        advance_state(self.cursor, self.state, facts=facts, edits=edits)
        if call is not None:
            sums = sums_of(call)
            self.cost_microusd += sums["cost_microusd"]
            self.added.update(sums)
        if size is not None:
            self.size = size
            self.context_tokens, self.context_limit = size.tokens, size.limit
        return AppendResult(turns=numbers, rows=rows, title="" if had_title else self.title)

    def save(self) -> None:
        """Write the changed columns of the row.

        Call this at the end of the transaction, or before other code reads the row. Raise RunLost
        if the run has ended or belongs to another process.
        """
        if self.changed_at is None:
            return
        columns: dict[str, Any] = {name: getattr(self, name) for name in _CHANGED}
        columns["last_active_at"] = moment_value(self.changed_at)
        columns |= {"state": self.state.state, "state_turn": self.state.state_turn}
        if self.size is not None:
            columns |= {"token_ratio": self.size.ratio, "token_model": self.size.model}
        changes = [f"{column} = %s" for column in columns]
        changes += [f"{name} = {name} + {count:d}" for name, count in self.added.items() if count]
        condition, values = "id = %s", [*columns.values(), self.pk]
        if self.run is not None:
            # Check the run here and not where the row is locked: there, PostgreSQL would see the
            # run as it was before the statement waited for the lock.
            condition = f"{condition} AND {_RUN_IS_OWN}"
            values += [self.run, self.owner, *ACTIVE_STATES]
        self.cursor.execute(
            f"UPDATE conversations_session SET {', '.join(changes)} WHERE {condition}",  # noqa: S608 (our own columns)
            values,
        )
        if self.run is not None and not self.cursor.rowcount:
            raise RunLost
        self.added.clear()
        self.size = self.changed_at = None


@contextmanager
def locked_session(
    session_pk: int, *, run: int | None = None, owner: str = ""
) -> Iterator[LockedSession]:
    """Lock a session in a transaction, yield it, and save it when the block ends.

    Code that is called inside the block must append to the same object, because a second object
    would not know the first one's unsaved changes. Raise NotFound if the session does not exist,
    and RunLost if ``run`` is given and has ended or no longer belongs to ``owner``.
    """
    columns = (*_CHANGED, *_READ)
    with joined_transaction(), connection.cursor() as cursor:
        (uuid, state, state_turn, *values), closed = _select_locked(
            cursor, session_pk, "uuid", "state", "state_turn", *columns, "archived_at"
        )
        counters = dict(zip(columns, values, strict=True))
        session = LockedSession(
            cursor=cursor,
            pk=session_pk,
            uuid=UUID(str(uuid)),
            closed=closed,
            run=run,
            owner=owner,
            state=StateUpdate(
                session_pk=session_pk,
                turn=counters["next_turn"] - 1,
                rewinds=counters["rewind_count"],
                state=state,
                state_turn=state_turn,
            ),
            **counters,
        )
        yield session
        session.save()


def append(
    session_pk: int,
    *,
    session_uuid: UUID,
    turns: Sequence[NewTurn] = (),
    events: Sequence[NewEvent | PreparedEvent] = (),
    now: datetime | None = None,
) -> AppendResult:
    """Lock the session and append to it, see :meth:`LockedSession.append`.

    Raise NotFound if the session does not exist.
    """
    now = now or timezone.now()
    # Render the events before taking the lock, because other writers wait during a group commit.
    prepared = [prepare_event(event, session_uuid=session_uuid, now=now) for event in events]
    with locked_session(session_pk) as session:
        return session.append(turns=turns, events=prepared, now=now)


def prepare_events(
    payloads: Sequence[Payload], *, session: UUID, turn: int | None = None, new: int | None = None
) -> list[PreparedEvent]:
    """Prepare several events that all belong to the same turn."""
    return [
        prepare_event(NewEvent(payload=payload, turn=turn, new=new), session_uuid=session)
        for payload in payloads
    ]


def prepare_event(
    event: NewEvent | PreparedEvent, *, session_uuid: UUID, now: datetime | None = None
) -> PreparedEvent:
    """Serialise and render an event. Call this before taking a lock."""
    if isinstance(event, PreparedEvent):
        return event
    now = now or timezone.now()
    place = RowPosition(session=session_uuid, seq=_SEQ_MARK, turn=_TURN_MARK, created_at=now)
    return PreparedEvent(
        event=event,
        event_type=event_type_of(event.payload),
        payload=dump_payload(event.payload),
        html=storable(render_row(event.payload, place=place)),
        created_at=now,
    )


def turn_digest(previous: str, turn: NewTurn, *, number: int, created_at: datetime) -> str:
    """Return the turn's digest in the chain. ``content`` must be the stored text."""
    return next_digest(previous, (number, *content_values(turn), instant(created_at)))


def event_digest(
    previous: str,
    *,
    seq: int,
    event_type: str,
    payload: str,
    turn: int | None,
    created_at: datetime,
) -> str:
    return next_digest(previous, (seq, event_type, payload, turn, instant(created_at)))


def _insert_events(
    session: LockedSession, prepared: list[PreparedEvent], numbers: list[int]
) -> list[Row]:
    if not prepared:
        return []
    counters = (session.next_seq, session.event_digest, session.journal_turn)
    first_new = numbers[0] if numbers else session.next_turn
    has_gap = session.journal_turn < first_new - 1
    # Several statements have to be undone together, so they need a savepoint. A single statement
    # that fails leaves nothing behind on SQLite. On PostgreSQL it would abort the transaction, so
    # it gets a savepoint of its own below.
    is_single = len(prepared) == 1 and not has_gap
    try:
        with nullcontext() if is_single else transaction.atomic():
            # The journal has no events for the turns between its last turn and the first new one.
            if has_gap:
                session.cursor.execute(
                    "INSERT INTO conversations_journalgap (session_id, from_turn, to_turn,"
                    " after_seq) VALUES (%s, %s, %s, %s)",
                    [session.pk, session.journal_turn + 1, first_new - 1, session.next_seq - 1],
                )
            session.journal_turn = session.next_turn - 1
            insert = INSERT_EVENT
            if is_single and connection.vendor == "postgresql":  # one round trip for all three
                insert = f"SAVEPOINT event; {INSERT_EVENT}; RELEASE SAVEPOINT event"
            return [_insert_event(session, event, numbers, insert) for event in prepared]
    except DatabaseError as error:
        if is_storage_error(error):
            raise  # The turn cannot be stored either, so the whole append has to fail.
        if is_single and connection.vendor == "postgresql":
            session.cursor.execute("ROLLBACK TO SAVEPOINT event")
        session.next_seq, session.event_digest, session.journal_turn = counters
        for event in prepared:
            fields = {
                "session_id": str(session.uuid),
                "event_type": event.event_type,
                "error_class": type(error).__name__,
            }
            logger.error("chat_event_append_failed", extra={"fields": fields})
        return []


def _insert_event(
    session: LockedSession, prepared: PreparedEvent, numbers: list[int], statement: str
) -> Row:
    seq, payload = session.next_seq, prepared.event.payload
    if prepared.event.new is not None:
        turn: int | None = numbers[prepared.event.new]
    else:
        turn = prepared.event.turn or session.next_turn - 1 or None
    digest = event_digest(
        session.event_digest,
        seq=seq,
        event_type=prepared.event_type,
        payload=prepared.payload,
        turn=turn,
        created_at=prepared.created_at,
    )
    html = prepared.html.replace(_SEQ_MARK, str(seq)).replace(_TURN_MARK, str(turn or ""))
    created_at = moment_value(prepared.created_at)
    row = (prepared.event_type, prepared.payload, turn, created_at, digest, html)
    session.cursor.execute(statement, [session.pk, seq, *row, RENDER_VERSION])
    session.next_seq, session.event_digest = seq + 1, digest
    return Row(
        seq=seq,
        event_type=prepared.event_type,
        turn=turn,
        html=html,
        client_id=payload.client_id if isinstance(payload, UserMessage) else "",
    )
