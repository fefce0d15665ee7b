"""Pages of the transcript, by cursor, at a cost that does not grow with age.

What to read is planned first (``transcript_plan``). Rows come from the cache of
their rendering; what is not rendered yet, or by an older version, is made now.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from django.db import OperationalError, connection, transaction
from django.db.models import Q

from conversations.domain.events import Fallback
from conversations.domain.keyset import Cursor
from conversations.domain.text import dump_json, load_json, storable
from conversations.domain.turns import StoredTurn
from conversations.models import ChatEvent, JournalGap, Session, Turn
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_rewound, render_row

from .append import Row
from .journal import read_payload, synthesise_events
from .transcript_plan import (
    RewoundRange,
    Stretch,
    cut_after,
    cut_before,
    first_seq_of_turn,
    locate,
    make_plan,
    rewound_ranges,
)
from .turns import COLUMNS, page_limit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row of a page. ``cursor`` is its place, ``turn`` the turn that it shows."""

    cursor: str
    html: str
    turn: int | None = None
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
    plan = make_plan(session, use_journal, synthesise, include_rewound)
    if around_turn is not None:
        cursor = locate(session, plan, Cursor("turn", around_turn))
        previous = Cursor("turn", around_turn - 1, 10**6)
        if cursor.source == "seq":
            previous = Cursor("seq", cursor.number - 1)
        return _page(session, plan, cut_before(plan, cursor), cut_after(plan, previous), limit)
    if after is not None:
        rest = cut_after(plan, locate(session, plan, after))
        return _page(session, plan, [], rest, limit)
    if before is not None:
        plan_before = cut_before(plan, locate(session, plan, before))
        return _page(session, plan, plan_before, [], limit)
    return _page(session, plan, plan, [], limit)


def find_rewound(session: Session, rows: Sequence[PageRow]) -> frozenset[str]:
    """The cursors of those rows that left the active path."""
    kinds = {_parse(row.cursor).source for row in rows}
    ranges = {source: rewound_ranges(session, source=source) for source in kinds}

    def is_rewound(cursor: Cursor) -> bool:
        return any(part.low <= cursor.number <= part.high for part in ranges[cursor.source])

    return frozenset(row.cursor for row in rows if is_rewound(_parse(row.cursor)))


def render_rewound_marker(session: Session, rewound: RewoundRange) -> str:
    """The row that stands for replaced rows, the same live and in a page."""
    place = RowPosition(
        session=session.uuid,
        seq=f"{rewound.source}:{rewound.high}" if rewound.source == "turn" else str(rewound.high),
        turn="",
        created_at=rewound.created_at,
    )
    show_url = f"/s/{session.uuid}/?all=1&after={rewound.source}:{rewound.low - 1}"
    return render_rewound(place=place, count=rewound.count, show_url=show_url)


