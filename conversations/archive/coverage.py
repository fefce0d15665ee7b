"""How far an imported journal covers its turns.

The journal is walked once, in order, against the turns. An event belongs to the
turn that it names, or to the one that it is matched with. Between two turns with
events, messages that could not be matched stand for turns of their kind, and a
tool's result is covered by a completed row that names the turn of the call. Any
other turn without events becomes part of a gap: its rows will be synthesised.

Everything is read by page, so memory does not grow with the session.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q

from conversations.domain.events import (
    ASSISTANT_TEXT,
    TOOL_CALL_COMPLETED,
    TOOL_CALL_STARTED,
    USER_MESSAGE,
    Fallback,
    ToolCallCompleted,
)
from conversations.domain.jsontext import dump_json
from conversations.domain.turns import ASSISTANT, SYSTEM, TOOL, USER, StoredTurn, read_metadata
from conversations.models import ChatEvent, JournalGap, Session, Turn
from conversations.rendering.version import RENDER_VERSION

from .journal import synthesise_events
from .transcript import render_turn
from .turn_matching import TurnMatcher, read_payload_or_none
from .turns import COLUMNS, stored_turns
from .walking import walk_rows

PAGE = 500
EVENT_PAGE = 100
SAVED_AT_ONCE = 500
SAVED_CHARS = 4_000_000
LATE = 200
"""Turns by which an event may come late and still take back a gap."""

ROLE_OF = {USER_MESSAGE: USER, ASSISTANT_TEXT: ASSISTANT, TOOL_CALL_COMPLETED: TOOL}
"""Events of which each stands for a turn of its own."""


@dataclass(frozen=True, slots=True)
class _Event:
    """``payload`` is read only where the event names no turn of the session."""

    seq: int
    event_type: str
    turn: int | None
    payload: str
    created_at: datetime


@dataclass(slots=True)
class _Gap:
    low: int
    high: int
    after_seq: int


@dataclass(slots=True)
class _Walk:
    """``reached``: the last turn that is decided about. ``after_seq``: the last
    event that belongs to a turn. ``loose`` counts the messages after it whose turn
    is not known, ``notes`` has the seq and time of the other rows after it."""

    session: Session
    matcher: TurnMatcher
    reached: int = 0
    after_seq: int = 0
    loose: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[int, datetime]] = field(default_factory=list)
    gaps: deque[_Gap] = field(default_factory=deque)


def cover_session(session: Session) -> None:
    """Record which turns the journal covers. What is recorded already stays; doing
    it twice changes nothing. The session's counters have to be fresh."""
    if session.last_seq == 0 or session.turn_count == 0:
        return
    walk = _Walk(session=session, matcher=TurnMatcher(session))
    for event in _read_events(session):
        _take(walk, event)
        _save_gaps(walk, before=walk.reached - LATE)
    _settle_tail(walk)
    _save_gaps(walk, before=session.turn_count + 1)
    advance_journal(session, through_turn=walk.reached)


def advance_journal(session: Session, *, through_turn: int) -> None:
    """Say that the journal covers the turns up to this one, but for recorded gaps."""
    Session.objects.filter(pk=session.pk, journal_turn__lt=through_turn).update(
        journal_turn=through_turn
    )


def save_gap(session: Session, *, from_turn: int, to_turn: int, after_seq: int) -> bool:
    """Record one gap, unless it is recorded; False when it cannot be one here."""
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


def _read_events(session: Session) -> Iterator[_Event]:
    last, end = 0, session.turn_count
    while True:
        rows = ChatEvent.objects.filter(session=session.pk, seq__gt=last).order_by("seq")
        page = list(rows.values_list("seq", "event_type", "turn_number", "created_at")[:EVENT_PAGE])
        unnamed = [seq for seq, kind, turn, _ in page if _is_unnamed(kind, turn, end)]
        payloads = dict(
            rows.filter(seq__in=unnamed).values_list("seq", "payload") if unnamed else ()
        )
        for seq, event_type, turn, created_at in page:
            yield _Event(seq, event_type, turn, payloads.get(seq, ""), created_at)
        if len(page) < EVENT_PAGE:
            return
        last = page[-1][0]


