"""Appending turns and events: one transaction for the rows, counters and digests.

Raw SQL through Django's cursor, because this is the path of every word that is
kept: about a quarter of the ORM's time, and the lock is held for less.

Whoever writes into a session locks its row first (:func:`locked_session`). Numbers, the
previous digests and the session state come from it, so numbering is gapless under any number
of writers. What all that is appended changes of the row is saved once, at the end.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from conversations.domain.errors import NotFound
from conversations.domain.events import Payload, UserMessage, dump_payload, event_type_of
from conversations.domain.text import (
    instant,
    next_digest,
    one_line,
    storable,
    strip_marks,
    without_unseen,
)
from conversations.domain.turns import CONTENT_COLUMNS, NewTurn, content_values
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_row

from .state_updates import StateUpdate, advance_state, edit_of, read_facts_of
from .storage_errors import is_storage_error

# How a turn and an event become rows of their tables: for appending and importing.


PREVIEW_CHARS = 160
TITLE_CHARS = 80

_TURN_COLUMNS = ("session_id", "number", *CONTENT_COLUMNS, "created_at", "digest")
INSERT_TURN = (
    f"INSERT INTO conversations_turn ({', '.join(_TURN_COLUMNS)})"  # noqa: S608 (constants)
    f" VALUES ({', '.join(['%s'] * len(_TURN_COLUMNS))})"
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
        title = one_line(without_unseen(turn.content[: TITLE_CHARS * 8]), limit=TITLE_CHARS)
    return title, one_line(without_unseen(strip_marks(turn.content)), limit=PREVIEW_CHARS)


# Walking through all rows of a chain in bounded memory.


FIRST_PAGE_ROWS, MAX_PAGE_ROWS, MAX_PAGE_CHARS = 10, 50, 2_000_000


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


logger = logging.getLogger(__name__)

_NONCE = secrets.token_hex(8)
_SEQ_MARK = f"@seq-{_NONCE}@"
_TURN_MARK = f"@turn-{_NONCE}@"
"""Rows are rendered before the lock, when their numbers are not known yet."""


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
class Counted:
    """What a model call adds to the session's counters, and how it leaves the window."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microusd: int = 0
    size: ContextSize | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
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


OPEN, ARCHIVED, EXPIRED = "", "archived", "expired"
"""Whether a session can be continued, and if not, why."""


def joined_transaction() -> transaction.Atomic:
    """The outermost caller opens the transaction; who is called inside joins it, without a
    savepoint: what fails there undoes the whole."""
    # The transaction that a TestCase opens is not the product's: an error must not end it.
    outer = connection.atomic_blocks[-1] if connection.in_atomic_block else None
    return transaction.atomic(savepoint=outer is None or getattr(outer, "_from_testcase", False))


def lock_session(session_pk: int) -> str:
    """Lock the row in the caller's transaction, so that two callers cannot both find the
    session idle. Returns how it is closed, if it is; raises NotFound."""
    with connection.cursor() as cursor:
        *_, archived_at, is_over = _select_locked(cursor, session_pk, "archived_at")
    return _closed(archived_at, is_over)


def _select_locked(cursor: Any, session_pk: int, columns: str) -> tuple[Any, ...]:
    assert connection.in_atomic_block
    # On SQLite each transaction begins with the lock of the whole database (IMMEDIATE).
    lock = " FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
    cursor.execute(
        f"SELECT {columns}, expires_at <= %s FROM conversations_session WHERE id = %s{lock}",  # noqa: S608 (our own columns)
        [moment_value(timezone.now()), session_pk],
    )
    found: tuple[Any, ...] | None = cursor.fetchone()
    if found is None:
        raise NotFound("There is no such session.")
    return found


def _closed(archived_at: Any, is_over: Any) -> str:
    return ARCHIVED if archived_at is not None else EXPIRED if is_over else OPEN


_COLUMNS = (
    "id, uuid, next_turn, next_seq, turn_digest, event_digest, journal_turn, title, preview,"
    " floor_turn, rewind_count, context_tokens, context_limit, cost_microusd, state, state_turn,"
    " archived_at"
)


