"""API operations of tool calls: listing, reading, approving, denying, answering, cancelling."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Field, Path, Query, Router, Schema

from conversations.access import get_session_for
from conversations.accounts.tokens import APPROVE, READ, WRITE
from conversations.archive.tool_calls import (
    MAX_REASON_CHARS,
    ToolCallDetails,
    list_tool_call_details,
    read_call_output,
    read_tool_call_details,
    require_decidable,
)
from conversations.domain.text import load_json
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.runtime.service import Runtime

from .auth import needs, open_for_writing
from .fields import Page, Paging, Text, make_page, page_request_of

router = Router(tags=["Tool calls"])


class AskedOut(Schema):
    """The description of a call for the person who decides: what the call is going to do.

    ``kind_label`` names the kind of calls that "always" would allow.
    """

    summary: str
    command: str
    diff: str
    note: str
    kind_label: str


class QuestionFieldOut(Schema):
    """A field of a tool server's question.

    ``kind`` is ``text``, ``number``, ``whole`` (a whole number), ``flag`` (true or false), ``one``
    or ``several`` of the ``choices``, which are pairs of value and title. ``least`` and ``most``
    are the bounds of a number, of the length of a text, or of the number of choices.
    """

    name: str
    kind: str
    title: str
    description: str
    form: str
    is_required: bool
    default: Any
    choices: list[tuple[str, str]]
    least: float | None
    most: float | None


class QuestionOut(Schema):
    """A question that the tool server asks during a call.

    It asks the person to fill in ``fields``, to open ``url``, or to allow that the model is asked
    ``prompt``. The others are empty.
    """

    id: UUID
    server: str
    message: str
    fields: list[QuestionFieldOut]
    url: str
    prompt: dict[str, Any]


class CallOut(Schema):
    """A tool call. It waits for a person while ``state`` is ``waiting_approval``.

    ``arguments`` is an object, or text if the model wrote invalid JSON.
    """

    uuid: UUID
    run: UUID
    call_id: str
    name: str
    arguments: Any
    state: str
    ok: bool | None
    turn: int
    result_turn: int | None
    duration_ms: int | None
    created_at: datetime
    asked: AskedOut | None
    question: QuestionOut | None
    asked_at: datetime | None
    decision: str
    decided_by: str
    decided_at: datetime | None
    reason: str
    started_at: datetime | None
    stop_requested_at: datetime | None
    stopped_by: str
    changed_files: int


class WholeCallOut(CallOut):
    """A tool call with its whole output, and the diff of its changes."""

    output: str
    diff: str


class CallFilters(Paging):
    open: bool = Field(False, description="Only calls that have not ended.")


class ApproveIn(Schema):
    always: bool = Field(False, description="All calls of this kind in this workspace.")


class AnswerIn(Schema):
    question: UUID = Field(description="The question that this answers.")
    action: Literal["accept", "decline"]
    content: dict[str, Any] = Field(
        default_factory=dict, description="The values by the names of the fields, to accept."
    )


class DenyIn(Schema):
    reason: Text = Field("", max_length=MAX_REASON_CHARS, description="Shown to the model.")


@router.get("/calls", auth=needs(READ), response=Page[CallOut], url_name="calls")
def list_calls(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[CallFilters]
) -> dict[str, Any]:
    """List the tool calls of a session in the order in which the model made them."""
    session, _ = get_session_for(request, uuid)
    walk = page_request_of(wanted)
    records = list_tool_call_details(
        session.pk,
        start=walk.number,
        is_back=walk.is_back,
        limit=walk.limit + 1,
        is_open=wanted.open,
    )
    return make_page(walk, records, as_item=_as_call, place_of=lambda record: str(record.call.pk))


@router.get("/calls/{uuid:call}", auth=needs(READ), response=WholeCallOut, url_name="call")
def get_call(request: HttpRequest, uuid: Path[UUID], call: UUID) -> dict[str, Any]:
    """Return one tool call with its output."""
    session, _ = get_session_for(request, uuid)
    record = read_tool_call_details(session, call)
    diff = record.completed.diff if record.completed else ""
    _, output = read_call_output(session, call)
    return _as_call(record) | {"output": output, "diff": diff}


@router.post(
    "/calls/{uuid:call}/approve", auth=needs(APPROVE), response=CallOut, url_name="call_approve"
)
async def approve(
    request: HttpRequest, uuid: Path[UUID], call: UUID, wanted: ApproveIn | None = None
) -> dict[str, Any]:
    """Approve a call that waits.

    The first decision counts. If the same person repeats it, nothing changes. Any other decision is
    refused.
    """
    decision = ALWAYS if wanted and wanted.always else ONCE
    return await _act_on_call(request, uuid, call, Runtime.decide_call, decision=decision)


@router.post("/calls/{uuid:call}/deny", auth=needs(APPROVE), response=CallOut, url_name="call_deny")
async def deny(
    request: HttpRequest, uuid: Path[UUID], call: UUID, wanted: DenyIn | None = None
) -> dict[str, Any]:
    """Deny a call that waits. The model reads the reason."""
    reason = wanted.reason.strip() if wanted else ""
    return await _act_on_call(
        request, uuid, call, Runtime.decide_call, decision=DENY, reason=reason
    )


@router.post(
    "/calls/{uuid:call}/answer", auth=needs(APPROVE), response=CallOut, url_name="call_answer"
)
async def answer(
    request: HttpRequest, uuid: Path[UUID], call: UUID, wanted: AnswerIn
) -> dict[str, Any]:
    """Answer the question of the call's tool server. The first answer counts."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await runtime.answer_question(
        session,
        call=call,
        question=str(wanted.question),
        action=wanted.action,
        content=wanted.content,
        user_pk=user_pk,
    )
    return _as_call(await sync_to_async(read_tool_call_details)(session, call))


@router.post(
    "/calls/{uuid:call}/cancel", auth=needs(WRITE), response=CallOut, url_name="call_cancel"
)
async def cancel(request: HttpRequest, uuid: Path[UUID], call: UUID) -> dict[str, Any]:
    """Cancel a call that runs or waits. The run continues."""
    return await _act_on_call(request, uuid, call, Runtime.cancel_call)


async def _act_on_call(
    request: HttpRequest, uuid: UUID, call: UUID, act: Callable[..., Awaitable[None]], **values: str
) -> dict[str, Any]:
    session, runtime, user_pk = await open_for_writing(request, uuid)
    # A call of a program's own tool waits for its result, not for a person's decision.
    await sync_to_async(require_decidable)(session, call)
    await act(runtime, session, call=call, user_pk=user_pk, **values)
    return _as_call(await sync_to_async(read_tool_call_details)(session, call))


def _as_call(record: ToolCallDetails) -> dict[str, Any]:
    call = record.call
    data = {
        "run": call.run.uuid,
        "turn": call.turn_number,
        "asked": record.asked and asdict(record.asked),
        "question": record.question and asdict(record.question),
        "decided_by": record.decided_by,
        "stopped_by": record.stopped_by,
        "changed_files": record.changed_files,
    }
    try:
        data["arguments"] = load_json(call.arguments, default={})
    except ValueError:
        # The model wrote invalid JSON, which is shown as it is.
        data["arguments"] = call.arguments
    return {name: getattr(call, name) for name in CallOut.model_fields.keys() - data.keys()} | data
