"""The chat: messages and commands in, answers out, until the person leaves."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

from conversations.domain.errors import LoomError
from conversations.domain.events import UserMessage
from conversations.domain.runs import COMPLETED
from conversations.web.commands import read_command

from .commands import ACTIONS, TERMINAL_COMMANDS, Quit
from .connection import Bridge, ChatConnection, Happening, OpenSession
from .exchange import ChatExchange
from .printing import Printer
from .screen import RED, Keyboard, Screen

RECENT_TURNS = 6
"""Turns that are shown when a session is gone on with."""

REMEMBERED = 200
"""Turns whose messages the arrow keys bring back."""

PROMPT, MORE = "> ", "… "


@dataclass
class Chat:
    """``keyboard`` is None in a pipe, ``approve`` says what then becomes of calls that
    ask. ``failed``: something was not carried out. ``oldest`` is the first turn that is
    shown, ``reached`` the seq of the last row."""

    connection: ChatConnection
    bridge: Bridge
    screen: Screen
    session: OpenSession
    keyboard: Keyboard | None = None
    approve: str | None = None
    failed: bool = False
    oldest: int | None = None
    reached: int = 0
    _later: deque[str] = field(default_factory=deque)

    def converse(self, keyboard: Keyboard) -> None:
        """With a person, until they leave. Raises Left, and KeyboardInterrupt for the
        second of two Ctrl-C in a row."""
        is_leaving = False
        while True:
            try:
                self.take(self._next_line(keyboard))
                is_leaving = False
            except (EOFError, Quit):
                return
            except KeyboardInterrupt:
                if is_leaving:
                    raise
                is_leaving = True
                self.screen.notice("\nCtrl-C again leaves, and so does Ctrl-D.")

    def carry_out(self, lines: Iterable[str]) -> None:
        """One line after the other, without a person. Raises Left."""
        try:
            for line in lines:
                if line.strip():
                    self.take(line)
        except Quit:
            return

    def take(self, text: str) -> None:
        """A command, or a message. Raises Quit and Left."""
        try:
            typed = read_command(text, TERMINAL_COMMANDS)
            if typed is not None:
                ACTIONS[typed.command.name](self, typed.argument)
            elif text.strip():
                self._send(text)
        except LoomError as error:
            self.failed = True
            self.screen.notice(error.message, RED)

    def enter(self, session: OpenSession) -> None:
        """Go on with a session: show where it stands, and what goes on in it."""
        self.session, self.reached, self.oldest = session, session.last_seq, None
        if self.keyboard:
            self._recall_messages(self.keyboard)
        if self.screen.is_terminal:
            self.screen.notice(_greeting(session))
            if session.turn_count:
                self.show_history(limit=RECENT_TURNS)
        self.attend(self.connection.watch(session, after=self.reached), Printer(self.screen))

    def attend(self, happenings: AsyncIterator[Happening], printer: Printer) -> str:
        """See a run to its end. Returns its last state; empty when there was none."""
        exchange = ChatExchange(
            self.connection,
            self.bridge,
            self.screen,
            self.session,
            keyboard=self.keyboard,
            approve=self.approve,
            later=self._later,
        )
        try:
            return exchange.attend(self.bridge.follow(happenings), printer)
        finally:
            self.reached = max(self.reached, exchange.reached)

    def show_history(self, *, limit: int) -> None:
        """The turns before those that are shown."""
        turns = self.bridge.call(
            self.connection.read_history(self.session.uuid, before=self.oldest, limit=limit)
        )
        screen = self.screen.for_reading()
        if not turns:
            screen.notice("No older messages.")
            return
        self.oldest = turns[0].number
        if self.oldest > 1:
            screen.notice(f"… /history shows what was before turn {self.oldest}.")
        Printer(screen).show_past(turns)

    def _next_line(self, keyboard: Keyboard) -> str:
        if self._later:
            line = self._later.popleft()
            self.screen.notice(f"{PROMPT}{line}")
            return line
        return keyboard.read(self.screen.prompt(PROMPT), self.screen.prompt(MORE))

    def _recall_messages(self, keyboard: Keyboard) -> None:
        turns = self.bridge.call(self.connection.read_history(self.session.uuid, limit=REMEMBERED))
        rows = (row for turn in turns for row in turn.rows)
        keyboard.remember(row.text for row in rows if isinstance(row, UserMessage))

    def _send(self, text: str) -> None:
        client_id = uuid4().hex
        if self.keyboard:
            self.keyboard.add(text)
        asked = self.connection.ask(self.session, text, client_id=client_id, after=self.reached)
        state = self.attend(asked, Printer(self.screen, client_id=client_id))
        self.failed |= state != COMPLETED


def _greeting(session: OpenSession) -> str:
    title = session.title or "Untitled session"
    if not session.turn_count:
        return "A new session. /help lists the commands."
    return f"{title}: {session.turn_count} turns in the archive. /help lists the commands."
