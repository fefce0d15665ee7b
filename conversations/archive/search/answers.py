"""What was found, as JSON: the same for a command and for programs."""

from typing import Any

from conversations.domain.digest import instant
from conversations.domain.marking import snippet
from conversations.domain.search_query import SearchQuery, parse_query

from .results import SearchResults, TurnHit

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
