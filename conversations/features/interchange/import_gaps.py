"""Finding the turns that an imported journal does not cover.

An export states which turns the journal covers. The statement is used if the session has exactly
the rows that were exported. Otherwise coverage is computed from the rows: an event covers the turn
that it names. Events of earlier Loom versions do not name turns. In their journals a person's
message covers the next turn with the same text and the turns up to the next message, except for
answers without a row. Rows of tool calls are matched with turns only for such answers. Rows of
turns that are not covered are synthesised from the turns.
"""

import heapq
import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Any

from django.db import transaction
from django.db.models import Exists, Max, Model, OuterRef, Q, QuerySet

from conversations.archive.append import walk_rows
from conversations.archive.journal import read_payload, synthesise_events
from conversations.archive.turns import COLUMNS
from conversations.domain.events import (
    ASSISTANT_TEXT,
    TOOL_CALL_COMPLETED,
    TOOL_CALL_STARTED,
    USER_MESSAGE,
    AssistantText,
    ContentIndicator,
    Info,
    ToolCallStarted,
    UserMessage,
)
from conversations.domain.text import first_digest
from conversations.domain.turns import ASSISTANT, SYSTEM, USER, NewTurn, StoredTurn, read_metadata
from conversations.models import ChatEvent, JournalGap, Session, Turn

from .fields import SessionLine

# Types of events that show a turn. Other events without a turn are notices, placed by their time.
MESSAGES = (USER_MESSAGE, ASSISTANT_TEXT, TOOL_CALL_STARTED, TOOL_CALL_COMPLETED)

_PARAGRAPHS = re.compile(r"\n\s*\n")


def is_exact_copy(session: Session, header: SessionLine) -> bool | None:
    """Return whether the session has exactly the rows that the export's session line announces.

    Rows after them are ignored. Return None if the session line does not announce rows."""
    if header.turns is None or header.events is None or not header.turn_digest:
        return None
    return (
        _digest_at(Turn, session, "turns", number=header.turns) == header.turn_digest
        and _digest_at(ChatEvent, session, "events", seq=header.events) == header.event_digest
    )


def _digest_at(model: type[Model], session: Session, chain: str, **place: int) -> str:
    if 0 in place.values():
        return first_digest(session.uuid, chain=chain)
    rows = model._default_manager.filter(session=session.pk, **place)
    return str(rows.values_list("digest", flat=True).first() or "")


@dataclass(frozen=True, slots=True)
class _Hole:
    """A range of turns that no event covers, and the events between which their rows belong."""

    first: int
    last: int
    after_seq: int
    before_seq: int


def restore_coverage(
    session: Session, header: SessionLine, gaps: Sequence[dict[str, int]]
) -> list[int]:
    """Store the coverage that the file states. Return the indexes of ``gaps`` that do not fit."""
    file_gaps = [(gap["from_turn"], gap["to_turn"], gap["after_seq"]) for gap in gaps]
    stored_gaps = _read_gaps(session)
    is_as_announced = (session.turn_count, session.last_seq) == (header.turns, header.events)
    if is_as_announced and not session.runs.exists() and not {*stored_gaps} <= {*file_gaps}:
        # Gaps that were found when a shorter file was imported may be filled by this one.
        JournalGap.objects.filter(session=session.pk).delete()
        stored_gaps = []
    bad = _save_gaps(session, stored_gaps, file_gaps)
    _advance_journal(session, through_turn=min(header.journal_turn or 0, session.turn_count))
    return bad


