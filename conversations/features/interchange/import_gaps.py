"""How far an imported journal covers the turns, and the rows of those that it does not.

An export says it, and that is taken over where the session holds the rows that were
exported. Otherwise it follows from the rows: an event covers the turn that it names. The
journals of earlier Loom versions name none: there a person's message covers the next turn
that says the same, and the turns up to the message after it, but for answers that have no
row. Which turn the rows of calls belong to is asked only for such answers. Rows of turns
that are not covered are synthesised.
"""

import heapq
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import chain, pairwise
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

# Events that stand for a turn; others that name none are notices, which stand by their time.
MESSAGES = (USER_MESSAGE, ASSISTANT_TEXT, TOOL_CALL_STARTED, TOOL_CALL_COMPLETED)

_PARAGRAPHS = re.compile(r"\n\s*\n")


def is_exact_copy(session: Session, header: SessionLine) -> bool | None:
    """Whether the session holds exactly the rows that an export announced; None
    for a file that announces none. It may have grown since."""
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


def restore_coverage(
    session: Session, header: SessionLine, gaps: Sequence[dict[str, int]]
) -> list[int]:
    """Take the announced coverage over. Returns the places in ``gaps`` of those that do not fit."""
    is_as_announced = (session.turn_count, session.last_seq) == (header.turns, header.events)
    if is_as_announced and not session.runs.exists():
        # An import of a shorter file may have found gaps that this one fills.
        for known in JournalGap.objects.filter(session=session.pk):
            place = {name: getattr(known, name) for name in ("from_turn", "to_turn", "after_seq")}
            if place not in gaps:
                known.delete()
    bad = [place for place, gap in enumerate(gaps) if not _save_gap(session, **gap)]
    _advance_journal(session, through_turn=min(header.journal_turn or 0, session.turn_count))
    return bad


def compute_coverage(session: Session, *, has_grown: bool, is_whole: bool) -> None:
    """The coverage that follows from the rows. What an earlier import found out is
    found out anew if there is more now; what running the session recorded stays. The
    session's counters have to be fresh. ``is_whole``: no row of the file is missing."""
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
        reached = after_seq = 0
        for seq, low, high in heapq.merge(covered, _exchanges(session, is_whole=is_whole)):
            gaps = _turns_without_rows(session, reached + 1, low - 1) if low > reached + 1 else ()
            for first, last in gaps:
                # Their rows stand after the last event of an earlier turn, and what follows it
                # but for notices that are younger than the turn.
                written = Turn.objects.values("created_at").get(session=session.pk, number=first)
                between = events.filter(seq__gt=after_seq, seq__lt=seq, turn_number__isnull=True)
                earlier = between.filter(
                    Q(event_type__in=MESSAGES) | Q(created_at__lte=written["created_at"])
                )
                place = earlier.aggregate(last=Max("seq"))["last"] or after_seq
                _save_gap(session, from_turn=first, to_turn=last, after_seq=place)
            reached, after_seq = max(reached, high), seq
        _advance_journal(session, through_turn=reached)


def _advance_journal(session: Session, *, through_turn: int) -> None:
    Session.objects.filter(pk=session.pk, journal_turn__lt=through_turn).update(
        journal_turn=through_turn
    )


def _save_gap(session: Session, *, from_turn: int, to_turn: int, after_seq: int) -> bool:
    known = JournalGap.objects.filter(
        session=session.pk, from_turn__lte=to_turn, to_turn__gte=from_turn
    ).values_list("from_turn", "to_turn", "after_seq")
    if known:
        return list(known) == [(from_turn, to_turn, after_seq)]
    if not 1 <= from_turn <= to_turn <= session.turn_count or after_seq > session.last_seq:
        return False
    JournalGap.objects.create(
        session=session, from_turn=from_turn, to_turn=to_turn, after_seq=after_seq
    )
    return True


type _Row = tuple[int, bytes]
"""A number, and the digest of a text."""


def _exchanges(session: Session, *, is_whole: bool) -> Iterator[tuple[int, int, int]]:
    """Of each exchange whose message names no turn, the runs of its turns that have rows: the
    seq of a row of theirs, the first and the last one."""
    events = ChatEvent.objects.filter(session=session.pk, turn_number__isnull=True)
    if not events.filter(event_type=USER_MESSAGE).exists():
        return
    begins: list[int] = []
    same = defaultdict[bytes, list[int]](list)
    turns = Turn.objects.filter(session=session.pk)
    for turn in walk_rows(turns.filter(role=USER), "number", "content", key="number"):
        begins.append(turn["number"])
        same[_digest_of(turn["content"])].append(turn["number"])
    answers = walk_rows(
        turns.filter(role=ASSISTANT).exclude(content=""), "number", "content", key="number"
    )
    answer = next(answers, None)
    last = 0
    for message, later in pairwise(chain(_messages(events), [None])):
        assert message is not None
        seq, words, texts = message
        numbers = same[words]
        index = bisect_right(numbers, last)
        if index == len(numbers):
            continue
        last = numbers[index]
        following = bisect_right(begins, last)
        end = session.turn_count if following == len(begins) else begins[following] - 1
        said: list[_Row] = []
        while answer is not None and answer["number"] <= end:
            if answer["number"] > last and answer["content"].strip():
                said.append((answer["number"], _digest_of(answer["content"])))
            answer = next(answers, None)
        found = _rows_of_answers(said, texts)
        until = session.last_seq + 1 if later is None else later[0]
        if missing := {number for number, row in found if not row}:
            taken = {row for _, row in found}
            others = _rows_of_parts(session, missing, taken, seqs=(seq, until))
            found = [(number, row or others.get(number, 0)) for number, row in found]
        if (found and not found[-1][1]) or (later is None and not is_whole):
            counted = _last_with_rows(session, (seq, until), last, end)
            end = max(counted, *(number for number, row in found if row), last)
        begin, first, latest = last, seq, seq
        for number, row in [*found, (end + 1, 0)]:
            if row:
                first, latest = first or row, row
                continue
            stop = min(number - 1, end)
            if begin <= stop:
                yield first or latest, begin, stop
            begin, first = number + 1, 0


