"""The queries of the recall tool: turns by number, calls by tool, figures of a session.

Every function reads a bounded number of rows, regardless of the session's length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Length, Substr

from conversations.archive.rights import quotable_sessions
from conversations.archive.turns import COLUMNS, read_rewound
from conversations.domain.active_path import are_within
from conversations.domain.turns import (
    ASSISTANT,
    TOOL,
    USER,
    StoredTurn,
    attached_names,
    calls_of,
    read_tool_outcome,
)
from conversations.models import Session, Turn

_COLUMNS = tuple(name for name in COLUMNS if name != "content")
MAX_PIECE_CHARS = 40_000  # More than a tool may return

# Calls of one answer are executed in order, so this many turns may lie between a call and its
# result.
MAX_CALL_DISTANCE_TURNS = 40
MAX_EXCHANGE_TURNS = 300  # Turns that are searched for the start of the running exchange

MAX_COUNTED_CALLS, MAX_TOOL_NAMES = 1000, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledCall:
    """A call as the model made it."""

    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledTurn:
    """A turn as recall shows it.

    ``text`` is a part of the turn's text, whose whole length is ``length`` characters. ``attached``
    has the names of files. ``ok`` is the outcome of a result, if known. ``is_replaced`` is true if
    the turn is no longer on the active path.
    """

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


@dataclass(frozen=True, slots=True)
class RecallTarget:
    """The session that a call reads.

    Only turns below ``before`` are searched, because the model sees the others in its window.
    ``uuid`` is None for the session of the call.
    """

    session: Session
    uuid: UUID | None
    before: int


def find_session(session_pk: int, user_pk: int | None, uuid: UUID | None) -> Session | None:
    """Return the session itself, or another one by its uuid, with its workspace.

    Return None if the session does not exist or cannot be quoted in this one. The caller cannot
    tell these cases apart.
    """
    sessions = Session.objects.filter(pk=session_pk)
    if uuid is not None:
        sessions = quotable_sessions(session_pk, user_pk).filter(uuid=uuid)
    return sessions.select_related("workspace").first()


def read_ends(session: Session) -> list[datetime]:
    """Return the times of the first and the last turn; empty for a session without turns."""
    turns = Turn.objects.filter(session=session, number__in=(1, session.turn_count))
    return list(turns.order_by("number").values_list("created_at", flat=True))


def read_past_turns(session_pk: int, numbers: Iterable[int]) -> list[RecalledTurn]:
    """Return these turns in order. Turns that do not exist are left out."""
    turns = Turn.objects.filter(session=session_pk, number__in=set(numbers))
    return _past_turns(session_pk, turns.order_by("number"))


def read_past_range(session_pk: int, *, start: int, end: int, limit: int) -> list[RecalledTurn]:
    """Return the first turns of a range that includes both ends."""
    turns = Turn.objects.filter(session=session_pk, number__range=(start, end))
    return _past_turns(session_pk, turns.order_by("number")[:limit])


def read_past_turn(session_pk: int, number: int) -> RecalledTurn | None:
    """Return one turn with its whole text."""
    turns = Turn.objects.filter(session=session_pk, number=number)
    past_turns = _past_turns(session_pk, turns, piece=None)
    return past_turns[0] if past_turns else None


def read_past_results(
    session_pk: int, tool_name: str, *, before: int, limit: int
) -> list[RecalledTurn]:
    """Return results of one tool in turns below ``before``, newest first."""
    turns = Turn.objects.filter(session=session_pk, tool_name=tool_name, number__lt=before)
    return _past_turns(session_pk, turns.order_by("-number")[:limit])


def read_calls_of(session_pk: int, results: Sequence[RecalledTurn]) -> dict[int, RecalledCall]:
    """Return the calls of these results by the result's number. Some may not be found."""
    # The query lists numbers, because SQLite reads the whole session for ranges that are joined by
    # OR.
    numbers = {
        n for turn in results for n in range(turn.number - MAX_CALL_DISTANCE_TURNS, turn.number)
    }
    turns = Turn.objects.filter(session=session_pk, number__in=numbers, role=ASSISTANT)
    callers = _past_turns(session_pk, turns.order_by("-number"), piece=1)
    calls = [call for caller in callers for call in caller.calls]
    call_of_result: dict[int, RecalledCall] = {}
    for result in results:
        # A later answer may reuse an id, so the latest call before the result is taken.
        for call in calls:
            is_near = result.number - MAX_CALL_DISTANCE_TURNS <= call.turn < result.number
            if is_near and call.call_id == result.call_id:
                call_of_result[result.number] = call
                break
    return call_of_result


