"""Broken connections and ended processes: no message is lost, and none is answered twice."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection

from conversations.domain.errors import Unavailable
from conversations.features.discord import inbox, posting
from conversations.features.discord.models import ChannelPlace, ChannelReply
from conversations.features.discord.posting import retry_until_done
from conversations.features.discord.worker import serve
from conversations.models import Run, Workspace
from conversations.runtime.options import RuntimeOptions
from tests.features.discord.conftest import RULES, Club
from tests.features.discord.discord_server import (
    ANN,
    BOB,
    BOT,
    DM_OF,
    GENERAL,
    GUILD,
    INVALID,
    RECONNECT,
    TOKEN,
    DiscordServer,
    Request,
)
from tests.features.discord.test_discord import turns_of
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

DM = DM_OF[ANN]
HISTORY = ("GET", f"channels/{DM}/messages")
KEY = f"discord:dm:{ANN}"


def echo(wire: WireThread, *texts: str) -> None:
    wire.enqueue(*[Scenario(text=f"Answer to {text}") for text in texts])


def answers_to(*texts: str) -> list[str]:
    return [f"Answer to {text}" for text in texts]


async def settled(club: Club, channel: int, *texts: str) -> None:
    """Check that exactly these messages are answered, in this order, once the bot is idle."""
    await club.until(lambda: len(club.server.said(channel)) >= len(texts) and not club.is_busy)
    assert club.server.said(channel) == answers_to(*texts)


async def test_the_bot_waits_for_discord_and_reports_a_rejected_token(
    server: DiscordServer,
    garden: Workspace,
    options: RuntimeOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posting, "FIRST_WAIT_SECONDS", 0.01)
    given = {"token": TOKEN, "api": f"{server.url}/api/v10", "gateway": server.gateway_url}
    for name, value in given.items():
        monkeypatch.setattr(settings.LOOM, f"discord_{name}", value)
    server.fail = lambda asked: 503 if len(server.requests) < 3 else 0
    server.refused_connections = 2

    async def reset_token() -> None:
        while not server.identified:
            await asyncio.sleep(0.01)
        await server.close_connections(code=4004)

    async with asyncio.timeout(20):
        resetting = asyncio.create_task(reset_token())
        with pytest.raises(Unavailable, match="rejected this token"):
            await serve(garden, RULES, replace(options, supervise=False))
        await resetting
        # SIGTERM ends the command at once, even while it waits for Discord.
        server.fail = lambda _: 503
        asked = len(server.requests)
        monkeypatch.setattr(posting, "FIRST_WAIT_SECONDS", 60.0)
        waiting = asyncio.create_task(serve(garden, RULES, replace(options, supervise=False)))
        while len(server.requests) == asked:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        signal.raise_signal(signal.SIGTERM)
        await waiting


async def test_a_broken_connection_is_resumed(club: Club, wire: WireThread) -> None:
    echo(wire, "one", "two", "three")
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.server.drop()
    await club.server.say(DM, "two")
    await club.until(lambda: club.server.resumed == 1)
    message = await club.server.say(DM, "three")
    await club.server.again(DM, message)
    await settled(club, DM, "one", "two", "three")
    assert club.server.identified == 1


async def test_the_bot_reconnects_when_the_gateway_asks_for_it(
    club: Club, wire: WireThread
) -> None:
    echo(wire, "one", "two")
    await club.open()
    await club.server.send({"op": RECONNECT, "d": None})
    await club.server.say(DM, "one")
    await club.until(lambda: club.server.resumed == 1)
    await club.server.say(DM, "two")
    await settled(club, DM, "one", "two")


async def test_a_new_connection_reads_the_missed_messages(club: Club, wire: WireThread) -> None:
    echo(wire, "one", "two", "three", "four")
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.server.drop()
    club.server.forget()
    await club.server.say(DM, "two", unheard=True)
    await club.server.say(GENERAL, f"<@{BOT}> three", author=BOB, unheard=True)
    await club.server.say(GENERAL, "not for the bot", author=BOB, unheard=True)
    await club.until(lambda: club.server.identified == 2)
    await club.until(lambda: club.server.said(GENERAL))
    await club.server.say(DM, "four")
    await club.until(lambda: len(club.server.said(DM)) == 3 and not club.is_busy)
    assert (await turns_of(KEY))[::2] == ["one", "two", "four"]
    assert len(club.server.said(GENERAL)) == 1


async def test_an_invalid_gateway_session_leads_to_a_new_connection(
    club: Club, wire: WireThread
) -> None:
    echo(wire, "one", "two")
    await club.open()
    await club.server.say(DM, "one", unheard=True)
    await club.server.send({"op": INVALID, "d": False})
    await club.until(lambda: club.server.identified == 2)
    await club.server.say(DM, "two")
    await settled(club, DM, "one", "two")


async def test_the_next_process_answers_messages_sent_while_none_ran(
    club: Club, wire: WireThread
) -> None:
    echo(wire, "one", "two", "three")
    await club.server.say(DM, "before all", unheard=True)
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    await club.server.say(DM, "two", unheard=True)
    await club.server.say(DM, "three", unheard=True)
    await club.open()
    await settled(club, DM, "one", "two", "three")
    await club.shut_down()
    await club.open()
    await settled(club, DM, "one", "two", "three")


async def test_an_answer_is_posted_after_the_previous_one_is_complete(
    club: Club, wire: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n\n".join(f"Paragraph {number}. " + "Beans. " * 200 for number in range(3))
    wire.enqueue(Scenario(text=text), Scenario(text="Answer to two"))
    refused: list[Request] = []

    def fail_once(request: Request) -> int:
        is_new = request.method == "POST" and request.path.endswith("/messages")
        if refused or not is_new or not request.body["content"].startswith("Paragraph 1"):
            return 0
        refused.append(request)  # It is repeated after a second, when the other answer is there.
        return 500

    monkeypatch.setattr(posting, "FIRST_WAIT_SECONDS", 1.0)
    club.server.fail = fail_once
    await club.open()
    await club.server.say(DM, "one")
    await club.server.say(DM, "two")
    await club.until(lambda: len(club.server.said(DM)) == 4 and not club.is_busy)
    assert [said.split()[1] for said in club.server.said(DM)] == ["0.", "1.", "2.", "to"]


async def test_shutdown_interrupts_a_running_answer_and_shows_its_text(
    club: Club, wire: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.features.discord.replies.UNWATCHED_SECONDS", 0.5)
    wire.enqueue(Scenario(words=3000, rate=100), Scenario(text="Answer to two"))
    await club.open()
    await club.server.say(DM, "one")
    await club.server.say(DM, "two")
    await club.until(lambda: club.server.said(DM))
    await club.until(lambda: len(club.server.said(DM)[0]) > 200)
    await club.shut_down()
    [said] = club.server.said(DM)
    assert said.endswith("-# The server stopped during this answer. Everything above is saved.")
    await club.open()
    await club.until(lambda: len(club.server.said(DM)) == 2 and not club.is_busy)
    assert club.server.said(DM)[1] == "Answer to two"


async def test_the_next_process_reads_missed_messages_of_a_new_thread(
    club: Club, wire: WireThread
) -> None:
    """The thread has no message for the bot yet, and other places have later messages."""
    echo(wire, "one")
    await club.open()
    thread = await club.server.begin_thread()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    bot = club.bots[0]
    await club.until(lambda: not bot.is_busy)
    await club.shut_down()
    await club.server.say(thread, f"<@{BOT}> two", author=BOB, unheard=True)
    wire.enqueue(Scenario(text="Answer to two"))
    await club.open()
    await settled(club, thread, "two")
    assert (await turns_of(f"discord:thread:{thread}"))[0] == "Bob: two"


async def test_more_than_a_hundred_missed_messages_are_read_in_order(
    club: Club, wire: WireThread
) -> None:
    await club.open()
    await club.shut_down()
    for number in range(130):
        await club.server.say(GENERAL, f"chatter {number}", author=BOB, unheard=True)
    echo(wire, "one", "two")
    await club.server.say(GENERAL, f"<@{BOT}> one", author=BOB, unheard=True)
    await club.server.say(GENERAL, f"<@{BOT}> two", author=BOB, unheard=True)
    await club.open()
    await settled(club, GENERAL, "one", "two")
    assert (await turns_of(f"discord:channel:{GENERAL}"))[::2] == ["Bob: one", "Bob: two"]


async def test_a_message_accepted_before_a_crash_becomes_one_turn(
    club: Club, wire: WireThread
) -> None:
    """The first process ends before it saves its place, so the next one reads the message again."""
    echo(wire, "one")
    await club.open()
    message = await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    await ChannelReply.objects.all().adelete()
    await ChannelPlace.objects.filter(key=KEY).aupdate(taken=message - 1)
    await club.open()
    await settled(club, DM, "one")
    assert await Run.objects.acount() == 1
    [reply] = await sync_to_async(lambda: list(ChannelReply.objects.all()))()
    assert reply.done_at is not None


async def test_a_posted_message_whose_id_was_not_saved_is_found_again(
    club: Club, wire: WireThread
) -> None:
    """The bot searches minutes later, when Discord no longer knows the nonce."""
    text = "\n\n".join(f"Paragraph {number}. " + "Beans. " * 200 for number in range(3))
    wire.enqueue(Scenario(text=text))
    await club.open()
    await club.server.say(DM, "one")
    await club.until(lambda: len(club.server.said(DM)) == 3 and not club.is_busy)
    before = club.server.said(DM)
    await club.shut_down()
    reply = await ChannelReply.objects.aget()
    first = club.server.of_bot(DM)[0]["id"]
    for posted in ("[]", f"[{first}]"):
        await ChannelReply.objects.filter(pk=reply.pk).aupdate(posted=posted, done_at=None)
        club.server.forget_nonces()
        await club.open()
        await club.until(lambda: not club.is_busy)
        assert club.server.said(DM) == before
        await club.shut_down()


async def test_a_post_whose_response_was_lost_is_not_repeated(club: Club, wire: WireThread) -> None:
    """Discord posts the message but responds with an error."""
    echo(wire, "one")
    failures = [500]

    def fail_after_posting(request: Request) -> int:
        if not failures or request.method != "POST" or "messages" not in request.path:
            return 0
        club.server._post(DM, request.body)
        return failures.pop()

    club.server.fail = fail_after_posting
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    assert not failures


async def test_the_bot_answers_without_permission_to_show_typing(
    club: Club, wire: WireThread
) -> None:
    echo(wire, "one")
    await club.open()
    club.server.fail = lambda request: 403 if "typing" in request.path else 0
    await club.server.say(DM, "one")
    await settled(club, DM, "one")


async def test_requests_are_repeated_after_a_429_without_a_waiting_time(
    club: Club, wire: WireThread
) -> None:
    """The library waits only if the response says for how long.

    Discord's responses do, but those of the network in front of Discord do not.
    """
    text = "and the beans grow " * 30
    wire.enqueue(Scenario(text=text, rate=60))
    refused = {"POST": 1, "PATCH": 1}

    def refuse_once(request: Request) -> int:
        if "messages" not in request.path or not refused.get(request.method):
            return 0
        refused[request.method] -= 1
        return 429

    club.server.fail = refuse_once
    await club.open()
    await club.server.say(DM, "one")
    await club.until(lambda: club.server.said(DM) == [text.strip()] and not club.is_busy)
    assert not any(refused.values())


@pytest.mark.parametrize("status", [429, 403])
async def test_missed_messages_come_first_after_failed_history_requests(
    club: Club, wire: WireThread, status: int
) -> None:
    echo(wire, "one", "two", "three")
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    await club.server.say(DM, "two", unheard=True)
    statuses = [status] * (3 if status == 429 else 1)
    club.server.fail = lambda asked: (
        statuses.pop() if statuses and (asked.method, asked.path) == HISTORY else 0
    )
    await club.open()
    # After a 403, the history is read again with the next message.
    await club.until(lambda: not (statuses and status == 403))
    await club.server.say(DM, "three")
    await settled(club, DM, "one", "two", "three")


async def test_a_forbidden_history_is_not_requested_for_every_message(
    club: Club, wire: WireThread
) -> None:
    echo(wire, "one", "two", "three", "four")
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    asked = len(club.server.requests)
    club.server.fail = lambda asked: 403 if (asked.method, asked.path) == HISTORY else 0

    def refused() -> int:
        return [(one.method, one.path) for one in club.server.requests[asked:]].count(HISTORY)

    await club.open()
    await club.until(lambda: refused() == 1)
    for told in (["one", "two"], ["one", "two", "three"], ["one", "two", "three", "four"]):
        await club.server.say(DM, told[-1])
        await settled(club, DM, *told)
    assert refused() == 2, "once more with the first message, which may come since it is open again"


async def test_the_search_for_a_posted_message_is_retried(club: Club, wire: WireThread) -> None:
    echo(wire, "one")
    await club.open()
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    await ChannelReply.objects.aupdate(posted="[]", done_at=None)
    club.server.forget_nonces()
    statuses = [503, 503]  # for the inbox, and for the reply
    club.server.fail = lambda asked: (
        statuses.pop() if statuses and (asked.method, asked.path) == HISTORY else 0
    )
    await club.open()
    await settled(club, DM, "one")
    assert not statuses


@pytest.mark.skipif(connection.vendor != "sqlite", reason="sets what SQLite refuses")
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "locked"])
async def test_messages_wait_until_they_can_be_stored(
    club: Club, wire: WireThread, caplog: pytest.LogCaptureFixture, is_full: bool
) -> None:
    texts = [f"{word} {'and beans ' * 180}".strip() for word in ("one", "two", "three")]
    wire.enqueue(*[Scenario(text=text) for text in texts])
    await club.open()
    await club.runtime.writer.write(fill_up if is_full else wait_for_no_lock)
    with closing(sqlite3.connect(connection.settings_dict["NAME"])) as other:
        if not is_full:
            other.execute("BEGIN IMMEDIATE")
        for text in texts:
            await club.server.say(DM, text)
        await club.until(lambda: "discord_not_reached" in caplog.text)
    # The writer may group this write with writes that fail.
    await retry_until_done(partial(club.runtime.writer.write, take_writes_again))
    # The waits between the retries become longer, so the timeout is long.
    await club.until(lambda: len(club.server.said(DM)) >= 3 and not club.is_busy, seconds=90)
    assert club.server.said(DM) == texts
    assert (await turns_of(KEY))[::2] == texts


def fill_up() -> None:
    """Fill the free pages that earlier tests have left, and let the database grow no further."""
    with connection.cursor() as cursor:
        [free] = cursor.execute("PRAGMA freelist_count").fetchone()
        cursor.execute("CREATE TABLE ballast (content)")
        cursor.execute("INSERT INTO ballast VALUES (zeroblob(%s))", [free * 4096])
        cursor.execute("PRAGMA max_page_count = 1")


def wait_for_no_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 20")


def take_writes_again() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS ballast")
        cursor.execute("PRAGMA max_page_count = 1000000")
        cursor.execute("PRAGMA busy_timeout = 20000")


async def test_shutdown_waits_for_all_places_at_the_same_time(
    club: Club, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "REST_SECONDS", 1.0)
    await club.open()
    await club.shut_down()
    club.server.fail = lambda asked: 500 if asked.path.endswith("/messages") else 0
    bot = await club.open()
    assert bot.is_busy
    async with asyncio.timeout(2.5):  # each of the three places is given a second
        await club.shut_down()


async def test_messages_from_before_the_bot_joined_are_not_answered(
    club: Club, wire: WireThread
) -> None:
    """The bot joins another server after it has handled messages elsewhere."""
    echo(wire, "one", "two")
    rules = replace(RULES, guilds=frozenset({GUILD, 5}), mentions_only=False)
    await club.open(rules=rules)
    await club.server.say(DM, "one")
    await settled(club, DM, "one")
    await club.shut_down()
    await club.open(rules=rules)
    channel = club.server.make_channel(5)
    await club.server.say(channel, "long ago", author=BOB, unheard=True)
    await club.server.let_in(5, joined_at="2015-01-01T00:00:01+00:00")
    await club.server.say(channel, "two", author=BOB)
    await settled(club, channel, "two")