def compute_coverage(session: Session, *, has_grown: bool, is_whole: bool) -> None:
    """Compute and store the coverage of the session's rows.

    If ``has_grown``, delete the gaps that earlier imports found, unless the session has runs.
    ``is_whole`` says that no row of the file is missing. The caller must have refreshed the
    session's counters."""
    if session.last_seq == 0 or session.turn_count == 0:
        return
    with transaction.atomic():
        if has_grown and not session.runs.exists():
            JournalGap.objects.filter(session=session.pk).delete()
        events = ChatEvent.objects.filter(session=session.pk)
        named = events.filter(turn_number__range=(1, session.turn_count))
        covered = (
            (row["seq"], row["turn_number"], row["turn_number"])
            for row in walk_rows(named, "seq", "turn_number", key="seq")
        )
        holes: list[_Hole] = []
        reached = after_seq = 0
        for seq, low, high in heapq.merge(covered, _exchanges(session, is_whole=is_whole)):
            if low > reached + 1:
                holes.append(_Hole(reached + 1, low - 1, after_seq, seq))
            reached, after_seq = max(reached, high), seq
        stored_gaps, new_gaps = _read_gaps(session), list[_Gap]()
        for hole, first, last, written in _turns_without_rows(session, stored_gaps, holes):
            # The rows belong after the last event of an earlier turn and after the events that
            # follow it, except for notices that are newer than the turn.
            after_seq = hole.after_seq
            if hole.before_seq > after_seq + 1:
                between = events.filter(
                    seq__gt=after_seq, seq__lt=hole.before_seq, turn_number__isnull=True
                )
                earlier = between.filter(Q(event_type__in=MESSAGES) | Q(created_at__lte=written))
                after_seq = earlier.aggregate(last=Max("seq"))["last"] or after_seq
            new_gaps.append((first, last, after_seq))
        _save_gaps(session, stored_gaps, new_gaps)
        _advance_journal(session, through_turn=reached)


def _advance_journal(session: Session, *, through_turn: int) -> None:
    Session.objects.filter(pk=session.pk, journal_turn__lt=through_turn).update(
        journal_turn=through_turn
    )


type _Gap = tuple[int, int, int]
"""The first and last turn of a gap, and the seq after which their rows belong."""


def _read_gaps(session: Session) -> list[_Gap]:
    gaps = JournalGap.objects.filter(session=session.pk).order_by("from_turn")
    return list(gaps.values_list("from_turn", "to_turn", "after_seq"))


def _gap_around(gaps: Sequence[_Gap], low: int, high: int) -> _Gap | None:
    """Return the last gap that has any of these turns. ``gaps`` must be in order."""
    index = bisect_right(gaps, high, key=lambda gap: gap[0]) - 1
    return gaps[index] if index >= 0 and gaps[index][1] >= low else None


def _save_gaps(session: Session, stored_gaps: Sequence[_Gap], gaps: Iterable[_Gap]) -> list[int]:
    """Add gaps to the ``stored_gaps`` of a session. Return the indexes of those that do not fit."""
    all_gaps, added, bad = list(stored_gaps), list[JournalGap](), list[int]()
    for index, gap in enumerate(gaps):
        from_turn, to_turn, after_seq = gap
        if (existing := _gap_around(all_gaps, from_turn, to_turn)) is not None:
            if existing != gap:
                bad.append(index)
        elif not 1 <= from_turn <= to_turn <= session.turn_count or after_seq > session.last_seq:
            bad.append(index)
        else:
            insort(all_gaps, gap)
            added.append(
                JournalGap(
                    session=session, from_turn=from_turn, to_turn=to_turn, after_seq=after_seq
                )
            )
    JournalGap.objects.bulk_create(added, batch_size=500)
    return bad


type _Row = tuple[int, bytes]
"""A turn's number or an event's seq, and the digest of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """A user turn and the turns up to the next one, with the journal's message that shows it.

    ``seq`` is the message, ``end_seq`` the next message, and ``texts`` are the rows of answers
    between them. ``first`` and ``last`` are the turns, and ``answers`` those with text.
    """

    seq: int
    end_seq: int
    texts: list[_Row]
    first: int
    last: int
    answers: list[_Row]


def _exchanges(session: Session, *, is_whole: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of turns that have rows, for exchanges whose message names no turn.

    A range is the seq of one of its rows, its first turn and its last turn. For example, the rows
    11 to 13 are a message, a call and a text, and the turns 5 to 9 are the same message, an answer
    with the call, its result, an answer whose text is in no row, and one with the text of row 13.
    Turn 8 has no row, so the ranges are (11, 5, 7) and (13, 9, 9).
    """
    for exchange in _match_messages(session):
        rows, last = _rows_of_answers(exchange), exchange.last
        is_cut_off = exchange.end_seq > session.last_seq and not is_whole
        if is_cut_off or 0 in rows.values():
            last_with_rows = _add_other_rows(session, exchange, rows)
            if is_cut_off or not rows[max(rows)]:
                last = last_with_rows
        yield from _runs_with_rows(rows, seq=exchange.seq, low=exchange.first, high=last)


