"""Looking things up in the archive: a session, or all that somebody may read.

:func:`search_session` and :func:`search_sessions` are the interface; what is behind
them depends on the database.
"""

from conversations.domain.marking import mark_words, snippet
from conversations.domain.search_query import SearchQuery, parse_query

from .answers import as_answer, as_hit
from .find import search_session
from .find_everywhere import EVERYWHERE, Within, search_sessions
from .occurrences import read_occurrences
from .results import SearchResults, TurnHit
from .surroundings import Surroundings, SurroundingTurn, read_surroundings

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
