"""Random texts with rare, middling and very common words, which follow Zipf's law."""

from collections.abc import Iterator
from itertools import accumulate
from random import Random

VOCABULARY = 60_000
SYLLABLES = "ba ce di fo gu la me ni po ru sa te vi zo".split()  # noqa: SIM905
ZIPF = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))


def word(rank: int) -> str:
    """Return the word of a rank. Words are unique, and rank 0 is the most common."""
    parts, rank = [], rank + len(SYLLABLES) ** 2
    while rank:
        rank, place = divmod(rank, len(SYLLABLES))
        parts.append(SYLLABLES[place])
    return "".join(parts)


WORDS = [word(rank) for rank in range(VOCABULARY)]


def make_text(random: Random, *, words: tuple[int, int]) -> str:
    """Return a text whose number of words lies between the bounds, both included."""
    return " ".join(random.choices(WORDS, cum_weights=ZIPF, k=random.randint(*words)))


def make_texts(random: Random, *, words: tuple[int, int]) -> Iterator[str]:
    while True:
        yield make_text(random, words=words)
