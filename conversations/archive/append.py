"""Appending turns and events: one transaction for the rows, counters and digests.

Raw SQL through Django's cursor, because this is the path of every word that is
kept: about a quarter of the ORM's time, and the lock is held for less.

The session's row is updated first, which takes the write lock (SQLite) or the
row lock (PostgreSQL); numbers, the previous digests and the session state come back
from it, so numbering is gapless under any number of writers, and the state is that
of the last turn the moment the turn is there.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from conversations.domain.digest import instant, next_digest
from conversations.domain.errors import NotFound
from conversations.domain.events import Payload, UserMessage, dump_payload, event_type_of
from conversations.domain.session_state.values import StateEdit
from conversations.domain.text import storable
from conversations.domain.turns import NewTurn, content_values
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_row

from .row_sql import INSERT_EVENT, INSERT_TURN, moment_value, turn_values, updated_words
from .state_updates import StateUpdate, advance_state, edit_of, read_facts_of
from .storage_errors import is_storage_error

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


@dataclass(slots=True, kw_only=True)
class _Session:
    """The locked session's counters while rows are appended to it."""

    pk: int
    uuid: UUID
    next_turn: int
    next_seq: int
    turn_digest: str
    event_digest: str
    journal_turn: int
    title: str
    preview: str
    advance: StateUpdate


def append(
    session_pk: int,
    *,
    session_uuid: UUID,
    turns: Sequence[NewTurn] = (),
    events: Sequence[NewEvent | PreparedEvent] = (),
    counted: Counted | None = None,
    now: datetime | None = None,
) -> Appended:
    """Append turns and their events. Raises NotFound for an unknown session.

    Large events should come prepared: inside a group commit the lock is held
    while the others are rendered.

    An event that cannot be stored is logged as ``chat_event_append_failed`` and
    left out; its turn is kept, and its rows will be synthesised.
    """
    now = now or timezone.now()
    prepared = [
        event
        if isinstance(event, PreparedEvent)
        else prepare_event(event, session_uuid=session_uuid, now=now)
        for event in events
    ]
    facts = [read_facts_of(turn) for turn in turns]
    with transaction.atomic(), connection.cursor() as cursor:
        session = _lock(cursor, session_pk, now)
        had_title = bool(session.title)
        numbers = [_insert_turn(cursor, session, turn, now) for turn in turns]
        rows = _insert_events_or_log(cursor, session, prepared, numbers)
        edits = _edits(prepared, rows)
        advance_state(
            cursor, session.advance, facts=list(zip(numbers, facts, strict=True)), edits=edits
        )
        _save(cursor, session, counted or Counted())
        if counted is not None and counted.size is not None:
            _save_size(cursor, session_pk, counted.size)
    return Appended(turns=numbers, rows=rows, title="" if had_title else session.title)


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


