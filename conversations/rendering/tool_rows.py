"""The parts of a tool call's rows: the line, and the blocks of the opened row.

A stored row is small whatever the size of the output: it holds the beginning of the output and of
the diff, and links to the rest.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from conversations.domain.events import Info, ToolCallCompleted, ToolCallStarted
from conversations.domain.messages import Message, head_of, say, say_number
from conversations.domain.searchable import RECALL_TOOL
from conversations.domain.session_state.commands import error_line
from conversations.domain.text import (
    an_object,
    dump_json,
    load_json,
    number_text,
    one_line,
    storable,
    strip_terminal_codes,
)
from conversations.domain.tool_calls import (
    ALWAYS,
    COMPLETED,
    DENIED,
    DENY,
    INTERRUPTED,
    ONCE,
    RUNNING,
    STARTED,
    STOPPED,
    WAITING,
    read_asked,
)

from .diffs import render_diff
from .messages import mark_notice, mark_text
from .source_text import duration_text, show_hidden, size_text, without_marks
from .terminal import page_end, render_terminal, style_at

MAX_LINE_CHARS, MAX_RECALL_LINE_CHARS = 160, 100

# The label and the icon of each tool of the product.
TOOLS: dict[str, tuple[str, str]] = {
    RECALL_TOOL: (say("Recall"), "recall"),
    "load_skill": (say("Skill"), "read"),
    "session_state": (say("Session state"), "list"),
    "read_file": (say("Read"), "read"),
    "list_files": (say("List"), "list"),
    "glob_files": (say("Find files"), "search"),
    "search_files": (say("Search"), "search"),
    "write_file": (say("Write"), "edit"),
    "edit_file": (say("Edit"), "edit"),
    "delete_file": (say("Delete"), "remove"),
    "move_file": (say("Move"), "edit"),
    "shell_execute": (say("Run"), "run"),
    "git_command": (say("Git"), "run"),
    "fetch_url": (say("Fetch"), "web"),
}

# The mark and the label of each state. A completed call has those of its outcome.
STATES: dict[str, tuple[str, str]] = {
    # The call may wait for a person's answer about another call. Keep in step with WORDS of
    # calls.js.
    STARTED: ("started", say("Waiting")),
    WAITING: ("waiting", say("Waiting")),
    RUNNING: ("running", say("Running")),
    DENIED: ("denied", say("Denied")),
    STOPPED: ("stopped", say("Stopped")),
    INTERRUPTED: ("interrupted", say("Interrupted")),
}

_OUTCOMES = {
    True: ("done", say("Done")),
    False: ("failed", say("Failed")),
    None: ("unknown", say("Outcome unknown")),
}
# The text for a person's decision, without and with the person's name.
_DECISIONS = {
    DENY: (say("Denied"), say("Denied by %(person)s")),
    ONCE: (say("Allowed once"), say("Allowed once by %(person)s")),
    ALWAYS: (say("Always allowed"), say("Always allowed by %(person)s")),
}
_SERVER_TOOL = re.compile(r"mcp__(.+?)__(.+)", re.DOTALL)
_INFORMATIVE = ("command", "pattern", "query", "path", "file_path", "url", "name", "text")
_WRITTEN = ("content", "old_text", "new_text", "old_string", "new_string", "edits", "replace_all")

# The first line of a quoted turn, and of turns of another session. No line of quoted text begins
# like that, because the recall tool indents it.
_HEAD = re.compile(r"^\[(?:Turn (?P<turn>\d{1,15})|Session (?P<session>[0-9a-f-]{36}))\]", re.M)


def tool_word(name: str) -> tuple[str, str]:
    """Return the tool's label (a message if the tool is the product's) and its icon."""
    if name in TOOLS:
        return TOOLS[name]
    server = _SERVER_TOOL.fullmatch(name)
    word = f"{server[1]}: {server[2]}" if server else name
    return without_marks(storable(word)) or say("tool"), "tool"


def state_word(state: str, ok: bool | None) -> tuple[str, str]:
    """Return the mark and the label of a state."""
    if state in ("", COMPLETED):
        return _OUTCOMES[ok]
    return STATES.get(state, ("unknown", state))


def decision_text(decision: str, *, by: str, reason: str, kind: str = "") -> str:
    """Return who allowed or denied a call, or an empty string if the policy did."""
    words = _DECISIONS.get(decision)
    if words is None:
        return ""
    why = kind if decision == ALWAYS else reason
    sentence = say(words[1], person=by) if by else say(words[0])
    return say("%(told)s: %(why)s", told=sentence, why=why) if why else sentence


def read_arguments(arguments: Any) -> Any:
    """Return the arguments as an object if they are the JSON text of one."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
        return arguments
    try:
        return load_json(arguments)
    except ValueError:
        return arguments


