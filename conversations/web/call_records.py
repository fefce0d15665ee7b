"""The record of a tool call as a page, and its output in pages."""

from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import Access, get_session_for, post_to_session
from conversations.agent.undo.records import has_changes
from conversations.archive.tool_calls import (
    ToolCallDetails,
    find_question,
    read_call_output,
    read_tool_call_details,
    read_turn_output,
    require_decidable,
)
from conversations.domain.keyset import parse_number
from conversations.domain.text import number_text
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.models import Session
from conversations.rendering import tool_rows
from conversations.rendering.diffs import render_diff
from conversations.rendering.messages import fill_marks, translate
from conversations.rendering.source_text import duration_text, show_hidden
from conversations.rendering.tool_rows import changes_text, render_output_page
from conversations.runtime.current import current_runtime
from conversations.web.errors import refusal_as_message

from .forms import check_reason
from .panel import render_panel

MAX_DIFF_LINES, MAX_DIFF_CHARS = 5000, 500_000
MAX_ARGUMENTS_CHARS = 100_000


@login_required
@require_safe
def tool_call(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponse:
    """Show the record of a call: its arguments, decision, times, changes and output."""
    session, access = get_session_for(request, uuid)
    record = read_tool_call_details(session, call)
    return render_panel(request, session, access, "tool_call", _describe(session, record))


@login_required
@require_safe
def tool_output(
    request: HttpRequest, uuid: UUID, call: UUID | None = None, number: int | None = None
) -> HttpResponse:
    """Show a page of a call's output, or of a turn's output that has no call record.

    ``from`` is the offset of its first character.
    """
    session, access = get_session_for(request, uuid)
    args: list[Any]
    if call is not None:
        name, output = read_call_output(session, call)
        args = [uuid, call]
    else:
        assert number is not None
        name, output = read_turn_output(session.pk, number)
        args = [uuid, number]
    start = parse_number(request.GET.get("from", "0"))
    page = render_output_page(output, name=name, start=start, session=session.uuid)
    context = {
        "heading": gettext("Output of %(tool)s")
        % {"tool": translate(tool_rows.tool_word(name)[0])},
        "page": page,
        "address": reverse("tool_call_output" if call else "turn_output", args=args),
        "back_url": reverse("tool_call" if call else "turn", args=args),
    }
    return render_panel(request, session, access, "tool_output", context)


def _describe(session: Session, record: ToolCallDetails) -> dict[str, Any]:
    call, completed, approval = record.call, record.completed, record.asked
    word, icon = tool_rows.tool_word(call.name)
    arguments = tool_rows.read_arguments(call.arguments)
    diff_text = (completed.diff if completed else "") or (approval.diff if approval else "")
    diff = render_diff(diff_text, most_lines=MAX_DIFF_LINES, most_chars=MAX_DIFF_CHARS)
    text = tool_rows.arguments_text(arguments, without_texts=False)
    stopped = gettext("Stopped")
    if record.stopped_by:
        stopped = gettext("Stopped by %(name)s") % {"name": record.stopped_by}
    mark, state = tool_rows.state_word(call.state, call.ok)
    kind = approval.kind_label if approval else ""
    decision = tool_rows.decision_text(
        call.decision, by=record.decided_by, reason=call.reason, kind=kind
    )
    changes_url = reverse("session_changes", args=[session.uuid], query={"call": call.uuid})
    times = (
        (gettext("Called"), call.created_at),
        (gettext("Asked"), call.asked_at),
        (gettext("Decided"), call.decided_at),
        (gettext("Started"), call.started_at),
        (stopped, call.stop_requested_at),
    )
    context: dict[str, Any] = {
        "heading": translate(word),
        "name": call.name,
        "icon": icon,
        "argument_html": show_hidden(tool_rows.telling_argument(call.name, arguments)),
        "state": (mark, translate(state)),
        "exit_code": completed.exit_code if completed else None,
        "duration": duration_text(call.duration_ms),
        "decision_html": show_hidden(translate(decision)),
        "moments": [{"what": label, "at": time} for label, time in times if time is not None],
        "arguments_html": show_hidden(text[:MAX_ARGUMENTS_CHARS]),
        "arguments_left": number_text(max(0, len(text) - MAX_ARGUMENTS_CHARS)),
        "diff_html": fill_marks(diff.html) if diff_text else "",
        "diff_left": number_text(diff.left_out) if diff.left_out else "",
        "changes": changes_text(diff.added, diff.removed),
        "is_planned": bool(diff_text) and not (completed and completed.diff),
        "call": call.uuid,
        "has_changes": has_changes(session.pk, call=call.uuid),
        "turn": call.turn_number,
        "changed_files": number_text(record.changed_files),
        "changes_url": changes_url if record.changed_files else "",
        "address": reverse("tool_call", args=[session.uuid, call.uuid]),
        "output_url": reverse("tool_call_output", args=[session.uuid, call.uuid]),
    }
    if call.result_turn is not None:
        name, output = read_turn_output(session.pk, call.result_turn)
        context["page"] = render_output_page(output, name=name, start=0, session=session.uuid)
        context["source_url"] = reverse("turn_source", args=[session.uuid, call.result_turn])
    return context


# Deciding and answering waiting calls, and stopping calls, by plain forms.


@post_to_session
async def tool_call_decide(
    request: HttpRequest, session: Session, access: Access, user: User, *, call: UUID, act: str
) -> HttpResponse:
    """Allow, deny or stop a call, then redirect to the session.

    ``always`` allows all calls of its kind in this workspace. The model reads the ``reason`` of a
    denial.
    """
    with refusal_as_message(request):
        await sync_to_async(require_decidable)(session, call)
        runtime = await current_runtime()
        if act == "cancel":
            await runtime.cancel_call(session, call=call, user_pk=user.pk)
        else:
            decision = ONCE if request.POST.get("always", "") in ("", "0") else ALWAYS
            reason = ""
            if act == "deny":
                decision = DENY
                # If a form holds several questions, the field is named after its call.
                text = request.POST.get("reason") or request.POST.get(f"reason-{call}", "")
                reason = check_reason(text)
            await runtime.decide_call(
                session, call=call, decision=decision, user_pk=user.pk, reason=reason
            )
    return redirect("session", uuid=session.uuid)


@post_to_session
async def tool_call_answer(
    request: HttpRequest, session: Session, access: Access, user: User, *, call: UUID
) -> HttpResponse:
    """Answer a question of a call's tool server, then redirect to the session.

    The button names the question. Each field is named after the question and itself.
    """
    question, _, action = request.POST.get("answer", "").partition(":")
    content: dict[str, Any] = {
        name.partition(":")[2]: values if len(values) > 1 else values[0]
        for name, values in request.POST.lists()
        if name.startswith(f"{question}:")
    }
    with refusal_as_message(request):
        _, tool_question = await sync_to_async(find_question)(session, call, question)
        # A browser does not send boxes that are not ticked.
        content = {field.name: "" for field in tool_question.fields} | content
        runtime = await current_runtime()
        await runtime.answer_question(
            session, call=call, question=question, action=action, content=content, user_pk=user.pk
        )
    return redirect("session", uuid=session.uuid)
