"""Pages of the transcript, by cursor, at a cost that does not grow with age.

The transcript is planned as segments first: stretches of the journal, stretches
of turns that the journal does not cover (their rows are synthesised), and
markers where rows left the active path. Since ``seq`` has no gaps, the plan knows
how many rows a stretch of the journal has without reading it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from operator import or_

from django.db import OperationalError, connection, transaction
from django.db.models import Q

from conversations.domain.cursors import Cursor
from conversations.domain.events import Fallback
from conversations.domain.jsontext import dump_json, load_json
from conversations.domain.text import storable
from conversations.domain.turns import StoredTurn
from conversations.models import ChatEvent, JournalGap, Rewind, Session, Turn
from conversations.rendering.rows import Place, render_rewound, render_row
from conversations.rendering.version import RENDER_VERSION

from .append import Row
from .journal import read_payload, synthesise_events
from .turns import COLUMNS, merge_ranges, page_limit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row of a page. ``cursor`` is its place."""

    cursor: str
    html: str
    is_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPage:
    """Rows in order. ``older`` and ``newer`` are cursors for the pages next to
    it, None at the ends. ``source`` is ``journal``, ``turns`` or ``mixed``."""

    rows: list[PageRow]
    older: str | None
    newer: str | None
    source: str = "journal"

    @property
    def skipped(self) -> int:
        return sum(row.is_fallback for row in self.rows)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Part of the plan: ``kind`` is ``seq``, ``turn`` or ``rewound``. ``after_seq``
    places a stretch of turns in the journal. ``part`` cuts into the row parts of
    the first (``skip``) or before the last (``stop``) turn."""

    kind: str
    low: int
    high: int
    after_seq: int = 0
    skip: int = 0
    stop: int | None = None
    rewind: "RewoundRange | None" = None


@dataclass(frozen=True, slots=True)
class RewoundRange:
    """Rows of one source that left the active path, and when they last did."""

    source: str
    low: int
    high: int
    created_at: datetime

    @property
    def count(self) -> int:
        return self.high - self.low + 1


@dataclass(slots=True)
class _Reader:
    """Reads the stretches of one page, taking note of what has to be cached."""

    session: Session
    stale_events: list[tuple[int, str]] = field(default_factory=list)
    stale_turns: list[tuple[int, str]] = field(default_factory=list)


def read_page(
    session: Session,
    *,
    limit: int,
    before: Cursor | None = None,
    after: Cursor | None = None,
    around_turn: int | None = None,
    use_journal: bool = True,
    synthesise: bool = True,
    include_rewound: bool = False,
) -> TranscriptPage:
    """The newest rows, or those before or after a cursor, or those around a turn.

    ``use_journal=False`` synthesises everything from turns; ``synthesise=False``
    leaves turns without events out; ``include_rewound`` shows replaced rows too.
    """
    limit = page_limit(limit)
    plan = _plan(session, use_journal, synthesise, include_rewound)
    if around_turn is not None:
        return _page_around(session, plan, around_turn, limit)
    if after is not None:
        rest = _after(plan, _located(session, plan, after))
        return _page(session, plan, [], rest, limit)
    if before is not None:
        plan_before = _before(plan, _located(session, plan, before))
        return _page(session, plan, plan_before, [], limit)
    return _page(session, plan, plan, [], limit)


def rewound_ranges(session: Session, *, source: str) -> list[RewoundRange]:
    """What is off the active path: disjoint ranges of ``seq`` or ``turn``, in order."""
    if session.rewind_count == 0:
        return []
    names = (f"from_{source}", f"to_{source}", "created_at")
    rows = list(Rewind.objects.filter(session=session.pk).values_list(*names))
    ranges = merge_ranges((low, high) for low, high, _ in rows)
    return [
        RewoundRange(source, low, high, max(at for a, _, at in rows if low <= a <= high))
        for low, high in ranges
    ]


def render_rewound_marker(session: Session, rewound: RewoundRange) -> str:
    """The row that stands for replaced rows, the same live and in a page."""
    place = Place(
        session=session.uuid,
        seq=f"{rewound.source}:{rewound.high}" if rewound.source == "turn" else str(rewound.high),
        turn="",
        created_at=rewound.created_at,
    )
    show_url = f"/s/{session.uuid}/?all=1&after={rewound.source}:{rewound.low - 1}"
    return render_rewound(place=place, count=rewound.count, show_url=show_url)


def _plan(
    session: Session, use_journal: bool, synthesise: bool, include_rewound: bool
) -> list[_Stretch]:
    if not use_journal:
        stretches = [_Stretch("turn", 1, session.turn_count, after_seq=session.last_seq)]
    else:
        stretches = list(_stretches(session, synthesise))
    stretches = [stretch for stretch in stretches if stretch.low <= stretch.high]
    if include_rewound or session.rewind_count == 0:
        return stretches
    hidden = {
        source: rewound_ranges(session, source=source)
        for source in {stretch.kind for stretch in stretches}
    }
    return [piece for stretch in stretches for piece in _cut_out(stretch, hidden[stretch.kind])]


def _stretches(session: Session, synthesise: bool) -> Iterator[_Stretch]:
    position = 1
    gaps = JournalGap.objects.filter(session=session.pk).order_by("after_seq", "from_turn")
    if synthesise:
        for low, high, after_seq in gaps.values_list("from_turn", "to_turn", "after_seq"):
            yield _Stretch("seq", position, after_seq)
            yield _Stretch("turn", low, high, after_seq=after_seq)
            position = after_seq + 1
    yield _Stretch("seq", position, session.last_seq)
    if synthesise:
        tail = session.journal_turn + 1
        yield _Stretch("turn", tail, session.turn_count, after_seq=session.last_seq)


def _cut_out(stretch: _Stretch, hidden: Iterable[RewoundRange]) -> Iterator[_Stretch]:
    """The stretch without what is hidden, a marker in the place of each range."""
    low = stretch.low
    for rewound in hidden:
        start, end = max(low, rewound.low), min(stretch.high, rewound.high)
        if start > end:
            continue
        if low < start:
            yield replace(stretch, low=low, high=start - 1)
        yield _Stretch(
            "rewound",
            start,
            end,
            after_seq=stretch.after_seq,
            rewind=replace(rewound, low=start, high=end),
        )
        low = end + 1
    if low <= stretch.high:
        yield replace(stretch, low=low)


def _located(session: Session, plan: Sequence[_Stretch], cursor: Cursor) -> Cursor:
    """The cursor in the source in which the plan has its place: a turn that the
    journal covers is found by the seq of its first event, and the reverse."""
    has_turns = any(_source(stretch) == "turn" for stretch in plan)
    if cursor.source == "turn":
        inside = any(
            _source(stretch) == "turn" and stretch.low <= cursor.number <= stretch.high
            for stretch in plan
        )
        if inside or (not any(_source(stretch) == "seq" for stretch in plan)):
            return cursor
        first = _first_seq_of_turn(session, cursor.number)
        return Cursor("seq", first) if first is not None else cursor
    if has_turns and not any(_source(stretch) == "seq" for stretch in plan):
        turn = (
            ChatEvent.objects.filter(
                session=session.pk, seq__lte=cursor.number, turn_number__isnull=False
            )
            .order_by("-seq")
            .values_list("turn_number", flat=True)
            .first()
        )
        return Cursor("turn", turn or 0)
    return cursor


def _first_seq_of_turn(session: Session, turn: int) -> int | None:
    return (
        ChatEvent.objects.filter(session=session.pk, turn_number__gte=turn)
        .order_by("turn_number", "seq")
        .values_list("seq", flat=True)
        .first()
    )


def _source(stretch: _Stretch) -> str:
    return stretch.rewind.source if stretch.rewind else stretch.kind


def _side(stretch: _Stretch, cursor: Cursor) -> int:
    """-1: the stretch lies before the cursor, 1: after it, 0: the cursor is in it."""
    source = _source(stretch)
    if source == cursor.source:
        if stretch.high < cursor.number:
            return -1
        return 1 if stretch.low > cursor.number else 0
    if source == "turn":  # and the cursor is a seq
        return -1 if stretch.after_seq < cursor.number else 1
    return 0


def _before(plan: Sequence[_Stretch], cursor: Cursor) -> list[_Stretch]:
    """What lies strictly before the cursor."""
    kept: list[_Stretch] = []
    for stretch in plan:
        side = _mixed_side(plan, stretch, cursor)
        if side == -1:
            kept.append(stretch)
        elif side == 0 and stretch.kind == "seq" and stretch.low < cursor.number:
            kept.append(replace(stretch, high=cursor.number - 1))
        elif side == 0 and stretch.kind == "turn":
            if cursor.part:
                kept.append(replace(stretch, high=cursor.number, stop=cursor.part))
            elif stretch.low < cursor.number:
                kept.append(replace(stretch, high=cursor.number - 1))
    return kept


def _after(plan: Sequence[_Stretch], cursor: Cursor) -> list[_Stretch]:
    """What lies strictly after the cursor."""
    kept: list[_Stretch] = []
    for stretch in plan:
        side = _mixed_side(plan, stretch, cursor)
        if side == 1:
            kept.append(stretch)
        elif side == 0 and stretch.kind == "seq" and cursor.number < stretch.high:
            kept.append(replace(stretch, low=cursor.number + 1))
        elif side == 0 and stretch.kind == "turn":
            kept.append(replace(stretch, low=cursor.number, skip=cursor.part + 1))
    return kept


def _mixed_side(plan: Sequence[_Stretch], stretch: _Stretch, cursor: Cursor) -> int:
    if _source(stretch) == cursor.source or cursor.source == "seq":
        return _side(stretch, cursor)
    # A stretch of the journal against a place among turns: by where those stand.
    for other in plan:
        if _source(other) == "turn" and other.low <= cursor.number <= other.high:
            return -1 if stretch.high <= other.after_seq else 1
    return -1 if cursor.number > 0 else 1


def _page_around(session: Session, plan: list[_Stretch], turn: int, limit: int) -> TranscriptPage:
    cursor = _located(session, plan, Cursor("turn", turn))
    earlier = _before(plan, cursor)
    previous = (
        Cursor("seq", cursor.number - 1)
        if cursor.source == "seq"
        else Cursor("turn", turn - 1, 10**6)
    )
    later = _after(plan, previous)
    return _page(session, plan, earlier, later, limit)


def _page(
    session: Session,
    plan: list[_Stretch],
    earlier: list[_Stretch],
    later: list[_Stretch],
    limit: int,
) -> TranscriptPage:
    """Rows from the end of ``earlier`` and from the start of ``later``; half of
    each where both are given, more of one where the other is short."""
    reader = _Reader(session)
    newest_first: list[PageRow] = []
    after_share = 0
    tail: list[PageRow] = []
    if later:
        after_share = limit if not earlier else limit - limit // 4
        tail = _take(reader, later, after_share, newest_first=False)
    if earlier:
        newest_first = _take(reader, earlier, limit - len(tail), newest_first=True)
    rows = newest_first[::-1] + tail
    _cache(reader)
    kinds = {row.cursor.partition(":")[0] for row in rows}
    source = (
        {"seq": "journal", "turn": "turns"}.get(kinds.pop(), "")
        if len(kinds) == 1
        else ("mixed" if kinds else "journal")
    )
    return TranscriptPage(
        rows=rows,
        older=rows[0].cursor if rows and _has_before(session, plan, rows[0]) else None,
        newer=rows[-1].cursor if rows and _has_after(session, plan, rows[-1]) else None,
        source=source,
    )


def _has_before(session: Session, plan: list[_Stretch], row: PageRow) -> bool:
    return bool(_before(plan, _parse(row.cursor)))


def _has_after(session: Session, plan: list[_Stretch], row: PageRow) -> bool:
    rest = _after(plan, _parse(row.cursor))
    if len(rest) == 1 and rest[0].kind == "turn" and rest[0].low == rest[0].high:
        [turn] = _read_turns(session, rest[0], newest_first=False, limit=1)
        return len(_turn_rows(_Reader(session), turn)) > rest[0].skip
    return bool(rest)


def _parse(text: str) -> Cursor:
    source, _, rest = text.partition(":")
    number, _, part = rest.partition(".")
    return Cursor(source, int(number), int(part or 0))


def _take(
    reader: _Reader, stretches: list[_Stretch], limit: int, *, newest_first: bool
) -> list[PageRow]:
    """Up to ``limit`` rows from one end, in the order of taking."""
    chosen: list[_Stretch | list[PageRow]] = []
    left = limit
    for stretch in reversed(stretches) if newest_first else stretches:
        if left <= 0:
            break
        if stretch.kind == "turn":
            rows = _take_turns(reader, stretch, left, newest_first=newest_first)
            chosen.append(rows)
            left -= len(rows)
        elif stretch.kind == "rewound":
            chosen.append([_marker(reader.session, stretch)])
            left -= 1
        else:
            count = min(left, stretch.high - stretch.low + 1)
            low = stretch.high - count + 1 if newest_first else stretch.low
            chosen.append(_Stretch("seq", low, low + count - 1))
            left -= count
    by_seq = _read_events(reader, [item for item in chosen if isinstance(item, _Stretch)])
    taken: list[PageRow] = []
    for item in chosen:
        if isinstance(item, _Stretch):
            found = [by_seq[seq] for seq in range(item.low, item.high + 1) if seq in by_seq]
            taken += found[::-1] if newest_first else found
        else:
            taken += item
    return taken


def _marker(session: Session, stretch: _Stretch) -> PageRow:
    assert stretch.rewind is not None
    return PageRow(
        cursor=f"{stretch.rewind.source}:{stretch.rewind.high}",
        html=render_rewound_marker(session, stretch.rewind),
    )


def _read_events(reader: _Reader, stretches: list[_Stretch]) -> dict[int, PageRow]:
    if not stretches:
        return {}
    wanted = reduce(or_, (Q(seq__range=(stretch.low, stretch.high)) for stretch in stretches))
    rows = ChatEvent.objects.filter(wanted, session=reader.session.pk).order_by("seq")
    found: dict[int, PageRow] = {}
    stale: list[int] = []
    for pk, seq, html, version in rows.values_list("pk", "seq", "html", "render_version"):
        if version == RENDER_VERSION:
            found[seq] = PageRow(cursor=f"seq:{seq}", html=html)
        else:
            stale.append(pk)
    for event in ChatEvent.objects.filter(pk__in=stale) if stale else ():
        found[event.seq] = _render_event(reader, event)
    return found


def _render_event(reader: _Reader, event: ChatEvent) -> PageRow:
    payload = read_payload(event.event_type, event.payload)
    place = Place(
        session=reader.session.uuid,
        seq=str(event.seq),
        turn="" if event.turn_number is None else str(event.turn_number),
        created_at=event.created_at,
    )
    html = storable(render_row(payload, place=place))
    if isinstance(payload, Fallback):
        _report_malformed(reader.session, place=place, reason=payload.reason)
    else:
        reader.stale_events.append((event.pk, html))
    return PageRow(cursor=place.cursor, html=html, is_fallback=isinstance(payload, Fallback))


def _report_malformed(session: Session, *, place: Place, reason: str) -> None:
    logger.warning(
        "chat_row_malformed",
        extra={"fields": {"session_id": str(session.uuid), "row": place.cursor, "reason": reason}},
    )


def _take_turns(
    reader: _Reader, stretch: _Stretch, limit: int, *, newest_first: bool
) -> list[PageRow]:
    """Rows synthesised from turns, read a batch at a time until there are enough:
    a turn may have no row (a system hint) or several."""
    taken: list[PageRow] = []
    while stretch.low <= stretch.high and len(taken) < limit:
        turns = _read_turns(reader.session, stretch, newest_first=newest_first, limit=limit)
        for turn in turns:
            rows = _turn_rows(reader, turn)[_part_slice(stretch, turn.number)]
            taken += rows[::-1] if newest_first else rows
            if len(taken) >= limit:
                return taken[:limit]
        if len(turns) < limit:
            return taken
        reached = turns[-1].number
        stretch = (
            replace(stretch, high=reached - 1, stop=None)
            if newest_first
            else replace(stretch, low=reached + 1, skip=0)
        )
    return taken


def _part_slice(stretch: _Stretch, number: int) -> slice:
    return slice(
        stretch.skip if number == stretch.low else 0,
        stretch.stop if number == stretch.high else None,
    )


@dataclass(frozen=True, slots=True)
class _CachedTurn:
    """A turn's cached rows, or the turn itself where they have to be made."""

    pk: int
    number: int
    html: str
    turn: StoredTurn | None


