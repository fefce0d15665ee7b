"""Chats in this process: in a pipe, or at a pseudo-terminal with a simulated person."""

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from uuid import UUID

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from conversations.domain.events import Info
from conversations.domain.tool_questions import QUESTION_ASKED, ToolQuestion, read_question
from conversations.features.terminal.connection import (
    ChatConnection,
    Happening,
    RowReceived,
    RunEnded,
)
from conversations.models import Workspace
from tests.mcp_servers.running import config, plain
from tests.runtime.sample_tools import sample_tools
from tests.runtime.tool_stories import answers
from tests.typist import Typist
from tests.wire.server import WireThread


class Piped:
    """A caller of ``manage.py chat`` that passes lines as standard input and keeps the output."""

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
    """Return a function that runs ``chat`` while the function ``does`` acts as the person."""
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
    """Provide a model whose answers the test sets, and tools that change something."""
    monkeypatch.setattr(settings.LOOM, "providers", (wire.provider,))
    with sample_tools():
        yield wire


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch, tools: WireThread, workspace: Workspace) -> None:
    """Provide a model that calls a tool whose server asks a person for a name."""
    Workspace.objects.update(tool_policy="auto")
    monkeypatch.setattr(settings.LOOM, "mcp", config(plain=plain("asks")))
    tools.enqueue(*answers(("mcp__plain__ask", {})))


async def decline_elsewhere(here: ChatConnection, there: ChatConnection, session: UUID) -> None:
    """Decline a tool server's question in a chat that finds the run waiting for the answer."""
    at = await here.open_session(session)
    own = here.ask(at, "go", client_id="client-1", after=0)
    async with asyncio.timeout(60):
        async for happening in own:
            if question_of(happening):
                break
        at = await there.open_session(session)
        watched = there.watch(at, after=at.last_seq)
        question = question_of(await anext(watched))
        assert question is not None
        await there.decline(session, UUID(question.call), question=question.id)
        for happenings in (own, watched):
            assert [one async for one in happenings][-1] == RunEnded("completed")


def question_of(happening: Happening) -> ToolQuestion | None:
    payload = happening.payload if isinstance(happening, RowReceived) else None
    if isinstance(payload, Info) and payload.code == QUESTION_ASKED:
        return read_question(payload.data)
    return None
