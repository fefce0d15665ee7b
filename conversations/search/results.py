"""What a search gives."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from conversations.domain.digest import instant

from .query import SearchQuery, parse_query, snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHit:
    """One turn that matches. ``score`` is above 0 and comparable within one answer;
    ``text`` is the turn's searchable text as it was written, ``tool_name`` is set
    for turns that call a tool or hold its result. Where ``is_near`` is set, the turn
    has none of the words itself: those around it do."""

    session_pk: int
    session: UUID
    turn: int
    role: str
    tool_name: str | None
    created_at: datetime
    text: str
    score: float
    is_near: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """``hits`` are in the order asked for (best first, unless said otherwise).
    ``total`` counts the turns that matched, and is a lower bound when
    ``total_is_bound``. ``missing`` are the words and phrases of the query, as
    written, that match nothing in what was searched. ``cursor`` goes on after the
    last hit; empty: there is no more."""

    hits: list[TurnHit]
    total: int
    total_is_bound: bool = False
    missing: tuple[str, ...] = ()
    cursor: str = ""


NOTHING = SearchResults(hits=[], total=0)


# What was found, as JSON: the same for a command and for programs.


SNIPPET = 160
"""Characters of a hit that are shown."""


def as_answer(found: SearchResults, query: str) -> dict[str, Any]:
    """``hits`` in their order, how many turns matched, and what matched nothing."""
    asked = parse_query(query)
    return {
        "hits": [as_hit(hit, asked) for hit in found.hits],
        "total": found.total,
        "total_is_bound": found.total_is_bound,
        "missing": list(found.missing),
    }


def as_hit(hit: TurnHit, asked: SearchQuery) -> dict[str, Any]:
    return {
        "turn": hit.turn,
        "score": round(hit.score, 6),
        "role": hit.role,
        "tool_name": hit.tool_name,
        "created_at": instant(hit.created_at),
        "is_near": hit.is_near,
        "snippet": snippet(hit.text, asked, limit=SNIPPET),
    }


# Reading what stands at some places, by one statement.


type Place = tuple[int, int]


def select_at(statement: str, places: Collection[Place]) -> list[tuple[Any, ...]]:
    """The rows of a statement that joins ``place`` (``session``, ``turn``); none, without
    asking, for no places. They are numbers of ours."""
    if not places:
        return []
    values = ", ".join(f"({session}, {turn})" for session, turn in places)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH place AS (SELECT CAST(column1 AS bigint) AS session,"
            f" CAST(column2 AS bigint) AS turn FROM (VALUES {values}) AS listed) {statement}"
        )
        return list(cursor.fetchall())