def _match_messages(session: Session) -> Iterator[_Exchange]:
    """Yield the exchanges whose message in the journal has exactly the text of a later user turn.

    A message with another text shows no turn, and the turns that are skipped have no rows.
    """
    events = ChatEvent.objects.filter(session=session.pk, turn_number__isnull=True)
    messages = _read_events(events, USER_MESSAGE)
    if not messages:
        return
    texts = _read_events(events, ASSISTANT_TEXT)
    turns = Turn.objects.filter(session=session.pk)
    begins = _read_turns(turns.filter(role=USER))
    answers = _read_turns(turns.filter(role=ASSISTANT).exclude(content=""))
    indexes_by_text = defaultdict[bytes, list[int]](list)
    for index, (_, words) in enumerate(begins):
        indexes_by_text[words].append(index)
    begins.append((session.turn_count + 1, b""))
    matched = -1
    for (seq, words), (end_seq, _) in pairwise([*messages, (session.last_seq + 1, b"")]):
        indexes = indexes_by_text[words]
        later = bisect_right(indexes, matched)
        if later == len(indexes):
            continue
        matched = indexes[later]
        first, end = begins[matched][0], begins[matched + 1][0]
        yield _Exchange(
            seq=seq,
            end_seq=end_seq,
            texts=_between(texts, seq, end_seq),
            first=first,
            last=end - 1,
            answers=_between(answers, first, end),
        )


def _read_events(events: QuerySet[ChatEvent], event_type: str) -> list[_Row]:
    rows: list[_Row] = []
    events = events.filter(event_type=event_type)
    for event in walk_rows(events, "seq", "payload", key="seq"):
        payload = read_payload(event_type, event["payload"])
        # A row that cannot be read has no text, but counts as the row of an answer.
        if isinstance(payload, UserMessage | AssistantText):
            rows.append((event["seq"], _digest_of(payload.text)))
        else:
            rows.append((event["seq"], b""))
    return rows


def _read_turns(turns: QuerySet[Turn]) -> list[_Row]:
    rows = walk_rows(turns, "number", "content", key="number")
    return [(row["number"], _digest_of(row["content"])) for row in rows]


def _between(rows: list[_Row], low: int, end: int) -> list[_Row]:
    """Return the rows from ``low`` on and before ``end``. ``rows`` must be in order."""
    return rows[bisect_left(rows, (low,)) : bisect_left(rows, (end,))]


