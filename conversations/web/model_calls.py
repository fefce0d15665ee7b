"""What the model saw: the record of each call, and its very text."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from conversations.access import Access, get_session_for
from conversations.agent.window.manifest import Manifest, read_manifest, rebuild_request
from conversations.agent.window.messages import REASONS
from conversations.agent.window.summary import COMPACTION
from conversations.archive import model_calls as archive_calls
from conversations.domain.errors import NotFound
from conversations.domain.events import Malformed
from conversations.domain.keyset import parse_optional_number
from conversations.domain.stream import ModelRequest
from conversations.domain.text import cost_text, dump_json, estimate_tokens, one_line, storable
from conversations.models import ModelCall, Session
from conversations.rendering.rows import STOP_WORDS
from conversations.rendering.source_text import duration_text, number_text

from .pages import is_fragment
from .panel import render_panel

# The text of a model request, a part at a time: a window may have megabytes.

MESSAGES = 20  # messages of one page

SHOWN = 6_000  # characters of one text that a page shows; the rest is one click away

SHOWN_ALONE = 400_000  # the same where it is the only one


def make_page(request: ModelRequest, *, start: int | None = None, part: str = "") -> dict[str, Any]:
    """A page of messages from number ``start`` on; without it the newest ones, since
    what is new stands there. The system prompt and the tools stand above. ``part`` is the
    key of a text that is shown alone, as long as a page can carry."""
    system = "\n\n".join(str(block.get("text", "")) for block in request.system)
    tools = "\n\n".join(dump_json(tool) for tool in request.tools)
    head = {
        "system": ("System prompt", system),
        "tools": (f"Tools ({len(request.tools)})", tools),
        "choices": ("Parameters", dump_json(request.choices) if request.choices else ""),
    }
    head = {key: named for key, named in head.items() if named[1]}
    count = len(request.messages)
    first = max(1, count - MESSAGES + 1) if start is None else max(1, min(start, count))
    last = min(count, first + MESSAGES - 1)
    numbers: Iterable[int] = range(first, last + 1)
    limit = SHOWN
    if part in head:
        head, numbers, limit = {part: head[part]}, (), SHOWN_ALONE
    elif part.isascii() and part.isdigit() and len(part) <= 9 and 1 <= int(part) <= count:
        head, numbers, limit = {}, (int(part),), SHOWN_ALONE
    return {
        "head": [show_text(key, *named, limit=limit) for key, named in head.items()],
        "messages": [
            show_text(str(n), *describe_message(n, request.messages[n - 1]), limit=limit)
            for n in numbers
        ],
        "count": count,
        "first": first,
        "last": last,
        "earlier": max(1, first - MESSAGES) if limit == SHOWN and first > 1 else None,
        "later": last + 1 if limit == SHOWN and last < count else None,
    }


def show_text(key: str, name: str, text: str, *, limit: int) -> dict[str, Any]:
    """``key`` names it in an address, ``left_out`` counts the characters that are not shown."""
    return {
        "key": key,
        "name": name,
        "first_line": one_line(storable(text), limit=80),
        "tokens": estimate_tokens(text),
        "text": storable(text[:limit]),
        "left_out": max(0, len(text) - limit),
    }


def describe_message(number: int, message: dict[str, Any]) -> tuple[str, str]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    role = {"user": "Person", "assistant": "Assistant"}.get(str(message.get("role")), "")
    if role == "Person" and any(block.get("type") == "tool_result" for block in blocks):
        role = "Tool result"
    return f"{number} · {role}", "\n\n".join(map(block_text, blocks))


def block_text(block: dict[str, Any]) -> str:
    """A block as text; whatever is no text, as the JSON that was sent."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "thinking":
        return f"[thinking]\n{block.get('thinking', '')}"
    if kind == "tool_result" and isinstance(block.get("content"), str):
        return f"[tool_result {block.get('tool_use_id', '')}]\n{block['content']}"
    return f"[{kind}]\n{dump_json(block)}"


# What one model call was given and what came of it, in words for its page.

MAX_RANGES = 12  # ranges of turns that are named; a session with many rewinds has more

MAX_FACT_CHARS = 300  # of one thing that a program asked for

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

# A label, and pieces of text, each with the turn that it links to.
type FactText = tuple[str, list[tuple[str, int | None]]]


def fact(label: str, *texts: Any, turn: int | None = None) -> FactText:
    return label, [(str(text), turn) for text in texts]


def make_sections(
    session: Session, call: ModelCall, manifest: Manifest | None
) -> list[dict[str, Any]]:
    """Without a manifest that can be read, what came of the call is left."""
    found = {"Result": list(list_outcome(call, manifest))}
    if manifest is not None:
        found = {
            "Turns": list(list_turns(manifest)),
            "Also sent": list(list_additions(session, manifest)),
            "Shortened": list(list_shortened(manifest)),
            "Size in tokens": list(list_sizes(call, manifest)),
        } | found
    return [{"name": name, "facts": facts} for name, facts in found.items() if facts]


