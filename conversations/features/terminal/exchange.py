"""From a message to the end of its run: what happens is written, what asks is asked."""

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from conversations.domain.errors import Conflict, LoomError
from conversations.domain.events import APPROVAL_ASKED, APPROVAL_DECIDED, Info
from conversations.domain.tool_calls import ALWAYS, DENY, ONCE, ApprovalRequest, read_asked
from conversations.rendering.tool_rows import CARD_CHARS, CARD_LINES, tool_word

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

# A call that waits for a person: what it shows, and what the answer means.


_YES, _ALWAYS, _NO = ("y", "yes"), ("a", "always"), ("n", "no")


@dataclass(frozen=True, slots=True)
class TypedDecision:
    decision: str
    reason: str = ""


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
    kind = _kind_of(asked)
    always = f", a = always ({kind})" if kind else ""
    return f"Allow it? y = yes{always}, n = no (a reason may follow): "


def read_decision(line: str, asked: ApprovalRequest) -> TypedDecision | None:
    """What was typed behind the question; None when it is no answer to it."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",.:")
    if word in _NO:
        return TypedDecision(DENY, rest.strip())
    if rest:
        return None
    if word in _YES:
        return TypedDecision(ONCE)
    return TypedDecision(ALWAYS) if word in _ALWAYS and _kind_of(asked) else None


def _kind_of(asked: ApprovalRequest) -> str:
    """What "always" would allow; empty: nothing."""
    return asked.kind_label or asked.kind_key


LOOK_SECONDS = 0.1
"""How often Ctrl-C and the keyboard are looked at while nothing comes."""

ALL, NONE = "all", "none"

NOBODY_THERE = "Nobody is there to be asked; do without it."


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
                    self._take(stream, printer)
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

    def _take(self, stream: Stream[Happening], printer: Printer) -> None:
        match stream.take(seconds=LOOK_SECONDS):
            case Delta() as delta:
                printer.take_delta(delta)
            case Doing() as doing:
                if self._shown is None:
                    printer.take_doing(doing)
            case Seen() as row:
                self._take_row(row, printer)
            case RunEnded() as ended:
                self.state = ended.state
            case None if self._waiting and self._keyboard:
                self._put_question()
        if self._keyboard and self._is_listening:
            try:
                line = self._keyboard.typed()
            except EOFError:  # Ctrl-D: leave when the answer is there
                self._is_listening = False
                self._later.append("/quit")
            else:
                if line is not None:
                    self._read(line)

    def _take_row(self, row: Seen, printer: Printer) -> None:
        self.reached = max(self.reached, row.seq)
        payload = row.payload
        if isinstance(payload, Info) and payload.code == APPROVAL_DECIDED:
            with suppress(ValueError):
                self._waiting.pop(UUID(str((payload.data or {}).get("call"))), None)
            if self._shown not in self._waiting:
                self._shown = None
        printer.take_row(row)
        if isinstance(payload, Info) and payload.code == APPROVAL_ASKED:
            self._note_question(read_asked(payload.data or {}))

    def _note_question(self, asked: ApprovalRequest) -> None:
        try:
            call = UUID(asked.call)
        except ValueError:  # brought along from elsewhere
            return
        if self._approve is not None:
            allows = self._approve == ALL
            self._decide(call, TypedDecision(ONCE) if allows else TypedDecision(DENY, NOBODY_THERE))
        elif self._keyboard is None:
            text = f"Waiting for approval: {asked.summary}. Answer at {self._session.url}"
            self._screen.notice(text)
        else:
            self._waiting[call] = asked

    def _put_question(self) -> None:
        call, asked = next(iter(self._waiting.items()))
        if call != self._shown:
            self._shown = call
            show_question(self._screen, asked, url=self._session.url)
            self._screen.ask(choices(asked))

    def _read(self, line: str) -> None:
        """What somebody typed while the answer streams, or a question is open."""
        self._screen.end_typed_line()
        if line.strip() == "/stop":
            self._stop()
        elif self._shown is not None:
            self._answer(self._shown, line)
        elif line.strip():
            self._later.append(line)
            self._screen.notice("[This comes next.]")

    def _answer(self, call: UUID, line: str) -> None:
        asked = self._waiting[call]
        decision = read_decision(line, asked)
        if decision is None:
            self._screen.ask(choices(asked))
            return
        self._waiting.pop(call)
        self._shown = None
        self._decide(call, decision)

    def _decide(self, call: UUID, decision: TypedDecision) -> None:
        self._try(
            lambda: self._bridge.call(
                self._connection.decide(
                    self._session.uuid, call, decision=decision.decision, reason=decision.reason
                )
            )
        )

    def _stop(self) -> None:
        if self._is_stopping:
            raise Left
        self._is_stopping = True
        self._waiting.clear()
        self._shown = None
        self._screen.notice("[Stopping. Ctrl-C again leaves.]")
        self._try(lambda: self._bridge.call(self._connection.stop(self._session.uuid)))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Conflict as error:  # somebody else was faster
            self._screen.notice(f"[{error.message}]")
        except LoomError as error:
            self._screen.notice(f"[{error.message}]", RED)
