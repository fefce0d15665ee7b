"""The best matches: looking up the words of a query and ranking the turns.

Words are looked up rarest first, within a bounded number of occurrences. Turns near these
occurrences are ranked.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conversations.domain.searchable import REPLY_MARK, RULE_MARK, role_mark
from conversations.domain.turns import USER

from .matching import IndexMatch
from .query import COURSE, PRESENT, SUMMARY, SearchQuery, Term
from .ranking import Ranking, WordOccurrences, spread, window_of
from .source import ASKED, IndexSource

if TYPE_CHECKING:
    from .embedding import Similarities

# Occurrences that are read of each word, and of all words together. A word with more than the first
# number counts in the turns that have it, but not in the turns near them.
MAX_OCCURRENCES, MAX_ALL_OCCURRENCES = 1000, 5000

# The same limit for each word if most occurrences are in other sessions. No more are read then.
MAX_OCCURRENCES_APART = 250

# In a larger number of turns, light words are everywhere, so they are not looked up.
MAX_LIGHT_TURNS = 5000

# Turns with all words of a phrase in which the phrase itself is looked for.
MAX_PHRASE_TURNS = 1000

# The notice for programs and the model if a phrase may also be in older turns.
PHRASE_CUT = (
    f"A phrase was only searched in the newest {MAX_PHRASE_TURNS:,} turns with its words;"
    " before:DATE or before:TURN searches further back."
)

LIGHT_WEIGHT = 0.25  # Weight of a light word (without a subject), relative to other words.

# The weight of a turn that states a rule or preference of the person. A question bears on such a
# turn more often than the words that they share suggest. The weight of a single rule is limited as
# if at least this share of the turns were rules.
RULE_WEIGHT, MIN_RULE_SHARE = 0.7, 0.02

MEANING_WEIGHT = 0.5  # Weight of similarity in meaning, relative to having all words of the query.

# Turns count as farther apart if the other turns are wordier than the person's.
DISTANCE_EXPONENT = 0.3

REPLY_WEIGHT = 0.85  # Weight of a message that thanks or agrees, and so repeats an answer.

DATE_WEIGHT = 1.35  # Weight of a turn from a time that the query names.

# The extra weight of the newest turn over the oldest, for a question about the present.
RECENCY_WEIGHT = 0.1

# The share of a message's score that its answer gets, so that it is ranked right after the message.
NEXT_ANSWER_WEIGHT = 1 - 1e-9

# Turns that are ranked because they are near in meaning. Unrelated sentences have a cosine of about
# 0.1.
MAX_MEANT_TURNS, MIN_SIMILARITY = 25, 0.2

MAX_RANKED_TURNS = 200  # Readers do not look at the turns after these.


# Scores and ids, best first; the ids of turns that match themselves; whether more turns match; the
# words and phrases that match nothing; whether a phrase was looked for only in the newest turns
# with its words.
type Ranked = tuple[list[tuple[float, int]], frozenset[int], bool, tuple[str, ...], bool]


def rank_entries(
    source: IndexSource,
    query: SearchQuery,
    match: IndexMatch,
    *,
    with_neighbours: bool,
    similar: "Similarities | None" = None,
) -> Ranked:
    """Rank the entries that match a query.

    ``with_neighbours``: also rank turns that are only near a match, and turns that have words of a
    phrase but not the phrase. ``similar``: the similarity of turns to the query in meaning. The
    most similar ones are ranked whatever their words."""
    words = _read_words(source, match, query.all_tokens if with_neighbours else query.tokens)
    phrases, cut = {}, set()
    for term in query.phrases:
        ids = source.find(match.having(*dict.fromkeys(term.tokens)), limit=MAX_PHRASE_TURNS)
        if len(ids) == MAX_PHRASE_TURNS:
            cut.add(term)
        ids = filter_by_phrases(source, match, [term], ids)
        phrases[term] = _WordMatches(ids, ids, len(ids), len(ids), spreading=ids)
    ids_by_term = [set(matches.ids) for matches in (phrases or words).values()]
    matched = set.intersection(*ids_by_term) if phrases else set().union(*ids_by_term)
    lengths = source.lengths
    total_weight = lengths.weigh(source.turn_count)
    occurrences = [matches.weighted(source) for matches in (*words.values(), *phrases.values())]
    if query.light_tokens:  # The query is a question and not a list of words.
        occurrences += _read_light_words(source, match, query.light_tokens)
        occurrences.append(_read_rules(source, match, total_weight))
    ranking = Ranking(
        occurrences, whole=total_weight, nearness=lengths.wordiness**-DISTANCE_EXPONENT
    )
    rankable = range(source.low, source.high + 1) if with_neighbours else matched
    candidates = {
        *ranking.best(MAX_RANKED_TURNS, among=rankable),
        *_find_by_meaning(source, match, query, similar),
    }
    meaning = similar.of(candidates) if similar is not None else {}
    scores = _score(source, query, ranking, candidates, meaning, rankable=rankable)
    missing = []
    for word in query.words:
        looked_up = [token for token in word.tokens if token in words]
        if looked_up and not any(words[token].ids for token in looked_up):
            missing.append(word.text)
    missing += [
        f'"{phrase.text}"'
        for phrase, matches in phrases.items()
        if not matches.ids and phrase not in cut
    ]
    is_bound = bool(cut) or any(len(matches.ids) < matches.count for matches in words.values())
    return scores, frozenset(matched), is_bound, tuple(missing), bool(cut)


@dataclass(frozen=True, slots=True)
class _WordMatches:
    """The entries that have a word, the highest id first, and the person's entries among them.

    ``count`` and ``asked_count`` say how many of both there are in total."""

    ids: Sequence[int]
    asked: Sequence[int]
    count: int
    asked_count: int
    spreading: Sequence[int] = ()

    def weighted(self, source: IndexSource, weight: float = 1.0) -> WordOccurrences:
        """Return the occurrences. The other turns count less the wordier they are."""
        others = 1 / source.lengths.wordiness
        return WordOccurrences(
            turns=dict.fromkeys(self.ids, others) | dict.fromkeys(self.asked, 1.0),
            count=self.asked_count + others * (self.count - self.asked_count),
            spreading=self.spreading,
            weight=weight,
        )


def _read_words(
    source: IndexSource, match: IndexMatch, tokens: Sequence[str]
) -> dict[str, _WordMatches]:
    limit = _max_occurrences(source)
    # The person's turns are looked up separately if the other turns are wordier. If the person uses
    # a word all the time, the others use it too, so that the second lookup is left out.
    asked_match = match.marked((role_mark(USER),)) if source.lengths.wordiness > 1 else match
    asked_by_token = {
        token: source.find(asked_match.having(token), limit=limit) for token in tokens
    }
    ids_by_token = {
        token: source.find(match.having(token), limit=limit)
        for token, asked in asked_by_token.items()
        if len(asked) < limit and asked_match is not match
    }
    room = 0 if source.is_sparse else MAX_ALL_OCCURRENCES
    room -= sum(map(len, (*asked_by_token.values(), *ids_by_token.values())))
    matches = {}
    for token in sorted(tokens, key=lambda token: _estimate(source, asked_by_token[token])):
        asked = asked_by_token[token]
        if len(asked) == limit and room > 0:
            asked = asked + source.find(asked_match.having(token), limit=room, below=asked[-1])
            room -= len(asked) - limit
        ids = ids_by_token.get(token, asked)
        complete = [found_ids for found_ids in (ids, asked) if len(found_ids) < limit]
        matches[token] = _WordMatches(
            ids=ids,
            asked=asked,
            count=_estimate(source, ids),
            asked_count=_estimate(source, asked),
            spreading=complete[0] if complete else (),
        )
    return matches


def _read_light_words(
    source: IndexSource, match: IndexMatch, tokens: Sequence[str]
) -> Iterator[WordOccurrences]:
    """Yield the light words of the query that are rare enough to read; they help to rank."""
    if source.turn_count <= MAX_LIGHT_TURNS:
        for matches in _read_words(source, match, tokens).values():
            if matches.spreading:
                yield matches.weighted(source, LIGHT_WEIGHT)


def _read_rules(source: IndexSource, match: IndexMatch, total_weight: float) -> WordOccurrences:
    rules = source.find(match.having().marked((RULE_MARK,)), limit=MAX_OCCURRENCES)
    count = max(len(rules), round(MIN_RULE_SHARE * total_weight))
    return _WordMatches(rules, rules, count, count).weighted(source, RULE_WEIGHT)


def _find_by_meaning(
    source: IndexSource, match: IndexMatch, query: SearchQuery, similar: "Similarities | None"
) -> list[int]:
    """Return turns near the query in meaning that pass its filters.

    Return none if the query names a phrase or a part of the entries, because it asks for these
    exact words."""
    if similar is None or query.phrases or match.scopes or match.has_moments:
        return []
    ids = similar.best(MAX_MEANT_TURNS, min_similarity=MIN_SIMILARITY)
    if match.marks:
        marks = {pk: set(text.split()) for pk, [text] in source.read_words(ids, ("marks",)).items()}
        groups = [set(group) for group in match.marks]
        ids = [pk for pk in ids if pk in marks and not any(map(marks[pk].isdisjoint, groups))]
    return ids


def _max_occurrences(source: IndexSource) -> int:
    return MAX_OCCURRENCES_APART if source.is_sparse else MAX_OCCURRENCES


def _estimate(source: IndexSource, ids: list[int]) -> int:
    """Estimate the total number of entries from how densely the newest ones follow each other."""
    if len(ids) < _max_occurrences(source):
        return len(ids)
    covered = source.high - ids[-1] + 1
    within = source.high - source.low + 1
    return max(len(ids), min(source.turn_count, len(ids) * within // covered))


def find_with_phrases(
    source: IndexSource,
    match: IndexMatch,
    phrases: Iterable[Term],
    *,
    limit: int,
    below: int | None = None,
    max_pages: int = sys.maxsize,
) -> tuple[list[int], int | None]:
    """Return the highest entries that match and have the phrases, and where the search stopped.

    Matches are read in pages of ``limit``, until ``limit`` entries or more are found or
    ``max_pages`` are read. The second value is the last match that was checked, or None if there
    are no more."""
    found: list[int] = []
    for _ in range(max_pages):
        ids = source.find(match, limit=limit, below=below)
        found += filter_by_phrases(source, match, phrases, ids)
        if len(ids) < limit:
            return found, None
        below = ids[-1]
        if len(found) >= limit:
            break
    return found, below


def filter_by_phrases(
    source: IndexSource, match: IndexMatch, phrases: Iterable[Term], ids: Sequence[int]
) -> list[int]:
    """Return the entries in which the words of each phrase follow each other."""
    columns = match.scopes or ("said", "tools")
    padded = [f" {' '.join(phrase.tokens)} " for phrase in phrases if len(phrase.tokens) > 1]
    if not padded:
        return list(ids)
    words = source.read_words(ids, columns)
    return [
        pk
        for pk in ids
        if all(any(phrase in f" {text} " for text in words.get(pk, ())) for phrase in padded)
    ]


def _score(
    source: IndexSource,
    query: SearchQuery,
    ranking: Ranking,
    candidates: Set[int],
    meaning: Mapping[int, float],
    *,
    rankable: Set[int] | range,
) -> list[tuple[float, int]]:
    low, high = source.low, source.high
    entries = source.read_lengths(turn for turn in window_of(candidates) if low <= turn <= high)
    recency = RECENCY_WEIGHT if query.asks_for(PRESENT) else 0.0
    other_weight, average = 1 / source.lengths.wordiness, source.lengths.average

    def weigh(turn: int, marks: str) -> float:
        is_asked = marks.startswith(ASKED)
        weight = 1.0 if is_asked else math.sqrt(other_weight)
        if is_asked and REPLY_MARK in marks:
            weight *= REPLY_WEIGHT
        if query.dates and query.dates.search(marks):
            weight *= DATE_WEIGHT
        return weight * (1 + recency * (turn - low) / (high - low + 1))

    lengths = {
        turn: length * (1 if marks.startswith(ASKED) else other_weight)
        for turn, (length, marks) in entries.items()
    }
    scores = {
        turn: weigh(turn, entries[turn][1])
        * (
            ranking.score(turn, lengths, average=average)
            + MEANING_WEIGHT * ranking.full_score * meaning.get(turn, 0.0)
        )
        for turn in candidates
        if lengths.get(turn)  # Turns without words are not worth showing.
    }
    if query.asks_for(SUMMARY):
        for turn, score in list(scores.items()):
            answer = _answer_to(turn, entries)
            if answer in rankable:
                scores[answer] = max(scores.get(answer, 0.0), score * NEXT_ANSWER_WEIGHT)
    ranked = sorted(((score, turn) for turn, score in scores.items()), reverse=True)
    return spread(ranked) if query.asks_for(COURSE) else ranked


def _answer_to(turn: int, entries: Mapping[int, tuple[int, str]]) -> int:
    """Return the last of the next three turns before the person speaks again, or 0."""
    answer = 0
    if turn in entries and entries[turn][1].startswith(ASKED):
        for later in range(turn + 1, turn + 4):
            if later not in entries or entries[later][1].startswith(ASKED):
                break
            answer = later
    return answer