def _messages(events: QuerySet[ChatEvent]) -> Iterator[tuple[int, bytes, list[_Row]]]:
    """Each message of a person, its seq first, with the texts of answers up to the next one."""
    asked: tuple[int, bytes, list[_Row]] | None = None
    events = events.filter(event_type__in=(USER_MESSAGE, ASSISTANT_TEXT))
    for event in walk_rows(events, "seq", "event_type", "payload", key="seq"):
        payload = read_payload(event["event_type"], event["payload"])
        words = b""
        if isinstance(payload, UserMessage | AssistantText):
            words = _digest_of(payload.text)
        if event["event_type"] == ASSISTANT_TEXT:
            if asked is not None and words != _NO_WORDS:
                asked[2].append((event["seq"], words))
            continue
        if asked is not None:
            yield asked
        asked = event["seq"], words, []
    if asked is not None:
        yield asked


def _rows_of_answers(said: list[_Row], texts: list[_Row]) -> list[tuple[int, int]]:
    """Each answer's turn with the seq of its row, 0 for one that has none."""
    # Where there are enough rows, none is missing: a journal may have written them otherwise.
    if len(texts) >= len(said):
        return [(number, seq) for (number, _), (seq, _) in zip(said, texts, strict=False)]
    left = defaultdict[bytes, list[int]](list)
    for seq, words in reversed(texts):
        left[words].append(seq)
    return [(number, left[words].pop() if left[words] else 0) for number, words in said]


def _rows_of_parts(
    session: Session, missing: set[int], taken: set[int], *, seqs: tuple[int, int]
) -> dict[int, int]:
    """Of these answers, whose text is no row of its own, the seq of a row that shows them all
    the same: of one of their calls, or of texts that were joined. ``taken`` are rows of others."""
    calls, parts = dict[str, int](), dict[bytes, int]()
    events = ChatEvent.objects.filter(
        session=session.pk,
        seq__range=(seqs[0], seqs[1] - 1),
        event_type__in=(ASSISTANT_TEXT, TOOL_CALL_STARTED),
    )
    for event in walk_rows(events, "seq", "event_type", "payload", key="seq"):
        payload = read_payload(event["event_type"], event["payload"])
        if isinstance(payload, ToolCallStarted):
            calls.setdefault(payload.call_id, event["seq"])
        elif isinstance(payload, AssistantText) and event["seq"] not in taken:
            for part in _PARAGRAPHS.split(payload.text):
                parts.setdefault(_digest_of(part), event["seq"])
    found: dict[int, int] = {}
    turns = Turn.objects.filter(session=session.pk, number__range=(min(missing), max(missing)))
    for row in walk_rows(turns.filter(role=ASSISTANT), *COLUMNS, key="number"):
        if row["number"] not in missing:
            continue
        made = synthesise_events(StoredTurn(**row))
        own = [calls.get(call.call_id, 0) for call in made if isinstance(call, ToolCallStarted)]
        said = [
            parts.get(_digest_of(part), 0) for part in _PARAGRAPHS.split(row["content"].strip())
        ]
        # If its rows were made, its calls would be shown twice: it stays without its text.
        if row_seq := max(own, default=0) or (all(said) and said[-1]):
            found[row["number"]] = row_seq
    return found


def _last_with_rows(session: Session, seqs: tuple[int, int], low: int, high: int) -> int:
    """The last turn of an exchange that has any of its rows but texts, by their number, where
    the rest of its answer is missing. Its rows end before the second seq."""
    shown = ChatEvent.objects.filter(session=session.pk, event_type__in=MESSAGES)
    shown = shown.exclude(event_type=ASSISTANT_TEXT)
    left = shown.filter(seq__gte=seqs[0], seq__lt=seqs[1]).count()
    turns = Turn.objects.filter(session=session.pk, number__range=(low, high))
    for row in walk_rows(turns, *COLUMNS, key="number"):
        if left <= 0:
            return int(row["number"]) - 1
        made = synthesise_events(StoredTurn(**row))
        uncounted = AssistantText | ContentIndicator | Info
        left -= sum(not isinstance(payload, uncounted) for payload in made)
    return high


def _digest_of(text: str) -> bytes:
    # The texts of a session may be larger than memory.
    return sha256(text.strip().encode("utf-8", "surrogatepass")).digest()


_NO_WORDS = _digest_of("")


def _turns_without_rows(session: Session, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Runs of turns that no event names and no recorded gap holds, from the first to the
    last that people see: system turns are mostly hints for the model."""
    named = ChatEvent.objects.filter(session=OuterRef("session"), turn_number=OuterRef("number"))
    turns = Turn.objects.filter(session=session.pk, number__range=(low, high))
    turns = turns.filter(~Exists(named), ~Exists(_gap_around_turn()))
    first = last = previous = 0
    for row in walk_rows(turns, "number", "role", "metadata", key="number"):
        number = row["number"]
        if first and number != previous + 1:
            yield first, last
            first = 0
        previous = number
        turn = NewTurn(role=row["role"], content="", metadata=row["metadata"])
        if turn.role != SYSTEM or read_metadata(turn).get("user_facing") is True:
            first, last = first or number, number
    if first:
        yield first, last


def _gap_around_turn() -> Any:
    return JournalGap.objects.filter(
        session=OuterRef("session"),
        from_turn__lte=OuterRef("number"),
        to_turn__gte=OuterRef("number"),
    )
