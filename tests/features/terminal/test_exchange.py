"""What asks while a run is attended to: without a run, by what a session would tell of it."""

import asyncio
import io
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from conversations.domain.errors import Conflict, NotPermitted
from conversations.domain.events import (
    APPROVAL,
    APPROVAL_ASKED,
    Info,
    Payload,
    ToolCallCompleted,
    TurnSeparator,
)
from conversations.domain.tool_calls import ApprovalRequest
from conversations.features.terminal.connection import (
    ChatConnection,
    Happening,
    OpenSession,
    RowReceived,
    RunEnded,
    open_bridge,
)
from conversations.features.terminal.exchange import ChatExchange, ChatInterrupted
from conversations.features.terminal.printing import TranscriptPrinter
from conversations.features.terminal.screen import Keyboard, TerminalScreen

PAGE = "https://loom.example.org/s/1/"
QUIET_SECONDS = 0.25  # Nothing comes for a while before the run ends.
CALL = uuid4()
ASKED = ApprovalRequest(call=str(CALL), call_id="1", name="shell_execute", summary="Run rm -rf x")
ASKS = Info(text="", kind=APPROVAL, code=APPROVAL_ASKED, data=ASKED.as_data())
STOPPED = ToolCallCompleted(
    call_id="1", name="shell_execute", ok=False, call=str(CALL), state="stopped"
)


class Typed:
    """A keyboard at which each of these lines is typed when something has been asked, or at
    once where there is an ``=`` before it. None is Ctrl-D."""

    def __init__(self, screen: io.StringIO, *lines: str | None) -> None:
        self._screen = screen
        self._lines = deque(lines)
        self._asked = 0

    def typed(self) -> str | None:
        asked = self._screen.getvalue().count("Allow it?")
        if not self._lines or (asked == self._asked and (self._lines[0] or "")[:1] != "="):
            return None
        self._asked = asked
        line = self._lines.popleft()
        if line is None:
            raise EOFError
        return line.removeprefix("=")


class Chat:
    """Attends to a run that tells ``rows``, and ends soon after ``until`` was said. Decisions are
    refused by ``problem``."""

    def __init__(self, *rows: Payload, problem: Exception | None = None, until: str = "") -> None:
        self.out = io.StringIO()
        self.decisions: list[str] = []
        self.later = deque[str]()
        self._rows = rows
        self._problem = problem
        self._until = until

    async def decide(self, session: UUID, call: UUID, *, decision: str, reason: str) -> None:
        self.decisions.append(decision)
        if self._problem is not None:
            raise self._problem

    async def tell(self) -> AsyncIterator[Happening]:
        for seq, payload in enumerate(self._rows, 1):
            yield RowReceived(seq=seq, payload=payload)
        while self._until not in self.out.getvalue():
            await asyncio.sleep(0.02)
        await asyncio.sleep(QUIET_SECONDS)
        yield RunEnded("completed")

    def follow(self, *, keyboard: Typed | None = None, approve: str | None = None) -> str:
        session: Any = {"key": "", "title": "", "turn_count": 0, "last_seq": 0, "url": PAGE}
        screen = TerminalScreen(self.out, self.out, is_terminal=keyboard is not None)
        with open_bridge() as bridge:
            exchange = ChatExchange(
                connection=cast("ChatConnection", self),
                bridge=bridge,
                screen=screen,
                session=OpenSession(uuid=uuid4(), workspace="garden", **session),
                keyboard=cast("Keyboard | None", keyboard),
                approve=approve,
                later=self.later,
                reached=0,
            )
            exchange.follow(bridge.follow(self.tell()), TranscriptPrinter(screen))
        return self.out.getvalue()


@pytest.mark.parametrize("end", [STOPPED, TurnSeparator(state="stopped")])
@pytest.mark.parametrize("approve", [None, "all", "keyboard"])
def test_nobody_is_asked_about_a_call_that_is_over(end: Payload, approve: str | None) -> None:
    chat = Chat(ASKS, end)
    keyboard = Typed(chat.out, "=and also mention beans") if approve == "keyboard" else None
    said = chat.follow(keyboard=keyboard, approve="all" if approve == "all" else None)
    assert "Allow it?" not in said
    assert "Waiting for approval" not in said
    assert chat.decisions == []
    assert list(chat.later) == ([] if keyboard is None else ["and also mention beans"])


def test_a_decision_that_fails_leaves_the_question() -> None:
    chat = Chat(ASKS, problem=NotPermitted("The token has no scope."), until="never")
    with pytest.raises(ChatInterrupted):
        chat.follow(keyboard=Typed(chat.out, "y", "n", None))
    assert chat.decisions == ["once", "deny"]
    assert chat.out.getvalue().count("Allow it?") == 3


def test_a_call_that_could_not_be_approved_beforehand_waits_for_the_page() -> None:
    chat = Chat(ASKS, problem=NotPermitted("The token has no scope."), until=PAGE)
    said = chat.follow(approve="all")
    assert chat.decisions == ["once"]
    assert said.endswith(f"Waiting for approval: Run rm -rf x. Answer at {PAGE}\n")


def test_a_call_that_somebody_else_has_decided_asks_no_more() -> None:
    chat = Chat(ASKS, problem=Conflict("Already decided."), until="Already decided.")
    said = chat.follow(keyboard=Typed(chat.out, "y"))
    assert said.count("Allow it?") == 1
