"""How far an imported journal covers its turns.

The journal is walked once, in order, against the turns. An event belongs to the
turn that it names. Journals of other systems do not name turns: their messages
are matched with turns by text, tool rows by the id of the call, and what is left
between two matches by its kind. A turn for which there is no event, although the
journal goes on after it, becomes part of a gap: its rows will be synthesised.

Everything is read by page, so memory does not grow with the session.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Substr

from conversations.domain.events import (
    ASSISTANT_TEXT,
    TOOL_CALL_COMPLETED,
    TOOL_CALL_STARTED,
    USER_MESSAGE,
    AssistantText,
    Malformed,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    UserMessage,
    parse_payload,
)
from conversations.domain.jsontext import dump_json
from conversations.domain.text import one_line
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    read_metadata,
    read_tool_calls,
)
from conversations.models import ChatEvent, JournalGap, Session, Turn
from conversations.rendering.version import RENDER_VERSION

from .journal import synthesise_events
from .transcript import render_turn
from .turns import COLUMNS

PAGE = 500
LOOK_AHEAD = 200
"""Turns in which the next message of a journal without turn numbers is sought."""

SEARCHES = 20
"""Times that the whole session is searched for a message, for journals that begin late."""

COMPARED_CHARS = 200

ROLE_OF = {
    USER_MESSAGE: USER,
    ASSISTANT_TEXT: ASSISTANT,
    TOOL_CALL_COMPLETED: TOOL,
}
"""The events of which each stands for a turn of its own."""


@dataclass(frozen=True, slots=True)
class _Event:
    seq: int
    event_type: str
    turn: int | None
    payload: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """What a message is compared with: the beginning of a turn near by."""

    number: int
    role: str
    text: str
    call_id: str


@dataclass(slots=True)
class _Gap:
    low: int
    high: int
    after_seq: int


@dataclass(slots=True)
class _Walk:
    """``reached`` is the last turn that is settled, ``after_seq`` the last event
    that belongs to a turn, ``loose`` counts the messages since then whose turn is
    not known, ``notes`` are the times of other events without a turn since then."""

    session: Session
    last_turn: int
    reached: int = 0
    after_seq: int = 0
    loose: Counter[str] = field(default_factory=Counter)
    notes: list[tuple[int, datetime]] = field(default_factory=list)
    gaps: deque[_Gap] = field(default_factory=deque)
    near: list[_Known] = field(default_factory=list)
    searches: int = 0


def cover_session(session: Session) -> None:
    """Record the turns that the journal does not cover. What is recorded already
    stays; doing it twice changes nothing."""
    last_turn = session.turn_count
    if session.last_seq == 0 or last_turn == 0:
        return
    walk = _Walk(session=session, last_turn=last_turn)
    for event in _events(session):
        _take(walk, event)
        _save_gaps(walk, before=walk.reached - LOOK_AHEAD)
    _settle_tail(walk)
    _save_gaps(walk, before=last_turn + 1)
    Session.objects.filter(pk=session.pk, journal_turn__lt=walk.reached).update(
        journal_turn=walk.reached
    )


def save_gap(session: Session, *, from_turn: int, to_turn: int, after_seq: int) -> bool:
    """Record one gap; False when it cannot be one of this session."""
    known = JournalGap.objects.filter(
        session=session.pk, from_turn__lte=to_turn, to_turn__gte=from_turn
    ).first()
    if known is not None:
        return (known.from_turn, known.to_turn, known.after_seq) == (from_turn, to_turn, after_seq)
    if not 1 <= from_turn <= to_turn <= session.turn_count or after_seq > session.last_seq:
        return False
    JournalGap.objects.create(
        session=session, from_turn=from_turn, to_turn=to_turn, after_seq=after_seq
    )
    return True


def _events(session: Session) -> Iterator[_Event]:
    last = 0
    while True:
        rows = ChatEvent.objects.filter(session=session.pk, seq__gt=last).order_by("seq")
        page = list(rows.values_list("seq", "event_type", "turn_number", "created_at")[:PAGE])
        payloads = dict(
            rows.filter(
                Q(turn_number=None) | Q(turn_number__gt=session.turn_count),
                event_type__in=(*ROLE_OF, TOOL_CALL_STARTED),
                seq__lte=page[-1][0],
            ).values_list("seq", "payload")
            if page and any(turn is None or turn > session.turn_count for _, _, turn, _ in page)
            else ()
        )
        for seq, event_type, turn, created_at in page:
            yield _Event(seq, event_type, turn, payloads.get(seq, ""), created_at)
        if len(page) < PAGE:
            return
        last = page[-1][0]


def _take(walk: _Walk, event: _Event) -> None:
    turn = event.turn if event.turn and 1 <= event.turn <= walk.last_turn else _match(walk, event)
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
        _cover(walk, turn)
    walk.after_seq = event.seq
    walk.loose.clear()
    walk.notes.clear()


def _settle(walk: _Walk, low: int, high: int) -> None:
    """Decide about the turns between two that have events."""
    if low > high:
        return
    shown = _calls_shown_by(walk.session, low - 1)
    run: list[tuple[int, bool]] = []
    for number, role, call_id, is_visible in _turns_without_events(walk.session, low, high):
        if run and number != run[-1][0] + 1:
            _add_gap(walk, run)
            run = []
        is_shown = role == TOOL and call_id in shown
        if is_shown or not _is_left_over(walk, role):
            _add_gap(walk, run)
            run = []
            continue
        run.append((number, is_visible))
    _add_gap(walk, run)


def _is_left_over(walk: _Walk, role: str) -> bool:
    """Whether none of the messages of unknown turn stands for this turn."""
    if walk.loose[role] <= 0:
        return True
    walk.loose[role] -= 1
    return False


def _add_gap(walk: _Walk, run: list[tuple[int, bool]]) -> None:
    visible = [number for number, is_visible in run if is_visible]
    if visible:
        walk.gaps.append(_Gap(visible[0], visible[-1], _place_of(walk, visible[0])))


def _place_of(walk: _Walk, turn: int) -> int:
    """The seq after which the turn's rows stand: that of the last event of an
    earlier turn, and the notices after it that are not younger than the turn."""
    after_seq = walk.after_seq
    if walk.notes:
        written = Turn.objects.values_list("created_at", flat=True).get(
            session=walk.session.pk, number=turn
        )
        for seq, created_at in walk.notes:
            if seq != after_seq + 1 or created_at > written:
                break
            after_seq = seq
    return after_seq


def _settle_tail(walk: _Walk) -> None:
    """Messages of unknown turn at the end of the journal stand for turns too; the
    turns after those are not covered yet."""
    if not any(walk.loose.values()):
        return
    last = walk.reached
    left = Counter(walk.loose)
    for number, role, _, _ in _turns_without_events(walk.session, walk.reached + 1, walk.last_turn):
        if left[role] > 0:
            left[role] -= 1
            last = number
        if not any(left.values()):
            break
    _settle(walk, walk.reached + 1, last)
    walk.reached = last


def _turns_without_events(
    session: Session, low: int, high: int
) -> Iterator[tuple[int, str, str | None, bool]]:
    """Number, role, call id and whether the turn has rows, of the turns that no
    event names and no recorded gap holds."""
    named = ChatEvent.objects.filter(session=OuterRef("session"), turn_number=OuterRef("number"))
    held = JournalGap.objects.filter(
        session=OuterRef("session"),
        from_turn__lte=OuterRef("number"),
        to_turn__gte=OuterRef("number"),
    )
    while low <= high:
        rows = (
            Turn.objects.filter(session=session.pk, number__range=(low, high))
            .filter(~Exists(named), ~Exists(held))
            .order_by("number")
            .values_list("number", "role", "tool_call_id")
        )
        page = list(rows[:PAGE])
        hints = _hints(session, [number for number, role, _ in page if role == SYSTEM])
        for number, role, call_id in page:
            yield number, role, call_id, number not in hints
        if len(page) < PAGE:
            return
        low = page[-1][0] + 1


def _hints(session: Session, numbers: list[int]) -> set[int]:
    """Those of these system turns that are not meant for people."""
    if not numbers:
        return set()
    turns = Turn.objects.filter(session=session.pk, number__in=numbers).order_by("number")
    return {
        turn["number"]
        for turn in turns.values(*COLUMNS)
        if read_metadata(StoredTurn(**turn)).get("user_facing") is not True
    }


def _calls_shown_by(session: Session, turn: int) -> set[str]:
    """Ids of the calls whose completed rows name the turn that made the calls."""
    events = ChatEvent.objects.filter(
        session=session.pk, turn_number=turn, event_type=TOOL_CALL_COMPLETED
    ).order_by("seq")[:PAGE]
    payloads = (_read(TOOL_CALL_COMPLETED, text) for text in events.values_list("payload", flat=True))
    return {
        payload.call_id
        for payload in payloads
        if isinstance(payload, ToolCallCompleted) and payload.call_id
    }


def _read(event_type: str, text: str) -> Payload | None:
    try:
        return parse_payload(event_type, text)
    except Malformed:
        return None


def _cover(walk: _Walk, turn: int) -> None:
    """Take back a gap for a turn whose event came late."""
    for index, gap in enumerate(walk.gaps):
        if gap.low <= turn <= gap.high:
            del walk.gaps[index]
            if turn < gap.high:
                walk.gaps.insert(index, _Gap(turn + 1, gap.high, gap.after_seq))
            if gap.low < turn:
                walk.gaps.insert(index, _Gap(gap.low, turn - 1, gap.after_seq))
            return


def _save_gaps(walk: _Walk, *, before: int) -> None:
    while walk.gaps and walk.gaps[0].high < before:
        gap = walk.gaps.popleft()
        save_gap(walk.session, from_turn=gap.low, to_turn=gap.high, after_seq=gap.after_seq)


def _match(walk: _Walk, event: _Event) -> int | None:
    """The turn of an event that names none."""
    payload = _read(event.event_type, event.payload) if event.payload else None
    if isinstance(payload, UserMessage | AssistantText):
        role = USER if isinstance(payload, UserMessage) else ASSISTANT
        text = _comparable(payload.text)
        return _find(walk, lambda known: known.role == role and known.text == text) or (
            _search(walk, role, payload.text) if isinstance(payload, UserMessage) else None
        )
    if isinstance(payload, ToolCallCompleted) and payload.call_id:
        call_id = payload.call_id
        return _find(walk, lambda known: known.role == TOOL and known.call_id == call_id)
    if isinstance(payload, ToolCallStarted) and payload.call_id:
        return _find_caller(walk, payload.call_id)
    return None
