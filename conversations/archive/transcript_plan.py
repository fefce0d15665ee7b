"""The plan of a transcript: its segments, before any row is read.

Segments are ranges of the journal, ranges of turns that the journal does not cover, and markers for
rows that left the active path, in the order of the page. ``seq`` has no gaps, so the plan knows the
number of rows of each range of the journal. A page is cut out of the plan by a cursor.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from conversations.domain.active_path import Marker, hidden_ranges, markers_until_left
from conversations.domain.keyset import TranscriptCursor
from conversations.models import ChatEvent, JournalGap, Rewind, Session

from .rewinds import first_seq_from_turn
from .turns import marker_columns


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """A segment of the plan.

    ``kind`` is ``seq``, ``turn`` or ``rewound``. ``after_seq`` is the position of a range of turns
    in the journal. ``skip`` is the number of rows to leave out at the start of the first turn, and
    ``stop`` is the number of rows to include of the last turn.
    """

    kind: str
    low: int
    high: int
    after_seq: int = 0
    skip: int = 0
    stop: int | None = None
    rewind: "RewoundRange | None" = None


@dataclass(frozen=True, slots=True)
class RewoundRange:
    """Rows of one source that left the active path, and the time when they last left it."""

    source: str
    low: int
    high: int
    created_at: datetime

    @property
    def count(self) -> int:
        return self.high - self.low + 1


def rewound_ranges(
    session: Session, *, source: str, as_of: int | None = None
) -> list[RewoundRange]:
    """Return the ranges of ``seq`` or ``turn`` that are off the active path, disjoint and ordered.

    If ``as_of`` is given, use the path that was left by the rewind with this index instead of the
    active path.
    """
    if session.rewind_count == 0:
        return []
    rewinds = Rewind.objects.filter(session=session.pk).order_by("pk")
    rows = list(rewinds.values_list(*marker_columns(source), "created_at"))
    markers = [Marker(*marker) for *marker, _ in rows]
    if as_of is not None:
        last = session.turn_count if source == "turn" else session.last_seq
        markers = markers_until_left(markers, as_of, last=last)
    return [
        RewoundRange(source, low, high, _left_at(low, high, rows))
        for low, high in hidden_ranges(markers)
    ]


def _left_at(low: int, high: int, rows: Sequence[tuple[Any, ...]]) -> datetime:
    """Return when the last of these rows left the path.

    If no rewind starts in the range, another branch became active, so return the time of the last
    rewind.
    """
    moments = [left_at for start, _, _, left_at in rows if low <= start <= high]
    return max(moments, default=cast("datetime", rows[-1][-1]))


def make_plan(
    session: Session,
    use_journal: bool,
    synthesise: bool,
    include_rewound: bool,
    as_of: int | None,
) -> list[PlanSegment]:
    segments: list[PlanSegment] = []
    position, turn = 1, 1
    if use_journal:
        if synthesise:
            gaps = JournalGap.objects.filter(session=session.pk).order_by("after_seq", "from_turn")
            for low, high, after_seq in gaps.values_list("from_turn", "to_turn", "after_seq"):
                segments.append(PlanSegment("seq", position, after_seq))
                segments.append(PlanSegment("turn", low, high, after_seq=after_seq))
                position = after_seq + 1
        segments.append(PlanSegment("seq", position, session.last_seq))
        turn = session.journal_turn + 1
    if synthesise or not use_journal:
        segments.append(PlanSegment("turn", turn, session.turn_count, after_seq=session.last_seq))
    segments = [segment for segment in segments if segment.low <= segment.high]
    if include_rewound or session.rewind_count == 0:
        return segments
    hidden = {
        source: rewound_ranges(session, source=source, as_of=as_of)
        for source in {segment.kind for segment in segments}
    }
    pieces = [piece for segment in segments for piece in _cut_out(segment, hidden[segment.kind])]
    return pieces if as_of is None else [piece for piece in pieces if piece.rewind is None]


def _cut_out(segment: PlanSegment, hidden: Iterable[RewoundRange]) -> Iterator[PlanSegment]:
    """Yield the stretch with a marker in place of each hidden range."""
    low = segment.low
    for rewound in hidden:
        start, end = max(low, rewound.low), min(segment.high, rewound.high)
        if start > end:
            continue
        if low < start:
            yield replace(segment, low=low, high=start - 1)
        yield PlanSegment(
            "rewound",
            start,
            end,
            after_seq=segment.after_seq,
            rewind=replace(rewound, low=start, high=end),
        )
        low = end + 1
    if low <= segment.high:
        yield replace(segment, low=low)


def locate(
    session: Session, plan: Sequence[PlanSegment], cursor: TranscriptCursor
) -> TranscriptCursor:
    """Return the cursor in the source that the plan uses at its position.

    If the journal covers a turn, its cursor becomes the seq of its first event, and the reverse.
    """
    sources = {_source(segment) for segment in plan}
    if cursor.source == "turn":
        is_inside = any(
            _source(segment) == "turn" and segment.low <= cursor.number <= segment.high
            for segment in plan
        )
        if is_inside or "seq" not in sources:
            return cursor
        first = first_seq_from_turn(session.pk, cursor.number)
        return TranscriptCursor("seq", first) if first is not None else cursor
    if sources != {"turn"}:
        return cursor
    events = ChatEvent.objects.filter(
        session=session.pk, seq__lte=cursor.number, turn_number__isnull=False
    )
    turn = events.order_by("-seq").values_list("turn_number", flat=True).first()
    return TranscriptCursor("turn", turn or 0)


def _source(segment: PlanSegment) -> str:
    return segment.rewind.source if segment.rewind else segment.kind


def _seq_before(plan: Sequence[PlanSegment], cursor: TranscriptCursor) -> int | None:
    """Return the event after which the plan has the cursor's turn.

    Return None for a cursor in the journal, and for a turn that is in no range of turns.
    """
    if cursor.source == "seq":
        return None
    return next(
        (
            segment.after_seq
            for segment in plan
            if _source(segment) == "turn" and segment.low <= cursor.number <= segment.high
        ),
        None,
    )


def _side(segment: PlanSegment, cursor: TranscriptCursor, seq_before: int | None) -> int:
    """Return -1 if the stretch is before the cursor, 1 if it is after, 0 if it contains it."""
    if _source(segment) == cursor.source:
        if segment.high < cursor.number:
            return -1
        return 1 if segment.low > cursor.number else 0
    if cursor.source == "seq":  # and the stretch is one of turns
        return -1 if segment.after_seq < cursor.number else 1
    # Compare a range of the journal with a cursor among turns by the position of those turns.
    if seq_before is not None:
        return -1 if segment.high <= seq_before else 1
    return -1 if cursor.number > 0 else 1


def cut_before(plan: Sequence[PlanSegment], cursor: TranscriptCursor) -> list[PlanSegment]:
    """Return the segments strictly before the cursor."""
    segments: list[PlanSegment] = []
    seq_before = _seq_before(plan, cursor)  # once, as a plan may have thousands of segments
    for segment in plan:
        side = _side(segment, cursor, seq_before)
        if side == -1:
            segments.append(segment)
        elif side == 0 and segment.kind == "turn" and cursor.part:
            segments.append(replace(segment, high=cursor.number, stop=cursor.part))
        elif side == 0 and segment.kind != "rewound" and segment.low < cursor.number:
            segments.append(replace(segment, high=cursor.number - 1))
    return segments


def cut_after(plan: Sequence[PlanSegment], cursor: TranscriptCursor) -> list[PlanSegment]:
    """Return the segments strictly after the cursor."""
    segments: list[PlanSegment] = []
    seq_before = _seq_before(plan, cursor)  # once, as a plan may have thousands of segments
    for segment in plan:
        side = _side(segment, cursor, seq_before)
        if side == 1:
            segments.append(segment)
        elif side == 0 and segment.kind == "turn":
            segments.append(replace(segment, low=cursor.number, skip=cursor.part + 1))
        elif side == 0 and segment.kind == "seq" and cursor.number < segment.high:
            segments.append(replace(segment, low=cursor.number + 1))
    return segments
