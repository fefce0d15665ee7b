"""The searchable contents of a turn.

They are the texts of people and the model, the names of attachments, the input and output of tools,
and the paths in these texts. Thinking is left out. Calls of the recall tool are also left out,
because a search would find their results instead of the turns that they quote. Other properties of
a turn (its role, tools, model, failure and time) are marks: words that do not occur in texts.
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

from .search_tokens import ENGLISH, read_tokens
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

RECALL_TOOL = "conversation_recall"
MAX_PATHS = 300  # Paths of one turn that ``in:path`` can find.

# Of the name of a tool or a model. PostgreSQL's index refuses words of more than 2,700 bytes.
MAX_NAME_CHARS = 255
_RUN = re.compile(r"[\w.@~+/\\-]+")
_EXTENSION = re.compile(r"\w\.[A-Za-z]\w{0,7}\Z")
_RULE, _REPLY = (re.compile(ENGLISH[kind], re.IGNORECASE) for kind in ("rule", "reply"))
_ROLE_MARK, _TOOL_MARK, _OTHER = "\ue000", "\ue001", "\ue002"
# JSON or its beginning. A text such as "[INFO]" does not match.
_JSON = re.compile(r'\s*(?:\[\s*)*\{\s*"|\s*(?:\[\s*)+["{]')
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf'\\(?:{_PAIR}|u[0-9a-fA-F]{{4}}|["\\/bfnrt])')
DATE_MARK = "\ue003"  # Before the digits of a year, month, day or hour.
_MODEL_MARK, _OWNER_MARK, _WORKSPACE_MARK = "\ue004", "\ue006", "\ue007"
ERROR_MARK = "\ue005"  # Of a result of a tool that failed, and of an answer that was cut off.
RULE_MARK = "\ue008"  # Of a message in which the person states a rule or a preference.
REPLY_MARK = "\ue009"  # Of a message that begins with thanks or agreement, so it repeats an answer.

# Each turn is marked with its year, month, day and hour in UTC. So a handful of marks covers any
# period, however long it is. All years before the first share one mark, and all years after the
# last share another.
FIRST_YEAR, LAST_YEAR = 2000, 2049


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A year, month, day or hour, given by one to four numbers; no numbers stand for all time."""

    numbers: tuple[int, ...] = ()

    @property
    def mark(self) -> str:
        """The word that marks turns of this time. It is not defined for all time."""
        year, *rest = self.numbers
        return f"{DATE_MARK}{year}" + "".join(f"{number:02}" for number in rest)

    @property
    def is_hour(self) -> bool:
        return len(self.numbers) == 4

    @property
    def is_odd(self) -> bool:
        """Whether it stands for all years before the first year or all years after the last."""
        return bool(self.numbers) and not FIRST_YEAR <= self.numbers[0] <= LAST_YEAR

    @property
    def first(self) -> datetime | None:
        """The time at which it begins, or None if it has no beginning."""
        if not self.numbers or self.numbers[0] < FIRST_YEAR:
            return None
        year, month, day, hour = (*self.numbers, *(1, 1, 0)[len(self.numbers) - 1 :])
        return datetime(year, month, day, hour, tzinfo=UTC)

    @property
    def end(self) -> datetime | None:
        """The time at which it is over, or None if it has no end."""
        if not self.numbers or self.numbers[0] > LAST_YEAR:
            return None
        year, month, *_ = (*self.numbers, 12)
        if len(self.numbers) < 3:
            return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        assert self.first is not None
        return self.first + timedelta(hours=1 if self.is_hour else 24)

    def parts(self) -> Iterator["DateSpan"]:
        """Yield the next smaller spans within it, the latest first.

        An hour, and the years that share a mark, have no parts.
        """
        if self.is_hour or self.is_odd:
            return
        match self.numbers:
            case ():
                numbers = range(FIRST_YEAR - 1, LAST_YEAR + 2)
            case (_,):
                numbers = range(1, 13)
            case (year, month):
                numbers = range(1, monthrange(year, month)[1] + 1)
            case _:
                numbers = range(24)
        for number in reversed(numbers):
            yield DateSpan((*self.numbers, number))

    def overlaps(self, start: datetime | None, end: datetime | None) -> bool:
        """Whether a part of it lies between ``start`` and ``end``, which is excluded."""
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
    """Return the marks of a turn that was written at this moment."""
    utc = moment.astimezone(UTC)
    if not FIRST_YEAR <= utc.year <= LAST_YEAR:
        return [DateSpan((min(max(utc.year, FIRST_YEAR - 1), LAST_YEAR + 1),)).mark]
    numbers = (utc.year, utc.month, utc.day, utc.hour)
    return [DateSpan(numbers[:count]).mark for count in range(1, 5)]


