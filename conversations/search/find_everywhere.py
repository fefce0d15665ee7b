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
from .latest_matches import LatestSearch, as_numbers, as_placed, read_at_once
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
    asked: SearchQuery,
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
    if not (asked.has_words or asked.has_filters or lists_all):
        return NOTHING
    if asked.workspaces:
        found = Workspace.objects.filter(slug__in=asked.workspaces).order_by("pk")
        named = set(found.values_list("pk", flat=True))
        if within.workspaces is not None:
            named &= set(within.workspaces)
        within = replace(within, workspaces=tuple(sorted(named)))
    sessions = within.filter(sessions)
    if asked.workspaces and not sessions.exists():
        return find_nothing(asked)
    limit = max(1, min(limit, MAX_HITS))
    by_rank = order == "best" and asked.has_words
    after = parse_search_cursor(cursor, "all", count=7) if by_rank else None
    # The newest session of the first page. Later pages leave out newer sessions.
    end = entry_id(after[0] + 1, 0) if after else None
    bounds: dict[str, Any] = {
        "from_turn": asked.from_turn or 1,
        "before_turn": asked.before_turn or MAX_TURNS,
    }
    parts = [(sessions, within.marks)]
    if within.person is not None:
        others = sessions.exclude(owner=within.person)
        marks = (*within.marks, (owner_mark(within.person),))
        parts = [(sessions.filter(owner=within.person), marks), (others, within.marks)]
    places = [place for some, marks in parts for place in _choose_scopes(some, marks, bounds)]
    source = IndexSource(
        scopes=tuple(place.below(end) for place in places), tail=catch_up_all(sessions)
    )
    if by_rank:
        return _best(source, asked, sessions, limit, after)
    return _newest(source, asked, sessions, limit, cursor)


def _choose_scopes(
    sessions: QuerySet[Session], marks: tuple[tuple[str, ...], ...], bounds: dict[str, Any]
) -> tuple[IndexScope, ...]:
    """Return the scopes for these sessions.

    Marks only reduce reading. The query set alone decides which sessions may be read."""
    enough = max(MAX_SESSIONS_NAMED, MAX_SESSIONS_LISTED) + 1
    some = list(sessions.order_by("-pk").values_list("pk", flat=True)[:enough])
    if len(some) <= MAX_SESSIONS_NAMED:
        return tuple(session_scope(pk, **bounds) for pk in some)
    high = entry_id(some[0] + 1, 0) - 1
    if len(some) <= MAX_SESSIONS_LISTED and not marks:
        return (IndexScope(low=0, high=high, session_pks=tuple(some), **bounds),)
    if not sessions.query.has_filters():
        return (IndexScope(low=0, high=high, marks=marks, **bounds),)
    # The share of these sessions among the newest sessions.
    share = len(some) / (some[0] - some[-1] + 1)
    are_most = not marks and share >= MIN_MAJORITY_SHARE
    keys = sessions.order_by().values("pk").query
    which, parameters = keys.get_compiler(using=connection.alias).as_sql()
    among = (which, list(parameters))
    return (IndexScope(low=0, high=high, sessions=among, are_most=are_most, marks=marks, **bounds),)


def _best(
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
    of_lengths = map(as_number, astuple(source.lengths))
    among = (source.high >> TURN_BITS, source.turn_count, *of_lengths)
    return page_of_best(ranked, limit, after, kind="all", among=among)


def _newest(
    source: IndexSource, query: SearchQuery, sessions: QuerySet[Session], limit: int, cursor: str
) -> SearchResults:
    numbers = parse_search_cursor(cursor, "latest", count=2)
    match = choose_words(source, query)
    if not match.has_words:
        # Every entry has one of these marks. Reading their lists is faster than reading the
        # entries.
        match = match.marked(ROLE_MARKS)
    most = MAX_COUNTED_TURNS_APART if source.is_sparse else MAX_COUNTED_TURNS
    most = MAX_COUNTED_PHRASE_TURNS if query.phrases else most
    some = source.find(match, limit=max(most, read_at_once(query)) + 1, highest=False)
    walk = LatestSearch(
        source=source,
        query=query,
        match=match,
        sessions=sessions,
        wanted=limit + 1,
        some=some,
        after=as_placed(numbers) if numbers else None,
    )
    placed = walk.find()
    page = placed[:limit]
    goes_on = page[-1] if len(placed) > limit else walk.stopped_at
    total, is_bound = max(len(page), min(len(some), most)), len(some) > most
    if query.phrases:  # The turns are only known to have the words of the phrases.
        known = [] if is_bound else filter_by_phrases(source, match, query.phrases, some)
        total = len(page) if is_bound else len(known)
    return SearchResults(
        hits=read_hits([(1.0, pk) for _, pk in page]),
        total=total,
        total_is_bound=is_bound,
        missing=() if page and not match.any_tokens else missing_words(source, query, match),
        cursor=search_cursor("latest", *as_numbers(goes_on)) if goes_on else "",
    )
