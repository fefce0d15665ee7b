"""Rows as HTML, with one template for each event type.

A row is rendered when it is written and stored beside its event, so a page of rows is a join of
strings. Its HTML does not depend on the reader, the time or the language: it has marks in the place
of translated text, which ``show_rows`` fills.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.template.loader import get_template
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import override

from conversations.domain import events
from conversations.domain.events import Fallback, Payload, parse_payload, payload_data
from conversations.domain.messages import say
from conversations.domain.text import cost_text, number_text, storable, write_json
from conversations.domain.tool_questions import QUESTION_ANSWERED, QUESTION_ASKED

from .markdown import render_markdown, render_person_text, render_plain
from .messages import fill_marks, mark_notice
from .question_rows import answered_row, question_row
from .source_text import duration_text, show_hidden, size_text, without_marks
from .tool_rows import asked_row, completed_row, decided_row, more_characters, started_row

MAX_TEXT_CHARS = 100_000  # Characters of a row. A link leads to the rest.
MAX_FALLBACK_CHARS = 20_000  # Characters of a row that cannot be read.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPosition:
    """The position of a row in its session.

    ``seq`` is the row's number, or ``turn:45.0`` for a synthesised row. ``session`` is the
    session's uuid."""

    session: UUID
    seq: str
    turn: str
    created_at: datetime

    @property
    def cursor(self) -> str:
        return self.seq if self.seq.startswith("turn:") else f"seq:{self.seq}"


def render_row(payload: Payload | Fallback, *, place: RowPosition) -> str:
    """Return the row's HTML, wrapper included."""
    payload = without_marks_in(payload)
    if isinstance(payload, events.Info) and payload.code in _APPROVALS:
        # A notice that does not name its call is shown as an ordinary notice.
        extra = _APPROVALS[payload.code](payload, place.session)
        if extra is not None:
            return _render(payload, place, extra, partial=payload.code)
    return _render(payload, place, row_extra(payload, place))


def without_marks_in(payload: Payload | Fallback) -> Payload | Fallback:
    """Return the payload without the characters that ``fill_marks`` takes for marks.

    Call it before any part of the row is rendered."""
    if isinstance(payload, Fallback):
        return Fallback(reason=without_marks(payload.reason), raw=without_marks(payload.raw))
    text = write_json(payload_data(payload))
    clean = without_marks(text)
    return payload if clean == text else parse_payload(events.event_type_of(payload), clean)


def render_row_with(
    payload: Payload | Fallback, extra: Mapping[str, Any], *, place: RowPosition, partial: str = ""
) -> str:
    """Render a row with another context for its template, and optionally another partial.

    The row has no link to the source of its turn. The payload comes from ``without_marks_in``."""
    return _render(payload, place, extra, partial=partial, links=False)


def render_rewound(*, place: RowPosition, count: int, show_url: str) -> str:
    """Render the row that stands for ``count`` rows that left the active path."""
    return _render({"count": count, "show_url": show_url}, place, {}, partial="rewound")


def _render(
    payload: Any,
    place: RowPosition,
    extra: Mapping[str, Any],
    *,
    partial: str = "",
    links: bool = True,
) -> str:
    name = partial
    if not isinstance(payload, dict):
        is_fallback = isinstance(payload, Fallback)
        name = "fallback" if is_fallback else events.event_type_of(payload)
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
    return _render_partial(f"rows.html#{partial or name}", {"row": row, "p": payload, **extra})


@cache
def _template(name: str) -> Any:
    return get_template(f"conversations/{name}")


def _render_partial(name: str, context: dict[str, Any]) -> str:
    # The format of numbers must not depend on the active language either.
    with override("en"):
        html: str = _template(name).render(context)
    return html.strip()


def row_extra(payload: Payload | Fallback, place: RowPosition) -> dict[str, Any]:
    """Return the part of the template's context that comes beside the payload."""
    match payload:
        case events.UserMessage(text=text, attachments=files, by=by):
            html = render_person_text(text[:MAX_TEXT_CHARS]) if text or not files else ""
            return {
                "body_html": mark_safe(html),
                "by_html": show_hidden(by[:150]),
                "left_out": _left_out(text, MAX_TEXT_CHARS),
                "files": [_file(file, place) for file in files],
            }
        case events.AssistantText(text=text, thinking=thinking):
            thought = render_markdown(thinking[:MAX_TEXT_CHARS]) if thinking else ""
            return {
                "body_html": mark_safe(render_markdown(text[:MAX_TEXT_CHARS])),
                "thinking_html": mark_safe(thought),
                "thought_text": duration_text(payload.thinking_ms),
                "left_out": _left_out(text, MAX_TEXT_CHARS),
            }
        case events.ToolCallStarted():
            return started_row(payload, place.session)
        case events.ToolCallCompleted():
            return completed_row(payload, place.session, place.turn)
        case events.ContentIndicator():
            return {"file": _file({"name": payload.label, **asdict(payload)}, place)}
        case events.TurnSeparator():
            return {"footer": footer_parts(payload), "figures": figure_parts(payload)}
        case Fallback(raw=raw):
            html = render_plain(raw[:MAX_FALLBACK_CHARS])
            return {"output_html": mark_safe(html), "left_out": _left_out(raw, MAX_FALLBACK_CHARS)}
    return {"notice_html": mark_notice(payload.text), **_notice_parts(payload, place)}


