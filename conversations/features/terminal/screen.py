"""Output to a terminal, with or without colours, or to a pipe, and input from the keyboard.

Only this module writes output. On a terminal everything goes to one stream, in order. In a pipe
answers go to standard output and everything else to standard error. Control characters in the text
of models and programs are replaced, so that the text cannot move the cursor.
"""

import os
import re
import select
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from unicodedata import category, combining, east_asian_width

from conversations.domain.errors import Rejected
from conversations.domain.text import visible

# Fitting text into the columns of a terminal: the width of characters, and breaking lines between
# words while the text is still arriving.

_PIECES = re.compile(r"\n|[^\S\n]+|\S")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_AS_IT_IS = re.compile(r" {0,3}(?:```|~~~|\|)| {4}|\t")
_JOINER = "\u200d"
_ZERO_WIDTH = ("Mn", "Me", "Cf")


def char_width(char: str) -> int:
    """Return the columns that a character takes, according to UAX #11.

    Combining characters take 0 columns. Wide East Asian characters and emoji take 2."""
    if char.isascii():
        return 1
    if combining(char) or category(char) in _ZERO_WIDTH:
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def text_width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(char_width, text))


def fit(text: str, width: int) -> str:
    """Cut a line to at most ``width`` columns. Add an ellipsis if text is missing."""
    if text_width(text) <= width:
        return text
    if width <= 0:
        return ""
    columns_left = width - 1
    kept_chars = []
    for char in text:
        columns_left -= char_width(char)
        if columns_left < 0:
            break
        kept_chars.append(char)
    return "".join(kept_chars).rstrip() + "…"


class LineWrapper:
    """A wrapper that breaks lines between words while the text arrives in pieces.

    It only inserts line ends, each in place of the spaces there or between two wide characters.
    Lines of code and of tables are not broken, so that they can be copied. A word is held back
    until it is complete.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._blank = ""
        self._word = ""
        self._line = ""
        self._in_fence = False

    def feed(self, text: str) -> str:
        return "".join(map(self._feed_piece, _PIECES.findall(text)))

    def begin_line(self) -> None:
        """Start at the first column, because other output has ended the line."""
        self._column, self._blank = 0, ""

    def _feed_piece(self, piece: str) -> str:
        if piece == "\n":
            placed = self.place_word() + self._blank + "\n"
            if _FENCE.match(self._line):
                self._in_fence = not self._in_fence
            self._line = self._blank = ""
            self._column = 0
            return placed
        self._line += piece[: max(0, 8 - len(self._line))]
        if piece.isspace():
            placed = self.place_word()
            self._blank += piece
            return placed
        # A word may be broken before and after a wide character, unless the next one joins it.
        base = next((char for char in reversed(self._word) if char_width(char)), " ")
        joins = self._word[-1:] in ("", _JOINER) or char_width(piece) == 0
        may_break = not joins and 2 in (char_width(piece), char_width(base))
        placed = self.place_word() if may_break else ""
        self._word += piece
        return placed

    def place_word(self) -> str:
        """Return the word that was held back, after a space or a line end."""
        word, self._word = self._word, ""
        if not word:
            return ""
        blank, self._blank = self._blank, ""
        width = text_width(word)
        stays = self._in_fence or _AS_IT_IS.match(self._line)
        if self._column and not stays and self._column + len(blank) + width > self._width:
            self._column = width
            return "\n" + word
        self._column += len(blank) + width
        return blank + word


PLAIN, BOLD, DIM, RED, GREEN, YELLOW = "", "1", "2", "31", "32", "33"

MIN_COLUMNS = 20


class TerminalOutput(Protocol):
    def write(self, text: str, /) -> Any: ...

    def flush(self) -> Any: ...


def has_colours(environment: Mapping[str, str]) -> bool:
    """Return whether colours may be used: see https://no-color.org. A dumb terminal has none."""
    return not environment.get("NO_COLOR") and not is_dumb(environment)


