"""Pages of the transcript by cursor. Their cost does not grow with the session's age.

The segments to read are planned first (``transcript_plan``). Rows are read from the render cache.
Rows that are not rendered yet, or were rendered by an older version, are rendered when they are
read.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from operator import or_

from django.db import OperationalError, connection, transaction
from django.db.models import Q

from conversations.domain.events import USER_MESSAGE, Fallback, Payload, UserMessage
from conversations.domain.keyset import TranscriptCursor
from conversations.domain.text import dump_json, load_json, storable
from conversations.domain.turns import StoredTurn
from conversations.models import ChatEvent, JournalGap, Session, Turn
from conversations.rendering.rows import RENDER_VERSION, RowPosition, render_rewound, render_row

from .append import Row, placeholders
from .journal import read_payload, synthesise_events
from .rewinds import first_seq_from_turn
from .sessions import CHOSEN_MODEL_SQL
from .transcript_plan import (
    PlanSegment,
    locate,
    make_plan,
    next_position,
    rewound_ranges,
    split_plan,
)
from .turns import COLUMNS, page_limit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row of a page. ``cursor`` is its position, and ``turn`` is the turn that it shows."""

    cursor: str
    html: str
    turn: int | None = None
    is_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPage:
    """A page of rows, in order.

    ``older`` and ``newer`` are the cursors for the adjacent pages, or None at the ends. ``source``
    is ``journal``, ``turns`` or ``mixed``.
    """

    rows: list[PageRow]
    older: str | None
    newer: str | None
    source: str = "journal"

    @property
    def skipped(self) -> int:
        return sum(row.is_fallback for row in self.rows)


@dataclass(slots=True)
class _Reader:
    """Collects the rows of one page that have to be cached."""

    session: Session
    stale_events: list[tuple[int, str]] = field(default_factory=list)
    stale_turns: list[tuple[int, str]] = field(default_factory=list)


def read_page(
    session: Session,
    *,
    limit: int,
    before: TranscriptCursor | None = None,
    after: TranscriptCursor | None = None,
    around_turn: int | None = None,
    from_turn: int | None = None,
    use_journal: bool = True,
    synthesise: bool = True,
    include_rewound: bool = False,
    as_of: int | None = None,
) -> TranscriptPage:
    """Return the newest rows, or those before or after a cursor, around a turn, or from a turn on.

    ``use_journal=False`` synthesises all rows from turns. ``synthesise=False`` leaves out turns
    without events. ``include_rewound`` includes rows that were replaced. For ``as_of``, see
    ``transcript_plan.rewound_ranges``.
    """
    limit = page_limit(limit)
    plan = make_plan(
        session,
        use_journal=use_journal,
        synthesise=synthesise,
        include_rewound=include_rewound,
        as_of=as_of,
    )
    earlier, later = plan, list[PlanSegment]()
    first = around_turn if from_turn is None else from_turn
    if first is not None:
        earlier, later = split_plan(plan, locate(session, plan, TranscriptCursor("turn", first)))
        earlier = earlier if from_turn is None else []
    elif after is not None:
        earlier, (_, later) = [], split_plan(plan, next_position(locate(session, plan, after)))
    elif before is not None:
        earlier, _ = split_plan(plan, locate(session, plan, before))
    return _make_page(session, plan, earlier, later, limit)


def find_rewound(session: Session, rows: Sequence[PageRow]) -> frozenset[str]:
    """Return the cursors of the rows that have left the active path."""
    cursors = {row.cursor: _parse_cursor(row.cursor) for row in rows}
    ranges = {
        source: rewound_ranges(session, source=source)
        for source in {cursor.source for cursor in cursors.values()}
    }
    return frozenset(
        text
        for text, cursor in cursors.items()
        if any(part.low <= cursor.number <= part.high for part in ranges[cursor.source])
    )


def render_rewound_marker(session: Session, rewound: PlanSegment) -> str:
    """Return the row that stands for replaced rows. It is the same live and in a page."""
    assert rewound.left_at is not None
    place = RowPosition(
        session=session.uuid,
        seq=f"{rewound.source}:{rewound.high}" if rewound.source == "turn" else str(rewound.high),
        turn="",
        created_at=rewound.left_at,
    )
    show_url = f"/s/{session.uuid}/?all=1&after={rewound.source}:{rewound.low - 1}"
    return render_rewound(place=place, count=rewound.count, show_url=show_url)


