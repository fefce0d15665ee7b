"""Which older turns a message is about, if it is plainly about some.

A word says the more the rarer it is among the turns below the floor; words that people
use about anything say little, and those that the window is full of nothing. A turn is
strong evidence when it has most of what the message's words say together, and has more
of it than any turn in the window: what the window holds needs no looking up. A question
needs less than a statement, because an order or a new subject often shares a word with
something old.

The constants were tuned on one half of ``tests/context/samples``; ``docs/tools.md``
has the figures for both halves.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conversations.archive.search import read_occurrences
from conversations.domain.search_query import STOP_TOKENS
from conversations.domain.words import find_words, tokens_of_word

from .common_words import COMMON

MAX_CHARS, MAX_WORDS = 600, 10
"""The part of a message that is looked at, in which it is said what it is about, and the
words of it that are looked up: first those that are not common."""

OFTEN, OFTEN_IN_LONG_SESSIONS = 64, 200
"""Turns with a word, from which on it tells nothing; in long sessions up to one in a
hundred."""

COMMON_SHARE = 0.3
"""What a common word says of what another one as rare would."""

AS_GOOD, MOST_TURNS = 0.9, 3
"""Turns that are nearly as good as the best are named with it; where there are more
than a few, none of them is what is meant."""

WINDOW_SHARE = 0.8
"""Below this share of the best turn's evidence, the window knows nothing of it."""

ASKING = re.compile(
    r"^\W*(?:what|which|who|whom|whose|when|where|why|how|did|do|does|is|are|was|were|had|have"
    r"|has|tell)\b|[?？]|\b(?:remind|forg[eo]t|remember|recall)",
    re.IGNORECASE,
)

type Word = tuple[str, ...]
"""The tokens of one word as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """``share`` of what the message's words say, and ``evidence`` in all, that the best
    turn has at least."""

    share: float
    evidence: float

    def is_met(self, evidence: float, *, of: float) -> bool:
        return evidence >= self.evidence and evidence >= self.share * of


QUESTION = Threshold(share=0.45, evidence=0.7)
QUESTION_BY_ONE_WORD = Threshold(share=0.68, evidence=0.7)
STATEMENT = Threshold(share=0.7, evidence=1.2)


def find_related_turns(session_pk: int, text: str, *, floor: int, turn: int) -> list[int]:
    """The turns below ``floor`` that the message in ``turn`` is about, in order; none
    unless that is plain. One query a word."""
    words = read_telling_words(text)
    if floor <= 1 or all(COMMON.issuperset(word) for word in words):
        return []
    tokens = {token for word in words for token in word}
    often = max(OFTEN, min(floor // 100, OFTEN_IN_LONG_SESSIONS))
    found = read_occurrences(session_pk, sorted(tokens), before_turn=turn, limit=often)
    evidence = Evidence(words, found, floor=floor, often=often)
    return choose_turns(evidence, asks=ASKING.search(text[:MAX_CHARS]) is not None)


def read_telling_words(text: str) -> list[Word]:
    """The words of a message that may say what it is about, each once."""
    words: dict[Word, None] = {}
    for match in find_words(text[:MAX_CHARS]):
        tokens = [token for token in tokens_of_word(match[0]) if token not in STOP_TOKENS]
        if tokens:
            words[tuple(dict.fromkeys(tokens))] = None
    return sorted(words, key=COMMON.issuperset)[:MAX_WORDS]


def choose_turns(evidence: "Evidence", *, asks: bool) -> list[int]:
    """The turns with the most evidence, in order, if it is strong."""
    best = max(evidence.below.values(), default=0.0)
    chosen = [turn for turn, score in evidence.below.items() if score >= best * AS_GOOD]
    rare = max((evidence.rare_words[turn] for turn in chosen), default=0)
    if not chosen or len(chosen) > MOST_TURNS or best * WINDOW_SHARE <= evidence.in_window:
        return []
    is_strong = _threshold(rare, asks=asks).is_met(best, of=evidence.total)
    return sorted(chosen) if is_strong and rare >= (1 if asks else 2) else []


def _threshold(rare_words: int, *, asks: bool) -> Threshold:
    if not asks:
        return STATEMENT
    return QUESTION if rare_words > 1 else QUESTION_BY_ONE_WORD


class Evidence:
    """What the words say for each turn below the floor, and at most for one in the
    window, where ``found`` has the turns with each token. ``total``: what they say
    together; ``rare_words``: how many words that are not common each turn has."""

    def __init__(
        self,
        words: Sequence[Word],
        found: Mapping[str, Sequence[int]],
        *,
        floor: int,
        often: int = OFTEN,
    ) -> None:
        self.below: dict[int, float] = defaultdict(float)
        self.rare_words: dict[int, int] = defaultdict(int)
        self.total = 0.0
        self._found, self._floor, self._often = found, floor, often
        window: dict[int, float] = defaultdict(float)
        for word in words:
            self._add(word, window)
        self.in_window = max(window.values(), default=0.0)

    def _add(self, word: Word, window: dict[int, float]) -> None:
        """Of a word in pieces those that occur count, and all of them as one word."""
        pieces = [token for token in word if self._found.get(token)] or list(word)
        weights = {token: self._weight(token) for token in pieces}
        most, whole = max(weights.values()), sum(weights.values())
        self.total += most
        rare: set[int] = set()
        for token, weight in weights.items():
            for turn in self._found.get(token, ()):
                scores = self.below if turn < self._floor else window
                scores[turn] += weight * most / whole if whole else 0.0
                if turn < self._floor and weight and token not in COMMON:
                    rare.add(turn)
        for turn in rare:
            self.rare_words[turn] += 1

    def _weight(self, token: str) -> float:
        """From 0 for what is everywhere to 1 for what was never said below the floor."""
        turns = self._found.get(token, ())
        if len(turns) >= self._often:
            return 0.0
        count = sum(1 for turn in turns if turn < self._floor)
        rarity = max(0.0, math.log(self._floor / (count + 1)) / math.log(self._floor))
        return rarity * COMMON_SHARE if token in COMMON else rarity
