"""Action ``range``: turns by number, in order; one alone is quoted whole, in pieces."""

import re
from dataclasses import dataclass

from conversations.agent.tools.arguments import BadArgument

from .quotation import BUDGET, PREFACE, QuotedGroup, QuotedMessage, quote, say_turn, say_whole_turn
from .reading import RecalledTurn, read_past_range, read_past_turn
from .request import Request, Target, matched_cursor, more_line

ROWS = 60  # Turns that one page reads
RESULT_CHARS = 1_500  # Characters of a tool's result where several turns do not fit

_CURSOR = re.compile(r"(\d{1,15})\.(\d{1,15})\.(\d{1,15})")


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
    match = matched_cursor(request, _CURSOR, action="range")
    if match is not None:
        start, offset, end = map(int, match.groups())
    else:
        start, end = _read_ends(request)
        offset = 0
    if not last:
        raise BadArgument("This session has no turns yet.")
    if start > last:
        raise BadArgument(f"The last turn is {last}; ask for turns from 1 to {last}.")
    asked = _Stretch(start=max(1, start), end=min(end, last), offset=offset)
    if asked.start == asked.end or asked.offset:
        said, rest = _piece(target, asked)
    else:
        said, rest = _page(target, asked)
    group = QuotedGroup(session=target.uuid, title=target.title, said=said)
    cursor = more_line(rest.cursor) if rest else ""
    return "\n".join(line for line in (PREFACE, quote([group]), cursor) if line)


def _read_ends(request: Request) -> tuple[int, int]:
    asked = request.arguments
    start, end = asked.start_turn, asked.end_turn
    if not start and not end:
        raise BadArgument(
            "'range' needs 'start_turn' and 'end_turn': the numbers of the first and the last"
            " turn to read."
        )
    start = start or max(1, end - asked.limit + 1)
    end = end or start + asked.limit - 1
    if start > end:
        raise BadArgument("'start_turn' comes after 'end_turn'; exchange them.")
    return start, end


def _page(target: Target, asked: _Stretch) -> tuple[list[QuotedMessage], _Stretch | None]:
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
            return (taken, rest) if taken else _piece(target, rest)
        taken += of_turn
    following = turns[-1].number + 1 if turns else asked.end + 1
    return taken, _rest(following, asked.end)


def _piece(target: Target, asked: _Stretch) -> tuple[list[QuotedMessage], _Stretch | None]:
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
