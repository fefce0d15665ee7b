"""Marking words, until the index does."""

import re


def _pattern(query: str) -> re.Pattern[str] | None:
    words = [word for word in query.split() if ":" not in word]
    return re.compile("|".join(map(re.escape, words)), re.IGNORECASE) if words else None


def mark_words(text: str, query: str) -> list[tuple[str, bool]]:
    pattern = _pattern(query)
    if pattern is None:
        return [(text, False)]
    pieces, at = [], 0
    for match in pattern.finditer(text):
        pieces += [(text[at : match.start()], False), (match.group(), True)]
        at = match.end()
    return [piece for piece in [*pieces, (text[at:], False)] if piece[0]]


def snippet(text: str, query: str, *, limit: int) -> str:
    pattern = _pattern(query)
    match = pattern.search(text) if pattern else None
    start = max(0, match.start() - limit // 3) if match else 0
    return ("…" if start else "") + text[start : start + limit]
