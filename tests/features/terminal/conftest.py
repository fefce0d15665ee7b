"""A chat in this process: in a pipe, or at a pseudo-terminal where somebody types."""

import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from tests.runtime.sample_tools import sample_tools
from tests.typist import Typist
from tests.wire.server import WireThread


class Piped:
    """What ``manage.py chat`` does with lines of standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *lines: str, arguments: tuple[str, ...] = ()) -> "Piped":
        out, err = io.StringIO(), io.StringIO()
        self._monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{one}\n" for one in lines)))
        self.code = 0
        try:
            call_command("chat", *arguments, stdout=out, stderr=err)
        except SystemExit as ended:
            self.code = int(ended.code or 0)
        finally:
            self.out, self.err = out.getvalue(), err.getvalue()
        return self


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Piped:
    return Piped(monkeypatch)


type AtTerminal = Callable[..., Typist]


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[AtTerminal]:
    """Runs ``chat`` with these arguments, while a person does what the function says."""
    typists: list[Typist] = []

    def chat(does: Callable[[Typist], None], *arguments: str) -> Typist:
        typist = Typist()
        typists.append(typist)
        problems: list[BaseException] = []

        def act() -> None:
            try:
                does(typist)
            except BaseException as error:
                problems.append(error)
            finally:
                connection.close()
                typist.press(b"\n\x04")

        person = Thread(target=act)
        with (
            open(typist.theirs, closefd=False) as stdin,
            open(typist.theirs, "w", closefd=False) as stdout,
            monkeypatch.context() as patch,
        ):
            patch.setattr("sys.stdin", stdin)
            patch.setattr("sys.stdout", stdout)
            patch.setenv("TERM", "dumb")
            person.start()
            try:
                with suppress(EOFError):
                    call_command("chat", *arguments, stdout=stdout)
            finally:
                person.join()
        if problems:
            raise problems[0]
        return typist

    yield chat
    for typist in typists:
        typist.close()


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, wire: WireThread) -> Iterator[WireThread]:
    """A model whose answers the test says, and tools that change something."""
    monkeypatch.setattr(settings.LOOM, "providers", (wire.provider,))
    with sample_tools():
        yield wire