def _make_page(
    session: Session,
    plan: list[PlanSegment],
    earlier: list[PlanSegment],
    later: list[PlanSegment],
    limit: int,
) -> TranscriptPage:
    """Return the rows from the end of ``earlier`` and from the start of ``later``."""
    reader = _Reader(session)
    # If both are given, a quarter of the rows comes from ``earlier``, and more if ``later`` is
    # short.
    later_limit = limit - limit // 4 if earlier else limit
    tail = _read_segments(reader, later, later_limit, newest_first=False)
    rows = _read_segments(reader, earlier, limit - len(tail), newest_first=True)[::-1] + tail
    _save_render_cache(reader)
    if not rows:
        return TranscriptPage(rows=[], older=None, newer=None)
    first, last = _parse_cursor(rows[0].cursor), _parse_cursor(rows[-1].cursor)
    before, _ = split_plan(plan, locate(session, plan, first))
    _, rest = split_plan(plan, next_position(locate(session, plan, last)))
    has_after = bool(rest)
    is_turn = len(rest) == 1 and rest[0].source == "turn" and rest[0].left_at is None
    if is_turn and rest[0].count == 1:
        # Only one turn is left. The page may already have all of its rows.
        [turn] = _read_turns(session, rest[0], newest_first=False, limit=1)
        has_after = len(_turn_rows(_Reader(session), turn)) > rest[0].skip
    kinds = {row.cursor.partition(":")[0] for row in rows}
    return TranscriptPage(
        rows=rows,
        older=rows[0].cursor if before else None,
        newer=rows[-1].cursor if has_after else None,
        source="mixed" if len(kinds) > 1 else {"seq": "journal", "turn": "turns"}[kinds.pop()],
    )


def _parse_cursor(text: str) -> TranscriptCursor:
    source, _, rest = text.partition(":")
    number, _, part = rest.partition(".")
    return TranscriptCursor(source, int(number), int(part or 0))


def _read_segments(
    reader: _Reader, segments: list[PlanSegment], limit: int, *, newest_first: bool
) -> list[PageRow]:
    chosen: list[PlanSegment | list[PageRow]] = []
    remaining = limit
    for segment in reversed(segments) if newest_first else segments:
        if remaining <= 0:
            break
        if segment.left_at is not None:
            cursor = f"{segment.source}:{segment.high}"
            html = render_rewound_marker(reader.session, segment)
            chosen.append([PageRow(cursor=cursor, html=html)])
            remaining -= 1
        elif segment.source == "turn":
            rows = _read_turn_rows(reader, segment, remaining, newest_first=newest_first)
            chosen.append(rows)
            remaining -= len(rows)
        else:
            count = min(remaining, segment.count)
            low = segment.high - count + 1 if newest_first else segment.low
            chosen.append(PlanSegment("seq", low, low + count - 1))
            remaining -= count
    by_seq = _read_events(reader, [item for item in chosen if isinstance(item, PlanSegment)])
    page_rows: list[PageRow] = []
    for item in chosen:
        if isinstance(item, PlanSegment):
            rows = [by_seq[seq] for seq in range(item.low, item.high + 1) if seq in by_seq]
            page_rows += rows[::-1] if newest_first else rows
        else:
            page_rows += item
    return page_rows


def _read_events(reader: _Reader, segments: list[PlanSegment]) -> dict[int, PageRow]:
    if not segments:
        return {}
    condition = reduce(or_, (Q(seq__range=(segment.low, segment.high)) for segment in segments))
    rows = ChatEvent.objects.filter(condition, session=reader.session.pk).order_by("seq")
    page_rows: dict[int, PageRow] = {}
    stale: list[int] = []
    # Read only the cached rows, at a sixth of the cost of whole events.
    columns = ("pk", "seq", "turn_number", "html", "render_version")
    for pk, seq, turn, html, version in rows.values_list(*columns):
        if version == RENDER_VERSION:
            page_rows[seq] = PageRow(cursor=f"seq:{seq}", html=html, turn=turn)
        else:
            stale.append(pk)
    for event in ChatEvent.objects.filter(pk__in=stale) if stale else ():
        page_rows[event.seq] = _render_event(reader, event)
    return page_rows


def _render_event(reader: _Reader, event: ChatEvent) -> PageRow:
    payload = read_payload(event.event_type, event.payload)
    turn = "" if event.turn_number is None else str(event.turn_number)
    row = _render(reader.session, str(event.seq), turn, event.created_at, payload)
    if not row.is_fallback:
        reader.stale_events.append((event.pk, row.html))
    return replace(row, turn=event.turn_number)


def _render(
    session: Session, seq: str, turn: str, created_at: datetime, payload: Payload | Fallback
) -> PageRow:
    place = RowPosition(session=session.uuid, seq=seq, turn=turn, created_at=created_at)
    is_fallback = isinstance(payload, Fallback)
    if isinstance(payload, Fallback):
        fields = {"session_id": str(session.uuid), "row": place.cursor, "reason": payload.reason}
        logger.warning("chat_row_malformed", extra={"fields": fields})
    html = storable(render_row(payload, place=place))
    return PageRow(cursor=place.cursor, html=html, is_fallback=is_fallback)


