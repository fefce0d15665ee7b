"""Comparing imported turns and events with the archive and storing new ones in bulk.

Rows are compared by their digests in the hash chains: if two rows have the same digest after the
same previous digest, all fields that the digest covers are equal. Comparing and hashing happen
before any lock is taken.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(slots=True)
class SessionDifference:
    """The rows from which an archived session and the file differ in content.

    ``first`` has the numbers of the first "turn" and "event" that differ. No new rows may be added
    after a difference: turns would answer messages that are not in the session, and events would
    show texts that the turns in the archive do not have. ``added`` has the numbers of the first
    rows that this file added. Later rows are this file's own, so they are not compared for
    differences."""

    first: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    @property
    def turn(self) -> int | None:
        return self.first.get("turn")

    @property
    def reason(self) -> str:
        if self.turn is None:
            number = self.first["event"]
            return say("the archived session differs from event %(number)s on", number=number)
        return say("the archived session differs from turn %(number)s on", number=self.turn)


def store_rows(
    session: Session,
    *,
    turns: Sequence[ImportedRow[NewTurn]],
    events: Sequence[ImportedRow[EventLine]],
    difference: SessionDifference,
    moves_activity: bool,
) -> tuple[dict[str, int], list[ImportedRowProblem]]:
    """Append the rows after the session's end and compare all others with the archive.

    New rows are appended in one transaction. ``difference`` holds the differences found in earlier
    rows of the file and is updated. If ``moves_activity``, the session's last activity is moved to
    the time of its newest row. Return the counts of rows by the names of ``ImportCounts``, and the
    rows that were not stored. Raise Conflict if other writers append to the session on each of
    MAX_ATTEMPTS attempts."""
    for _ in range(MAX_ATTEMPTS):
        before = Session.objects.get(pk=session.pk)
        problems: list[ImportedRowProblem] = []
        new_turns, unchanged_turns = _compare(
            Turn.objects.filter(session=session.pk),
            ("turn", "number", before.next_turn, before.turn_digest),
            turns,
            link_turn,
            first_digest(session.uuid, chain="turns"),
            difference,
            problems,
        )
        new_events, unchanged_events = _compare(
            ChatEvent.objects.filter(session=session.pk),
            ("event", "seq", before.next_seq, before.event_digest),
            events,
            link_event,
            first_digest(session.uuid, chain="events"),
            difference,
            problems,
        )
        counts = {
            "turns_added": len(new_turns),
            "turns_unchanged": unchanged_turns,
            "events_added": len(new_events),
            "events_unchanged": unchanged_events,
        }
        is_done = not new_turns and not new_events
        if is_done or _append(before, new_turns, new_events, moves_activity=moves_activity):
            for kind, new_rows in (("turn", new_turns), ("event", new_events)):
                if new_rows:
                    difference.added.setdefault(kind, new_rows[0][0])
            return counts, problems
    raise Conflict("The session is in use. Import it again later.")


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


def _compare[T](
    stored_rows: QuerySet[Any],
    chain: tuple[str, str, int, str],
    rows: Sequence[ImportedRow[T]],
    link: Callable[[str, int, T], str],
    first: str,
    difference: SessionDifference,
    problems: list[ImportedRowProblem],
) -> tuple[list[tuple[int, T, str]], int]:
    """Return the new rows with their numbers and digests, and the count of unchanged rows.

    ``chain`` is the name of a row, the column of its number, the next number and the last digest.
    ``first`` is the digest before the first row."""
    kind, key, following, last = chain
    numbers = {number - back for _, number, _ in rows if number < following for back in (0, 1)}
    links = dict(
        stored_rows.filter(**{f"{key}__in": numbers}).order_by(key).values_list(key, "digest")
    )
    links |= {0: first, following - 1: last}
    new_rows: list[tuple[int, T, str]] = []
    unchanged = 0
    for line, number, row in rows:
        digest, stored_digest = link(links.get(number - 1, ""), number, row), links.get(number)
        if stored_digest == digest:
            unchanged += 1
        elif number >= following and (difference.turn or kind in difference.first):
            problems.append(ImportedRowProblem(line, difference.reason, is_conflict=False))
        elif number == following + len(new_rows):
            links[number] = digest
            new_rows.append((number, row, digest))
        else:
            reason = _conflict(kind, number, is_there=bool(stored_digest))
            problems.append(ImportedRowProblem(line, reason, is_conflict=True))
            is_archived = number < difference.added.get(kind, following)
            if is_archived and kind not in difference.first:
                # A row that differs only in metadata or time is still the same conversation.
                archived = stored_rows.filter(**{key: number}).values_list(*_SAID[kind]).first()
                if archived != tuple(getattr(row, name) for name in _SAID[kind]):
                    difference.first[kind] = number
    return new_rows, unchanged


# The columns with the content of a row, without its name, time and metadata.
_SAID = {"turn": WORDS, "event": ("event_type", "payload")}


def _conflict(kind: str, number: int, *, is_there: bool) -> str:
    if kind == "turn":
        if is_there:
            return say("turn %(number)s is archived with different content", number=number)
        return say("turn %(number)s is missing from the archive", number=number)
    if is_there:
        return say("event %(number)s is archived with different content", number=number)
    return say("event %(number)s is missing from the archive", number=number)


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


# Mapping the numbers in an interchange file to the numbers in the archive.


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


class LineNumbering:
    """The numbers in the archive of one chain's lines, without gaps.

    A line keeps its number if a row of the session has that number or it is the next one.
    Otherwise the line gets the next number, and so does every later line whose number is taken.
    A line without a usable number follows the line before it. Renumbered ranges are stored with
    the session (``earlier_runs``), so importing the same file again finds the same rows. Memory
    grows with the number of gaps, not of lines.

    ``end`` is the last number that the session has so far.
    """

    def __init__(self, *, end: int, earlier_runs: Iterable[NumberedLines] = ()) -> None:
        self.end = end
        self.is_renumbered = False
        self.has_begun = False
        self._cursor = 1
        self._runs = sorted(earlier_runs, key=lambda run: run.first)
        self._occupied = sorted((run.number, run.end) for run in self._runs)
        self._is_full = len(self._runs) >= MAX_RUNS
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
            self._occupy(number, number)
            run = self._latest
            if run and file_number == run.last + 1 and number == run.end + 1:
                run.last = file_number
            else:
                self._latest = NumberedLines(file_number, file_number, number)
                insort(self._runs, self._latest, key=lambda run: run.first)
        if file_number is None:
            self._occupy(number, number)
        self.has_begun = True
        self.is_renumbered = self.is_renumbered or file_number != number
        self._cursor = number + 1
        self.end = max(self.end, number)
        return number

    def find(self, original: int) -> int | None:
        """Return the number of the row that has the number ``original`` in the file.

        Return None if no row has it. If no line was renumbered, return ``original``."""
        if not self.is_renumbered and not self._runs:
            return original
        earlier_number = self._lookup(original)
        if earlier_number is not None:
            return earlier_number
        return original if 1 <= original <= self.end and not self._is_taken(original) else None

    def runs(self) -> list[NumberedLines]:
        """Return the renumbered ranges to store with the session."""
        return self._runs

    def _lookup(self, original: int) -> int | None:
        index = bisect_right(self._runs, original, key=lambda run: run.first) - 1
        if index < 0 or original > self._runs[index].last:
            return None
        return self._runs[index].number + original - self._runs[index].first

    def _is_taken(self, number: int) -> bool:
        index = bisect_right(self._occupied, (number, number)) - 1
        around = self._occupied[max(0, index) : index + 2]
        return any(low <= number <= high for low, high in around)

    def _occupy(self, low: int, high: int) -> None:
        if self._occupied and self._occupied[-1][1] + 1 == low:
            self._occupied[-1] = (self._occupied[-1][0], high)
        else:
            insort(self._occupied, (low, high))


def open_numbering(session: Session, file_metadata: str, name: str, *, end: int) -> LineNumbering:
    """Return the numbering of a chain, with the ranges that earlier imports renumbered.

    ``file_metadata`` is the session's metadata in the file. Ranges in it are ignored, because the
    numbers in an export already include them."""
    file_runs = {(run.first, run.number) for run in remembered_runs(file_metadata, name)}
    runs = remembered_runs(session.metadata, name)
    return LineNumbering(
        end=end, earlier_runs=[run for run in runs if (run.first, run.number) not in file_runs]
    )


def remembered_runs(metadata: str, name: str) -> tuple[NumberedLines, ...]:
    """Read the ranges that earlier imports renumbered from a session's metadata."""
    try:
        value = load_json(metadata, default={})
        return tuple(NumberedLines(*map(int, run)) for run in value.get(name, ()))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return ()


def remember_runs(session: Session, name: str, numbering: LineNumbering) -> None:
    """Store all renumbered ranges in the session's metadata.

    A range is stored as its first and last number in the file and its first number in the
    archive."""
    stored_runs = remembered_runs(session.metadata, name)
    runs_by_start = {(run.first, run.number): run for run in (*stored_runs, *numbering.runs())}
    all_runs = sorted(runs_by_start.values(), key=lambda run: run.number)[:MAX_RUNS]
    if all_runs == list(stored_runs):
        return
    runs = [[run.first, run.last, run.number] for run in all_runs]
    text = session.metadata
    with suppress(ValueError):  # add_metadata() keeps metadata that is not JSON
        metadata = load_json(text, default={})
        if isinstance(metadata, dict) and metadata.pop(name, None) is not None:
            text = dump_json(metadata)
    session.metadata = add_metadata(text, {name: runs})
    Session.objects.filter(pk=session.pk).update(metadata=session.metadata)
