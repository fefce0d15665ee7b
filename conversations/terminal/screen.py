"""What is written, and how: to a terminal with or without colours, or to a pipe.

Only this module writes. On a terminal everything goes to one stream, in order; in a pipe
the answers go to standard output and all else to standard error. Whatever a model or a
program said is written without what would move a cursor.
"""

import os
import shutil
from collections.abc import Mapping
from typing import Any, Protocol

from conversations.domain.columns import Wrapper, fit
from conversations.domain.text import storable
from conversations.domain.unseen import write_out

PLAIN, BOLD, DIM, RED, GREEN, YELLOW = "", "1", "2", "31", "32", "33"

LEAST_WIDTH = 20


class TerminalOutput(Protocol):
    def write(self, text: str, /) -> Any: ...

    def flush(self) -> Any: ...


def visible(text: str) -> str:
    """The text with nothing in it that a terminal would act on, or that would not show."""
    return write_out(storable(text.replace("\r\n", "\n")), name=lambda name: f"<{name}>")


def has_colours(environment: Mapping[str, str]) -> bool:
    """As https://no-color.org has it; a dumb terminal has none."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "") not in ("", "dumb")


class Screen:
    """``is_terminal``: a person reads, and ``out`` and ``notices`` are the same stream."""

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
        return max(LEAST_WIDTH, shutil.get_terminal_size().columns)

    def answer(self, text: str) -> None:
        """More of an answer, as it comes."""
        if not text:
            return
        self.clear_status()
        shown = visible(text)
        self._write(self._wrapper.feed(shown) if self._wrapper else shown)

    def end_answer(self) -> None:
        """The answer is over: what was held back is written, and the line ends."""
        self._end_line()
        self._wrapper = self._new_wrapper()

    def end_typed_line(self) -> None:
        """A person has ended the line by typing one."""
        self._status = ""
        self._at_line_start = True
        if self._wrapper:
            self._wrapper.begin_line()

    def for_reading(self) -> "Screen":
        """The same, with notices among the rest: for what is asked for as a whole."""
        if self.is_terminal:
            return self
        return Screen(self._out, self._out, is_terminal=False)

    def notice(self, text: str, style: str = DIM) -> None:
        """Lines of our own, which belong to no answer."""
        self.clear_status()
        if self.is_terminal:
            self._end_line()
        self._out.flush()
        for line in visible(text).split("\n"):
            self._notices.write(self.styled(line, style) + "\n")
        self._notices.flush()

    def status(self, text: str) -> None:
        """What goes on right now, on a line that the next thing takes. Not shown where
        nothing can be taken back."""
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
        """An empty screen, where there is one."""
        self.end_answer()
        if self._has_colours:
            self._out.write("\x1b[H\x1b[2J")
            self._out.flush()

    def ask(self, text: str) -> None:
        """A question whose answer is typed behind it."""
        self.clear_status()
        self.end_answer()
        self._out.write(self.styled(visible(text), BOLD))
        self._out.flush()

    def prompt(self, text: str) -> str:
        """For ``input``: readline has to know what takes no columns."""
        if not self._has_colours:
            return text
        return f"\x01\x1b[{BOLD}m\x02{text}\x01\x1b[0m\x02"

    def styled(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._has_colours and style and text else text

    def _end_line(self) -> None:
        if self._wrapper:
            self._write(self._wrapper.flush())
            self._wrapper.begin_line()
        if not self._at_line_start:
            self._write("\n")

    def _new_wrapper(self) -> Wrapper | None:
        return Wrapper(self.width) if self.is_terminal else None

    def _write(self, text: str) -> None:
        if text:
            self._at_line_start = text.endswith("\n")
            self._out.write(text)
            self._out.flush()
