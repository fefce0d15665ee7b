"""The messages of a reply: their texts, approvals, buttons and files."""

import re
from functools import partial
from uuid import uuid4

import pytest

from conversations.domain.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    AssistantText,
    Fallback,
    Info,
    ToolCallCompleted,
    TurnSeparator,
)
from conversations.domain.tool_calls import ApprovalRequest
from conversations.domain.tool_questions import (
    ToolQuestion,
    make_answered_notice,
    make_asked_notice,
)
from conversations.features.discord import posting
from conversations.features.discord.message_parts import MAX_MESSAGE_UNITS, size_of
from conversations.features.discord.posting import ReplyItem, make_buttons

PAGE = "https://loom.example.org/s/1/"

make_items = partial(posting.make_items, page=PAGE)


def asked(call: str = "c1", **more: str) -> Info:
    plan = ApprovalRequest(
        call=call, call_id="x", name="edit_file", **{"summary": "Edit a.py", **more}
    )
    return Info(text="?", code=APPROVAL_ASKED, data=plan.as_data())


def decided(call: str = "c1", decision: str = "once", **more: str) -> Info:
    return Info(text="!", code=APPROVAL_DECIDED, data={"call": call, "decision": decision, **more})


def used(name: str = "read_file", **more: object) -> ToolCallCompleted:
    return ToolCallCompleted(call_id="x", name=name, ok=True, **more)  # type: ignore[arg-type]


def texts(items: list[ReplyItem]) -> list[str]:
    return [item.text for item in items]


def test_tool_calls_are_small_lines_below_the_text() -> None:
    payloads = [
        AssistantText(text="I look."),
        used(arguments={"path": "a_b.py"}),
        used("shell_execute", arguments={"command": "ls"}),
        AssistantText(text="Done."),
        TurnSeparator(state="completed"),
    ]
    [item] = make_items(payloads, done=True, max_messages=5)
    assert item.text == "I look.\n\n-# Read a\\_b.py · Done\n-# Run ls · Done\n\nDone."


def test_a_pending_approval_is_a_separate_message_with_buttons() -> None:
    before = [AssistantText(text="May I?"), asked(diff="-a\n+b", kind_label="file changes")]
    said, question = make_items(before, done=False, max_messages=5)
    assert (said.text, said.call) == ("May I?", "")
    assert question.text == "**Approval needed:** Edit a.py\n```diff\n-a\n+b\n```"
    assert (question.call, question.always) == ("c1", "file changes")
    after = [*before, decided(by="Ann"), used(call="c1"), AssistantText(text="It is edited.")]
    said, question, rest = make_items(after, done=False, max_messages=5)
    assert (question.call, question.text.split("\n")[-1]) == ("", "-# Allowed once by Ann")
    assert rest.text.endswith("It is edited.")


def test_an_approval_shows_everything_that_always_would_allow() -> None:
    label = f"exactly “make {'x' * 100}”"
    [question] = make_items([asked(diff="", kind_label=label)], done=False, max_messages=5)
    assert f"-# Always allow {label}" in question.text
    labels = [button.label for button in make_buttons(question, uuid4())]
    assert labels == ["Approve", "Always", "Deny"]
    [question] = make_items([asked(diff="", kind_label="“ls” …")], done=False, max_messages=5)
    assert "Always" not in question.text
    labels = [button.label for button in make_buttons(question, uuid4())]
    assert labels == ["Approve", "Always allow “ls” …", "Deny"]


def test_a_call_that_has_ended_offers_no_approval() -> None:
    payloads = [asked(), used("edit_file", call="c1", state="stopped")]
    question, _ = make_items(payloads, done=False, max_messages=5)
    assert (question.call, "no longer needs" in question.text) == ("", True)
    assert all(not item.call for item in make_items([asked()], done=True, max_messages=5))


def test_a_tool_server_question_links_to_the_session_page() -> None:
    question = ToolQuestion(id="q1", call="c1", server="beds", message="Which *bed*?")
    asks, answered = make_asked_notice(question), make_answered_notice(question, action="cancel")
    [item] = make_items([asks], done=False, max_messages=5)
    assert item.text == f"-# beds asks: Which \\*bed\\*? Answer at {PAGE}"
    text = AssistantText(text="\n\n".join("Beans. " * 250 for _ in range(4)))
    assert PAGE in make_items([text, asks], done=False, max_messages=3)[-1].text
    assert PAGE not in make_items([text, asks, answered], done=False, max_messages=3)[-1].text


