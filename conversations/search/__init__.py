"""Looking things up in the archive: a session, or all that somebody may read.

:func:`search_session` and :func:`search_sessions` are the interface; what is behind
them depends on the database.
"""

from .find import read_occurrences, search_session
from .find_everywhere import EVERYWHERE, Within, search_sessions
from .query import SearchQuery, mark_words, parse_query, snippet
from .results import (
    SearchResults,
    Surroundings,
    SurroundingTurn,
    TurnHit,
    as_answer,
    as_hit,
    read_surroundings,
)

__all__ = [
    "EVERYWHERE",
    "SearchQuery",
    "SearchResults",
    "SurroundingTurn",
    "Surroundings",
    "TurnHit",
    "Within",
    "as_answer",
    "as_hit",
    "mark_words",
    "parse_query",
    "read_occurrences",
    "read_surroundings",
    "search_session",
    "search_sessions",
    "snippet",
]
