"""The record of each model call, and the exact text of its request."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy, ngettext, pgettext
from django.views.decorators.http import require_safe

from conversations.access import Access, get_session_for, list_kept_for, record_reading
from conversations.agent.window.manifest import (
    Manifest,
    RebuiltRequest,
    read_manifest,
    rebuild_request,
)
from conversations.agent.window.messages import REASONS
from conversations.agent.window.summary import COMPACTION
from conversations.archive import model_calls as archive_calls
from conversations.domain.errors import NotFound
from conversations.domain.events import MalformedPayload
from conversations.domain.keyset import parse_optional_number
from conversations.domain.messages import as_message, say
from conversations.domain.stream import ModelRequest
from conversations.domain.text import (
    cost_text,
    dump_json,
    estimate_tokens,
    number_text,
    one_line,
    storable,
)
from conversations.models import ModelCall, Session
from conversations.providers.provider_errors import MESSAGES
from conversations.rendering.messages import translate
from conversations.rendering.rows import STOP_WORDS
from conversations.rendering.source_text import duration_text

from .pages import is_fragment
from .panel import render_panel

# The text of a model request in pages, because a window may have megabytes.

PAGE_MESSAGES = 20

MAX_SHOWN_CHARS = 6_000  # of one text, with a link to the rest

MAX_SHOWN_ALONE_CHARS = 400_000  # of a text that is shown alone


def make_page(request: ModelRequest, *, start: int | None = None, part: str = "") -> dict[str, Any]:
    """Return a page of messages from number ``start`` on, or the newest ones if it is None.

    The newest ones are the default because they contain what is new. The system prompt and the
    tools stand above the messages. ``part`` is the key of a text that is shown alone, up to the
    size of a page.
    """
    system = "\n\n".join(str(block.get("text", "")) for block in request.system)
    tools = "\n\n".join(dump_json(tool) for tool in request.tools)
    head = {
        "system": (gettext("System prompt"), system),
        "tools": (gettext("Tools (%(count)s)") % {"count": len(request.tools)}, tools),
        "choices": (gettext("Parameters"), dump_json(request.choices) if request.choices else ""),
    }
    head = {key: named for key, named in head.items() if named[1]}
    count = len(request.messages)
    first = max(1, count - PAGE_MESSAGES + 1) if start is None else max(1, min(start, count))
    last = min(count, first + PAGE_MESSAGES - 1)
    numbers: Iterable[int] = range(first, last + 1)
    limit = MAX_SHOWN_CHARS
    if part in head:
        head, numbers, limit = {part: head[part]}, (), MAX_SHOWN_ALONE_CHARS
    elif part.isascii() and part.isdigit() and len(part) <= 9 and 1 <= int(part) <= count:
        head, numbers, limit = {}, (int(part),), MAX_SHOWN_ALONE_CHARS
    return {
        "head": [show_text(key, *named, limit=limit) for key, named in head.items()],
        "messages": [
            show_text(str(n), *describe_message(n, request.messages[n - 1]), limit=limit)
            for n in numbers
        ],
        "count": count,
        "first": first,
        "last": last,
        "earlier": max(1, first - PAGE_MESSAGES)
        if limit == MAX_SHOWN_CHARS and first > 1
        else None,
        "later": last + 1 if limit == MAX_SHOWN_CHARS and last < count else None,
    }


def show_text(key: str, name: str, text: str, *, limit: int) -> dict[str, Any]:
    """Return the template data of a text.

    ``key`` names the text in a URL. ``left_out`` counts the characters that are not shown.
    """
    left_out = len(text) - limit
    return {
        "key": key,
        "name": name,
        "first_line": one_line(storable(text), limit=80),
        "tokens": number_text(estimate_tokens(text)),
        "text": storable(text[:limit]),
        "left_out": number_text(left_out) if left_out > 0 else "",
    }


def describe_message(number: int, message: dict[str, Any]) -> tuple[str, str]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    role = message.get("role")
    if role == "user" and any(block.get("type") == "tool_result" for block in blocks):
        speaker = gettext("Tool result")
    else:
        speaker = {"user": gettext("Person"), "assistant": gettext("Assistant")}.get(str(role), "")
    return f"{number} · {speaker}", "\n\n".join(map(block_text, blocks))


def block_text(block: dict[str, Any]) -> str:
    """Return a block as text. Blocks without text are returned as the JSON that was sent."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "thinking":
        return f"[thinking]\n{block.get('thinking', '')}"
    if kind == "tool_result" and isinstance(block.get("content"), str):
        return f"[tool_result {block.get('tool_use_id', '')}]\n{block['content']}"
    return f"[{kind}]\n{dump_json(block)}"


