"""Action ``tool_calls``: earlier calls of one tool, newest first, with their outcome."""

import re
from collections.abc import Iterator

from conversations.agent.tools.arguments import BadArgument
from conversations.archive.session_state import read_state_text

from .passages import make_finder
from .quotation import (
    BUDGET,
    PREFACE,
    QuotedGroup,
    fit,
    moment_text,
    quote,
    quote_text,
    say_turn,
    whole_arguments,
)
from .reading import RecalledCall, RecalledTurn, read_calls_of, read_past_results, read_tool_use
from .request import Request, Target, matched_cursor, more_line

SCANNED, STEP = 400, 50  # Results that one call with a query looks through, and how many at a time

_CURSOR = re.compile(r"\d{1,15}")

type Found = tuple[RecalledTurn, RecalledCall | None]


def past_calls(request: Request) -> str:
    target, limit = request.target(), request.limit()
    name, query = request.arguments.tool_name, request.query()
    if not name:
        raise BadArgument(f"'tool_calls' needs 'tool_name'. {_names(target)}")
    match = matched_cursor(request, _CURSOR, action="tool_calls")
    before = min(int(match[0]), target.facts.turn_count + 1) if match else target.before
    found, reached = _find(target.pk, name, query.casefold().split(), before=before, limit=limit)
    cursor = more_line(str(reached)) if reached else ""
    if not found:
        return f"No call of {name!r} found{_searched(query, reached)}. {_names(target)} {cursor}"
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


def _find(
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


def _searched(query: str, reached: int) -> str:
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
    text = "\n".join([*_figures(target), *(["", state] if state else [])])
    return "\n".join([PREFACE, quote_text(text)])


def _figures(target: Target) -> Iterator[str]:
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
