"""The command for a chat in a terminal or a pipe: see docs/terminal.md."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from conversations.domain.errors import Rejected
from conversations.features.terminal.chat import TERMINAL_COMMANDS, TerminalChat
from conversations.features.terminal.connection import ChatConnection, LoopBridge, open_bridge
from conversations.features.terminal.direct import DirectConnection
from conversations.features.terminal.exchange import ALL, NONE, ChatInterrupted
from conversations.features.terminal.remote import ServerConnection, is_readable_on_the_way
from conversations.features.terminal.screen import YELLOW, Keyboard, TerminalScreen
from conversations.management.base import DatabaseCommand, read_lines, refuse_empty

INTERRUPTED = 130


class Command(DatabaseCommand):
    help = "Chat in the terminal, or in a pipe with one message per line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--workspace", metavar="SLUG", help="Optional if there is only one.")
        parser.add_argument(
            "--session", metavar="NAME", help="A name of your choice, or a session's UUID."
        )
        parser.add_argument(
            "--server", metavar="URL", help="A running server, instead of the data folder."
        )
        parser.add_argument("--token-file", metavar="FILE", help="A file with the token for it.")
        parser.add_argument(
            "--approve",
            choices=(ALL, NONE),
            help="Approve or deny every call that asks, instead of asking you.",
        )

    def uses_database(self, options: dict[str, Any]) -> bool:
        return not (options["server"] or settings.LOOM.chat_server)

    def handle(self, **options: Any) -> None:
        refuse_empty(**{name: options[name] for name in ("workspace", "session", "token_file")})
        is_terminal = sys.stdin.isatty() and bool(self.stdout.isatty())
        screen = TerminalScreen(
            _Stream(self.stdout),
            _Stream(self.stdout if is_terminal else self.stderr),
            is_terminal=is_terminal,
        )
        keyboard = (
            Keyboard([command.name for command in TERMINAL_COMMANDS]) if is_terminal else None
        )
        try:
            with open_bridge() as bridge, _connected(bridge, screen, options) as connection:
                approve = options["approve"]
                chat = TerminalChat(connection, bridge, screen, keyboard=keyboard, approve=approve)
                chat.begin(options["workspace"] or "", options["session"] or "")
                if keyboard:
                    chat.converse(keyboard)
                else:
                    chat.execute(read_lines())
        except BrokenPipeError:  # the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except EOFError:
            return
        except (KeyboardInterrupt, ChatInterrupted):
            raise CommandError(
                "Left; everything received so far is saved.", returncode=INTERRUPTED
            ) from None
        if chat.failed and not is_terminal:
            sys.exit(1)


@contextmanager
def _connected(
    bridge: LoopBridge, screen: TerminalScreen, options: dict[str, Any]
) -> Iterator[ChatConnection]:
    chosen = options["server"]
    server: str = settings.LOOM.chat_server if chosen is None else chosen
    if is_readable_on_the_way(server):
        screen.notice(
            "Not encrypted: others on the network can read everything, including the token.", YELLOW
        )
    token = _read_token(options["token_file"]) if server else ""

    async def connect() -> ChatConnection:
        # Both kinds of connections must be created on the event loop.
        return ServerConnection(server, token) if server else DirectConnection()

    connection = bridge.call(connect())
    try:
        bridge.call(connection.open())
        yield connection
        bridge.call(connection.close())
    finally:
        bridge.call(connection.close(at_once=True))


def _read_token(file: str | None) -> str:
    # The token is never an argument, because other users can see command lines.
    path = file or settings.LOOM.chat_token_file
    if not path:
        token: str = settings.LOOM.chat_token
    else:
        try:
            token = Path(path).expanduser().read_text()
        except (OSError, ValueError) as error:
            raise Rejected(f"Cannot read the token from {path}.") from error
    if not token.strip():
        raise Rejected("No token for the server: set LOOM_TOKEN or --token-file.")
    if not token.strip().isascii() or len(token.split()) != 1:
        raise Rejected("A token is one word of ASCII characters: see LOOM_TOKEN and --token-file.")
    return token.strip()


class _Stream:
    """A stream that writes through Django's wrapper without adding line ends."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text, str, ending="")

    def flush(self) -> None:
        self._stream.flush()