def _runs_with_rows(
    rows: dict[int, int], *, seq: int, low: int, high: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of an exchange's turns between the answers that have no row."""
    begin, first, latest = low, seq, seq
    for number, row in [*rows.items(), (high + 1, 0)]:
        if row:
            first, latest = first or row, row
            continue
        stop = min(number - 1, high)
        if begin <= stop:
            yield first or latest, begin, stop
        begin, first = number + 1, 0


def _rows_of_answers(exchange: _Exchange) -> dict[int, int]:
    """Return the seq of each answer's row by the answer's turn, or 0 if it has no row."""
    answers = [row for row in exchange.answers if row[1] != _NO_WORDS]
    texts = [row for row in exchange.texts if row[1] != _NO_WORDS]
    # With as many rows as answers, no row is missing: rows may have other text than the turns.
    if len(texts) >= len(answers):
        return {number: seq for (number, _), (seq, _) in zip(answers, texts, strict=False)}
    unused = defaultdict[bytes, list[int]](list)
    for seq, words in reversed(texts):
        unused[words].append(seq)
    return {number: unused[words].pop() if unused[words] else 0 for number, words in answers}


def _add_other_rows(session: Session, exchange: _Exchange, rows: dict[int, int]) -> int:
    """Add the ``rows`` of answers whose text has no row of its own. Return the last turn with rows.

    Such a row shows one of the answer's tool calls, or its text joined with other texts. The last
    turn is found by counting the rows that are not answer texts."""
    last = exchange.first
    if exchange.end_seq == exchange.seq + 1:  # the journal has only the message
        return last
    used_rows = set(rows.values())
    calls, parts = dict[str, int](), dict[bytes, int]()
    rows_left = 0
    events = ChatEvent.objects.filter(
        session=session.pk,
        seq__range=(exchange.seq, exchange.end_seq - 1),
        event_type__in=MESSAGES,
    )
    for event in walk_rows(events, "seq", "event_type", "payload", key="seq"):
        rows_left += event["event_type"] != ASSISTANT_TEXT
        payload = read_payload(event["event_type"], event["payload"])
        if isinstance(payload, ToolCallStarted):
            calls.setdefault(payload.call_id, event["seq"])
        elif isinstance(payload, AssistantText) and event["seq"] not in used_rows:
            for part in _PARAGRAPHS.split(payload.text):
                parts.setdefault(_digest_of(part), event["seq"])
    turns = Turn.objects.filter(session=session.pk, number__range=(exchange.first, exchange.last))
    for row in walk_rows(turns, *COLUMNS, key="number"):
        number, payloads = row["number"], synthesise_events(StoredTurn(**row))
        if rows.get(number) == 0:
            seqs = [calls.get(p.call_id, 0) for p in payloads if isinstance(p, ToolCallStarted)]
            texts = [parts.get(_digest_of(t), 0) for t in _PARAGRAPHS.split(row["content"].strip())]
            # An answer with a row of a call counts as shown, even if its text has no row:
            # synthesised rows would show its calls twice.
            rows[number] = max(seqs, default=0) or (texts[-1] if all(texts) else 0)
        if rows_left > 0 or rows.get(number):
            last = number
        rows_left -= sum(
            not isinstance(p, AssistantText | ContentIndicator | Info) for p in payloads
        )
    return last


def _digest_of(text: str) -> bytes:
    # Digests are compared because the texts of a session may be larger than memory.
    return sha256(text.strip().encode("utf-8", "surrogatepass")).digest()


_NO_WORDS = _digest_of("")


def _turns_without_rows(
    session: Session, stored_gaps: Sequence[_Gap], holes: Sequence[_Hole]
) -> Iterator[tuple[_Hole, int, int, datetime]]:
    """Yield the ranges of turns in each hole that no event names and no known gap has.

    A range is its hole, its first and last turn that people see, and the time of the first one.
    System turns are mostly hints for the model, which people do not see."""
    if not holes:
        return
    named = ChatEvent.objects.filter(session=OuterRef("session"), turn_number=OuterRef("number"))
    hole_range = (holes[0].first, holes[-1].last)
    turns = Turn.objects.filter(~Exists(named), session=session.pk, number__range=hole_range)
    # Walk the turns once for all holes: a journal may lack the answers to thousands of messages.
    rows = walk_rows(turns, "number", "role", "metadata", "created_at", key="number")

    def run_of(item: tuple[int, dict[str, Any]]) -> tuple[_Hole | None, int]:
        # The second value is the same for turns that follow each other without a break.
        index, number = item[0], item[1]["number"]
        hole = holes[bisect_right(holes, number, key=lambda hole: hole.first) - 1]
        is_known = _gap_around(stored_gaps, number, number) is not None
        return None if number > hole.last or is_known else hole, number - index

    for (hole, _), run in groupby(enumerate(rows), key=run_of):
        first = last = None
        for row in (row for _, row in run if hole is not None and _is_seen(row)):
            first, last = first or row, row
        if hole is not None and first is not None and last is not None:
            yield hole, first["number"], last["number"], first["created_at"]


def _is_seen(row: dict[str, Any]) -> bool:
    turn = NewTurn(role=row["role"], content="", metadata=row["metadata"])
    return turn.role != SYSTEM or read_metadata(turn).get("user_facing") is True
