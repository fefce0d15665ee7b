"""What the recall tool reads: turns by number, calls by tool, figures of a session.

Every function reads a bounded number of rows, however long the session is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Length, Substr

from conversations.archive.rights import quotable_sessions
from conversations.archive.turns import COLUMNS, merge_ranges
from conversations.domain.turns import (
    ASSISTANT,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    attached_names,
    read_tool_calls,
    read_tool_outcome,
)
from conversations.models import Rewind, Session, Turn

_COLUMNS = tuple(name for name in COLUMNS if name != "content")

PIECE = 40_000  # Characters of a turn's text that one read returns; more than a tool may say

# Turns before a result among which its call is looked for: calls of one answer are executed in
# order, so as many as that may lie between.
CALL_DISTANCE = 40

EXCHANGE_LIMIT = 300  # Turns of the running exchange that are looked through for its beginning

# How far the calls of one tool are counted, and how many tools are named.
COUNTED, TOOL_NAMES = 1000, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledCall:
    """A call as the model made it."""

    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledTurn:
    """A turn as recall shows it. ``text`` is a part of it, ``length`` characters the whole;
    ``attached`` names files. ``ok``: the outcome of a result, where known. ``is_replaced``: no
    longer on the active path."""

    number: int
    role: str
    text: str
    length: int
    created_at: datetime
    tool_name: str
    call_id: str
    calls: list[RecalledCall]
    ok: bool | None
    is_complete: bool
    is_replaced: bool
    attached: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """How often a tool was used; ``is_bound``: at least so often."""

    name: str
    count: int
    is_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session in figures; moments None: it has no turns."""

    pk: int
    uuid: UUID
    title: str
    workspace: str
    turn_count: int
    input_tokens: int
    output_tokens: int
    first_at: datetime | None
    last_at: datetime | None
    rewind_count: int


def read_past_turns(session_pk: int, numbers: Iterable[int]) -> list[RecalledTurn]:
    """These turns, in order; those that do not exist are left out."""
    turns = _turns(session_pk).filter(number__in=set(numbers)).order_by("number")
    return _past_turns(session_pk, turns)


def read_past_range(session_pk: int, *, start: int, end: int, limit: int) -> list[RecalledTurn]:
    """The first turns of a range, both ends included."""
    turns = _turns(session_pk).filter(number__range=(start, end)).order_by("number")
    return _past_turns(session_pk, turns[:limit])


def read_past_turn(session_pk: int, number: int) -> RecalledTurn | None:
    """One turn with its whole text."""
    found = _past_turns(session_pk, _turns(session_pk).filter(number=number), piece=None)
    return found[0] if found else None


def read_past_results(
    session_pk: int, tool_name: str, *, before: int, limit: int
) -> list[RecalledTurn]:
    """Results of one tool in turns below ``before``, newest first."""
    turns = _turns(session_pk).filter(tool_name=tool_name, number__lt=before)
    return _past_turns(session_pk, turns.order_by("-number")[:limit])


def read_calls_of(session_pk: int, results: Sequence[RecalledTurn]) -> dict[int, RecalledCall]:
    """For each result whose call is found, by the result's number: the call."""
    reach = [(max(1, turn.number - CALL_DISTANCE), turn.number - 1) for turn in results]
    # By number: SQLite reads the whole session for ranges that are joined by OR.
    numbers = {number for low, high in reach for number in range(low, high + 1)}
    turns = _turns(session_pk).filter(number__in=numbers, role=ASSISTANT).order_by("-number")
    callers = _past_turns(session_pk, turns, piece=1)
    calls = [call for caller in callers for call in caller.calls]
    return {
        result.number: call
        for result, (low, high) in zip(results, reach, strict=True)
        if (call := _find_call(calls, result.call_id, low, high)) is not None
    }


def _find_call(calls: list[RecalledCall], call_id: str, low: int, high: int) -> RecalledCall | None:
    """The latest call of this id within the turns; newer calls come first."""
    return next((c for c in calls if c.call_id == call_id and low <= c.turn <= high), None)


def find_exchange_start(session_pk: int, call_turn: int) -> int:
    """The turn of the message that is being answered by the call in ``call_turn``."""
    roles = _turns(session_pk).filter(number__lte=call_turn).order_by("-number")
    for number, role in roles.values_list("number", "role")[:EXCHANGE_LIMIT]:
        if role == USER:
            return int(number)
    return call_turn