def covering_marks(start: datetime | None, end: datetime | None) -> tuple[tuple[str, ...], bool]:
    """Return marks that cover all moments from ``start`` to before ``end``.

    The second value says whether they cover no other moments.
    """
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
    """The searchable texts of a turn, as they were written.

    ``tools`` has the names, input and output of tools. ``names`` are the tools that the turn calls,
    or the tool whose result it is.
    """

    said: str = ""
    tools: str = ""
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All texts, to show the place of a hit."""
        return "\n".join(part for part in (self.said, self.tools) if part)


class SearchableTurn(NamedTuple):
    """A turn's words, normalised and separated by spaces, as the index stores them."""

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
    """Return the mark of all turns in sessions that this person owns."""
    return f"{_OWNER_MARK}{user_pk}"


def workspace_mark(workspace_pk: int) -> str:
    """Return the mark of all turns in sessions of this workspace."""
    return f"{_WORKSPACE_MARK}{workspace_pk}"


def _one_word(name: str) -> str:
    # A name may have any characters, but a word of the index has only letters and digits.
    short = name.strip()[:MAX_NAME_CHARS].casefold()
    return "".join(c if c.isalnum() else _OTHER for c in short)


def read_searchable(turn: StoredTurn, *, call_name: str | None) -> Searchable:
    """Return the searchable texts of a turn.

    ``call_name`` is the name of the tool for a result that does not name its tool.
    """
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
    """Return a tool's output without terminal codes, and with JSON's escapes decoded.

    With a ``filler``, each character keeps its place in ``text``.
    """
    if _JSON.match(text):
        text = _ESCAPE.sub(lambda escape: _unescape(escape[0], filler), text)
    return strip_terminal_codes(text, filler=filler)


@lru_cache(maxsize=1024)  # A few escapes are frequent, and decoding one takes microseconds.
def _unescape(escape: str, filler: str) -> str:
    decoded = storable(json.loads(f'"{escape}"'))
    return filler * (len(escape) - len(decoded)) + decoded


def make_entry(
    turn: StoredTurn, searchable: Searchable, *, owner: int, workspace: int
) -> SearchableTurn:
    """Return the entry of a turn in the search index.

    ``owner`` and ``workspace`` are the primary keys of the session's owner and workspace, which
    never change.
    """
    marks = [role_mark(turn.role), *(tool_mark(name) for name in searchable.names)]
    if turn.role == TOOL and read_tool_outcome(turn)[0] is False:
        marks.append(ERROR_MARK)
    if turn.role == ASSISTANT:
        model = read_metadata(turn).get("model")
        if isinstance(model, str) and model.strip():
            marks.append(model_mark(model))
        if not turn.complete:
            marks.append(ERROR_MARK)
    if turn.role == USER:
        if _RULE.search(turn.content):
            marks.append(RULE_MARK)
        if _REPLY.match(turn.content):
            marks.append(REPLY_MARK)
    marks += [*marks_of(turn.created_at), owner_mark(owner), workspace_mark(workspace)]
    candidates = (
        run.rstrip(".")
        for run in _RUN.findall(searchable.text)
        if "/" in run or "\\" in run or ("." in run and _EXTENSION.search(run.rstrip(".")))
    )
    paths = islice(dict.fromkeys(candidates), MAX_PATHS)
    return SearchableTurn(
        said=" ".join(read_tokens(searchable.said)),
        tools=" ".join(read_tokens(searchable.tools)),
        paths=" ".join(token for path in paths for token in read_tokens(path)),
        marks=" ".join(dict.fromkeys(marks)),
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a tool's input, without the names of its fields."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += reversed(item.values())
        elif isinstance(item, list):
            waiting += reversed(item)
        elif item is not None:
            yield item if isinstance(item, str) else str(item)