def _is_unnamed(event_type: str, turn: int | None, end: int) -> bool:
    return not _is_turn(turn, end) and event_type in (*ROLE_OF, TOOL_CALL_STARTED)


def _is_turn(turn: int | None, end: int) -> bool:
    return turn is not None and 1 <= turn <= end


def _take(walk: _Walk, event: _Event) -> None:
    turn = event.turn if _is_turn(event.turn, walk.session.turn_count) else None
    if turn is None and event.payload:
        turn = walk.matcher.find(event.event_type, event.payload, reached=walk.reached)
    if turn is None:
        if event.event_type in ROLE_OF:
            walk.loose[ROLE_OF[event.event_type]] += 1
        elif len(walk.notes) < PAGE:
            walk.notes.append((event.seq, event.created_at))
        return
    if turn > walk.reached:
        _settle(walk, walk.reached + 1, turn - 1)
        walk.reached = turn
    else:
        _take_back_gap(walk, turn)
    walk.after_seq = event.seq
    walk.loose.clear()
    walk.notes.clear()


def _settle(walk: _Walk, low: int, high: int) -> None:
    """Decide about the turns between two that have events."""
    if low > high:
        return
    shown = _calls_shown_at(walk.session, low - 1)
    run: list[tuple[int, bool]] = []
    for turn in _turns_without_events(walk.session, low, high):
        if turn.role in (USER, ASSISTANT):
            shown = set()
        is_covered = (turn.role == TOOL and turn.call_id in shown) or walk.loose[turn.role] > 0
        if is_covered or (run and turn.number != run[-1][0] + 1):
            _add_gap(walk, run)
            run = []
        if not is_covered:
            run.append((turn.number, turn.is_visible))
        elif turn.call_id not in shown:
            walk.loose[turn.role] -= 1
    _add_gap(walk, run)


def _add_gap(walk: _Walk, run: list[tuple[int, bool]]) -> None:
    visible = [number for number, is_visible in run if is_visible]
    if visible:
        walk.gaps.append(_Gap(visible[0], visible[-1], _place_of(walk, visible[0])))


def _place_of(walk: _Walk, turn: int) -> int:
    """The seq after which the turn's rows stand: the last event of an earlier turn,
    and the notices right after it that are not younger than the turn."""
    after_seq = walk.after_seq
    if not walk.notes:
        return after_seq
    turns = Turn.objects.filter(session=walk.session.pk, number=turn)
    written = turns.values_list("created_at", flat=True).get()
    for seq, created_at in walk.notes:
        if seq != after_seq + 1 or created_at > written:
            break
        after_seq = seq
    return after_seq


def _settle_tail(walk: _Walk) -> None:
    """The last turns that the journal covers: results of the last turn's calls, and
    turns for which messages of unknown turn stand."""
    shown = _calls_shown_at(walk.session, walk.reached)
    left = Counter(walk.loose)
    last = walk.reached
    for turn in _turns_without_events(walk.session, walk.reached + 1, walk.session.turn_count):
        if turn.role in (USER, ASSISTANT):
            shown = set()
        if turn.role == TOOL and turn.call_id in shown:
            last = turn.number
        elif left[turn.role] > 0:
            left[turn.role] -= 1
            last = turn.number
        if not shown and not any(left.values()):
            break
    _settle(walk, walk.reached + 1, last)
    walk.reached = last


@dataclass(frozen=True, slots=True)
class _Bare:
    """A turn without events. ``is_visible``: rows will be synthesised from it."""

    number: int
    role: str
    call_id: str
    is_visible: bool


def _turns_without_events(session: Session, low: int, high: int) -> Iterator[_Bare]:
    """The turns that no event names and no recorded gap holds."""
    named = ChatEvent.objects.filter(session=OuterRef("session"), turn_number=OuterRef("number"))
    held = JournalGap.objects.filter(
        session=OuterRef("session"),
        from_turn__lte=OuterRef("number"),
        to_turn__gte=OuterRef("number"),
    )
    while low <= high:
        turns = Turn.objects.filter(session=session.pk, number__range=(low, high))
        turns = turns.filter(~Exists(named), ~Exists(held)).order_by("number")
        page = list(turns.values_list("number", "role", "tool_call_id")[:PAGE])
        hints = _hints(session, [number for number, role, _ in page if role == SYSTEM])
        for number, role, call_id in page:
            yield _Bare(number, role, call_id or "", number not in hints)
        if len(page) < PAGE:
            return
        low = page[-1][0] + 1


