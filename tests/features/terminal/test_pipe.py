"""The chat in a pipe: one answer for each line, and exit codes for scripts."""

import re
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import connection

from conversations.archive.tool_calls import answer_question
from conversations.archive.workspaces import create_workspace
from conversations.domain.text import load_json
from conversations.features.terminal import chat
from conversations.models import DraftChunk, Session, ToolCall, Workspace
from conversations.web.commands import ComposerCommand
from tests.archive.turns import read_turns
from tests.runtime.sample_tools import witness
from tests.runtime.tool_stories import answers
from tests.typist import ctrl_c_when
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Piped

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]


def test_each_line_is_a_message_and_only_answers_are_printed(piped: Piped) -> None:
    piped("table", "", "code")
    turns = read_turns(Session.objects.get(key="cli:default").pk)
    assert [turn.role for turn in turns] == ["user", "assistant"] * 2
    said = [turn.content.strip() for turn in turns if turn.role == "assistant"]
    assert piped.out.strip() == "\n".join(said)
    assert (piped.err, piped.code) == ("", 0)


def test_a_session_name_finds_the_same_session_again(piped: Piped) -> None:
    for _ in range(2):
        piped("table", arguments=("--session", "garden"))
    piped("table", arguments=("--session", "kitchen"))
    sessions = Session.objects.order_by("pk").values_list("key", "channel", "next_turn")
    assert list(sessions) == [("cli:garden", "cli", 5), ("cli:kitchen", "cli", 3)]


def test_a_uuid_selects_an_existing_session(piped: Piped, session: Session) -> None:
    piped("table", arguments=("--session", str(session.uuid)))
    assert Session.objects.get().turn_count == 2


def test_commands_are_executed_and_not_sent_as_messages(piped: Piped) -> None:
    piped("/rename Beans", "table", "/history", "/history table", "/quit", "code")
    session = Session.objects.get()
    assert (session.title, session.turn_count) == ("Beans", 2)
    assert piped.out.count("\n## A table\n") == 1  # the answer came first
    assert "> table\n" in piped.out
    assert "     1  user       table\n" in piped.out
    assert piped.code == 0


def test_a_download_command_prints_the_address(
    piped: Piped, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"small": "A bed", "large": "All beds"}
    beds = ComposerCommand(
        name="beds", says="", argument="size", choices=sizes, view="session_changes"
    )
    monkeypatch.setattr(chat, "TERMINAL_COMMANDS", (beds,))
    piped("/beds", "/beds large", "/beds huge", arguments=("--session", str(session.uuid)))
    page = f"/s/{session.uuid}/changes/"
    assert [line.partition(page)[2] for line in piped.out.splitlines()] == [
        "?size=small",
        "?size=large",
    ]
    assert "Choose one of these sizes: small, large." in piped.err


def test_a_leading_space_turns_a_command_into_a_message(piped: Piped) -> None:
    piped(" /quit", "/etc/hosts")
    said = [turn.content for turn in read_turns(Session.objects.get().pk) if turn.role == "user"]
    assert said == [" /quit", "/etc/hosts"]


def test_an_invalid_command_is_not_sent_and_exits_with_code_one(piped: Piped) -> None:
    piped("/histery", "/resume nothing like it", "/model no such", "table")
    assert "Did you mean /history?" in piped.err
    assert "This session does not exist." in piped.err
    assert "Choose one of these models" in piped.err
    assert Session.objects.get().turn_count == 2
    assert piped.code == 1


def test_a_new_session_takes_the_name_and_resume_finds_the_old_one(
    piped: Piped,
) -> None:
    piped("/rename Beans", "/new", "table", "/resume bean", "code")
    piped("table")
    first, second = Session.objects.order_by("pk")
    assert (first.title, first.key, first.turn_count) == ("Beans", None, 2)
    assert (second.key, second.parent, second.turn_count) == ("cli:default", first, 4)


