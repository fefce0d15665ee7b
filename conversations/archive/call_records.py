"""Reading the record of a tool call, and what it gave, from the turn that has it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Q

from conversations.domain.errors import NotFound
from conversations.domain.events import (
    TOOL_CALL_COMPLETED,
    Malformed,
    ToolCallCompleted,
    parse_payload,
)
from conversations.domain.runs import ACTIVE_STATES
from conversations.domain.text import load_json
from conversations.domain.tool_calls import OPEN_STATES, ApprovalRequest, read_asked
from conversations.domain.turns import TOOL, read_tool_outcome
from conversations.models import ChatEvent, Run, Session, ToolCall

from .tool_calls import find_call
from .turns import read_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One call. ``arguments`` is the text of a JSON object. ``completed`` is what its
    row was made from; None while the call is open, and in a list. ``changed_files`` counts
    the files that are known to have been touched."""

    call: UUID
    run: UUID
    call_id: str
    name: str
    arguments: str
    state: str
    ok: bool | None
    turn: int
    result_turn: int | None
    duration_ms: int | None
    created_at: datetime
    asked: ApprovalRequest | None
    asked_at: datetime | None
    decision: str
    decided_by: str
    decided_at: datetime | None
    reason: str
    started_at: datetime | None
    stop_requested_at: datetime | None
    stopped_by: str
    changed_files: int
    completed: ToolCallCompleted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """All of what a call gave."""

    name: str
    text: str


def read_tool_record(session: Session, call: UUID) -> ToolRecord:
    """The record of a call of this session. Raises NotFound."""
    found = find_call(session, call)
    changed = found.file_changes.values("path").distinct().count()
    return _record(found, changed, completed=_read_completed(session.pk, found))


def list_tool_records(
    session_pk: int,
    *,
    start: int | None = None,
    is_back: bool = False,
    limit: int,
    is_open: bool = False,
) -> list[tuple[int, ToolRecord]]:
    """Calls with their keys, above ``start`` (None: from the first), or with ``is_back``
    below it, the nearest first; all of them, or those that have not ended. (Those are
    looked for in runs that have not ended: that costs the same at any age.)"""
    calls = ToolCall.objects.filter(session=session_pk)
    if is_open:
        runs = Run.objects.filter(session=session_pk, state__in=ACTIVE_STATES)
        calls = ToolCall.objects.filter(run__in=runs, state__in=OPEN_STATES)
    if start is not None:
        calls = calls.filter(Q(pk__lt=start) if is_back else Q(pk__gt=start))
    calls = calls.order_by("-pk" if is_back else "pk")
    rows = calls.select_related("run", "decided_by", "stop_requested_by").annotate(
        changed=Count("file_changes__path", distinct=True)
    )
    return [(call.pk, _record(call, call.changed)) for call in rows[:limit]]


def _record(
    found: ToolCall, changed_files: int, *, completed: ToolCallCompleted | None = None
) -> ToolRecord:
    try:
        asked = load_json(found.asked)
    except ValueError:
        asked = None
    return ToolRecord(
        call=found.uuid,
        run=found.run.uuid,
        call_id=found.call_id,
        name=found.name,
        arguments=found.arguments,
        state=found.state,
        ok=found.ok,
        turn=found.turn_number,
        result_turn=found.result_turn,
        duration_ms=found.duration_ms,
        created_at=found.created_at,
        asked=read_asked(asked) if isinstance(asked, dict) else None,
        asked_at=found.asked_at,
        decision=found.decision,
        decided_by=found.decided_by.get_username() if found.decided_by else "",
        decided_at=found.decided_at,
        reason=found.reason,
        started_at=found.started_at,
        stop_requested_at=found.stop_requested_at,
        stopped_by=found.stop_requested_by.get_username() if found.stop_requested_by else "",
        changed_files=changed_files,
        completed=completed,
    )


def read_call_output(session: Session, call: UUID) -> ToolOutput:
    """What a call gave, all of it; empty while it is open. Raises NotFound."""
    found = find_call(session, call)
    if found.result_turn is None:
        return ToolOutput(name=found.name, text="")
    return read_turn_output(session.pk, found.result_turn)


def read_turn_output(session_pk: int, number: int) -> ToolOutput:
    """The same of the turn with a call's result, where the call has no record; of any
    other turn its text."""
    turn = read_turn(session_pk, number)
    if turn is None:
        raise NotFound("This session has no such turn.")
    if turn.role != TOOL:
        return ToolOutput(name="", text=turn.content)
    _, output, error = read_tool_outcome(turn)
    return ToolOutput(name=turn.tool_name or "", text=output or error)


def _read_completed(session_pk: int, call: ToolCall) -> ToolCallCompleted | None:
    if call.result_turn is None:
        return None
    events = ChatEvent.objects.filter(
        session=session_pk, turn_number=call.result_turn, event_type=TOOL_CALL_COMPLETED
    ).order_by("seq")
    for text in events.values_list("payload", flat=True)[:20]:
        try:
            payload = parse_payload(TOOL_CALL_COMPLETED, text)
        except Malformed:
            continue
        if isinstance(payload, ToolCallCompleted) and payload.call in ("", str(call.uuid)):
            return payload
    return None
