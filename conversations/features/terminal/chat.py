"""The chat: choosing a session, sending messages, executing commands and printing answers."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from urllib.parse import urljoin
from uuid import UUID, uuid4

from django.urls import reverse

from conversations.domain.errors import LoomError, Rejected
from conversations.domain.events import Fallback, Payload, UserMessage
from conversations.domain.runs import COMPLETED
from conversations.domain.session_keys import check_key
from conversations.domain.text import one_line, visible
from conversations.web.commands import COMMANDS, ComposerCommand, choice_of, read_command

from .connection import CHANNEL, ChatConnection, Happening, LoopBridge, OpenSession
from .exchange import ChatExchange
from .printing import TranscriptPrinter
from .screen import BOLD, DIM, PLAIN, RED, Keyboard, TerminalScreen, fit

# The commands of the composer, and two that only a terminal needs.
TERMINAL_COMMANDS = (
    *COMMANDS,
    ComposerCommand(name="stop", says="Stop the running answer, like Ctrl-C"),
    ComposerCommand(name="quit", says="Leave, like Ctrl-D; the session stays"),
)

HISTORY_TURNS, FOUND_TURNS = 20, 10
RECENT_TURNS = 6  # Turns that are shown when a session is resumed.
MAX_REMEMBERED_TURNS = 200  # Turns whose messages are in the history of the arrow keys.

MAX_LISTED_SESSIONS = 9
MAX_TITLE_COLUMNS = 50

PROMPT, MORE = "> ", "… "

DEFAULT_NAME = "default"  # The name of the session if none is given.


class QuitCommand(Exception):
    """The person has entered the command to leave."""


class NoSingleMatch(Rejected):
    """No session or workspace fits, or several do."""

    code = "no_choice"


class TerminalChat:
    """A chat in a terminal or a pipe. Call :meth:`begin` first.

    ``keyboard`` is None in a pipe. ``approve`` is the decision on all tool calls that need
    approval (``all``, ``none``), or None. ``failed`` says that a message or command failed.
    ``oldest`` is the first turn that is shown, ``reached`` the seq of the last row."""

    session: OpenSession

    def __init__(
        self,
        connection: ChatConnection,
        bridge: LoopBridge,
        screen: TerminalScreen,
        *,
        keyboard: Keyboard | None = None,
        approve: str | None = None,
    ) -> None:
        self.connection = connection
        self.bridge = bridge
        self.call = bridge.call
        self.screen = screen
        self.keyboard = keyboard
        self.approve = approve
        self.failed = False
        self.oldest: int | None = None
        self.reached = 0
        self._later = deque[str]()

    def begin(self, workspace: str, name: str) -> None:
        """Open the session with this uuid or name, or let the person choose one without a name.

        Raise LoomError, KeyboardInterrupt and EOFError."""
        uuid = None
        with suppress(ValueError):
            uuid = UUID(name)
        if uuid is not None:
            self.open_session(self.call(self.connection.open_session(uuid)))
            return
        workspace = workspace or self.choose_workspace()
        key = check_key(f"{CHANNEL}:{name or DEFAULT_NAME}")
        is_asked = bool(self.keyboard and not name)
        if is_asked and self.call(self.connection.list_sessions(workspace, limit=1)):
            self.open_session(self.choose_session(workspace))
        else:
            self.open_session(self.call(self.connection.open_by_key(workspace, key)))

    def choose_workspace(self) -> str:
        """Return the slug of the only workspace, or of the one that the person chooses."""
        workspaces = self.call(self.connection.list_workspaces())
        if not workspaces:
            raise NoSingleMatch("There is no workspace yet. Create one with create_workspace.")
        if len(workspaces) == 1:
            return workspaces[0][0]
        if self.keyboard is None:
            names = ", ".join(slug for slug, _ in workspaces)
            raise NoSingleMatch(f"Choose a workspace with --workspace: {names}.")
        self.screen.notice("Workspaces:", BOLD)
        for number, (slug, name) in enumerate(workspaces, 1):
            self.screen.notice(f"  [{number}] {name} ({slug})", PLAIN)
        return workspaces[self._choose_one(len(workspaces), self.keyboard)][0]

    def choose_session(self, workspace: str, words: str = "") -> OpenSession:
        """Return the only session found for these words, or the one that the person chooses.

        The person may also choose a new session."""
        listing = self.connection.list_sessions(workspace, query=words, limit=MAX_LISTED_SESSIONS)
        sessions = self.call(listing)
        if not sessions:
            raise NoSingleMatch("This session does not exist.")
        chosen = 0
        if not words or len(sessions) > 1:
            if self.keyboard is None:
                raise NoSingleMatch(
                    "Several sessions fit: " + "; ".join(session.title for session in sessions)
                )
            self.screen.notice(f"Sessions in {workspace}:", BOLD)
            for number, session in enumerate(sessions, 1):
                last_active = f"{session.last_active_at:%Y-%m-%d %H:%M} UTC"
                title = one_line(session.title, limit=MAX_TITLE_COLUMNS) or "Untitled session"
                turns = f"{session.turn_count} turn{'' if session.turn_count == 1 else 's'}"
                facts = " · ".join(
                    fact for fact in (last_active, title, turns, session.model) if fact
                )
                line = fit(visible(f"  [{number}] {facts}"), self.screen.width)
                self.screen.notice(line, PLAIN)
            self.screen.notice(f"  [{len(sessions) + 1}] Start a new session", PLAIN)
            chosen = self._choose_one(len(sessions) + 1, self.keyboard)
        if chosen == len(sessions):
            return self.call(self.connection.begin_session(workspace))
        return self.call(self.connection.open_session(sessions[chosen].uuid))

    def _choose_one(self, count: int, keyboard: Keyboard) -> int:
        """Let the person choose a number and return its index. Enter chooses the first one."""
        while True:
            prompt = self.screen.prompt("Number, or Enter for [1]: ")
            typed = keyboard.read(prompt, "").strip() or "1"
            if typed.isascii() and typed.isdigit() and 1 <= int(typed[:9]) <= count:
                return int(typed) - 1
            self.screen.notice(f"Type a number from 1 to {count}.")

    def converse(self, keyboard: Keyboard) -> None:
        """Handle typed lines until the person leaves.

        Raise ChatInterrupted, and KeyboardInterrupt if Ctrl-C is pressed twice in a row."""
        is_leaving = False
        while True:
            try:
                if self._later:
                    line = self._later.popleft()
                    self.screen.notice(f"{PROMPT}{line}")
                else:
                    prompt, more = self.screen.prompt(PROMPT), self.screen.prompt(MORE)
                    line = keyboard.read(prompt, more)
                self.handle(line)
                is_leaving = False
            except (EOFError, QuitCommand):
                return
            except KeyboardInterrupt:
                if is_leaving:
                    raise
                is_leaving = True
                self.screen.notice("\nPress Ctrl-C or Ctrl-D again to leave.")

    def execute(self, lines: Iterable[str]) -> None:
        """Handle the lines of a pipe one after the other. Raise ChatInterrupted."""
        try:
            for line in lines:
                if line.strip():
                    self.handle(line)
        except QuitCommand:
            return

    def handle(self, text: str) -> None:
        """Execute a command or send a message. Raise QuitCommand and ChatInterrupted."""
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
        exchange = self.connection.ask(self.session, text, client_id=client_id, after=self.reached)
        state = self.follow(exchange, TranscriptPrinter(self.screen, client_id=client_id))
        self.failed |= state != COMPLETED

    def open_session(self, session: OpenSession) -> None:
        """Switch to a session: show its last turns, and follow its run if one is active."""
        self.session, self.reached, self.oldest = session, session.last_seq, None
        if self.keyboard:
            _, rows = self.read_history(limit=MAX_REMEMBERED_TURNS)
            self.keyboard.remember(row.text for row in rows if isinstance(row, UserMessage))
        if self.screen.is_terminal:
            words = "New session."
            if session.turn_count:
                title = session.title or "Untitled session"
                words = f"{title}: {session.turn_count} turns in the archive."
            self.screen.notice(f"{words} /help lists the commands.")
            if session.turn_count:
                self.show_history(limit=RECENT_TURNS)
        self.follow(
            self.connection.watch(session, after=self.reached), TranscriptPrinter(self.screen)
        )

    def follow(self, happenings: AsyncIterator[Happening], printer: TranscriptPrinter) -> str:
        """Follow a run until it ends. Return its last state, or "" if there was no run."""
        exchange = ChatExchange(
            connection=self.connection,
            bridge=self.bridge,
            screen=self.screen,
            session=self.session,
            keyboard=self.keyboard,
            approve=self.approve,
            later=self._later,
            reached=self.reached,
        )
        try:
            return exchange.follow(self.bridge.follow(happenings), printer)
        finally:
            self.reached = exchange.reached

    def read_history(
        self, *, before: int | None = None, limit: int
    ) -> tuple[int | None, list[Payload | Fallback]]:
        reading = self.connection.read_history(self.session.uuid, before=before, limit=limit)
        return self.call(reading)

    def show_history(self, *, limit: int) -> None:
        """Print the turns before those that are shown."""
        oldest, rows = self.read_history(before=self.oldest, limit=limit)
        screen = self.screen.for_reading()
        if oldest is None:
            screen.notice("No older messages.")
            return
        self.oldest = oldest
        if oldest > 1:
            screen.notice(f"… /history shows the messages before turn {oldest}.")
        printer = TranscriptPrinter(screen)
        for row in rows:
            printer.show(row)

    def name_page(self, says: str, address: str) -> None:
        """Print a URL after the text ``says``. ``address`` is relative to the session's page."""
        address = urljoin(self.session.url, address)
        self.screen.for_reading().notice(f"{says} {address}", PLAIN)

    def name_download(self, command: ComposerCommand, choice: str) -> None:
        """Print the URL for a feature's command that downloads something of the session."""
        uuid = self.session.uuid
        # The URL is made relative, because a server may serve Loom Web below a path.
        below = reverse(command.view, args=[uuid]).removeprefix(reverse("session", args=[uuid]))
        chosen = choice_of(command, choice)
        self.name_page("The address of the session is", f"{below}?{command.argument}={chosen}")

    # The commands.

    def do_help(self, _: str) -> None:
        screen = self.screen.for_reading()
        for command in TERMINAL_COMMANDS:
            usage = f"/{command.name} {command.argument and f'[{command.argument}]'}"
            screen.notice(f"{usage:<20}{command.says}", PLAIN)
        screen.notice("A line that ends with \\ continues on the next line.", DIM)
        screen.notice("Put a space before / to send the line as a message.", DIM)

    def do_new(self, _: str) -> None:
        current = self.session
        self.open_session(
            self.call(self.connection.begin_session(current.workspace, key=current.key))
        )

    def do_resume(self, words: str) -> None:
        self.open_session(self.choose_session(self.session.workspace, words))

    def do_history(self, words: str) -> None:
        if not words or words.lower() == "older":
            self.show_history(limit=HISTORY_TURNS)
            return
        search = self.connection.find_words(self.session.uuid, words, limit=FOUND_TURNS)
        hits = self.call(search)
        screen = self.screen.for_reading()
        for number, role, snippet in hits:
            screen.notice(f"{number:>6}  {role:<10} {snippet}", PLAIN)
        if not hits:
            screen.notice("Nothing found.")

    def do_clear(self, _: str) -> None:
        self.oldest = None
        self.screen.clear()

    def do_compact(self, _: str) -> None:
        work = self.connection.compact(self.session, client_id=uuid4().hex, after=self.reached)
        self.follow(work, TranscriptPrinter(self.screen))

    def do_rename(self, title: str) -> None:
        saved_title = self.call(self.connection.rename(self.session.uuid, title))
        self.screen.notice(f"Session renamed to {saved_title}.")

    def do_model(self, model: str) -> None:
        name = self.call(self.connection.choose_model(self.session.uuid, model))
        self.screen.notice(f"Model: {name}.")

    def do_undo(self, _: str) -> None:
        self.name_page("Undo file changes on the page", "changes/")

    def do_stop(self, _: str) -> None:
        self.call(self.connection.stop(self.session.uuid))

    def do_quit(self, _: str) -> None:
        raise QuitCommand
