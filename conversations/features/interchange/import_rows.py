"""Comparing imported turns and events with the archive and storing new ones in bulk.

Rows are compared by their digests in the hash chains: if two rows have the same digest after the
same previous digest, all fields that the digest covers are equal. Comparing and hashing happen
before any lock is taken.

A session has two chains, its turns and its events. All that an import knows about one of them is an
:class:`ImportedChain`: the numbers of its lines, the rows that wait, and where it differs.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.db.models import Model

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
from conversations.domain.events import INFO
from conversations.domain.messages import say
from conversations.domain.session_state import STATE_EDIT
from conversations.domain.text import dump_json, first_digest, load_json
from conversations.domain.turns import NewTurn
from conversations.models import ChatEvent, Session, Turn

from .fields import EventLine, add_metadata
from .lines import WORDS

MAX_ATTEMPTS = 20
MAX_RUNS = 10_000  # Ranges of renumbered lines that are stored for one chain of a session.


@dataclass(frozen=True, slots=True, order=True)
class ImportedRowSource:
    """The position of a line in its file: its number, or for a file without lines ``place``."""

    number: int
    place: str = ""

    def __str__(self) -> str:
        return self.place or str(self.number)


type ImportedRow[T] = tuple[ImportedRowSource, int, T]
"""The source of a row, its number, and the row, whose ``created_at`` is set."""


@dataclass(frozen=True, slots=True, order=True)
class ImportedRowProblem:
    """The reason why a row of the file was not stored.

    If ``is_conflict``, the archive has a different row or no row under its number."""

    line: ImportedRowSource
    reason: str
    is_conflict: bool


def link_turn(previous: str, number: int, turn: NewTurn) -> str:
    assert turn.created_at is not None
    return turn_digest(previous, turn, number=number, created_at=turn.created_at)


def link_event(previous: str, seq: int, event: EventLine) -> str:
    assert event.created_at is not None
    return event_digest(
        previous,
        seq=seq,
        event_type=event.event_type,
        payload=event.payload,
        turn=event.turn_number,
        created_at=event.created_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainKind[T]:
    """One of the two hash chains of a session.

    ``name`` is the name of a row, ``key`` the column of its number, ``next_key`` the session's
    column of the next number, and ``link`` computes a row's digest. ``said`` are the columns with
    the content of a row, without its name, time and metadata. The others are messages."""

    name: str
    model: type[Model]
    key: str
    next_key: str
    link: Callable[[str, int, T], str]
    said: tuple[str, ...]
    difference: str
    conflict: str
    absence: str
    renumbering: str


TURNS = ChainKind(
    name="turn",
    model=Turn,
    key="number",
    next_key="next_turn",
    link=link_turn,
    said=WORDS,
    difference=say("the archived session differs from turn %(number)s on"),
    conflict=say("turn %(number)s is archived with different content"),
    absence=say("turn %(number)s is missing from the archive"),
    renumbering=say(
        "its turns are not numbered without gaps: from here on they get the next "
        "numbers, in the order of the file (%(given)s becomes %(number)s)"
    ),
)
EVENTS = ChainKind(
    name="event",
    model=ChatEvent,
    key="seq",
    next_key="next_seq",
    link=link_event,
    said=("event_type", "payload"),
    difference=say("the archived session differs from event %(number)s on"),
    conflict=say("event %(number)s is archived with different content"),
    absence=say("event %(number)s is missing from the archive"),
    renumbering=say(
        "its events are not numbered without gaps: from here on they get the next "
        "numbers, in the order of the file (%(given)s becomes %(number)s)"
    ),
)


@dataclass(slots=True)
class NumberedLines:
    """A range of lines that were renumbered in order.

    The lines have the numbers ``first`` to ``last`` in the file, and ``number`` and the following
    numbers in the archive."""

    first: int
    last: int
    number: int

    @property
    def end(self) -> int:
        return self.number + self.last - self.first


def remembered_runs(metadata: str, kind: ChainKind[Any]) -> tuple[NumberedLines, ...]:
    """Read the ranges that earlier imports renumbered from a session's metadata."""
    try:
        value = load_json(metadata, default={})
        runs = value.get(f"renumbered_{kind.name}s", ())
        return tuple(NumberedLines(*map(int, run)) for run in runs)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return ()


