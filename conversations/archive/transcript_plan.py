"""The plan of a transcript: its segments, before any row is read.

Segments are ranges of the journal, ranges of turns that the journal does not cover, and markers for
rows that left the active path, in the order of the page. ``seq`` has no gaps, so the plan knows the
number of rows of each range of the journal.

Each row has a position, and rows are in the order of their positions. Row 7 of the journal is at
(7, 0, 0). If the rows of turn 3 stand after it, the first is at (7, 3, 0) and the second at
(7, 3, 1); the next row of the journal is at (8, 0, 0). A page is cut out of the plan at a position.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, cast

from conversations.domain.active_path import Marker, hidden_ranges, merge_ranges
from conversations.domain.keyset import TranscriptCursor
from conversations.models import ChatEvent, JournalGap, Rewind, Session

from .rewinds import first_seq_from_turn
from .turns import marker_columns

type Position = tuple[int, int, int]
"""A row of the journal, and of the turns after it a turn's number and the index of its row."""


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """A segment of the plan: events (``seq``) or turns (``turn``) by ``source``.

    ``after_seq`` is the event after which a range of turns stands. ``skip`` is the number of rows
    to leave out at the start of the first turn, and ``stop`` is the number of rows to include of
    the last turn. If the rows left the active path, ``left_at`` is the time when they last left it,
    and the page has one marker for them.
    """

    source: str
    low: int
    high: int
    after_seq: int = 0
    skip: int = 0
    stop: int | None = None
    left_at: datetime | None = None

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def position_of(self, number: int, part: int = 0) -> Position:
        return (number, 0, 0) if self.source == "seq" else (self.after_seq, number, part)

    @property
    def end(self) -> Position:
        """The position after all rows that the last number can have."""
        seq, turn, _ = self.position_of(self.high)
        return seq, turn + 1, 0


def rewound_ranges(session: Session, *, source: str, as_of: int | None = None) -> list[PlanSegment]:
    """Return the ranges of ``seq`` or ``turn`` that are off the active path, disjoint and ordered.

    If ``as_of`` is given, use the path that was left by the rewind with this index instead of the
    active path.
    """
    if session.rewind_count == 0:
        return []
    rewinds = Rewind.objects.filter(session=session.pk).order_by("pk")
    rows = list(rewinds.values_list(*marker_columns(source), "created_at"))
    markers = [Marker(*marker) for *marker, _ in rows]
    if as_of is None:
        hidden = hidden_ranges(markers)
    else:
        last = session.turn_count if source == "turn" else session.last_seq
        since = (markers[as_of].high + 1, last)
        hidden = merge_ranges([*hidden_ranges(markers[:as_of]), since])
    return [
        PlanSegment(source, low, high, left_at=_left_at(low, high, rows)) for low, high in hidden
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
    *,
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
        for source in {segment.source for segment in segments}
    }
    pieces = [piece for segment in segments for piece in _cut_out(segment, hidden[segment.source])]
    return pieces if as_of is None else [piece for piece in pieces if piece.left_at is None]


def _cut_out(segment: PlanSegment, hidden: Iterable[PlanSegment]) -> Iterator[PlanSegment]:
    """Yield the segment with a marker in place of each hidden range."""
    low = segment.low
    for rewound in hidden:
        start, end = max(low, rewound.low), min(segment.high, rewound.high)
        if start > end:
            continue
        if low < start:
            yield replace(segment, low=low, high=start - 1)
        yield replace(segment, low=start, high=end, left_at=rewound.left_at)
        low = end + 1
    if low <= segment.high:
        yield replace(segment, low=low)


def locate(session: Session, plan: Sequence[PlanSegment], cursor: TranscriptCursor) -> Position:
    """Return the position of the cursor's row in the plan.

    If the journal covers a turn, its position is that of its first event, and the reverse.
    """
    if cursor.number == 0:
        return 0, 0, 0
    if cursor.source == "turn":
        return _locate_turn(session, plan, cursor)
    if any(segment.source == "seq" for segment in plan):
        return cursor.number, 0, 0
    events = ChatEvent.objects.filter(
        session=session.pk, seq__lte=cursor.number, turn_number__isnull=False
    )
    turn = events.order_by("-seq").values_list("turn_number", flat=True).first()
    return session.last_seq, turn or 0, 0


def _locate_turn(
    session: Session, plan: Sequence[PlanSegment], cursor: TranscriptCursor
) -> Position:
    ranges = (segment for segment in plan if segment.source == "turn")
    following = next((segment for segment in ranges if cursor.number <= segment.high), None)
    if following is not None and following.low <= cursor.number:
        return following.position_of(cursor.number, cursor.part)
    if any(segment.source == "seq" for segment in plan):
        first = first_seq_from_turn(session.pk, cursor.number)
        if first is not None:
            return first, 0, 0
    if following is not None:
        return following.position_of(following.low)
    return session.last_seq, cursor.number, cursor.part


def next_position(position: Position) -> Position:
    """Return the first position after that of a row."""
    seq, turn, part = position
    return (seq, turn, part + 1) if turn else (seq, 1, 0)


def split_plan(
    plan: Sequence[PlanSegment], position: Position
) -> tuple[list[PlanSegment], list[PlanSegment]]:
    """Return the segments before a position, and those from it on.

    If the position is within the rows of a marker, neither has the marker.
    """
    index = bisect(plan, position, key=attrgetter("end"))
    earlier, later = list(plan[:index]), list(plan[index:])
    if not later or later[0].position_of(later[0].low) >= position:
        return earlier, later
    cut, (seq, turn, part) = later.pop(0), position
    if cut.left_at is not None:
        return earlier, later
    # In a range of the journal, a position among turns is after the row of the journal.
    first = turn if cut.source == "turn" else seq + (turn > 0)
    last = first if part else first - 1
    before = replace(cut, high=last, stop=part or None)
    return [*earlier, before], [replace(cut, low=first, skip=part), *later]
