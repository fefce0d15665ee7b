"""Which number in the archive a line of an interchange file has."""

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Substr

from conversations.archive.journal import synthesise_events
from conversations.archive.row_sql import walk_rows
from conversations.archive.transcript import render_turn
from conversations.archive.turns import COLUMNS, stored_turns
from conversations.domain.events import (
    ASSISTANT_TEXT,
    TOOL_CALL_COMPLETED,
    TOOL_CALL_STARTED,
    USER_MESSAGE,
    AssistantText,
    Fallback,
    Malformed,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    UserMessage,
    parse_payload,
)
from conversations.domain.text import dump_json, one_line
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
from conversations.rendering.rows import RENDER_VERSION

# Which turn a row of a foreign journal stands for, where the row does not say.


PAGE = 500
FAR, NEAR, CALLERS = 200, 20, 20
"""Turns in which a text is sought: a long one, a short one, and a call's id."""

SHORT_TEXT = 20
COMPARED_CHARS = 200


@dataclass(frozen=True, slots=True)
class _Known:
    """What a row is compared with: a turn near by."""

    number: int
    role: str
    text: str
    call_id: str


@dataclass(slots=True)
class TurnMatcher:
    """Matches rows of one session with its turns, in the order of the journal."""

    session: Session
    _near: list[_Known] = field(default_factory=list)
    _calls: dict[int, set[str]] = field(default_factory=dict)
    _has_searched: bool = False

    def find(self, event_type: str, text: str, *, reached: int) -> int | None:
        """The turn for a row with this payload, after the turn ``reached``, or a
        little before it for the late result of a tool."""
        payload = read_payload_or_none(event_type, text)
        self._load(reached)
        match payload:
            case UserMessage(text=message):
                found = self._find_text(USER, message, reached)
                return found or (self._search(message) if reached == 0 else None)
            case AssistantText(text=message):
                return self._find_text(ASSISTANT, message, reached)
            case ToolCallCompleted(call_id=call_id) if call_id:
                return self._find_result(call_id, reached)
            case ToolCallStarted(call_id=call_id) if call_id:
                return self._find_caller(call_id, reached)
        return None

    def _load(self, reached: int) -> None:
        """Have the turns around ``reached`` at hand."""
        loaded = self._near[-1].number if self._near else max(0, reached - FAR)
        while loaded < min(reached + FAR, self.session.turn_count):
            turns = Turn.objects.filter(session=self.session.pk, number__gt=loaded)
            head = Substr("content", 1, COMPARED_CHARS * 8)
            columns = turns.values_list("number", "role", head, "tool_call_id")
            page = [
                _Known(number, role, _comparable(text), call_id or "")
                for number, role, text, call_id in columns.order_by("number")[:PAGE]
            ]
            if not page:
                return
            self._near += page
            loaded = page[-1].number
        if self._near and self._near[0].number < reached - PAGE:
            self._near = [known for known in self._near if known.number >= reached - FAR]
            self._calls = {n: ids for n, ids in self._calls.items() if n >= reached}

    def _first(self, low: int, high: int, fits: Callable[[_Known], bool]) -> int | None:
        return next((k.number for k in self._near if low <= k.number <= high and fits(k)), None)

    def _find_text(self, role: str, text: str, reached: int) -> int | None:
        wanted = _comparable(text)
        reach = FAR if len(wanted) >= SHORT_TEXT else NEAR
        return self._first(
            reached + 1, reached + reach, lambda known: known.role == role and known.text == wanted
        )

    def _search(self, text: str) -> int | None:
        """Where a journal begins late, the whole session is searched, once."""
        if self._has_searched:
            return None
        self._has_searched = True
        turns = Turn.objects.filter(session=self.session.pk, role=USER, content=text)
        return turns.order_by("number").values_list("number", flat=True).first()

    def _find_result(self, call_id: str, reached: int) -> int | None:
        def fits(known: _Known) -> bool:
            return known.role == TOOL and known.call_id == call_id

        return self._first(reached + 1, reached + FAR, fits) or self._first(
            reached - FAR, reached, fits
        )

    def _find_caller(self, call_id: str, reached: int) -> int | None:
        callers = [k.number for k in self._near if k.number >= reached and k.role == ASSISTANT]
        callers = callers[:CALLERS]
        unread = [number for number in callers if number not in self._calls]
        for turn in stored_turns(
            Turn.objects.filter(session=self.session.pk, number__in=unread).order_by("number")
        ):
            try:
                self._calls[turn.number] = {str(call.get("id")) for call in read_tool_calls(turn)}
            except MalformedTurn:
                self._calls[turn.number] = set()
        return next((n for n in callers if call_id in self._calls.get(n, ())), None)