class ImportedChain[T]:
    """The turns or the events that a file has for one session, with their numbers in the archive.

    A line keeps its number if a row of the session has that number or it is the next one.
    Otherwise the line gets the next number, and so does every later line whose number is taken.
    A line without a usable number follows the line before it. For example, the lines 1, 2, 5, 6
    and 9 get the numbers 1 to 5. The renumbered ranges (``runs``: 5 to 6 from 3 on, and 9 at 5) are
    stored with the session, so importing the same file again finds the same rows. Memory grows with
    the number of gaps, not of lines. ``end`` is the last number that the session has so far.

    ``pending`` are the rows that are not stored yet. ``first_added`` is the number of the first row
    that this file added: later rows are the file's own. ``first_difference`` is the number of the
    first archived row whose content differs from the file."""

    def __init__(self, kind: ChainKind[T], session: Session, *, file_metadata: str) -> None:
        self.kind = kind
        self.end = getattr(session, kind.next_key) - 1
        self.pending: list[ImportedRow[T]] = []
        self.first_added: int | None = None
        self.first_difference: int | None = None
        self.is_renumbered = False
        self.has_begun = False
        # The numbers in an export already include the ranges in the session's metadata in the file.
        included = {(run.first, run.number) for run in remembered_runs(file_metadata, kind)}
        runs = remembered_runs(session.metadata, kind)
        own_runs = (run for run in runs if (run.first, run.number) not in included)
        self.runs = sorted(own_runs, key=lambda run: run.first)
        self._cursor = 1
        self._occupied = sorted((run.number, run.end) for run in self.runs)
        self._is_full = len(self.runs) >= MAX_RUNS
        self._latest: NumberedLines | None = None

    def assign(self, original: Any) -> int:
        """Return the number of the next line, which has the number ``original`` in the file."""
        file_number = original if type(original) is int else None
        earlier_number = None if file_number is None else self._lookup(file_number)
        if earlier_number is not None:
            number = earlier_number
        elif file_number is None or self._is_full:
            number = self._cursor
        elif 1 <= file_number <= self.end + 1 and not self._is_taken(file_number):
            number = file_number
        else:
            number = self.end + 1
            self._occupy(number)
            run = self._latest
            if run and file_number == run.last + 1 and number == run.end + 1:
                run.last = file_number
            else:
                self._latest = NumberedLines(file_number, file_number, number)
                insort(self.runs, self._latest, key=lambda run: run.first)
        if file_number is None:
            self._occupy(number)
        self.has_begun = True
        self.is_renumbered = self.is_renumbered or file_number != number
        self._cursor = number + 1
        self.end = max(self.end, number)
        return number

    def find(self, original: int) -> int | None:
        """Return the number of the row that has the number ``original`` in the file.

        Return None if no row has it. If no line was renumbered, return ``original``."""
        if not self.is_renumbered and not self.runs:
            return original
        earlier_number = self._lookup(original)
        if earlier_number is not None:
            return earlier_number
        return original if 1 <= original <= self.end and not self._is_taken(original) else None

    def _lookup(self, original: int) -> int | None:
        index = bisect_right(self.runs, original, key=lambda run: run.first) - 1
        if index < 0 or original > self.runs[index].last:
            return None
        return self.runs[index].number + original - self.runs[index].first

    def _is_taken(self, number: int) -> bool:
        index = bisect_right(self._occupied, (number, number)) - 1
        around = self._occupied[max(0, index) : index + 2]
        return any(low <= number <= high for low, high in around)

    def _occupy(self, number: int) -> None:
        if self._occupied and self._occupied[-1][1] + 1 == number:
            self._occupied[-1] = (self._occupied[-1][0], number)
        else:
            insort(self._occupied, (number, number))

    def save_runs(self, session: Session) -> None:
        """Store all renumbered ranges in the session's metadata.

        A range is stored as its first and last number in the file and its first number in the
        archive."""
        name = f"renumbered_{self.kind.name}s"
        stored_runs = remembered_runs(session.metadata, self.kind)
        runs_by_start = {(run.first, run.number): run for run in (*stored_runs, *self.runs)}
        kept_runs = sorted(runs_by_start.values(), key=lambda run: run.number)[:MAX_RUNS]
        if kept_runs == list(stored_runs):
            return
        runs = [[run.first, run.last, run.number] for run in kept_runs]
        text = session.metadata
        with suppress(ValueError):  # add_metadata() keeps metadata that is not JSON
            metadata = load_json(text, default={})
            if isinstance(metadata, dict) and metadata.pop(name, None) is not None:
                text = dump_json(metadata)
        session.metadata = add_metadata(text, {name: runs})
        Session.objects.filter(pk=session.pk).update(metadata=session.metadata)


