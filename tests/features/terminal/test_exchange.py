"""Questions during a run. A prepared sequence of rows stands for the run."""

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
QUIET_SECONDS = 0.25  # Pause without rows before the run ends.
CALL = uuid4()
ASKED = ApprovalRequest(call=str(CALL), call_id="1", name="shell_execute", summary="Run rm -rf x")
ASKS = Info(text="", kind=APPROVAL, code=APPROVAL_ASKED, data=ASKED.as_data())
STOPPED = ToolCallCompleted(
    call_id="1", name="shell_execute", ok=False, call=str(CALL), state="stopped"
)


class Typed:
    """A keyboard that types each of these lines after a question.

    A line that begins with ``=`` is typed at once. None is Ctrl-D.
    """

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
    """A chat that follows a run with these ``rows``.

    The run ends soon after ``until`` has been printed. A decision raises ``problem``.
    """

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
def test_no_question_is_asked_about_a_call_that_has_ended(
    end: Payload, approve: str | None
) -> None:
    chat = Chat(ASKS, end)
    keyboard = Typed(chat.out, "=and also mention beans") if approve == "keyboard" else None
    said = chat.follow(keyboard=keyboard, approve="all" if approve == "all" else None)
    assert "Allow it?" not in said
    assert "Waiting for approval" not in said
    assert chat.decisions == []
    assert list(chat.later) == ([] if keyboard is None else ["and also mention beans"])


def test_a_failed_decision_leaves_the_question_open() -> None:
    chat = Chat(ASKS, problem=NotPermitted("The token has no scope."), until="never")
    with pytest.raises(ChatInterrupted):
        chat.follow(keyboard=Typed(chat.out, "y", "n", None))
    assert chat.decisions == ["once", "deny"]
    assert chat.out.getvalue().count("Allow it?") == 3


def test_a_call_waits_for_the_page_if_automatic_approval_fails() -> None:
    chat = Chat(ASKS, problem=NotPermitted("The token has no scope."), until=PAGE)
    said = chat.follow(approve="all")
    assert chat.decisions == ["once"]
    assert said.endswith(f"Waiting for approval: Run rm -rf x. Answer at {PAGE}\n")


def test_a_call_that_was_decided_elsewhere_is_not_asked_again() -> None:
    chat = Chat(ASKS, problem=Conflict("Already decided."), until="Already decided.")
    said = chat.follow(keyboard=Typed(chat.out, "y"))
    assert said.count("Allow it?") == 1