def _read_turn_rows(
    reader: _Reader, segment: PlanSegment, limit: int, *, newest_first: bool
) -> list[PageRow]:
    # Read in batches until there are enough rows: a turn may have no row (a system hint) or
    # several.
    taken: list[PageRow] = []
    while segment.low <= segment.high and len(taken) < limit:
        turns = _read_turns(reader.session, segment, newest_first=newest_first, limit=limit)
        for turn in turns:
            skip = segment.skip if turn.number == segment.low else 0
            stop = segment.stop if turn.number == segment.high else None
            rows = _turn_rows(reader, turn)[skip:stop]
            taken += rows[::-1] if newest_first else rows
            if len(taken) >= limit:
                return taken[:limit]
        if len(turns) < limit:
            return taken
        reached = turns[-1].number
        if newest_first:
            segment = replace(segment, high=reached - 1, stop=None)
        else:
            segment = replace(segment, low=reached + 1, skip=0)
    return taken


def _read_turns(
    session: Session, segment: PlanSegment, *, newest_first: bool, limit: int
) -> list[Turn]:
    turns = Turn.objects.filter(session=session.pk, number__range=(segment.low, segment.high))
    turns = turns.order_by("-number" if newest_first else "number")
    page = list(turns.only("number", "html", "render_version")[:limit])
    # Read whole turns only if their rows have to be rendered.
    stale = [turn.pk for turn in page if turn.render_version != RENDER_VERSION]
    whole = Turn.objects.in_bulk(stale) if stale else {}
    return [whole.get(turn.pk, turn) for turn in page]


def _turn_rows(reader: _Reader, turn: Turn) -> list[PageRow]:
    if turn.render_version == RENDER_VERSION:
        return [
            PageRow(cursor=f"turn:{turn.number}.{part}", html=html, turn=turn.number)
            for part, html in enumerate(load_json(turn.html, default=[]))
        ]
    rows = render_turn(reader.session, StoredTurn(**{k: getattr(turn, k) for k in COLUMNS}))
    if not any(row.is_fallback for row in rows):
        reader.stale_turns.append((turn.pk, dump_json([row.html for row in rows])))
    return rows


def render_turn(session: Session, turn: StoredTurn) -> list[PageRow]:
    """Return the rows that stand for a turn without events."""
    number = str(turn.number)
    return [
        replace(
            _render(session, f"turn:{number}.{part}", number, turn.created_at, payload),
            turn=turn.number,
        )
        for part, payload in enumerate(synthesise_events(turn))
    ]


def _save_render_cache(reader: _Reader) -> None:
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
    except OperationalError as error:  # ignored, because this is only a cache
        logger.warning("row_cache_not_written", extra={"fields": {"reason": str(error)}})


def read_live_rows(session_pk: int, *, after_seq: int, limit: int) -> list[Row]:
    """Return journal rows after ``after_seq`` for live updates, oldest first.

    No rows are synthesised, because the page already has those.
    """
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
            client_id=_client_id_of(event),
        )
        for event in events[: page_limit(limit)]
    ]
    _save_render_cache(reader)
    return rows


def _client_id_of(event: ChatEvent) -> str:
    if event.event_type != USER_MESSAGE:  # other events are not parsed again for this
        return ""
    payload = read_payload(event.event_type, event.payload)
    return payload.client_id if isinstance(payload, UserMessage) else ""


def live_seq_of(session: Session, cursor: TranscriptCursor) -> int:
    """Return the seq after which a page that ends with this cursor has no journal rows."""
    if cursor.source == "seq":
        return min(cursor.number, session.last_seq)
    gap = JournalGap.objects.filter(
        session=session.pk, from_turn__lte=cursor.number, to_turn__gte=cursor.number
    ).first()
    if gap is not None:
        return gap.after_seq
    if cursor.number > session.journal_turn:
        return session.last_seq
    first = first_seq_from_turn(session.pk, cursor.number)
    return session.last_seq if first is None else first


@dataclass(frozen=True, slots=True)
class SessionMarks:
    """The values of a session that change while pages show it.

    ``window`` is the window's first turn, its tokens and the session's cost. ``model`` is
    ``Session.chosen_model``.
    """

    last_seq: int
    rewinds: int
    window: tuple[int, int, int]
    title: str
    model: str


def read_session_marks(session_pks: Sequence[int]) -> dict[int, SessionMarks]:
    """Return the marks of these sessions by primary key."""
    with connection.cursor() as cursor:  # raw SQL, because open pages ask for this all the time
        cursor.execute(
            "SELECT s.id, s.next_seq, s.rewind_count, s.floor_turn, s.context_tokens,"  # noqa: S608
            f" s.cost_microusd, s.title, {CHOSEN_MODEL_SQL}"
            " FROM conversations_session s JOIN conversations_workspace w ON w.id = s.workspace_id"
            f" WHERE s.id IN ({placeholders(session_pks)})",
            session_pks,
        )
        return {
            pk: SessionMarks(next_seq - 1, rewinds, window=tuple(window), title=title, model=model)
            for pk, next_seq, rewinds, *window, title, model in cursor.fetchall()
        }