# The facts about a model call, in words for its page.

MAX_RANGES = 12  # ranges of turns that are listed; a session with many rewinds has more

MAX_FACT_CHARS = 300  # of one parameter that a program has set

STRATEGIES = {
    "archive": gettext_lazy("Omitted turns can be looked up"),
    "sliding_window": gettext_lazy("Newest turns, with a note of how many are omitted"),
    "summarize": gettext_lazy("A summary replaces omitted turns"),
}
PARTS = {
    "system": gettext_lazy("System prompt"),
    "tools": gettext_lazy("Tools"),
    "history": gettext_lazy("History"),
    "tail": gettext_lazy("State and hint"),
}

# The ways a call can end: stop reasons and error codes.
OUTCOMES = {
    **STOP_WORDS,
    **MESSAGES,
    "end_turn": say("answer complete"),
    "stop_sequence": say("at a stop sequence"),
    "tool_use": say("with tool calls"),
}

# A label, and pieces of text, each with a turn that it links to, if any.
type FactText = tuple[str, list[tuple[str, int | None]]]


def fact(label: str, *texts: Any, turn: int | None = None) -> FactText:
    return label, [(str(text), turn) for text in texts]


def make_sections(
    session: Session, call: ModelCall, manifest: Manifest | None
) -> list[dict[str, Any]]:
    """Return the sections of the page. Without a readable manifest, there is only the result."""
    sections = [(gettext("Result"), list(list_outcome(call, manifest)))]
    if manifest is not None:
        sections = [
            (gettext("Turns"), list(list_turns(manifest))),
            (gettext("Also sent"), list(list_additions(session, manifest))),
            (gettext("Shortened"), list(list_shortened(manifest))),
            (gettext("Size in tokens"), list(list_sizes(call, manifest))),
            *sections,
        ]
    return [{"name": name, "facts": facts} for name, facts in sections if facts]


def list_turns(manifest: Manifest) -> Iterator[FactText]:
    ranges: list[tuple[str, int | None]] = [
        (range_text(low, high), low) for low, high in manifest.turns[:MAX_RANGES]
    ]
    unlisted = len(manifest.turns) - MAX_RANGES
    if unlisted > 0:
        ranges.append((gettext("and %(count)s more") % {"count": unlisted}, None))
    yield gettext("Included"), ranges or [(pgettext("turns", "none"), None)]
    if manifest.head is not None:
        head = gettext("Turn %(number)s, whose answer starts further down")
        head %= {"number": number_text(manifest.head)}
        yield fact(gettext("And"), head, turn=manifest.head)
    if manifest.floor is not None:
        floor = gettext("turn %(number)s") % {"number": number_text(manifest.floor)}
        yield fact(gettext("Starts at"), floor, turn=manifest.floor)
    if manifest.left_out is not None:
        count = ngettext(
            "%(count)s earlier turn, in the archive",
            "%(count)s earlier turns, in the archive",
            manifest.left_out,
        ) % {"count": number_text(manifest.left_out)}
        yield fact(gettext("Omitted"), count if manifest.left_out else gettext("nothing"))
    if manifest.aside:
        aside = manifest.aside[:MAX_RANGES]
        yield gettext("Excluded after a refusal"), [(range_text(*one), one[0]) for one in aside]
    if manifest.kind == COMPACTION:
        yield fact(gettext("Purpose"), gettext("summarizing these turns"))
    elif manifest.strategy:
        yield fact(gettext("Rule"), STRATEGIES.get(manifest.strategy, manifest.strategy))
    if manifest.go_on:
        yield fact(gettext("Instruction"), gettext("continue where the answer ended"))


def range_text(low: int, high: int) -> str:
    return number_text(low) if low == high else f"{number_text(low)}\u2013{number_text(high)}"


