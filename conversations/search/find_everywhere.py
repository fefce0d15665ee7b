"""Searching the turns of many sessions by words."""

from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from django.db import connection
from django.db.models import QuerySet, Sum

from conversations.domain.keyset import parse_search_cursor, search_cursor
from conversations.domain.searchable import ROLE_MARKS, owner_mark, workspace_mark
from conversations.models import SearchProgress, Session, Workspace, involving
from conversations.models.search import TURN_BITS, entry_id

from .best_matches import filter_by_phrases, rank_entries
from .find import MAX_HITS, as_fraction, as_number, choose_words, missing_words, page_of_best
from .indexing import IndexTotals, sum_up
from .latest_matches import LatestSearch, as_numbers, as_position, read_at_once
from .matching import IndexScope, match_filters, session_scope
from .query import SearchQuery
from .results import NOTHING, SearchResults, find_nothing, read_hits
from .source import IndexSource, TurnLengths, catch_up_all

MAX_TURNS = 1 << TURN_BITS

MAX_SESSIONS_NAMED = 24  # Sessions that are searched one by one, each by its range of ids.

# Sessions whose ranges are searched in one query. For more sessions, the query reads all entries
# with a word and drops those of other sessions.
MAX_SESSIONS_LISTED = 100

# If the searched sessions are at least this share of all, each entry's session is looked up.
MIN_MAJORITY_SHARE = 0.2

MAX_WORKSPACES_NAMED = 50  # Workspaces whose marks are searched for. More would not save reading.

MAX_COUNTED_TURNS = 2000  # Up to this number, the count is exact.

# The same if most turns with the words are in other sessions and have to be read all the same.
MAX_COUNTED_TURNS_APART = 250

MAX_COUNTED_PHRASE_TURNS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSessions:
    """The subset of the readable sessions that is searched.

    ``person`` limits it to the sessions that this person owns or asked something in. ``workspaces``
    limits it to these workspaces (keys). None means no limit."""

    person: int | None = None
    workspaces: tuple[int, ...] | None = None

    def filter(self, sessions: QuerySet[Session]) -> QuerySet[Session]:
        if self.workspaces is not None:
            sessions = sessions.filter(workspace__in=self.workspaces)
        return sessions if self.person is None else sessions.filter(involving(self.person))

    @property
    def marks(self) -> tuple[tuple[str, ...], ...]:
        """Return the marks of entries in these workspaces, if there are few enough of them."""
        if self.workspaces is None or not 0 < len(self.workspaces) <= MAX_WORKSPACES_NAMED:
            return ()
        return (tuple(workspace_mark(pk) for pk in self.workspaces),)


EVERYWHERE = SearchedSessions()


def search_sessions(
    sessions: QuerySet[Session],
    query: SearchQuery,
    *,
    within: SearchedSessions = EVERYWHERE,
    limit: int = 20,
    cursor: str = "",
    order: str = "best",
    lists_all: bool = False,
) -> SearchResults:
    """Return turns of these sessions that match themselves.

    The caller passes only sessions that the person may read. ``best`` returns turns with any of the
    words. ``newest`` returns turns with all words, or with any if no turn has all, the latest
    first. An empty query finds no turns, unless ``lists_all`` asks for all turns.

    A page of ``newest`` may have fewer hits than ``limit``, or none, and still have a cursor. This
    happens if a phrase is rare and its words are not, because each page reads a limited number of
    turns."""
    if not (query.has_words or query.has_filters or lists_all):
        return NOTHING
    if query.workspaces:
        workspaces = Workspace.objects.filter(slug__in=query.workspaces).order_by("pk")
        workspace_pks = set(workspaces.values_list("pk", flat=True))
        if within.workspaces is not None:
            workspace_pks &= set(within.workspaces)
        within = replace(within, workspaces=tuple(sorted(workspace_pks)))
    sessions = within.filter(sessions)
    if query.workspaces and not sessions.exists():
        return find_nothing(query)
    limit = max(1, min(limit, MAX_HITS))
    by_rank = order == "best" and query.has_words
    after = parse_search_cursor(cursor, "all", count=7) if by_rank else None
    # The newest session of the first page. Later pages leave out newer sessions.
    end = entry_id(after[0] + 1, 0) if after else None
    bounds: dict[str, Any] = {
        "from_turn": query.from_turn or 1,
        "before_turn": query.before_turn or MAX_TURNS,
    }
    parts = [(sessions, within.marks)]
    if within.person is not None:
        others = sessions.exclude(owner=within.person)
        marks = (*within.marks, (owner_mark(within.person),))
        parts = [(sessions.filter(owner=within.person), marks), (others, within.marks)]
    scopes: list[IndexScope] = []
    for part_sessions, marks in parts:
        scopes += _choose_scopes(part_sessions, marks, bounds)
    source = IndexSource(
        scopes=tuple(scope.below(end) for scope in scopes), tail=catch_up_all(sessions)
    )
    if by_rank:
        return _read_best_page(source, query, sessions, limit, after)
    return _read_newest_page(source, query, sessions, limit, cursor)