type AnyChain = ImportedChain[Any]


def difference_in(*chains: AnyChain) -> str:
    """Return the reason why no new rows may be added, or an empty text if no chain differs.

    After a difference, turns would answer messages that are not in the session, and events would
    show texts that the turns in the archive do not have."""
    differing = (chain for chain in chains if chain.first_difference is not None)
    chain = next(differing, None)
    return "" if chain is None else say(chain.kind.difference, number=chain.first_difference)


def store_rows(
    session: Session,
    *,
    turns: ImportedChain[NewTurn],
    events: ImportedChain[EventLine],
    moves_activity: bool,
) -> tuple[dict[str, int], list[ImportedRowProblem]]:
    """Append pending rows after the session's end and compare all others with the archive.

    New rows are appended in one transaction. If ``moves_activity``, the session's last activity is
    moved to the time of its newest row. Return the counts of rows by the names of ``ImportCounts``,
    and the rows that were not stored. Raise Conflict if other writers append to the session on each
    of MAX_ATTEMPTS attempts."""
    for _ in range(MAX_ATTEMPTS):
        before = Session.objects.get(pk=session.pk)
        problems: list[ImportedRowProblem] = []
        new_turns, unchanged_turns = _compare(before, turns, (turns,), problems)
        new_events, unchanged_events = _compare(before, events, (turns, events), problems)
        is_done = not new_turns and not new_events
        if is_done or _append(before, new_turns, new_events, moves_activity=moves_activity):
            if new_turns:
                turns.first_added = turns.first_added or new_turns[0][0]
            if new_events:
                events.first_added = events.first_added or new_events[0][0]
            counts = {
                "turns_added": len(new_turns),
                "turns_unchanged": unchanged_turns,
                "events_added": len(new_events),
                "events_unchanged": unchanged_events,
            }
            return counts, problems
    raise Conflict("The session is in use. Import it again later.")


def _compare[T](
    session: Session,
    chain: ImportedChain[T],
    closing: Sequence[AnyChain],
    problems: list[ImportedRowProblem],
) -> tuple[list[tuple[int, T, str]], int]:
    """Return the new rows with their numbers and digests, and the count of unchanged rows.

    No row is new after a difference in one of the ``closing`` chains."""
    kind, following = chain.kind, getattr(session, chain.kind.next_key)
    stored_rows = kind.model._default_manager.filter(session=session.pk)
    known = {number for _, number, _ in chain.pending if number < following}
    read = stored_rows.filter(**{f"{kind.key}__in": known | {number - 1 for number in known}})
    links: dict[int, str] = dict(read.order_by(kind.key).values_list(kind.key, "digest"))
    links[0] = first_digest(session.uuid, chain=f"{kind.name}s")
    links[following - 1] = getattr(session, f"{kind.name}_digest")
    new_rows: list[tuple[int, T, str]] = []
    unchanged = 0
    for line, number, row in chain.pending:
        digest = kind.link(links.get(number - 1, ""), number, row)
        stored_digest = links.get(number)
        if stored_digest == digest:
            unchanged += 1
        elif number >= following and (reason := difference_in(*closing)):
            problems.append(ImportedRowProblem(line, reason, is_conflict=False))
        elif number == following + len(new_rows):
            links[number] = digest
            new_rows.append((number, row, digest))
        else:
            reason = say(kind.conflict if stored_digest else kind.absence, number=number)
            problems.append(ImportedRowProblem(line, reason, is_conflict=True))
            is_archived = number < (chain.first_added or following)
            if is_archived and chain.first_difference is None:
                # A row that differs only in metadata or time is still the same conversation.
                archived = stored_rows.filter(**{kind.key: number}).values_list(*kind.said).first()
                if archived != tuple(getattr(row, name) for name in kind.said):
                    chain.first_difference = number
    return new_rows, unchanged


