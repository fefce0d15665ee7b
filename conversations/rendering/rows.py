"""Rows as HTML, from the one template that each event type has.

The whole row is rendered when it is written and kept beside the event, so a page
of rows is a join of strings. Nothing in it depends on who looks, or when.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.template.loader import get_template
from django.utils.safestring import mark_safe

from conversations.domain import events
from conversations.domain.events import Fallback, Payload
from conversations.domain.jsontext import dump_json
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.text import one_line, storable

from .markdown import render_markdown, render_person_text, render_plain
from .recall import link_turns, recall_line

LONG_TEXT = 100_000
"""Characters of one row that a page carries; the rest is one click away."""

LONG_OUTPUT = 20_000
"""The same for a tool's output, which is folded anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row stands. ``seq`` is its number, or ``turn:45.0`` for a row that
    was synthesised. ``session`` is the session's uuid."""

    session: UUID
    seq: str
    turn: str
    created_at: datetime

    @property
    def cursor(self) -> str:
        return self.seq if self.seq.startswith("turn:") else f"seq:{self.seq}"


def render_row(payload: Payload | Fallback, *, place: Place) -> str:
    """The row's HTML, wrapper included."""
    name = "fallback" if isinstance(payload, Fallback) else events.event_type_of(payload)
    return _render(name, payload, place, _EXTRAS[name](payload, place))


def render_rewound(*, place: Place, count: int, show_url: str) -> str:
    """What stands for ``count`` rows that left the active path."""
    return _render("rewound", {"count": count, "show_url": show_url}, place, {})


def _render(name: str, payload: Any, place: Place, extra: Mapping[str, Any]) -> str:
    moment = place.created_at.astimezone(UTC)
    row = {
        "seq": place.seq,
        "cursor": place.cursor,
        "event_type": name,
        "turn": place.turn,
        "session": place.session,
        "created_iso": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "created_text": f"{moment:%Y-%m-%d %H:%M} UTC",
        "source_url": f"/s/{place.session}/t/{place.turn}/source/" if place.turn else "",
    }
    html: str = _partial(name).render({"row": row, "p": payload, **extra})
    return html.strip()


@cache
def _partial(name: str) -> Any:
    return get_template(f"conversations/rows.html#{name}")


def _shortened(text: str, limit: int) -> tuple[str, int]:
    """The text up to the limit, and how many characters were left out."""
    return text[:limit], max(0, len(text) - limit)


def _user_message(payload: events.UserMessage, _place: Place) -> dict[str, Any]:
    text, left_out = _shortened(payload.text, LONG_TEXT)
    return {"body_html": mark_safe(render_person_text(text)), "left_out": left_out}


def _assistant_text(payload: events.AssistantText, _place: Place) -> dict[str, Any]:
    text, left_out = _shortened(payload.text, LONG_TEXT)
    thinking, _ = _shortened(payload.thinking, LONG_TEXT)
    return {
        "body_html": mark_safe(render_markdown(text)),
        "thinking_html": mark_safe(render_markdown(thinking) if thinking else ""),
        "thought_text": duration_text(payload.thinking_ms),
        "left_out": left_out,
    }


def _tool_call(
    payload: events.ToolCallStarted | events.ToolCallCompleted, place: Place
) -> dict[str, Any]:
    arguments = payload.arguments
    text = arguments if isinstance(arguments, str) else _pretty(arguments)
    is_recall = payload.name == RECALL_TOOL
    output = getattr(payload, "output", "")
    shown, left_out = _shortened(output, LONG_TEXT if is_recall else LONG_OUTPUT)
    html = render_plain(shown)
    return {
        "is_recall": is_recall,
        "arguments_text": storable(text[:LONG_OUTPUT]),
        "argument_line": (is_recall and recall_line(arguments)) or telling_argument(arguments),
        "output_html": mark_safe(link_turns(html, place.session) if is_recall else html),
        "left_out": left_out,
        "duration_text": duration_text(getattr(payload, "duration_ms", None)),
    }


