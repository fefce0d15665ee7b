"""Action ``search``: turns by words, best first, each with its neighbours."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from conversations.agent.tools.arguments import BadArgument
from conversations.archive.rights import quotable_sessions
from conversations.domain.text import one_line
from conversations.search import SearchResults, TurnHit, search_session, search_sessions

from .passages import make_finder
from .quotation import BUDGET, PREFACE, FindPassage, QuotedGroup, fit, moment_text, quote, say_turn
from .reading import (
    RecalledTurn,
    list_siblings,
    read_past_turn,
    read_past_turns,
    read_quotable_facts,
)
from .request import Request, Target, matched_cursor, more_line, seal_cursor

NEIGHBOURS = 1  # Turns before and after a hit that are quoted with it (seed 000)
MAX_MISSING = 20  # Words without a match that are named


def search(request: Request) -> str:
    query, target, limit = request.query(), request.target(), request.limit()
    if not query:
        raise BadArgument(
            "'search' needs 'query': a few words that the turns are likely to hold. To read"
            " turns by number use action 'range'."
        )
    about = ("search", target.facts.uuid, query)
    found = search_session(
        target.pk,
        query,
        limit=limit,
        cursor=request.sealed_cursor(*about),
        before_turn=target.before,
    )
    if not found.hits:
        return nothing_found(found)
    groups = group_hits(target, found.hits, make_finder(query))
    cursor = seal_cursor(found.cursor, *about) if found.cursor else ""
    return say_found(found, len(found.hits), groups, cursor=cursor)


def say_found(found: SearchResults, shown: int, groups: list[QuotedGroup], *, cursor: str) -> str:
    """The whole answer: how many matched, what matched nothing, the quotation."""
    many = "At least " if found.total_is_bound else ""
    total = max(found.total, shown)
    facts = f"{many}{total:,} turn{'' if total == 1 else 's'} matched; {shown} quoted, best first."
    lines = [facts, missing_words(found), PREFACE, quote(fit(groups, budget=BUDGET))]
    return "\n".join(line for line in [*lines, more_line(cursor)] if line)


def nothing_found(found: SearchResults) -> str:
    missing = missing_words(found)
    advice = "Try other words that may have been used, fewer filters, or action 'range'."
    return " ".join(part for part in ("Nothing found.", missing, advice) if part)


def missing_words(found: SearchResults) -> str:
    """The words without a match, as they were written."""
    if not found.missing:
        return ""
    named = ", ".join(f'"{one_line(word, limit=60)}"' for word in found.missing[:MAX_MISSING])
    rest = len(found.missing) - MAX_MISSING
    more = f" and {rest} more" if rest > 0 else ""
    return f"No turn matches {named}{more}."


@dataclass(slots=True)
class _Stretch:
    """Neighbouring turns that are quoted together."""

    low: int
    high: int
    hits: set[int] = field(default_factory=set)


def group_hits(target: Target, hits: Iterable[TurnHit], find: FindPassage) -> list[QuotedGroup]:
    """Hits with their neighbours; stretches that overlap are one, in turn order, and stand where
    the best of their hits does."""
    stretches = _merge(hits, below=target.before)
    numbers = [number for s in stretches for number in range(s.low, s.high + 1)]
    turns = {turn.number: turn for turn in read_past_turns(target.pk, numbers)}
    return [
        QuotedGroup(
            session=target.uuid,
            title=target.title,
            said=[
                said
                for number in range(stretch.low, stretch.high + 1)
                if number in turns
                for said in (
                    say_turn(_whole(target, turns[number]), find=find)
                    if number in stretch.hits
                    else say_turn(turns[number])
                )
            ],
        )
        for stretch in stretches
    ]


def _whole(target: Target, turn: RecalledTurn) -> RecalledTurn:
    """The turn with all its text, in which the passage may stand anywhere."""
    if turn.length <= len(turn.text):
        return turn
    return read_past_turn(target.pk, turn.number) or turn


def _merge(hits: Iterable[TurnHit], *, below: int) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    for hit in hits:
        new = _Stretch(
            max(1, hit.turn - NEIGHBOURS), min(below - 1, hit.turn + NEIGHBOURS), {hit.turn}
        )
        overlapping = [s for s in stretches if s.low <= new.high and new.low <= s.high]
        if not overlapping:
            stretches.append(new)
            continue
        first = overlapping[0]
        for other in [*overlapping[1:], new]:
            first.low, first.high = min(first.low, other.low), max(first.high, other.high)
            first.hits |= other.hits
        stretches = [s for s in stretches if s is first or s not in overlapping]
    return stretches


# Action ``sessions``: the other sessions that can be quoted, listed or searched.


_CURSOR = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

NO_OTHERS = "There is no other session of this workspace that can be quoted here."


def siblings(request: Request) -> str:
    if request.arguments.session:
        raise BadArgument(
            "'sessions' takes no 'session'. To look into one of them use action 'search' or"
            " 'range' with 'session'."
        )
    return _search(request) if request.query() else _list(request)


def _list(request: Request) -> str:
    limit = request.limit()
    match = matched_cursor(request, _CURSOR, action="sessions")
    items = list_siblings(
        request.session_pk,
        request.user_pk,
        limit=limit + 1,
        after=UUID(match[0]) if match else None,
    )
    if not items:
        return "There are no more." if match else NO_OTHERS
    shown = items[:limit]
    groups = []
    for item in shown:
        figures = f"{item.turn_count:,} turns, last active {moment_text(item.last_active_at)}"
        title = f"{item.title or '(no title)'}\n{figures}"
        groups.append(QuotedGroup(session=item.uuid, title=title, said=[]))
    cursor = more_line(str(shown[-1].uuid)) if len(items) > limit else ""
    facts = "Other sessions of this workspace, the latest active first."
    return "\n".join(line for line in (facts, PREFACE, quote(groups), cursor) if line)


def _search(request: Request) -> str:
    query = request.query()
    about = ("sessions", request.session, query)
    found = search_sessions(
        quotable_sessions(request.session_pk, request.user_pk),
        query,
        limit=request.limit(),
        cursor=request.sealed_cursor(*about),
    )
    if not found.hits:
        return nothing_found(found)
    groups: list[QuotedGroup] = []
    for uuid, hits in groupby(found.hits, key=lambda hit: hit.session):
        groups += _groups_of(request, uuid, list(hits), query)
    cursor = seal_cursor(found.cursor, *about) if found.cursor else ""
    return say_found(found, len(found.hits), groups, cursor=cursor)


def _groups_of(request: Request, uuid: UUID, hits: list[TurnHit], query: str) -> list[QuotedGroup]:
    facts = read_quotable_facts(request.session_pk, request.user_pk, uuid)
    if facts is None:  # purged meanwhile
        return []
    target = Target(facts=facts, is_own=False, before=facts.turn_count + 1)
    return group_hits(target, hits, make_finder(query))
