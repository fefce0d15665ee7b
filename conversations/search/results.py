"""Search results."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from conversations.archive.append import read_moment
from conversations.archive.turns import COLUMNS, read_rewound_of
from conversations.domain.active_path import are_within
from conversations.domain.text import instant, one_line, strip_marks
from conversations.domain.turns import StoredTurn
from conversations.models import Session
from conversations.models.search import TURN_BITS

from .indexing import searchable_of
from .matching import TURN_MASK
from .query import SearchQuery, snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHit:
    """A turn that matches.

    ``score`` is above 0 and comparable within one result. ``text`` is the turn's searchable text as
    it was written. ``tool_name`` is set for turns that call a tool or hold its result. If
    ``is_near`` is set, the turn has none of the words itself: turns near it have them, or it means
    much the same."""

    session_pk: int
    session: UUID
    turn: int
    role: str
    tool_name: str | None
    created_at: datetime
    text: str
    score: float
    is_near: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """A page of hits, in the requested order (best first by default).

    ``total`` counts the turns that matched, and is a lower bound if ``total_is_bound``. ``missing``
    holds the words and phrases of the query, as written, that match no searched turn, or its
    workspaces if no session is in them. ``cursor`` continues after the last hit, and is empty if
    there are no more. If ``is_phrase_cut`` is set, a phrase was only looked for in the newest turns
    with its words."""

    hits: list[TurnHit]
    total: int
    total_is_bound: bool = False
    missing: tuple[str, ...] = ()
    cursor: str = ""
    is_phrase_cut: bool = False


NOTHING = SearchResults(hits=[], total=0)


def find_nothing(query: SearchQuery) -> SearchResults:
    """Return the result if no session is in the workspaces that the query names."""
    return replace(NOTHING, missing=tuple(f"in:{slug}" for slug in query.workspaces))


# Search results as JSON, for the command and for programs.

MAX_SNIPPET_CHARS = 160


def as_answer(results: SearchResults, query: SearchQuery) -> dict[str, Any]:
    """Return the hits in their order, the number of matching turns, and what is missing."""
    hits = [
        {
            "turn": hit.turn,
            "score": round(hit.score, 6),
            "role": hit.role,
            "tool_name": hit.tool_name,
            "created_at": instant(hit.created_at),
            "is_near": hit.is_near,
            "snippet": snippet(hit.text, query, limit=MAX_SNIPPET_CHARS),
        }
        for hit in results.hits
    ]
    return {
        "hits": hits,
        "total": results.total,
        "total_is_bound": results.total_is_bound,
        "missing": list(results.missing),
    }


type TurnRef = tuple[int, int]


def select_at(statement: str, refs: Collection[TurnRef]) -> list[tuple[Any, ...]]:
    """Return the rows of a statement that joins ``place`` (``session``, ``turn``).

    The numbers of the places come from the database. Without places, no query is made."""
    if not refs:
        return []
    values = ", ".join(f"({session}, {turn})" for session, turn in refs)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH place AS (SELECT CAST(column1 AS bigint) AS session,"
            f" CAST(column2 AS bigint) AS turn FROM (VALUES {values}) AS listed) {statement}"
        )
        return list(cursor.fetchall())


_TURNS = (
    f"SELECT session.id, session.uuid, {', '.join(f'turn.{name}' for name in COLUMNS)} FROM place"
    " CROSS JOIN conversations_turn turn"
    " JOIN conversations_session session ON session.id = turn.session_id"
    " WHERE turn.session_id = place.session AND turn.number = place.turn"
)


def read_hits(
    scores: Sequence[tuple[float, int]], *, near: frozenset[int] = frozenset()
) -> list[TurnHit]:
    """Return the turns of these entries, in this order, with one query or none."""
    score_of = {pk: score for score, pk in scores}
    hits = {}
    for session_pk, uuid, *values in select_at(
        _TURNS, [(pk >> TURN_BITS, pk & TURN_MASK) for pk in score_of]
    ):
        row = dict(zip(COLUMNS, values, strict=True))
        turn = StoredTurn(**row | {"created_at": read_moment(row["created_at"])})
        searchable = searchable_of(session_pk, turn)
        pk = session_pk << TURN_BITS | turn.number
        hits[pk] = TurnHit(
            session_pk=session_pk,
            session=uuid if isinstance(uuid, UUID) else UUID(uuid),
            turn=turn.number,
            role=turn.role,
            tool_name=next(iter(searchable.names), None),
            created_at=turn.created_at,
            text=searchable.text,
            score=score_of[pk],
            is_near=pk in near,
        )
    return [hits[pk] for _, pk in scores if pk in hits]


MAX_LINE_CHARS = 160  # Characters of a neighbouring turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class HitContext:
    """Details for showing hits.

    ``sessions`` holds the sessions by key, with the names of workspace and owner. ``lines`` holds
    role, tool and one line of each turn next to a hit, if it has text. ``replaced`` holds the hits
    that left the active path."""

    sessions: dict[int, Session]
    lines: dict[TurnRef, tuple[str, str | None, str]]
    replaced: set[TurnRef]


_NAMED = (
    *("uuid", "title", "archived_at", "expires_at"),
    *("owner__username", "workspace__name", "workspace__slug"),
)
_LINES = (
    "SELECT turn.session_id, turn.number, turn.role, turn.tool_name,"
    f" SUBSTR(turn.content, 1, {MAX_LINE_CHARS * 4}) FROM place CROSS JOIN conversations_turn turn"
    " WHERE turn.session_id = place.session AND turn.number = place.turn"
    " AND turn.content <> ''"
)


def read_hit_context(hits: Sequence[TurnHit]) -> HitContext:
    refs = {(hit.session_pk, hit.turn) for hit in hits}
    neighbours = {(pk, turn + step) for pk, turn in refs for step in (-1, 1)} - refs
    sessions = Session.objects.select_related("workspace", "owner").only(*_NAMED)
    rewound = read_rewound_of({pk for pk, _ in refs})
    return HitContext(
        sessions=sessions.in_bulk([pk for pk, _ in refs]),
        lines={
            (pk, number): (role, tool, one_line(strip_marks(text), limit=MAX_LINE_CHARS))
            for pk, number, role, tool, text in select_at(_LINES, neighbours)
        },
        replaced={(pk, turn) for pk, turn in refs if are_within(turn, rewound.get(pk, ()))},
    )
