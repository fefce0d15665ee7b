"""A simulated person at a pseudo-terminal, who reads the screen and types.

The terminal belongs to a program, or is used as a stream.
"""

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from threading import Event, Thread
from typing import TextIO

from django.db import connection

from .starting import Starts

PATIENCE = 30.0


@contextmanager
def ctrl_c_when(is_time: Callable[[], bool]) -> Iterator[None]:
    """Send Ctrl-C to this process as soon as ``is_time`` returns true.

    The default signal handler is installed first. An earlier test may have left a handler of its
    own, and asyncio does not replace such a handler.
    """
    is_over = Event()

    def press() -> None:
        while not is_over.is_set():
            if is_time():
                os.kill(os.getpid(), signal.SIGINT)
                break
            time.sleep(0.02)
        connection.close()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    person = Thread(target=press)
    person.start()
    try:
        yield
    finally:
        is_over.set()
        person.join()
        signal.signal(signal.SIGINT, before or signal.default_int_handler)


CTRL_C = b"\x03"


class Typist:
    """A person at a terminal. ``screen`` is the whole output, including escape sequences."""

    def __init__(self, *, columns: int = 80) -> None:
        self.own, self.theirs = pty.openpty()
        ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.screen = ""
        self._seen = 0

    def type(self, line: str) -> None:
        os.write(self.own, f"{line}\n".encode())

    def press(self, key: bytes) -> None:
        os.write(self.own, key)

    def until(self, pattern: str) -> str:
        """Wait until the pattern appears on the screen, after the last match.

        Return the output from the last match to the end of this one.
        """
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.screen[self._seen :])):
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"No {pattern!r} in {self.screen[self._seen :]!r}")
        shown = self.screen[self._seen : self._seen + found.end()]
        self._seen += found.end()
        return shown

    def rest(self) -> str:
        """Return the output from now until the program ends."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.screen[self._seen :]

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.own], [], [], max(0, deadline - time.monotonic()))
        try:
            data = os.read(self.own, 65_536) if ready else b""
        except OSError:  # the other end is closed
            data = b""
        self.screen += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        os.close(self.own)
        self.let_go()

    def let_go(self) -> None:
        """Close our copy of the program's end of the terminal."""
        theirs, self.theirs = self.theirs, -1
        if theirs >= 0:
            os.close(theirs)


@contextmanager
def someone_reading() -> Iterator[tuple[Typist, TextIO]]:
    """Yield a person and their terminal as a stream."""
    typist = Typist()
    try:
        with open(typist.theirs, "w", closefd=False) as stream:
            yield typist, stream
    finally:
        typist.close()


IN_FOREGROUND = """
import fcntl, os, runpy, sys, termios
os.setsid()
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
os.dup2(1, 0)
sys.argv[0] = "manage.py"
runpy.run_path("manage.py", run_name="__main__")
"""


class Program(Typist):
    """A run of ``manage.py`` in the foreground of a terminal of its own."""

    def __init__(
        self, *arguments: str, environment: dict[str, str], starts: Starts, columns: int = 80
    ) -> None:
        super().__init__(columns=columns)
        self.process = starts.popen(
            [sys.executable, "-c", IN_FOREGROUND, *arguments],
            env=environment,
            stdout=self.theirs,
            stderr=self.theirs,
        )
        self.let_go()

    def wait(self) -> int:
        self.rest()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        super().close()
