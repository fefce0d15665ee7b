"""What the rows of a tool call are made of: its line, and what it holds when opened.

A stored row is small whatever the call gave: it has the beginning of the output and of
the diff, and the address of the rest.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.utils.safestring import mark_safe

from conversations.domain.events import Info, ToolCallCompleted, ToolCallStarted
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.tool_calls import COMPLETED, DENY, ONCE, STARTED
from conversations.domain.tool_policy import read_asked

from .diffs import render_diff
from .source_text import duration_text, number_text, show_hidden, size_text
from .terminal import Shown, page_end, render_terminal, style_at
from .tool_words import (
    arguments_text,
    decision_text,
    link_turns,
    read_arguments,
    session_at,
    state_word,
    telling_argument,
    tool_word,
)

HEAD_LINES, HEAD_CHARS, HEAD_SPANS = 40, 3000, 150
"""Of a text in a stored row; of an output that goes on beyond that, in a row that is
folded, these, since opening it loads a page of it:"""

GLIMPSE_LINES, GLIMPSE_CHARS, GLIMPSE_SPANS = 10, 800, 30

DIFF_LINES, DIFF_CHARS = 150, 8000
CARD_LINES, CARD_CHARS = 400, 20_000
"""Of what a person is asked about, which is read before it is answered."""

STEPS = {"started": 1, "asked": 2, "decided": 3, "completed": 4}
"""The rows of one call in their order: a later one stands for those before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRowSection:
    """A part of an opened row, in ``<pre>``. ``more`` is how much of it is missing,
    ``more_url`` where it is."""

    caption: str
    html: str
    kind: str = ""
    copies: bool = False
    more: str = ""
    more_url: str = ""


def started_row(payload: ToolCallStarted, session: UUID) -> dict[str, Any]:
    arguments = read_arguments(payload.arguments)
    return {
        **_line(payload.name, arguments, payload.call or payload.call_id, step="started"),
        "state": state_word(STARTED, None),
        "keeps": True,
        "blocks": list(_argument_blocks(payload.name, arguments, has_diff=False)),
        "record_url": call_url(session, payload.call),
    }


def completed_row(payload: ToolCallCompleted, session: UUID, turn: str) -> dict[str, Any]:
    arguments = read_arguments(payload.arguments)
    state = state_word(payload.state, payload.ok)
    failed = state[0] == "failed"
    return {
        **_line(payload.name, arguments, payload.call or payload.call_id, step="completed"),
        "state": state,
        "is_open": failed,
        "keeps": failed,
        "facts": list(_facts(payload)),
        "decision_html": show_hidden(
            decision_text(payload.decision, by=payload.decided_by, reason=payload.reason)
        ),
        "blocks": [
            *_diff_blocks(payload, session),
            *_argument_blocks(payload.name, arguments, has_diff=bool(payload.diff)),
            *_output_blocks(payload, session, turn),
        ],
        "record_url": call_url(session, payload.call),
        "changes_url": _changes_url(payload, session),
    }


def asked_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """The card that asks; None for a notice that no call can be told from."""
    asked = read_asked(payload.data or {})
    url = call_url(session, asked.call)
    if not url:
        return None
    word, icon = tool_word(asked.name)
    diff = render_diff(asked.diff, most_lines=CARD_LINES, most_chars=CARD_CHARS)
    command = asked.command[:CARD_CHARS]
    return {
        "call": asked.call,
        "step": STEPS["asked"],
        "name": asked.name,
        "word": mark_safe(show_hidden(word)),
        "icon": icon,
        "summary_html": show_hidden(asked.summary[:1000]),
        "command_html": show_hidden(command),
        "diff_html": diff.html if asked.diff else "",
        "changes": changes_text(diff.added, diff.removed),
        "left_out": _left_out(len(asked.command) - len(command), diff.left_out),
        "note_html": show_hidden(asked.note[:1000]),
        "kind_html": show_hidden(asked.kind_label[:300]),
        "record_url": url,
    }


def decided_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """The line that a card gives way to."""
    data = payload.data or {}
    call = data.get("call") or data.get("call_id")
    if not isinstance(call, str) or not call:
        return None
    decision, by, reason = (
        value if isinstance(value := data.get(name), str) else ""
        for name in ("decision", "by", "reason")
    )
    short = decision_text(decision, by=by, reason=reason) if decision in (ONCE, DENY) else ""
    text = show_hidden((short or payload.text)[:2500])
    return {"call": call, "step": STEPS["decided"], "decision_html": text}


def call_url(session: UUID, call: str) -> str:
    """Where the record of a call is; empty where there is none."""
    try:
        return f"/s/{session}/tools/{UUID(call)}/"
    except ValueError:  # not ours
        return ""


def changes_text(added: int, removed: int) -> str:
    return f"+{number_text(added)} −{number_text(removed)}"


def _line(name: str, arguments: Any, call: str, *, step: str) -> dict[str, Any]:
    word, icon = tool_word(name)
    return {
        "call": call,
        "step": STEPS[step],
        "name": name,
        "word": mark_safe(show_hidden(word)),
        "icon": icon,
        "argument_html": show_hidden(telling_argument(name, arguments)),
    }


def _facts(payload: ToolCallCompleted) -> Iterator[str]:
    if payload.exit_code:
        yield f"exit {payload.exit_code}"
    if payload.duration_ms is not None:
        yield duration_text(payload.duration_ms)
    size = payload.output_chars or len(payload.output) or len(payload.error)
    if size >= 1000:
        yield size_text(size)


