"""Turns: reading them, always by number and never by offset."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Left

from conversations.domain.active_path import Marker, Ranges, count_within, hidden_ranges
from conversations.domain.text import dump_json
from conversations.domain.turns import CONTENT_COLUMNS, USER, StoredTurn
from conversations.models import Rewind, Turn

from .append import read_moment, walk_rows

MAX_PAGE_ROWS = 500  # The maximum number of rows or turns that one read returns

# The columns that are read of a turn: the fields of :class:`StoredTurn`
COLUMNS = ("number", *CONTENT_COLUMNS, "created_at", "digest")

_BEYOND_ALL = 2**63 - 1

_WALK_BACK = (
    f"SELECT {', '.join(COLUMNS)} FROM conversations_turn"  # noqa: S608 (constants)
    " WHERE session_id = %s AND number >= %s AND number < %s{} ORDER BY number DESC LIMIT %s"
)

# A condition for turns within ranges. The ranges are passed as a single value, because SQLite
# refuses a condition of more than a thousand terms.
_WITHIN = {
    "sqlite": "EXISTS(WITH gone(low, high) AS MATERIALIZED (SELECT json_extract(value, '$[0]'),"
    " json_extract(value, '$[1]') FROM json_each(%s))"
    " SELECT 1 FROM gone WHERE conversations_turn.number BETWEEN low AND high)",
    "postgresql": "conversations_turn.number <@ %s::int8multirange",
}


def page_limit(limit: int) -> int:
    return max(1, min(limit, MAX_PAGE_ROWS))


def read_turn(session_pk: int, number: int) -> StoredTurn | None:
    turns = Turn.objects.filter(session=session_pk, number=number)
    return next(iter(stored_turns(turns)), None)


def walk_turns(
    session_pk: int,
    *,
    start: int | None,
    is_back: bool,
    limit: int,
    rewound: Sequence[tuple[int, int]] = (),
    active: bool | None = None,
) -> list[StoredTurn]:
    """Return turns after ``start``, or from the first turn if it is None, the nearest first.

    With ``is_back``, return turns before ``start``. If ``active`` is True, leave out the turns in
    ``rewound``; if it is False, return only those.
    """
    turns = Turn.objects.filter(session=session_pk)
    if start is not None:
        turns = turns.filter(Q(number__lt=start) if is_back else Q(number__gt=start))
    if active is not None:
        gone = are_turns_within(rewound)
        turns = turns.exclude(gone) if active else turns.filter(gone)
    return stored_turns(turns.order_by("-number" if is_back else "number")[:limit])


def walk_active_turns_back(
    session_pk: int,
    *,
    has_rewinds: bool = True,
    down_to: int = 1,
    before: int = _BEYOND_ALL,
    page: int = 100,
    aside: Sequence[tuple[int, int]] = (),
) -> Iterator[StoredTurn]:
    """Yield turns on the active path before ``before``, newest first, without those in ``aside``.

    The turns are read a page at a time as needed. This uses raw SQL because the query delays the
    first word of each answer.
    """
    rewound = read_rewound(session_pk, "turn") if has_rewinds else []
    gone = [(low, high) for low, high in (*rewound, *aside) if high >= down_to]
    statement = _WALK_BACK.format(f" AND NOT {_WITHIN[connection.vendor]}" if gone else "")
    ranges = [_ranges_value(gone)] if gone else []
    while True:
        with connection.cursor() as cursor:
            cursor.execute(statement, [session_pk, down_to, before, *ranges, page])
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in cursor.fetchall()]
        turns = [StoredTurn(**row | {"created_at": read_moment(row["created_at"])}) for row in rows]
        yield from turns
        if len(turns) < page:
            return
        before = turns[-1].number


def walk_active_turns(session_pk: int) -> Iterator[StoredTurn]:
    """Yield all turns on the active path, oldest first, in bounded memory."""
    gone = are_turns_within(read_rewound(session_pk, "turn"))
    active = Turn.objects.filter(session=session_pk).exclude(gone)
    for row in walk_rows(active, *COLUMNS, key="number"):
        yield StoredTurn(**row)


def read_turns_in(session_pk: int, ranges: Iterable[tuple[int, int]]) -> list[StoredTurn]:
    """Return all turns of these inclusive ranges, in their order.

    The caller must limit the size of the ranges.
    """
    found: list[StoredTurn] = []
    for low, high in ranges:
        turns = Turn.objects.filter(session=session_pk, number__range=(low, high))
        found += stored_turns(turns.order_by("number"))
    return found


def read_user_turn_before(
    session_pk: int,
    number: int,
    *,
    has_rewinds: bool,
    aside: Sequence[tuple[int, int]],
) -> StoredTurn | None:
    """Return the person's newest active message before that number, or None.

    Messages in ``aside`` are left out.
    """
    turns = active_user_turns(session_pk, number, has_rewinds=has_rewinds, aside=aside)
    return next(iter(stored_turns(turns[:1])), None)


MAX_DISTANCE_TURNS = 400  # How far before a turn its messages are searched


def list_user_turns_before(
    session_pk: int,
    number: int,
    *,
    limit: int,
    has_rewinds: bool,
    aside: Sequence[tuple[int, int]],
) -> list[int]:
    """Return the numbers of the person's last active messages before a turn, in order.

    Only the :data:`MAX_DISTANCE_TURNS` turns before the turn are searched.
    """
    turns = active_user_turns(session_pk, number, has_rewinds=has_rewinds, aside=aside)
    turns = turns.filter(number__gte=number - MAX_DISTANCE_TURNS)
    return list(turns.values_list("number", flat=True)[:limit])[::-1]


def active_user_turns(
    session_pk: int, below: int, *, has_rewinds: bool, aside: Sequence[tuple[int, int]] = ()
) -> QuerySet[Turn]:
    """Return the person's messages on the active path before that number, newest first.

    The messages in ``aside`` are left out.
    """
    turns = Turn.objects.filter(session=session_pk, number__lt=below, role=USER)
    turns = turns.exclude(are_turns_within(aside)) if aside else turns
    if has_rewinds:
        turns = turns.exclude(are_turns_within(read_rewound(session_pk, "turn")))
    return turns.order_by("-number")


def read_beginnings(session_pk: int, numbers: Sequence[int], *, chars: int) -> dict[int, str]:
    """Return the first characters of these turns by number."""
    turns = Turn.objects.filter(session=session_pk, number__in=numbers)
    rows = turns.order_by("number").values_list("number", Left("content", chars))
    return dict(rows)


def count_active_before(session_pk: int, number: int, *, has_rewinds: bool) -> int:
    """Return the number of active turns before that number."""
    if not has_rewinds:
        return number - 1
    return number - 1 - count_within(1, number - 1, read_rewound(session_pk, "turn"))


def are_turns_within(ranges: Sequence[tuple[int, int]]) -> RawSQL:
    """Return a condition for turns within these ranges. The number of ranges is not limited."""
    return RawSQL(  # noqa: S611 (our own)
        _WITHIN[connection.vendor], [_ranges_value(ranges)], output_field=BooleanField()
    )


def _ranges_value(ranges: Sequence[tuple[int, int]]) -> str:
    if connection.vendor == "sqlite":
        return dump_json(list(ranges))
    return f"{{{','.join(f'[{low},{high}]' for low, high in ranges)}}}"


def read_rewound(session_pk: int, source: str) -> list[tuple[int, int]]:
    """Return the ordered ranges of turns or events that are off the active path.

    ``source`` is ``turn`` for turn numbers or ``seq`` for events.
    """
    return hidden_ranges(read_markers(session_pk, source))


def read_markers(session_pk: int, source: str) -> list[Marker]:
    """Return the session's rewinds as markers of turns or events, in order."""
    rewinds = Rewind.objects.filter(session=session_pk).order_by("pk")
    return [Marker(*row) for row in rewinds.values_list(*marker_columns(source))]


def marker_columns(source: str) -> tuple[str, str, str]:
    """Return the fields of a rewind that make a marker of turns or events."""
    return f"from_{source}", f"to_{source}", "back_to"


def read_rewound_of(session_pks: Iterable[int]) -> Mapping[int, Ranges]:
    """Return the turns that are off the active path, by session.

    Sessions without rewinds are left out.
    """
    markers: dict[int, list[Marker]] = {}
    rewinds = Rewind.objects.filter(session__in=session_pks).order_by("pk")
    for pk, *marker in rewinds.values_list("session", *marker_columns("turn")):
        markers.setdefault(pk, []).append(Marker(*marker))
    return {pk: hidden_ranges(session_markers) for pk, session_markers in markers.items()}


def stored_turns(turns: QuerySet[Turn]) -> list[StoredTurn]:
    return [StoredTurn(**row) for row in turns.values(*COLUMNS)]


def source_of_turn(session_uuid: UUID, number: int) -> dict[str, Any] | None:
    """Return a turn's verbatim text and stored JSON, for copying and for long rows."""
    turns = Turn.objects.filter(session__uuid=session_uuid, number=number)
    rows = turns.values("role", "content", "blocks", "tool_calls")
    return next((dict(row) for row in rows), None)
