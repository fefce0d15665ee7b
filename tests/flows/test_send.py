"""The command ``send``, which runs a message without a browser and prints the answer."""

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from conversations.archive.sessions import archive_session, get_session
from conversations.archive.tool_calls import answer_question, decide_call
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict
from conversations.models import (
    ChatEvent,
    Compaction,
    DraftChunk,
    Run,
    Session,
    ToolCall,
    Workspace,
)
from tests.archive.turns import read_turns
from tests.mcp_servers.running import config, plain
from tests.runtime.sample_tools import sample_tools, witness
from tests.runtime.tool_stories import answers
from tests.typist import ctrl_c_when, someone_reading
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


def send(*arguments: str, stdin: str = "", monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    out = io.StringIO()
    if monkeypatch is not None:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    call_command("send", *arguments, stdout=out)
    return out.getvalue()


def test_send_prints_the_answer_and_archives_both_turns(session: Session) -> None:
    printed = send("--session", str(session.uuid), "table")
    assert "| part | contents | grows |" in printed
    turns = read_turns(session.pk)
    assert [turn.role for turn in turns] == ["user", "assistant"]
    assert turns[1].content.strip() == printed.strip()
    assert verify_session(get_session(session.uuid)).problem == ""


def test_control_characters_are_escaped_at_a_terminal_but_not_in_a_pipe(
    session: Session, wire: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "providers", (wire.provider,))
    wire.enqueue(*[Scenario(text="a\x1b[2Jb\u202ec")] * 3)
    arguments = "--session", str(session.uuid), "go"
    assert send(*arguments) == "a\x1b[2Jb\u202ec\n"
    with someone_reading() as (typist, terminal):
        call_command("send", *arguments, stdout=terminal)
        typist.until(r"a␛\[2Jb<U\+202E>c\r\n")
        call_command("send", *arguments, "--json", stdout=terminal)
        typist.until("a..001b.2Jb\u202ec")


def test_json_output_has_one_line_per_row(session: Session) -> None:
    lines = send("--session", str(session.uuid), "--json", "table").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [row["event_type"] for row in rows] == [
        "user_message",
        "assistant_text",
        "turn_separator",
    ]
    assert [row["seq"] for row in rows] == [1, 2, 3]
    assert {row["session"] for row in rows} == {str(session.uuid)}


def test_each_line_of_standard_input_is_a_message(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--session", str(session.uuid), "--stdin")
    send(*arguments, stdin="table\n\ncode\n", monkeypatch=monkeypatch)
    asked = [turn.content for turn in read_turns(session.pk) if turn.role == "user"]
    assert asked == ["table", "code"]


def test_a_summary_is_finished_after_the_answer_is_printed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "keep_recent", 1)
    send("--session", str(session.uuid), "long")
    monkeypatch.setattr(settings.LOOM, "compact_at", 1)
    printed = send("--session", str(session.uuid), "table")
    assert printed.strip().endswith("account menu.")
    run = Run.objects.order_by("pk").last()
    assert run is not None
    assert (run.kind, run.state) == ("compact", "completed")
    assert Compaction.objects.get().to_turn == 2


def test_a_key_finds_its_session_again(workspace: Workspace) -> None:
    for _ in range(2):
        send("--workspace", workspace.slug, "--key", "cli:default", "table")
    session = Session.objects.get(key="cli:default")
    assert session.turn_count == 4
    send("--workspace", workspace.slug, "table")
    assert Session.objects.count() == 2


def test_the_demo_model_can_use_recall(session: Session) -> None:
    send("--session", str(session.uuid), "The zinnia is red.")
    answer = send("--session", str(session.uuid), "recall zinnia")
    assert "[Turn 1] user:" in answer
    assert "The zinnia is red." in answer
    assert f"session: {session.uuid}" in send("--session", str(session.uuid), "recall")


def test_a_failed_run_exits_with_code_1(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "provider_retries", 0)
    with pytest.raises(SystemExit) as ended:
        send("--session", str(session.uuid), "fail")
    assert ended.value.code == 1
    assert Run.objects.get().state == "failed"


def test_messages_that_cannot_be_sent_are_refused_with_the_reason(
    session: Session, workspace: Workspace
) -> None:
    archive_session(session, archived=True)
    for arguments, reason in (
        (("--workspace", workspace.slug, "\udcff"), "Half a surrogate pair"),
        (("--session", str(session.uuid), "x"), "archived"),
        (("--session", "11111111-2222-4333-8444-555555555555", "x"), "This session does not exist"),
        (("--workspace", "nowhere", "x"), "This workspace does not exist"),
        (("--workspace", workspace.slug), "one message"),
        (("--session", str(session.uuid), "--key", "a:b", "x"), "--key needs"),
        (("--workspace", workspace.slug, " "), "The message is empty"),
    ):
        with pytest.raises(CommandError, match=reason) as refused:
            send(*arguments)
        assert refused.value.returncode == (1 if reason == "archived" else 2)
    assert Session.objects.get() == session  # no session is created for a refused message


def test_no_session_is_created_for_input_without_a_message(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        send("--workspace", workspace.slug, "--stdin", stdin=" \n", monkeypatch=monkeypatch) == ""
    )
    assert not Session.objects.exists()
    send("--workspace", workspace.slug, "--stdin", stdin="\ntable\ncode\n", monkeypatch=monkeypatch)
    assert Session.objects.get().turn_count == 4


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch, wire: WireThread) -> Iterator[None]:
    """A model that calls a tool which changes something."""
    monkeypatch.setattr(settings.LOOM, "providers", (wire.provider,))
    wire.enqueue(*answers(("add", {"line": "beans"})))
    with sample_tools():
        yield


