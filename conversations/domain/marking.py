"""Showing where a text matches a query, by the very words of the index."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from .search_query import SearchQuery, parse_query
from .text import one_line
from .words import find_parts

READ = 8000
"""Characters of a long text that are looked at; a tool may have returned a megabyte."""

type Span = tuple[int, int]

LEAD = 0.25
"""The share of a snippet that comes before its first match."""


def mark_words(text: str, query: SearchQuery | str) -> list[tuple[str, bool]]:
    """The text in pieces, True for those that match. Joined they are the text."""
    pieces: list[tuple[str, bool]] = []
    end = 0
    for low, high in _merge(_find_spans(text, query)):
        pieces += [(text[end:low], False), (text[low:high], True)]
        end = high
    pieces.append((text[end:], False))
    return [piece for piece in pieces if piece[0]]


def snippet(text: str, query: SearchQuery | str, *, limit: int) -> str:
    """The part of the text with the most different matches, on one line, at most
    ``limit`` characters; its beginning if nothing matches."""
    asked = parse_query(query) if isinstance(query, str) else query
    low, high = _telling_part(text, asked)
    spans = [(low + begin, low + end) for begin, end in sorted(_find_spans(text[low:high], asked))]
    if not spans or len(text) <= limit:
        return one_line(text, limit=limit)
    begin = max(0, _densest(text, spans, limit) - int(limit * LEAD))
    if begin > 0:
        begin = _word_start(text, begin)
    lead = "…" if begin > 0 else ""
    return lead + one_line(text[begin:], limit=max(1, limit - len(lead)))


def _telling_part(text: str, query: SearchQuery) -> Span:
    """Where to look for the best part of a text: all of it, but in a long one around
    the longest word of the query that stands there as the index writes it."""
    if len(text) > READ:
        folded = text.lower()
        phrased = [token for phrase in query.phrases for token in phrase.tokens]
        for token in sorted({*query.tokens, *phrased}, key=lambda token: (-len(token), token)):
            at = folded.find(token)
            if at >= 0:
                low = max(0, at - READ // 4)
                return low, low + READ
    return 0, len(text)


def _find_spans(text: str, query: SearchQuery | str) -> list[Span]:
    asked = parse_query(query) if isinstance(query, str) else query
    wanted = set(asked.tokens)
    parts = list(find_parts(text))
    spans = [(low, high) for low, high, tokens in parts if not wanted.isdisjoint(tokens)]
    for phrase in asked.phrases:
        spans += _find_phrase(parts, phrase.tokens)
    return spans


def _find_phrase(
    parts: Sequence[tuple[int, int, tuple[str, ...]]], phrase: tuple[str, ...]
) -> Iterator[Span]:
    last = deque[tuple[str, Span]](maxlen=len(phrase))
    for low, high, tokens in parts:
        for token in tokens:
            last.append((token, (low, high)))
            if len(last) == len(phrase) and all(
                mine[0] == other for mine, other in zip(last, phrase, strict=True)
            ):
                yield from (span for _, span in last)


def _merge(spans: list[Span]) -> Iterator[Span]:
    """Disjoint spans in order."""
    current: Span | None = None
    for low, high in sorted(spans):
        if current is None or low > current[1]:
            if current:
                yield current
            current = (low, high)
        else:
            current = (current[0], max(current[1], high))
    if current:
        yield current


def _densest(text: str, spans: list[Span], limit: int) -> int:
    """Where the window begins that has the most different words of the query."""
    room = int(limit * (1 - LEAD))
    within: deque[tuple[int, str]] = deque()
    counts: Counter[str] = Counter()
    best, at = 0, spans[0][0]
    for low, high in spans:
        word = text[low:high].casefold()
        within.append((low, word))
        counts[word] += 1
        while high - within[0][0] > room and len(within) > 1:
            _, gone = within.popleft()
            counts[gone] -= 1
            if not counts[gone]:
                del counts[gone]
        if len(counts) > best:
            best, at = len(counts), within[0][0]
    return at


def _word_start(text: str, place: int) -> int:
    """The beginning of the next word, if it is near."""
    for at in range(place, min(place + 20, len(text))):
        if text[at].isspace():
            return at + 1
    return place
