"""Which turn a row of a foreign journal stands for, where the row does not say.

Messages are matched by the beginning of their text, results of tools and calls by
the id of the call. The search goes forward from the last turn that was found, and
not far, so that a short text that is often said is not taken for a later one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from django.db.models.functions import Substr

from conversations.domain.events import (
    AssistantText,
    Malformed,
    Payload,
    ToolCallCompleted,
    ToolCallStarted,
    UserMessage,
    parse_payload,
)
from conversations.domain.text import one_line
from conversations.domain.turns import ASSISTANT, TOOL, USER, MalformedTurn, read_tool_calls
from conversations.models import Session, Turn

from .turns import stored_turns

PAGE = 500
FAR, NEAR, CALLERS = 200, 20, 20
"""Turns in which a text is sought: a long one, a short one, and a call's id."""

SHORT_TEXT = 20
COMPARED_CHARS = 200


@dataclass(frozen=True, slots=True)
class _Known:
    """What a row is compared with: a turn near by."""

    number: int
    role: str
    text: str
    call_id: str


@dataclass(slots=True)
class TurnMatcher:
    """Matches rows of one session with its turns, in the order of the journal."""

    session: Session
    _near: list[_Known] = field(default_factory=list)
    _calls: dict[int, set[str]] = field(default_factory=dict)
    _has_searched: bool = False

    def find(self, event_type: str, text: str, *, reached: int) -> int | None:
        """The turn for a row with this payload, after the turn ``reached``, or a
        little before it for the late result of a tool."""
        payload = read_payload_or_none(event_type, text)
        self._load(reached)
        match payload:
            case UserMessage(text=message):
                found = self._find_text(USER, message, reached)
                return found or (self._search(message) if reached == 0 else None)
            case AssistantText(text=message):
                return self._find_text(ASSISTANT, message, reached)
            case ToolCallCompleted(call_id=call_id) if call_id:
                return self._find_result(call_id, reached)
            case ToolCallStarted(call_id=call_id) if call_id:
                return self._find_caller(call_id, reached)
        return None

    def _load(self, reached: int) -> None:
        """Have the turns around ``reached`` at hand."""
        loaded = self._near[-1].number if self._near else max(0, reached - FAR)
        while loaded < min(reached + FAR, self.session.turn_count):
            turns = Turn.objects.filter(session=self.session.pk, number__gt=loaded)
            head = Substr("content", 1, COMPARED_CHARS * 8)
            columns = turns.values_list("number", "role", head, "tool_call_id")
            page = [
                _Known(number, role, _comparable(text), call_id or "")
                for number, role, text, call_id in columns.order_by("number")[:PAGE]
            ]
            if not page:
                return
            self._near += page
            loaded = page[-1].number
        if self._near and self._near[0].number < reached - PAGE:
            self._near = [known for known in self._near if known.number >= reached - FAR]
            self._calls = {n: ids for n, ids in self._calls.items() if n >= reached}

    def _first(self, low: int, high: int, fits: Callable[[_Known], bool]) -> int | None:
        return next((k.number for k in self._near if low <= k.number <= high and fits(k)), None)

    def _find_text(self, role: str, text: str, reached: int) -> int | None:
        wanted = _comparable(text)
        reach = FAR if len(wanted) >= SHORT_TEXT else NEAR
        return self._first(
            reached + 1, reached + reach, lambda known: known.role == role and known.text == wanted
        )

    def _search(self, text: str) -> int | None:
        """Where a journal begins late, the whole session is searched, once."""
        if self._has_searched:
            return None
        self._has_searched = True
        turns = Turn.objects.filter(session=self.session.pk, role=USER, content=text)
        return turns.order_by("number").values_list("number", flat=True).first()

    def _find_result(self, call_id: str, reached: int) -> int | None:
        def fits(known: _Known) -> bool:
            return known.role == TOOL and known.call_id == call_id

        return self._first(reached + 1, reached + FAR, fits) or self._first(
            reached - FAR, reached, fits
        )

    def _find_caller(self, call_id: str, reached: int) -> int | None:
        callers = [k.number for k in self._near if k.number >= reached and k.role == ASSISTANT]
        callers = callers[:CALLERS]
        unread = [number for number in callers if number not in self._calls]
        for turn in stored_turns(
            Turn.objects.filter(session=self.session.pk, number__in=unread).order_by("number")
        ):
            try:
                self._calls[turn.number] = {str(call.get("id")) for call in read_tool_calls(turn)}
            except MalformedTurn:
                self._calls[turn.number] = set()
        return next((n for n in callers if call_id in self._calls.get(n, ())), None)


def read_payload_or_none(event_type: str, text: str) -> Payload | None:
    try:
        return parse_payload(event_type, text)
    except Malformed:
        return None


def _comparable(text: str) -> str:
    return one_line(text, limit=COMPARED_CHARS)
