"""Action ``search``: turns by words, best first, each with its neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from conversations.archive.recall import RecalledTurn, read_past_turn, read_past_turns
from conversations.archive.search import SearchResults, TurnHit, search_session
from conversations.domain.text import one_line
from conversations.tools.arguments import BadArgument

from .fitting import fit
from .passages import make_finder
from .quotation import BUDGET, PREFACE, FindPassage, QuotedGroup, quote, say_turn
from .request import Request, Target, more_line, seal_cursor

NEIGHBOURS = 1
"""Turns before and after a hit that are quoted with it (seed 000)."""

MAX_MISSING = 20
"""Words without a match that are named."""


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
    """Hits with their neighbours; stretches that overlap are one, in turn order, and
    stand where the best of their hits does."""
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
