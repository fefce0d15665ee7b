"""Ranking turns of a conversation.

BM25 over windows of turns: a turn counts as having a word, in part, when a turn near it has it,
since an answer seldom repeats the words of its question and people say one thing in several turns.
A word counts once in a turn however often it is there. How rare a word is is counted within what is
searched, because what is common differs from one conversation to the next, and rarity is raised to
a power, which favours the few telling words of a question.

The constants were tuned on three conversations of a public benchmark; ``docs/search.md`` has the
figures.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nlargest

# Distance of a turn from one that has a word, and the share of it that it gets.
AFTER, BEFORE = (0.5, 0.25, 0.125, 0.06, 0.03, 0.02), (0.3, 0.165, 0.09, 0.05, 0.025, 0.015)
NEAR = ((0, 1.0), *enumerate(AFTER, 1), *((-place, share) for place, share in enumerate(BEFORE, 1)))

# What is counted where all would cost much: for the lengths of windows, and for words with
# more than :data:`FEW` occurrences.
NEAREST = tuple((distance, share) for distance, share in NEAR if abs(distance) <= 3)

FEW = 400
WHOLE = sum(share for _, share in NEAREST)
SATURATION = 0.8
LENGTH_WEIGHT = 0.6
RARITY_POWER = 1.5
LIGHT_WEIGHT = 0.25  # What a word without a subject of its own counts beside those that have one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """The turns that have a word, by id. ``count`` is how many there are, which may
    be more than ``ids`` lists. Ids of neighbouring turns are neighbouring numbers. A
    word that is everywhere says nothing by being near: ``is_common``. ``weight`` is
    what the word counts beside the others."""

    ids: Sequence[int]
    count: int
    is_common: bool = False
    weight: float = 1.0


class Ranking:
    """Scores the turns near occurrences of words, among ``turn_count`` turns."""

    def __init__(self, words: Iterable[Occurrences], *, turn_count: int) -> None:
        # How much of a word each turn has, and what the word is worth.
        self._words: list[tuple[dict[int, float], float]] = []
        for word in words:
            shares = dict.fromkeys(word.ids, 1.0)
            near_ones = NEAR if len(word.ids) <= FEW else NEAREST
            for distance, share in () if word.is_common else near_ones[1:]:
                for turn in word.ids:
                    near = turn + distance
                    shares[near] = shares.get(near, 0.0) + share
            self._words.append((shares, word.weight * rarity(word.count, turn_count)))

    def best(self, count: int, *, among: Set[int] | range) -> list[int]:
        """The best of these turns, as if all were equally long; of equals the newest first."""
        scores: dict[int, float] = {}
        for shares, worth in self._words:
            most = worth * (SATURATION + 1)
            for turn, share in shares.items():
                if turn in among:
                    scores[turn] = scores.get(turn, 0.0) + most * share / (share + SATURATION)
        least = min(nlargest(count, scores.values()), default=0.0)
        found = [(score, turn) for turn, score in scores.items() if score >= least]
        return [turn for _, turn in sorted(found, reverse=True)[:count]]

    def score(self, turn: int, *, length: float) -> float:
        """``length`` is that of the turn's window, where 1 is the average."""
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
        total = 0.0
        for shares, worth in self._words:
            if share := shares.get(turn):
                total += worth * (SATURATION + 1) * share / (share + norm)
        return total


def rarity(count: int, turn_count: int) -> float:
    turn_count = max(turn_count, count)
    inverse = math.log(1 + (turn_count - count + 0.5) / (count + 0.5))
    return float(inverse**RARITY_POWER)


def window_length(turn: int, lengths: Mapping[int, int], *, average: float) -> float:
    """The length of the turns that count for one, relative to an average window."""
    near = sum(share * lengths.get(turn + distance, 0) for distance, share in NEAREST)
    return near / (WHOLE * average) if average else 1.0


def window_of(turns: Iterable[int]) -> set[int]:
    return {turn + distance for turn in turns for distance, _ in NEAREST}


# Feedback: words that the best matches have in common help to find more.

KEPT = 33  # Words that are taken.

WEIGHT = 0.055  # What the best of them counts beside a word of the query.

DAMPING = 20  # Words by which every turn counts as longer, so that short ones do not decide.

type ScoredTurn = tuple[float, Sequence[str]]


def weigh_feedback(
    turns: Sequence[ScoredTurn], found: Mapping[str, Occurrences], *, turn_count: int
) -> list[tuple[str, float]]:
    """The tokens to take, of those in ``found``, with their weights."""
    whole = sum(score for score, _ in turns) or 1.0
    shares: dict[str, float] = defaultdict(float)
    for score, tokens in turns:
        for token, count in Counter(tokens).items():
            shares[token] += score / whole * count / (len(tokens) + DAMPING)
    worth = [
        (shares[token] * rarity(occurrences.count, turn_count) ** (2 / 3), token)
        for token, occurrences in found.items()
    ]
    best = nlargest(KEPT, worth)
    return [(token, WEIGHT * value / best[0][0]) for value, token in best if value > 0]
