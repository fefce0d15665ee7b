"""The best matches: words are looked up rarest first within a bounded number of
occurrences, and what is near them is ranked."""

from collections.abc import Iterable, Sequence
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

# Occurrences that are read of each word, and of all words together. A word with more than the
# first counts in the turns that have it, not in those near them.
MAX_OCCURRENCES, MAX_ALL_OCCURRENCES = 1000, 5000

# Occurrences of each word that are read, and no more, where most are of other sessions.
MAX_OCCURRENCES_APART = 250

# Turns beyond which words without a subject are everywhere, and not looked up.
MAX_LIGHT_TURNS = 5000

# Turns with all words of a phrase in which the phrase itself is looked for.
MAX_PHRASE_TURNS = 1000

# What a turn of the person counts whom the question names, against one of another.
SPEAKER_BONUS = 1.3

NAME_WEIGHT = 0.4  # What that name itself counts, against the other words.

# The best turns whose words are looked at, and the longest session in which they are.
FEEDBACK_TURNS, MAX_FEEDBACK_TURNS = 20, 2000

NOBODY = Meant()

MAX_RANKED = 200  # Turns that are put in order; what comes after them nobody looks at.


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
    phrases = {}
    for term in query.phrases:
        ids = source.find(match.having(*dict.fromkeys(term.tokens)), limit=MAX_PHRASE_TURNS)
        ids = keep_phrases(source, match, [term], ids)
        phrases[term] = Occurrences(ids=ids, count=len(ids))
    everything = [*words.values(), *phrases.values()]
    having = [set(found.ids) for found in (phrases or words).values()]
    matched = set.intersection(*having) if phrases else set().union(*having)
    # The name of somebody whose turns are known says less than the other words.
    names = meant.tokens if words.keys() - meant.tokens else frozenset[str]()
    weighed = [
        replace(found, weight=NAME_WEIGHT) if token in names else found
        for token, found in words.items()
    ]
    weighed += phrases.values()
    # Words without a subject help to rank where they are rare enough to read.
    for token in query.light_tokens if source.turn_count <= MAX_LIGHT_TURNS else ():
        ids = source.find(match.having(token), limit=MAX_OCCURRENCES)
        if len(ids) < MAX_OCCURRENCES:
            weighed.append(Occurrences(ids=ids, count=len(ids), weight=LIGHT_WEIGHT))
    among = range(source.low, source.high + 1) if with_neighbours else matched
    ranking = Ranking(weighed, turn_count=source.turn_count)
    scores = _scores(source, ranking, ranking.best(MAX_RANKED, among=among), meant)
    if with_neighbours and source.turn_count <= MAX_FEEDBACK_TURNS:
        feedback = _read_feedback(source, [*words, *query.light_tokens], scores)
        ranking = Ranking([*weighed, *feedback], turn_count=source.turn_count)
        scores = _scores(source, ranking, ranking.best(MAX_RANKED, among=among), meant)
    telling = [word for word in query.words if any(token in words for token in word.tokens)]
    missing = [w.text for w in telling if not any(words[t].ids for t in w.tokens if t in words)]
    missing += [f'"{phrase.text}"' for phrase, found in phrases.items() if not found.ids]
    return Ranked(
        scores=scores,
        matched=frozenset(matched),
        is_bound=any(len(found.ids) < found.count for found in everything),
        missing=tuple(missing),
    )


def _read_words(
    source: IndexSource, match: IndexMatch, tokens: Sequence[str]
) -> dict[str, Occurrences]:
    most = _most_occurrences(source)
    first = {token: source.find(match.having(token), limit=most) for token in tokens}
    room = 0 if source.is_sparse else MAX_ALL_OCCURRENCES - sum(map(len, first.values()))
    found = {}
    for token in sorted(tokens, key=lambda token: _estimate(source, first[token])):
        ids = first[token]
        if len(ids) == most and room > 0:
            ids = ids + source.find(match.having(token), limit=room, below=ids[-1])
            room -= len(ids) - most
        found[token] = ids
    return {
        token: Occurrences(ids=ids, count=_estimate(source, ids), is_common=len(ids) >= most)
        for token, ids in found.items()
    }


def _most_occurrences(source: IndexSource) -> int:
    return MAX_OCCURRENCES_APART if source.is_sparse else MAX_OCCURRENCES


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


def _estimate(source: IndexSource, ids: list[int]) -> int:
    """How many there are in all, if they go on as densely as the newest."""
    if len(ids) < _most_occurrences(source):
        return len(ids)
    covered = source.high - ids[-1] + 1
    within = source.high - source.low + 1
    return max(len(ids), min(source.turn_count, len(ids) * within // covered))


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


def _scores(
    source: IndexSource, ranking: Ranking, candidates: Sequence[int], meant: Meant
) -> list[tuple[float, int]]:
    low, high = source.low, source.high
    lengths = source.read_lengths(turn for turn in window_of(candidates) if low <= turn <= high)
    marks = source.read_words(candidates, ("marks",)) if meant.mark else {}
    theirs = {pk for pk, [text] in marks.items() if meant.mark in text.split()}
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
