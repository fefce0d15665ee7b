"""Runs by the API: sending messages, waiting for answers and reading runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import AsyncClient

from conversations.archive.sessions import archive_session
from conversations.archive.workspaces import add_member, remove_member
from conversations.models import Run, Session, Turn
from conversations.runtime.current import current_runtime
from tests.web.sockets import open_socket
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Program, token_of

pytestmark = pytest.mark.django_db(transaction=True)


def messages_of(session: Session, query: str = "") -> str:
    return f"/api/v1/sessions/{session.uuid}/messages{query}"


async def send(program: Program, session: Session, text: str = "Hello", **more: Any) -> Any:
    query = more.pop("query", "?wait=20")
    body = {"text": text} | more.pop("body", {})
    return await program.post(
        messages_of(session, query), body, content_type="application/json", **more
    )


async def test_a_message_with_wait_returns_the_completed_run(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(text="Plant beans.", thinking="Which bed?"))
    answer = await send(program, session, "What now?")
    assert answer.status_code == 200
    run = answer.json()
    assert (run["state"], run["turn"], run["seq"], run["error"]) == ("completed", 1, 1, None)
    types = [row["event_type"] for row in run["rows"]]
    assert types == ["user_message", "assistant_text", "turn_separator"]
    assert run["rows"][1]["payload"]["thinking"] == "Which bed?"
    assert run["text"] == "Plant beans."
    again = await program.get(run["url"])
    assert again.json() == run


NUL = "before \0 after"


async def by_api(session: Session, program: Program, browser: AsyncClient) -> None:
    assert (await send(program, session, NUL)).status_code == 200


async def by_page(session: Session, program: Program, browser: AsyncClient) -> None:
    data = {"text": NUL, "client_id": "client-0001"}
    assert (await browser.post(f"/s/{session.uuid}/send/", data)).status_code == 302


async def by_socket(session: Session, program: Program, browser: AsyncClient) -> None:
    socket = await open_socket(session, session.owner)
    await socket.send({"type": "send", "client_id": "client-0001", "text": NUL})
    await socket.until("ack")
    await socket.close()


@pytest.mark.parametrize("way", [by_api, by_page, by_socket])
async def test_a_nul_sent_by_api_page_or_socket_is_stored(
    way: Callable[..., Awaitable[None]], program: Program, provider: WireThread, session: Session
) -> None:
    browser = AsyncClient()
    await browser.aforce_login(session.owner)
    provider.enqueue(Scenario(text="Seen."))
    await way(session, program, browser)
    await (await current_runtime()).wait_idle(session.pk)
    turn = (await program.get(f"/api/v1/sessions/{session.uuid}/turns")).json()["items"][0]
    assert turn["content"] == "before \ufffd after"
    assert turn["blocks"] == [{"type": "text", "text": NUL}]


async def test_a_message_without_wait_returns_the_address_of_its_run(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(words=40, rate=200))
    answer = await send(program, session, query="")
    assert answer.status_code == 202
    accepted = answer.json()
    assert accepted["state"] == "running"
    assert accepted["stream"] == accepted["url"] + "/stream"
    await (await current_runtime()).wait_idle(session.pk)
    run = (await program.get(accepted["url"])).json()
    assert run["state"] == "completed"


async def test_runs_are_paged_newest_first_and_back(
    program: Program, provider: WireThread, session: Session
) -> None:
    sent = [(await send(program, session, f"Message {number}")).json() for number in range(3)]
    runs = [run["run"] for run in reversed(sent)]
    url = f"/api/v1/sessions/{session.uuid}/runs"
    first = (await program.get(f"{url}?limit=2")).json()
    assert [run["run"] for run in first["items"]] == runs[:2]
    assert first["items"][0]["state"] == "completed"
    last = (await program.get(f"{url}?limit=2&cursor={first['next']}")).json()
    assert [run["run"] for run in last["items"]] == runs[2:]
    assert last["next"] is None
    back = (await program.get(f"{url}?limit=2&cursor={last['previous']}")).json()
    assert [run["run"] for run in back["items"]] == runs[:2]


async def test_the_run_goes_on_when_the_wait_times_out(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(words=200, rate=100))
    answer = await send(program, session, query="?wait=0.3")
    assert answer.status_code == 202
    run = (await program.get(answer.json()["url"])).json()
    assert run["state"] == "running"
    assert run["text"]
    stopped = await program.post(f"/api/v1/sessions/{session.uuid}/stop")
    assert stopped.status_code == 204
    await (await current_runtime()).wait_idle(session.pk)
    run = (await program.get(answer.json()["url"])).json()
    assert run["state"] == "stopped"
    assert run["rows"][1]["payload"]["partial"] is True


async def test_the_same_idempotency_key_is_the_same_run(
    program: Program, provider: WireThread, session: Session
) -> None:
    runs = set()
    for key in ("order-4711", "order-4711", "ü b".encode().hex(), "short", "a" * 255):
        answer = await send(program, session, headers={"Idempotency-Key": key})
        assert answer.status_code == 200
        runs.add(answer.json()["run"])
    assert len(runs) == 4
    await send(program, session)
    await send(program, session)
    assert await Turn.objects.filter(role="user").acount() == 6
    answer = await send(program, session, "Other", headers={"Idempotency-Key": "order-4711"})
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    answer = await send(program, session, headers={"Idempotency-Key": "a b"})
    assert answer.status_code == 422


async def test_a_refused_message_gets_an_error_code(
    program: Program, provider: WireThread, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_message_chars", 10)
    monkeypatch.setattr(settings.LOOM, "max_queued", 1)
    for text, more, status, code in (
        (" ", {}, 400, "message_empty"),
        ("far too long a text", {}, 413, "message_too_long"),
        ("", {"body": {"content": [{"type": "image"}]}}, 400, "bad_message"),
        ("", {"body": {"attachments": [str(session.uuid)]}}, 400, "attachment_unknown"),
        ("Hi", {"query": "?wait=-1"}, 422, "invalid"),
    ):
        answer = await send(program, session, text, **more)
        assert (answer.status_code, answer.json()["code"]) == (status, code), text
        assert answer["Content-Type"] == "application/problem+json"
    provider.enqueue(Scenario(hang_after=1))
    statuses = [(await send(program, session, query="")).status_code for _ in range(3)]
    assert statuses == [202, 202, 409]
    async with asyncio.timeout(60):
        while not provider.requests:  # the second run must not get the hanging answer
            await asyncio.sleep(0.01)
    await program.post(f"/api/v1/sessions/{session.uuid}/stop")
    await (await current_runtime()).wait_idle(session.pk)
    await sync_to_async(archive_session)(session, archived=True)
    answer = await send(program, session)
    assert (answer.status_code, answer.json()["code"]) == (409, "session_archived")


async def test_a_failed_run_has_an_error_code_and_a_message(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(status=401))
    run = (await send(program, session)).json()
    assert run["state"] == "failed"
    assert run["error"]["code"] == "bad_key"
    assert run["error"]["message"]
    provider.enqueue(Scenario(text="Better."))
    again = await program.post(
        f"/api/v1/sessions/{session.uuid}/runs?wait=20",
        {"kind": "regenerate"},
        content_type="application/json",
    )
    assert (again.status_code, again.json()["text"]) == (200, "Better.")
    assert [row["event_type"] for row in again.json()["rows"]] == [
        "assistant_text",
        "turn_separator",
    ]


async def test_an_edit_with_the_same_key_begins_one_run(
    program: Program, provider: WireThread, session: Session
) -> None:
    await send(program, session)
    runs = f"/api/v1/sessions/{session.uuid}/runs"

    async def begin(key: str, **wanted: Any) -> Any:
        return await program.post(
            f"{runs}?wait=20",
            wanted,
            content_type="application/json",
            headers={"Idempotency-Key": key},
        )

    edit = {"kind": "edit", "turn": 1, "text": "Other"}
    answers = [await begin("edit-0001", **edit) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["run"] == answers[1].json()["run"]
    assert (await begin("edit-0001", kind="continue")).status_code == 422
    assert (await begin("edit-0002", kind="edit", text="x")).json()["code"] == "bad_number"
    assert (await begin("edit-0003", kind="edit", turn=2, text="x")).status_code == 400
    assert (await begin("edit-0004", kind="edit", turn=2**64, text="x")).status_code == 422
    listed = (await program.get(runs)).json()["items"]
    assert [run["kind"] for run in listed] == ["message", "message"]


async def test_reusing_a_key_for_a_different_run_is_refused(
    program: Program, provider: WireThread, session: Session
) -> None:
    async def begin(key: str, **wanted: Any) -> Any:
        return await program.post(
            f"/api/v1/sessions/{session.uuid}/runs?wait=20",
            wanted,
            content_type="application/json",
            headers={"Idempotency-Key": key},
        )

    def assert_refused(answer: Any) -> None:
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")

    sent = await send(program, session, "First", headers={"Idempotency-Key": "first"})
    assert_refused(await begin("first", kind="edit", turn=1, text="First"))
    edited = await begin("edit", kind="edit", turn=1, text="Corrected A")
    assert_refused(await begin("edit", kind="edit", turn=1, text="Corrected B"))
    assert_refused(await begin("edit", kind="edit", turn=3, text="Corrected A"))
    same = {"text": "Corrected A", "headers": {"Idempotency-Key": "edit"}}
    assert_refused(await send(program, session, **same))
    again = await begin("edit", kind="edit", turn=1, text="Corrected A")
    assert again.json()["run"] == edited.json()["run"] != sent.json()["run"]
    turn = edited.json()["turn"]
    regenerated = await begin("anew", kind="regenerate", turn=turn)
    assert_refused(await begin("anew", kind="regenerate", turn=1))
    for meant in ({}, {"turn": turn}):
        again = await begin("anew", kind="regenerate", **meant)
        assert again.json()["run"] == regenerated.json()["run"]
    told = [turn async for turn in Turn.objects.filter(role="user").values_list("content")]
    assert sorted(told) == [("Corrected A",), ("First",)]


async def test_a_queued_message_can_stop_the_answer_and_go_first(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(hang_after=1), Scenario(text="Third."), Scenario(text="Second."))
    await send(program, session, query="")
    second = (await send(program, session, query="")).json()
    third = (await send(program, session, query="", body={"now": True})).json()
    ended = await program.post(
        second["url"] + "/now", {"stop": True}, content_type="application/json"
    )
    assert ended.status_code == 204
    late = [await program.get(run["url"]) for run in (second, third)]
    while any(answer.json()["state"] != "completed" for answer in late):
        await asyncio.sleep(0.05)
        late = [await program.get(run["url"]) for run in (second, third)]
    # One request to the model answered both messages.
    assert [answer.json()["text"] for answer in late] == ["", "Third."]
    assert (await program.post(third["url"] + "/now", {}, content_type="application/json")).json()[
        "code"
    ] == "not_queued"


async def test_a_queued_message_is_withdrawn_once(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(hang_after=1))
    await send(program, session, query="")
    waiting = (await send(program, session, query="")).json()
    assert (waiting["state"], waiting["turn"]) == ("queued", None)
    assert (await program.post(waiting["url"] + "/withdraw")).status_code == 204
    assert (await program.post(waiting["url"] + "/withdraw")).status_code == 409
    assert (await program.get(waiting["url"])).json()["state"] == "stopped"
    unknown = f"/api/v1/sessions/{session.uuid}/runs/{session.uuid}"
    assert (await program.post(unknown + "/withdraw")).status_code == 404
    assert (await program.get(unknown)).status_code == 404


async def test_a_run_is_executed_when_its_sender_disconnects(
    program: Program, provider: WireThread, session: Session
) -> None:
    """The message is on disk, so it is answered although the sender was cancelled."""
    runtime = await current_runtime()
    sending = asyncio.create_task(
        runtime.send(session, client_id="client-0001", text="Hello", user_pk=session.owner_id)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    async with asyncio.timeout(60):
        while not await Run.objects.filter(state="completed").aexists():
            await asyncio.sleep(0.02)


async def test_waiting_ends_with_404_when_the_membership_is_removed(
    provider: WireThread, session: Session, user: User, other_user: User
) -> None:
    await sync_to_async(add_member)(session.workspace, user_pk=other_user.pk, role="member")
    program = Program(await sync_to_async(token_of)(other_user))
    provider.enqueue(Scenario(words=60, rate=80))
    waiting = asyncio.create_task(send(program, session))
    runtime = await current_runtime()
    while not await runtime.readers.read(Turn.objects.exists):
        await asyncio.sleep(0.02)
    await runtime.writer.write(remove_member, session.workspace, user_pk=other_user.pk)
    answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
