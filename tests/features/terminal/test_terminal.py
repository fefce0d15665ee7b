"""The chat at a terminal: the list of sessions, questions, and lines typed during an answer."""

import asyncio
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from django.conf import settings
from django.core.management import CommandError
from django.db import connection

from conversations.archive.sessions import rename_session
from conversations.archive.tool_calls import decide_call
from conversations.features.terminal.screen import MAX_LINE_BYTES, text_width
from conversations.models import Session, ToolCall, Workspace
from conversations.runtime.options import read_options
from conversations.runtime.service import Runtime
from tests.archive.turns import read_turns
from tests.runtime.sample_tools import witness
from tests.runtime.tool_stories import answers
from tests.starting import Starts
from tests.typist import CTRL_C, Program, Typist
from tests.wire.server import WireThread

from .conftest import AtTerminal, Piped

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

QUESTION = r"Allow it\? y = yes, a = always \(changes of files\), n = no .*: "

READY = r"> \x1b\[0m"

CTRL_D, ARROW_UP = b"\x04", b"\x1b[A"


def test_a_session_is_chosen_from_the_list(
    at_terminal: AtTerminal, piped: Piped, session: Session
) -> None:
    piped("table")
    rename_session(session, title="植物 and more")

    def choose(typist: Typist) -> None:
        shown = typist.until(r"Number, or Enter for \[1\]: ")
        assert "] 2" in shown
        assert "· table · 2 turns" in shown
        assert "· 植物 and more · 0 turns" in shown
        assert "[3] Start a new session" in shown
        typist.type("7")
        typist.until("Type a number from 1 to 3.")
        typist.type("")
        typist.until("2 turns in the archive")
        typist.until("## A table")  # the end of the transcript
        typist.type("/resume")
        typist.until(": ")
        typist.type("3")
        typist.until("New session")
        typist.type("code")
        typist.until(r"demo model · .* out")

    at_terminal(choose)
    assert [one.turn_count for one in Session.objects.order_by("pk")] == [0, 2, 2]


def test_a_call_that_needs_approval_is_decided_at_the_keyboard(
    at_terminal: AtTerminal, tools: WireThread, workspace: Workspace
) -> None:
    calls = [("add", {"line": line}) for line in ("beans", "peas", "kale", "leek")]
    for number, call in enumerate(calls):
        tools.enqueue(*answers(call, prefix=f"call{number}"))

    def answer(typist: Typist) -> None:
        typist.until("> ")
        typist.type("go")
        shown = typist.until(QUESTION)
        assert "asks: Add to done.txt" in shown
        assert "  +beans" in shown
        typist.type("perhaps")
        typist.until(QUESTION)
        typist.type("y")
        typist.until("Done.")
        typist.type("go")
        typist.until(QUESTION)
        typist.type("n not in winter")
        typist.until("not in winter")
        typist.until("Done.")
        typist.type("go")
        typist.until(QUESTION)
        typist.type("a")
        typist.until("Done.")
        typist.type("go")
        typist.until("Done.")

    shown = at_terminal(answer).screen
    assert witness(Path(workspace.root)) == ["beans", "kale", "leek"]
    assert shown.count("Allow it?") == 4
    decided = ToolCall.objects.order_by("pk").values_list("decision", "reason")
    assert list(decided) == [
        ("once", ""),
        ("deny", "not in winter"),
        ("always", ""),
        ("policy", ""),
    ]


def test_a_question_that_is_answered_elsewhere_ends(
    at_terminal: AtTerminal, tools: WireThread
) -> None:
    tools.enqueue(*answers(("add", {"line": "beans"})))

    def wait(typist: Typist) -> None:
        typist.until("> ")
        typist.type("go")
        typist.until(QUESTION)
        call = ToolCall.objects.select_related("session").get()
        decide_call(
            call.session,
            call=UUID(str(call.uuid)),
            decision="once",
            user_pk=call.session.owner_id,
        )
        typist.until("Done.")

    at_terminal(wait)


def test_an_unanswered_question_is_asked_again_in_the_next_chat(
    at_terminal: AtTerminal, tools: WireThread, session: Session
) -> None:
    tools.enqueue(*answers(("add", {"line": "beans"})))

    async def leave_at_the_question() -> None:
        runtime = Runtime(read_options(supervise=False))
        await runtime.start()
        await runtime.send(session, client_id="client-1", text="go", user_pk=session.owner_id)
        async with asyncio.timeout(60):
            while await runtime.readers.read(waiting_calls) == 0:
                await asyncio.sleep(0.02)
        await runtime.stop()

    asyncio.run(leave_at_the_question())

    def answer(typist: Typist) -> None:
        typist.until("> go")  # the end of the transcript
        typist.until(QUESTION)
        typist.type("y")
        typist.until("Done.")

    at_terminal(answer, "--session", str(session.uuid))
    assert witness(Path(session.workspace.root)) == ["beans"]