def _argument_blocks(name: str, arguments: Any, *, has_diff: bool) -> Iterator[ToolRowSection]:
    rest = arguments
    if isinstance(arguments, dict) and isinstance(arguments.get("command"), str):
        command = arguments["command"]
        rest = {key: value for key, value in arguments.items() if key != "command"}
        yield _text_block("Command", command, kind="command", copies=True)
    elif has_diff and isinstance(arguments, dict) and isinstance(arguments.get("path"), str):
        rest = {key: value for key, value in arguments.items() if key != "path"}
    text = arguments_text(rest, without_texts=has_diff)
    if text and text != "{}":
        yield _text_block("Arguments", text)


def _text_block(caption: str, text: str, *, kind: str = "", copies: bool = False) -> ToolRowSection:
    lines = text[:HEAD_CHARS].split("\n")[: 2 * HEAD_LINES]
    shown = "\n".join(lines)
    left = len(text) - len(shown)
    return ToolRowSection(
        caption=caption,
        html=show_hidden(shown),
        kind=kind,
        copies=copies,
        more=f"{number_text(left)} more characters" if left else "",
    )


def _diff_blocks(payload: ToolCallCompleted, session: UUID) -> Iterator[ToolRowSection]:
    if not payload.diff:
        return
    diff = render_diff(payload.diff, most_lines=DIFF_LINES, most_chars=DIFF_CHARS)
    yield ToolRowSection(
        caption=f"Changes {changes_text(diff.added, diff.removed)}",
        html=diff.html,
        kind="diff",
        copies=not diff.left_out,
        more=f"{number_text(diff.left_out)} more lines" if diff.left_out else "",
        more_url=call_url(session, payload.call),
    )


def _output_blocks(
    payload: ToolCallCompleted, session: UUID, turn: str
) -> Iterator[ToolRowSection]:
    url = call_url(session, payload.call)
    rest = f"{url}output/" if url else f"/s/{session}/t/{turn}/output/" if turn else ""
    ended = payload.state in ("", COMPLETED)
    for caption, text in (
        ("Error" if ended else "The model was told", payload.error),
        ("Output", payload.output),
    ):
        if not text:
            continue
        size = max(payload.output_chars or 0, len(text))
        shown = _head(text, is_whole=size == len(text), is_open=caption == "Error")
        yield ToolRowSection(
            caption=caption,
            html=link_turns(shown.html, session) if payload.name == RECALL_TOOL else shown.html,
            copies=True,
            more=size_text(size) if shown.is_cut else "",
            more_url=rest,
        )
    if not payload.output and not payload.error:
        yield ToolRowSection(caption="No output", html="")


def _changes_url(payload: ToolCallCompleted, session: UUID) -> str:
    """Where the files that a call changed are, and can be put back."""
    if not payload.diff or not call_url(session, payload.call):
        return ""
    return f"/s/{session}/changes/?call={UUID(payload.call)}"


def _head(text: str, *, is_whole: bool, is_open: bool) -> Shown:
    """What a row has of an output: all, or its beginning; of an error that is known to
    its end, that too, since it says most."""
    shown = render_terminal(
        text, most_lines=HEAD_LINES, most_chars=HEAD_CHARS, most_spans=HEAD_SPANS
    )
    if is_whole and not shown.is_cut:
        return shown
    if is_open and not is_whole:
        return replace(shown, is_cut=True)
    shown = render_terminal(
        text, most_lines=GLIMPSE_LINES, most_chars=GLIMPSE_CHARS, most_spans=GLIMPSE_SPANS
    )
    return Shown(html=shown.html + (_tail(text) if is_open else ""), is_cut=True)


def _tail(text: str) -> str:
    start = max(GLIMPSE_CHARS, len(text) - HEAD_CHARS + GLIMPSE_CHARS)
    lines = [found.end() for found in re.finditer("\n", text[start:-1])]
    start += lines[max(0, len(lines) - HEAD_LINES + GLIMPSE_LINES)] if lines else 0
    shown = render_terminal(
        text[start:],
        most_lines=HEAD_LINES,
        most_chars=HEAD_CHARS,
        most_spans=HEAD_SPANS,
        style=style_at(text, start),
    )
    return f'\n<span class="gap">⋯</span>\n{shown.html}'


def _left_out(chars: int, lines: int) -> str:
    if chars > 0:
        return f"{number_text(chars)} more characters"
    return f"{number_text(lines)} more lines" if lines else ""


# What a tool gave, a page at a time, whatever its length.


PAGE_LINES, PAGE_CHARS, PAGE_SPANS = 200, 20_000, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPage:
    """A page that begins with the character ``start``. ``html`` goes into
    ``<pre><code>``. ``next`` is where the next one begins, None on the last; ``left``
    how much is behind this one, ``size`` how much there is."""

    html: str
    start: int
    next: int | None
    left: str
    size: str


def render_output_page(text: str, *, name: str, start: int, session: UUID) -> OutputPage:
    """The page of what the tool ``name`` gave. ``session`` is the call's."""
    end = page_end(text, start, most_lines=PAGE_LINES, most_chars=PAGE_CHARS)
    html = render_terminal(
        text[start:end],
        most_lines=PAGE_LINES,
        most_chars=PAGE_CHARS,
        most_spans=PAGE_SPANS,
        style=style_at(text, start),
    ).html
    if name == RECALL_TOOL:
        html = link_turns(html, session_at(text, start, session))
    return OutputPage(
        html=html,
        start=start,
        next=end if end < len(text) else None,
        left=size_text(max(0, len(text) - end)),
        size=size_text(len(text)),
    )