def read_payload_or_none(event_type: str, text: str) -> Payload | None:
    try:
        return parse_payload(event_type, text)
    except Malformed:
        return None


def _comparable(text: str) -> str:
    return one_line(text, limit=COMPARED_CHARS)


# How far an imported journal covers its turns.


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


KEPT_RUNS = 10_000
"""Renumbered runs that are remembered of a session's chain."""


@dataclass(slots=True)
class NumberedLines:
    """Lines with the original numbers ``first`` to ``last``, the first of which
    has the number ``number`` in the archive, the next one the next."""

    first: int
    last: int
    number: int

    @property
    def end(self) -> int:
        return self.number + self.last - self.first


class Numbering:
    """Gives the lines of one chain their numbers, which have no gaps.

    A line keeps its own number where that names a row of the session or the next
    one. Where it does not, the line gets the next number, and so does every later
    line whose number has been given away. Lines without a usable number follow the
    line before them. What was renumbered is remembered with the session (``known``),
    so the same file imported again finds the same rows; memory grows with the
    number of holes, not of lines.

    ``end`` is the last number that the session has so far.
    """

    def __init__(self, *, end: int, known: Iterable[NumberedLines] = ()) -> None:
        self.end = end
        self.is_renumbered = False
        self.has_begun = False
        self._cursor = 1
        self._known = sorted(known, key=lambda run: run.first)
        self._taken = sorted((run.number, run.end) for run in self._known)
        self._is_full = len(self._known) >= KEPT_RUNS
        self._latest: NumberedLines | None = None

    def place(self, original: Any) -> int:
        """The number of the next line, which says ``original`` itself."""
        given = original if type(original) is int else None
        number = self._cursor if given is None else self._number_for(given)
        self.has_begun = True
        self.is_renumbered = self.is_renumbered or given != number
        self._cursor = number + 1
        if given is None:
            self._take(number, number)
        self.end = max(self.end, number)
        return number

    def refer(self, original: int) -> int | None:
        """The number of the row that the file calls ``original``, None for one that
        has none. A row that is not there yet keeps its name."""
        if not self.is_renumbered and not self._known:
            return original
        known = self._find(original)
        if known is not None:
            return known
        return original if 1 <= original <= self.end and not self._is_taken(original) else None

    def runs(self) -> list[NumberedLines]:
        """What to remember with the session, in the order of the archive."""
        return sorted(self._known, key=lambda run: run.number)[:KEPT_RUNS]

    def _number_for(self, given: int) -> int:
        known = self._find(given)
        if known is not None:
            return known
        if self._is_full:
            return self._cursor
        if 1 <= given <= self.end + 1 and not self._is_taken(given):
            return given
        number = self.end + 1
        self._remember(given, number)
        return number

    def _find(self, original: int) -> int | None:
        index = bisect_right(self._known, original, key=lambda run: run.first) - 1
        if index < 0 or original > self._known[index].last:
            return None
        return self._known[index].number + original - self._known[index].first

    def _is_taken(self, number: int) -> bool:
        index = bisect_right(self._taken, (number, number)) - 1
        around = self._taken[max(0, index) : index + 2]
        return any(low <= number <= high for low, high in around)

    def _take(self, low: int, high: int) -> None:
        if self._taken and self._taken[-1][1] + 1 == low:
            self._taken[-1] = (self._taken[-1][0], high)
        else:
            insort(self._taken, (low, high))

    def _remember(self, given: int, number: int) -> None:
        self._take(number, number)
        run = self._latest
        if run and given == run.last + 1 and number == run.end + 1:
            run.last = given
            return
        self._latest = NumberedLines(given, given, number)
        insort(self._known, self._latest, key=lambda run: run.first)
