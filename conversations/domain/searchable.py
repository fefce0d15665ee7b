"""What of a turn can be searched: what was said, the names of what was attached, what
tools were given and gave, and the paths that occur. Thinking is left out, and so is
looking things up, whose results would otherwise be found in place of what they quote.
What else a turn can be found by (its role, tools, model, its failure, when it was
written) are marks: words that no text has.
"""

import json
import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from .text import storable, strip_terminal_codes
from .turns import (
    ASSISTANT,
    ROLES,
    TOOL,
    USER,
    StoredTurn,
    attached_names,
    calls_of,
    read_metadata,
    read_tool_outcome,
)
from .words import ENGLISH, read_tokens

RECALL_TOOL = "conversation_recall"
MAX_PATHS = 300  # Paths of one turn that ``in:path`` knows.

# Of a tool or a model. PostgreSQL's index refuses words of more than 2,700 bytes.
MAX_NAME_CHARS = 255
_RUN = re.compile(r"[\w.@~+/\\-]+")
_EXTENSION = re.compile(r"\w\.[A-Za-z]\w{0,7}\Z")
_RULE, _REPLY = (re.compile(ENGLISH[kind], re.IGNORECASE) for kind in ("rule", "reply"))
_ROLE_MARK, _TOOL_MARK, _OTHER = "\ue000", "\ue001", "\ue002"
# JSON, or its beginning; "[INFO]" begins none.
_JSON = re.compile(r'\s*(?:\[\s*)*\{\s*"|\s*(?:\[\s*)+["{]')
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf'\\(?:{_PAIR}|u[0-9a-fA-F]{{4}}|["\\/bfnrt])')
DATE_MARK = "\ue003"  # Before the digits of a year, month, day or hour.
_MODEL_MARK, _OWNER_MARK, _WORKSPACE_MARK = "\ue004", "\ue006", "\ue007"
ERROR_MARK = "\ue005"  # Of a result of a tool that failed, and of an answer that broke off.
RULE_MARK = "\ue008"  # Of a message in which the person says what they always want, or prefer.
REPLY_MARK = "\ue009"  # Of a message that begins with thanks or agreement: it repeats an answer.

# Each turn is marked with its year, month, day and hour in UTC. So any stretch of time is covered
# by a handful of marks, however long it is. Years outside of these share one mark on each side.
FIRST_YEAR, LAST_YEAR = 2000, 2049


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A year, a month, a day or an hour, by as many numbers; with none: all time."""

    numbers: tuple[int, ...] = ()

    @property
    def mark(self) -> str:
        """The word that stands for it; all time has none."""
        year, *rest = self.numbers
        return f"{DATE_MARK}{year}" + "".join(f"{number:02}" for number in rest)

    @property
    def is_hour(self) -> bool:
        return len(self.numbers) == 4

    @property
    def is_odd(self) -> bool:
        """It stands for all years before the first, or all after the last."""
        return bool(self.numbers) and not FIRST_YEAR <= self.numbers[0] <= LAST_YEAR

    @property
    def first(self) -> datetime | None:
        """When it begins; None: there is no beginning."""
        if not self.numbers or self.numbers[0] < FIRST_YEAR:
            return None
        year, month, day, hour = (*self.numbers, *(1, 1, 0)[len(self.numbers) - 1 :])
        return datetime(year, month, day, hour, tzinfo=UTC)

    @property
    def end(self) -> datetime | None:
        """When it is over; None: it has no end."""
        if not self.numbers or self.numbers[0] > LAST_YEAR:
            return None
        year, month, *_ = (*self.numbers, 12)
        if len(self.numbers) < 3:
            return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        assert self.first is not None
        return self.first + timedelta(hours=1 if self.is_hour else 24)

    def parts(self) -> Iterator["DateSpan"]:
        """One step smaller, the latest first; an hour and the years that share a mark have none."""
        match self.numbers:
            case ():
                numbers = range(FIRST_YEAR - 1, LAST_YEAR + 2)
            case (_,):
                numbers = range(1, 13)
            case (year, month):
                numbers = range(1, monthrange(year, month)[1] + 1)
            case _:
                numbers = range(24)
        for number in () if self.is_hour or self.is_odd else reversed(numbers):
            yield DateSpan((*self.numbers, number))

    def overlaps(self, start: datetime | None, end: datetime | None) -> bool:
        """Whether some of it lies between these, ``end`` excluded."""
        begins, ends = self.first, self.end
        return (end is None or begins is None or begins < end) and (
            start is None or ends is None or ends > start
        )

    def is_within(self, start: datetime | None, end: datetime | None) -> bool:
        begins, ends = self.first, self.end
        return (start is None or (begins is not None and begins >= start)) and (
            end is None or (ends is not None and ends <= end)
        )


ALL_TIME = DateSpan()


def marks_of(moment: datetime) -> list[str]:
    """The marks of a turn that was written then."""
    at = moment.astimezone(UTC)
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        return [DateSpan((min(max(at.year, FIRST_YEAR - 1), LAST_YEAR + 1),)).mark]
    numbers = (at.year, at.month, at.day, at.hour)
    return [DateSpan(numbers[:count]).mark for count in range(1, 5)]


def covering_marks(start: datetime | None, end: datetime | None) -> tuple[tuple[str, ...], bool]:
    """Marks of which every moment from ``start`` to before ``end`` has one, and
    whether no other moment has."""
    marks: list[str] = []
    is_exact, waiting = True, [ALL_TIME]
    while waiting:
        span = waiting.pop(0)
        is_within = span.is_within(start, end)
        if span.numbers and (span.is_hour or span.is_odd or is_within):
            marks.append(span.mark)
            is_exact = is_exact and is_within
        else:
            waiting[:0] = [part for part in span.parts() if part.overlaps(start, end)]
    return tuple(marks), is_exact


class Searchable(NamedTuple):
    """Texts as written: ``said``; ``tools`` with names, input and output. ``names``
    are the tools that the turn calls or answers for."""

    said: str = ""
    tools: str = ""
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it, for showing where something was found."""
        return "\n".join(part for part in (self.said, self.tools) if part)


