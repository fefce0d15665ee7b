"""Appending turns and events: one transaction for the rows, counters and digests.

Raw SQL through Django's cursor, because this is the path of every word that is
kept: about a quarter of the ORM's time, and the lock is held for less.

Whoever writes into a session locks its row first (:func:`locked_session`). Numbers, the
previous digests and the session state come from it, so numbering is gapless under any number
of writers. What all that is appended changes of the row is saved once, at the end.
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
MAX_MADE_TITLE_CHARS = 80  # Of a title that no person chose


def placeholders(values: Sized) -> str:
    """So many as there are values, for a list in a statement."""
    return ", ".join(["%s"] * len(values))


def read_row(statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
    """The first row that a statement finds. For what is asked all the time: Django takes ten times
    as long to put a statement together as the database to answer it."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


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
    """The parameters of :data:`INSERT_TURN`."""
    return (session_pk, number, *content_values(turn), moment_value(created_at), digest)


def moment_value(moment: datetime) -> Any:
    """An instant as the database takes it."""
    return connection.ops.adapt_datetimefield_value(moment.astimezone(UTC))


def read_moment(value: datetime) -> datetime:
    """An instant as the database gives it; SQLite's are UTC and do not say so."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def updated_words(turn: NewTurn, *, title: str, preview: str) -> tuple[str, str]:
    """The session's title and preview after this turn: a list shows the first
    message of the person and the last message."""
    if turn.role not in ("user", "assistant") or not turn.content.strip():
        return title, preview
    if turn.role == "user" and not title:
        title = make_title(turn.content)
    return title, one_line(strip_invisible(strip_marks(turn.content)), limit=MAX_PREVIEW_CHARS)


def make_title(content: str) -> str:
    """Of a session that begins with this message."""
    return one_line(strip_invisible(strip_marks(content)), limit=MAX_MADE_TITLE_CHARS)


FIRST_PAGE_ROWS, MAX_PAGE_ROWS, MAX_PAGE_CHARS = 10, 50, 2_000_000
BATCH_ROWS = 500


def walk_rows(rows: QuerySet[Any], *columns: str, key: str) -> Iterator[dict[str, Any]]:
    """The rows as dicts of these columns, in the order of ``key``, which is unique
    among them, positive and one of the columns; in bounded memory."""
    # Never by one long-running cursor: on SQLite that would keep the log from being
    # checkpointed, on PostgreSQL it needs a transaction.
    last, size = 0, FIRST_PAGE_ROWS
    while True:
        page = list(rows.filter(**{f"{key}__gt": last}).order_by(key).values(*columns)[:size])
        if not page:
            return
        is_last, last = len(page) < size, page[-1][key]
        # Pages shrink where rows are long.
        chars = sum(len(value) for row in page for value in row.values() if isinstance(value, str))
        size = max(1, min(MAX_PAGE_ROWS, MAX_PAGE_CHARS * len(page) // max(1, chars)))
        yield from page
        if is_last:
            return


def walk_by_pk[M: Model](rows: QuerySet[M]) -> Iterator[M]:
    """The rows in the order of their keys, read a page at a time."""
    rows, last = rows.order_by("pk"), 0
    while page := list(rows.filter(pk__gt=last)[:BATCH_ROWS]):
        yield from page
        last = page[-1].pk


def remove_in_pieces(rows: QuerySet[Any]) -> int:
    """Remove the rows, and what hangs on them, a page at a time. Returns how many."""
    removed = 0
    while keys := list(rows.values_list("pk", flat=True)[:BATCH_ROWS]):
        removed += rows.model.objects.filter(pk__in=keys).delete()[0]
    return removed


@cache
def _insert_of(model: type[Model]) -> tuple[str, list["Field[Any, Any]"]]:
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns = ", ".join(str(one.column) for one in fields)
    values = f"({columns}) VALUES ({placeholders(fields)})"
    return f"INSERT INTO {model._meta.db_table} {values} RETURNING id", fields


def insert_row(row: Model) -> None:
    """Insert a new row, which gets its key: ``save(force_insert=True)``, in a third of the
    time, since the statement is made once."""
    statement, fields = _insert_of(type(row))
    values = [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        [row.pk] = cursor.fetchone()
    row._state.adding, row._state.db = False, connection.alias


def require_first[M: Model](rows: QuerySet[M], message: str) -> M:
    """The first of the rows. Raises NotFound with this sentence where there is none."""
    found = rows.first()
    if found is None:
        raise NotFound(message)
    return found


# Rows are rendered before the lock, when their numbers are not known yet. The marks cannot be
# guessed, so no text of a person is taken for one.
_NONCE = secrets.token_hex(8)
_SEQ_MARK = f"@seq-{_NONCE}@"
_TURN_MARK = f"@turn-{_NONCE}@"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append. ``new`` indexes the turns appended with it, ``turn`` is
    the number of an earlier one; with neither it belongs to the last turn."""

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
    """How full the window is after a model call: ``tokens`` of ``limit``, and how many
    tokens ``model`` counts for one that is estimated (0: not reported)."""

    tokens: int
    limit: int
    ratio: float
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """``turns`` are the numbers given to the new turns, in order. ``title`` is the
    session's title if this append gave it one."""

    turns: list[int]
    rows: list[Row]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEvent:
    """An event serialised and rendered, but for its numbers."""

    event: NewEvent
    event_type: str
    payload: str
    html: str
    created_at: datetime


