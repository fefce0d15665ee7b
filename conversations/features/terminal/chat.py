"""The chat: messages and commands in, answers out, until the person leaves."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urljoin
from uuid import uuid4

from conversations.domain.errors import LoomError
from conversations.domain.events import UserMessage
from conversations.domain.runs import COMPLETED
from conversations.web.commands import COMMANDS, Command, choice_of, read_command

from .connection import Bridge, ChatConnection, Happening, OpenSession
from .exchange import ChatExchange
from .printing import Printer, choose_session
from .screen import DIM, PLAIN, RED, Keyboard, Screen

# What each command does in a terminal: those of the composer, and two that only a terminal
# needs.


HISTORY_TURNS, FOUND_TURNS = 20, 10

ONLY_HERE = (
    Command(name="stop", says="Stop the answer while it is written, as Ctrl-C does"),
    Command(name="quit", says="Leave, as Ctrl-D does; the session stays"),
)

TERMINAL_COMMANDS = (*COMMANDS, *ONLY_HERE)


class Quit(Exception):
    """The person leaves, in order."""


ACTIONS: dict[str, Callable[["Chat", str], None]] = {}
"""Name of a command → what carries it out, given its argument."""


def action(function: Callable[["Chat", str], None]) -> Callable[["Chat", str], None]:
    """The function carries out the command of its name."""
    ACTIONS[function.__name__] = function
    return function


@action
def help(chat: "Chat", _: str) -> None:
    screen = chat.screen.for_reading()
    for command in TERMINAL_COMMANDS:
        usage = f"/{command.name} {command.argument and f'[{command.argument}]'}"
        screen.notice(f"{usage:<20}{command.says}", PLAIN)
    screen.notice("A line that ends with \\ goes on in the next one.", DIM)
    screen.notice("With a blank before it, a line that begins with / is a message.", DIM)


@action
def new(chat: "Chat", _: str) -> None:
    here = chat.session
    begun = chat.bridge.call(chat.connection.begin_session(here.workspace, key=here.key))
    chat.enter(begun)


@action
def resume(chat: "Chat", words: str) -> None:
    uuid = choose_session(
        chat.connection, chat.bridge, chat.screen, chat.session.workspace, words, chat.keyboard
    )
    chat.enter(
        chat.bridge.call(
            chat.connection.open_session(uuid)
            if uuid
            else chat.connection.begin_session(chat.session.workspace)
        )
    )


@action
def history(chat: "Chat", words: str) -> None:
    if not words or words.lower() == "older":
        chat.show_history(limit=HISTORY_TURNS)
        return
    found = chat.bridge.call(
        chat.connection.find_words(chat.session.uuid, words, limit=FOUND_TURNS)
    )
    screen = chat.screen.for_reading()
    for turn in found:
        screen.notice(f"{turn.number:>6}  {turn.role:<10} {turn.snippet}", PLAIN)
    if not found:
        screen.notice("Nothing found.")


@action
def clear(chat: "Chat", _: str) -> None:
    chat.oldest = None
    chat.screen.clear()


@action
def compact(chat: "Chat", _: str) -> None:
    work = chat.connection.compact(chat.session, client_id=uuid4().hex, after=chat.reached)
    chat.attend(work, Printer(chat.screen))


@action
def rename(chat: "Chat", title: str) -> None:
    kept = chat.bridge.call(chat.connection.rename(chat.session.uuid, title))
    chat.screen.notice(f"The session is called {kept} now.")


@action
def model(chat: "Chat", model: str) -> None:
    name = chat.bridge.call(chat.connection.choose_model(chat.session.uuid, model))
    chat.screen.notice(f"From now on {name} answers.")


@action
def undo(chat: "Chat", _: str) -> None:
    _name_page(chat, "Changed files are put back on the page", "changes/")


@action
def export(chat: "Chat", format: str) -> None:
    command = next(command for command in COMMANDS if command.name == "export")
    _name_page(chat, "The session is at", f"export/?format={choice_of(command, format)}")


def _name_page(chat: "Chat", says: str, address: str) -> None:
    chat.screen.for_reading().notice(f"{says} {urljoin(chat.session.url, address)}", PLAIN)


@action
def stop(chat: "Chat", _: str) -> None:
    chat.bridge.call(chat.connection.stop(chat.session.uuid))


@action
def quit(chat: "Chat", _: str) -> None:
    raise Quit


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
