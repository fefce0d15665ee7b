"""Where single words occur in a session, for judging how telling each of them is."""

from collections.abc import Iterable

from conversations.domain.search_query import SearchQuery
from conversations.models.search import TURN_BITS

from .find import session_source
from .indexing import read_progress
from .matching import IndexMatch

TURN_MASK = (1 << TURN_BITS) - 1


def read_occurrences(
    session_pk: int, tokens: Iterable[str], *, before_turn: int, limit: int
) -> dict[str, list[int]]:
    """The turns below ``before_turn`` that have each token, the newest first, at most
    ``limit`` of them. One query a token."""
    progress = read_progress(session_pk)
    if progress is None:
        return {}
    source = session_source(progress, SearchQuery(), before_turn=before_turn)
    return {
        token: [
            entry & TURN_MASK for entry in source.find(IndexMatch(tokens=(token,)), limit=limit)
        ]
        for token in tokens
    }
