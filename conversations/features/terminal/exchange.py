"""Following one run: printing what happens and asking the person for approvals."""

import signal
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from conversations.domain.errors import Conflict, LoomError, Rejected
from conversations.domain.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    Info,
    ToolCallCompleted,
    TurnSeparator,
)
from conversations.domain.tool_calls import (
    ALWAYS,
    DENY,
    NOBODY_THERE,
    ONCE,
    ApprovalRequest,
    read_asked,
)
from conversations.domain.tool_questions import QUESTION_ASKED, ToolQuestion, read_question
from conversations.rendering.tool_rows import MAX_CARD_CHARS, MAX_CARD_LINES, tool_word

from .connection import (
    ChatConnection,
    Happening,
    LoopBridge,
    OpenSession,
    RowReceived,
    RunEnded,
    StatusChanged,
    StreamEnded,
    TextDelta,
    ThreadedStream,
)
from .printing import TranscriptPrinter
from .screen import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Keyboard, TerminalScreen

_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")

LOOK_INTERVAL_SECONDS = 0.1  # Between two checks of Ctrl-C and the keyboard.

ALL, NONE = "all", "none"

# Approving a tool call: showing the request and reading the answer.


def show_question(screen: TerminalScreen, request: ApprovalRequest, *, url: str) -> None:
    """Print an approval request, cut to the same length as a card on a page.

    If text is missing, print the URL of the page."""
    screen.notice(f"{tool_word(request.name)[0]} asks: {request.summary or request.name}", BOLD)
    if request.note:
        screen.notice(request.note, YELLOW)
    text = request.command or request.diff
    lines = text[:MAX_CARD_CHARS].rstrip("\n").split("\n") if text else []
    for line in lines[:MAX_CARD_LINES]:
        style = {"+": GREEN, "-": RED, "@": DIM}.get(line[:1], PLAIN)
        screen.notice(f"  {line}", style if request.diff and not request.command else PLAIN)
    if len(text) > MAX_CARD_CHARS or len(lines) > MAX_CARD_LINES:
        screen.notice(f"There is more of it at {url}", YELLOW)


def choices(request: ApprovalRequest) -> str:
    """Return the prompt after which the answer is typed."""
    kind = request.kind_label or request.kind_key
    always = f", a = always ({kind})" if kind else ""
    return f"Allow it? y = yes{always}, n = no (you can add a reason): "


