"""Rows as HTML, from the one template that each event type has.

The whole row is rendered when it is written and kept beside the event, so a page
of rows is a join of strings. Nothing in it depends on who looks, or when.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.template.loader import get_template, render_to_string
from django.utils.safestring import mark_safe

from conversations.domain import events
from conversations.domain.events import Fallback, Payload
from conversations.domain.text import cost_text, storable

from .markdown import render_markdown, render_person_text, render_plain
from .source_text import duration_text, number_text, show_hidden, size_text
from .tool_rows import asked_row, completed_row, decided_row, started_row

LONG_TEXT = 100_000
"""Characters of one row that a page carries; the rest is one click away."""

LONG_FALLBACK = 20_000
"""The same for a row that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPosition:
    """Where a row stands. ``seq`` is its number, or ``turn:45.0`` for a row that
    was synthesised. ``session`` is the session's uuid."""

    session: UUID
    seq: str
    turn: str
    created_at: datetime

    @property
    def cursor(self) -> str:
        return self.seq if self.seq.startswith("turn:") else f"seq:{self.seq}"


def render_row(payload: Payload | Fallback, *, place: RowPosition) -> str:
    """The row's HTML, wrapper included."""
    name = _name_of(payload)
    partial, extra = name, None
    if isinstance(payload, events.Info) and payload.code in _APPROVALS:
        extra = _APPROVALS[payload.code](payload, place.session)
        partial = payload.code if extra else name
    return _render(name, payload, place, extra or row_extra(payload, place), partial=partial)


def row_extra(payload: Payload | Fallback, place: RowPosition) -> dict[str, Any]:
    """What the template of the row shows besides the payload."""
    return _EXTRAS[_name_of(payload)](payload, place)


def render_row_with(
    payload: Payload | Fallback, extra: Mapping[str, Any], *, place: RowPosition, partial: str = ""
) -> str:
    """The row with something else of its own, in another partial where one is named,
    and without the address of what was left out of it."""
    return _render(_name_of(payload), payload, place, extra, partial=partial, links=False)


def _name_of(payload: Payload | Fallback) -> str:
    return "fallback" if isinstance(payload, Fallback) else events.event_type_of(payload)


def render_rewound(*, place: RowPosition, count: int, show_url: str) -> str:
    """What stands for ``count`` rows that left the active path."""
    return _render("rewound", {"count": count, "show_url": show_url}, place, {})


def _render(
    name: str,
    payload: Any,
    place: RowPosition,
    extra: Mapping[str, Any],
    *,
    partial: str = "",
    links: bool = True,
) -> str:
    moment = place.created_at.astimezone(UTC)
    row = {
        "seq": place.seq,
        "cursor": place.cursor,
        "event_type": name,
        "turn": place.turn,
        "session": place.session,
        "created_iso": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "created_text": f"{moment:%Y-%m-%d %H:%M} UTC",
        "source_url": f"/s/{place.session}/t/{place.turn}/source/" if place.turn and links else "",
    }
    html: str = _partial(partial or name).render({"row": row, "p": payload, **extra})
    return html.strip()


@cache
def _partial(name: str) -> Any:
    return get_template(f"conversations/rows.html#{name}")


def _shortened(text: str, limit: int) -> tuple[str, int]:
    """The text up to the limit, and how many characters were left out."""
    return text[:limit], max(0, len(text) - limit)


def _user_message(payload: events.UserMessage, place: RowPosition) -> dict[str, Any]:
    text, left_out = _shortened(payload.text, LONG_TEXT)
    return {
        "body_html": mark_safe(render_person_text(text)) if text or not payload.attachments else "",
        "left_out": left_out,
        "files": [_file(file, place) for file in payload.attachments],
    }


def _assistant_text(payload: events.AssistantText, _place: RowPosition) -> dict[str, Any]:
    text, left_out = _shortened(payload.text, LONG_TEXT)
    thinking, _ = _shortened(payload.thinking, LONG_TEXT)
    return {
        "body_html": mark_safe(render_markdown(text)),
        "thinking_html": mark_safe(render_markdown(thinking) if thinking else ""),
        "thought_text": duration_text(payload.thinking_ms),
        "left_out": left_out,
    }


def _started(payload: events.ToolCallStarted, place: RowPosition) -> dict[str, Any]:
    return started_row(payload, place.session)


