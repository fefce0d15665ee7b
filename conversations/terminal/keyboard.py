"""What a person types: lines with editing, and what comes while an answer streams.

Line editing is the standard library's readline, where Python has it. Nothing is written
beside the archive: what the arrow keys bring back are the session's own messages.
"""

import os
import select
import sys
from collections.abc import Iterable, Sequence

try:
    import readline
except ImportError:  # not on every system; lines are then typed as they are
    readline = None  # type: ignore[assignment]

CONTINUES = "\\"
"""At the end of a line: the message goes on in the next one."""


class Keyboard:
    """Standard input of a terminal."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = [f"/{name}" for name in commands]
        self._matches: list[str] = []
        if readline is not None:
            readline.set_auto_history(False)
            readline.set_completer(self._complete)
            readline.set_completer_delims(" \t\n")
            libedit = readline.backend == "editline"
            readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

    def read(self, prompt: str, more: str) -> str:
        """One message, of several lines where each but the last ends with a backslash.
        Raises EOFError and KeyboardInterrupt."""
        lines = [input(prompt)]
        while lines[-1].endswith(CONTINUES):
            lines[-1] = lines[-1].removesuffix(CONTINUES)
            lines.append(input(more))
        return "\n".join(lines)

    def typed(self) -> str | None:
        """A line that was typed meanwhile; None when there is none. Raises EOFError."""
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        data = os.read(sys.stdin.fileno(), 65_536)
        if not data:
            raise EOFError
        return data.decode(errors="replace").rstrip("\r\n")

    def remember(self, messages: Iterable[str]) -> None:
        """What the arrow keys bring back, oldest first; nothing else any more."""
        if readline is not None:
            readline.clear_history()
            for message in messages:
                self.add(message)

    def add(self, message: str) -> None:
        if readline is not None and message.strip() and "\n" not in message:
            readline.add_history(message)

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            is_first = readline.get_begidx() == 0 and word.startswith("/")
            fitting = [name for name in self._commands if name.startswith(word)]
            self._matches = fitting if is_first else []
        return self._matches[state] if state < len(self._matches) else None