def _page(
    session: Session, plan: list[Stretch], earlier: list[Stretch], later: list[Stretch], limit: int
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
    if not rows:
        return TranscriptPage(rows=[], older=None, newer=None)
    has_after = bool(rest := cut_after(plan, _parse(rows[-1].cursor)))
    if len(rest) == 1 and rest[0].kind == "turn" and rest[0].low == rest[0].high:
        [turn] = _read_turns(session, rest[0], newest_first=False, limit=1)
        has_after = len(_turn_rows(_Reader(session), turn)) > rest[0].skip
    kinds = {row.cursor.partition(":")[0] for row in rows}
    return TranscriptPage(
        rows=rows,
        older=rows[0].cursor if cut_before(plan, _parse(rows[0].cursor)) else None,
        newer=rows[-1].cursor if has_after else None,
        source="mixed" if len(kinds) > 1 else {"seq": "journal", "turn": "turns"}[kinds.pop()],
    )


def _parse(text: str) -> Cursor:
    source, _, rest = text.partition(":")
    number, _, part = rest.partition(".")
    return Cursor(source, int(number), int(part or 0))


def _take(
    reader: _Reader, stretches: list[Stretch], limit: int, *, newest_first: bool
) -> list[PageRow]:
    """Up to ``limit`` rows from one end, in the order of taking."""
    chosen: list[Stretch | list[PageRow]] = []
    left = limit
    for stretch in reversed(stretches) if newest_first else stretches:
        if left <= 0:
            break
        if stretch.kind == "turn":
            rows = _take_turns(reader, stretch, left, newest_first=newest_first)
            chosen.append(rows)
            left -= len(rows)
        elif stretch.rewind is not None:
            cursor = f"{stretch.rewind.source}:{stretch.rewind.high}"
            html = render_rewound_marker(reader.session, stretch.rewind)
            chosen.append([PageRow(cursor=cursor, html=html)])
            left -= 1
        else:
            count = min(left, stretch.high - stretch.low + 1)
            low = stretch.high - count + 1 if newest_first else stretch.low
            chosen.append(Stretch("seq", low, low + count - 1))
            left -= count
    by_seq = _read_events(reader, [item for item in chosen if isinstance(item, Stretch)])
    taken: list[PageRow] = []
    for item in chosen:
        if isinstance(item, Stretch):
            found = [by_seq[seq] for seq in range(item.low, item.high + 1) if seq in by_seq]
            taken += found[::-1] if newest_first else found
        else:
            taken += item
    return taken


def _read_events(reader: _Reader, stretches: list[Stretch]) -> dict[int, PageRow]:
    if not stretches:
        return {}
    wanted = reduce(or_, (Q(seq__range=(stretch.low, stretch.high)) for stretch in stretches))
    rows = ChatEvent.objects.filter(wanted, session=reader.session.pk).order_by("seq")
    found: dict[int, PageRow] = {}
    stale: list[int] = []
    columns = ("pk", "seq", "turn_number", "html", "render_version")
    for pk, seq, turn, html, version in rows.values_list(*columns):
        if version == RENDER_VERSION:
            found[seq] = PageRow(cursor=f"seq:{seq}", html=html, turn=turn)
        else:
            stale.append(pk)
    for event in ChatEvent.objects.filter(pk__in=stale) if stale else ():
        found[event.seq] = _render_event(reader, event)
    return found


def _render_event(reader: _Reader, event: ChatEvent) -> PageRow:
    payload = read_payload(event.event_type, event.payload)
    place = RowPosition(
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
    return PageRow(
        cursor=place.cursor,
        html=html,
        turn=event.turn_number,
        is_fallback=isinstance(payload, Fallback),
    )


def _report_malformed(session: Session, *, place: RowPosition, reason: str) -> None:
    logger.warning(
        "chat_row_malformed",
        extra={"fields": {"session_id": str(session.uuid), "row": place.cursor, "reason": reason}},
    )


def _take_turns(
    reader: _Reader, stretch: Stretch, limit: int, *, newest_first: bool
) -> list[PageRow]:
    """Rows synthesised from turns, read a batch at a time until there are enough:
    a turn may have no row (a system hint) or several."""
    taken: list[PageRow] = []
    while stretch.low <= stretch.high and len(taken) < limit:
        turns = _read_turns(reader.session, stretch, newest_first=newest_first, limit=limit)
        for turn in turns:
            skip = stretch.skip if turn.number == stretch.low else 0
            stop = stretch.stop if turn.number == stretch.high else None
            rows = _turn_rows(reader, turn)[skip:stop]
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


@dataclass(frozen=True, slots=True)
class _CachedTurn:
    """A turn's cached rows, or the turn itself where they have to be made."""

    pk: int
    number: int
    html: str
    turn: StoredTurn | None


def _read_turns(
    session: Session, stretch: Stretch, *, newest_first: bool, limit: int
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
            PageRow(cursor=f"turn:{turn.number}.{part}", html=html, turn=turn.number)
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
        place = RowPosition(
            session=session.uuid,
            seq=f"turn:{event.turn}.{event.part}",
            turn=str(event.turn),
            created_at=event.created_at,
        )
        is_fallback = isinstance(event.payload, Fallback)
        if isinstance(event.payload, Fallback):
            _report_malformed(session, place=place, reason=event.payload.reason)
        html = storable(render_row(event.payload, place=place))
        rows.append(
            PageRow(cursor=place.cursor, html=html, turn=event.turn, is_fallback=is_fallback)
        )
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
        logger.warning("row_cache_not_written", extra={"fields": {"reason": str(error)}})


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
    first = first_seq_of_turn(session, cursor.number)
    return session.last_seq if first is None else first


@dataclass(frozen=True, slots=True)
class SessionMarks:
    """What changes in a session when something is written in it. ``window`` is where
    the window starts, how full it is and what the session has cost."""

    last_seq: int
    rewinds: int
    window: tuple[int, int, int]


def read_session_marks(session_pks: Sequence[int]) -> dict[int, SessionMarks]:
    """The marks of these sessions, by key."""
    rows = Session.objects.filter(pk__in=session_pks).values_list(
        "pk", "next_seq", "rewind_count", "floor_turn", "context_tokens", "cost_microusd"
    )
    return {
        pk: SessionMarks(last_seq=next_seq - 1, rewinds=rewinds, window=(floor, tokens, cost))
        for pk, next_seq, rewinds, floor, tokens, cost in rows.order_by("pk")
    }