def test_a_failed_run_exits_with_code_one(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.LOOM, "provider_retries", 0)
    piped("fail")
    assert (piped.out, piped.code) == ("", 1)
    assert "overloaded" in piped.err


def test_an_unclear_workspace_or_session_is_refused(
    piped: Piped, user: User, tmp_path: Path
) -> None:
    create_workspace(root=tmp_path, name="Kitchen", owner=user)
    for arguments, reason in (
        ((), "garden, kitchen"),
        (("--workspace", "nowhere"), "This workspace does not exist"),
        (("--workspace", "", "--session", "beans"), "--workspace is empty"),
        (("--workspace", "garden", "--session", ""), "--session is empty"),
        (("--workspace", "garden", "--session", "a\nb"), "A key"),
        (("--session", "11111111-2222-4333-8444-555555555555"), "This session does not exist"),
    ):
        with pytest.raises(CommandError, match=reason) as refused:
            piped("table", arguments=arguments)
        assert refused.value.returncode == 2
    piped("table", arguments=("--workspace", "kitchen"))
    assert Session.objects.get().workspace.slug == "kitchen"


def test_control_characters_of_an_answer_are_escaped(piped: Piped, tools: WireThread) -> None:
    tools.enqueue(Scenario(text="a\x1b[2Jb\u202ec\r\nd"))
    piped("go")
    assert piped.out == "a␛[2Jb<U+202E>c\nd\n"


@pytest.mark.parametrize(("approve", "done"), [("all", ["beans"]), ("none", [])])
def test_the_approve_option_decides_calls_that_need_approval(
    piped: Piped, tools: WireThread, workspace: Workspace, approve: str, done: list[str]
) -> None:
    tools.enqueue(*answers(("add", {"line": "beans"})))
    piped("go", arguments=("--approve", approve))
    assert piped.out == "I do it.\nDone.\n"
    assert witness(Path(workspace.root)) == done
    assert ToolCall.objects.get().decision == ("once" if done else "deny")
    assert ("Added" in piped.err, "[add" in piped.err) == (False, True)


@pytest.mark.usefixtures("questions")
def test_a_tool_server_question_is_declined_with_approve_none(piped: Piped) -> None:
    piped("go", arguments=("--approve", "none"))
    assert piped.out == "I do it.\nDone.\n"
    assert "[plain asks: What is your name?]\n[Declined by ann: " in piped.err
    assert load_json(ToolCall.objects.get().answer)["action"] == "decline"


@pytest.mark.usefixtures("questions")
@pytest.mark.parametrize("approve", [(), ("--approve", "all")])
def test_a_tool_server_question_is_printed_with_its_page(
    piped: Piped, approve: tuple[str, ...]
) -> None:
    def tell_the_name() -> None:
        while (call := ToolCall.objects.exclude(question="").first()) is None:
            sleep(0.02)
        answer_question(
            call.session,
            call=call.uuid,
            question=load_json(call.question)["id"],
            action="accept",
            content={"name": "Bob"},
            user_pk=call.session.owner_id,
        )
        connection.close()

    person = Thread(target=tell_the_name)
    person.start()
    piped("go", arguments=approve)
    person.join()
    page = f"/s/{Session.objects.get().uuid}/"
    assert re.search(rf"What is your name\?\]\nAnswer at \S+{page}\n\[Answered by ann", piped.err)
    assert piped.out == "I do it.\nDone.\n"


def test_ctrl_c_keeps_the_partial_answer_and_ends_the_command(
    piped: Piped, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.02)

    with ctrl_c_when(DraftChunk.objects.exists), pytest.raises(CommandError) as left:
        piped("long", "table", arguments=("--session", str(session.uuid)))
    assert left.value.returncode == 130
    said = read_turns(session.pk)
    assert [(turn.role, turn.complete) for turn in said] == [("user", True), ("assistant", False)]
    assert piped.out.startswith(said[1].content[:20])
