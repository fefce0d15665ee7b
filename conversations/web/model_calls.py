"""What the model saw: the record of each call, and its very text."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.access import get_session_for
from conversations.agent.window.manifest import COMPACTION, Manifest, read_manifest, rebuild_request
from conversations.archive.model_calls import (
    find_newest_call,
    list_calls,
    list_calls_of_run,
    read_skill_names,
    read_summarised,
    require_call,
    window_mark_of,
)
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.events import Malformed
from conversations.domain.text import cost_text, dump_json, one_line, storable
from conversations.models import ModelCall, Session
from conversations.rendering.rows import STOP_WORDS
from conversations.rendering.source_text import duration_text, number_text

from .pages import is_fragment
from .panel import render_panel
from .request_text import make_page, make_single

# What one model call was given and what came of it, in words for its page.


MAX_RANGES = 12
"""Ranges of turns that are named; a session with many rewinds has more."""

MAX_FACT_CHARS = 300
"""Of one thing that a program asked for."""

STRATEGIES = {
    "archive": "Omitted turns can be looked up",
    "sliding_window": "Newest turns, with a note of how many are omitted",
    "summarize": "A summary replaces omitted turns",
}
PARTS = {
    "system": "System prompt",
    "tools": "Tools",
    "history": "History",
    "tail": "State and hint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFactText:
    """A piece of a fact; ``turn`` where it links to one."""

    text: str
    turn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    label: str
    parts: list[CallFactText]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    facts: list[Fact]


def make_sections(
    call: ModelCall,
    manifest: Manifest | None,
    *,
    skills: list[str],
    summarised: tuple[int, int] | None,
) -> list[Section]:
    """Without a manifest that can be read, what came of the call is left."""
    sections = []
    if manifest is not None:
        sections = [
            Section(name="Turns", facts=list(_turns(manifest))),
            Section(name="Also sent", facts=list(_beside(manifest, skills, summarised))),
            Section(name="Shortened", facts=list(_shortened(manifest))),
            Section(name="Size in tokens", facts=list(_size(manifest, call))),
        ]
    sections.append(Section(name="Result", facts=list(_outcome(manifest, call))))
    return [section for section in sections if section.facts]


def _fact(label: str, *texts: Any) -> Fact:
    return Fact(label=label, parts=[CallFactText(text=str(text)) for text in texts])


def _turns(manifest: Manifest) -> Iterator[Fact]:
    ranges = [
        CallFactText(text=range_text(low, high), turn=low)
        for low, high in manifest.turns[:MAX_RANGES]
    ]
    more = len(manifest.turns) - MAX_RANGES
    if more > 0:
        ranges.append(CallFactText(text=f"and {more} more"))
    yield Fact(label="Included", parts=ranges or [CallFactText(text="none")])
    if manifest.head is not None:
        head = CallFactText(
            text=f"Turn {number_text(manifest.head)}, whose answer begins further down"
        )
        yield Fact(label="And", parts=[CallFactText(text=head.text, turn=manifest.head)])
    if manifest.floor is not None:
        floor = CallFactText(text=f"turn {number_text(manifest.floor)}", turn=manifest.floor)
        yield Fact(label="Starts at", parts=[floor])
    if manifest.left_out is not None:
        yield _fact("Omitted", _left_out(manifest.left_out))
    if manifest.kind == COMPACTION:
        yield _fact("For", "writing a summary of them")
    elif manifest.strategy:
        yield _fact("Rule", STRATEGIES.get(manifest.strategy, manifest.strategy))
    if manifest.go_on:
        yield _fact("Asked to", "continue where the answer ended")


def _left_out(count: int) -> str:
    if count == 0:
        return "nothing"
    return f"{number_text(count)} earlier turn{'' if count == 1 else 's'}, in the archive"


def range_text(low: int, high: int) -> str:
    return number_text(low) if low == high else f"{number_text(low)}\u2013{number_text(high)}"


def _beside(
    manifest: Manifest, skills: list[str], summarised: tuple[int, int] | None
) -> Iterator[Fact]:
    state = manifest.state
    if state is not None:
        yield _fact("Session state", f"after turn {number_text(state.turn)}", state.digest[:12])
    elif manifest.version > 1 and manifest.kind != COMPACTION:
        yield _fact("Session state", "empty")
    if manifest.hint:
        yield _fact("Hint", manifest.hint)
    if summarised is not None:
        yield _fact("Summary", f"of turns {range_text(*summarised)}")
    if manifest.skills:
        yield _fact("Skills", ", ".join(skills) or f"{len(manifest.skills)}, no longer kept")
    if manifest.tools:
        yield _fact("Tools", ", ".join(manifest.tools))
    for name, value in manifest.choices.items():
        yield _fact(
            f"Asked for: {name}", one_line(storable(dump_json(value)), limit=MAX_FACT_CHARS)
        )


def _shortened(manifest: Manifest) -> Iterator[Fact]:
    for one in manifest.shortened:
        sizes = f"{number_text(one.before)} → {number_text(one.after)} tokens"
        label = f"Turn {number_text(one.turn)}"
        yield Fact(label=label, parts=[CallFactText(text=sizes, turn=one.turn)])


def _size(manifest: Manifest, call: ModelCall) -> Iterator[Fact]:
    estimated = dict(manifest.estimated)
    total = estimated.pop("total", None)
    for name, tokens in estimated.items():
        if tokens:
            yield _fact(PARTS.get(name, name), f"about {number_text(tokens)}")
    if total is not None:
        yield _fact("Total", f"about {number_text(total)}")
    if call.prompt_tokens is not None:
        yield _fact("Provider’s count", number_text(call.prompt_tokens), *_error(total, call))
    if manifest.ratio is not None:
        yield _fact("Correction", f"estimates times {manifest.ratio:.2f}")
    if manifest.limit is not None:
        kept = f", {number_text(manifest.reserve)} kept for the answer" if manifest.reserve else ""
        yield _fact("Limit", f"{number_text(manifest.limit)}{kept}")
    if manifest.budget is not None:
        yield _fact("Budget", number_text(manifest.budget))


def _error(total: int | None, call: ModelCall) -> list[str]:
    """How far the estimate was off."""
    if not total or not call.prompt_tokens:
        return []
    percent = round(100 * (1 - call.prompt_tokens / total))
    if percent == 0:
        return ["as estimated"]
    return [f"{abs(percent)} % {'less' if percent > 0 else 'more'} than estimated"]


def _outcome(manifest: Manifest | None, call: ModelCall) -> Iterator[Fact]:
    yield _fact("Model", call.model)
    if call.error_code:
        yield _fact("Failed", call.error_code.replace("_", " "))
    elif call.stop_reason:
        reason = call.stop_reason
        yield _fact("Ended", STOP_WORDS.get(reason, reason.replace("_", " ")))
    if manifest is not None and manifest.max_tokens is not None:
        yield _fact("Output limit", f"{number_text(manifest.max_tokens)} tokens of answer")
    yield from _usage(call)
    if call.first_token_ms is not None:
        yield _fact("First token after", duration_text(call.first_token_ms))
    if call.duration_ms is not None:
        yield _fact("Duration", duration_text(call.duration_ms))
    if manifest is not None and manifest.breakpoints:
        yield _fact("Cache breakpoints", ", ".join(map(place_text, manifest.breakpoints)))


def _usage(call: ModelCall) -> Iterator[Fact]:
    if call.prompt_tokens is not None:
        yield _fact("Input", f"{number_text(call.prompt_tokens)} tokens")
    for label, tokens in (
        ("Read from cache", call.cache_read_tokens),
        ("Written to cache", call.cache_write_tokens),
    ):
        if tokens is not None:
            yield _fact(label, f"{number_text(tokens)} tokens", *_share(tokens, call))
    if call.output_tokens is not None:
        yield _fact("Output", f"{number_text(call.output_tokens)} tokens")
    if cost := cost_text(call.cost_microusd):
        yield _fact("Cost", f"${cost}", "list price")


def _share(tokens: int, call: ModelCall) -> list[str]:
    return [f"{100 * tokens // call.prompt_tokens} %"] if call.prompt_tokens else []


def place_text(place: tuple[str, int | None]) -> str:
    """Where a breakpoint is: behind the tools, the system prompt or a message."""
    name, number = place
    if name == "messages" and number is not None:
        return f"after message {number + 1}"
    return f"after the {'system prompt' if name == 'system' else name}"


def summary_of(call: ModelCall) -> str:
    """One line for a list."""
    if call.error_code:
        return f"failed: {call.error_code.replace('_', ' ')}"
    parts = []
    if call.prompt_tokens is not None:
        parts.append(f"{number_text(call.prompt_tokens)} tokens in")
        if call.prompt_tokens and call.cache_read_tokens:
            parts.append(f"{100 * call.cache_read_tokens // call.prompt_tokens} % cached")
    if call.output_tokens is not None:
        parts.append(f"{number_text(call.output_tokens)} out")
    if cost := cost_text(call.cost_microusd):
        parts.append(f"${cost}")
    return " · ".join(parts) or "no figures"


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
        "heading": "Context",
        "mark": {
            "tokens": number_text(mark.tokens) if mark.tokens else "",
            "limit": number_text(mark.limit),
            "percent": round(100 * mark.tokens / mark.limit) if mark.limit else 0,
            "cost": cost_text(mark.cost_microusd),
            "left_out": number_text(mark.left_out) if mark.left_out else "",
            "floor": mark.floor,
        },
        "newest": _describe(request, found, newest) if newest else None,
        "calls": [_line(found, call) for call in calls[:CALLS_PAGE]],
        "next": calls[CALLS_PAGE - 1].pk if len(calls) > CALLS_PAGE else None,
    }
    return render_panel(request, found, access, "window", context)


@login_required
@require_safe
def turn_call(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """The call that produced a turn."""
    found, access = get_session_for(request, uuid)
    if not 1 <= number <= found.turn_count:
        raise NotFound("This session has no such turn.")
    call = find_newest_call(found.pk, turn=number)
    context = {
        "heading": "Model request",
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
        "heading": "Model request",
        "turn": call.turn_number,
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
    rebuilt = rebuild_request(call.pk)
    if request.GET.get("check"):
        return render(request, "panel/call.html#verdict", {"rebuilt": rebuilt})
    part = request.GET.get("part", "")
    page = None
    if rebuilt.request is not None:
        start = _number(request, "from")
        shown = make_single(rebuilt.request, part) if part else None
        page = shown or make_page(rebuilt.request, start=start)
    context = {
        "heading": "Full request",
        "rebuilt": rebuilt,
        "page": page,
        "part": part,
        "turn": call.turn_number,
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
    rebuilt = rebuild_request(call.pk)
    body = {
        "turn": call.turn_number,
        "digest": call.request_digest,
        "matches": rebuilt.matches,
        "reason": rebuilt.reason,
        "request": asdict(rebuilt.request) if rebuilt.request else None,
    }
    response = HttpResponse(dump_json(body), content_type="application/json; charset=utf-8")
    name = f"request-{call.turn_number or f'{run}-{ordinal}'}.json"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _describe(request: HttpRequest, session: Session, call: ModelCall) -> dict[str, Any]:
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
        "turn": call.turn_number,
        "created_at": call.created_at,
        "digest": call.request_digest,
        "of_run": [
            _line(session, one) | {"is_this": one.pk == call.pk}
            for one in list_calls_of_run(call.run_id)
        ],
        "url": _address("model_call", session, call),
        "text_url": _address("model_call_text", session, call),
        "rebuilt": None if is_fragment(request) else rebuild_request(call.pk),
    }


def _read(call: ModelCall) -> tuple[Manifest | None, str]:
    try:
        return read_manifest(call.manifest), ""
    except Malformed as error:
        return None, str(error)


def _line(session: Session, call: ModelCall) -> dict[str, Any]:
    return {
        "url": reverse("model_call", args=[session.uuid, call.run.uuid, call.ordinal]),
        "turn": call.turn_number,
        "ordinal": call.ordinal + 1,
        "summary": summary_of(call),
        "created_at": call.created_at,
        "is_failed": bool(call.error_code),
    }


def _address(name: str, session: Session, call: ModelCall) -> str:
    return reverse(name, args=[session.uuid, call.run.uuid, call.ordinal])


def _number(request: HttpRequest, name: str) -> int | None:
    """A number of the address; None without it."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Rejected(f"{name} must be a number.", code="bad_number")
    return int(text)