def _left_out(text: str, limit: int) -> str:
    return more_characters(len(text) - limit) if len(text) > limit else ""


def _notice_parts(payload: events.Info, place: RowPosition) -> dict[str, Any]:
    if payload.code == events.REVERTED:
        return {"changes_url": f"/s/{place.session}/changes/"}
    first = (payload.data or {}).get("from")
    if payload.code == events.SET_ASIDE and isinstance(first, int):
        return {"include_url": f"/s/{place.session}/turns/{first}/include/"}
    summary = (payload.data or {}).get("summary")
    if payload.code != events.COMPACTED or not isinstance(summary, str):
        return {}
    # An imported summary has no compaction here that could be undone.
    compaction = _read_uuid((payload.data or {}).get("compaction"))
    undo_url = f"/s/{place.session}/compactions/{compaction}/undo/" if compaction else ""
    html = render_markdown(summary[:MAX_TEXT_CHARS])
    return {"body_html": mark_safe(html), "undo_url": undo_url}


def _file(file: Any, place: RowPosition) -> dict[str, Any]:
    """Return the context of an attachment; it has a URL only if it is stored here."""
    if not isinstance(file, dict):
        return {"name_html": show_hidden(str(file)[:255])}
    size, kind = file.get("size"), str(file.get("kind") or "file")
    uuid = _read_uuid(file.get("attachment") or file.get("uuid"))
    name = str(file.get("name") or file.get("label") or "file")[:255]
    return {
        "name": storable(name),
        "name_html": show_hidden(name),
        "kind": kind,
        "media_type": str(file.get("media_type") or "")[:127],
        "size": size_text(size) if isinstance(size, int) else "",
        "url": f"/s/{place.session}/attachments/{uuid}/" if uuid else "",
        "has_picture": bool(uuid) and kind == "image",
    }


def _read_uuid(text: Any) -> UUID | None:
    """Return the UUID, or None if the text is none, as in imported events."""
    try:
        return UUID(text)
    except (ValueError, TypeError, AttributeError):
        return None


# The footer's text for a stop reason that is not the ordinary one.
STOP_WORDS = {
    "max_tokens": say("cut off at the output limit"),
    "stopped": say("stopped"),
    "refusal": say("refused by the model"),
    "model_context_window_exceeded": say("cut off at the context limit"),
    "failed": say("failed"),
    "empty_answer": say("empty answer"),
    "interrupted": say("interrupted"),
    "budget_reached": say("stopped by a budget"),
    "too_many_calls": say("stopped after too many model calls"),
}


def footer_parts(payload: events.TurnSeparator) -> list[str]:
    """Return the footer's short texts that are always shown: stop reason and duration."""
    parts: list[str] = []
    reason = payload.stop_reason or ("" if payload.state == "completed" else payload.state)
    if reason not in ("", "end_turn", "stop_sequence"):
        parts.append(STOP_WORDS.get(reason, reason.replace("_", " ")))
    if payload.is_demo:
        parts.append(say("demo model"))
    if payload.duration_ms is not None:
        parts.append(duration_text(payload.duration_ms))
    return parts


def figure_parts(payload: events.TurnSeparator) -> list[str]:
    """Return the footer's texts that one tap reveals: tokens, cache share and cost."""
    parts: list[str] = []
    if payload.input_tokens is not None:
        parts.append(say("%(count)s tokens in", count=number_text(payload.input_tokens)))
        if payload.cached_tokens and payload.input_tokens:
            share = 100 * payload.cached_tokens // payload.input_tokens
            parts.append(say("%(percent)s %% cached", percent=share))
    if payload.output_tokens is not None:
        parts.append(say("%(count)s out", count=number_text(payload.output_tokens)))
    if payload.cost_usd:
        parts.append(f"${payload.cost_usd}")
    return parts


_APPROVALS = {
    events.APPROVAL_ASKED: asked_row,
    events.APPROVAL_DECIDED: decided_row,
    QUESTION_ASKED: question_row,
    QUESTION_ANSWERED: answered_row,
}


# The steps of a call whose rows a page still shows, by the call's last step. That step's row
# replaces the rows of the others.
STAY = {"1": "1", "2": "2", "3": "13", "4": "4"}

_STEP = re.compile(
    r'<article class="(?P<class>[^"]*)"[^>]*'
    r' data-call="(?P<call>[^"]*)"(?: data-of="[^"]*")?\s+data-step="(?P<step>[1-4])"'
)

