"""What the model saw: the record of each call, and its very text."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.archive.model_calls import (
    CallDetail,
    find_call_of_turn,
    find_newest_call,
    list_calls,
    read_skill_names,
    read_summarised,
    require_call,
)
from conversations.archive.window_marks import window_mark_of
from conversations.context.rebuild import rebuild_request
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.events import Malformed
from conversations.domain.jsontext import dump_json
from conversations.domain.manifest import Manifest, read_manifest
from conversations.domain.text import cost_text
from conversations.models import Session
from conversations.rendering.figures import number_text

from .access import get_session_for
from .call_facts import make_sections, summary_of
from .pages import is_fragment
from .panel import render_panel
from .request_text import make_page, make_single

CALLS_PAGE = 15


@login_required
@require_safe
def session_window(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """How full the window is, what it was made of last, and the calls before."""
    found, access = get_session_for(request, uuid)
    mark = window_mark_of(found)
    newest = find_newest_call(found.pk)
    calls = list_calls(found.pk, before=_number(request, "before"), limit=CALLS_PAGE + 1)
    context: dict[str, Any] = {
        "heading": "Window",
        "mark": {
            "tokens": number_text(mark.tokens) if mark.tokens else "",
            "limit": number_text(mark.limit),
            "percent": round(100 * mark.tokens / mark.limit) if mark.limit else 0,
            "cost": cost_text(mark.cost_microusd),
            "left_out": number_text(mark.left_out) if mark.left_out else "",
            "floor": mark.floor,
        },
        "newest": _describe(request, found, newest) if newest else None,
        "calls": [_line(found, line) for line in calls[:CALLS_PAGE]],
        "next": calls[CALLS_PAGE - 1].pk if len(calls) > CALLS_PAGE else None,
    }
    return render_panel(request, found, access, "window", context)


@login_required
@require_safe
def turn_call(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """The call that produced a turn."""
    found, access = get_session_for(request, uuid)
    if not 1 <= number <= found.turn_count:
        raise NotFound("There is no such turn in this session.")
    call = find_call_of_turn(found.pk, number)
    context = {
        "heading": "What the model saw",
        "turn": number,
        "call": _describe(request, found, call) if call else None,
        "address": reverse("turn_call", args=[uuid, number]),
    }
    return render_panel(request, found, access, "call", context)


@login_required
@require_safe
def model_call(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """One call, whether it gave a turn or failed."""
    found, access = get_session_for(request, uuid)
    call = require_call(found.pk, run=run, ordinal=ordinal)
    context = {
        "heading": "What the model saw",
        "turn": call.line.turn,
        "call": _describe(request, found, call),
        "address": _address("model_call", found, call),
    }
    return render_panel(request, found, access, "call", context)


@login_required
@require_safe
def model_call_text(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """The very text, rebuilt and checked: ``from`` pages through the messages, ``part``
    shows one of them alone, ``check`` says only whether it matches."""
    found, access = get_session_for(request, uuid)
    call = require_call(found.pk, run=run, ordinal=ordinal)
    rebuilt = rebuild_request(call.line.pk)
    if request.GET.get("check"):
        return render(request, "panel/call.html#verdict", {"rebuilt": rebuilt})
    part = request.GET.get("part", "")
    page = None
    if rebuilt.request is not None:
        start = _number(request, "from")
        shown = make_single(rebuilt.request, part) if part else None
        page = shown or make_page(rebuilt.request, start=start)
    context = {
        "heading": "The very text",
        "rebuilt": rebuilt,
        "page": page,
        "part": part,
        "turn": call.line.turn,
        "digest": call.request_digest,
        "address": _address("model_call_text", found, call),
        "query": request.GET.urlencode(),
        "call_url": _address("model_call", found, call),
        "json_url": _address("model_call_request", found, call),
    }
    return render_panel(request, found, access, "text", context)


@login_required
@require_safe
def model_call_request(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """The request as JSON, to keep, with whether it is what was sent."""
    found, _ = get_session_for(request, uuid)
    call = require_call(found.pk, run=run, ordinal=ordinal)
    rebuilt = rebuild_request(call.line.pk)
    body = {
        "turn": call.line.turn,
        "digest": call.request_digest,
        "matches": rebuilt.matches,
        "reason": rebuilt.reason,
        "request": asdict(rebuilt.request) if rebuilt.request else None,
    }
    response = HttpResponse(dump_json(body), content_type="application/json; charset=utf-8")
    name = f"request-{call.line.turn or f'{run}-{ordinal}'}.json"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _describe(request: HttpRequest, session: Session, call: CallDetail) -> dict[str, Any]:
    """A call for the page. On a page of its own it is checked at once; the panel asks
    for that when it has been shown."""
    manifest, damage = _read(call)
    sections = make_sections(
        call,
        manifest,
        skills=read_skill_names(session.pk, manifest.skills) if manifest else [],
        summarised=read_summarised(session.pk, manifest.compaction) if manifest else None,
    )
    return {
        "sections": sections,
        "damage": damage,
        "turn": call.line.turn,
        "created_at": call.line.created_at,
        "digest": call.request_digest,
        "of_run": [
            _line(session, line) | {"is_this": line.pk == call.line.pk} for line in call.of_run
        ],
        "url": _address("model_call", session, call),
        "text_url": _address("model_call_text", session, call),
        "rebuilt": None if is_fragment(request) else rebuild_request(call.line.pk),
    }


def _read(call: CallDetail) -> tuple[Manifest | None, str]:
    try:
        return read_manifest(call.manifest), ""
    except Malformed as error:
        return None, str(error)


def _line(session: Session, line: Any) -> dict[str, Any]:
    return {
        "url": reverse("model_call", args=[session.uuid, line.run, line.ordinal]),
        "turn": line.turn,
        "ordinal": line.ordinal + 1,
        "summary": summary_of(line),
        "created_at": line.created_at,
        "is_failed": bool(line.error_code),
    }


def _address(name: str, session: Session, call: CallDetail) -> str:
    return reverse(name, args=[session.uuid, call.line.run, call.line.ordinal])


def _number(request: HttpRequest, name: str) -> int | None:
    """A number of the address; None without it."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Rejected(f"{name} is a number.", code="bad_number")
    return int(text)
