"""Storing imported turns and events in bulk, compared with what is there already.

Rows are compared by their links in the hash chains: a row that gives the same
link from the same predecessor is the same in every covered field. Comparing,
hashing and rendering happen before any lock. The session's counters are then
moved from the values that were read, in the transaction that inserts the rows;
if somebody else has appended meanwhile, nothing is written and all is done anew. The
session state moves on with them; where a person's edits of it are among the rows, it
is left behind, to be rebuilt when all rows are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet

from conversations.archive.append import (
    INSERT_EVENT,
    INSERT_TURN,
    event_digest,
    moment_value,
    turn_digest,
    turn_values,
    updated_words,
)
from conversations.archive.state_updates import (
    LEFT_BEHIND,
    StateUpdate,
    advance_state,
    read_facts_of,
)
from conversations.domain.errors import Conflict
from conversations.domain.events import INFO, Malformed, parse_payload
from conversations.domain.session_state import STATE_EDIT
from conversations.domain.session_state.facts import TurnFacts
from conversations.domain.text import first_digest, storable
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, Session, Turn
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_row

MAX_ATTEMPTS = 20

CHAINS = {"turns": ("turn", "number"), "events": ("event", "seq")}
"""What a row of a chain is called, and the column of its number."""


@dataclass(frozen=True, slots=True, order=True)
class ImportedRowSource:
    """Where a line comes from: which one it is, and ``place``, what a person would look
    for in a file that has no lines."""

    number: int
    place: str = ""

    def __str__(self) -> str:
        return self.place or str(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTurn:
    """A turn with its number; ``line`` is where the file has it."""

    line: ImportedRowSource
    number: int
    turn: NewTurn
    created_at: datetime

    def link(self, previous: str) -> str:
        return turn_digest(previous, self.turn, number=self.number, created_at=self.created_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEvent:
    """An event with its seq; ``payload`` is the text to store."""

    line: ImportedRowSource
    seq: int
    event_type: str
    payload: str
    turn: int | None
    created_at: datetime

    @property
    def number(self) -> int:
        return self.seq

    def link(self, previous: str) -> str:
        return event_digest(
            previous,
            seq=self.seq,
            event_type=self.event_type,
            payload=self.payload,
            turn=self.turn,
            created_at=self.created_at,
        )


@dataclass(slots=True, kw_only=True)
class Stored:
    """What became of a batch. ``conflicts`` are lines whose row differs from the
    one that the archive has under the same number."""

    turns_added: int = 0
    turns_unchanged: int = 0
    events_added: int = 0
    events_unchanged: int = 0
    conflicts: list[tuple[ImportedRowSource, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    next_turn: int
    next_seq: int
    turn_digest: str
    event_digest: str
    journal_turn: int


@dataclass(slots=True, kw_only=True)
class _Batch:
    """New rows, ready to insert, and where the session stands after them."""

    session: Session
    after: _Counters
    turns: list[tuple[Any, ...]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    facts: list[tuple[int, TurnFacts]] = field(default_factory=list)
    has_edits: bool = False
    title: str = ""
    preview: str = ""
    latest: datetime | None = None


def store_rows(
    session: Session,
    *,
    turns: Sequence[ImportedTurn],
    events: Sequence[ImportedEvent],
    moves_activity: bool,
) -> Stored:
    """Append what lies beyond the session's end, compare the rest. One transaction;
    none if nothing is new. ``moves_activity``: the session was last active when its
    newest row was written. Raises Conflict when others keep appending meanwhile."""
    for _ in range(MAX_ATTEMPTS):
        names = [found.name for found in fields(_Counters)]
        before = _Counters(**Session.objects.values(*names).get(pk=session.pk))
        stored = Stored()
        batch = _Batch(session=session, after=before)
        new_turns, stored.turns_unchanged = _compare(
            Turn.objects.filter(session=session.pk),
            "turns",
            turns,
            (before.next_turn, before.turn_digest),
            first_digest(session.uuid, chain="turns"),
            stored,
        )
        new_events, stored.events_unchanged = _compare(
            ChatEvent.objects.filter(session=session.pk),
            "events",
            events,
            (before.next_seq, before.event_digest),
            first_digest(session.uuid, chain="events"),
            stored,
        )
        _prepare_turns(batch, new_turns)
        _prepare_events(batch, new_events)
        stored.turns_added, stored.events_added = len(batch.turns), len(batch.events)
        if not batch.turns and not batch.events:
            return stored
        if _insert(batch, before, moves_activity=moves_activity):
            return stored
    raise Conflict("The session is being written to. Import it again later.")


def _compare[Row: (ImportedTurn, ImportedEvent)](
    known: QuerySet[Any],
    chain: str,
    rows: Sequence[Row],
    before: tuple[int, str],
    first: str,
    stored: Stored,
) -> tuple[list[tuple[Row, str]], int]:
    """The new rows with their links, and how many are there unchanged. ``before``: the
    next number of the chain and the link of its last row; ``first`` comes before all."""
    (what, key), (following, last) = CHAINS[chain], before
    numbers = {row.number - back for row in rows if row.number < following for back in (0, 1)}
    links = dict(known.filter(**{f"{key}__in": numbers}).order_by(key).values_list(key, "digest"))
    links |= {0: first, following - 1: last}
    new: list[tuple[Row, str]] = []
    unchanged = 0
    for row in rows:
        link, found = row.link(links.get(row.number - 1, "")), links.get(row.number)
        if row.number == following + len(new):
            links[row.number] = link
            new.append((row, link))
        elif found == link:
            unchanged += 1
        else:
            why = "is archived with other content" if found else "is missing in the archive"
            stored.conflicts.append((row.line, f"{what} {row.number} {why}"))
    return new, unchanged


def _prepare_turns(batch: _Batch, new: Sequence[tuple[ImportedTurn, str]]) -> None:
    for item, link in new:
        turn = item.turn
        batch.turns.append(
            turn_values(
                batch.session.pk, turn, number=item.number, created_at=item.created_at, digest=link
            )
        )
        batch.facts.append((item.number, read_facts_of(turn)))
        batch.title, batch.preview = updated_words(turn, title=batch.title, preview=batch.preview)
        batch.latest = max(batch.latest or item.created_at, item.created_at)
    if new:
        last, link = new[-1]
        batch.after = replace(batch.after, next_turn=last.number + 1, turn_digest=link)


def _prepare_events(batch: _Batch, new: Sequence[tuple[ImportedEvent, str]]) -> None:
    covered = batch.after.journal_turn
    for item, link in new:
        html = _render_event(batch.session.uuid, item)
        batch.events.append(
            (
                batch.session.pk,
                item.seq,
                item.event_type,
                item.payload,
                item.turn,
                moment_value(item.created_at),
                link,
                html,
                RENDER_VERSION if html else 0,
            )
        )
        if item.turn is not None and item.turn < batch.after.next_turn:
            covered = max(covered, item.turn)
        batch.has_edits |= item.event_type == INFO and STATE_EDIT in item.payload
        batch.latest = max(batch.latest or item.created_at, item.created_at)
    if new:
        last, link = new[-1]
        batch.after = replace(
            batch.after, next_seq=last.seq + 1, event_digest=link, journal_turn=covered
        )


def _render_event(session: UUID, item: ImportedEvent) -> str:
    """The row; empty for a payload that cannot be read, which is shown as it is
    when somebody opens the page."""
    try:
        payload = parse_payload(item.event_type, item.payload)
    except Malformed:
        return ""
    place = RowPosition(
        session=session,
        seq=str(item.seq),
        turn="" if item.turn is None else str(item.turn),
        created_at=item.created_at,
    )
    return storable(render_row(payload, place=place))


_MOVE_SESSION = (
    "UPDATE conversations_session SET next_turn = %s, next_seq = %s, turn_digest = %s,"
    " event_digest = %s, journal_turn = %s,"
    " title = CASE WHEN title = '' THEN %s ELSE title END,"
    " preview = CASE WHEN %s = '' THEN preview ELSE %s END,"
    " last_active_at = CASE WHEN %s AND last_active_at < %s THEN %s ELSE last_active_at END"
    " WHERE id = %s AND next_turn = %s AND next_seq = %s"
)


def _insert(batch: _Batch, before: _Counters, *, moves_activity: bool) -> bool:
    """False, and nothing written, when the session has moved on meanwhile."""
    after, latest = batch.after, moment_value(batch.latest) if batch.latest else None
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            _MOVE_SESSION,
            [
                after.next_turn,
                after.next_seq,
                after.turn_digest,
                after.event_digest,
                after.journal_turn,
                batch.title,
                batch.preview,
                batch.preview,
                moves_activity,
                latest,
                latest,
                batch.session.pk,
                before.next_turn,
                before.next_seq,
            ],
        )
        if cursor.rowcount != 1:
            return False
        if batch.turns:
            cursor.executemany(INSERT_TURN, batch.turns)
        if batch.events:
            cursor.executemany(INSERT_EVENT, batch.events)
        _advance(cursor, batch, before)
    return True


def _advance(cursor: Any, batch: _Batch, before: _Counters) -> None:
    session_pk = batch.session.pk
    columns = ("state", "state_turn", "rewind_count")
    state, state_turn, rewinds = Session.objects.values_list(*columns).get(pk=session_pk)
    advance = StateUpdate(
        session_pk=session_pk,
        turn=before.next_turn - 1,
        rewinds=rewinds,
        state=state,
        state_turn=state_turn,
    )
    advance_state(cursor, advance, facts=batch.facts)
    if batch.has_edits:
        advance.state_turn = LEFT_BEHIND
    cursor.execute(
        "UPDATE conversations_session SET state = %s, state_turn = %s WHERE id = %s",
        [advance.state, advance.state_turn, session_pk],
    )