def telling_argument(name: str, arguments: Any) -> str:
    """Return the most informative argument of a call, on one line."""
    if isinstance(arguments, str):
        return one_line(storable(arguments), limit=MAX_LINE_CHARS)
    if not isinstance(arguments, dict) or not arguments:
        return ""
    if name == RECALL_TOOL:
        return recall_line(arguments)
    key = next((key for key in _INFORMATIVE if isinstance(arguments.get(key), str)), "")
    if name == "move_file":
        text = " → ".join(value for value in arguments.values() if isinstance(value, str))
    elif key:
        folder = arguments.get("path") if key == "pattern" else None
        text = f"{arguments[key]} in {folder}" if folder else arguments[key]
    else:
        text = _as_text(next(iter(arguments.values())))
    return one_line(storable(text), limit=MAX_LINE_CHARS)


def recall_line(arguments: Any) -> str:
    """Return a recall request on one line: ``search "auth token"``, ``range 41–57``."""
    if not isinstance(arguments, dict):
        return ""
    action, tool, query, session = _texts(arguments, "action", "tool_name", "query", "session")
    ends = [arguments.get(name) for name in ("start_turn", "end_turn", "around", "turns")]
    turns = "–".join(dict.fromkeys(str(end) for end in ends if isinstance(end, int | str)))
    parts = [action, tool, turns]
    if query:
        parts.append(f'"{query}"')
    if session:
        parts.append(f"in {session[:8]}")
    line = " ".join(part for part in parts if part)
    return one_line(storable(line), limit=MAX_RECALL_LINE_CHARS)


def _texts(data: dict[str, Any], *names: str) -> list[str]:
    """Return these values; a value that is not a text becomes empty."""
    values = (data.get(name) for name in names)
    return [value if isinstance(value, str) else "" for value in values]


def arguments_text(arguments: Any, *, without_texts: bool) -> str:
    """Return the arguments, one a line.

    ``without_texts`` leaves out the written texts, because a diff shows them."""
    if isinstance(arguments, str):
        return storable(arguments)
    if not isinstance(arguments, dict):
        return "" if arguments is None else storable(dump_json(arguments))
    shown = {k: v for k, v in arguments.items() if not (without_texts and k in _WRITTEN)}
    return storable("\n".join(f"{name}: {_as_text(value)}" for name, value in shown.items()))


def _as_text(value: Any) -> str:
    """Return a list of words as a shell command, and other values as JSON."""
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return value if isinstance(value, str) else dump_json(value)


def _link_turns(html: str, session: UUID | str) -> str:
    """Link the header of each quoted turn in the escaped output of the recall tool.

    Turns belong to this session until the output names another one."""
    current = session

    def link(head: re.Match[str]) -> str:
        nonlocal current
        current = head["session"] or current
        place = f"t/{head['turn']}/" if head["turn"] else ""
        return f'<a href="/s/{current}/{place}">{head[0]}</a>'

    return _HEAD.sub(link, html)


# Limits for a text in a stored row. If an output is longer, a folded row holds only a glimpse of
# it, because opening the row loads a page of the output.
HEAD_LINES, HEAD_CHARS, HEAD_SPANS = 40, 3000, 150
GLIMPSE_LINES, GLIMPSE_CHARS, GLIMPSE_SPANS = 10, 800, 30
MAX_DIFF_LINES, MAX_DIFF_CHARS = 150, 8000
# Limits for a request for approval, which a person reads before answering.
MAX_CARD_LINES, MAX_CARD_CHARS = 400, 20_000

# The rows of one call in their order. A later row replaces the earlier ones on a page.
STEPS = {"started": 1, "asked": 2, "decided": 3, "completed": 4}


def started_row(payload: ToolCallStarted, session: UUID) -> dict[str, Any]:
    arguments = read_arguments(payload.arguments)
    return {
        **_line(payload, arguments, step="started"),
        "state": state_word(STARTED, None),
        "keeps": True,
        "blocks": list(_argument_blocks(arguments, has_diff=False)),
        "record_url": call_url(session, payload.call),
    }