def read_tool_use(session_pk: int) -> list[ToolUse]:
    """The tools of a session by name, each with the number of its results. One seek in the index
    finds the next name, and no tool is counted to its end."""
    used: list[ToolUse] = []
    results = _turns(session_pk).filter(tool_name__isnull=False)
    last = ""
    while len(used) < TOOL_NAMES:
        following = results.filter(tool_name__gt=last).order_by("tool_name")
        name = following.values_list("tool_name", flat=True).first()
        if name is None:
            break
        count = results.filter(tool_name=name).order_by("number")[:COUNTED].count()
        used.append(ToolUse(name=name, count=count, is_bound=count == COUNTED))
        last = name
    return used


def read_own_facts(session_pk: int) -> SessionFacts | None:
    """The session in figures, for itself."""
    return _facts(Session.objects.filter(pk=session_pk))


def read_quotable_facts(session_pk: int, user_pk: int | None, uuid: UUID) -> SessionFacts | None:
    """Another session in figures. None alike where there is none, and where it cannot be quoted in
    this one."""
    return _facts(quotable_sessions(session_pk, user_pk).filter(uuid=uuid))


def _facts(sessions: QuerySet[Session]) -> SessionFacts | None:
    """Of the only one of these sessions, by its counters and its ends."""
    session = sessions.select_related("workspace").first()
    if session is None:
        return None
    turns = _turns(session.pk).filter(number__in=(1, session.turn_count)).order_by("number")
    moments = list(turns.values_list("created_at", flat=True))
    return SessionFacts(
        pk=session.pk,
        uuid=session.uuid,
        title=session.title,
        workspace=session.workspace.name,
        turn_count=session.turn_count,
        input_tokens=session.input_tokens,
        output_tokens=session.output_tokens,
        first_at=moments[0] if moments else None,
        last_at=moments[-1] if moments else None,
        rewind_count=session.rewind_count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingItem:
    """A session of the workspace as a list names it."""

    uuid: UUID
    title: str
    turn_count: int
    last_active_at: datetime


def list_siblings(
    session_pk: int, user_pk: int | None, *, limit: int, after: UUID | None = None
) -> list[SiblingItem]:
    """Sessions with turns that can be quoted in this one, the latest active first; those ``after``
    one of them."""
    sessions = quotable_sessions(session_pk, user_pk)
    found = sessions.filter(next_turn__gt=1).order_by("-last_active_at", "-pk")
    last = sessions.filter(uuid=after).first() if after else None
    if last is not None:
        at = last.last_active_at
        found = found.filter(Q(last_active_at__lt=at) | Q(last_active_at=at, pk__lt=last.pk))
    rows = found.values_list("uuid", "title", "preview", "next_turn", "last_active_at")
    return [
        SiblingItem(uuid=uuid, title=title or preview, turn_count=following - 1, last_active_at=at)
        for uuid, title, preview, following, at in rows[:limit]
    ]


def _turns(session_pk: int) -> QuerySet[Turn]:
    return Turn.objects.filter(session=session_pk)


def _past_turns(
    session_pk: int, turns: QuerySet[Turn], *, piece: int | None = PIECE
) -> list[RecalledTurn]:
    text = Substr("content", 1, piece) if piece else F("content")
    found = turns.annotate(piece=text, length=Length("content"))
    rows = list(found.values(*_COLUMNS, "piece", "length"))
    if not rows:
        return []
    rewinds = Rewind.objects.filter(session=session_pk).order_by("id")
    replaced = merge_ranges(rewinds.values_list("from_turn", "to_turn"))
    return [_past_turn(row, replaced) for row in rows]


def _past_turn(row: dict[str, Any], replaced: list[tuple[int, int]]) -> RecalledTurn:
    text, length = row.pop("piece"), row.pop("length")
    turn = StoredTurn(content=text, **row)
    return RecalledTurn(
        number=turn.number,
        role=turn.role,
        text=text,
        length=length,
        created_at=turn.created_at,
        tool_name=turn.tool_name or "",
        call_id=turn.tool_call_id or "",
        calls=_calls_of(turn),
        ok=read_tool_outcome(turn)[0] if turn.role == TOOL else None,
        is_complete=turn.complete,
        attached=attached_names(turn),
        is_replaced=any(low <= turn.number <= high for low, high in replaced),
    )


def _calls_of(turn: StoredTurn) -> list[RecalledCall]:
    if turn.role != ASSISTANT:
        return []
    try:
        calls = read_tool_calls(turn)
    except MalformedTurn:
        return []
    return [
        RecalledCall(
            turn=turn.number,
            call_id=str(call.get("id", "")),
            name=str(call.get("name") or "tool"),
            arguments=call["input"] if isinstance(call.get("input"), dict) else {},
        )
        for call in calls
    ]
