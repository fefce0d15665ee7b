"""The bot on Discord, from what people write to what they read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from conversations.archive.run_transcript import read_run_progress
from conversations.archive.sessions import archive_session
from conversations.domain.events import event_type_of
from conversations.features.discord.models import ChannelReply
from conversations.features.discord.options import DiscordRules
from conversations.features.discord.replies import RunReply
from conversations.features.discord.service import open_replies
from conversations.models import Attachment, Rewind, Run, Session, ToolCall, Turn, Workspace
from tests.archive.files import image_bytes
from tests.features.discord.conftest import RULES, Club
from tests.features.discord.discord_server import (
    ANN,
    BOB,
    BOT,
    DM_OF,
    EVE,
    GENERAL,
    OTHER,
    THREAD,
    Request,
    user,
)
from tests.runtime.sample_tools import sample_tools, witness
from tests.runtime.tool_stories import answers
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

DM = DM_OF[ANN]
AT_BOT = f"<@{BOT}>"


async def turns_of(key: str) -> list[str]:
    turns = Turn.objects.filter(session__key=key).order_by("number")
    return await sync_to_async(lambda: [t.content for t in turns])()


async def session_of(key: str) -> Session:
    return await Session.objects.select_related("owner").aget(key=key)


# -- people and places ---------------------------------------------------------------


async def test_a_direct_message_is_answered(club: Club, wire: WireThread) -> None:
    wire.enqueue(Scenario(text="Sow them in May."))
    await club.open()
    message = await club.server.say(DM, "When do I sow beans?")
    await club.until(lambda: club.server.said(DM) == ["Sow them in May."])
    # The post may still show the draft. The turn is saved when the run has ended.
    await club.until(lambda: not club.is_busy)
    assert await turns_of(f"discord:dm:{ANN}") == ["When do I sow beans?", "Sow them in May."]
    [answer] = club.server.of_bot(DM)
    assert answer["message_reference"]["message_id"] == message
    session = await session_of(f"discord:dm:{ANN}")
    assert (session.channel, session.owner.username) == ("discord", "ann")


async def test_each_place_has_its_own_session_whose_turns_name_the_author(
    club: Club, wire: WireThread
) -> None:
    await club.open()
    for place, author in ((GENERAL, ANN), (THREAD, BOB), (GENERAL, BOB)):
        before = len(club.server.said(place))
        await club.server.say(place, f"{AT_BOT} beans for <@{EVE}>?", author=author)
        await club.until(lambda p=place, b=before: len(club.server.said(p)) > b)
    await club.until(lambda: not club.is_busy)
    general = await turns_of(f"discord:channel:{GENERAL}")
    assert [text.partition(":")[0] for text in general[::2]] == ["Ann", "Bob"]
    thread = await turns_of(f"discord:thread:{THREAD}")
    assert thread[0].startswith("Bob: beans for @")
    replies = await sync_to_async(lambda: list(ChannelReply.objects.order_by("pk")))()
    assert [(r.author, r.author_name) for r in replies] == [
        (ANN, "Ann"),
        (BOB, "Bob"),
        (BOB, "Bob"),
    ]


async def test_the_bot_answers_in_a_channel_only_when_it_is_addressed(
    club: Club, wire: WireThread
) -> None:
    await club.open()
    await club.server.say(GENERAL, "Morning, all", author=BOB)
    await club.server.say(GENERAL, f"{AT_BOT} hello", author=BOB)
    await club.until(lambda: len(club.server.said(GENERAL)) == 1 and not club.is_busy)
    reply = reply_to(club.server.of_bot(GENERAL)[0])
    await club.server.say(GENERAL, "and now?", author=BOB, mentions=[user(BOT)], **reply)
    await club.until(lambda: len(club.server.said(GENERAL)) == 2 and not club.is_busy)
    said = ["Bob: hello", "Bob: and now?"]
    assert (await turns_of(f"discord:channel:{GENERAL}"))[::2] == said
    # If the mention of a reply is turned off, Discord hides the reply's content from the bot.
    await club.server.say(GENERAL, "and then?", author=BOB, **reply)
    await club.until(lambda: len(club.server.said(GENERAL)) == 3 and not club.is_busy)
    assert "without a mention" in club.server.said(GENERAL)[2]
    assert (await turns_of(f"discord:channel:{GENERAL}"))[::2] == said


async def test_a_bot_that_reads_all_messages_needs_no_mention(club: Club, wire: WireThread) -> None:
    await club.open(rules=replace(RULES, mentions_only=False))
    await club.server.say(GENERAL, "Morning, all", author=BOB)
    await club.until(lambda: club.server.said(GENERAL) and not club.is_busy)
    reply = reply_to(club.server.of_bot(GENERAL)[0])
    await club.server.say(GENERAL, "and then?", author=BOB, **reply)
    await club.until(lambda: len(club.server.said(GENERAL)) == 2 and not club.is_busy)
    turns = await turns_of(f"discord:channel:{GENERAL}")
    assert turns[::2] == ["Bob: Morning, all", "Bob: and then?"]


def reply_to(message: dict[str, Any]) -> dict[str, Any]:
    reference = {"message_id": message["id"], "channel_id": message["channel_id"]}
    return {"type": 19, "message_reference": reference, "referenced_message": message}


async def test_messages_outside_the_rules_are_neither_answered_nor_saved(
    club: Club, wire: WireThread
) -> None:
    rules = DiscordRules(channels=frozenset({GENERAL}), people={ANN: ""}, mentions_only=False)
    await club.open(rules=rules)
    await club.server.say(DM_OF[EVE], "Let me in", author=EVE)
    await club.server.say(GENERAL, "Me too", author=EVE)
    await club.server.say(OTHER, "Not here", author=ANN)
    await club.server.say(THREAD, "In a thread of an open channel", author=ANN)
    await club.until(lambda: club.server.said(THREAD) and not club.is_busy)
    assert [s.key for s in await club.sessions()] == [f"discord:thread:{THREAD}"]
    assert not club.server.said(DM_OF[EVE]) + club.server.said(GENERAL) + club.server.said(OTHER)


async def test_messages_are_refused_if_the_account_has_no_role(
    club: Club, garden: Workspace
) -> None:
    await User.objects.acreate(username="eve")
    await User.objects.acreate(username="guest", is_active=False)
    await club.open(rules=replace(RULES, people={EVE: "eve"}), account="guest")
    await club.server.say(DM_OF[EVE], "Hello", author=EVE)
    await club.until(lambda: club.server.said(DM_OF[EVE]))
    await User.objects.filter(username="eve").aupdate(is_active=False)
    await club.server.say(DM_OF[EVE], "Hello", author=EVE)
    await club.until(lambda: len(club.server.said(DM_OF[EVE])) == 2)
    own = "Your account may not write in the bot's workspace."
    assert club.server.said(DM_OF[EVE]) == [own, own]
    await club.server.say(GENERAL, f"{AT_BOT} hello", author=BOB)
    await club.until(lambda: club.server.said(GENERAL))
    assert club.server.said(GENERAL) == ["The bot's account may not write in its workspace."]
    assert await club.sessions() == []


# -- answers -------------------------------------------------------------------------


async def test_an_answer_streams_by_edits_without_pings(club: Club, wire: WireThread) -> None:
    text = "@everyone " + "and the beans grow " * 30
    wire.enqueue(Scenario(text=text, rate=60))
    await club.open()
    await club.server.say(DM, "Tell me")
    await club.until(lambda: club.server.said(DM))
    await club.until(lambda: not club.is_busy)
    [answer] = club.server.of_bot(DM)
    assert answer["content"] == text.strip()
    edits = [r for r in club.server.requests if r.method == "PATCH"]
    lengths = [len(r.body["content"]) for r in edits]
    assert len(edits) >= 3
    assert lengths == sorted(lengths)
    assert any(r.path.endswith("/typing") for r in club.server.requests)


async def test_permanent_errors_from_discord_are_not_retried(
    club: Club, wire: WireThread, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(asked: Request) -> int:
        is_help = "`/new`" in str(asked.body)
        return 404 if asked.method == "PATCH" else 400 if is_help else 0

    wire.enqueue(Scenario(text="and the beans grow " * 30, rate=60))
    club.server.fail = refuse
    await club.open()
    await club.server.say(DM, "Tell me")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    await club.server.say(DM, "/help")
    await club.until(lambda: 400 in map(refuse, club.server.requests) and not club.is_busy)
    assert [refuse(one) for one in club.server.requests if refuse(one)] == [404, 400]
    assert "discord_message_failed" not in caplog.text


async def test_a_long_answer_is_split_into_several_messages(club: Club, wire: WireThread) -> None:
    code = "\n".join(f"print({number}, 'a line of the program')" for number in range(40))
    text = "\n\n".join([("Beans " * 60).strip()] * 6 + [f"```python\n{code}\n```", "That is all."])
    wire.enqueue(Scenario(text=text))
    await club.open()
    await club.server.say(DM, "Tell me everything")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    said = club.server.said(DM)
    assert len(said) == 2
    assert said[1].endswith(f"```python\n{code}\n```\n\nThat is all.")
    assert all(not m.get("files") for m in club.server.of_bot(DM))


async def test_an_answer_over_the_message_limit_is_attached_as_a_file(
    club: Club, wire: WireThread
) -> None:
    text = "\n\n".join(f"Paragraph {number}. " + "Beans. " * 200 for number in range(6))
    wire.enqueue(Scenario(text=text))
    await club.open(max_messages=2)
    await club.server.say(DM, "Tell me everything")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    first, last = club.server.of_bot(DM)
    assert first["content"].startswith("Paragraph 0.")
    assert "complete answer is in the file" in last["content"]
    assert [file.strip() for file in last["files"]] == [text.strip()]


async def test_rate_limited_messages_are_still_sent(club: Club, wire: WireThread) -> None:
    club.server.per_window = 2
    text = "Beans. " * 40
    wire.enqueue(Scenario(text=text, rate=60), Scenario(text="Two."))
    await club.open(edit_seconds=0.02)
    await club.server.say(DM, "One")
    await club.server.say(DM, "Two")
    await club.until(lambda: len(club.server.said(DM)) == 2 and not club.is_busy)
    assert club.server.refused > 0
    assert club.server.said(DM) == [text.strip(), "Two."]


async def test_a_failed_answer_can_be_retried_with_a_button(club: Club, wire: WireThread) -> None:
    wire.enqueue(Scenario(status=400), Scenario(text="Now it works."))
    await club.open()
    await club.server.say(DM, "Hello")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    [failed] = club.server.of_bot(DM)
    assert [button["label"] for button in club.server.buttons(failed)] == ["Retry"]
    await club.server.press(failed, "Retry")
    await club.until(lambda: "Now it works." in club.server.said(DM) and not club.is_busy)
    # The turn between them says that the refused turn was set aside.
    hello, _, works = await turns_of(f"discord:dm:{ANN}")
    assert (hello, works) == ("Hello", "Now it works.")


async def test_retry_is_refused_after_the_session_has_continued(
    club: Club, wire: WireThread
) -> None:
    wire.enqueue(Scenario(status=400), Scenario(text="Beans."))
    await club.open()
    await club.server.say(DM, "Hello")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    [failed] = club.server.of_bot(DM)
    await club.server.say(DM, "What to sow?")
    await club.until(lambda: "Beans." in club.server.said(DM) and not club.is_busy)
    await club.server.press(failed, "Retry")
    await club.until(lambda: club.server.responses and not club.is_busy)
    assert "continued since then" in str(club.server.responses)
    assert len(wire.requests) == 2
    assert not await Rewind.objects.aexists()


# -- files ---------------------------------------------------------------------------


async def test_files_of_a_message_are_attached_to_its_turn(club: Club, wire: WireThread) -> None:
    await club.open()
    files = {"bed.png": image_bytes(), "plan.txt": b"Beans, then peas", "a.exe": b"\x00\x01"}
    await club.server.say(DM, "", files=files)
    await club.until(lambda: len(club.server.said(DM)) == 2 and not club.is_busy)
    kept = await sync_to_async(lambda: list(Attachment.objects.order_by("pk")))()
    assert [(a.name, a.kind, a.turn_number) for a in kept] == [
        ("bed.png", "image", 1),
        ("plan.txt", "text", 1),
    ]
    assert any("a.exe can’t be attached" in said for said in club.server.said(DM))


async def test_fetching_a_file_is_retried_after_temporary_errors(
    club: Club, wire: WireThread
) -> None:
    statuses = [503, 429]
    club.server.fail = lambda asked: statuses.pop() if "files/" in asked.path and statuses else 0
    await club.open()
    await club.server.say(DM, "What grows here?", files={"bed.png": image_bytes()})
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    assert (await turns_of(f"discord:dm:{ANN}"))[0] == "What grows here?"
    attachment = await Attachment.objects.aget(turn_number=1)
    assert attachment.name == "bed.png"


async def test_a_refused_file_is_reported_and_the_others_are_attached(
    club: Club, wire: WireThread
) -> None:
    club.server.fail = lambda asked: 403 if asked.path.endswith("bed.png") else 0
    await club.open()
    files = {"bed.png": image_bytes(), "plan.txt": b"Beans, then peas"}
    await club.server.say(DM, "What grows here?", files=files)
    await club.until(lambda: len(club.server.said(DM)) == 2 and not club.is_busy)
    assert any("bed.png could not be fetched" in said for said in club.server.said(DM))
    attachment = await Attachment.objects.aget(turn_number=1)
    assert attachment.name == "plan.txt"


# -- commands ------------------------------------------------------------------------


async def test_the_new_command_starts_another_session_in_the_same_place(
    club: Club, wire: WireThread
) -> None:
    await club.open()
    for text in ("The first", "/new", "The second"):
        before = len(club.server.said(DM))
        await club.server.say(DM, text)
        await club.until(lambda b=before: len(club.server.said(DM)) > b and not club.is_busy)
    first, second = await club.sessions()
    assert (first.key, first.former_key) == (None, f"discord:dm:{ANN}")
    assert (second.key, second.parent_id) == (f"discord:dm:{ANN}", first.pk)
    assert (await turns_of(f"discord:dm:{ANN}"))[0] == "The second"


async def test_history_and_help_work_as_slash_commands(club: Club, wire: WireThread) -> None:
    wire.enqueue(Scenario(text="In **May**."))
    await club.open()
    await club.server.say(DM, "When?")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    await club.server.choose(DM, "history")
    await club.server.choose(DM, "help")
    await club.until(lambda: len(club.server.responses) == 2)
    assert {r["content"].split("\n")[0] for r in club.server.responses} >= {"▸ When?"}
    published = [r.body for r in club.server.requests if r.method == "PUT"]
    assert {command["name"] for command in published[0]} == {"new", "history", "stop", "help"}


async def test_strangers_cannot_use_slash_commands(club: Club, wire: WireThread) -> None:
    await club.open()
    await club.server.choose(DM_OF[EVE], "new", person=EVE)
    await club.until(lambda: club.server.responses)
    assert club.server.responses[0]["content"] == "You are not allowed to use this bot here."
    assert await club.sessions() == []


async def test_stop_ends_the_answer_and_keeps_its_text(club: Club, wire: WireThread) -> None:
    wire.enqueue(*[Scenario(words=3000, rate=50)] * 2)
    await club.open()
    await club.server.say(DM, "Tell me everything")
    await club.until(lambda: club.server.said(DM))
    await club.server.say(DM, "/stop")
    await club.until(lambda: not club.is_busy)
    said = club.server.said(DM)
    assert said[0].endswith("-# Stopped.")
    assert "Stopped." in said
    run = await Run.objects.select_related("session", "session__owner").aget()
    assert run.state == "stopped"
    # An answer that was requested on the page is stopped as well.
    session = run.session
    await club.runtime.send(session, client_id="page-1", text="More", user_pk=session.owner_id)
    await club.server.say(DM, "/stop")
    await club.until(lambda: len(club.server.said(DM)) == 3)
    assert club.server.said(DM)[2] == "Stopped."
    await club.runtime.wait_idle(session.pk)
    await club.server.say(DM, "/stop")
    await club.until(lambda: len(club.server.said(DM)) == 4)
    assert club.server.said(DM)[3] == "No answer is running."


async def test_the_bot_reports_that_the_session_is_archived(club: Club, wire: WireThread) -> None:
    await club.open()
    await club.server.say(DM, "Hello")
    await club.until(lambda: club.server.said(DM) and not club.is_busy)
    session = await session_of(f"discord:dm:{ANN}")
    await sync_to_async(archive_session)(session, archived=True)
    await club.server.say(DM, "Are you there?")
    await club.until(lambda: len(club.server.said(DM)) == 2)
    assert "archived" in club.server.said(DM)[1]


# -- approvals -----------------------------------------------------------------------


@pytest.fixture
def tools() -> Iterator[None]:
    with sample_tools():
        yield


@pytest.mark.usefixtures("tools")
async def test_tool_calls_are_approved_by_buttons(
    club: Club, wire: WireThread, garden: Workspace
) -> None:
    wire.enqueue(*answers(("add", {"line": "beans"})))
    await club.open()
    await club.server.say(GENERAL, f"{AT_BOT} plant beans", author=BOB)
    await club.until(lambda: asking(club))
    [question] = asking(club)
    assert "Add to done.txt" in question["content"]
    assert "```diff\n@@ -0 @@\n+beans\n```" in question["content"]
    labels = [button["label"] for button in club.server.buttons(question)]
    assert labels == ["Approve", "Always allow changes of files", "Deny"]
    await club.server.press(question, "Approve", person=BOB)
    await club.until(lambda: club.server.responses)
    assert "Only people whose account" in club.server.responses[0]["content"]
    assert witness(Path(garden.root)) == []
    await club.server.press(question, "Approve", person=ANN)
    await club.until(lambda: not club.is_busy)
    assert witness(Path(garden.root)) == ["beans"]
    assert not asking(club)
    assert "Allowed once by ann" in question["content"]
    call = await ToolCall.objects.select_related("decided_by").aget()
    assert call.decided_by is not None
    assert call.decided_by.username == "ann"
    said = club.server.said(GENERAL)
    assert said.index(question["content"]) < len(said) - 1  # later text stands below it


def asking(club: Club) -> list[dict[str, Any]]:
    return [m for m in club.server.of_bot(GENERAL) if club.server.buttons(m)]


@pytest.mark.usefixtures("tools")
async def test_a_button_works_after_a_restart(
    club: Club, wire: WireThread, garden: Workspace
) -> None:
    wire.enqueue(*answers(("add", {"line": "beans"})))
    await club.open()
    await club.server.say(GENERAL, f"{AT_BOT} plant beans")
    await club.until(lambda: asking(club))
    await club.shut_down()
    await club.open()
    [question] = asking(club)
    await club.server.press(question, "Deny")
    await club.until(lambda: not club.is_busy)
    assert witness(Path(garden.root)) == []
    assert "Denied by ann" in question["content"]


async def test_a_reply_contains_no_rows_of_the_next_run(club: Club, wire: WireThread) -> None:
    """A run's last row can be read before its state says that it has ended."""
    wire.enqueue(Scenario(text="One."), Scenario(text="Two."))
    bot = await club.open()
    for text in ("First", "Second"):
        await club.server.say(DM, text)
    await club.until(lambda: len(club.server.said(DM)) == 2 and not club.is_busy)
    first = (await sync_to_async(open_replies_again)(club.garden))[0]
    reply = RunReply(bot, club.runtime, first, is_left_over=False)
    moment = await sync_to_async(read_run_progress)(first.run_id)
    for last_seq in (2, 3, moment.last_seq):
        await reply.read_rows(replace(moment, last_seq=last_seq))
    assert [event_type_of(payload) for payload in reply.payloads] == [  # type: ignore[arg-type]
        "assistant_text",
        "turn_separator",
    ]


def open_replies_again(workspace: Workspace) -> list[ChannelReply]:
    ChannelReply.objects.update(done_at=None)
    return open_replies(workspace)