def list_turns(manifest: Manifest) -> Iterator[FactText]:
    ranges: list[tuple[str, int | None]] = [
        (range_text(low, high), low) for low, high in manifest.turns[:MAX_RANGES]
    ]
    more = len(manifest.turns) - MAX_RANGES
    if more > 0:
        ranges.append((f"and {more} more", None))
    yield "Included", ranges or [("none", None)]
    if manifest.head is not None:
        head = f"Turn {number_text(manifest.head)}, whose answer starts further down"
        yield fact("And", head, turn=manifest.head)
    if manifest.floor is not None:
        yield fact("Starts at", f"turn {number_text(manifest.floor)}", turn=manifest.floor)
    if manifest.left_out is not None:
        plural = "" if manifest.left_out == 1 else "s"
        count = f"{number_text(manifest.left_out)} earlier turn{plural}, in the archive"
        yield fact("Omitted", count if manifest.left_out else "nothing")
    if manifest.aside:
        aside = manifest.aside[:MAX_RANGES]
        yield "Left aside, refused before", [(range_text(*one), one[0]) for one in aside]
    if manifest.kind == COMPACTION:
        yield fact("For", "writing a summary of them")
    elif manifest.strategy:
        yield fact("Rule", STRATEGIES.get(manifest.strategy, manifest.strategy))
    if manifest.go_on:
        yield fact("Instruction", "continue where the answer ended")


def range_text(low: int, high: int) -> str:
    return number_text(low) if low == high else f"{number_text(low)}\u2013{number_text(high)}"


def list_additions(session: Session, manifest: Manifest) -> Iterator[FactText]:
    """What was sent beside the turns."""
    state = manifest.state
    if state is not None:
        yield fact("Session state", f"after turn {number_text(state.turn)}", state.digest[:12])
    elif manifest.version > 1 and manifest.kind != COMPACTION:
        yield fact("Session state", "empty")
    if (parent := manifest.parent) is not None:
        yield fact("Earlier session", f"{parent.uuid}, {number_text(parent.turn)} turns")
    if manifest.hint:
        yield fact("Hint", manifest.hint)
    if (summarised := archive_calls.read_summarised(session.pk, manifest.compaction)) is not None:
        yield fact("Summary", f"of turns {range_text(*summarised)}")
    if manifest.skills:
        names = ", ".join(archive_calls.read_skill_names(session.pk, manifest.skills))
        yield fact("Skills", names or f"{len(manifest.skills)}, no longer stored")
    if not manifest.has_tools:
        yield fact("Tools", "none; earlier calls are given as text")
    elif manifest.tools:
        yield fact("Tools", ", ".join(manifest.tools))
    if manifest.reduced:
        yield fact("Shortened or left out to fit", ", ".join(manifest.reduced))
    if manifest.lacks_thinking:
        ranges = ", ".join(range_text(low, high) for low, high in manifest.lacks_thinking)
        yield fact("Left out", f"another model’s thinking in turns {ranges}")
    for reason, count in Counter(manifest.withheld.values()).items():
        plural = "" if count == 1 else "s"
        words = REASONS.get(reason, reason)
        yield fact("Left out", f"{number_text(count)} attachment{plural}: {words}")
    for name, value in manifest.choices.items():
        text = one_line(storable(dump_json(value)), limit=MAX_FACT_CHARS)
        yield fact(f"Parameter: {name}", text)


def list_shortened(manifest: Manifest) -> Iterator[FactText]:
    for one in manifest.shortened:
        sizes = f"{number_text(one.before)} → {number_text(one.after)} tokens"
        yield fact(f"Turn {number_text(one.turn)}", sizes, turn=one.turn)


def list_sizes(call: ModelCall, manifest: Manifest) -> Iterator[FactText]:
    estimated = dict(manifest.estimated)
    total = estimated.pop("total", None)
    for name, tokens in estimated.items():
        if tokens:
            yield fact(PARTS.get(name, name), f"about {number_text(tokens)}")
    if total is not None:
        yield fact("Total", f"about {number_text(total)}")
    if call.prompt_tokens is not None:
        off = []
        if total and call.prompt_tokens:
            percent = round(100 * (1 - call.prompt_tokens / total))
            way = "less" if percent > 0 else "more"
            off = [f"{abs(percent)} % {way} than estimated" if percent else "as estimated"]
        yield fact("Provider’s count", number_text(call.prompt_tokens), *off)
    if manifest.ratio is not None:
        yield fact("Correction", f"estimates times {manifest.ratio:.2f}")
    if manifest.limit is not None:
        kept = (
            f", {number_text(manifest.reserve)} reserved for the answer" if manifest.reserve else ""
        )
        yield fact("Limit", f"{number_text(manifest.limit)}{kept}")
    if manifest.budget is not None:
        yield fact("Budget", number_text(manifest.budget))


