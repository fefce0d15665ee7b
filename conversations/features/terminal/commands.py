"""What each command does in a terminal: those of the composer, and two that only a
terminal needs."""

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urljoin
from uuid import uuid4

from conversations.web.commands import COMMANDS, Command, choice_of

from .printing import Printer, choose_session
from .screen import DIM, PLAIN

if TYPE_CHECKING:
    from .chat import Chat

HISTORY_TURNS, FOUND_TURNS = 20, 10

ONLY_HERE = (
    Command(name="stop", says="Stop the answer while it is written, as Ctrl-C does"),
    Command(name="quit", says="Leave, as Ctrl-D does; the session stays"),
)

TERMINAL_COMMANDS = (*COMMANDS, *ONLY_HERE)


class Quit(Exception):
    """The person leaves, in order."""


def _help(chat: "Chat", _: str) -> None:
    screen = chat.screen.for_reading()
    for command in TERMINAL_COMMANDS:
        usage = f"/{command.name} {command.argument and f'[{command.argument}]'}"
        screen.notice(f"{usage:<20}{command.says}", PLAIN)
    screen.notice("A line that ends with \\ goes on in the next one.", DIM)
    screen.notice("With a blank before it, a line that begins with / is a message.", DIM)


def _new(chat: "Chat", _: str) -> None:
    here = chat.session
    begun = chat.bridge.call(chat.connection.begin_session(here.workspace, key=here.key))
    chat.enter(begun)


def _resume(chat: "Chat", words: str) -> None:
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


def _history(chat: "Chat", words: str) -> None:
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


def _clear(chat: "Chat", _: str) -> None:
    chat.oldest = None
    chat.screen.clear()


def _compact(chat: "Chat", _: str) -> None:
    work = chat.connection.compact(chat.session, client_id=uuid4().hex, after=chat.reached)
    chat.attend(work, Printer(chat.screen))


def _rename(chat: "Chat", title: str) -> None:
    kept = chat.bridge.call(chat.connection.rename(chat.session.uuid, title))
    chat.screen.notice(f"The session is called {kept} now.")


def _model(chat: "Chat", model: str) -> None:
    name = chat.bridge.call(chat.connection.choose_model(chat.session.uuid, model))
    chat.screen.notice(f"From now on {name} answers.")


def _undo(chat: "Chat", _: str) -> None:
    _name_page(chat, "Changed files are put back on the page", "changes/")


def _export(chat: "Chat", format: str) -> None:
    export = next(command for command in COMMANDS if command.name == "export")
    _name_page(chat, "The session is at", f"export/?format={choice_of(export, format)}")


def _name_page(chat: "Chat", says: str, address: str) -> None:
    chat.screen.for_reading().notice(f"{says} {urljoin(chat.session.url, address)}", PLAIN)


def _stop(chat: "Chat", _: str) -> None:
    chat.bridge.call(chat.connection.stop(chat.session.uuid))


def _quit(chat: "Chat", _: str) -> None:
    raise Quit


ACTIONS: dict[str, Callable[["Chat", str], None]] = {
    "help": _help,
    "new": _new,
    "resume": _resume,
    "history": _history,
    "clear": _clear,
    "compact": _compact,
    "rename": _rename,
    "model": _model,
    "undo": _undo,
    "export": _export,
    "stop": _stop,
    "quit": _quit,
}