def list_additions(session: Session, manifest: Manifest) -> Iterator[FactText]:
    """Yield what was sent in addition to the turns."""
    state = manifest.state
    if state is not None:
        text = gettext("after turn %(number)s") % {"number": number_text(state.turn)}
        yield fact(gettext("Session state"), text, state.digest[:12])
    elif manifest.kind != COMPACTION:
        yield fact(gettext("Session state"), gettext("empty"))
    if (parent := manifest.parent) is not None:
        text = ngettext("%(session)s, %(count)s turns", "%(session)s, %(count)s turns", parent.turn)
        text %= {"session": parent.uuid, "count": number_text(parent.turn)}
        yield fact(gettext("Earlier session"), text)
    if manifest.hint:
        yield fact(gettext("Hint"), manifest.hint)
    if (summarised := archive_calls.read_summarised(session.pk, manifest.compaction)) is not None:
        turns = gettext("of turns %(range)s") % {"range": range_text(*summarised)}
        yield fact(gettext("Summary"), turns)
    if manifest.skills:
        names = ", ".join(archive_calls.read_skill_names(session.pk, manifest.skills))
        missing = gettext("%(count)s, no longer stored") % {"count": len(manifest.skills)}
        yield fact(gettext("Skills"), names or missing)
    if not manifest.has_tools:
        yield fact(gettext("Tools"), gettext("none; earlier calls are given as text"))
    elif manifest.tools:
        yield fact(gettext("Tools"), ", ".join(manifest.tools))
    if manifest.reduced:
        yield fact(
            gettext("Shortened or left out to fit"), ", ".join(map(reduced_text, manifest.reduced))
        )
    if manifest.lacks_thinking:
        text = ngettext(
            "another model’s thinking in turn %(ranges)s",
            "another model’s thinking in turns %(ranges)s",
            sum(high - low + 1 for low, high in manifest.lacks_thinking),
        )
        ranges = ", ".join(range_text(low, high) for low, high in manifest.lacks_thinking)
        yield fact(gettext("Left out"), text % {"ranges": ranges})
    for reason, count in Counter(manifest.withheld.values()).items():
        text = ngettext(
            "%(count)s attachment: %(reason)s", "%(count)s attachments: %(reason)s", count
        )
        reason_text = translate(REASONS.get(reason, reason))
        yield fact(gettext("Left out"), text % {"count": number_text(count), "reason": reason_text})
    for name, value in manifest.choices.items():
        text = one_line(storable(dump_json(value)), limit=MAX_FACT_CHARS)
        yield fact(gettext("Parameter: %(name)s") % {"name": name}, text)


def reduced_text(part: str) -> str:
    """Translate a part of the manifest, which is English and may name a tool or a skill."""
    kind, _, name = part.partition(" ")
    if kind == "tool":
        return gettext("tool %(name)s") % {"name": name}
    if kind == "skill":
        return gettext("skill %(name)s") % {"name": name}
    return translate(as_message(part))


def list_shortened(manifest: Manifest) -> Iterator[FactText]:
    for shortened in manifest.shortened:
        sizes = gettext("%(before)s → %(after)s tokens")
        sizes %= {"before": number_text(shortened.before), "after": number_text(shortened.after)}
        turn = gettext("Turn %(number)s") % {"number": number_text(shortened.turn)}
        yield fact(turn, sizes, turn=shortened.turn)


def list_sizes(call: ModelCall, manifest: Manifest) -> Iterator[FactText]:
    estimated = dict(manifest.estimated)
    total = estimated.pop("total", None)
    for name, tokens in estimated.items():
        if tokens:
            yield fact(str(PARTS.get(name, name)), about_text(tokens))
    if total is not None:
        yield fact(gettext("Total"), about_text(total))
    if call.prompt_tokens is not None:
        off = []
        if total and call.prompt_tokens:
            percent = round(100 * (1 - call.prompt_tokens / total))
            text = gettext("as estimated")
            if percent > 0:
                text = gettext("%(percent)s %% less than estimated") % {"percent": percent}
            elif percent < 0:
                text = gettext("%(percent)s %% more than estimated") % {"percent": -percent}
            off = [text]
        yield fact(gettext("Provider’s count"), number_text(call.prompt_tokens), *off)
    if manifest.ratio is not None:
        text = gettext("estimates times %(ratio)s") % {"ratio": f"{manifest.ratio:.2f}"}
        yield fact(gettext("Correction"), text)
    if manifest.limit is not None:
        text = number_text(manifest.limit)
        if manifest.reserve:
            text = gettext("%(limit)s, %(count)s reserved for the answer") % {
                "limit": text,
                "count": number_text(manifest.reserve),
            }
        yield fact(gettext("Limit"), text)
    if manifest.budget is not None:
        yield fact(gettext("Budget"), number_text(manifest.budget))