def _choose_scopes(
    sessions: QuerySet[Session], marks: tuple[tuple[str, ...], ...], bounds: dict[str, Any]
) -> tuple[IndexScope, ...]:
    """Return the scopes for these sessions.

    Marks only reduce reading. The query set alone decides which sessions may be read."""
    limit = max(MAX_SESSIONS_NAMED, MAX_SESSIONS_LISTED) + 1
    pks = list(sessions.order_by("-pk").values_list("pk", flat=True)[:limit])
    if len(pks) <= MAX_SESSIONS_NAMED:
        return tuple(session_scope(pk, **bounds) for pk in pks)
    high = entry_id(pks[0] + 1, 0) - 1
    if len(pks) <= MAX_SESSIONS_LISTED and not marks:
        return (IndexScope(low=0, high=high, session_pks=tuple(pks), **bounds),)
    if not sessions.query.has_filters():
        return (IndexScope(low=0, high=high, marks=marks, **bounds),)
    # The share of these sessions among the newest sessions.
    share = len(pks) / (pks[0] - pks[-1] + 1)
    are_majority = not marks and share >= MIN_MAJORITY_SHARE
    pk_query = sessions.order_by().values("pk").query
    statement, parameters = pk_query.get_compiler(using=connection.alias).as_sql()
    scope = IndexScope(
        low=0,
        high=high,
        sessions=(statement, list(parameters)),
        are_most=are_majority,
        marks=marks,
        **bounds,
    )
    return (scope,)


def _read_best_page(
    source: IndexSource,
    query: SearchQuery,
    sessions: QuerySet[Session],
    limit: int,
    after: tuple[int, ...] | None,
) -> SearchResults:
    """Return a page of the best matches.

    The cursor excludes newer sessions and keeps the figures of the first page, so that ranks do not
    change."""
    if after:
        lengths = TurnLengths(*map(as_fraction, after[2:5]))
        source = replace(source, turn_count=after[1], lengths=lengths)
    else:
        # The figures for ranking, which take a while in many sessions.
        progress = SearchProgress.objects.all()
        if sessions.query.has_filters():
            progress = progress.filter(session__in=sessions.order_by().values("pk"))
        names = ("indexed_turn", *(field.name for field in fields(IndexTotals)))
        turns, *stored = progress.aggregate(*(Sum(name, default=0) for name in names)).values()
        turns = max(1, turns + len(source.tail))
        lengths = TurnLengths.of(IndexTotals(*stored) + sum_up(source.tail), turns)
        source = replace(source, turn_count=turns, lengths=lengths)
    ranked = rank_entries(source, query, match_filters(query), with_neighbours=False)
    length_numbers = map(as_number, astuple(source.lengths))
    figures = (source.high >> TURN_BITS, source.turn_count, *length_numbers)
    return page_of_best(ranked, limit, after, kind="all", figures=figures)


def _read_newest_page(
    source: IndexSource, query: SearchQuery, sessions: QuerySet[Session], limit: int, cursor: str
) -> SearchResults:
    numbers = parse_search_cursor(cursor, "latest", count=2)
    match = choose_words(source, query)
    if not match.has_words:
        # Every entry has one of these marks. Reading their lists is faster than reading the
        # entries.
        match = match.marked(ROLE_MARKS)
    if query.phrases:
        max_counted = MAX_COUNTED_PHRASE_TURNS
    else:
        max_counted = MAX_COUNTED_TURNS_APART if source.is_sparse else MAX_COUNTED_TURNS
    ids = source.find(match, limit=max(max_counted, read_at_once(query)) + 1, highest=False)
    latest_search = LatestSearch(
        source=source,
        query=query,
        match=match,
        sessions=sessions,
        limit=limit + 1,
        first_ids=ids,
        after=as_position(numbers) if numbers else None,
    )
    positions = latest_search.find()
    page = positions[:limit]
    next_position = page[-1] if len(positions) > limit else latest_search.stopped_at
    is_bound = len(ids) > max_counted
    if not query.phrases:
        total = max(len(page), min(len(ids), max_counted))
    elif is_bound:
        total = len(page)
    else:  # The turns are only known to have the words of the phrases.
        total = len(filter_by_phrases(source, match, query.phrases, ids))
    return SearchResults(
        hits=read_hits([(1.0, pk) for _, pk in page]),
        total=total,
        total_is_bound=is_bound,
        missing=() if page and not match.any_tokens else missing_words(source, query, match),
        cursor=search_cursor("latest", *as_numbers(next_position)) if next_position else "",
    )