def _event_values(session: Session, seq: int, event: EventLine, link: str) -> tuple[Any, ...]:
    assert event.created_at is not None
    return (
        session.pk,
        seq,
        event.event_type,
        event.payload,
        event.turn_number,
        moment_value(event.created_at),
        link,
        "",  # the row is rendered when a person opens the page
        0,
    )


def _append(
    session: Session,
    turns: Sequence[tuple[int, NewTurn, str]],
    events: Sequence[tuple[int, EventLine, str]],
    *,
    moves_activity: bool,
) -> bool:
    columns: dict[str, Any] = {}
    latest = max(
        [event.created_at for _, event, _ in events if event.created_at is not None]
        + [turn.created_at for _, turn, _ in turns if turn.created_at is not None]
    )
    turn_rows, facts = [], []
    for number, turn, link in turns:
        assert turn.created_at is not None
        turn_rows.append(
            turn_values(session.pk, turn, number=number, created_at=turn.created_at, digest=link)
        )
        facts.append((number, read_facts_of(turn)))
        columns |= {"next_turn": number + 1, "turn_digest": link}
    end, covered = columns.get("next_turn", session.next_turn), session.journal_turn
    for seq, event, link in events:
        if event.turn_number is not None and event.turn_number < end:
            covered = max(covered, event.turn_number)
        columns |= {"next_seq": seq + 1, "event_digest": link, "journal_turn": covered}
    event_rows = [_event_values(session, *event) for event in events]
    # The first title that a turn sets, and the last preview.
    words = (updated_words(turn, title="", preview="") for _, turn, _ in turns)
    title = next((title for title, _ in words if title), "")
    words = (updated_words(turn, title="", preview="") for _, turn, _ in reversed(turns))
    preview = next((preview for _, preview in words if preview), "")
    if preview:
        columns["preview"] = preview
    session_rows = Session.objects.filter(pk=session.pk)
    with transaction.atomic(), connection.cursor() as cursor:
        # Update only if the counters are still those that were read. If another writer has
        # appended meanwhile, the caller compares all rows again.
        unchanged = session_rows.filter(next_turn=session.next_turn, next_seq=session.next_seq)
        if not unchanged.update(**columns):
            return False
        if title:
            session_rows.filter(title="").update(title=title)
        if moves_activity:
            session_rows.filter(last_active_at__lt=latest).update(last_active_at=latest)
        if turn_rows:
            cursor.executemany(INSERT_TURN, turn_rows)
        if event_rows:
            cursor.executemany(INSERT_EVENT, event_rows)
        state, state_turn, rewinds = session_rows.values_list(
            "state", "state_turn", "rewind_count"
        ).get()
        advance = StateUpdate(
            session_pk=session.pk,
            turn=session.next_turn - 1,
            rewinds=rewinds,
            state=state,
            state_turn=state_turn,
        )
        advance_state(cursor, advance, facts=facts)
        if any(event.event_type == INFO and STATE_EDIT in event.payload for _, event, _ in events):
            # A person's edits are added to the state when all rows are stored.
            advance.state_turn = LEFT_BEHIND
        session_rows.update(state=advance.state, state_turn=advance.state_turn)
    return True