def about_text(tokens: int) -> str:
    return gettext("about %(count)s") % {"count": number_text(tokens)}


def tokens_text(tokens: int) -> str:
    text = ngettext("%(count)s tokens", "%(count)s tokens", tokens)
    return text % {"count": number_text(tokens)}


def list_outcome(call: ModelCall, manifest: Manifest | None) -> Iterator[FactText]:
    yield fact(gettext("Model"), call.model)
    if call.is_failed:
        yield fact(gettext("Failed"), outcome_text(call.error_code))
    elif reason := call.stop_reason or call.error_code:
        yield fact(gettext("Ended"), outcome_text(reason))
    if manifest is not None and manifest.max_tokens is not None:
        text = gettext("%(count)s tokens per answer") % {"count": number_text(manifest.max_tokens)}
        yield fact(gettext("Output limit"), text)
    if call.prompt_tokens is not None:
        yield fact(gettext("Input"), tokens_text(call.prompt_tokens))
    for label, tokens in (
        (gettext("Read from cache"), call.cache_read_tokens),
        (gettext("Written to cache"), call.cache_write_tokens),
    ):
        if tokens is not None:
            share = [f"{100 * tokens // call.prompt_tokens} %"] if call.prompt_tokens else []
            yield fact(label, tokens_text(tokens), *share)
    if call.output_tokens is not None:
        yield fact(gettext("Output"), tokens_text(call.output_tokens))
    if cost := cost_text(call.cost_microusd):
        yield fact(gettext("Cost"), f"${cost}", gettext("list price"))
    if call.first_token_ms is not None:
        yield fact(gettext("First token after"), duration_text(call.first_token_ms))
    if call.duration_ms is not None:
        yield fact(gettext("Duration"), duration_text(call.duration_ms))
    if manifest is not None and manifest.breakpoints:
        places = ", ".join(map(breakpoint_text, manifest.breakpoints))
        yield fact(gettext("Cache breakpoints"), places)


def breakpoint_text(position: tuple[str, int | None]) -> str:
    """Return where a cache breakpoint is: after the tools, the system prompt or a message."""
    name, number = position
    if name == "messages" and number is not None:
        return gettext("after message %(number)s") % {"number": number + 1}
    if name == "system":
        return gettext("after the system prompt")
    return gettext("after the %(part)s") % {"part": name}


def outcome_text(code: str) -> str:
    return translate(OUTCOMES.get(code, code.replace("_", " ")))


def summary_of(call: ModelCall) -> str:
    """Return one line about the call for a list."""
    if call.is_failed:
        return gettext("failed: %(reason)s") % {"reason": outcome_text(call.error_code)}
    parts = [gettext("stopped")] if call.error_code else []
    if call.prompt_tokens is not None:
        parts.append(gettext("%(count)s tokens in") % {"count": number_text(call.prompt_tokens)})
        if call.prompt_tokens and call.cache_read_tokens:
            share = 100 * call.cache_read_tokens // call.prompt_tokens
            parts.append(gettext("%(percent)s %% cached") % {"percent": share})
    if call.output_tokens is not None:
        parts.append(gettext("%(count)s out") % {"count": number_text(call.output_tokens)})
    if cost := cost_text(call.cost_microusd):
        parts.append(f"${cost}")
    return " · ".join(parts) or gettext("no figures")


PAGE_CALLS = 15