@dataclass(slots=True, kw_only=True)
class LockedSession:
    """A session whose row is locked, as it will be saved. ``closed`` says why it cannot be
    continued, if so."""

    cursor: Any
    pk: int
    uuid: UUID
    closed: str
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
    counted: list[Counted] = field(default_factory=list)
    changed_at: datetime | None = None

    def append(
        self,
        *,
        turns: Sequence[NewTurn] = (),
        events: Sequence[NewEvent | PreparedEvent] = (),
        counted: Counted | None = None,
        now: datetime | None = None,
    ) -> Appended:
        """Append turns and their events.

        An event that cannot be stored is logged as ``chat_event_append_failed`` and
        left out; its turn is kept, and its rows will be synthesised.
        """
        now = now or timezone.now()
        prepared = _prepare_all(events, session_uuid=self.uuid, now=now)
        facts = [read_facts_of(turn) for turn in turns]
        had_title = bool(self.title)
        numbers = [_insert_turn(self, turn, now) for turn in turns]
        rows = _insert_events_or_log(self, prepared, numbers)
        # The person's edits of the session state among the events, with their seqs.
        pairs = zip(prepared, rows, strict=False)
        edits = [(row.seq, edit_of(item.event.payload)) for item, row in pairs]
        advance_state(
            self.cursor,
            self.state,
            facts=list(zip(numbers, facts, strict=True)),
            edits=[(seq, edit) for seq, edit in edits if edit],
        )
        if counted is not None:
            self.counted.append(counted)
            self.cost_microusd += counted.cost_microusd
            if counted.size is not None:
                self.context_tokens, self.context_limit = counted.size.tokens, counted.size.limit
        self.changed_at = now
        return Appended(turns=numbers, rows=rows, title="" if had_title else self.title)

    def save(self) -> None:
        """Write what has changed of the row. Done at the end, or before somebody reads it."""
        if self.changed_at is None:
            return
        columns: dict[str, Any] = {
            "last_active_at": moment_value(self.changed_at),
            "next_turn": self.next_turn,
            "next_seq": self.next_seq,
            "turn_digest": self.turn_digest,
            "event_digest": self.event_digest,
            "journal_turn": self.journal_turn,
            "title": self.title,
            "preview": self.preview,
            "state": self.state.state,
            "state_turn": self.state.state_turn,
        }
        for size in (counted.size for counted in self.counted if counted.size is not None):
            columns |= {
                "context_tokens": size.tokens,
                "context_limit": size.limit,
                "token_ratio": size.ratio,
                "token_model": size.model,
            }
        changes = [f"{column} = %s" for column in columns]
        sums = ("input_tokens", "output_tokens", "cached_tokens", "cost_microusd")
        added = {name: sum(getattr(one, name) for one in self.counted) for name in sums}
        changes += [f"{name} = {name} + {count:d}" for name, count in added.items() if count]
        self.cursor.execute(
            f"UPDATE conversations_session SET {', '.join(changes)} WHERE id = %s",  # noqa: S608 (our own columns)
            [*columns.values(), self.pk],
        )
        self.counted, self.changed_at = [], None


@contextmanager
def locked_session(session_pk: int) -> Iterator[LockedSession]:
    """The session, locked and in a transaction; saved when the block ends. Who is called
    inside appends to the same object: another one would not know what this one will save.
    Raises NotFound for an unknown session."""
    with joined_transaction(), connection.cursor() as cursor:
        pk, uuid, *counters, state, state_turn, archived_at, is_over = _select_locked(
            cursor, session_pk, _COLUMNS
        )
        next_turn, next_seq, turn_digest, event_digest, journal_turn, title, preview, *more = (
            counters
        )
        floor_turn, rewind_count, context_tokens, context_limit, cost_microusd = more
        session = LockedSession(
            cursor=cursor,
            pk=pk,
            uuid=uuid if isinstance(uuid, UUID) else UUID(uuid),
            closed=_closed(archived_at, is_over),
            next_turn=next_turn,
            next_seq=next_seq,
            turn_digest=turn_digest,
            event_digest=event_digest,
            journal_turn=journal_turn,
            title=title,
            preview=preview,
            floor_turn=floor_turn,
            rewind_count=rewind_count,
            context_tokens=context_tokens,
            context_limit=context_limit,
            cost_microusd=cost_microusd,
            state=StateUpdate(
                session_pk=pk,
                turn=next_turn - 1,
                rewinds=rewind_count,
                state=state,
                state_turn=state_turn,
            ),
        )
        yield session
        session.save()


def append(
    session_pk: int,
    *,
    session_uuid: UUID,
    turns: Sequence[NewTurn] = (),
    events: Sequence[NewEvent | PreparedEvent] = (),
    counted: Counted | None = None,
    now: datetime | None = None,
) -> Appended:
    """Lock the session and append to it, see :meth:`LockedSession.append`. Raises NotFound
    for an unknown session."""
    # Events are rendered before the lock: inside a group commit the others wait for it.
    prepared = _prepare_all(events, session_uuid=session_uuid, now=now)
    with locked_session(session_pk) as session:
        return session.append(turns=turns, events=prepared, counted=counted, now=now)