def _pretty(arguments: Any) -> str:
    if arguments in (None, {}):
        return ""
    if isinstance(arguments, dict):
        return "\n".join(
            f"{name}: {value if isinstance(value, str) else dump_json(value)}"
            for name, value in arguments.items()
        )
    return dump_json(arguments)


def telling_argument(arguments: Any) -> str:
    """The one argument that says most about a call, on one line."""
    if isinstance(arguments, str):
        return one_line(storable(arguments), limit=100)
    if not isinstance(arguments, dict) or not arguments:
        return ""
    for name in ("command", "path", "file_path", "pattern", "query", "url", "text"):
        if isinstance(arguments.get(name), str):
            return one_line(storable(arguments[name]), limit=100)
    first = next(iter(arguments.values()))
    return one_line(storable(first if isinstance(first, str) else dump_json(first)), limit=100)


def _turn_separator(payload: events.TurnSeparator, _place: Place) -> dict[str, Any]:
    return {"footer": footer_parts(payload)}


STOP_WORDS = {
    "max_tokens": "cut at the output limit",
    "stopped": "stopped",
    "refusal": "refused by the model",
    "model_context_window_exceeded": "cut at the window's limit",
    "failed": "failed",
    "interrupted": "interrupted",
    "too_many_calls": "stopped after too many model calls",
}
"""What the footer says for a stop reason that is not the ordinary one."""


def footer_parts(payload: events.TurnSeparator) -> list[str]:
    """The footer's short texts: stop reason, tokens, cache share, cost, time."""
    parts = []
    reason = payload.stop_reason or ("" if payload.state == "completed" else payload.state)
    if reason not in ("", "end_turn", "stop_sequence"):
        parts.append(STOP_WORDS.get(reason, reason.replace("_", " ")))
    if payload.is_demo:
        parts.append("demo model")
    if payload.input_tokens is not None:
        parts.append(f"{number_text(payload.input_tokens)} tokens in")
        if payload.cached_tokens and payload.input_tokens:
            parts.append(f"{100 * payload.cached_tokens // payload.input_tokens} % cached")
    if payload.output_tokens is not None:
        parts.append(f"{number_text(payload.output_tokens)} out")
    if payload.cost_usd:
        parts.append(f"${payload.cost_usd}")
    if payload.duration_ms is not None:
        parts.append(duration_text(payload.duration_ms))
    return parts


def number_text(number: int) -> str:
    """A number with thin spaces between the thousands."""
    return f"{number:,}".replace(",", "\u202f")


def duration_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _info(payload: events.Info, place: Place) -> dict[str, Any]:
    data = payload.data or {}
    if payload.code != events.COMPACTED or not isinstance(data.get("summary"), str):
        return {}
    summary, _ = _shortened(data["summary"], LONG_TEXT)
    try:
        undo_url = f"/s/{place.session}/compactions/{UUID(data.get('compaction'))}/undo/"
    except (ValueError, TypeError, AttributeError):  # not ours: it is shown, not offered
        undo_url = ""
    return {"body_html": mark_safe(render_markdown(summary)), "undo_url": undo_url}


def _nothing(_payload: Any, _place: Place) -> dict[str, Any]:
    return {}


def _fallback(payload: Fallback, _place: Place) -> dict[str, Any]:
    shown, left_out = _shortened(payload.raw, LONG_OUTPUT)
    return {"output_html": mark_safe(render_plain(shown)), "left_out": left_out}


_EXTRAS: dict[str, Callable[[Any, Place], dict[str, Any]]] = {
    events.USER_MESSAGE: _user_message,
    events.ASSISTANT_TEXT: _assistant_text,
    events.TOOL_CALL_STARTED: _tool_call,
    events.TOOL_CALL_COMPLETED: _tool_call,
    events.CONTENT_INDICATOR: _nothing,
    events.TURN_SEPARATOR: _turn_separator,
    events.INFO: _info,
    "fallback": _fallback,
}
