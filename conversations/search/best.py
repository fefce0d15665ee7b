"""The best matches: words are looked up rarest first within a bounded number of
occurrences, and what is near them is ranked."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .matching import IndexMatch
from .people import Meant
from .query import SearchQuery, Term
from .ranking import (
    LIGHT_WEIGHT,
    Occurrences,
    Ranking,
    find_shared_tokens,
    weigh_feedback,
    window_length,
    window_of,
)
from .source import IndexSource

FIRST_OCCURRENCES, MOST_OCCURRENCES = 1000, 5000
"""Occurrences that are read of each word, and of all words together. A word with more than
the first counts in the turns that have it, not in those near them."""

FAR_APART = 250
"""Occurrences of each word that are read, and no more, where most are of other sessions."""

LIGHT_TURNS = 5000
"""Turns beyond which words without a subject are everywhere, and not looked up."""

MAX_PHRASE_TURNS = 1000
"""Turns with all words of a phrase in which the phrase itself is looked for."""

SPEAKER_BONUS = 1.3
"""What a turn of the person counts whom the question names, against one of another."""

NAME_WEIGHT = 0.4
"""What that name itself counts, against the other words."""

FEEDBACK_TURNS, FEEDBACK_LONGEST = 20, 2000
"""The best turns whose words are looked at, and the longest session in which they are."""

NOBODY = Meant()

RANKED = 200
"""Turns that are put in order; what comes after them nobody looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Ids with scores, best first; ``matched`` are those that match themselves."""

    scores: Sequence[tuple[float, int]]
    matched: frozenset[int]
    is_bound: bool
    missing: tuple[str, ...]


def rank_entries(
    source: IndexSource,
    query: SearchQuery,
    match: IndexMatch,
    *,
    with_neighbours: bool,
    meant: Meant = NOBODY,
) -> Ranked:
    """``with_neighbours``: turns that only lie near a match are ranked too, and those
    that have words of a phrase, but not the phrase. ``meant``: whose turns count more."""
    words = _read_words(source, match, query.all_tokens if with_neighbours else query.tokens)
    phrases = {term: _read_phrase(source, match, term) for term in query.phrases}
    everything = [*words.values(), *phrases.values()]
    light = _read_light_words(source, match, query.light_tokens)
    matched = _matched(words, phrases)
    missing = tuple(_missing(query, words, phrases))
    weighed = [*_weigh(words, meant), *phrases.values(), *light]
    ranking = Ranking(weighed, turn_count=source.turn_count)
    candidates = _candidates(source, ranking, matched, with_neighbours=with_neighbours)
    scores = _scores(source, ranking, candidates, meant)
    if with_neighbours and source.turn_count <= FEEDBACK_LONGEST:
        feedback = _read_feedback(source, [*words, *query.light_tokens], scores)
        ranking = Ranking([*weighed, *feedback], turn_count=source.turn_count)
        candidates = _candidates(source, ranking, matched, with_neighbours=True)
        scores = _scores(source, ranking, candidates, meant)
    return Ranked(
        scores=scores,
        matched=frozenset(matched),
        is_bound=any(len(found.ids) < found.count for found in everything),
        missing=missing,
    )


def _read_words(
    source: IndexSource, match: IndexMatch, tokens: Sequence[str]
) -> dict[str, Occurrences]:
    most = _most_occurrences(source)
    first = {token: source.find(match.having(token), limit=most) for token in tokens}
    room = 0 if source.is_sparse else MOST_OCCURRENCES - sum(map(len, first.values()))
    found = {}
    for token in sorted(tokens, key=lambda token: _estimate(source, first[token])):
        ids = first[token]
        if len(ids) == most and room > 0:
            ids = ids + source.find(match.having(token), limit=room, below=ids[-1])
            room -= len(ids) - most
        found[token] = ids
    return {token: _occurrences(source, ids) for token, ids in found.items()}


def _most_occurrences(source: IndexSource) -> int:
    return FAR_APART if source.is_sparse else FIRST_OCCURRENCES


def _read_light_words(
    source: IndexSource, match: IndexMatch, tokens: Sequence[str]
) -> Iterator[Occurrences]:
    """Words without a subject help to rank where they are rare enough to read."""
    for token in tokens if source.turn_count <= LIGHT_TURNS else ():
        ids = source.find(match.having(token), limit=FIRST_OCCURRENCES)
        if len(ids) < FIRST_OCCURRENCES:
            yield Occurrences(ids=ids, count=len(ids), weight=LIGHT_WEIGHT)


def _weigh(words: dict[str, Occurrences], meant: Meant) -> Iterator[Occurrences]:
    """The name of somebody whose turns are known says less than the other words."""
    names = meant.tokens if words.keys() - meant.tokens else frozenset[str]()
    for token, found in words.items():
        yield replace(found, weight=NAME_WEIGHT) if token in names else found


def _read_feedback(
    source: IndexSource, known: Iterable[str], scores: Sequence[tuple[float, int]]
) -> list[Occurrences]:
    """Words that the best turns have in common, as further words of the query. Reads
    the words of all turns, which is less than looking up each word that may be one."""
    texts = source.read_words(range(source.low, source.high + 1), ("said", "tools"))
    words = {pk: " ".join(columns).split() for pk, columns in texts.items()}
    best = [(score, words[pk]) for score, pk in scores[:FEEDBACK_TURNS] if pk in words]
    wanted = find_shared_tokens(best, known=frozenset(known))
    ids: dict[str, list[int]] = {token: [] for token in wanted}
    for pk in sorted(words, reverse=True):
        for token in wanted.intersection(words[pk]):
            ids[token].append(pk)
    found = {token: Occurrences(ids=having, count=len(having)) for token, having in ids.items()}
    return [
        replace(found[token], weight=weight)
        for token, weight in weigh_feedback(best, found, turn_count=source.turn_count)
    ]


def _occurrences(source: IndexSource, ids: list[int]) -> Occurrences:
    is_common = len(ids) >= _most_occurrences(source)
    return Occurrences(ids=ids, count=_estimate(source, ids), is_common=is_common)


def _estimate(source: IndexSource, ids: list[int]) -> int:
    """How many there are in all, if they go on as densely as the newest."""
    if len(ids) < _most_occurrences(source):
        return len(ids)
    covered = source.high - ids[-1] + 1
    within = source.high - source.low + 1
    return max(len(ids), min(source.turn_count, len(ids) * within // covered))


def _read_phrase(source: IndexSource, match: IndexMatch, phrase: Term) -> Occurrences:
    tokens = tuple(dict.fromkeys(phrase.tokens))
    ids = source.find(match.having(*tokens), limit=MAX_PHRASE_TURNS)
    ids = keep_phrases(source, match, [phrase], ids)
    return Occurrences(ids=ids, count=len(ids))


def keep_phrases(
    source: IndexSource, match: IndexMatch, phrases: Iterable[Term], ids: Sequence[int]
) -> list[int]:
    """Those entries in which the words of each phrase follow upon each other."""
    columns = match.scopes or ("said", "tools")
    wanted = [f" {' '.join(phrase.tokens)} " for phrase in phrases if len(phrase.tokens) > 1]
    if not wanted:
        return list(ids)
    words = source.read_words(ids, columns)
    return [
        pk
        for pk in ids
        if all(any(phrase in f" {text} " for text in words.get(pk, ())) for phrase in wanted)
    ]


def _matched(words: dict[str, Occurrences], phrases: dict[Term, Occurrences]) -> set[int]:
    if phrases:
        return set.intersection(*(set(found.ids) for found in phrases.values()))
    return set().union(*(found.ids for found in words.values()))


def _missing(
    query: SearchQuery, words: dict[str, Occurrences], phrases: dict[Term, Occurrences]
) -> list[str]:
    telling = [word for word in query.words if any(token in words for token in word.tokens)]
    return [
        *(word.text for word in telling if not any(_ids(words, t) for t in word.tokens)),
        *(f'"{phrase.text}"' for phrase, found in phrases.items() if not found.ids),
    ]


def _ids(words: dict[str, Occurrences], token: str) -> Sequence[int]:
    return words[token].ids if token in words else ()


def _candidates(
    source: IndexSource, ranking: Ranking, matched: set[int], *, with_neighbours: bool
) -> list[int]:
    everything = range(source.low, source.high + 1)
    return ranking.best(RANKED, among=everything if with_neighbours else matched)


def _scores(
    source: IndexSource, ranking: Ranking, candidates: Sequence[int], meant: Meant
) -> list[tuple[float, int]]:
    low, high = source.low, source.high
    lengths = source.read_lengths(turn for turn in window_of(candidates) if low <= turn <= high)
    theirs = _turns_of(source, candidates, meant)
    scores = [
        (
            ranking.score(turn, length=window_length(turn, lengths, average=source.average))
            * (SPEAKER_BONUS if turn in theirs else 1.0),
            turn,
        )
        for turn in candidates
        if lengths.get(turn)  # what has no words is nothing to look at
    ]
    return sorted(scores, reverse=True)


def _turns_of(source: IndexSource, candidates: Sequence[int], meant: Meant) -> set[int]:
    if not meant.mark:
        return set()
    marks = source.read_words(candidates, ("marks",))
    return {pk for pk, [text] in marks.items() if meant.mark in text.split()}