def read_decision(line: str, request: ApprovalRequest) -> tuple[str, str] | None:
    """Return the decision that was typed and its reason, or None if the line is not an answer."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",.:")
    if word in _NO:
        return DENY, rest.strip()
    if word in _YES and not rest:
        return ONCE, ""
    has_kind = bool(request.kind_label or request.kind_key)
    return (ALWAYS, "") if word in _ALWAYS and not rest and has_kind else None


@contextmanager
def collected_interrupts() -> Iterator[list[int]]:
    """Append each Ctrl-C to a list instead of raising KeyboardInterrupt, so that no row is lost."""
    noted: list[int] = []
    earlier = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, earlier)


class ChatInterrupted(Exception):
    """The person wants to leave without waiting for the end of the answer."""


@dataclass(kw_only=True)
class ChatExchange:
    """One run that is followed until it ends.

    ``keyboard`` is None in a pipe. ``approve`` is the decision on all approval requests, or None.
    Without either, requests have to be decided on the session's page. ``later`` collects the
    messages that are typed while the answer streams. ``reached`` is the seq of the last row."""

    connection: ChatConnection
    bridge: LoopBridge
    screen: TerminalScreen
    session: OpenSession
    keyboard: Keyboard | None
    approve: str | None
    later: deque[str]
    reached: int
    state: str = ""
    _waiting: dict[str, ApprovalRequest] = field(default_factory=dict)
    _shown_call: str | None = None
    _is_stopping: bool = False
    _interrupts: list[int] = field(default_factory=list)

    def follow(self, stream: ThreadedStream[Happening], printer: TranscriptPrinter) -> str:
        """Follow the run and return its last state, or "" if there was no run.

        Raise ChatInterrupted."""
        try:
            with collected_interrupts() as self._interrupts:
                while True:
                    self._handle(stream.get(seconds=LOOK_INTERVAL_SECONDS), printer)
                    self._handle_line()
                    if self._interrupts:
                        self._interrupts.clear()
                        self._stop()
        except StreamEnded:
            if self._is_stopping and self.keyboard is None:
                raise ChatInterrupted from None  # in a pipe, Ctrl-C also ends the chat
            return self.state
        finally:
            self.screen.clear_status()
            self.screen.end_answer()
            stream.close()

    def _handle(self, happening: Happening | None, printer: TranscriptPrinter) -> None:
        match happening:
            case TextDelta():
                printer.print_delta(happening)
            case StatusChanged() if self._shown_call is None:
                printer.print_status(happening)
            case RowReceived():
                self._handle_row(happening, printer)
            case RunEnded():
                self.state = happening.state
            case None if self._waiting:
                # Ask only if no row is waiting, because a row may have decided the request.
                self._handle_waiting(*next(iter(self._waiting.items())))

    def _handle_waiting(self, call: str, request: ApprovalRequest) -> None:
        if self.approve is not None:
            decision = (ONCE, "") if self.approve == ALL else (DENY, NOBODY_THERE)
            if not self._decide(call, *decision):
                self.approve = None  # a person has to decide
        elif self.keyboard is None:
            del self._waiting[call]
            text = f"Waiting for approval: {request.summary}. Answer at {self.session.url}"
            self.screen.notice(text)
        elif call != self._shown_call:
            self._shown_call = call
            show_question(self.screen, request, url=self.session.url)
            self.screen.ask(choices(request))

    def _handle_line(self) -> None:
        if not self.keyboard:
            return
        try:
            line = self.keyboard.typed()
        except EOFError:  # Ctrl-D: leave after the answer, or at once if it waits for a decision
            if self._shown_call is not None:
                raise ChatInterrupted from None
            if "/quit" not in self.later:
                self.later.append("/quit")
            return
        except Rejected as error:
            self.screen.end_typed_line()
            self.screen.notice(f"[{error.message}]", RED)
            self._shown_call = None  # the request is shown again
            return
        if line is None:
            return
        self.screen.end_typed_line()
        if line.strip() == "/stop":
            self._stop()
        elif self._shown_call is not None:
            request = self._waiting[self._shown_call]
            decision = read_decision(line, request)
            if decision is None:
                self.screen.ask(choices(request))
                return
            call, self._shown_call = self._shown_call, None
            self._decide(call, *decision)  # if this fails, the request is shown again
        elif line.strip():
            self.later.append(line)
            self.screen.notice("[Will be sent next.]")

    def _handle_row(self, row: RowReceived, printer: TranscriptPrinter) -> None:
        self.reached = max(self.reached, row.seq)
        payload = row.payload
        match payload:
            case Info(code=code, data=data) if code == APPROVAL_DECIDED:
                self._waiting.pop(str((data or {}).get("call")), None)
            case ToolCallCompleted():
                self._waiting.pop(payload.call, None)
            case TurnSeparator():
                self._waiting.clear()  # the run is over
        if self._shown_call not in self._waiting:
            self._shown_call = None
        printer.show(payload)
        if isinstance(payload, Info) and payload.code == APPROVAL_ASKED:
            request = read_asked(payload.data or {})
            with suppress(ValueError):  # imported from elsewhere
                self._waiting[str(UUID(request.call))] = request
        if isinstance(payload, Info) and payload.code == QUESTION_ASKED:
            self._handle_question(read_question(payload.data))

    def _handle_question(self, question: ToolQuestion | None) -> None:
        """Handle a question of a tool server. It can only be answered on the session's page."""
        if question is None:
            return
        if self.approve != NONE:
            self.screen.notice(f"Answer at {self.session.url}")
            return
        with suppress(ValueError):  # imported from elsewhere
            session, call = self.session.uuid, UUID(question.call)
            self._run_interruptible(self.connection.decline(session, call, question=question.id))

    def _decide(self, call: str, decision: str, reason: str) -> bool:
        """Decide a call. Return whether it is decided, also if another person has decided it."""
        session = self.session.uuid
        is_decided = self._run_interruptible(
            self.connection.decide(session, UUID(call), decision=decision, reason=reason)
        )
        if is_decided:
            self._waiting.pop(call, None)
        return is_decided

    def _stop(self) -> None:
        if self._is_stopping:
            raise ChatInterrupted
        self._is_stopping = True
        self._waiting.clear()
        self._shown_call = None
        self.screen.notice("[Stopping. Press Ctrl-C again to leave.]")
        self._run_interruptible(self.connection.stop(self.session.uuid))

    def _run_interruptible(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run the work until it is done or Ctrl-C is pressed. Return False if it was not done.

        If another person has done it already, return True. Raise ChatInterrupted for a Ctrl-C
        after the run was stopped."""
        trying = self.bridge.start(work)
        while not wait((trying,), LOOK_INTERVAL_SECONDS).done:
            if self._interrupts:
                trying.cancel()
                if self._is_stopping:
                    raise ChatInterrupted
                return False
        try:
            trying.result()
        except Conflict as error:  # another person was faster
            self.screen.notice(f"[{error.message}]")
        except LoomError as error:
            self.screen.notice(f"[{error.message}]", RED)
            return False
        return True
