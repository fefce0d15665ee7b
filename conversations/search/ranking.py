"""Ranking of the turns of a conversation.

The score is BM25 over windows of turns. A turn counts as partly having a word if a turn near it has
the word, because an answer seldom repeats the words of its question, and people spread one
statement over several turns.

A word counts once in a turn, however often it occurs there. It counts less in wordier turns: if
answers are ten times as long as the messages that they answer, a word in an answer counts a tenth.
The rarity of a word is measured within the searched turns, because common words differ between
conversations.

``docs/search.md`` shows the effect of each part, measured on two public benchmarks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest

# The share of a word that the turns one, two, … away from a turn with it have.
SHARES_AFTER, SHARES_BEFORE = (
    (0.5, 0.25, 0.125, 0.06, 0.03, 0.02),
    (0.3, 0.165, 0.09, 0.05, 0.025, 0.015),
)
NEIGHBOUR_SHARES = (
    *enumerate(SHARES_AFTER, 1),
    *((-place, share) for place, share in enumerate(SHARES_BEFORE, 1)),
)

# The shares for the lengths of windows, and for words with more than :data:`MAX_SPREADING_TURNS`
# occurrences, for which all neighbours would be slow.
INNER_NEIGHBOUR_SHARES = tuple(
    (distance, share) for distance, share in NEIGHBOUR_SHARES if abs(distance) <= 3
)

MAX_SPREADING_TURNS = 400
# A word that is in more than this share of all turns, and in more than this number of turns, does
# not count in the turns near it.
COMMON_SHARE, MIN_COMMON_TURNS = 0.3, 5
SATURATION = 0.8
LENGTH_WEIGHT = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class WordOccurrences:
    """The turns that have a word, each with its weight from 0 to 1.

    The ids of neighbouring turns are consecutive numbers. ``count`` is the total weight of all
    turns with the word, which may be more than ``turns`` lists. Turns near those in ``spreading``
    have a share of the word. ``weight`` is the weight of the word relative to the others."""

    turns: Mapping[int, float]
    count: float
    spreading: Sequence[int]
    weight: float


class Ranking:
    """Scores for the turns near occurrences of words.

    ``whole`` is the total weight of all turns. ``nearness`` is a factor for the shares of
    neighbours."""

    def __init__(
        self, words: Iterable[WordOccurrences], *, whole: float, nearness: float = 1.0
    ) -> None:
        self._nearness = nearness
        # Each turn's share of a word, and the weight of the word.
        self._words: list[tuple[dict[int, float], float]] = []
        for word in words:
            shares = dict(word.turns)
            # For a word that is everywhere, being near it says nothing.
            is_common = word.count > max(MIN_COMMON_TURNS, COMMON_SHARE * whole)
            spreading = () if is_common else word.spreading
            if len(spreading) <= MAX_SPREADING_TURNS:
                neighbour_shares: Iterable[tuple[int, float]] = NEIGHBOUR_SHARES
            else:
                neighbour_shares = INNER_NEIGHBOUR_SHARES
            get = shares.get
            for distance, share in neighbour_shares:
                part = share * nearness
                for turn in spreading:
                    near = turn + distance
                    shares[near] = get(near, 0.0) + part * word.turns[turn]
            self._words.append((shares, word.weight * rarity(word.count, whole)))

    @property
    def full_score(self) -> float:
        """The score of a turn of average length that has all words itself."""
        return sum(worth for _, worth in self._words)

    def best(self, count: int, *, among: Set[int] | range) -> list[int]:
        """Return the best of these turns, as if all were equally long.

        Of turns with the same score, the newest comes first."""
        scores: dict[int, float] = {}
        get = scores.get
        for shares, worth in self._words:
            max_part = worth * (SATURATION + 1)
            for turn, share in shares.items():
                scores[turn] = get(turn, 0.0) + max_part * share / (share + SATURATION)
        ranked = [(score, turn) for turn, score in scores.items() if turn in among]
        return [turn for _, turn in nlargest(count, ranked)]

    def score(self, turn: int, lengths: Mapping[int, float], *, average: float) -> float:
        """Return the score of a turn.

        ``lengths`` are those of the turn and of the turns near it, ``average`` is that of all
        turns."""
        neighbour_shares = [share * self._nearness for _, share in INNER_NEIGHBOUR_SHARES]
        others = sum(
            share * lengths.get(turn + distance, 0)
            for (distance, _), share in zip(INNER_NEIGHBOUR_SHARES, neighbour_shares, strict=True)
        )
        length = (lengths[turn] + others) / ((1 + sum(neighbour_shares)) * average)
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
        total = 0.0
        for shares, worth in self._words:
            share = shares.get(turn)
            if share:
                total += worth * (SATURATION + 1) * share / (share + norm)
        return total


def rarity(count: float, whole: float) -> float:
    whole = max(whole, count)
    return math.log(1 + (whole - count + 0.5) / (count + 0.5))


def window_of(turns: Iterable[int]) -> set[int]:
    return {turn + distance for turn in turns for distance, _ in (*INNER_NEIGHBOUR_SHARES, (0, 1))}


# The share of its score that a turn loses right next to a turn that is taken. The loss falls to
# zero at a distance of SPREAD_TURNS.
SPREAD_SHARE, SPREAD_TURNS = 0.3, 20


def spread(scores: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the same turns, best first, where each taken turn lowers the scores near it."""
    full_scores = {turn: score for score, turn in scores}
    remaining = dict(full_scores)
    ranked = []
    while remaining:
        score, turn = max((score, turn) for turn, score in remaining.items())
        ranked.append((score, turn))
        del remaining[turn]
        for distance in range(-SPREAD_TURNS, SPREAD_TURNS + 1):
            near = turn + distance
            if near in remaining:
                loss = SPREAD_SHARE * (1 - abs(distance) / SPREAD_TURNS)
                remaining[near] = min(remaining[near], full_scores[near] * (1 - loss))
    return ranked