@pytest.mark.parametrize(("approve", "done"), [("all", ["beans"]), ("none", [])])
def test_the_approve_option_decides_calls_that_need_approval(
    asks: None, session: Session, approve: str, done: list[str]
) -> None:
    printed = send("--session", str(session.uuid), "--approve", approve, "go")
    assert printed.strip() == "I do it.\nDone."
    assert witness(Path(session.workspace.root)) == done
    call = ToolCall.objects.get()
    assert (call.decision, call.decided_by) == ("once" if done else "deny", None)


def test_a_waiting_call_is_printed_with_the_url_of_its_page(asks: None, session: Session) -> None:
    out = _Deciding(session)
    call_command("send", "--session", str(session.uuid), "--json", "go", stdout=out)
    question = json.loads(out.getvalue().splitlines()[0])
    assert (question["type"], question["summary"]) == ("approval", "Add to done.txt")
    assert question["url"].endswith(f"/s/{session.uuid}/")
    assert witness(Path(session.workspace.root)) == ["beans"]


def test_ctrl_c_stops_the_answer(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.02)

    ended = pytest.raises(CommandError, match="Stopped; everything")
    with ctrl_c_when(DraftChunk.objects.exists), ended as stopped:
        send("--session", str(session.uuid), "long")
    assert (stopped.value.returncode, Run.objects.get().state) == (130, "stopped")
    rows = ChatEvent.objects.order_by("seq").values_list("event_type", flat=True)
    assert list(rows) == ["user_message", "assistant_text", "turn_separator"]


def test_ctrl_c_keeps_a_waiting_call(asks: None, session: Session) -> None:
    waiting = Run.objects.filter(state="waiting_approval")
    ended = pytest.raises(CommandError, match="Stopped; everything")
    with ctrl_c_when(waiting.exists), ended:
        send("--session", str(session.uuid), "go")
    run = Run.objects.get()
    assert (run.state, run.owner) == ("waiting_approval", "")
    assert ToolCall.objects.get().state == "waiting_approval"


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch, wire: WireThread, session: Session) -> None:
    """A model that calls a tool whose server asks a person for a name."""
    Workspace.objects.update(tool_policy="auto")
    monkeypatch.setattr(settings.LOOM, "providers", (wire.provider,))
    monkeypatch.setattr(settings.LOOM, "mcp", config(plain=plain("asks")))
    wire.enqueue(*answers(("mcp__plain__ask", {})))


def test_a_tool_servers_question_is_declined_with_approve_none(
    questions: None, session: Session
) -> None:
    printed = send("--session", str(session.uuid), "--approve", "none", "go")
    assert printed.strip() == "I do it.\nDone."
    [result] = [turn.content for turn in read_turns(session.pk) if turn.role == "tool"]
    assert json.loads(result) == {"action": "decline"}


@pytest.mark.parametrize("approve", [(), ("--approve", "all")])
def test_a_tool_servers_question_is_printed_with_the_url_of_its_page(
    questions: None, session: Session, approve: tuple[str, ...]
) -> None:
    out = _Deciding(session)
    call_command("send", "--session", str(session.uuid), "--json", *approve, "go", stdout=out)
    waiting = json.loads(out.getvalue().splitlines()[0])
    assert (waiting["type"], waiting["question"]["message"]) == ("question", "What is your name?")
    assert waiting["url"].endswith(f"/s/{session.uuid}/")
    [result] = [turn.content for turn in read_turns(session.pk) if turn.role == "tool"]
    assert json.loads(result)["content"] == {"name": "Bob"}


class _Deciding(io.StringIO):
    """An output stream whose reader allows each call and answers each question, in a thread."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def flush(self) -> None:
        for line in self.getvalue().splitlines():
            data = json.loads(line)
            if data.get("type") in ("approval", "question"):
                thread = Thread(target=self._answer, args=(data,))
                thread.start()
                thread.join()

    def _answer(self, data: dict[str, Any]) -> None:
        session, by = self._session, {"user_pk": self._session.owner_id}
        with suppress(Conflict):
            if question := data.get("question"):
                answer: dict[str, Any] = {"action": "accept", "content": {"name": "Bob"}}
                answer_question(
                    session, call=UUID(question["call"]), question=question["id"], **answer, **by
                )
            else:
                decide_call(session, call=UUID(data["call"]), decision="once", **by)
        connection.close()