@login_required
@require_safe
def session_window(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show how full the window is, the last model call and the calls before it."""
    session, access = get_session_for(request, uuid)
    mark = archive_calls.window_mark_of(session)
    newest = archive_calls.find_newest_call(session.pk)
    before = parse_optional_number(request.GET.get("before"))
    calls = archive_calls.list_calls(session.pk, before=before, limit=PAGE_CALLS + 1)
    context: dict[str, Any] = {
        "heading": gettext("Context"),
        "mark": {
            "tokens": number_text(mark.tokens) if mark.tokens else "",
            "limit": number_text(mark.limit),
            "percent": round(100 * mark.tokens / mark.limit) if mark.limit else 0,
            "cost": cost_text(mark.cost_microusd),
            "left_out": number_text(mark.left_out) if mark.left_out else "",
            "floor": mark.floor,
        },
        "newest": _describe(request, session, newest) if newest else None,
        "calls": [_line(session, call) for call in calls[:PAGE_CALLS]],
        "next": calls[PAGE_CALLS - 1].pk if len(calls) > PAGE_CALLS else None,
    }
    return render_panel(request, session, access, "window", context)


@login_required
@require_safe
def turn_call(request: HttpRequest, uuid: UUID, number: int) -> HttpResponse:
    """Show the model call that produced a turn."""
    session, access = get_session_for(request, uuid)
    if not 1 <= number <= session.turn_count:
        raise NotFound("This turn does not exist in this session.")
    call = archive_calls.find_newest_call(session.pk, turn=number)
    address = reverse("turn_call", args=[uuid, number])
    return _show_call(request, session, access, call, turn=number, address=address)


@login_required
@require_safe
def model_call(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """Show one model call, whether it produced a turn or failed."""
    session, access = get_session_for(request, uuid)
    call = archive_calls.require_call(session.pk, run=run, ordinal=ordinal)
    address = _address("model_call", session, call)
    return _show_call(request, session, access, call, turn=call.turn_number, address=address)


def _show_call(
    request: HttpRequest, session: Session, access: Access, call: ModelCall | None, **where: Any
) -> HttpResponse:
    described = _describe(request, session, call) if call else None
    context = {"heading": gettext("Model request"), "call": described, **where}
    return render_panel(request, session, access, "call", context)


@login_required
@require_safe
def model_call_text(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """Show the exact text of a request, rebuilt and checked.

    ``from`` pages through the messages, ``part`` shows one of them alone, and ``check`` shows only
    whether the text matches the digest.
    """
    session, access = get_session_for(request, uuid)
    call = archive_calls.require_call(session.pk, run=run, ordinal=ordinal)
    rebuilt = _rebuild(request, session, call)
    if request.GET.get("check"):
        return render(request, "panel/call.html#verdict", {"rebuilt": rebuilt})
    part = request.GET.get("part", "")
    start = parse_optional_number(request.GET.get("from"))
    context = {
        "heading": gettext("Full request"),
        "rebuilt": rebuilt,
        "page": rebuilt.request and make_page(rebuilt.request, start=start, part=part),
        "part": part,
        "turn": call.turn_number,
        "digest": call.request_digest,
        "address": _address("model_call_text", session, call),
        "query": request.GET.urlencode(),
        "call_url": _address("model_call", session, call),
        "json_url": _address("model_call_request", session, call),
    }
    return render_panel(request, session, access, "text", context)


@login_required
@require_safe
def model_call_request(request: HttpRequest, uuid: UUID, run: UUID, ordinal: int) -> HttpResponse:
    """Download the request as JSON, with whether it matches what was sent."""
    session, _ = get_session_for(request, uuid)
    call = archive_calls.require_call(session.pk, run=run, ordinal=ordinal)
    rebuilt = _rebuild(request, session, call)
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


def _rebuild(request: HttpRequest, session: Session, call: ModelCall) -> RebuiltRequest:
    """Return the rebuilt request, and record that its texts from other sessions were read.

    Those are the session that this one continues, and the sessions from which entries of the
    workspace's memory come.
    """
    with suppress(MalformedPayload):
        manifest = read_manifest(call.manifest)
        if manifest.parent is not None:
            record_reading(request, Session.objects.filter(pk=manifest.parent.session))
        if manifest.state is not None:
            list_kept_for(request, session, manifest.state.kept)
    return rebuild_request(call.pk)


def _describe(request: HttpRequest, session: Session, call: ModelCall) -> dict[str, Any]:
    # On a page of its own, the call is checked at once. The panel requests the check after it was
    # shown.
    manifest, damage = None, ""
    try:
        manifest = read_manifest(call.manifest)
    except MalformedPayload as error:
        damage = str(error)
    return {
        "sections": make_sections(session, call, manifest),
        "damage": damage,
        "turn": call.turn_number,
        "created_at": call.created_at,
        "digest": call.request_digest,
        "of_run": [
            _line(session, run_call) | {"is_this": run_call.pk == call.pk}
            for run_call in archive_calls.list_calls_of_run(call.run_id)
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
        "is_failed": call.is_failed,
    }


def _address(name: str, session: Session, call: ModelCall) -> str:
    return reverse(name, args=[session.uuid, call.run.uuid, call.ordinal])
