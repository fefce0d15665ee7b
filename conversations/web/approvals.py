"""Answering a call that waits, and ending one, by plain forms."""

from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from conversations.archive.rights import WRITE
from conversations.archive.tool_calls import require_decidable
from conversations.domain.errors import Rejected
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.runtime.current import current_runtime

from .access import get_session_for, sign_in_first, visit_of
from .forms import check_reason


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
