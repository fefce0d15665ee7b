"""Where in a text the words of a query stand closest together."""

import re
from collections import Counter
from collections.abc import Callable

PASSAGE = 160
"""Characters of a matching passage, which is shown whatever else is left out."""

MAX_WORDS, MAX_PLACES = 32, 2_000
"""Words of the query, and their places in a text, that are looked at."""

_WORD = re.compile(r"\w+")


def make_finder(query: str) -> Callable[[str], tuple[int, int]]:
    """A function that says of a text how many different words of the query the best
    passage has, and where it begins; the beginning if there is none."""
    words = list(dict.fromkeys(_WORD.findall(query.casefold())))[:MAX_WORDS]
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE) if words else None

    def find(text: str) -> tuple[int, int]:
        if pattern is None:
            return 0, 0
        found = [(m.start(), m[0].casefold()) for m in pattern.finditer(text)]
        return _densest(found[:MAX_PLACES])

    return find


def _densest(places: list[tuple[int, str]]) -> tuple[int, int]:
    best, at, first = 0, 0, 0
    inside = Counter[str]()
    for start, word in places:
        inside[word] += 1
        while start - places[first][0] > PASSAGE:
            inside[places[first][1]] -= 1
            first += 1
        distinct = sum(1 for count in inside.values() if count)
        if distinct > best:
            best, at = distinct, places[first][0]
    return best, at