def completed_row(payload: ToolCallCompleted, session: UUID, turn: str) -> dict[str, Any]:
    arguments = read_arguments(payload.arguments)
    state = state_word(payload.state, payload.ok)
    failed = state[0] == "failed"
    url = call_url(session, payload.call)
    has_files = bool(payload.diff and url)
    size = payload.output_chars or len(payload.output) or len(payload.error)
    facts = (
        say("exit %(code)s", code=payload.exit_code) if payload.exit_code else "",
        duration_text(payload.duration_ms),
        size_text(size) if size >= 1000 else "",
    )
    blocks = list(_argument_blocks(arguments, has_diff=bool(payload.diff)))
    if payload.diff:
        diff = render_diff(payload.diff, most_lines=MAX_DIFF_LINES, most_chars=MAX_DIFF_CHARS)
        changes: dict[str, Any] = {
            "caption": say("Changes %(lines)s", lines=changes_text(diff.added, diff.removed)),
            "html": diff.html,
            "kind": "diff",
            "copies": not diff.left_out,
            "more": more_lines(diff.left_out) if diff.left_out else "",
            "more_url": url,
        }
        blocks.insert(0, changes)
    return {
        **_line(payload, arguments, step="completed"),
        "state": state,
        "failure_html": show_hidden(failure_line(payload)) if failed else "",
        "keeps": failed,
        "facts": [fact for fact in facts if fact],
        "decision_html": mark_text(
            decision_text(payload.decision, by=payload.decided_by, reason=payload.reason)
        ),
        "blocks": [*blocks, *_output_blocks(payload, session, turn)],
        "record_url": url,
        "changes_url": f"/s/{session}/changes/?call={UUID(payload.call)}" if has_files else "",
        "file_url": f"{url}file/" if has_files else "",
    }


def failure_line(payload: ToolCallCompleted, *, limit: int = MAX_LINE_CHARS) -> str:
    """Return what went wrong, on one line.

    A command may report its error anywhere in its output, other tools report it first."""
    text = storable(payload.error or payload.output)
    line = error_line(text, limit=limit) if payload.exit_code else ""
    return line or one_line(strip_terminal_codes(text[: limit * 16]), limit=limit)


def asked_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """Return the context of the card that asks, or None if the notice names no call of ours."""
    request = read_asked(payload.data or {})
    url = call_url(session, request.call)
    if not url:
        return None
    word, icon = tool_word(request.name)
    diff = render_diff(request.diff, most_lines=MAX_CARD_LINES, most_chars=MAX_CARD_CHARS)
    left_out = more_lines(diff.left_out) if diff.left_out else ""
    extra_chars = len(request.command) - MAX_CARD_CHARS
    if extra_chars > 0:
        left_out = more_characters(extra_chars)
    return {
        "call": request.call,
        "step": STEPS["asked"],
        "name": request.name,
        "word": mark_text(word),
        "icon": icon,
        "summary_html": mark_text(head_of(request.summary, 1000)),
        "command_html": show_hidden(request.command[:MAX_CARD_CHARS]),
        "diff_html": diff.html if request.diff else "",
        "changes": changes_text(diff.added, diff.removed),
        "left_out": left_out,
        "note_html": mark_text(head_of(request.note, 1000)),
        "always_html": request.kind_label
        and mark_text(say("Always allow %(kind)s", kind=head_of(request.kind_label, 300))),
        "record_url": url,
    }


def decided_row(payload: Info, session: UUID) -> dict[str, Any] | None:
    """Return the context of the line that replaces a card, or None if the notice names no call."""
    data = payload.data or {}
    call = data.get("call") or data.get("call_id")
    if not isinstance(call, str) or not call:
        return None
    decision, by, reason = _texts(data, "decision", "by", "reason")
    short = decision_text(decision, by=by, reason=reason) if decision in (ONCE, DENY) else ""
    text = mark_notice(head_of(short or payload.text, 2500))
    return {"call": call, "step": STEPS["decided"], "decision_html": text}


def call_url(session: UUID, call: str) -> str:
    """Return the path of a call's record, or an empty string if it has none."""
    try:
        return f"/s/{session}/tools/{UUID(call)}/"
    except ValueError:  # The id is not one of ours, as in imported sessions.
        return ""


def changes_text(added: int, removed: int) -> str:
    return f"+{number_text(added)} −{number_text(removed)}"


def more_lines(count: int) -> Message:
    return say_number(
        "%(count)s more line", "%(count)s more lines", count, count=number_text(count)
    )


def more_characters(count: int) -> Message:
    return say_number(
        "%(count)s more character", "%(count)s more characters", count, count=number_text(count)
    )


def _line(
    payload: ToolCallStarted | ToolCallCompleted, arguments: Any, *, step: str
) -> dict[str, Any]:
    word, icon = tool_word(payload.name)
    return {
        "call": payload.call or payload.call_id,
        "step": STEPS[step],
        "name": payload.name,
        "word": mark_text(word),
        "icon": icon,
        "argument_html": show_hidden(telling_argument(payload.name, arguments)),
    }