def _read_turns(
    session: Session, stretch: _Stretch, *, newest_first: bool, limit: int
) -> list[_CachedTurn]:
    turns = Turn.objects.filter(session=session.pk, number__range=(stretch.low, stretch.high))
    turns = turns.order_by("-number" if newest_first else "number")[:limit]
    rows = list(turns.values_list("pk", "number", "html", "render_version"))
    stale = [pk for pk, _, _, version in rows if version != RENDER_VERSION]
    unrendered = {
        row.pop("pk"): StoredTurn(**row)
        for row in (Turn.objects.filter(pk__in=stale).values("pk", *COLUMNS) if stale else ())
    }
    return [_CachedTurn(pk, number, html, unrendered.get(pk)) for pk, number, html, _ in rows]


def _turn_rows(reader: _Reader, turn: _CachedTurn) -> list[PageRow]:
    if turn.turn is None:
        return [
            PageRow(cursor=f"turn:{turn.number}.{part}", html=html)
            for part, html in enumerate(load_json(turn.html, default=[]))
        ]
    rows = render_turn(reader.session, turn.turn)
    if not any(row.is_fallback for row in rows):
        reader.stale_turns.append((turn.pk, dump_json([row.html for row in rows])))
    return rows


def render_turn(session: Session, turn: StoredTurn) -> list[PageRow]:
    """The rows that a turn without events stands for."""
    rows = []
    for event in synthesise_events(turn):
        place = Place(
            session=session.uuid,
            seq=f"turn:{event.turn}.{event.part}",
            turn=str(event.turn),
            created_at=event.created_at,
        )
        is_fallback = isinstance(event.payload, Fallback)
        if isinstance(event.payload, Fallback):
            _report_malformed(session, place=place, reason=event.payload.reason)
        html = storable(render_row(event.payload, place=place))
        rows.append(PageRow(cursor=place.cursor, html=html, is_fallback=is_fallback))
    return rows


