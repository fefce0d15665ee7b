"""From a message to the end of its run: what happens is written, what asks is asked."""

import signal
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from conversations.domain.errors import Conflict, LoomError
from conversations.domain.events import APPROVAL_ASKED, APPROVAL_DECIDED, Info
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE
from conversations.domain.tool_policy import ApprovalRequest, read_asked
from conversations.rendering.tool_rows import CARD_CHARS, CARD_LINES
from conversations.rendering.tool_words import tool_word

from .connection import (
    Bridge,
    ChatConnection,
    Delta,
    Doing,
    Happening,
    OpenSession,
    RunEnded,
    Seen,
    Stream,
    StreamOver,
)
from .printing import Printer
from .screen import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Keyboard, Screen

_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")

# How often Ctrl-C and the keyboard are looked at while nothing comes.
LOOK_SECONDS = 0.1

ALL, NONE = "all", "none"

NOBODY_THERE = "Nobody is there to be asked; do without it."

# A call that waits for a person: what it shows, and what the answer means.


def show_question(screen: Screen, asked: ApprovalRequest, *, url: str) -> None:
    """All that is asked for, as far as a card on a page has it; the rest is there."""
    screen.notice(f"{tool_word(asked.name)[0]} asks: {asked.summary or asked.name}", BOLD)
    if asked.note:
        screen.notice(asked.note, YELLOW)
    text = asked.command or asked.diff
    lines = text[:CARD_CHARS].rstrip("\n").split("\n")
    for line in lines[:CARD_LINES] if text else ():
        style = {"+": GREEN, "-": RED, "@": DIM}.get(line[:1], PLAIN)
        screen.notice(f"  {line}", style if asked.diff and not asked.command else PLAIN)
    if len(text) > CARD_CHARS or len(lines) > CARD_LINES:
        screen.notice(f"There is more of it, at {url}", YELLOW)


def choices(asked: ApprovalRequest) -> str:
    """The line behind which the answer is typed."""
    kind = asked.kind_label or asked.kind_key
    always = f", a = always ({kind})" if kind else ""
    return f"Allow it? y = yes{always}, n = no (a reason may follow): "


def read_decision(line: str, asked: ApprovalRequest) -> tuple[str, str] | None:
    """The decision that was typed behind the question, and a reason; None when it is no
    answer to it."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",.:")
    if word in _NO:
        return DENY, rest.strip()
    if word in _YES and not rest:
        return ONCE, ""
    has_kind = bool(asked.kind_label or asked.kind_key)
    return (ALWAYS, "") if word in _ALWAYS and not rest and has_kind else None


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted in the list, and interrupts nothing: no row may get lost by it."""
    noted: list[int] = []
    earlier = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, earlier)


class Left(Exception):
    """The person wants to leave, without waiting for the end of the answer."""


class ChatExchange:
    """One run, attended to. ``keyboard`` is None where nobody types: what asks is then
    decided by ``approve``, or by somebody on the page. ``later`` gets the messages that
    are typed while the answer streams."""

    def __init__(
        self,
        connection: ChatConnection,
        bridge: Bridge,
        screen: Screen,
        session: OpenSession,
        *,
        keyboard: Keyboard | None,
        approve: str | None,
        later: deque[str],
    ) -> None:
        self._connection = connection
        self._bridge = bridge
        self._screen = screen
        self._session = session
        self._keyboard = keyboard
        self._approve = approve
        self._later = later
        self._waiting: dict[UUID, ApprovalRequest] = {}
        self._shown: UUID | None = None
        self._is_stopping = False
        self._is_listening = True
        self.state = ""
        self.reached = session.last_seq

    def attend(self, stream: Stream[Happening], printer: Printer) -> str:
        """The run's last state; empty when there was no run. Raises Left."""
        try:
            with noted_interrupts() as interrupts:
                while True:
                    self._take(stream.take(seconds=LOOK_SECONDS), printer)
                    self._take_line()
                    if interrupts:
                        interrupts.clear()
                        self._stop()
        except StreamOver:
            if self._is_stopping and self._keyboard is None:
                raise Left from None  # nobody is there to be asked what comes next
            return self.state
        finally:
            self._screen.clear_status()
            self._screen.end_answer()
            stream.close()

    def _take(self, happening: Happening | None, printer: Printer) -> None:
        match happening:
            case Delta():
                printer.take_delta(happening)
            case Doing() if self._shown is None:
                printer.take_doing(happening)
            case Seen():
                self._take_row(happening, printer)
            case RunEnded():
                self.state = happening.state
            case None if self._waiting and self._keyboard:
                call, asked = next(iter(self._waiting.items()))
                if call != self._shown:
                    self._shown = call
                    show_question(self._screen, asked, url=self._session.url)
                    self._screen.ask(choices(asked))

    def _take_line(self) -> None:
        """What somebody typed while the answer streams, or a question is open."""
        if not self._keyboard or not self._is_listening:
            return
        try:
            line = self._keyboard.typed()
        except EOFError:  # Ctrl-D: leave when the answer is there
            self._is_listening = False
            self._later.append("/quit")
            return
        if line is None:
            return
        self._screen.end_typed_line()
        if line.strip() == "/stop":
            self._stop()
        elif self._shown is not None:
            asked = self._waiting[self._shown]
            decision = read_decision(line, asked)
            if decision is None:
                self._screen.ask(choices(asked))
                return
            call, self._shown = self._shown, None
            self._waiting.pop(call)
            self._decide(call, *decision)
        elif line.strip():
            self._later.append(line)
            self._screen.notice("[This comes next.]")

    def _take_row(self, row: Seen, printer: Printer) -> None:
        self.reached = max(self.reached, row.seq)
        payload = row.payload
        if isinstance(payload, Info) and payload.code == APPROVAL_DECIDED:
            with suppress(ValueError):
                self._waiting.pop(UUID(str((payload.data or {}).get("call"))), None)
            if self._shown not in self._waiting:
                self._shown = None
        printer.show(payload)
        if isinstance(payload, Info) and payload.code == APPROVAL_ASKED:
            asked = read_asked(payload.data or {})
            with suppress(ValueError):  # imported from elsewhere
                self._note_question(UUID(asked.call), asked)

    def _note_question(self, call: UUID, asked: ApprovalRequest) -> None:
        if self._approve == ALL:
            self._decide(call, ONCE, "")
        elif self._approve is not None:
            self._decide(call, DENY, NOBODY_THERE)
        elif self._keyboard is None:
            text = f"Waiting for approval: {asked.summary}. Answer at {self._session.url}"
            self._screen.notice(text)
        else:
            self._waiting[call] = asked

    def _decide(self, call: UUID, decision: str, reason: str) -> None:
        session = self._session.uuid
        self._try(self._connection.decide(session, call, decision=decision, reason=reason))

    def _stop(self) -> None:
        if self._is_stopping:
            raise Left
        self._is_stopping = True
        self._waiting.clear()
        self._shown = None
        self._screen.notice("[Stopping. Ctrl-C again leaves.]")
        self._try(self._connection.stop(self._session.uuid))

    def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._bridge.call(work)
        except Conflict as error:  # somebody else was faster
            self._screen.notice(f"[{error.message}]")
        except LoomError as error:
            self._screen.notice(f"[{error.message}]", RED)
