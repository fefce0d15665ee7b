"""Action ``search``: turns by words, best first, each with its neighbours."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from conversations.agent.tools.tool import BadArgument
from conversations.archive.rights import quotable_sessions
from conversations.archive.session_state import read_state_text
from conversations.domain.text import one_line
from conversations.search.find import search_session
from conversations.search.find_everywhere import search_sessions
from conversations.search.results import SearchResults, TurnHit

from .quotation import (
    BUDGET,
    PREFACE,
    FindPassage,
    QuotedGroup,
    QuotedMessage,
    fit,
    make_finder,
    moment_text,
    quote,
    quote_text,
    say_turn,
    say_whole_turn,
    whole_arguments,
)
from .reading import (
    RecalledCall,
    RecalledTurn,
    list_siblings,
    read_calls_of,
    read_past_range,
    read_past_results,
    read_past_turn,
    read_past_turns,
    read_quotable_facts,
    read_tool_use,
)
from .request import Request, Target, matched_cursor, more_line, seal_cursor

# Action ``range``: turns by number, in order; one alone is quoted whole, in pieces.


ROWS = 60  # Turns that one page reads
RESULT_CHARS = 1_500  # Characters of a tool's result where several turns do not fit

_RANGE_CURSOR = re.compile(r"(\d{1,15})\.(\d{1,15})\.(\d{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Turns ``start`` to ``end``, from character ``offset`` of the first."""

    start: int
    end: int
    offset: int = 0

    @property
    def cursor(self) -> str:
        return f"{self.start}.{self.offset}.{self.end}"


def turn_range(request: Request) -> str:
    target = request.target()
    last = target.facts.turn_count
    match = matched_cursor(request, _RANGE_CURSOR, action="range")
    if match is not None:
        start, offset, end = map(int, match.groups())
    else:
        sent = request.arguments
        offset, start, end = 0, sent.start_turn, sent.end_turn
        if not start and not end:
            raise BadArgument(
                "'range' needs 'start_turn' and 'end_turn': the numbers of the first and the last"
                " turn to read."
            )
        start = start or max(1, end - sent.limit + 1)
        end = end or start + sent.limit - 1
        if start > end:
            raise BadArgument("'start_turn' comes after 'end_turn'; exchange them.")
    if not last:
        raise BadArgument("This session has no turns yet.")
    if start > last:
        raise BadArgument(f"The last turn is {last}; ask for turns from 1 to {last}.")
    asked = _Stretch(start=max(1, start), end=min(end, last), offset=offset)
    if asked.start == asked.end or asked.offset:
        said, rest = _read_piece(target, asked)
    else:
        said, rest = _read_page(target, asked)
    group = QuotedGroup(session=target.uuid, title=target.title, said=said)
    cursor = more_line(rest.cursor) if rest else ""
    return "\n".join(line for line in (PREFACE, quote([group]), cursor) if line)


def _read_page(target: Target, asked: _Stretch) -> tuple[list[QuotedMessage], _Stretch | None]:
    """Turns in order until the budget is spent, and the rest."""
    turns = read_past_range(target.pk, start=asked.start, end=asked.end, limit=ROWS)
    messages = [say_turn(turn) for turn in turns]
    if len(turns) == ROWS or sum(map(_cost, messages)) > BUDGET:
        messages = [
            [said.cut(RESULT_CHARS) if said.is_result else said for said in of_turn]
            for of_turn in messages
        ]
    taken: list[QuotedMessage] = []
    spent = 0
    for turn, of_turn in zip(turns, messages, strict=True):
        spent += _cost(of_turn)
        if spent > BUDGET:
            rest = _Stretch(start=turn.number, end=asked.end)
            return (taken, rest) if taken else _read_piece(target, rest)
        taken += of_turn
    following = turns[-1].number + 1 if turns else asked.end + 1
    return taken, _rest(following, asked.end)


def _read_piece(target: Target, asked: _Stretch) -> tuple[list[QuotedMessage], _Stretch | None]:
    """As much of one turn's whole text as the budget allows, and the rest."""
    turn = read_past_turn(target.pk, asked.start)
    if turn is None:
        return [], _rest(asked.start + 1, asked.end)
    said = _fitting(turn, asked.offset)
    reached = asked.offset + len(said.text)
    if reached < said.length:
        return [said], _Stretch(start=asked.start, end=asked.end, offset=reached)
    return [said], _rest(asked.start + 1, asked.end)