def _cache(reader: _Reader) -> None:
    """Keep what was rendered. A cache only: a busy database is no reason to fail."""
    if not reader.stale_events and not reader.stale_turns:
        return
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            for model, stale in ((ChatEvent, reader.stale_events), (Turn, reader.stale_turns)):
                cursor.executemany(
                    f"UPDATE {model._meta.db_table}"  # noqa: S608 (a constant)
                    " SET html = %s, render_version = %s WHERE id = %s",
                    [(html, RENDER_VERSION, pk) for pk, html in stale],
                )
    except OperationalError as error:
        logger.warning("row_cache_not_written: %s", error)


def read_live_rows(session_pk: int, *, after_seq: int, limit: int) -> list[Row]:
    """Journal rows for live catch-up, oldest first. Never synthesised: the page
    has those already."""
    session = Session.objects.get(pk=session_pk)
    events = ChatEvent.objects.filter(session=session_pk, seq__gt=after_seq).order_by("seq")
    reader = _Reader(session)
    rows = [
        Row(
            seq=event.seq,
            event_type=event.event_type,
            turn=event.turn_number,
            html=event.html
            if event.render_version == RENDER_VERSION
            else _render_event(reader, event).html,
        )
        for event in events[: page_limit(limit)]
    ]
    _cache(reader)
    return rows


def live_seq_of(session: Session, cursor: Cursor) -> int:
    """The seq after which a page that ends with this cursor misses journal rows."""
    if cursor.source == "seq":
        return min(cursor.number, session.last_seq)
    gap = JournalGap.objects.filter(
        session=session.pk, from_turn__lte=cursor.number, to_turn__gte=cursor.number
    ).first()
    if gap is not None:
        return gap.after_seq
    if cursor.number > session.journal_turn:
        return session.last_seq
    first = _first_seq_of_turn(session, cursor.number)
    return session.last_seq if first is None else first


def read_session_marks(session_pks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Of each session its key, last seq and number of rewinds."""
    rows = Session.objects.filter(pk__in=session_pks).order_by("pk")
    return [
        (pk, next_seq - 1, rewinds)
        for pk, next_seq, rewinds in rows.values_list("pk", "next_seq", "rewind_count")
    ]