def _hints(session: Session, numbers: list[int]) -> set[int]:
    """Those of these system turns that are not meant for people."""
    if not numbers:
        return set()
    turns = Turn.objects.filter(session=session.pk, number__in=numbers).order_by("number")
    return {
        turn.number
        for turn in stored_turns(turns)
        if read_metadata(turn).get("user_facing") is not True
    }


def _calls_shown_at(session: Session, turn: int) -> set[str]:
    """Ids of the calls whose completed rows name the turn that made the calls."""
    events = ChatEvent.objects.filter(
        session=session.pk, turn_number=turn, event_type=TOOL_CALL_COMPLETED
    )
    texts = events.order_by("seq").values_list("payload", flat=True)[:PAGE]
    payloads = (read_payload_or_none(TOOL_CALL_COMPLETED, text) for text in texts)
    return {p.call_id for p in payloads if isinstance(p, ToolCallCompleted) and p.call_id}


def _take_back_gap(walk: _Walk, turn: int) -> None:
    """A turn's event came late: what is left of its gap are the turns around it."""
    for index, gap in enumerate(walk.gaps):
        if gap.low <= turn <= gap.high:
            rest = (_Gap(gap.low, turn - 1, gap.after_seq), _Gap(turn + 1, gap.high, gap.after_seq))
            del walk.gaps[index]
            for part in reversed(rest):
                if part.low <= part.high:
                    walk.gaps.insert(index, part)
            return


def _save_gaps(walk: _Walk, *, before: int) -> None:
    while walk.gaps and walk.gaps[0].high < before:
        gap = walk.gaps.popleft()
        save_gap(walk.session, from_turn=gap.low, to_turn=gap.high, after_seq=gap.after_seq)


def render_uncovered_turns(session: Session) -> None:
    """Make and keep the rows of turns that the journal does not cover, so that the
    first look at an imported session costs what every look costs. Turns that cannot
    be read are left: each look says so."""
    session.refresh_from_db(fields=["journal_turn"])
    gaps = JournalGap.objects.filter(session=session.pk)
    held = gaps.filter(from_turn__lte=OuterRef("number"), to_turn__gte=OuterRef("number"))
    uncovered = Q(number__gt=session.journal_turn)
    last = session.journal_turn
    if gaps.exists():
        uncovered = uncovered | Q(Exists(held))
        last = 0
    rendered: list[tuple[str, int]] = []
    chars = 0
    for pk, turn in _unrendered(session, uncovered, after=last):
        html = _rows_of(session, turn)
        if html:
            rendered.append((html, pk))
            chars += len(html)
        if len(rendered) >= SAVED_AT_ONCE or chars > SAVED_CHARS:
            _save_rows(rendered)
            rendered, chars = [], 0
    _save_rows(rendered)


def _unrendered(session: Session, wanted: Q, *, after: int) -> Iterator[tuple[int, StoredTurn]]:
    turns = Turn.objects.filter(session=session.pk, number__gt=after).filter(wanted)
    turns = turns.exclude(render_version=RENDER_VERSION)
    for row in walk_rows(turns, "pk", *COLUMNS, key="number"):
        yield row.pop("pk"), StoredTurn(**row)


def _rows_of(session: Session, turn: StoredTurn) -> str:
    """The rows as the transcript caches them, empty for a turn that cannot be read."""
    if any(isinstance(event.payload, Fallback) for event in synthesise_events(turn)):
        return ""
    return dump_json([row.html for row in render_turn(session, turn)])


def _save_rows(rendered: list[tuple[str, int]]) -> None:
    rows = [(html, RENDER_VERSION, pk) for html, pk in rendered]
    if not rows:
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE conversations_turn SET html = %s, render_version = %s WHERE id = %s", rows
        )
