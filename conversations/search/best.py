"""The best matches: words are looked up rarest first within a bounded number of occurrences, and
what is near them is ranked."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from django.db.models.functions import Left

from conversations.domain.searchable import role_mark
from conversations.models import Turn

from .matching import TURN_MASK, IndexMatch
from .query import STOP_TOKENS, SearchQuery, Term
from .ranking import LIGHT_WEIGHT, Occurrences, Ranking, weigh_feedback, window_length, window_of
from .source import IndexSource

# Whose turns a question about a person means: people are sides of the conversation.

OTHER = {"user": "assistant", "assistant": "user"}

LEAST = 5  # Turns that have to show it.

AGREEING = 0.85  # Share of the forms of address that come from one side.


def is_name(word: str) -> bool:
    """Whether a word of a question can be a person's name: a capital and small letters."""
    return len(word) > 1 and word.istitle() and re.fullmatch(r"[^\W\d_]+", word) is not None


def find_speaker(name: str, turns: Iterable[tuple[str, str]]) -> str | None:
    """The role of the person with this name, from turns that have it; None: they do not show it."""
    headed: Counter[str] = Counter()
    addressed: Counter[str] = Counter()
    # How somebody is spoken to: at the start or after a comma or a greeting, and before a mark.
    greeting = r"\b(?:hey|hi|hello|dear|thanks|thank you|wow|yeah|yes|no|oh|well|great|sure)\b"
    named = re.escape(name)
    before = rf"(?:^|[,!.?]\s*|{greeting}[, ]+){named}\s*[,!.?:]"
    address = re.compile(rf"{before}|,\s*{named}\s*[!.?]", re.IGNORECASE)
    for role, text in turns:
        if role not in OTHER:
            continue
        if text.startswith(f"{name}:"):
            headed[role] += 1
        elif address.search(text):
            addressed[role] += 1
    if len(headed) == 1 and headed.total() >= LEAST:
        return next(iter(headed))
    for role, count in addressed.most_common(1):
        if addressed.total() >= LEAST and count >= AGREEING * addressed.total():
            return OTHER[role]
    return None


READ, CHARS = 300, 2000  # Turns with a name that are read, and how much of each.

MAX_NAMES = 4

type Meant = tuple[frozenset[str], str]  # Tokens of names, and the mark of one side's role


def find_meant(session_pk: int, source: IndexSource, query: SearchQuery) -> Meant:
    """Whose turns the names of the query mean: the mark is empty where it is nobody's or those of
    both sides. One statement for each name."""
    names = [term for term in query.words if is_name(term.text)]
    roles, tokens = set[str](), set[str]()
    for term in names[:MAX_NAMES]:
        if not set(term.tokens) <= set(query.tokens):
            continue
        numbers = [pk & TURN_MASK for pk in source.find(IndexMatch(tokens=term.tokens), limit=READ)]
        turns = Turn.objects.filter(session=session_pk, number__in=numbers, role__in=OTHER)
        read = turns.order_by("number").values_list("role", Left("content", CHARS))
        role = find_speaker(term.text, read)
        if role is not None:
            roles.add(role)
            tokens.update(term.tokens)
    mark = role_mark(roles.pop()) if len(roles) == 1 else ""
    return frozenset(tokens), mark


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

NOBODY: Meant = (frozenset(), "")

MAX_RANKED = 200  # Turns that are put in order; what comes after them nobody looks at.


# Ids with scores, best first; those that match themselves, and whether there are more; what matches
# nothing.
type Ranked = tuple[list[tuple[float, int]], frozenset[int], bool, tuple[str, ...]]


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
    names = meant[0] if words.keys() - meant[0] else frozenset[str]()
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
    scores = _scores(source, ranking, among, meant[1])
    if with_neighbours and source.turn_count <= MAX_FEEDBACK_TURNS:
        feedback = _read_feedback(source, [*words, *query.light_tokens], scores)
        ranking = Ranking([*weighed, *feedback], turn_count=source.turn_count)
        scores = _scores(source, ranking, among, meant[1])
    telling = [word for word in query.words if any(token in words for token in word.tokens)]
    missing = [w.text for w in telling if not any(words[t].ids for t in w.tokens if t in words)]
    missing += [f'"{phrase.text}"' for phrase, found in phrases.items() if not found.ids]
    is_bound = any(len(found.ids) < found.count for found in everything)
    return scores, frozenset(matched), is_bound, tuple(missing)


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
    said = {token for _, tokens in best for token in tokens if len(token) > 1}
    wanted = said - STOP_TOKENS - set(known)
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


def find_with_phrases(
    source: IndexSource,
    match: IndexMatch,
    phrases: Iterable[Term],
    *,
    limit: int,
    below: int | None = None,
    most_pages: int = sys.maxsize,
) -> list[int]:
    """The highest entries that match and have the phrases: ``limit`` of them or more, if so many
    are among the pages of ``limit`` matches that are looked through."""
    found: list[int] = []
    for _ in range(most_pages):
        ids = source.find(match, limit=limit, below=below)
        found += keep_phrases(source, match, phrases, ids)
        if len(ids) < limit or len(found) >= limit:
            break
        below = ids[-1]
    return found


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
    source: IndexSource, ranking: Ranking, among: Set[int] | range, mark: str
) -> list[tuple[float, int]]:
    candidates = ranking.best(MAX_RANKED, among=among)
    low, high = source.low, source.high
    lengths = source.read_lengths(turn for turn in window_of(candidates) if low <= turn <= high)
    marks = source.read_words(candidates, ("marks",)) if mark else {}
    theirs = {pk for pk, [text] in marks.items() if mark in text.split()}
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