def list_outcome(call: ModelCall, manifest: Manifest | None) -> Iterator[FactText]:
    yield fact("Model", call.model)
    if call.error_code:
        yield fact("Failed", call.error_code.replace("_", " "))
    elif call.stop_reason:
        reason = call.stop_reason
        yield fact("Ended", STOP_WORDS.get(reason, reason.replace("_", " ")))
    if manifest is not None and manifest.max_tokens is not None:
        yield fact("Output limit", f"{number_text(manifest.max_tokens)} tokens of answer")
    if call.prompt_tokens is not None:
        yield fact("Input", f"{number_text(call.prompt_tokens)} tokens")
    for label, tokens in (
        ("Read from cache", call.cache_read_tokens),
        ("Written to cache", call.cache_write_tokens),
    ):
        if tokens is not None:
            share = [f"{100 * tokens // call.prompt_tokens} %"] if call.prompt_tokens else []
            yield fact(label, f"{number_text(tokens)} tokens", *share)
    if call.output_tokens is not None:
        yield fact("Output", f"{number_text(call.output_tokens)} tokens")
    if cost := cost_text(call.cost_microusd):
        yield fact("Cost", f"${cost}", "list price")
    if call.first_token_ms is not None:
        yield fact("First token after", duration_text(call.first_token_ms))
    if call.duration_ms is not None:
        yield fact("Duration", duration_text(call.duration_ms))
    if manifest is not None and manifest.breakpoints:
        yield fact("Cache breakpoints", ", ".join(map(place_text, manifest.breakpoints)))


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
    mark = archive_calls.window_mark_of(found)
    newest = archive_calls.find_newest_call(found.pk)
    before = parse_optional_number(request.GET.get("before"))
    calls = archive_calls.list_calls(found.pk, before=before, limit=CALLS_PAGE + 1)
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
        raise NotFound("This turn does not exist in this session.")
    call = archive_calls.find_newest_call(found.pk, turn=number)
    address = reverse("turn_call", args=[uuid, number])
    return _show_call(request, found, access, call, turn=number, address=address)


@login_required
@require_safe
def model_call(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """One call, whether it gave a turn or failed."""
    found, access = get_session_for(request, uuid)
    call = archive_calls.require_call(found.pk, run=run, ordinal=ordinal)
    address = _address("model_call", found, call)
    return _show_call(request, found, access, call, turn=call.turn_number, address=address)


def _show_call(
    request: HttpRequest, found: Session, access: Access, call: ModelCall | None, **where: Any
) -> HttpResponse:
    described = _describe(request, found, call) if call else None
    context = {"heading": "Model request", "call": described, **where}
    return render_panel(request, found, access, "call", context)


@login_required
@require_safe
def model_call_text(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """The very text, rebuilt and checked: ``from`` pages through the messages, ``part``
    shows one of them alone, ``check`` says only whether it matches."""
    found, access = get_session_for(request, uuid)
    call = archive_calls.require_call(found.pk, run=run, ordinal=ordinal)
    rebuilt = rebuild_request(call.pk)
    if request.GET.get("check"):
        return render(request, "panel/call.html#verdict", {"rebuilt": rebuilt})
    part = request.GET.get("part", "")
    start = parse_optional_number(request.GET.get("from"))
    context = {
        "heading": "Full request",
        "rebuilt": rebuilt,
        "page": rebuilt.request and make_page(rebuilt.request, start=start, part=part),
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
    call = archive_calls.require_call(found.pk, run=run, ordinal=ordinal)
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
    # A call for the page. On a page of its own it is checked at once; the panel asks for that when
    # it has been shown.
    manifest, damage = None, ""
    try:
        manifest = read_manifest(call.manifest)
    except Malformed as error:
        damage = str(error)
    return {
        "sections": make_sections(session, call, manifest),
        "damage": damage,
        "turn": call.turn_number,
        "created_at": call.created_at,
        "digest": call.request_digest,
        "of_run": [
            _line(session, one) | {"is_this": one.pk == call.pk}
            for one in archive_calls.list_calls_of_run(call.run_id)
        ],
        "url": _address("model_call", session, call),
        "text_url": _address("model_call_text", session, call),
        "rebuilt": None if is_fragment(request) else rebuild_request(call.pk),
    }


def _line(session: Session, call: ModelCall) -> dict[str, Any]:
    return {
        "url": _address("model_call", session, call),
        "turn": call.turn_number,
        "ordinal": call.ordinal + 1,
        "summary": summary_of(call),
        "created_at": call.created_at,
        "is_failed": bool(call.error_code),
    }


def _address(name: str, session: Session, call: ModelCall) -> str:
    return reverse(name, args=[session.uuid, call.run.uuid, call.ordinal])
