"""Printing a transcript: streamed text appears once, even if pieces repeat, are late or missing."""

import io

import pytest
from django.contrib.auth.models import User

from conversations.archive.journal import append_draft_chunks, walk_events
from conversations.archive.messages import accept_message
from conversations.archive.runs import finish_run
from conversations.domain.events import (
    AssistantText,
    Fallback,
    Info,
    Payload,
    ToolCallCompleted,
    TurnSeparator,
    UserMessage,
)
from conversations.features.terminal.connection import UNKNOWN, StatusChanged, TextDelta
from conversations.features.terminal.printing import TranscriptPrinter
from conversations.features.terminal.screen import TerminalScreen, has_colours
from conversations.models import DraftChunk, Session


class Shown:
    """A printer on a terminal, with its output."""

    def __init__(self, *, terminal: bool = True, term: str = "dumb", client_id: str = "") -> None:
        self._out = io.StringIO()
        environment = {"TERM": term}
        screen = TerminalScreen(self._out, self._out, is_terminal=terminal, environment=environment)
        self.printer = TranscriptPrinter(screen, client_id=client_id)

    @property
    def text(self) -> str:
        return self._out.getvalue()

    def delta(self, text: str, *, part: int = 0, offset: int = 0, kind: str = "text") -> None:
        self.printer.print_delta(TextDelta(part=part, kind=kind, offset=offset, text=text))

    def row(self, payload: Payload | Fallback) -> None:
        self.printer.show(payload)


def test_a_row_adds_the_text_that_was_not_streamed() -> None:
    shown = Shown()
    shown.delta("Plant ")
    shown.delta("beans", offset=6)
    shown.row(AssistantText(text="Plant beans now."))
    assert shown.text == "Plant beans now.\n"


def test_repeated_pieces_and_pieces_after_a_gap_are_printed_once() -> None:
    shown = Shown()
    shown.delta("Plant beans ")
    shown.delta("Plant beans and ")  # the whole draft again
    shown.delta("and", offset=12)
    shown.delta("corn", offset=40)  # after a gap
    shown.row(AssistantText(text="Plant beans and peas, and corn."))
    assert shown.text == "Plant beans and peas, and corn.\n"


def test_an_answer_of_several_rows_is_printed_row_by_row() -> None:
    shown = Shown()
    shown.delta("One.")
    shown.delta("Hm.", part=1, kind="thinking")
    shown.delta("Two.", part=2)
    shown.row(AssistantText(text="One."))
    shown.row(AssistantText(text="Two.", thinking="Hm."))
    shown.row(AssistantText(text="Three."))
    assert shown.text == "One.\nTwo.\nThree.\n"


@pytest.mark.django_db
def test_a_stopped_answer_is_not_printed_twice(session: Session, user: User) -> None:
    accepted = accept_message(
        session, client_id="mine", text="Go", user_pk=user.pk, max_queued=5, owner="me"
    )
    said = [("text", "One."), ("thinking", "Hm."), ("text", "Two")]
    chunks = [
        DraftChunk(run_id=accepted.run_pk, ordinal=part, part=part, kind=kind, text=text)
        for part, (kind, text) in enumerate(said)
    ]
    append_draft_chunks(chunks)
    assert accepted.claimed is not None
    finish_run(accepted.claimed, state="stopped", payloads=[])
    shown = Shown(client_id="mine")
    for part, (kind, text) in enumerate(said):
        shown.delta(text, part=part, kind=kind)
    for event in walk_events(session.pk, start=0, limit=9):
        shown.row(event.payload)
    assert shown.text == "One.\nTwo\n"


def test_a_row_that_differs_from_the_draft_is_printed_whole() -> None:
    shown = Shown()
    shown.delta("Plant")
    shown.row(AssistantText(text="Dig first."))
    assert shown.text == "Plant\nDig first.\n"


def test_only_messages_that_were_typed_elsewhere_are_printed() -> None:
    shown = Shown(client_id="mine")
    shown.row(UserMessage(text="a", client_id="mine"))
    shown.row(UserMessage(text="b\nc", client_id="other", attachments=[{"name": "bed.png"}]))
    assert shown.text == "> b\n> c\n> [bed.png]\n"


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (
            ToolCallCompleted(
                call_id="1",
                name="shell_execute",
                arguments={"command": "make"},
                ok=False,
                error="make\n\x1b[31mno rule\x1b[0m",
                exit_code=2,
                duration_ms=1500,
            ),
            "[Run make: failed, exit code 2, 1.5 s, no rule]\n",
        ),
        (
            ToolCallCompleted(
                call_id="1",
                name="write_file",
                arguments={"path": "a"},
                state="denied",
                ok=False,
                decision="deny",
                decided_by="ann",
                reason="winter",
            ),
            "[Write a: Denied by ann: winter]\n",
        ),
        (Info(text="It failed.", kind="error", detail="code: x"), "[It failed.]\ncode: x\n"),
        (Fallback(reason="not JSON", raw="{"), "[A row that cannot be read: not JSON]\n"),
        (
            TurnSeparator(state="stopped", stop_reason="stopped", duration_ms=12),
            "stopped · 12 ms\n",
        ),
    ],
)
def test_other_rows_are_printed_as_lines(payload: Payload | Fallback, line: str) -> None:
    shown = Shown()
    shown.row(payload)
    assert shown.text == line


def test_a_lost_server_is_reported_once_until_it_is_back() -> None:
    shown = Shown()
    lost = StatusChanged(state=UNKNOWN, text="Lost.")
    for _ in range(3):
        shown.printer.print_status(lost)
    shown.delta("Back.")
    shown.printer.print_status(lost)
    assert shown.text == "[Lost.]\nBack.\n[Lost.]\n"


def test_a_temporary_status_is_erased_from_the_line() -> None:
    shown = Shown(term="xterm")
    shown.printer.print_status(StatusChanged(state="running", text="Trying\x1b[2J again"))
    shown.delta("Beans\n")
    assert shown.text == "\x1b[2mTrying␛[2J again\x1b[0m\r\x1b[KBeans\n"


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colours_depend_on_term_and_no_color(environment: dict[str, str], coloured: bool) -> None:
    assert has_colours(environment) is coloured
