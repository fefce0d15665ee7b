"""Matching of index entries, for SQLite, PostgreSQL and entries in memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models.expressions import RawSQL

from conversations.archive.append import moment_value
from conversations.domain.searchable import (
    ERROR_MARK,
    covering_marks,
    model_mark,
    role_mark,
    tool_mark,
)
from conversations.models.search import COLUMNS, ENTRIES, INDEX, TURN_BITS, WORDS, entry_id

from .indexing import TurnEntry
from .query import SearchQuery

TURN_MASK = (1 << TURN_BITS) - 1

NOWHERE = "\ue0ff"  # A mark that no entry has.

type Sql = tuple[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMatch:
    """A description of the entries that match.

    They have all of ``tokens``, one of ``any_tokens`` and one mark of each group in ``marks``. If
    ``scopes`` are given, the tokens are in one of them. The moments are set only if marks cannot
    express the bounds exactly."""

    tokens: tuple[str, ...] = ()
    any_tokens: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    marks: tuple[tuple[str, ...], ...] = ()
    from_moment: datetime | None = None
    before_moment: datetime | None = None

    def having(self, *tokens: str) -> "IndexMatch":
        return replace(self, tokens=tokens)

    def marked(self, *groups: tuple[str, ...]) -> "IndexMatch":
        return replace(self, marks=(*self.marks, *groups))

    @property
    def has_words(self) -> bool:
        return bool(self.tokens or self.any_tokens or self.marks)

    @property
    def has_moments(self) -> bool:
        return self.from_moment is not None or self.before_moment is not None

    def fits(self, item: TurnEntry) -> bool:
        words = {name: set(getattr(item.entry, name).split()) for name in COLUMNS}
        words_in_scope = set().union(*(words[scope] for scope in self.scopes or COLUMNS))
        moment = item.turn.created_at
        return (
            words_in_scope.issuperset(self.tokens)
            and (not self.any_tokens or not words_in_scope.isdisjoint(self.any_tokens))
            and all(not words["marks"].isdisjoint(group) for group in self.marks)
            and (self.from_moment is None or moment >= self.from_moment)
            and (self.before_moment is None or moment < self.before_moment)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexScope:
    """The entries that are searched: those with ids from ``low`` to ``high`` and the ``marks``.

    They belong to one session (``session_pk``), to a few sessions (``session_pks``), or to the
    sessions that a statement selects (``sessions``). ``are_most`` says whether these are a large
    part of all sessions. The turns are from ``from_turn`` on and before ``before_turn``."""

    low: int
    high: int
    session_pk: int | None = None
    session_pks: tuple[int, ...] = ()
    sessions: Sql | None = None
    are_most: bool = False
    marks: tuple[tuple[str, ...], ...] = ()
    from_turn: int = 1
    before_turn: int = 1 << TURN_BITS

    def below(self, entry: int | None) -> "IndexScope":
        return self if entry is None else replace(self, high=min(self.high, entry - 1))

    @property
    def is_sparse(self) -> bool:
        """Whether most entries with a word are in other sessions, but have to be read too."""
        return self.sessions is not None and not (self.are_most or self.marks)

    @property
    def listed(self) -> "IndexScope":
        """The same scope for a search that other words narrow down.

        The query reads the entries that have the words and drops those of other sessions, instead
        of reading range after range."""
        if not self.session_pks:
            return self
        pk_list = ", ".join(map(str, self.session_pks))
        return replace(self, session_pks=(), sessions=(pk_list, []))

    def has(self, entry: int) -> bool:
        return self.low <= entry <= self.high and (
            self.from_turn <= entry & TURN_MASK < self.before_turn
        )


def match_filters(query: SearchQuery) -> IndexMatch:
    groups: list[tuple[str, ...]] = [
        tuple(map(role_mark, query.roles)),
        tuple(map(tool_mark, query.tools)),
        tuple(map(model_mark, query.models)),
        (ERROR_MARK,) if query.is_error else (),
    ]
    bounds = (query.from_moment, query.before_moment)
    is_exact = True
    if any(bound is not None for bound in bounds):
        marks, is_exact = covering_marks(*bounds)
        groups.append(marks or (NOWHERE,))
    return IndexMatch(
        scopes=query.scopes,
        marks=tuple(group for group in groups if group),
        from_moment=None if is_exact else query.from_moment,
        before_moment=None if is_exact else query.before_moment,
    )


def session_scope(session_pk: int, *, from_turn: int, before_turn: int) -> IndexScope:
    return IndexScope(
        low=entry_id(session_pk, max(1, min(from_turn, TURN_MASK))),
        high=entry_id(session_pk, max(0, min(before_turn - 1, TURN_MASK))),
        session_pk=session_pk,
    )


def find_entries(
    match: IndexMatch, scopes: Iterable[IndexScope], *, limit: int, highest: bool
) -> list[int]:
    """Return ids of stored entries that match.

    The ids are the highest ones in descending order, or arbitrary ones, which takes half the time
    on SQLite."""
    order = "DESC" if highest else ""
    selects = [_select(match, scope, limit, order) for scope in scopes if scope.low <= scope.high]
    if not selects or limit < 1:
        return []
    union = " UNION ALL ".join(f"SELECT id FROM ({select}) AS place" for select, _ in selects)
    parameters = [value for _, values in selects for value in values]
    ordered = " ORDER BY id DESC" if highest else ""
    with connection.cursor() as cursor:
        cursor.execute(f"{union}{ordered} LIMIT %s", [*parameters, limit])
        return [row[0] for row in cursor.fetchall()]


def sessions_with_errors() -> RawSQL:
    """Return the keys of the sessions with an entry that is an error, for ``…__in=``."""
    match = match_filters(SearchQuery(is_error=True))
    if connection.vendor == "postgresql":
        [(clause, parameters)] = _array_clauses(match)
        statement = f"SELECT session_id FROM {ENTRIES} WHERE {clause}"
    else:
        statement = f"SELECT rowid >> {TURN_BITS} FROM {INDEX} WHERE {INDEX} MATCH %s"
        parameters = [fts5_query(match)]
    return RawSQL(statement, parameters)  # noqa: S611 (constants)


def read_columns(ids: Iterable[int], columns: Sequence[str]) -> dict[int, list[Any]]:
    # The ids come from the database, and are too many to be parameters.
    id_list = ",".join(map(str, ids))
    if not id_list:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, {', '.join(columns)} FROM {ENTRIES} WHERE id IN ({id_list})")
        return {pk: values for pk, *values in cursor.fetchall()}


def _select(match: IndexMatch, scope: IndexScope, limit: int, order: str) -> Sql:
    match = match.marked(*scope.marks)
    source, key = ENTRIES, f"{ENTRIES}.id"
    clauses: list[Sql] = []
    if connection.vendor == "postgresql":
        clauses = _array_clauses(match)
    elif match.has_words:
        key, clauses = f"{INDEX}.rowid", [(f"{INDEX} MATCH %s", [fts5_query(match)])]
        source = f"{INDEX} JOIN {ENTRIES} ON {ENTRIES}.id = {key}" if match.has_moments else INDEX
    if scope.session_pks and connection.vendor == "sqlite":
        # Each session is one range of the index.
        values = ", ".join(f"({pk})" for pk in scope.session_pks)
        source = f"(SELECT column1 AS pk FROM (VALUES {values})) AS named CROSS JOIN {source}"
    clauses += [(f"{key} BETWEEN %s AND %s", [scope.low, scope.high])]
    clauses += _session_clauses(scope, key)
    for operator, moment in ((">=", match.from_moment), ("<", match.before_moment)):
        if moment is not None:
            clauses.append((f"{ENTRIES}.created_at {operator} %s", [moment_value(moment)]))
    where = " AND ".join(clause for clause, _ in clauses)
    parameters = [value for _, values in clauses for value in values]
    ordered = f" ORDER BY {key} {order}" if order else ""
    return (
        f"SELECT {key} AS id FROM {source} WHERE {where}{ordered} LIMIT %s",
        [*parameters, limit],
    )


def fts5_query(match: IndexMatch) -> str:
    """Return the match as an FTS5 query, with each word in quotes so that none counts as syntax."""
    scope = f"{{{' '.join(match.scopes)}}} : " if match.scopes else ""
    parts = [f'{scope}"{token}"' for token in match.tokens]
    if match.any_tokens:
        parts.append(f"{scope}({_either(match.any_tokens)})")
    # Marks need no scope, because no text has such words.
    parts += [f"({_either(group)})" for group in match.marks]
    return " AND ".join(parts)


def _either(tokens: Iterable[str]) -> str:
    return " OR ".join(f'"{token}"' for token in tokens)


def _array_clauses(match: IndexMatch) -> list[Sql]:
    """Return the clauses for the words of a match on PostgreSQL.

    Its index does not know in which column a word is, so the columns are checked in the rows that
    the index returns."""
    arrays = [WORDS]
    if match.scopes:
        columns = " || ' ' || ".join(match.scopes)
        arrays.append(f"string_to_array({columns}, ' ')")
    clauses: list[Sql] = [
        (f"{array} {operator} %s::text[]", [list(tokens)])
        for array in arrays
        for operator, tokens in (("@>", match.tokens), ("&&", match.any_tokens))
        if tokens
    ]
    return clauses + [(f"{WORDS} && %s::text[]", [list(group)]) for group in match.marks]


def _session_clauses(scope: IndexScope, key: str) -> list[Sql]:
    if scope.session_pk is not None:
        if connection.vendor == "postgresql":
            return [(f"{ENTRIES}.session_id = %s::bigint", [scope.session_pk])]
        return []
    turn = f"{key} & {TURN_MASK}"
    bounds: list[Sql] = []
    if scope.from_turn > 1 or scope.before_turn <= TURN_MASK:
        bounds = [(f"{turn} >= %s AND {turn} < %s", [scope.from_turn, scope.before_turn])]
    if scope.session_pks and connection.vendor == "postgresql":
        pk_list = ", ".join(map(str, scope.session_pks))
        return [(f"{ENTRIES}.session_id IN ({pk_list})", []), *bounds]
    if scope.session_pks:
        low, high = f"named.pk << {TURN_BITS}", f"(named.pk << {TURN_BITS}) + {TURN_MASK}"
        return [(f"{key} BETWEEN {low} AND {high}", []), *bounds]
    if scope.sessions is None:
        return bounds
    statement, parameters = scope.sessions
    column = (
        f"{ENTRIES}.session_id" if connection.vendor == "postgresql" else f"{key} >> {TURN_BITS}"
    )
    if scope.are_most:
        # The session is looked up for each entry, because listing all sessions takes longer.
        allowed = f"EXISTS (SELECT 1 FROM ({statement}) AS allowed WHERE allowed.pk = {column})"
        return [(allowed, parameters), *bounds]
    return [(f"{column} IN ({statement})", parameters), *bounds]
