"""Searching the turns of one session by words."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from functools import partial

from conversations.domain.keyset import parse_search_cursor, search_cursor
from conversations.models import Session
from conversations.models.search import TURN_BITS, entry_id

from .best_matches import Ranked, filter_by_phrases, find_with_phrases, rank_entries
from .indexing import IndexProgress, read_progress, sum_up
from .matching import TURN_MASK, IndexMatch, match_filters, session_scope
from .meaning import find_similar
from .query import SearchQuery
from .results import NOTHING, SearchResults, find_nothing, read_hits
from .source import IndexSource, TurnLengths, catch_up

MAX_HITS = 200  # On one page.

# Pages of turns with all words of a phrase in which the phrase itself is looked for.
MAX_PHRASE_PAGES = 20

MAX_COUNTED_TURNS = 1000  # Up to this number, the count is exact if the newest come first.


def search_session(
    session_pk: int,
    query: SearchQuery,
    *,
    limit: int = 10,
    cursor: str = "",
    order: str = "best",
    before_turn: int | None = None,
    with_neighbours: bool = False,
) -> SearchResults:
    """Return the turns of one session that match.

    ``best`` ranks turns that have any of the words. ``newest`` returns the turns with all of them,
    or with any if no turn has all, with the highest number first. Its pages may have few hits if a
    phrase is rare and its words are not, as in :func:`~.find_everywhere.search_sessions`. A cursor
    of another search returns the first page.

    ``before_turn`` excludes that turn and all later ones. ``with_neighbours`` also ranks turns next
    to matches and, if the query has words besides its phrases, turns without the phrases. Both are
    marked ``is_near``. A query with filters, or with phrases only, never returns such turns."""
    progress = read_progress(session_pk)
    if progress is None or not (query.has_words or query.has_filters):
        return NOTHING
    if query.workspaces:
        sessions = Session.objects.filter(pk=session_pk, workspace__slug__in=query.workspaces)
        if not sessions.exists():
            return find_nothing(query)
    source = session_source(progress, query, before_turn=before_turn)
    limit = max(1, min(limit, MAX_HITS))
    if order == "best" and query.has_words:
        return _read_best_page(source, query, limit, cursor, with_neighbours=with_neighbours)
    after = parse_search_cursor(cursor, "newest", count=1)
    match = choose_words(source, query)
    find = partial(find_with_phrases, source, match, query.phrases, max_pages=MAX_PHRASE_PAGES)
    ids, stopped_at = find(limit=limit + 1, below=after[0] if after else None)
    page = ids[:limit]
    next_position = page[-1] if len(ids) > limit else stopped_at
    counted, uncounted = find(limit=MAX_COUNTED_TURNS + 1)
    return SearchResults(
        hits=read_hits([(1.0, pk) for pk in page]),
        total=max(len(page), min(len(counted), MAX_COUNTED_TURNS)),
        total_is_bound=len(counted) > MAX_COUNTED_TURNS or uncounted is not None,
        missing=missing_words(source, query, match),
        cursor=search_cursor("newest", next_position) if next_position is not None else "",
    )


def session_source(
    progress: IndexProgress, query: SearchQuery, *, before_turn: int | None
) -> IndexSource:
    progress, tail = catch_up(progress)
    bounds = (progress.last_turn + 1, before_turn, query.before_turn)
    end = min(bound for bound in bounds if bound is not None)
    session_pk, first = progress.session_pk, query.from_turn or 1
    return IndexSource(
        scopes=(session_scope(session_pk, from_turn=first, before_turn=end),),
        tail=tail,
        stored_to=entry_id(session_pk, progress.indexed_turn),
        turn_count=max(1, end - first),
        lengths=TurnLengths.of(progress.sums + sum_up(tail), progress.last_turn),
    )


def _read_best_page(
    source: IndexSource,
    query: SearchQuery,
    limit: int,
    cursor: str,
    *,
    with_neighbours: bool,
) -> SearchResults:
    """Return a page of the session's best matches.

    The cursor excludes turns and vectors newer than the first page, so that ranks do not change."""
    after = parse_search_cursor(cursor, "best", count=7)
    [scope] = source.scopes
    if after:
        scope = scope.below(after[0] + 1)
        count, lengths = scope.high - scope.low + 1, TurnLengths(*map(as_fraction, after[1:4]))
        source = replace(source, scopes=(scope,), turn_count=count, lengths=lengths)
    match = match_filters(query)
    newest = min(scope.high, after[4]) if after else scope.high
    similar = find_similar(scope.low >> TURN_BITS, query.question, low=scope.low, high=newest)
    is_plain = not (match.marks or match.scopes or match.has_moments) and bool(query.words)
    ranked = rank_entries(
        source,
        query,
        match,
        with_neighbours=with_neighbours and is_plain,
        similar=similar,
    )
    embedded = similar.last if similar is not None else 0
    figures = (source.high, *map(as_number, astuple(source.lengths)), embedded)
    return page_of_best(ranked, limit, after, kind="best", figures=figures)


def page_of_best(
    ranked: Ranked, limit: int, after: Sequence[int] | None, *, kind: str, figures: tuple[int, ...]
) -> SearchResults:
    """Return the page of ranked entries that follows the score and the id at the end of ``after``.

    The page's cursor begins with ``figures``, from which the next page computes the same scores."""
    scores, matched, is_bound, missing, is_phrase_cut = ranked
    if after is not None:
        bound = (as_fraction(after[-2]), after[-1])
        scores = [item for item in scores if item < bound]
    page, cursor = scores[:limit], ""
    if len(scores) > limit:
        score, pk = page[-1]
        cursor = search_cursor(kind, *figures, as_number(score), pk)
    return SearchResults(
        hits=read_hits(page, near=frozenset(pk for _, pk in page) - matched),
        total=len(matched),
        total_is_bound=is_bound,
        missing=missing,
        cursor=cursor,
        is_phrase_cut=is_phrase_cut,
    )


