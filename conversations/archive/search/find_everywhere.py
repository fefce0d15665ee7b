"""Finding turns by words in many sessions at once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet, Sum

from conversations.domain.search_query import Query, parse_query
from conversations.models import SearchProgress, Session
from conversations.models.search import TURN_BITS

from .best import keep_phrases, rank_entries
from .cursors import SearchCursor, read_cursor
from .find import (
    MAX_HITS,
    as_fraction,
    as_number,
    choose_words,
    found_best,
    missing_words,
)
from .hits import read_hits
from .matching import Match, Place, match_filters, session_place
from .results import NOTHING, Found
from .source import Source, catch_up_all

LAST, MOST_TURNS = (1 << 63) - 1, 1 << TURN_BITS
FEW_SESSIONS = 24
"""Sessions that are looked through one by one, each by its range of ids."""

COUNTED = 2000
"""Matches up to which all are put in order of time."""

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)

type Placed = tuple[datetime, int]
"""When a turn was written, and the id of its entry."""


def search_sessions(
    sessions: QuerySet[Session],
    query: str | Query,
    *,
    limit: int = 20,
    cursor: str = "",
    order: str = "best",
) -> Found:
    """Turns of these sessions that match themselves; the caller says which may be
    read by whom it asks for. ``best`` has turns with any of the words, ``newest``
    those with all, or with any if there are none, the latest first."""
    asked = parse_query(query) if isinstance(query, str) else query
    if not (asked.has_words or asked.has_filters):
        return NOTHING
    if asked.workspaces:
        sessions = sessions.filter(workspace__slug__in=asked.workspaces)
    source = _make_source(sessions, asked)
    limit = max(1, min(limit, MAX_HITS))
    if order == "best" and asked.has_words:
        after = read_cursor(cursor, "all", count=4)
        if after:
            source = replace(source, turn_count=after[0], average=as_fraction(after[1]))
        ranked = rank_entries(source, asked, match_filters(asked), with_neighbours=False)
        among = (source.turn_count, as_number(source.average))
        return found_best(ranked, limit, after, kind="all", among=among)
    return _newest(source, asked, sessions, limit, cursor)


def _make_source(sessions: QuerySet[Session], query: Query) -> Source:
    tail = catch_up_all(sessions)
    counted = SearchProgress.objects.filter(session__in=sessions.order_by().values("pk"))
    sums = counted.aggregate(turns=Sum("indexed_turn"), length=Sum("total_length"))
    turns = (sums["turns"] or 0) + len(tail)
    length = (sums["length"] or 0) + sum(item.entry.length for item in tail)
    return Source(
        places=_places(sessions, query),
        tail=tail,
        turn_count=max(1, turns),
        average=max(1.0, length / max(1, turns)),
    )


def _places(sessions: QuerySet[Session], query: Query) -> tuple[Place, ...]:
    bounds = {"from_turn": query.from_turn or 1, "before_turn": query.before_turn or MOST_TURNS}
    few = list(sessions.order_by("-pk").values_list("pk", flat=True)[: FEW_SESSIONS + 1])
    if len(few) <= FEW_SESSIONS:
        return tuple(session_place(pk, **bounds) for pk in few)
    return (Place(low=0, high=LAST, sessions=sessions, **bounds),)


def _newest(
    source: Source, query: Query, sessions: QuerySet[Session], limit: int, cursor: str
) -> Found:
    numbers = read_cursor(cursor, "latest", count=2)
    after = (_EPOCH + numbers[0] * _MICROSECOND, numbers[1]) if numbers else None
    match = choose_words(source, query)
    ids = source.find(match, limit=COUNTED + 1)
    if len(ids) <= COUNTED:
        ids = keep_phrases(source, match, query.phrases, ids)
        placed = [place for place in _in_time(source, ids) if after is None or place < after]
    else:
        placed = _walk_sessions(source, query, match, sessions, limit + 1, after)
    page = placed[:limit]
    return Found(
        hits=read_hits([(1.0, pk) for _, pk in page]),
        total=min(len(ids), COUNTED),
        total_is_bound=len(ids) > COUNTED,
        missing=missing_words(source, query, match),
        cursor=_cursor_after(page[-1]) if len(placed) > limit else "",
    )


def _in_time(source: Source, ids: Sequence[int]) -> list[Placed]:
    return sorted(((moment, pk) for pk, moment in source.read_moments(ids).items()), reverse=True)


def _walk_sessions(
    source: Source,
    query: Query,
    match: Match,
    sessions: QuerySet[Session],
    wanted: int,
    after: Placed | None,
) -> list[Placed]:
    """The latest matches, where there are too many to read all: session by session,
    the latest active first, until no session left can have a later one."""
    found: list[Placed] = []
    rows = sessions.order_by("-last_active_at", "-pk").values_list("pk", "last_active_at")
    for pk, last_active_at in rows.iterator(chunk_size=100):
        if len(found) == wanted and last_active_at < found[-1][0]:
            break
        bounds = {"from_turn": query.from_turn or 1, "before_turn": query.before_turn or MOST_TURNS}
        single = replace(source, places=(session_place(pk, **bounds),))
        ids = single.find(_earlier(match, pk, after), limit=wanted)
        ids = keep_phrases(source, match, query.phrases, ids)
        placed = [place for place in _in_time(single, ids) if after is None or place < after]
        found = sorted((*found, *placed), reverse=True)[:wanted]
    return found


def _earlier(match: Match, session_pk: int, after: Placed | None) -> Match:
    """What comes after the cursor: of one moment, lower ids are later in the list."""
    if after is None:
        return match
    moment, pk = after
    bound = moment if session_pk > pk >> TURN_BITS else moment + _MICROSECOND
    earliest = min(bound, match.before_moment) if match.before_moment else bound
    return replace(match, before_moment=earliest)


def _cursor_after(place: Placed) -> str:
    moment, pk = place
    return str(SearchCursor("latest", ((moment - _EPOCH) // _MICROSECOND, pk)))
