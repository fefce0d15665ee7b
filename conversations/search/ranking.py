"""Ranking turns of a conversation.

BM25 over windows of turns: a turn counts as having a word, in part, when a turn near it has it,
since an answer seldom repeats the words of its question and people say one thing in several turns.
A word counts once in a turn however often it is there, and the less the more is said: where answers
are ten times as long as what they answer, to have a word says a tenth. How rare a word is is
counted within what is searched, because what is common differs from one conversation to the next.

``docs/search.md`` has what each part is worth, measured on two public benchmarks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest

# What the turns one, two, … away from one with a word have of it.
SHARES_AFTER, SHARES_BEFORE = (
    (0.5, 0.25, 0.125, 0.06, 0.03, 0.02),
    (0.3, 0.165, 0.09, 0.05, 0.025, 0.015),
)
NEIGHBOUR_SHARES = (
    *enumerate(SHARES_AFTER, 1),
    *((-place, share) for place, share in enumerate(SHARES_BEFORE, 1)),
)

# What is counted where all would cost much: for the lengths of windows, and for words with more
# than :data:`MAX_SPREADING_TURNS` occurrences.
INNER_NEIGHBOUR_SHARES = tuple(
    (distance, share) for distance, share in NEIGHBOUR_SHARES if abs(distance) <= 3
)

MAX_SPREADING_TURNS = 400
# Of all turns, and at least so many; a word that more of them have says nothing by being near.
COMMON_SHARE, MIN_COMMON_TURNS = 0.3, 5
SATURATION = 0.8
LENGTH_WEIGHT = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class WordOccurrences:
    """The turns that have a word, by id, each with what it counts, from 0 to 1. Ids of neighbouring
    turns are neighbouring numbers. ``count`` is what all turns with the word count together, which
    may be more than ``turns`` lists. ``spreading`` are those near which others have it in part.
    ``weight`` is what the word counts beside the others."""

    turns: Mapping[int, float]
    count: float
    spreading: Sequence[int] = ()
    weight: float = 1.0


class Ranking:
    """Scores the turns near occurrences of words. ``whole`` is what all turns count together,
    ``nearness`` what the share of a turn near one with a word is multiplied with."""

    def __init__(
        self, words: Iterable[WordOccurrences], *, whole: float, nearness: float = 1.0
    ) -> None:
        self._nearness = nearness
        # How much of a word each turn has, and what the word is worth.
        self._words: list[tuple[dict[int, float], float]] = []
        for word in words:
            shares = dict(word.turns)
            # A word that is everywhere says nothing by being near.
            is_common = word.count > max(MIN_COMMON_TURNS, COMMON_SHARE * whole)
            spreading = () if is_common else word.spreading
            get, near_ones = (
                shares.get,
                NEIGHBOUR_SHARES
                if len(spreading) <= MAX_SPREADING_TURNS
                else INNER_NEIGHBOUR_SHARES,
            )
            for distance, share in near_ones:
                part = share * nearness
                for turn in spreading:
                    near = turn + distance
                    shares[near] = get(near, 0.0) + part * word.turns[turn]
            self._words.append((shares, word.weight * rarity(word.count, whole)))

    @property
    def most(self) -> float:
        """What a turn would score that had nothing but all words."""
        return sum(worth for _, worth in self._words)

    def best(self, count: int, *, among: Set[int] | range) -> list[int]:
        """The best of these turns, as if all were equally long; of equals the newest first."""
        scores: dict[int, float] = {}
        get = scores.get
        for shares, worth in self._words:
            most = worth * (SATURATION + 1)
            for turn, share in shares.items():
                scores[turn] = get(turn, 0.0) + most * share / (share + SATURATION)
        found = [(score, turn) for turn, score in scores.items() if turn in among]
        return [turn for _, turn in nlargest(count, found)]

    def score(self, turn: int, lengths: Mapping[int, float], *, average: float) -> float:
        """``lengths`` of the turn and those near it, and the ``average`` of all."""
        near = [share * self._nearness for _, share in INNER_NEIGHBOUR_SHARES]
        others = sum(
            share * lengths.get(turn + distance, 0)
            for (distance, _), share in zip(INNER_NEIGHBOUR_SHARES, near, strict=True)
        )
        length = (lengths[turn] + others) / ((1 + sum(near)) * average)
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
        total = 0.0
        for shares, worth in self._words:
            if share := shares.get(turn):
                total += worth * (SATURATION + 1) * share / (share + norm)
        return total


def rarity(count: float, whole: float) -> float:
    whole = max(whole, count)
    return math.log(1 + (whole - count + 0.5) / (count + 0.5))


def window_of(turns: Iterable[int]) -> set[int]:
    return {turn + distance for turn in turns for distance, _ in (*INNER_NEIGHBOUR_SHARES, (0, 1))}


# A turn loses this right beside one that is taken, and less up to so many turns off.
SPREAD_SHARE, SPREAD_TURNS = 0.3, 20


def spread(scores: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """The same turns, best first, where each loses by what is taken near it."""
    whole = {turn: score for score, turn in scores}
    left, taken = dict(whole), []
    while left:
        score, turn = max((score, turn) for turn, score in left.items())
        taken.append((score, turn))
        del left[turn]
        for distance in range(-SPREAD_TURNS, SPREAD_TURNS + 1):
            if (near := turn + distance) in left:
                lost = SPREAD_SHARE * (1 - abs(distance) / SPREAD_TURNS)
                left[near] = min(left[near], whole[near] * (1 - lost))
    return taken
