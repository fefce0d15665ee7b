"""The record of a tool call as a page, and what it gave, in pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from conversations.access import Access, get_session_for, sign_in_first, visit_of
from conversations.agent.undo.records import has_changes
from conversations.archive.rights import WRITE
from conversations.archive.tool_calls import (
    ToolOutput,
    ToolRecord,
    read_call_output,
    read_tool_record,
    read_turn_output,
    require_decidable,
)
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.models import Session
from conversations.rendering.diffs import render_diff
from conversations.rendering.source_text import duration_text, number_text, show_hidden
from conversations.rendering.tool_rows import changes_text, render_output_page
from conversations.rendering.tool_words import (
    arguments_text,
    decision_text,
    read_arguments,
    state_word,
    telling_argument,
    tool_word,
)
from conversations.runtime.current import current_runtime

from .forms import check_reason
from .panel import render_panel

LONG_DIFF_LINES, LONG_DIFF_CHARS = 5000, 500_000
LONG_ARGUMENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvent:
    """Something that happened to a call."""

    what: str
    at: datetime


@login_required
@require_safe
def tool_call(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponse:
    """The record of a call: what was asked, decided and done, when, and what it gave."""
    found, access = get_session_for(request, uuid)
    record = read_tool_record(found, call)
    return render_panel(request, found, access, "tool_call", _describe(found, record))


@login_required
@require_safe
def tool_call_output(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponse:
    """A page of what a call gave; ``from`` is the character that it begins with."""
    found, access = get_session_for(request, uuid)
    address = reverse("tool_call_output", args=[uuid, call])
    record_url = reverse("tool_call", args=[uuid, call])
    output = read_call_output(found, call)
    return _output_page(request, found, access, output, address, record_url)


@login_required
@require_safe
def turn_output(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """The same for a result without a record, by its turn."""
    found, access = get_session_for(request, uuid)
    address = reverse("turn_output", args=[uuid, number])
    turn_url = reverse("turn", args=[uuid, number])
    output = read_turn_output(found.pk, number)
    return _output_page(request, found, access, output, address, turn_url)


def _output_page(
    request: HttpRequest,
    found: Session,
    access: Access,
    output: ToolOutput,
    address: str,
    back_url: str,
) -> HttpResponse:
    page = render_output_page(
        output.text, name=output.name, start=_start(request), session=found.uuid
    )
    context = {
        "heading": f"Output of {tool_word(output.name)[0]}",
        "page": page,
        "address": address,
        "back_url": back_url,
    }
    return render_panel(request, found, access, "tool_output", context)


def _describe(found: Session, record: ToolRecord) -> dict[str, Any]:
    word, icon = tool_word(record.call.name)
    arguments = read_arguments(record.call.arguments)
    done, asked = record.completed, record.asked
    diff_text = (done.diff if done else "") or (asked.diff if asked else "")
    diff = render_diff(diff_text, most_lines=LONG_DIFF_LINES, most_chars=LONG_DIFF_CHARS)
    text = arguments_text(arguments, without_texts=False)
    context: dict[str, Any] = {
        "heading": word,
        "name": record.call.name,
        "icon": icon,
        "argument_html": show_hidden(telling_argument(record.call.name, arguments)),
        "state": state_word(record.call.state, record.call.ok),
        "exit_code": done.exit_code if done else None,
        "duration": duration_text(record.call.duration_ms),
        "decision_html": show_hidden(
            decision_text(
                record.call.decision,
                by=record.decided_by,
                reason=record.call.reason,
                kind=asked.kind_label if asked else "",
            )
        ),
        "moments": list(_moments(record)),
        "arguments_html": show_hidden(text[:LONG_ARGUMENTS]),
        "arguments_left": number_text(max(0, len(text) - LONG_ARGUMENTS)),
        "diff_html": diff.html if diff_text else "",
        "diff_left": number_text(diff.left_out) if diff.left_out else "",
        "changes": changes_text(diff.added, diff.removed),
        "is_planned": bool(diff_text) and not (done and done.diff),
        "call": record.call.uuid,
        "has_changes": has_changes(found.pk, call=record.call.uuid),
        "turn": record.call.turn_number,
        "changed_files": number_text(record.changed_files),
        "changes_url": f"{reverse('session_changes', args=[found.uuid])}?call={record.call.uuid}"
        if record.changed_files
        else "",
        "address": reverse("tool_call", args=[found.uuid, record.call.uuid]),
        "output_url": reverse("tool_call_output", args=[found.uuid, record.call.uuid]),
    }
    if record.call.result_turn is not None:
        output = read_turn_output(found.pk, record.call.result_turn)
        context["page"] = render_output_page(
            output.text, name=output.name, start=0, session=found.uuid
        )
        context["source_url"] = reverse("turn_source", args=[found.uuid, record.call.result_turn])
    return context


def _moments(record: ToolRecord) -> Iterator[CallEvent]:
    by = f" by {record.stopped_by}" if record.stopped_by else ""
    for what, at in (
        ("Called", record.call.created_at),
        ("Asked", record.call.asked_at),
        ("Decided", record.call.decided_at),
        ("Started", record.call.started_at),
        (f"Stopped{by}", record.call.stop_requested_at),
    ):
        if at is not None:
            yield CallEvent(what=what, at=at)


def _start(request: HttpRequest) -> int:
    text = request.GET.get("from", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise Rejected("from must be a number.", code="bad_number")
    return int(text)


# Answering a call that waits, and ending one, by plain forms.


@require_POST
async def tool_call_approve(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponseBase:
    """Let a call run; with ``always`` all calls of its kind, in this workspace."""
    always = request.POST.get("always", "") not in ("", "0")
    return await _carry_out(request, uuid, call, ALWAYS if always else ONCE)


@require_POST
async def tool_call_deny(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponseBase:
    """Refuse a call, with a ``reason`` that the model reads."""
    return await _carry_out(request, uuid, call, DENY)


@require_POST
async def tool_call_cancel(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponseBase:
    """End a call that runs or waits; the run goes on."""
    return await _carry_out(request, uuid, call, None)


async def _carry_out(
    request: HttpRequest, uuid: UUID, call: UUID, decision: str | None
) -> HttpResponseBase:
    """Decide about the call, or end it (None), and go back to the session."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(uuid=uuid)
    found, _ = await sync_to_async(get_session_for)(visit_of(request, user), uuid, to=WRITE)
    try:
        await sync_to_async(require_decidable)(found, call)
        reason = _reason(request, call) if decision == DENY else ""
        runtime = await current_runtime()
        if decision is None:
            await runtime.cancel_call(found, call=call, user_pk=user.pk)
        else:
            await runtime.decide_call(
                found, call=call, decision=decision, user_pk=user.pk, reason=reason
            )
    except Rejected as error:
        messages.error(request, error.message)
    return redirect("session", uuid=uuid)


def _reason(request: HttpRequest, call: UUID) -> str:
    """One form may hold several questions: then the field is named after its call."""
    return check_reason(request.POST.get("reason") or request.POST.get(f"reason-{call}", ""))