ARCHIVED, EXPIRED = "archived", "expired"  # Why a session cannot be continued


def joined_transaction() -> transaction.Atomic:
    """The outermost caller opens the transaction; who is called inside joins it, without a
    savepoint: what fails there undoes the whole."""
    # The transaction that a TestCase opens is not the product's: an error must not end it.
    outer = connection.atomic_blocks[-1] if connection.in_atomic_block else None
    return transaction.atomic(savepoint=outer is None or getattr(outer, "_from_testcase", False))


def lock_session(session_pk: int) -> tuple[str, ...]:
    """Lock the row in the caller's transaction, so that two callers cannot both find the
    session idle. Returns why it cannot be continued, empty if it can; raises NotFound."""
    with connection.cursor() as cursor:
        return _select_locked(cursor, session_pk, "archived_at")[1]


def _select_locked(
    cursor: Any, session_pk: int, *columns: str
) -> tuple[list[Any], tuple[str, ...]]:
    assert connection.in_atomic_block
    # On SQLite each transaction begins with the lock of the whole database (IMMEDIATE).
    lock = " FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
    cursor.execute(
        f"SELECT {', '.join(columns)}, expires_at <= %s FROM conversations_session"  # noqa: S608 (our own columns)
        f" WHERE id = %s{lock}",
        [moment_value(timezone.now()), session_pk],
    )
    found = cursor.fetchone()
    if found is None:
        raise NotFound("This session does not exist.")
    *values, archived_at, is_over = found
    closed = (ARCHIVED,) if archived_at is not None else ()
    return values, (*closed, EXPIRED) if is_over else closed


# Columns that an append may change, and those that it needs besides.
_CHANGED = (
    *("next_turn", "next_seq", "turn_digest", "event_digest", "journal_turn", "title", "preview"),
    *("context_tokens", "context_limit", "floor_turn"),
)
_READ = ("owner_id", "rewind_count", "cost_microusd")


def sums_of(call: ModelCall) -> dict[str, int]:
    """By what a model call adds to the sums of its session."""
    cached = call.cache_read_tokens or 0
    return {
        "input_tokens": (call.input_tokens or 0) + cached + (call.cache_write_tokens or 0),
        "output_tokens": call.output_tokens or 0,
        "cached_tokens": cached,
        "cost_microusd": call.cost_microusd or 0,
    }


class RunLost(Conflict):
    """Another process has taken the run over, or ended it."""

    code = "run_lost"

    def __init__(self) -> None:
        super().__init__(say("This run has already ended, or continues in another process."))


_RUN_IS_OWN = (
    "EXISTS(SELECT 1 FROM conversations_run"  # noqa: S608 (nothing but placeholders)
    f" WHERE id = %s AND owner = %s AND state IN ({placeholders(ACTIVE_STATES)}))"
)


