"""Presence: who has a session open and who is writing, by the sockets of several people."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User

from conversations.archive.workspaces import add_member
from conversations.models import Session
from conversations.runtime import access_refresh, presence
from conversations.runtime.current import current_runtime

from .conftest import browser_of
from .sockets import Socket, open_socket

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("runtime_ends")]


def make_people(session: Session, count: int) -> list[User]:
    people = [User.objects.create_user(f"gardener-{number:02}") for number in range(count)]
    for user in people:
        add_member(session.workspace, user_pk=user.pk, role="member")
    return people


async def stay(stack: AsyncExitStack, session: Session, who: User) -> Socket:
    socket = await open_socket(session, who)
    stack.push_async_callback(socket.close)
    return socket


async def people_of(session: Session) -> list[dict[str, Any]]:
    return (await current_runtime()).presence.people(session.pk)


def shown(frame: dict[str, Any]) -> list[tuple[str, bool, bool]]:
    return [(one["name"], one["may_write"], one["is_writing"]) for one in frame["people"]]


async def test_people_who_come_write_and_leave_are_shown(
    session: Session, user: User, viewer: User
) -> None:
    async with AsyncExitStack() as stack:

        async def come(who: User) -> Socket:
            return await stay(stack, session, who)

        ann = await come(user)
        second_tab = await come(user)
        await ann.settle()
        assert ann.of_type("people") == []  # nobody else is there
        eve = await come(viewer)
        both = await ann.until("people")
        assert shown(both) == [(user.username, True, False), (viewer.username, False, False)]
        await second_tab.close()
        await ann.send({"type": "typing", "is_writing": True})
        await eve.until("people", where=lambda frame: frame["people"][0]["is_writing"])
        await eve.send({"type": "typing", "is_writing": True})  # a viewer may not write
        await ann.send({"type": "typing", "is_writing": False})
        await eve.until("people", where=lambda frame: not frame["people"][0]["is_writing"])
        assert not any(frame["people"][1]["is_writing"] for frame in eve.of_type("people"))
        await ann.send({"type": "typing", "is_writing": True})
        await eve.until("people", where=lambda frame: frame["people"][0]["is_writing"])
        await ann.send({"type": "send", "client_id": "client-sent", "text": "Hello"})
        await eve.until("people", where=lambda frame: not frame["people"][0]["is_writing"])
        await eve.close()
        assert (await ann.until("people", where=lambda frame: frame["count"] == 1))["people"]


async def test_changed_role_is_shown_and_applied(
    session: Session, user: User, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        ann, eve = [await stay(stack, session, who) for who in (user, viewer)]
        await ann.until("people")
        for role, may_write in (("member", True), ("viewer", False)):
            await sync_to_async(add_member)(session.workspace, user_pk=viewer.pk, role=role)
            says = lambda frame, now=may_write: frame["people"][1]["may_write"] is now  # noqa: E731
            await ann.until("people", where=says)
            ann.frames.clear()
            await eve.send({"type": "typing", "is_writing": True})
            await eve.settle()
            [here] = [one for one in await people_of(session) if one["id"] == viewer.pk]
            assert here["is_writing"] is may_write
            await eve.send({"type": "typing", "is_writing": False})
            await eve.settle()


async def test_presence_of_twenty_people_costs_few_frames(session: Session) -> None:
    people = await sync_to_async(make_people)(session, 20)
    async with AsyncExitStack() as stack:
        sockets = [await stay(stack, session, one) for one in people]
        for socket in sockets:
            await socket.until("people", where=lambda frame: frame["count"] == 20)
            socket.frames.clear()
        for _ in range(5):  # a repeated frame is published once
            for socket in sockets:
                await socket.send({"type": "typing", "is_writing": True})
        is_told = lambda frame: all(one["is_writing"] for one in frame["people"])  # noqa: E731
        for number, socket in enumerate(sockets):
            await socket.until("people", where=is_told)
            text = f"From {number}"
            await socket.send({"type": "send", "client_id": f"client-{number:02}", "text": text})
        await asyncio.gather(*(socket.until("ack", where=lambda f: True) for socket in sockets))
        assert sum(len(socket.of_type("people")) for socket in sockets) < 20 * 20


async def test_people_of_a_dead_process_are_forgotten(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        ann = await stay(stack, session, user)
        await ann.settle()
        here = (await current_runtime()).presence
        bob = {"id": 0, "name": "bob", "may_write": True, "is_writing": False}
        frame = {"type": presence.PRESENCE, "people": [bob], "wants_answer": True}
        here.receive(session.pk, "elsewhere", frame)
        assert (await ann.until("people"))["count"] == 2
        monkeypatch.setattr(presence, "LOST_SECONDS", 0)
        here.receive(session.pk, "elsewhere", frame)
        assert [one["name"] for one in here.people(session.pk)] == [user.username]


async def test_new_session_is_not_one_that_is_open_in_another_tab(
    session: Session, user: User, viewer: User
) -> None:
    browser = await sync_to_async(browser_of)(user)

    def press(came_from: str = "/w/garden/") -> str:
        headers = {"Referer": f"http://testserver{came_from}"}
        return str(browser.post("/w/garden/new/", headers=headers)["Location"])

    def order() -> str:
        return str(browser.post(f"{here}commands/", {"text": "/new"}).json()["url"])

    here = f"/s/{session.uuid}/"
    async with AsyncExitStack() as stack:
        await (await stay(stack, session, viewer)).settle()
        assert await sync_to_async(press)() == here
        await (await stay(stack, session, user)).settle()
        assert await sync_to_async(press)(here) == await sync_to_async(order)() == here
        another = await sync_to_async(press)()
        assert another != here
        assert await sync_to_async(press)() == another


async def test_message_in_another_persons_session_shows_its_author(
    session: Session, user: User
) -> None:
    [other] = await sync_to_async(make_people)(session, 1)
    for who, name in ((user, "Person"), (other, other.username)):
        async with AsyncExitStack() as stack:
            socket = await stay(stack, session, who)
            client_id = f"client-{who.username}"
            await socket.send({"type": "send", "client_id": client_id, "text": "Hello"})
            rows = await socket.until("rows")
            assert f'aria-label="{name}"' in rows["rows"][0]["html"]
            await socket.until_idle()


async def test_withdrawn_message_of_another_person_stays_visible_to_all(
    session: Session, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.01)
    [other] = await sync_to_async(make_people)(session, 1)
    async with AsyncExitStack() as stack:
        ann, bob = [await stay(stack, session, who) for who in (user, other)]
        await ann.send({"type": "send", "client_id": "client-0001", "text": "long"})
        await ann.until("draft")
        for who, socket in ((user, ann), (other, bob)):
            socket.frames.clear()
            text = f"{who} has <i>thought</i> about it"
            await socket.send({"type": "send", "client_id": f"client-{who}", "text": text})
            is_there = lambda frame, text=text: text in str(frame["items"])  # noqa: E731
            queue = await socket.until("queue", where=is_there)
            [item] = queue["items"]
            name = "" if who == user else who.username  # as in a row of the transcript
            assert (item["by"], item["author"]) == (name, str(who.pk))
            assert (f"<b>{who}:&nbsp;</b>" in queue["html"]) is bool(name)
            await ann.send({"type": "withdraw", "run": item["run"]})
            await socket.until("queue", where=lambda frame: frame["items"] == [])
            told = [row["html"] for row in socket.rows if row["event_type"] == "info"]
            if who == user:
                assert told == []
            else:
                [html] = told
                assert f"{user} withdrew a message by {other} before it was sent" in html
                assert "&lt;i&gt;thought&lt;/i&gt; about it" in html
                assert f'data-withdrawn="{item["run"]}"' in html
        await ann.send({"type": "stop"})
        await ann.until_idle()