def find_exchange_start(session_pk: int, call_turn: int) -> int:
    """Return the turn of the message that is being answered by the run with this call."""
    turns = Turn.objects.filter(session=session_pk, number__lte=call_turn).order_by("-number")
    for number, role in turns.values_list("number", "role")[:MAX_EXCHANGE_TURNS]:
        if role == USER:
            return int(number)
    return call_turn


def has_results(session_pk: int) -> bool:
    """Return whether any tool was used in the session."""
    return Turn.objects.filter(session=session_pk, tool_name__gt="").exists()


def list_tools(session_pk: int) -> str:
    """Return a text with the tools of a session by name, each with the number of its results."""
    used: list[str] = []
    results = Turn.objects.filter(session=session_pk, tool_name__isnull=False)
    last = ""
    while len(used) < MAX_TOOL_NAMES:
        # One seek in the index finds the next name, and the count of each tool is limited.
        following = results.filter(tool_name__gt=last).order_by("tool_name")
        last = following.values_list("tool_name", flat=True).first() or ""
        if not last:
            break
        count = results.filter(tool_name=last).order_by("number")[:MAX_COUNTED_CALLS].count()
        used.append(f"{last} ({count:,}{' or more' if count == MAX_COUNTED_CALLS else ''})")
    return ", ".join(used) or "none"


def list_siblings(
    session_pk: int, user_pk: int | None, *, limit: int, after: UUID | None
) -> QuerySet[Session] | None:
    """Return sessions with turns that can be quoted in this one, the latest active first.

    Only sessions that follow the session ``after`` in this order are returned. Return None if that
    session cannot be quoted any more.
    """
    sessions = quotable_sessions(session_pk, user_pk)
    siblings = sessions.filter(next_turn__gt=1).order_by("-last_active_at", "-pk")
    if after is not None:
        last = sessions.filter(uuid=after).first()
        if last is None:
            return None
        last_active = last.last_active_at
        siblings = siblings.filter(
            Q(last_active_at__lt=last_active) | Q(last_active_at=last_active, pk__lt=last.pk)
        )
    return siblings[:limit]


def _past_turns(
    session_pk: int, turns: QuerySet[Turn], *, piece: int | None = MAX_PIECE_CHARS
) -> list[RecalledTurn]:
    text = Substr("content", 1, piece) if piece else F("content")
    rows = list(
        turns.annotate(piece=text, length=Length("content")).values(*_COLUMNS, "piece", "length")
    )
    if not rows:
        return []
    replaced = read_rewound(session_pk, "turn")
    past_turns: list[RecalledTurn] = []
    for row in rows:
        text, length = row.pop("piece"), row.pop("length")
        turn = StoredTurn(content=text, **row)
        calls = [
            RecalledCall(
                turn=turn.number,
                call_id=str(call.get("id", "")),
                name=str(call.get("name") or "tool"),
                arguments=call["input"] if isinstance(call.get("input"), dict) else {},
            )
            for call in (calls_of(turn) if turn.role == ASSISTANT else ())
        ]
        past_turns.append(
            RecalledTurn(
                number=turn.number,
                role=turn.role,
                text=text,
                length=length,
                created_at=turn.created_at,
                tool_name=turn.tool_name or "",
                call_id=turn.tool_call_id or "",
                calls=calls,
                ok=read_tool_outcome(turn)[0] if turn.role == TOOL else None,
                is_complete=turn.complete,
                attached=attached_names(turn),
                is_replaced=are_within(turn.number, replaced),
            )
        )
    return past_turns