def _fitting(turn: RecalledTurn, offset: int) -> QuotedMessage:
    """The longest piece within the budget; it ends with a line where lines are short."""
    said = say_whole_turn(turn, offset=offset)
    while (cost := said.cost()) > BUDGET and len(said.text) > 1:
        size = min(len(said.text) - 1, len(said.text) * BUDGET // cost)
        said = say_whole_turn(turn, offset=offset, size=size)
    line_end = said.text.rfind("\n") + 1
    if offset + len(said.text) >= said.length or line_end < len(said.text) // 2:
        return said
    return say_whole_turn(turn, offset=offset, size=line_end)


def _rest(start: int, end: int) -> _Stretch | None:
    return _Stretch(start=start, end=end) if start <= end else None


def _cost(messages: list[QuotedMessage]) -> int:
    return sum(said.cost() for said in messages)


# Action ``tool_calls``: earlier calls of one tool, newest first, with their outcome.


SCANNED, STEP = 400, 50  # Results that one call with a query looks through, and how many at a time

_CALLS_CURSOR = re.compile(r"\d{1,15}")

type Found = tuple[RecalledTurn, RecalledCall | None]


def past_calls(request: Request) -> str:
    target, limit = request.target(), request.limit()
    name, query = request.arguments.tool_name, request.query()
    if not name:
        raise BadArgument(f"'tool_calls' needs 'tool_name'. {_names(target)}")
    match = matched_cursor(request, _CALLS_CURSOR, action="tool_calls")
    before = min(int(match[0]), target.facts.turn_count + 1) if match else target.before
    found, reached = _find_calls(
        target.pk, name, query.casefold().split(), before=before, limit=limit
    )
    cursor = more_line(str(reached)) if reached else ""
    if not found:
        return (
            f"No call of {name!r} found{_searched_for(query, reached)}. {_names(target)} {cursor}"
        )
    find = make_finder(query) if query else None
    groups = [
        QuotedGroup(
            session=target.uuid, title=target.title, said=say_turn(turn, call=call, find=find)
        )
        for turn, call in found
    ]
    facts = f"{len(found)} call{'' if len(found) == 1 else 's'} of {name!r}, newest first."
    lines = [facts, PREFACE, quote(fit(groups, budget=BUDGET)), cursor]
    return "\n".join(line for line in lines if line)


def _find_calls(
    session_pk: int, name: str, words: list[str], *, before: int, limit: int
) -> tuple[list[Found], int]:
    """Results that hold all words, in themselves or in what was asked for, and the turn below which
    there may be more (0: there are none)."""
    found: list[Found] = []
    scanned = 0
    while scanned < SCANNED:
        step = STEP if words else limit + 1
        results = read_past_results(session_pk, name, before=before, limit=step)
        calls = read_calls_of(session_pk, results)
        for turn in results:
            if len(found) == limit:
                return found, before
            before = turn.number
            call = calls.get(turn.number)
            text = f"{turn.text}\n{whole_arguments(call) if call else ''}".casefold()
            if all(word in text for word in words):
                found.append((turn, call))
        if len(results) < step:
            return found, 0
        scanned += len(results)
    return found, before


def _searched_for(query: str, reached: int) -> str:
    if not query:
        return ""
    return f" with all of {query!r}" + (f" in turns from {reached} on" if reached else "")


def _names(target: Target) -> str:
    return "Tools that were used: " + (", ".join(list_tools(target.pk)) or "none") + "."


def list_tools(session_pk: int) -> Iterator[str]:
    """Each tool with how often it was used."""
    for use in read_tool_use(session_pk):
        yield f"{use.name} ({use.count:,}{' or more' if use.is_bound else ''})"


# Action ``summary``: the session's state and its figures; no model is asked.


def summary(request: Request) -> str:
    target = request.target()
    state = read_state_text(target.pk).yaml
    text = "\n".join([*_session_figures(target), *(["", state] if state else [])])
    return "\n".join([PREFACE, quote_text(text)])


def _session_figures(target: Target) -> Iterator[str]:
    facts = target.facts
    yield f"session: {facts.uuid}"
    if facts.title:
        yield f"title: {facts.title}"
    yield f"workspace: {facts.workspace}"
    yield f"turns: {facts.turn_count:,}"
    if facts.first_at and facts.last_at:
        yield f"first turn: {moment_text(facts.first_at)}"
        yield f"last turn: {moment_text(facts.last_at)}"
    yield f"tokens: {facts.input_tokens:,} in, {facts.output_tokens:,} out"
    if facts.rewind_count:
        yield f"times that turns were replaced: {facts.rewind_count:,}"
    yield f"tools used: {', '.join(list_tools(facts.pk)) or 'none'}"


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
class _Neighbourhood:
    """Neighbouring turns that are quoted together."""

    low: int
    high: int
    hits: set[int] = field(default_factory=set)


def group_hits(target: Target, hits: Iterable[TurnHit], find: FindPassage) -> list[QuotedGroup]:
    """Hits with their neighbours; stretches that overlap are one, in turn order, and stand where
    the best of their hits does."""
    stretches: list[_Neighbourhood] = []
    for hit in hits:
        new = _Neighbourhood(
            max(1, hit.turn - NEIGHBOURS), min(target.before - 1, hit.turn + NEIGHBOURS), {hit.turn}
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


# Action ``sessions``: the other sessions that can be quoted, listed or searched.


_SESSIONS_CURSOR = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

NO_OTHERS = "There is no other session of this workspace that can be quoted here."


def siblings(request: Request) -> str:
    if request.arguments.session:
        raise BadArgument(
            "'sessions' takes no 'session'. To look into one of them use action 'search' or"
            " 'range' with 'session'."
        )
    return _search_sessions(request) if request.query() else _list_sessions(request)


def _list_sessions(request: Request) -> str:
    limit = request.limit()
    match = matched_cursor(request, _SESSIONS_CURSOR, action="sessions")
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


def _search_sessions(request: Request) -> str:
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
