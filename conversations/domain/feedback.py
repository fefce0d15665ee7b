"""Feedback: words that the best matches have in common help to find more.

A word is worth more the oftener the best turns have it and the rarer it is elsewhere,
after relevance feedback as in Rocchio and RM3; it always counts far less than a word
that was asked for.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest

from .ranking import Occurrences, rarity
from .search_query import STOP_TOKENS

KEPT = 33
"""Words that are taken."""

WEIGHT = 0.055
"""What the best of them counts beside a word of the query."""

DAMPING = 20
"""Words by which every turn counts as longer, so that short ones do not decide."""

type ScoredTurn = tuple[float, Sequence[str]]


def find_shared_tokens(turns: Sequence[ScoredTurn], *, known: Collection[str]) -> set[str]:
    """Tokens of these scored turns that say something and are not known already."""
    tokens = {token for _, said in turns for token in said if len(token) > 1}
    return tokens - STOP_TOKENS - set(known)


def weigh_feedback(
    turns: Sequence[ScoredTurn], found: Mapping[str, Occurrences], *, turn_count: int
) -> list[tuple[str, float]]:
    """The tokens to take, of those in ``found``, with their weights."""
    shares = _shares(turns)
    worth = [
        (shares[token] * rarity(occurrences.count, turn_count) ** (2 / 3), token)
        for token, occurrences in found.items()
    ]
    best = nlargest(KEPT, worth)
    return [(token, WEIGHT * value / best[0][0]) for value, token in best if value > 0]


def _shares(turns: Sequence[ScoredTurn]) -> dict[str, float]:
    whole = sum(score for score, _ in turns) or 1.0
    shares: dict[str, float] = defaultdict(float)
    for score, tokens in turns:
        for token, count in Counter(tokens).items():
            shares[token] += score / whole * count / (len(tokens) + DAMPING)
    return shares
