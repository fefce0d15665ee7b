"""Where in a text the words of a query stand closest together."""

from collections import Counter
from collections.abc import Callable

from conversations.domain.words import find_parts
from conversations.search.query import parse_query

PASSAGE = 160  # Characters of a matching passage, which is shown whatever else is left out


def make_finder(query: str) -> Callable[[str], tuple[int, int]]:
    """A function that says of a text how many different words of the query the best passage has,
    and where it begins; the beginning if there is none."""
    asked = parse_query(query)
    wanted = {*asked.tokens, *(token for phrase in asked.phrases for token in phrase.tokens)}

    def find(text: str) -> tuple[int, int]:
        places = [
            (low, token)
            for low, _, tokens in find_parts(text)
            for token in tokens
            if token in wanted
        ]
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

    return find