def _argument_blocks(arguments: Any, *, has_diff: bool) -> Iterator[dict[str, Any]]:
    """Yield the parts of an opened row, each in ``<pre>``, that show the arguments.

    ``more`` says how much of a part is missing."""
    values = an_object(arguments)
    texts = []
    if isinstance(values.get("command"), str):
        texts.append((say("Command"), values["command"], "command"))
        arguments = {key: value for key, value in values.items() if key != "command"}
    elif has_diff and isinstance(values.get("path"), str):  # The diff shows the path.
        arguments = {key: value for key, value in values.items() if key != "path"}
    rest = arguments_text(arguments, without_texts=has_diff)
    if rest and rest != "{}":
        texts.append((say("Arguments"), rest, ""))
    for caption, text, kind in texts:
        shown = "\n".join(text[:HEAD_CHARS].split("\n")[: 2 * HEAD_LINES])
        hidden_chars = len(text) - len(shown)
        yield {
            "caption": caption,
            "html": show_hidden(shown),
            "kind": kind,
            "copies": bool(kind),
            "more": more_characters(hidden_chars) if hidden_chars else "",
        }


def _output_blocks(
    payload: ToolCallCompleted, session: UUID, turn: str
) -> Iterator[dict[str, Any]]:
    url = call_url(session, payload.call)
    rest = f"/s/{session}/t/{turn}/output/" if turn else ""
    if url:
        rest = f"{url}output/"
    is_error = payload.state in ("", COMPLETED)
    if payload.error:
        caption = say("Error") if is_error else say("Sent to the model")
        yield _output_block(caption, payload.error, payload, session, is_open=is_error) | {
            "more_url": rest
        }
    if payload.output:
        yield _output_block(say("Output"), payload.output, payload, session) | {"more_url": rest}
    if not payload.output and not payload.error:
        yield {"caption": say("No output")}


def _output_block(
    caption: str, text: str, payload: ToolCallCompleted, session: UUID, *, is_open: bool = False
) -> dict[str, Any]:
    """Return an output, or its beginning if it is long.

    An error that is known completely is shown opened. If it is long, its end is shown too, because
    the end is the most informative part."""
    size = max(payload.output_chars or 0, len(text))
    is_whole = size == len(text)
    html, is_cut = render_terminal(
        text, most_lines=HEAD_LINES, most_chars=HEAD_CHARS, most_spans=HEAD_SPANS
    )
    if (is_cut or not is_whole) and (is_whole or not is_open):
        html, _ = render_terminal(
            text, most_lines=GLIMPSE_LINES, most_chars=GLIMPSE_CHARS, most_spans=GLIMPSE_SPANS
        )
        if is_open:
            start = max(GLIMPSE_CHARS, len(text) - HEAD_CHARS + GLIMPSE_CHARS)
            lines = [line_end.end() for line_end in re.finditer("\n", text[start:-1])]
            start += lines[max(0, len(lines) - HEAD_LINES + GLIMPSE_LINES)] if lines else 0
            end = render_terminal(
                text[start:],
                most_lines=HEAD_LINES,
                most_chars=HEAD_CHARS,
                most_spans=HEAD_SPANS,
                style=style_at(text, start),
            )
            html += f'\n<span class="gap">⋯</span>\n{end.html}'
    return {
        "caption": caption,
        "html": _link_turns(html, session) if payload.name == RECALL_TOOL else html,
        "copies": True,
        "more": size_text(size) if is_cut or not is_whole else "",
    }


# A tool's output, one page at a time, whatever its length.

PAGE_LINES, PAGE_CHARS, PAGE_SPANS = 200, 20_000, 2000


class OutputPage(NamedTuple):
    """A page of output that begins at the character ``start``.

    ``html`` goes into ``<pre><code>``. ``next`` is the start of the next page, or None on the last.
    ``left`` is the size of the output after this page, and ``size`` that of the whole output."""

    html: str
    start: int
    next: int | None
    left: str
    size: str


def render_output_page(text: str, *, name: str, start: int, session: UUID) -> OutputPage:
    """Render the page of the tool's output that begins at ``start``.

    ``name`` is the tool, ``session`` the session of its call."""
    end = page_end(text, start, most_lines=PAGE_LINES, most_chars=PAGE_CHARS)
    html, _ = render_terminal(
        text[start:end],
        most_lines=PAGE_LINES,
        most_chars=PAGE_CHARS,
        most_spans=PAGE_SPANS,
        style=style_at(text, start),
    )
    if name == RECALL_TOOL:
        # An earlier page may name the session whose turns are quoted here.
        header = _HEAD.match(text, text.rfind("\n[Session ", 0, start) + 1)
        html = _link_turns(html, (start and header and header["session"]) or session)
    return OutputPage(
        html=html,
        start=start,
        next=end if end < len(text) else None,
        left=size_text(max(0, len(text) - end)),
        size=size_text(len(text)),
    )
