"""Printing what happens in a session.

An answer is printed as it streams. Its completed row has the same text again, so only the part of
the row that was not printed yet is added.
"""

from typing import Any

from conversations.domain import events
from conversations.domain.events import Fallback, Payload
from conversations.domain.run_transcript import SEPARATOR
from conversations.domain.runs import QUEUED
from conversations.rendering.rows import figure_parts, footer_parts
from conversations.rendering.source_text import duration_text
from conversations.rendering.tool_rows import (
    decision_text,
    failure_line,
    read_arguments,
    state_word,
    telling_argument,
    tool_word,
)

from .connection import UNKNOWN, StatusChanged, TextDelta
from .screen import BOLD, DIM, RED, YELLOW, TerminalScreen

TEXT = "text"

MAX_ERROR_CHARS = 300

_STATES = {QUEUED: "Waiting for another answer of this session…"}


class TranscriptPrinter:
    """A printer of a session's rows and deltas.

    ``client_id`` is the client id of the message that was typed here, which is not printed
    again."""

    def __init__(self, screen: TerminalScreen, *, client_id: str = "") -> None:
        self._screen = screen
        self._client_id = client_id
        self._parts: dict[int, str] = {}
        self._streamed = ""
        self._is_apart = False
        self._is_lost = False

    def print_delta(self, delta: TextDelta) -> None:
        self._is_lost = False
        if delta.kind != TEXT:
            word = tool_word(delta.name)[0] if delta.name else "Thinking"
            self._screen.status(f"{word}…")
            self._is_apart = bool(self._streamed)
            return
        text_so_far = self._parts.get(delta.part, "")
        if delta.offset > len(text_so_far):
            return  # a piece is missing, so the row will add the rest
        if self._is_apart:
            self._screen.end_answer()
            self._is_apart = False
        new_text = delta.text[len(text_so_far) - delta.offset :]
        self._parts[delta.part] = text_so_far + new_text
        self._streamed += new_text
        self._screen.answer(new_text)

    def print_status(self, doing: StatusChanged) -> None:
        """Show the status of the session. Print once that the server does not respond."""
        if doing.state != UNKNOWN:
            self._screen.status(doing.text or _STATES.get(doing.state, ""))
        elif not self._is_lost:
            self._screen.notice(f"[{doing.text}]", YELLOW)
        self._is_lost = doing.state == UNKNOWN

    def show(self, payload: Payload | Fallback) -> None:
        """Print a row. Approval requests are not printed; ``ChatExchange`` asks them."""
        screen = self._screen
        match payload:
            case events.UserMessage():
                if not self._client_id or payload.client_id != self._client_id:
                    files = (
                        attachment
                        for attachment in payload.attachments
                        if isinstance(attachment, dict)
                    )
                    lines = payload.text.split("\n")
                    lines += [f"[{file.get('name', 'file')}]" for file in files]
                    screen.notice("\n".join(f"> {line}" for line in lines), BOLD)
            case events.AssistantText():
                self._assistant_text(payload)
            case events.ToolCallStarted():
                screen.status(call_line(payload.name, payload.arguments))
            case events.ToolCallCompleted():
                self._completed(payload)
            case events.ContentIndicator():
                screen.notice(f"[{payload.kind}: {payload.label}]")
            case events.TurnSeparator():
                parts = [*footer_parts(payload), *figure_parts(payload)]
                if screen.is_terminal and parts:
                    screen.notice(" · ".join(parts))
            case events.Info() if payload.code != events.APPROVAL_ASKED:
                detail = f"\n{payload.detail}" if payload.detail else ""
                style = {"error": RED, "interrupted": YELLOW}.get(payload.kind, DIM)
                screen.notice(f"[{payload.text}]{detail}", style)
            case Fallback():
                screen.notice(f"[A row that cannot be read: {payload.reason}]", YELLOW)

    def _assistant_text(self, payload: events.AssistantText) -> None:
        # An answer may have several rows, each with a part of the streamed text.
        streamed, text = self._streamed, payload.text
        if payload.partial:  # one row has the whole text of an answer that was cut off
            streamed = SEPARATOR.join(self._parts.values())
        self._parts.clear()
        self._is_apart = False
        if streamed.startswith(text):
            self._streamed = streamed[len(text) :]
            if self._streamed:
                return
        else:
            self._streamed = ""
            if text.startswith(streamed):
                text = text[len(streamed) :]
            else:
                self._screen.end_answer()
            self._screen.answer(text)
        self._screen.end_answer()

    def _completed(self, payload: events.ToolCallCompleted) -> None:
        mark, word = state_word(payload.state, payload.ok)
        failed = mark == "failed"
        facts = [word.lower()]
        if payload.exit_code:
            facts.append(f"exit code {payload.exit_code}")
        if payload.duration_ms is not None:
            facts.append(duration_text(payload.duration_ms))
        if failed and payload.error:
            facts.append(failure_line(payload, limit=MAX_ERROR_CHARS))
        decided = decision_text(payload.decision, by=payload.decided_by, reason=payload.reason)
        if mark == "denied" and decided:
            facts = [decided]
        line = f"[{call_line(payload.name, payload.arguments)}: {', '.join(facts)}]"
        self._screen.notice(line, RED if failed else DIM)


def call_line(name: str, arguments: Any) -> str:
    """Describe a tool call on one line."""
    telling = telling_argument(name, read_arguments(arguments))
    return f"{tool_word(name)[0]} {telling}".rstrip()