class SearchableTurn(NamedTuple):
    """A turn's words, normalised and separated by spaces, as the index keeps them."""

    said: str
    tools: str
    paths: str
    marks: str

    @property
    def length(self) -> int:
        return sum(1 + text.count(" ") for text in (self.said, self.tools) if text)


def role_mark(role: str) -> str:
    return _ROLE_MARK + role


ROLE_MARKS = tuple(role_mark(role) for role in ROLES)  # Every entry has one of these.


def tool_mark(name: str) -> str:
    return _TOOL_MARK + _one_word(name)


def model_mark(name: str) -> str:
    return _MODEL_MARK + _one_word(name)


def owner_mark(user_pk: int) -> str:
    """Of all turns of a session that is this person's."""
    return f"{_OWNER_MARK}{user_pk}"


def workspace_mark(workspace_pk: int) -> str:
    """Of all turns of the sessions in a workspace."""
    return f"{_WORKSPACE_MARK}{workspace_pk}"


def _one_word(name: str) -> str:
    # A name may have any characters, a word of the index letters and digits alone.
    short = name.strip()[:MAX_NAME_CHARS].casefold()
    return "".join(c if c.isalnum() else _OTHER for c in short)


def read_searchable(turn: StoredTurn, *, call_name: str | None = None) -> Searchable:
    """``call_name`` is the tool that a result without a name of its own answers for."""
    if turn.role == TOOL:
        name = turn.tool_name or call_name or ""
        if name == RECALL_TOOL:
            return Searchable()
        tools = "\n".join(part for part in (name, read_output(turn.content)) if part)
        return Searchable(tools=tools, names=(name,) if name else ())
    calls = [call for call in calls_of(turn) if call.get("name") != RECALL_TOOL]
    names = tuple(str(call.get("name") or "tool") for call in calls)
    inputs = ((name, *_texts(call.get("input"))) for name, call in zip(names, calls, strict=True))
    return Searchable(
        said="\n".join([*(attached_names(turn) if turn.role == USER else ()), turn.content]),
        tools="\n".join("\n".join(texts) for texts in inputs),
        names=names,
    )


def read_output(text: str, *, filler: str = "") -> str:
    """What a tool gave, with the characters that JSON's escapes stand for, and without a
    terminal's codes. With a ``filler`` everything stays where it is in ``text``."""
    if _JSON.match(text):
        text = _ESCAPE.sub(lambda escape: _unescaped(escape[0], filler), text)
    return strip_terminal_codes(text, filler=filler)


@lru_cache(maxsize=1024)  # A few come again and again: one takes microseconds
def _unescaped(escape: str, filler: str) -> str:
    meant = storable(json.loads(f'"{escape}"'))
    return filler * (len(escape) - len(meant)) + meant


def make_entry(
    turn: StoredTurn, searchable: Searchable, *, owner: int, workspace: int
) -> SearchableTurn:
    """``owner`` and ``workspace`` are the keys of the session's, which it has for ever."""
    marks = [role_mark(turn.role), *(tool_mark(name) for name in searchable.names)]
    if turn.role == TOOL and read_tool_outcome(turn)[0] is False:
        marks.append(ERROR_MARK)
    if turn.role == ASSISTANT:
        model = read_metadata(turn).get("model")
        marks += [model_mark(model)] if isinstance(model, str) and model.strip() else []
        marks += [] if turn.complete else [ERROR_MARK]
    if turn.role == USER:
        marks += [RULE_MARK] if _RULE.search(turn.content) else []
        marks += [REPLY_MARK] if _REPLY.match(turn.content) else []
    marks += [*marks_of(turn.created_at), owner_mark(owner), workspace_mark(workspace)]
    found = (
        run.rstrip(".")
        for run in _RUN.findall(searchable.text)
        if "/" in run or "\\" in run or ("." in run and _EXTENSION.search(run.rstrip(".")))
    )
    paths = islice(dict.fromkeys(found), MAX_PATHS)
    return SearchableTurn(
        said=" ".join(read_tokens(searchable.said)),
        tools=" ".join(read_tokens(searchable.tools)),
        paths=" ".join(token for path in paths for token in read_tokens(path)),
        marks=" ".join(dict.fromkeys(marks)),
    )


def _texts(value: Any) -> Iterator[str]:
    """The texts in a tool's input, without the names of its fields."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += reversed(item.values())
        elif isinstance(item, list):
            waiting += reversed(item)
        elif item is not None:
            yield item if isinstance(item, str) else str(item)