def _lock(cursor: Any, session_pk: int, now: datetime) -> _Session:
    cursor.execute(
        "UPDATE conversations_session SET last_active_at = %s WHERE id = %s"
        " RETURNING id, uuid, next_turn, next_seq, turn_digest, event_digest, journal_turn,"
        " title, preview, state, state_turn, rewind_count",
        [moment_value(now), session_pk],
    )
    found = cursor.fetchone()
    if found is None:
        raise NotFound("There is no such session.")
    pk, uuid, next_turn, next_seq, turn_digest, event_digest, journal_turn, *found = found
    title, preview, state, state_turn, rewinds = found
    return _Session(
        pk=pk,
        uuid=uuid if isinstance(uuid, UUID) else UUID(uuid),
        next_turn=next_turn,
        next_seq=next_seq,
        turn_digest=turn_digest,
        event_digest=event_digest,
        journal_turn=journal_turn,
        title=title,
        preview=preview,
        advance=StateUpdate(
            session_pk=pk, turn=next_turn - 1, rewinds=rewinds, state=state, state_turn=state_turn
        ),
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


def _insert_turn(cursor: Any, session: _Session, turn: NewTurn, now: datetime) -> int:
    number = session.next_turn
    created_at = turn.created_at or now
    session.turn_digest = turn_digest(
        session.turn_digest, turn, number=number, created_at=created_at
    )
    cursor.execute(
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
    cursor: Any,
    session: _Session,
    prepared: list[PreparedEvent],
    numbers: list[int],
) -> list[Row]:
    if not prepared:
        return []
    before = (session.next_seq, session.event_digest, session.journal_turn)
    try:
        with transaction.atomic():
            _cover_gap(cursor, session, prepared, numbers)
            return [_insert_event(cursor, session, item, numbers) for item in prepared]
    except DatabaseError as error:
        if is_storage_error(error):
            raise  # the turn cannot be kept either: the whole is done again, or refused
        session.next_seq, session.event_digest, session.journal_turn = before
        for item in prepared:
            logger.error(
                "chat_event_append_failed",
                extra={
                    "fields": {
                        "session_id": str(session.uuid),
                        "event_type": item.event_type,
                        "error_class": type(error).__name__,
                    }
                },
            )
        return []


def _edits(prepared: list[PreparedEvent], rows: list[Row]) -> list[tuple[int, StateEdit]]:
    """The person's edits of the session state among the events, with their seqs."""
    found = [
        (row.seq, edit_of(item.event.payload)) for item, row in zip(prepared, rows, strict=False)
    ]
    return [(seq, edit) for seq, edit in found if edit]


def _cover_gap(
    cursor: Any, session: _Session, prepared: list[PreparedEvent], numbers: list[int]
) -> None:
    """Record turns that the journal skips: those before the first one it gets now."""
    first_new = numbers[0] if numbers else session.next_turn
    if session.journal_turn < first_new - 1:
        cursor.execute(
            "INSERT INTO conversations_journalgap (session_id, from_turn, to_turn, after_seq)"
            " VALUES (%s, %s, %s, %s)",
            [session.pk, session.journal_turn + 1, first_new - 1, session.next_seq - 1],
        )
    session.journal_turn = session.next_turn - 1


def _turn_of(event: NewEvent, session: _Session, numbers: list[int]) -> int | None:
    if event.new is not None:
        return numbers[event.new]
    return event.turn or session.next_turn - 1 or None


def _insert_event(cursor: Any, session: _Session, item: PreparedEvent, numbers: list[int]) -> Row:
    seq, turn = session.next_seq, _turn_of(item.event, session, numbers)
    session.event_digest = event_digest(
        session.event_digest,
        seq=seq,
        event_type=item.event_type,
        payload=item.payload,
        turn=turn,
        created_at=item.created_at,
    )
    html = item.html.replace(_SEQ_MARK, str(seq)).replace(_TURN_MARK, str(turn or ""))
    cursor.execute(
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
    payload = item.event.payload
    return Row(
        seq=seq,
        event_type=item.event_type,
        turn=turn,
        html=html,
        client_id=payload.client_id if isinstance(payload, UserMessage) else "",
    )


def _save(cursor: Any, session: _Session, counted: Counted) -> None:
    cursor.execute(
        "UPDATE conversations_session SET next_turn = %s, next_seq = %s, turn_digest = %s,"
        " event_digest = %s, journal_turn = %s, title = %s, preview = %s,"
        " input_tokens = input_tokens + %s, output_tokens = output_tokens + %s,"
        " cached_tokens = cached_tokens + %s, cost_microusd = cost_microusd + %s,"
        " state = %s, state_turn = %s WHERE id = %s",
        [
            session.next_turn,
            session.next_seq,
            session.turn_digest,
            session.event_digest,
            session.journal_turn,
            session.title,
            session.preview,
            counted.input_tokens,
            counted.output_tokens,
            counted.cached_tokens,
            counted.cost_microusd,
            session.advance.state,
            session.advance.state_turn,
            session.pk,
        ],
    )


def _save_size(cursor: Any, session_pk: int, size: ContextSize) -> None:
    cursor.execute(
        "UPDATE conversations_session SET context_tokens = %s, context_limit = %s,"
        " token_ratio = %s, token_model = %s WHERE id = %s",
        [size.tokens, size.limit, size.ratio, size.model, session_pk],
    )