def _prepare_all(
    events: Sequence[NewEvent | PreparedEvent], *, session_uuid: UUID, now: datetime | None
) -> list[PreparedEvent]:
    return [
        event
        if isinstance(event, PreparedEvent)
        else prepare_event(event, session_uuid=session_uuid, now=now)
        for event in events
    ]


def prepare_events(
    payloads: Sequence[Payload], *, session: UUID, turn: int | None = None, new: int | None = None
) -> list[PreparedEvent]:
    """The same for several, which all belong to that turn."""
    return [
        prepare_event(NewEvent(payload=payload, turn=turn, new=new), session_uuid=session)
        for payload in payloads
    ]


def prepare_event(
    event: NewEvent, *, session_uuid: UUID, now: datetime | None = None
) -> PreparedEvent:
    """Serialise and render an event, before any lock is taken."""
    now = now or timezone.now()
    place = RowPosition(
        session=session_uuid,
        seq=_SEQ_MARK,
        turn=_TURN_MARK,
        created_at=now,
    )
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


def _insert_turn(session: LockedSession, turn: NewTurn, now: datetime) -> int:
    number = session.next_turn
    created_at = turn.created_at or now
    session.turn_digest = turn_digest(
        session.turn_digest, turn, number=number, created_at=created_at
    )
    session.cursor.execute(
        INSERT_TURN,
        turn_values(
            session.pk, turn, number=number, created_at=created_at, digest=session.turn_digest
        ),
    )
    session.next_turn += 1
    session.title, session.preview = updated_words(
        turn, title=session.title, preview=session.preview
    )
    return number


def _insert_events_or_log(
    session: LockedSession, prepared: list[PreparedEvent], numbers: list[int]
) -> list[Row]:
    if not prepared:
        return []
    before = (session.next_seq, session.event_digest, session.journal_turn)
    first_new = numbers[0] if numbers else session.next_turn
    has_gap = session.journal_turn < first_new - 1
    # A statement that fails leaves nothing behind on SQLite. On PostgreSQL it ends the
    # transaction, and with several statements what the first ones did has to be undone.
    is_one = connection.vendor == "sqlite" and len(prepared) == 1 and not has_gap
    try:
        with nullcontext() if is_one else transaction.atomic():
            if has_gap:  # turns that the journal skips: those before the first one it gets now
                session.cursor.execute(
                    "INSERT INTO conversations_journalgap (session_id, from_turn, to_turn,"
                    " after_seq) VALUES (%s, %s, %s, %s)",
                    [session.pk, session.journal_turn + 1, first_new - 1, session.next_seq - 1],
                )
            session.journal_turn = session.next_turn - 1
            return [_insert_event(session, item, numbers) for item in prepared]
    except DatabaseError as error:
        if is_storage_error(error):
            raise  # the turn cannot be kept either: the whole is done again, or refused
        session.next_seq, session.event_digest, session.journal_turn = before
        for item in prepared:
            fields = {
                "session_id": str(session.uuid),
                "event_type": item.event_type,
                "error_class": type(error).__name__,
            }
            logger.error("chat_event_append_failed", extra={"fields": fields})
        return []


def _insert_event(session: LockedSession, item: PreparedEvent, numbers: list[int]) -> Row:
    seq, payload = session.next_seq, item.event.payload
    if item.event.new is not None:
        turn: int | None = numbers[item.event.new]
    else:
        turn = item.event.turn or session.next_turn - 1 or None
    session.event_digest = event_digest(
        session.event_digest,
        seq=seq,
        event_type=item.event_type,
        payload=item.payload,
        turn=turn,
        created_at=item.created_at,
    )
    html = item.html.replace(_SEQ_MARK, str(seq)).replace(_TURN_MARK, str(turn or ""))
    session.cursor.execute(
        INSERT_EVENT,
        [
            session.pk,
            seq,
            item.event_type,
            item.payload,
            turn,
            moment_value(item.created_at),
            session.event_digest,
            html,
            RENDER_VERSION,
        ],
    )
    session.next_seq += 1
    return Row(
        seq=seq,
        event_type=item.event_type,
        turn=turn,
        html=html,
        client_id=payload.client_id if isinstance(payload, UserMessage) else "",
    )