@dataclass(slots=True, kw_only=True)
class LockedSession:
    """A session whose row is locked, as it will be saved. ``closed`` says why it cannot be
    continued, empty if it can; ``added`` is what its sums grow by. ``run`` and ``owner``: it is
    saved for that run, as long as that is active and this owner's."""

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
        """Append turns and their events. ``call`` is the model call that they are of, for the
        session's sums, and ``size`` how it leaves the window.

        An event that cannot be stored is logged as ``chat_event_append_failed`` and left out; its
        turn is kept, and its rows will be synthesised."""
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
        # Only events that were stored are edits: the state has to follow from the journal.
        stored = zip(prepared, rows, strict=False)
        edits = [(row.seq, edit) for one, row in stored if (edit := edit_of(one.event.payload))]
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
        """Write what has changed of the row. Done at the end, or before somebody reads it. Raises
        RunLost."""
        if self.changed_at is None:
            return
        columns: dict[str, Any] = {name: getattr(self, name) for name in _CHANGED}
        columns["last_active_at"] = moment_value(self.changed_at)
        columns |= {"state": self.state.state, "state_turn": self.state.state_turn}
        if self.size is not None:
            columns |= {"token_ratio": self.size.ratio, "token_model": self.size.model}
        changes = [f"{column} = %s" for column in columns]
        changes += [f"{name} = {name} + {count:d}" for name, count in self.added.items() if count]
        which, values = "id = %s", [*columns.values(), self.pk]
        if self.run is not None:
            # Here, and not where the row is locked: PostgreSQL would look at the run as it was
            # before it waited for the lock.
            which = f"{which} AND {_RUN_IS_OWN}"
            values += [self.run, self.owner, *ACTIVE_STATES]
        self.cursor.execute(
            f"UPDATE conversations_session SET {', '.join(changes)} WHERE {which}",  # noqa: S608 (our own columns)
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
    """The session, locked and in a transaction; saved when the block ends. Who is called
    inside appends to the same object: another one would not know what this one will save.
    Raises NotFound for an unknown session, and RunLost where what is appended is of a ``run``
    that is not ``owner``'s any more."""
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
    """Lock the session and append to it, see :meth:`LockedSession.append`. Raises NotFound
    for an unknown session."""
    now = now or timezone.now()
    # Events are rendered before the lock: inside a group commit the others wait for it.
    prepared = [prepare_event(event, session_uuid=session_uuid, now=now) for event in events]
    with locked_session(session_pk) as session:
        return session.append(turns=turns, events=prepared, now=now)


def prepare_events(
    payloads: Sequence[Payload], *, session: UUID, turn: int | None = None, new: int | None = None
) -> list[PreparedEvent]:
    """The same for several, which all belong to that turn."""
    return [
        prepare_event(NewEvent(payload=payload, turn=turn, new=new), session_uuid=session)
        for payload in payloads
    ]


def prepare_event(
    event: NewEvent | PreparedEvent, *, session_uuid: UUID, now: datetime | None = None
) -> PreparedEvent:
    """Serialise and render an event, before any lock is taken."""
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
    """The turn's link in the chain. ``content`` is as stored."""
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
    before = (session.next_seq, session.event_digest, session.journal_turn)
    first_new = numbers[0] if numbers else session.next_turn
    has_gap = session.journal_turn < first_new - 1
    # What several statements did has to be undone together. A single one that fails leaves nothing
    # behind on SQLite; on PostgreSQL it ends the transaction, but for a savepoint of its own.
    is_one = len(prepared) == 1 and not has_gap
    try:
        with nullcontext() if is_one else transaction.atomic():
            if has_gap:  # turns that the journal skips: those before the first one it gets now
                session.cursor.execute(
                    "INSERT INTO conversations_journalgap (session_id, from_turn, to_turn,"
                    " after_seq) VALUES (%s, %s, %s, %s)",
                    [session.pk, session.journal_turn + 1, first_new - 1, session.next_seq - 1],
                )
            session.journal_turn = session.next_turn - 1
            insert = INSERT_EVENT
            if is_one and connection.vendor == "postgresql":  # all in one journey
                insert = f"SAVEPOINT event; {INSERT_EVENT}; RELEASE SAVEPOINT event"
            return [_insert_event(session, one, numbers, insert) for one in prepared]
    except DatabaseError as error:
        if is_storage_error(error):
            raise  # the turn cannot be kept either: the whole is done again, or refused
        if is_one and connection.vendor == "postgresql":
            session.cursor.execute("ROLLBACK TO SAVEPOINT event")
        session.next_seq, session.event_digest, session.journal_turn = before
        for one in prepared:
            fields = {
                "session_id": str(session.uuid),
                "event_type": one.event_type,
                "error_class": type(error).__name__,
            }
            logger.error("chat_event_append_failed", extra={"fields": fields})
        return []


def _insert_event(
    session: LockedSession, one: PreparedEvent, numbers: list[int], insert: str
) -> Row:
    seq, payload = session.next_seq, one.event.payload
    if one.event.new is not None:
        turn: int | None = numbers[one.event.new]
    else:
        turn = one.event.turn or session.next_turn - 1 or None
    digest = event_digest(
        session.event_digest,
        seq=seq,
        event_type=one.event_type,
        payload=one.payload,
        turn=turn,
        created_at=one.created_at,
    )
    html = one.html.replace(_SEQ_MARK, str(seq)).replace(_TURN_MARK, str(turn or ""))
    row = (one.event_type, one.payload, turn, moment_value(one.created_at), digest, html)
    session.cursor.execute(insert, [session.pk, seq, *row, RENDER_VERSION])
    session.next_seq, session.event_digest = seq + 1, digest
    return Row(
        seq=seq,
        event_type=one.event_type,
        turn=turn,
        html=html,
        client_id=payload.client_id if isinstance(payload, UserMessage) else "",
    )