_BARE = "</b><small>"  # A row that does not say what the call was about.

# The link to the record of a call that this server executed, whose last row is complete in itself.
_RECORD = 'data-action="panel"'

_ASKED = re.compile(
    r"</b>(?P<argument><code>.*?</code>)<small>.*?</summary>(?P<arguments>.*)</details></article>",
    re.DOTALL,
)


def show_rows(rows: Sequence[str]) -> list[SafeString]:
    """Return the rows in the active language, with a class on those that later rows replace."""
    return [fill_marks(html) for html in _mark_settled(rows)]


def join_rows(rows: Sequence[str]) -> SafeString:
    """Return the rows of ``show_rows`` as one string, in two thirds of the time."""
    return fill_marks("".join(_mark_settled(rows)))


def _mark_settled(rows: Sequence[str]) -> list[str]:
    marked = list(rows)
    calls: list[list[tuple[int, re.Match[str]]]] = []
    newest: dict[str, list[tuple[int, re.Match[str]]]] = {}
    for index, html in enumerate(rows):
        step = _STEP.match(html)
        if step is None:
            continue
        steps = newest.get(step["call"])
        # An id may come again: in another answer, or because it is empty.
        if steps is None or step["step"] == "1" or steps[-1][1]["step"] == "4":
            steps = newest[step["call"]] = []
            calls.append(steps)
        steps.append((index, step))
    for steps in calls:
        (first, asked), (last, completed) = steps[0], steps[-1]
        if (asked["step"], completed["step"]) == ("1", "4") and _BARE in rows[last]:
            # If the last row does not show the arguments, copy them from the row that asked.
            match = _ASKED.search(rows[first])
            if match and _RECORD not in match["arguments"]:
                html = rows[last].replace("</b>", f"</b>{match['argument']}", 1)
                marked[last] = html.replace("</summary>", f"</summary>{match['arguments']}", 1)
        for index, step in steps:
            if step["step"] not in STAY[completed["step"]]:
                end = step.end("class")
                marked[index] = f"{rows[index][:end]} settled{rows[index][end:]}"
    return marked


# Marks HTML that needs a style sheet and a JavaScript module of its own.
RICH_CONTENT = 'rich"'


# The version of the HTML that the renderers of this package produce.

# Raise this when the HTML for the same input changes. Rendered rows are stored beside their source
# with the version that made them. A row with another version is rendered again when it is next
# read.
RENDER_VERSION: int = 22


# The waiting messages as HTML, for the page and for the socket.
def render_queue(messages: Iterable[dict[str, Any]]) -> str:
    """Render messages that wait (``archive.messages``); return "" if there are none."""
    items = [
        {
            "run": message["run"],
            "client_id": message["client_id"],
            "now": message["now"],
            "author": message["author"],
            "by": without_marks(message["by"]),
            "text": without_marks(storable(message["text"])),
            "names": without_marks(
                ", ".join(file["name"] for file in message.get("attachments", ()))
            ),
            "files": " ".join(file["uuid"] for file in message.get("attachments", ())),
        }
        for message in messages
    ]
    return _render_partial("queue.html", {"items": items}) if items else ""


# The start of the window and how full it is, as HTML: the same in a page and in live updates.

# Each level begins at this percentage of the limit.
METER_LEVELS = ((90, "full"), (82, "nearly-full"), (72, "filling-up"))
METER_WIDTH_PIXELS = 40


def render_window_line(session: UUID, *, left_out: int) -> str:
    """Render the line between the last turn that is left out and the first in the window.

    Return an empty string if no turn is left out."""
    if left_out <= 0:
        return ""
    count = number_text(left_out)
    return _render_partial(
        "window.html#line", {"session": session, "left_out": left_out, "count": count}
    )


def render_meter(session: UUID, *, tokens: int, limit: int, cost_microusd: int) -> str:
    """Render how full the window is and what the session has cost; hidden if that is unknown."""
    percent = min(100, round(100 * tokens / limit)) if limit > 0 else 0
    fields = {
        "session": session,
        "is_known": tokens > 0 and limit > 0,
        "percent": percent,
        "filled": max(2, round(METER_WIDTH_PIXELS * percent / 100)),
        "bar": METER_WIDTH_PIXELS,
        "level": next((level for threshold, level in METER_LEVELS if percent >= threshold), ""),
        "tokens": tokens_text(tokens),
        "limit": tokens_text(limit),
        "cost": cost_text(cost_microusd),
    }
    return _render_partial("window.html#meter", fields)


def tokens_text(tokens: int) -> str:
    """Format a number of tokens in short: ``76k``, ``1.05M``."""
    if tokens < 1000:
        return str(tokens)
    if tokens < 999_500:
        return f"{round(tokens / 1000)}k"
    return f"{round(tokens / 1_000_000, 2):g}M"