def as_number(fraction: float) -> int:
    """Encode a positive fraction as an integer without loss."""
    return int.from_bytes(struct.pack(">d", fraction))


def as_fraction(number: int) -> float:
    return float(struct.unpack(">d", number.to_bytes(8))[0])


def choose_words(source: IndexSource, query: SearchQuery) -> IndexMatch:
    """Match all of the words, or any of them if no turn has all."""
    match = match_filters(query)
    phrases = tuple(dict.fromkeys(token for p in query.phrases for token in p.tokens))
    all_words = match.having(*dict.fromkeys((*query.tokens, *phrases)))
    if len(query.tokens) < 2 or source.has(all_words):
        return all_words
    return replace(match.having(*phrases), any_tokens=query.tokens)


def missing_words(source: IndexSource, query: SearchQuery, match: IndexMatch) -> tuple[str, ...]:
    """Return the words and phrases that no turn has.

    If the match has all words, none of them is missing."""
    filters = match_filters(query)

    def occurs(*tokens: str) -> bool:
        return source.has(filters.having(*tokens))

    missing: list[str] = []
    if match.any_tokens or not source.has(match):
        significant = set(query.tokens)
        words = [word for word in query.words if significant.intersection(word.tokens)]
        missing += [w.text for w in words if not any(occurs(token) for token in w.tokens)]
    for phrase in query.phrases:
        ids = source.find(filters.having(*dict.fromkeys(phrase.tokens)), limit=MAX_COUNTED_TURNS)
        if len(ids) < MAX_COUNTED_TURNS and not filter_by_phrases(source, filters, [phrase], ids):
            missing.append(f'"{phrase.text}"')
    return tuple(missing)


def read_occurrences(
    session_pk: int, tokens: Iterable[str], *, before_turn: int, limit: int
) -> dict[str, list[int]]:
    """Return the newest turns below ``before_turn`` that have each token, at most ``limit`` each.

    Callers use them to judge how significant the words are. One query a token."""
    progress = read_progress(session_pk)
    if progress is None:
        return {}
    source = session_source(progress, SearchQuery(), before_turn=before_turn)
    ids_by_token = {t: source.find(IndexMatch(tokens=(t,)), limit=limit) for t in tokens}
    return {token: [pk & TURN_MASK for pk in ids] for token, ids in ids_by_token.items()}