def test_an_approval_with_long_texts_fits_one_message() -> None:
    wild = "``` _*[x](https://example.org)🌱 " * 400
    [question] = make_items(
        [asked(summary=wild, diff=wild, note=wild, kind_label=wild)], done=False, max_messages=5
    )
    assert size_of(question.text) <= MAX_MESSAGE_UNITS
    assert question.text.count("```") == 2
    more = re.search(r"([\d,]+) characters more", question.text)
    assert more is not None
    assert int(more[1].replace(",", "")) >= len(wild) - MAX_MESSAGE_UNITS


def test_the_draft_follows_the_saved_text() -> None:
    [item] = make_items([AssistantText(text="One.")], ["Two"], done=False, max_messages=5)
    assert item.text == "One.\n\nTwo"


def test_a_long_completed_answer_ends_in_a_file() -> None:
    text = "\n\n".join("Beans. " * 250 for _ in range(4))
    writing = make_items([AssistantText(text=text)], done=False, max_messages=3)
    done = make_items([AssistantText(text=text)], done=True, max_messages=3)
    assert len(writing) == len(done) == 3
    assert texts(writing)[:2] == texts(done)[:2]
    assert (writing[-1].file, done[-1].file) == ("", text)
    waiting = make_items([AssistantText(text=text), asked()], done=False, max_messages=3)
    assert waiting[-1].call == "c1"  # a pending approval is always shown


def test_the_last_message_shows_how_the_run_ended_and_the_next_action() -> None:
    failed = Info(text="The provider is overloaded. Retry.", kind="error", action="retry")
    [item] = make_items([failed, TurnSeparator(state="failed")], done=True, max_messages=5)
    assert (item.text, item.action) == ("-# The provider is overloaded. Retry.", "retry")
    assert texts(make_items([TurnSeparator(state="stopped")], done=True, max_messages=5)) == [
        "-# Stopped."
    ]
    assert texts(make_items([], done=True, max_messages=5)) == ["-# No answer."]
    assert make_items([], done=False, max_messages=5) == []


def test_a_damaged_row_is_shown_as_unreadable() -> None:
    [item] = make_items([Fallback(reason="not JSON", raw="{")], done=True, max_messages=5)
    assert item.text == "-# Unreadable row: not JSON"


@pytest.mark.parametrize(
    ("command", "plan"),
    [
        ("x" * 1_500, {"summary": "*" * 200, "note": "_" * 200}),
        ("```" * 400 + "rm", {"summary": "*" * 200, "note": "_" * 200}),
        ("\U0001f331" * 1_500, {}),
        ("a\u202eb" * 500, {"summary": "\u202e" * 300, "note": "\u202e" * 300}),
        ("make", {"summary": f"Run make in {'a' * 200}"}),
        ("make", {"note": "It reaches the network. " * 9}),
    ],
)
def test_an_approval_that_is_cut_can_only_be_approved_on_the_page(
    command: str, plan: dict[str, str]
) -> None:
    [question] = make_items(
        [asked(command=command, kind_label="“x” with any arguments", **plan)],
        done=False,
        max_messages=5,
    )
    assert size_of(question.text) <= MAX_MESSAGE_UNITS
    assert ("characters more" in question.text) == (command != "make")
    assert question.text.count("\n```") == 2
    assert question.text.endswith(f"\n-# Approve it at {PAGE}")
    assert [button.label for button in make_buttons(question, uuid4())] == ["Deny"]


def test_an_approval_shows_the_command_despite_very_long_lines() -> None:
    def widest(chars: int) -> str:
        return "\U000e0001" * 10 + "_" * (chars - 10)

    shown, note, kind = widest(200), widest(200), widest(255)
    question = asked(summary=shown, note=note, kind_label=kind, command="make " * 500)
    [asks] = make_items([question], done=False, max_messages=5)
    [answered] = make_items([question, decided(reason=widest(200))], done=False, max_messages=5)
    for item in (asks, answered):
        assert size_of(item.text) <= MAX_MESSAGE_UNITS
        assert item.text.count("\n```") == 2
    block = asks.text.split("```")[1]
    assert block == answered.text.split("```")[1], "it stays as it was when it is decided"
    assert "make" in block


def test_an_approval_writes_out_invisible_characters() -> None:
    [question] = make_items(
        [asked(command="rm \u202egpj.x\u200b", summary="Run \u202ex")], done=False, max_messages=5
    )
    assert "\u202e" not in question.text
    assert "rm <U+202E>gpj.x<U+200B>" in question.text