def _completed(payload: events.ToolCallCompleted, place: RowPosition) -> dict[str, Any]:
    return completed_row(payload, place.session, place.turn)


def _content_indicator(payload: events.ContentIndicator, place: RowPosition) -> dict[str, Any]:
    file = {"name": payload.label, **asdict(payload)}
    return {"file": _file(file, place)}


def _file(file: Any, place: RowPosition) -> dict[str, Any]:
    """An attachment as a row shows it; its picture has an address where it is ours."""
    if not isinstance(file, dict):
        return {"name_html": show_hidden(str(file)[:255])}
    size = file.get("size")
    url = attachment_url(place.session, file.get("attachment") or file.get("uuid"))
    name = str(file.get("name") or file.get("label") or "file")[:255]
    return {
        "name": storable(name),
        "name_html": show_hidden(name),
        "kind": str(file.get("kind") or "file"),
        "media_type": str(file.get("media_type") or "")[:127],
        "size": size_text(size) if isinstance(size, int) else "",
        "url": url,
        "has_picture": bool(url) and file.get("kind") == "image",
    }


def attachment_url(session: UUID, attachment: Any) -> str:
    """Where an attachment is; empty where there is none."""
    try:
        return f"/s/{session}/attachments/{UUID(attachment)}/"
    except (ValueError, TypeError, AttributeError):  # imported, or of another kind
        return ""


def _turn_separator(payload: events.TurnSeparator, _place: RowPosition) -> dict[str, Any]:
    return {"footer": footer_parts(payload)}