def test_ctrl_d_at_a_question_leaves_the_call_waiting(
    at_terminal: AtTerminal, tools: WireThread, session: Session
) -> None:
    tools.enqueue(*answers(("add", {"line": "beans"})))

    def leave(typist: Typist) -> None:
        typist.until("> ")
        typist.type("go")
        typist.until(QUESTION)
        typist.press(CTRL_D)

    with pytest.raises(CommandError, match="Left; everything"):
        at_terminal(leave, "--session", str(session.uuid))
    assert waiting_calls() == 1


def test_ctrl_d_before_a_question_ends_the_chat_after_its_answer(
    at_terminal: AtTerminal, tools: WireThread, workspace: Workspace
) -> None:
    call, end = answers(("add", {"line": "beans"}))
    tools.enqueue(replace(call, text="I do it. " * 20, rate=20), end)

    def leave(typist: Typist) -> None:
        typist.until("> ")
        typist.type("go")
        typist.until("I do it")
        typist.press(CTRL_D)
        typist.until(QUESTION)
        typist.type("y")
        typist.until("Done.")
        typist.until("> /quit")

    at_terminal(leave)
    assert witness(Path(workspace.root)) == ["beans"]


def waiting_calls() -> int:
    return ToolCall.objects.filter(state="waiting_approval").count()


def test_a_line_typed_during_an_answer_is_sent_next_and_stop_works(
    at_terminal: AtTerminal, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.02)

    def type_ahead(typist: Typist) -> None:
        typist.until("> ")
        typist.type("long")
        typist.until("Part 1")
        typist.type("table\0")  # Ctrl-Space
        typist.until("Will be sent next")
        typist.type("/stop")
        typist.until("stopped · demo model")
        typist.until("## A table")
        typist.until(r"demo model · .* out")

    at_terminal(type_ahead, "--session", str(session.uuid))
    turns = read_turns(session.pk)
    assert [turn.complete for turn in turns] == [True, False, True, True]


def test_a_line_that_the_terminal_may_have_cut_is_not_sent(
    at_terminal: AtTerminal, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.02)

    def type_too_much(typist: Typist) -> None:
        typist.until("> ")
        typist.type("long")
        typist.until("Part 1")
        typist.type("a" * MAX_LINE_BYTES)
        typist.until("Not sent: ")
        typist.type("/stop")
        typist.until("stopped · demo model")

    at_terminal(type_too_much, "--session", str(session.uuid))
    turns = read_turns(session.pk)
    assert [turn.content for turn in turns if turn.role == "user"] == ["long"]


@pytest.mark.skipif("DATABASE_URL" in os.environ, reason="it has a data folder of its own")
def test_line_editing_and_ctrl_c_work_in_a_separate_process(tmp_path: Path, starts: Starts) -> None:
    """The process uses a copy of the test's data."""
    connection.ensure_connection()
    with closing(sqlite3.connect(tmp_path / "loom.sqlite3")) as copy:
        connection.connection.backup(copy)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    environment |= {"LOOM_DATA_DIR": str(tmp_path), "LOOM_DEMO_DELAY": "0.02", "TERM": "xterm"}
    environment["NO_COLOR"] = ""
    program = Program("chat", environment=environment, starts=starts, columns=60)
    try:
        program.until("New session")
        program.until(r"\x1b\[\?2004h")  # makes the terminal mark pasted text
        program.until(READY)
        program.type("long")
        program.until("Part 1")
        program.press(CTRL_C)
        program.until("Stopping")
        program.until("stopped · demo model")
        program.until(READY)
        program.press(ARROW_UP)
        program.until("long")
        program.press(b"\x15\x1b[200~one\ntwo\x1b[201~\n")  # pasted text is one message
        program.until("> one two")
        program.until("demo model · .* out")
        program.until(READY)
        program.press(b"/quo\x7fi\t\n")  # corrects a letter and completes
        assert program.wait() == 0
    finally:
        program.close()
    widest = max(map(text_width, program.screen.split("Part 1")[0].splitlines()))
    assert widest <= 60 + len("\x1b[2m\x1b[0m")