def is_dumb(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal does not support escape sequences."""
    return environment.get("TERM", "") in ("", "dumb")


class TerminalScreen:
    """The output of a chat. If ``is_terminal``, ``out`` and ``notices`` are the same stream."""

    def __init__(
        self,
        out: TerminalOutput,
        notices: TerminalOutput,
        *,
        is_terminal: bool,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._out = out
        self._notices = notices
        self.is_terminal = is_terminal
        self._has_colours = is_terminal and has_colours(environment)
        self._wrapper = self._new_wrapper()
        self._at_line_start = True
        self._status = ""

    @property
    def width(self) -> int:
        return max(MIN_COLUMNS, shutil.get_terminal_size().columns)

    def answer(self, text: str) -> None:
        """Write the next piece of an answer."""
        if not text:
            return
        self.clear_status()
        visible_text = visible(text)
        self._write(self._wrapper.feed(visible_text) if self._wrapper else visible_text)

    def end_answer(self) -> None:
        """Write the text of the answer that was held back, and end the line."""
        self._end_line()
        self._wrapper = self._new_wrapper()

    def end_typed_line(self) -> None:
        """Continue at the start of a line, because the person has pressed Enter."""
        self._status = ""
        self._at_line_start = True
        if self._wrapper:
            self._wrapper.begin_line()

    def for_reading(self) -> "TerminalScreen":
        """Return a screen that writes notices to the output too, for what a command shows."""
        if self.is_terminal:
            return self
        return TerminalScreen(self._out, self._out, is_terminal=False)

    def notice(self, text: str, style: str = DIM) -> None:
        """Write lines that are not part of an answer."""
        self.clear_status()
        if self.is_terminal:
            self._end_line()
        self._out.flush()
        for line in visible(text).split("\n"):
            self._notices.write(self.styled(line, style) + "\n")
        self._notices.flush()

    def status(self, text: str) -> None:
        """Show the current activity on a line that the next output replaces.

        Do nothing if the line could not be erased again."""
        if not self._has_colours or text == self._status or not self._at_line_start:
            return
        self.clear_status()
        if text:
            line = fit(visible(text).replace("\n", " "), self.width - 1)
            self._out.write(self.styled(line, DIM))
            self._out.flush()
            self._status = text

    def clear_status(self) -> None:
        if self._status:
            self._status = ""
            self._out.write("\r\x1b[K")

    def clear(self) -> None:
        """Clear the screen if the output is a terminal that supports it."""
        self.end_answer()
        if self._has_colours:
            self._out.write("\x1b[H\x1b[2J")
            self._out.flush()

    def ask(self, text: str) -> None:
        """Write a question whose answer is typed on the same line."""
        self.clear_status()
        self.end_answer()
        self._out.write(self.styled(visible(text), BOLD))
        self._out.flush()

    def prompt(self, text: str) -> str:
        """Return a styled prompt for ``input``, with marks that tell readline its real width."""
        if not self._has_colours:
            return text
        return f"\x01\x1b[{BOLD}m\x02{text}\x01\x1b[0m\x02"

    def styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._has_colours and style and text else text

    def _end_line(self) -> None:
        if self._wrapper:
            self._write(self._wrapper.place_word())
            self._wrapper.begin_line()
        if not self._at_line_start:
            self._write("\n")

    def _new_wrapper(self) -> LineWrapper | None:
        return LineWrapper(self.width) if self.is_terminal else None

    def _write(self, text: str) -> None:
        if text:
            self._at_line_start = text.endswith("\n")
            self._out.write(text)
            self._out.flush()


# Reading the keyboard: lines with editing, and lines typed while an answer streams.

try:
    import readline
except ImportError:  # some systems have no readline, so lines cannot be edited there
    readline = None  # type: ignore[assignment]

CONTINUES = "\\"  # At the end of a line: the message continues on the next line.

# The system's limit of a line that is typed without readline, with its end. It drops the rest.
MAX_LINE_BYTES = 4096


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
            if not libedit and not is_dumb(os.environ):
                # Python turns it off. Without it, each pasted line would be a message.
                readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, prompt: str, more: str) -> str:
        """Read one message. A line that ends with a backslash continues on the next one.

        Raise EOFError and KeyboardInterrupt."""
        lines = [input(prompt)]
        while lines[-1].endswith(CONTINUES):
            lines[-1] = lines[-1].removesuffix(CONTINUES)
            lines.append(input(more))
        return "\n".join(lines)

    def typed(self) -> str | None:
        """Return a line that was typed meanwhile, or None if there is none.

        Raise EOFError, and Rejected if the line is too long."""
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        data = os.read(sys.stdin.fileno(), 65_536)
        if not data:
            raise EOFError
        if len(data) >= MAX_LINE_BYTES:  # the system has silently dropped the rest
            raise Rejected(
                "Not sent: the line is too long to be typed while an answer streams. "
                "Send it again after the answer."
            )
        # Ctrl-Space types a NUL, which readline's history does not accept.
        return data.replace(b"\0", b"").decode(errors="replace").rstrip("\r\n")

    def remember(self, messages: Iterable[str]) -> None:
        """Replace the history of the arrow keys by these messages, oldest first."""
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