STOP_WORDS = {
    "max_tokens": "cut at the output limit",
    "stopped": "stopped",
    "refusal": "refused by the model",
    "model_context_window_exceeded": "cut at the window's limit",
    "failed": "failed",
    "interrupted": "interrupted",
    "budget_reached": "stopped by a budget",
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


def _info(payload: events.Info, place: RowPosition) -> dict[str, Any]:
    data = payload.data or {}
    if payload.code == events.REVERTED:
        return {"changes_url": f"/s/{place.session}/changes/"}
    if payload.code != events.COMPACTED or not isinstance(data.get("summary"), str):
        return {}
    summary, _ = _shortened(data["summary"], LONG_TEXT)
    try:
        undo_url = f"/s/{place.session}/compactions/{UUID(data.get('compaction'))}/undo/"
    except (ValueError, TypeError, AttributeError):  # not ours: it is shown, not offered
        undo_url = ""
    return {"body_html": mark_safe(render_markdown(summary)), "undo_url": undo_url}


def _fallback(payload: Fallback, _place: RowPosition) -> dict[str, Any]:
    shown, left_out = _shortened(payload.raw, LONG_FALLBACK)
    return {"output_html": mark_safe(render_plain(shown)), "left_out": left_out}


_EXTRAS: dict[str, Callable[[Any, RowPosition], dict[str, Any]]] = {
    events.USER_MESSAGE: _user_message,
    events.ASSISTANT_TEXT: _assistant_text,
    events.TOOL_CALL_STARTED: _started,
    events.TOOL_CALL_COMPLETED: _completed,
    events.CONTENT_INDICATOR: _content_indicator,
    events.TURN_SEPARATOR: _turn_separator,
    events.INFO: _info,
    "fallback": _fallback,
}

_APPROVALS = {events.APPROVAL_ASKED: asked_row, events.APPROVAL_DECIDED: decided_row}
"""Notices with a template of their own, by code."""


# Which rows of a page a later one of the same call stands for.


STAY = {"1": "1", "2": "2", "3": "13", "4": "4"}
"""The steps of a call that stay, by its last one."""

_STEP = re.compile(
    r'<article class="(?P<class>[^"]*)"[^>]*'
    r' data-call="(?P<call>[^"]*)" data-step="(?P<step>[1-4])"'
)

_BARE = "</b><small>"
"""A line that does not say what the call was about."""

_RECORD = 'data-action="panel"'
"""The link to the record of a call that was carried out here, whose results say it all."""

_ASKED = re.compile(
    r"</b>(?P<argument><code>.*?</code>)<small>.*?</summary>(?P<arguments>.*)</details></article>",
    re.DOTALL,
)


def mark_settled(rows: Sequence[str]) -> list[str]:
    """The rows, with a class for those that others stand for."""
    marked = list(rows)
    for steps in _calls(rows):
        stay = STAY[steps[-1][1]["step"]]
        first, last = steps[0], steps[-1]
        if (first[1]["step"], last[1]["step"]) == ("1", "4"):
            marked[last[0]] = _with_arguments(rows[last[0]], rows[first[0]])
        for place, found in steps:
            if found["step"] not in stay:
                end = found.end("class")
                marked[place] = f"{rows[place][:end]} settled{rows[place][end:]}"
    return marked


def _with_arguments(completed: str, started: str) -> str:
    """Where the row does not say what was asked, it says what the one before it says."""
    asked = _ASKED.search(started) if _BARE in completed else None
    if asked is None or _RECORD in asked["arguments"]:
        return completed
    told = completed.replace("</b>", f"</b>{asked['argument']}", 1)
    return told.replace("</summary>", f"</summary>{asked['arguments']}", 1)


def _calls(rows: Sequence[str]) -> list[list[tuple[int, re.Match[str]]]]:
    """The rows of each call. An id may come again: in another answer, or empty."""
    calls: list[list[tuple[int, re.Match[str]]]] = []
    newest: dict[str, list[tuple[int, re.Match[str]]]] = {}
    for place, html in enumerate(rows):
        found = _STEP.match(html)
        if found is None:
            continue
        steps = newest.get(found["call"])
        if steps is None or found["step"] == "1" or steps[-1][1]["step"] == "4":
            steps = newest[found["call"]] = []
            calls.append(steps)
        steps.append((place, found))
    return calls


# The version of the HTML that the renderers of this package produce.


RENDER_VERSION: int = 6
"""Raise this when the HTML for the same input changes.

Rendered rows are stored beside their source with the version that made them;
a row with another version is rendered again when it is next read.
"""


# The messages that wait, as HTML: for the page and for the socket.


type Waiting = tuple[UUID, str, Sequence[dict[str, Any]]]


def render_queue(messages: Iterable[Waiting]) -> str:
    """``messages``: of each the run, the text, and what is shown of its attachments."""
    items = [
        {
            "run": run,
            "text": storable(text),
            "names": ", ".join(file["name"] for file in attachments),
            "files": " ".join(file["uuid"] for file in attachments),
        }
        for run, text, attachments in messages
    ]
    html = render_to_string("conversations/queue.html", {"items": items}) if items else ""
    return html.strip()


# Where the window starts and how full it is, as HTML: the same in a page and live.


LEVELS = ((90, "Full"), (82, "Nearly full"), (72, "Filling up"))
"""From which percentage of the limit on the meter says so."""

BAR = 40
"""The meter's width, in pixels."""


def render_window_line(session: UUID, *, left_out: int) -> str:
    """The line between the last turn that was left out and the first that is given;
    empty when all are given."""
    if left_out <= 0:
        return ""
    count = number_text(left_out)
    return _render_fields("line", {"session": session, "left_out": left_out, "count": count})


def render_meter(session: UUID, *, tokens: int, limit: int, cost_microusd: int) -> str:
    """How full the window is and what the session has cost; hidden while not known."""
    percent = min(100, round(100 * tokens / limit)) if limit > 0 else 0
    fields = {
        "session": session,
        "is_known": tokens > 0 and limit > 0,
        "percent": percent,
        "filled": max(2, round(BAR * percent / 100)),
        "bar": BAR,
        "level": next((word for least, word in LEVELS if percent >= least), ""),
        "tokens": tokens_text(tokens),
        "limit": tokens_text(limit),
        "cost": cost_text(cost_microusd),
    }
    return _render_fields("meter", fields)


def tokens_text(tokens: int) -> str:
    """``76k``: as exact as a count of tokens is of use."""
    if tokens < 1000:
        return str(tokens)
    if tokens < 999_500:
        return f"{round(tokens / 1000)}k"
    return f"{tokens / 1_000_000:.1f}".removesuffix(".0") + "M"


def _render_fields(name: str, fields: dict[str, Any]) -> str:
    html: str = _window_partial(name).render(fields)
    return html.strip()


@cache
def _window_partial(name: str) -> Any:
    return get_template(f"conversations/window.html#{name}")
