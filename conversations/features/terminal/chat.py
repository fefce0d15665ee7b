"""The chat: messages and commands in, answers out, until the person leaves."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urljoin
from uuid import uuid4

from django.urls import reverse

from conversations.domain.errors import LoomError
from conversations.domain.events import Fallback, Payload, UserMessage
from conversations.domain.runs import COMPLETED
from conversations.web.commands import COMMANDS, Command, choice_of, read_command

from .connection import Bridge, ChatConnection, Happening, OpenSession
from .exchange import ChatExchange
from .printing import Printer, choose_session
from .screen import DIM, PLAIN, RED, Keyboard, Screen

# The commands of the composer, and two that only a terminal needs.
TERMINAL_COMMANDS = (
    *COMMANDS,
    Command(name="stop", says="Stop the answer while it is written, as Ctrl-C does"),
    Command(name="quit", says="Leave, as Ctrl-D does; the session stays"),
)

HISTORY_TURNS, FOUND_TURNS = 20, 10
RECENT_TURNS = 6  # Turns that are shown when a session is gone on with.
REMEMBERED = 200  # Turns whose messages the arrow keys bring back.

PROMPT, MORE = "> ", "… "


class Quit(Exception):
    """The person leaves, in order."""


class Chat:
    """``keyboard`` is None in a pipe, ``approve`` says what then becomes of calls that
    ask. ``failed``: something was not carried out. ``oldest`` is the first turn that is
    shown, ``reached`` the seq of the last row."""

    def __init__(
        self,
        connection: ChatConnection,
        bridge: Bridge,
        screen: Screen,
        session: OpenSession,
        *,
        keyboard: Keyboard | None = None,
        approve: str | None = None,
    ) -> None:
        self.connection = connection
        self.bridge = bridge
        self.screen = screen
        self.session = session
        self.keyboard = keyboard
        self.approve = approve
        self.failed = False
        self.oldest: int | None = None
        self.reached = 0
        self._later = deque[str]()

    def converse(self, keyboard: Keyboard) -> None:
        """With a person, until they leave. Raises Left, and KeyboardInterrupt for the
        second of two Ctrl-C in a row."""
        is_leaving = False
        while True:
            try:
                if self._later:
                    line = self._later.popleft()
                    self.screen.notice(f"{PROMPT}{line}")
                else:
                    prompt, more = self.screen.prompt(PROMPT), self.screen.prompt(MORE)
                    line = keyboard.read(prompt, more)
                self.take(line)
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
            if typed is None:
                if text.strip():
                    self.send(text)
            elif typed.command.view:
                self.name_download(typed.command, typed.argument)
            else:
                getattr(self, f"do_{typed.command.name}")(typed.argument)
        except LoomError as error:
            self.failed = True
            self.screen.notice(error.message, RED)

    def send(self, text: str) -> None:
        client_id = uuid4().hex
        if self.keyboard:
            self.keyboard.add(text)
        asked = self.connection.ask(self.session, text, client_id=client_id, after=self.reached)
        state = self.attend(asked, Printer(self.screen, client_id=client_id))
        self.failed |= state != COMPLETED

    def enter(self, session: OpenSession) -> None:
        """Go on with a session: show where it stands, and what goes on in it."""
        self.session, self.reached, self.oldest = session, session.last_seq, None
        if self.keyboard:
            _, rows = self.read_history(limit=REMEMBERED)
            self.keyboard.remember(row.text for row in rows if isinstance(row, UserMessage))
        if self.screen.is_terminal:
            words = "A new session."
            if session.turn_count:
                title = session.title or "Untitled session"
                words = f"{title}: {session.turn_count} turns in the archive."
            self.screen.notice(f"{words} /help lists the commands.")
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

    def read_history(
        self, *, before: int | None = None, limit: int
    ) -> tuple[int | None, list[Payload | Fallback]]:
        reading = self.connection.read_history(self.session.uuid, before=before, limit=limit)
        return self.bridge.call(reading)

    def show_history(self, *, limit: int) -> None:
        """The turns before those that are shown."""
        oldest, rows = self.read_history(before=self.oldest, limit=limit)
        screen = self.screen.for_reading()
        if oldest is None:
            screen.notice("No older messages.")
            return
        self.oldest = oldest
        if oldest > 1:
            screen.notice(f"… /history shows what was before turn {oldest}.")
        printer = Printer(screen)
        for row in rows:
            printer.show(row)

    def name_page(self, says: str, address: str) -> None:
        """``address`` is relative to the session's page."""
        address = urljoin(self.session.url, address)
        self.screen.for_reading().notice(f"{says} {address}", PLAIN)

    def name_download(self, command: Command, choice: str) -> None:
        """A feature's command, which downloads something of the session."""
        uuid = self.session.uuid
        # Relative, since a server may have the product below a path of its own.
        below = reverse(command.view, args=[uuid]).removeprefix(reverse("session", args=[uuid]))
        chosen = choice_of(command, choice)
        self.name_page("The session is at", f"{below}?{command.argument}={chosen}")

    # What each command does here.

    def do_help(self, _: str) -> None:
        screen = self.screen.for_reading()
        for command in TERMINAL_COMMANDS:
            usage = f"/{command.name} {command.argument and f'[{command.argument}]'}"
            screen.notice(f"{usage:<20}{command.says}", PLAIN)
        screen.notice("A line that ends with \\ goes on in the next one.", DIM)
        screen.notice("With a blank before it, a line that begins with / is a message.", DIM)

    def do_new(self, _: str) -> None:
        here = self.session
        self.enter(self.bridge.call(self.connection.begin_session(here.workspace, key=here.key)))

    def do_resume(self, words: str) -> None:
        slug = self.session.workspace
        uuid = choose_session(self.connection, self.bridge, self.screen, slug, words, self.keyboard)
        if uuid is None:
            self.enter(self.bridge.call(self.connection.begin_session(slug)))
        else:
            self.enter(self.bridge.call(self.connection.open_session(uuid)))

    def do_history(self, words: str) -> None:
        if not words or words.lower() == "older":
            self.show_history(limit=HISTORY_TURNS)
            return
        finding = self.connection.find_words(self.session.uuid, words, limit=FOUND_TURNS)
        found = self.bridge.call(finding)
        screen = self.screen.for_reading()
        for number, role, snippet in found:
            screen.notice(f"{number:>6}  {role:<10} {snippet}", PLAIN)
        if not found:
            screen.notice("Nothing found.")

    def do_clear(self, _: str) -> None:
        self.oldest = None
        self.screen.clear()

    def do_compact(self, _: str) -> None:
        work = self.connection.compact(self.session, client_id=uuid4().hex, after=self.reached)
        self.attend(work, Printer(self.screen))

    def do_rename(self, title: str) -> None:
        kept = self.bridge.call(self.connection.rename(self.session.uuid, title))
        self.screen.notice(f"The session is called {kept} now.")

    def do_model(self, model: str) -> None:
        name = self.bridge.call(self.connection.choose_model(self.session.uuid, model))
        self.screen.notice(f"From now on {name} answers.")

    def do_undo(self, _: str) -> None:
        self.name_page("Changed files are put back on the page", "changes/")

    def do_stop(self, _: str) -> None:
        self.bridge.call(self.connection.stop(self.session.uuid))

    def do_quit(self, _: str) -> None:
        raise Quit
