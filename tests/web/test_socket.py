"""The socket of a session, tested by real frames with a real runtime and the demo model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session as BrowserSession
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from conversations.access import recheck_access
from conversations.accounts.devices import sign_out_devices
from conversations.archive.append import NewEvent, append
from conversations.archive.audit import AuditOrigin, readings_of
from conversations.archive.messages import accept_message
from conversations.archive.purge import PurgeRequest, purge
from conversations.archive.sessions import create_session
from conversations.archive.workspaces import add_member, remove_member
from conversations.domain.events import UserMessage
from conversations.domain.turns import NewTurn
from conversations.models import Run, Session, Workspace
from conversations.rendering.source_text import MARK_END, MARK_START
from conversations.runtime import access_refresh
from conversations.runtime.current import current_runtime
from conversations.web import consumers
from tests.archive.turns import turns_of

from .conftest import browser_of, say
from .sockets import HOST, Frame, Socket, open_socket

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("transactional_db", "runtime_ends"),
]

type Connect = Callable[..., Awaitable[Socket]]


@pytest.fixture
async def connect(
    transactional_db: None, runtime_ends: None, session: Session, user: User
) -> AsyncIterator[Connect]:
    """Return a function that opens a socket to the session, as its owner by default.

    Every socket is closed before the runtime ends.
    """
    opened: list[Socket] = []

    async def open_one(
        person: User | None = user, *, to: Session | str = session, **more: Any
    ) -> Socket:
        socket = await open_socket(to, person, **more)
        opened.append(socket)
        return socket

    yield open_one
    for socket in opened:
        await socket.close()


@pytest.fixture
async def socket(connect: Connect) -> Socket:
    """The owner's socket, after its greeting."""
    opened = await connect()
    await opened.until("state")
    opened.frames.clear()
    return opened


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow down the demo model, so that a test can act in the middle of an answer."""
    monkeypatch.setattr(settings.LOOM, "demo_delay", 0.01)


async def ask(socket: Socket, text: str, client_id: str = "") -> Frame:
    """Send a message, and return its acknowledgement."""
    client_id = client_id or uuid4().hex
    await socket.send({"type": "send", "client_id": client_id, "text": text})
    return await socket.until("ack", where=lambda frame: frame["client_id"] == client_id)


async def ask_and_wait(socket: Socket, text: str) -> Frame:
    ack = await ask(socket, text)
    await socket.until_idle()
    return ack


async def error_after(socket: Socket, frame: Frame) -> Frame:
    await socket.send(frame)
    return await socket.until("error")


# --- connecting ---


async def test_greeting_describes_the_session(connect: Connect, session: Session) -> None:
    await sync_to_async(say)(session, "Plant the beans", "In May")
    socket = await connect()
    await socket.settle()
    assert socket.frames == [
        {"type": "hello", "session": str(session.uuid), "last_seq": 2, "rewinds": 0, "run": ""},
        {"type": "title", "title": "Plant the beans"},
        {"type": "model", "model": "demo"},
        {"type": "queue", "items": [], "html": ""},
        socket.of_type("window")[0],
        {"type": "state", "run_state": "idle", "run": "", "text": "", "elapsed_ms": 0},
        {"type": "pong"},
    ]


async def test_another_origin_is_refused(connect: Connect) -> None:
    for origin in [
        None,
        "",
        "null",
        "http://127.0.0.1:8001",
        "http://127.0.0.1",
        "https://127.0.0.1:8000",
        "http://localhost:8000",
        "http://127.0.0.1:8000.evil.example",
        "http://evil.example",
        "http://127.0.0.1:8000/",
        "http://127.0.0.1:8000 ",
        "http://user@127.0.0.1:8000",
    ]:
        assert await (await connect(origin=origin)).close_code() == 4403, origin


async def test_unknown_host_is_refused(connect: Connect) -> None:
    """An attacker can point the DNS name of their own site to this machine."""
    for host in ["evil.example", "evil.example:8000", "", "127.0.0.1:8000@evil"]:
        assert await (await connect(host=host, origin=f"http://{host}")).close_code() == 4403, host


async def test_our_own_origin_is_accepted(connect: Connect) -> None:
    for host in [HOST, "localhost", "LOCALHOST:8000", "[::1]:8000"]:
        socket = await connect(host=host, origin=f"http://{host}")
        assert (await socket.next())["type"] == "hello", host


async def test_a_trusted_origin_is_accepted(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "trusted_origins", ["https://chat.example"])
    assert (await (await connect(origin="https://chat.example")).next())["type"] == "hello"
    assert await (await connect(origin="https://chat.example:444")).close_code() == 4403


async def test_https_origin_is_required_if_the_proxy_reports_https(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"headers": {"x-forwarded-proto": "https"}}
    plain, secure = {"origin": f"http://{HOST}"}, {"origin": f"https://{HOST}"}
    assert await (await connect(**secure, **said)).close_code() == 4403
    monkeypatch.setattr(settings.LOOM, "behind_tls_proxy", True)
    assert (await (await connect(**secure, **said)).next())["type"] == "hello"
    assert await (await connect(**plain, **said)).close_code() == 4403
    assert await (await connect(**secure)).close_code() == 4403


async def test_socket_for_the_page_of_another_person_is_refused(
    connect: Connect, user: User
) -> None:
    assert (await (await connect(query=f"?person={user.pk}")).until("hello"))["run"] == ""
    assert await (await connect(query=f"?person={user.pk}0")).close_code() == 4401


async def test_pages_receive_the_chosen_model_and_title(
    connect: Connect, session: Session, user: User
) -> None:
    page = await connect()
    await page.until("state")
    assert page.of_type("model") == [{"type": "model", "model": "demo"}]  # the default
    address = reverse("session_model", args=[session.uuid])
    await sync_to_async(lambda: browser_of(user).post(address, {"model": "demo"}))()
    assert await page.until("model") == {"type": "model", "model": "demo"}
    api = f"/api/v1/sessions/{session.uuid}"
    as_json = {"content_type": "application/json"}
    await sync_to_async(lambda: browser_of(user).patch(api, {"model": ""}, **as_json))()
    assert await page.until("model") == {"type": "model", "model": "demo"}
    address = reverse("session_rename", args=[session.uuid])
    await sync_to_async(lambda: browser_of(user).post(address, {"title": "Beans"}))()
    assert await page.until("title") == {"type": "title", "title": "Beans"}


async def test_session_of_another_person_looks_like_a_missing_session(
    connect: Connect, other_user: User
) -> None:
    assert await (await connect(to=f"/ws/s/{uuid4()}/")).close_code() == 4404
    assert await (await connect(other_user)).close_code() == 4404


async def test_number_of_sockets_per_person_is_limited(
    connect: Connect, other_user: User, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_sockets", 2)
    first, second = await connect(), await connect()
    for socket in (first, second):
        await socket.until("state")
    assert await (await connect()).close_code() == 4429
    await sync_to_async(add_member)(session.workspace, user_pk=other_user.pk, role="viewer")
    await (await connect(other_user)).until("state")
    await first.close()
    again = await connect()
    await again.until("state")
    assert await (await connect()).close_code() == 4429


async def test_other_addresses_have_no_socket(connect: Connect) -> None:
    for address in [
        "/ws/",
        "/",
        "/ws/s/x/",
        "/ws/s/%00/",
        "/ws/s/" + "9" * 5000 + "/",
        "/ws/../admin/",
    ]:
        assert await (await connect(to=address)).close_code() == 4404, address


async def test_refused_socket_accepts_no_message(connect: Connect, session: Session) -> None:
    socket = await connect(None)
    await socket.send({"type": "send", "client_id": "client-0001", "text": "Hello"})
    assert await socket.close_code() == 4401
    assert await Run.objects.acount() == 0


async def test_a_bad_cursor_is_refused_with_the_reason(connect: Connect) -> None:
    for after in ["nonsense", "seq:-1", "%00", "seq:" + "9" * 40, "turn:x"]:
        socket = await connect(query=f"?after={after}")
        assert await socket.close_code() == 4400, after
        assert [frame["code"] for frame in socket.frames] == ["bad_cursor"], after


# --- a message and its answer ---


async def test_message_is_acknowledged_and_answered(socket: Socket, session: Session) -> None:
    await socket.send({"type": "send", "client_id": "client-0001", "text": "Hello *you*"})
    await socket.until_idle()
    await socket.settle()
    [ack] = socket.of_type("ack")
    run = ack["run"]
    assert ack == {
        "type": "ack",
        "client_id": "client-0001",
        "run": run,
        "seq": 1,
        "turn": 1,
        "queued": False,
    }
    assert [(row["seq"], row["event_type"], row["turn"]) for row in socket.rows] == [
        (1, "user_message", 1),
        (2, "assistant_text", 2),
        (3, "turn_separator", 2),
    ]
    assert socket.rows[0]["client_id"] == "client-0001"
    states = [frame["run_state"] for frame in socket.of_type("state")]
    assert (states[0], states[-1]) == ("running", "idle")
    # The watcher for changes by other processes may send the title once more.
    assert {frame["title"] for frame in socket.of_type("title")} == {"Hello you"}
    drafts = socket.of_type("draft")
    assert {frame["run"] for frame in drafts if frame["offset"] == 0} == {run}


async def test_the_draft_grows_without_gaps_and_becomes_the_row(
    slow: None, connect: Connect, session: Session
) -> None:
    socket = await connect()
    await ask_and_wait(socket, "think")
    parts: dict[int, str] = {}
    kinds: dict[int, str] = {}
    for frame in socket.of_type("draft"):
        kinds[frame["part"]] = frame["kind"]
        assert frame["offset"] == len(parts.get(frame["part"], ""))
        parts[frame["part"]] = parts.get(frame["part"], "") + frame["text"]
    assert kinds == {0: "thinking", 1: "text"}
    assert len(socket.of_type("draft")) > 4
    [_, (_, answer)] = await turns_of(session)
    assert parts[1] == answer
    ending = [frame for frame in socket.of_type("rows") if "ends_draft" in frame]
    assert [row["event_type"] for row in ending[0]["rows"]] == ["assistant_text"]
    last_draft = max(n for n, frame in enumerate(socket.frames) if frame["type"] == "draft")
    assert last_draft < socket.frames.index(ending[0])


async def test_rows_on_the_socket_equal_those_of_the_page(
    socket: Socket, session: Session, user: User
) -> None:
    await ask_and_wait(socket, "table")
    page = await sync_to_async(lambda: browser_of(user).get(f"/s/{session.uuid}/"))()
    assert "".join(row["html"] for row in socket.rows) in page.text


async def test_all_watchers_get_the_same_rows_and_drafts(
    connect: Connect, session: Session, viewer: User
) -> None:
    first, second = await connect(), await connect(viewer)
    await second.settle()
    await ask_and_wait(first, "Hello")
    await second.until("state", where=lambda frame: frame["run_state"] == "running")
    await second.until_idle()
    assert second.rows == first.rows
    drafts = ["".join(f["text"] for f in s.of_type("draft")) for s in (first, second)]
    assert drafts[0] == drafts[1] != ""
    assert second.of_type("ack") == []


async def test_message_sent_twice_is_accepted_once(socket: Socket, session: Session) -> None:
    first = await ask(socket, "Hello", "client-0001")
    await socket.until_idle()
    again = await ask(socket, "Hello", "client-0001")
    assert again == first
    await socket.settle()
    assert [role for role, _ in await turns_of(session)] == ["user", "assistant"]


async def test_run_continues_when_its_page_closes(
    slow: None, connect: Connect, session: Session
) -> None:
    socket = await connect()
    await ask(socket, "Hello")
    begun = await socket.until("draft")
    await socket.close()
    await (await current_runtime()).wait_idle(session.pk)
    assert (await Run.objects.aget()).state == "completed"
    [_, (_, answer)] = await turns_of(session)
    assert len(answer) > len(begun["text"])


@pytest.mark.usefixtures("slow")
class TestWhileAnAnswerRuns:
    async def test_further_messages_wait_and_can_be_withdrawn(
        self, connect: Connect, session: Session
    ) -> None:
        socket = await connect()
        await ask(socket, "long")
        await socket.until("draft")
        waiting = await ask(socket, "And peas?", "client-0002")
        assert waiting == {
            "type": "ack",
            "client_id": "client-0002",
            "run": waiting["run"],
            "seq": None,
            "turn": None,
            "queued": True,
        }
        await socket.settle()
        item = {"run": waiting["run"], "text": "And peas?", "client_id": "client-0002"} | {
            "now": False,
            "author": str(session.owner_id),
            "by": "",
        }
        assert [item] in [frame["items"] for frame in socket.of_type("queue")]
        known = {"client_id": "client-0003", "run": waiting["run"]}
        await socket.send({"type": "withdraw"} | known)
        await socket.until("queue", where=lambda frame: frame["items"] == [])
        late = await error_after(socket, {"type": "withdraw", "run": waiting["run"]})
        assert socket.of_type("ack")[-1] == {"type": "ack"} | known
        assert late["code"] == "not_queued"
        await socket.send({"type": "stop"})
        await socket.until_idle()
        assert [text for role, text in await turns_of(session) if role == "user"] == ["long"]

    async def test_queued_message_is_answered_next(
        self, connect: Connect, session: Session
    ) -> None:
        socket = await connect()
        await ask(socket, "long")
        await ask(socket, "Hello")
        await socket.until("draft")
        await socket.send({"type": "stop"})
        await socket.until("rows", where=lambda f: f["rows"][0]["event_type"] == "user_message")
        await socket.until_idle()
        assert [role for role, _ in await turns_of(session)] == ["user", "assistant"] * 2
        assert socket.of_type("queue")[-1]["items"] == []

    async def test_a_stop_of_one_answer_does_not_stop_the_next(self, connect: Connect) -> None:
        """A person may press a key twice, or two people may stop an answer at once."""
        socket = await connect()
        await ask(socket, "long")
        await ask(socket, "long")
        first, second = [frame["run"] for frame in socket.of_type("ack")]
        await socket.send({"type": "stop", "run": first})
        await socket.until("draft", where=lambda frame: frame.get("run") == second)
        await socket.send({"type": "stop", "run": first})
        await socket.send({"type": "ping"})
        await socket.until("pong")
        for _ in range(3):
            await socket.until("draft")
        await socket.send({"type": "stop"})
        await socket.until_idle()

    async def test_length_of_the_queue_is_limited(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(settings.LOOM, "max_queued", 2)
        socket = await connect()
        for text in ("long", "one", "two"):
            await ask(socket, text)
        frame = {"type": "send", "client_id": "client-0004", "text": "three"}
        error = await error_after(socket, frame)
        assert (error["code"], error["client_id"]) == ("queue_full", "client-0004")

    async def test_stop_keeps_the_text_written_so_far(
        self, connect: Connect, session: Session
    ) -> None:
        socket = await connect()
        await ask(socket, "long")
        for _ in range(3):
            await socket.until("draft")
        await socket.send({"type": "stop"})
        await socket.until_idle()
        shown = "".join(frame["text"] for frame in socket.of_type("draft"))
        [_, (_, kept)] = await turns_of(session)
        assert shown
        assert kept == shown
        assert [row["event_type"] for row in socket.rows[1:]] == [
            "assistant_text",
            "turn_separator",
        ]
        assert "The answer was cut off here." in socket.rows[1]["html"]
        assert 'data-action="continue"' in socket.rows[2]["html"]
        assert (await Run.objects.aget()).state == "stopped"

    async def test_a_late_page_gets_the_draft_so_far(self, connect: Connect) -> None:
        first = await connect()
        await ask(first, "long")
        for _ in range(3):
            await first.until("draft")
        late = await connect(query="?after=seq:0")
        snapshot = await late.until("draft")
        assert (snapshot["reset"], snapshot["offset"]) == (True, 0)
        following = await late.until("draft")
        assert following["offset"] == len(snapshot["text"])
        assert [row["event_type"] for row in late.rows] == ["user_message"]
        assert late.of_type("rows")[0]["ends_draft"] == "*"  # drafts of other answers
        assert late.of_type("hello")[0]["run"] == snapshot["run"]
        assert late.of_type("state")[0]["run_state"] == "running"

    async def test_translated_words_are_inserted_only_in_html(self, connect: Connect) -> None:
        socket = await connect(query="?language=de")
        await ask(socket, "long")
        await socket.until("draft")
        forged = f"{MARK_START}Denied{MARK_END}"
        await ask(socket, forged)
        await socket.settle()
        waiting = next(frame for frame in socket.of_type("queue") if frame["items"])
        assert waiting["items"][0]["text"] == forged
        assert "<span>\ufffdDenied\ufffd</span>" in waiting["html"]
        assert "Zurückziehen" in waiting["html"]

    async def test_edit_regenerate_retry_and_continue_are_refused_during_a_run(
        self, connect: Connect
    ) -> None:
        socket = await connect()
        await ask(socket, "long")
        for kind, more in (
            ("edit", {"turn": 1, "text": "x"}),
            ("regenerate", {"turn": 1}),
            ("retry", {}),
            ("continue", {}),
        ):
            error = await error_after(socket, {"type": kind, "client_id": uuid4().hex} | more)
            assert error["code"] == "session_busy", kind


# --- answering again ---


async def test_an_edit_replaces_the_message_and_all_after_it(
    socket: Socket, session: Session
) -> None:
    await ask_and_wait(socket, "Hello")
    await ask_and_wait(socket, "Again")
    await socket.send({"type": "edit", "client_id": "edit-0001", "turn": 1, "text": "Better"})
    await socket.until_idle()
    [rewound] = socket.of_type("rewound")
    assert (rewound["from_seq"], rewound["to_seq"]) == (1, 6)
    assert "Earlier version" in rewound["html"]
    ack = socket.of_type("ack")[-1]
    assert (ack["client_id"], ack["seq"], ack["turn"]) == ("edit-0001", 7, 5)
    assert [row["seq"] for row in socket.rows if row["seq"] > 6] == [7, 8, 9]
    assert [text for role, text in await turns_of(session) if role == "user"] == [
        "Hello",
        "Again",
        "Better",
    ]


@pytest.mark.parametrize("turn", [{"turn": 1}, {}])
async def test_regenerate_replaces_the_answer(
    socket: Socket, session: Session, turn: dict[str, int]
) -> None:
    await ask_and_wait(socket, "Hello")
    await socket.send({"type": "regenerate", "client_id": "again-0001"} | turn)
    await socket.until_idle()
    [rewound] = socket.of_type("rewound")
    assert (rewound["from_seq"], rewound["to_seq"]) == (2, 3)
    assert [role for role, _ in await turns_of(session)] == ["user", "assistant", "assistant"]
    again = {"type": "regenerate", "client_id": "again-0001"} | turn
    await socket.send(again)
    await socket.until("ack")
    await socket.settle()
    assert len(socket.of_type("rewound")) == 1


async def test_failure_is_explained_and_can_be_retried(
    connect: Connect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "provider_retries", 0)
    socket = await connect()
    await ask_and_wait(socket, "fail")
    [notice] = [row for row in socket.rows if row["event_type"] == "info"]
    assert "pretends to be overloaded" in notice["html"]
    assert 'data-action="retry"' in notice["html"]
    await socket.send({"type": "retry", "client_id": "retry-0001"})
    await socket.until_idle()
    [rewound] = socket.of_type("rewound")
    assert rewound["from_seq"] == notice["seq"]
    assert await Run.objects.filter(state="failed").acount() == 2


async def test_wait_before_a_retry_is_shown(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "provider_retries", 1)
    socket = await connect()
    await ask(socket, "fail")
    state = await socket.until("state", where=lambda frame: frame["run_state"] == "retrying")
    assert "Trying again in 1 s (1 of 1)." in state["text"]
    await socket.until_idle()


async def test_stopped_answer_can_be_continued(
    slow: None, connect: Connect, session: Session
) -> None:
    socket = await connect()
    await ask(socket, "long")
    await socket.until("draft")
    await socket.send({"type": "stop"})
    await socket.until_idle()
    await socket.send({"type": "continue", "client_id": "go-on-0001"})
    await socket.until("draft")
    await socket.send({"type": "stop"})
    await socket.until_idle()
    assert socket.of_type("ack")[-1]["client_id"] == "go-on-0001"
    assert [role for role, _ in await turns_of(session)] == ["user", "assistant", "assistant"]


async def test_a_summary_is_acknowledged(socket: Socket) -> None:
    await ask_and_wait(socket, "Hello")
    await socket.send({"type": "compact", "client_id": "compact-0001"})
    await socket.until_idle()
    assert socket.of_type("ack")[-1]["client_id"] == "compact-0001"


async def test_only_a_message_of_the_person_can_be_edited(socket: Socket) -> None:
    await ask_and_wait(socket, "Hello")
    for turn in [2, 3, 99, 2**52]:
        frame = {"type": "edit", "client_id": "edit-0001", "turn": turn, "text": "x"}
        assert (await error_after(socket, frame))["code"] == "not_a_message", turn


# --- catching up ---


async def test_reconnected_page_gets_exactly_the_rows_it_missed(
    connect: Connect, session: Session
) -> None:
    await sync_to_async(say)(session, "one", "two", "three", "four")
    for query, missed in (
        ("?after=seq:2", [3, 4]),
        ("?after=seq%3A2", [3, 4]),
        ("?x=1&after=seq%3a3", [4]),
        ("?after=seq:0", [1, 2, 3, 4]),
        ("?after=seq:4", []),
        ("?after=seq:99", []),
        ("", []),
    ):
        socket = await connect(query=query)
        await socket.settle()
        assert socket.seqs == missed, query


async def test_page_that_missed_too_many_rows_is_told_to_reload(
    connect: Connect, session: Session
) -> None:
    await sync_to_async(append)(
        session.pk,
        session_uuid=session.uuid,
        turns=[NewTurn(role="user", content="x")] * 501,
        events=[NewEvent(payload=UserMessage(text="x"), new=number) for number in range(501)],
    )
    socket = await connect(query="?after=seq:0")
    await socket.settle()
    assert socket.of_type("reload") == [{"type": "reload", "reason": "too_far_behind"}]
    assert socket.rows == []


async def test_page_that_missed_a_rewind_is_told_to_reload(
    socket: Socket, connect: Connect
) -> None:
    await ask_and_wait(socket, "Hello")
    await socket.send({"type": "regenerate", "client_id": "again-0001"})
    await socket.until("rewound")
    await socket.until_idle()
    for known, is_told in [("1", False), ("0", True), ("9" * 5000, True)]:
        late = await connect(query=f"?after=seq:3&rewinds={known}")
        await late.settle()
        assert late.of_type("hello")[0]["rewinds"] == 1, (known, is_told)
        told = [{"type": "reload", "reason": "rewound"}] if is_told else []
        assert late.of_type("reload") == told, (known, is_told)


async def test_invalid_number_of_rewinds_is_ignored(connect: Connect) -> None:
    for rewinds in ["", "x", "-1", "%00", "٣"]:
        late = await connect(query=f"?rewinds={rewinds}")
        await late.settle()
        assert late.of_type("reload") == [], rewinds


async def test_sync_sends_the_missing_rows(socket: Socket, session: Session) -> None:
    await ask_and_wait(socket, "Hello")
    await socket.settle()
    socket.frames.clear()
    await socket.send({"type": "sync", "after": "seq:1"})
    await socket.settle()
    assert [frame["type"] for frame in socket.frames] == [
        "rows",
        "queue",
        "window",
        "state",
        "pong",
    ]
    assert socket.seqs == [2, 3]
    assert (await error_after(socket, {"type": "sync", "after": "x"}))["code"] == "bad_cursor"
    await ask_and_wait(socket, "Still here?")


async def test_rows_of_another_process_arrive(socket: Socket, session: Session) -> None:
    await sync_to_async(say)(session, "From elsewhere")
    rows = await socket.until("rows")
    assert [row["seq"] for row in rows["rows"]] == [1]


async def test_no_row_is_lost_while_pages_connect(
    slow: None, connect: Connect, session: Session
) -> None:
    asking = await connect()
    await ask(asking, "Hello")
    watchers = [await connect(query="?after=seq:0") for _ in range(5)]
    await asking.until_idle()
    for watcher in watchers:
        await watcher.until_idle()
        assert watcher.seqs == [1, 2, 3]


# --- loss of rights ---


async def test_a_removed_member_cannot_send(
    connect: Connect, session: Session, workspace: Workspace, other_user: User
) -> None:
    await sync_to_async(add_member)(workspace, user_pk=other_user.pk, role="member")
    socket = await connect(other_user)
    await ask_and_wait(socket, "Hello")
    await sync_to_async(remove_member)(workspace, user_pk=other_user.pk)
    frame = {"type": "send", "client_id": "client-0002", "text": "And now?"}
    error = await error_after(socket, frame)
    assert (error["code"], error["client_id"]) == ("not_found", "client-0002")
    assert await socket.close_code() == 4404
    assert len(await turns_of(session)) == 2


async def test_member_who_became_a_viewer_keeps_the_socket(
    connect: Connect, workspace: Workspace, other_user: User
) -> None:
    await sync_to_async(add_member)(workspace, user_pk=other_user.pk, role="member")
    socket = await connect(other_user)
    await sync_to_async(add_member)(workspace, user_pk=other_user.pk, role="viewer")
    frame = {"type": "send", "client_id": "client-0001", "text": "Hello"}
    assert (await error_after(socket, frame))["code"] == "not_permitted"
    await socket.settle()


def remove_from_workspace(user: User, workspace: Workspace) -> None:
    remove_member(workspace, user_pk=user.pk)


def sign_out(user: User, _: Workspace) -> None:
    BrowserSession.objects.all().delete()


def sign_out_everywhere(user: User, _: Workspace) -> None:
    sign_out_devices(user.pk)


def close_account(user: User, _: Workspace) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def change_password(user: User, _: Workspace) -> None:
    user.set_password("staple battery")
    user.save()


def purge_sessions(user: User, workspace: Workspace) -> None:
    for session in workspace.sessions.all():
        order, origin = PurgeRequest(reason="Tidying"), AuditOrigin()
        purge(session, order=order, origin=origin, now=timezone.now())


ENDS = [
    (remove_from_workspace, 4404),
    (sign_out, 4401),
    (sign_out_everywhere, 4401),
    (close_account, 4401),
    (change_password, 4401),
    (purge_sessions, 4404),
]


@pytest.fixture
def watcher(transactional_db: None, workspace: Workspace, other_user: User) -> User:
    add_member(workspace, user_pk=other_user.pk, role="member")
    return other_user


async def test_message_of_a_signed_out_person_closes_the_socket(
    connect: Connect, workspace: Workspace, watcher: User
) -> None:
    """The same check is made for a page that only watches."""
    socket = await connect(watcher)
    await socket.settle()
    await sync_to_async(sign_out)(watcher, workspace)
    await socket.send({"type": "send", "client_id": "client-0001", "text": "Hello"})
    assert await socket.close_code() == 4401
    assert await Run.objects.acount() == 0


@pytest.mark.parametrize(("end", "code"), ENDS)
async def test_socket_closes_when_its_person_loses_access(
    connect: Connect,
    session: Session,
    workspace: Workspace,
    watcher: User,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[User, Workspace], None],
    code: int,
) -> None:
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.05)
    owner, socket = await connect(), await connect(watcher)
    if end is not sign_out:  # it also signs the owner out
        await asyncio.sleep(0.2)
        await socket.settle()
    await sync_to_async(end)(watcher, workspace)
    assert await socket.close_code() == code
    seen = len(socket.frames)
    if end not in (sign_out, purge_sessions):
        await ask_and_wait(owner, "Secret")
        assert len(socket.frames) == seen
    assert not any("Secret" in str(frame) for frame in socket.frames)


async def test_person_who_loses_access_during_the_replay_does_not_appear(
    connect: Connect,
    session: Session,
    workspace: Workspace,
    watcher: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.05)
    runtime = await current_runtime()
    catch_up, goes_on = runtime.catch_up, asyncio.Event()

    async def catch_up_late(*arguments: Any, **values: Any) -> Any:
        await goes_on.wait()
        return await catch_up(*arguments, **values)

    monkeypatch.setattr(runtime, "catch_up", catch_up_late)
    socket = await connect(watcher)
    await asyncio.sleep(0.3)  # until its access is watched
    await sync_to_async(remove_from_workspace)(watcher, workspace)
    assert await socket.close_code() == 4404
    goes_on.set()
    await asyncio.sleep(0.3)
    assert runtime.presence.people(session.pk) == []
    assert await socket.is_silent()


async def test_socket_that_two_checks_deny_is_closed_once(
    connect: Connect, workspace: Workspace, watcher: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.05)
    socket = await connect(watcher)
    await socket.until("state")
    both = Barrier(2)

    def recheck_together(*arguments: Any, **values: Any) -> bool:
        both.wait(10)
        return recheck_access(*arguments, **values)

    monkeypatch.setattr(consumers, "recheck_access", recheck_together)
    await sync_to_async(remove_from_workspace)(watcher, workspace)
    await socket.send({"type": "sync", "after": "0"})
    assert await socket.close_code() == 4404
    assert await socket.is_silent()


async def test_removed_member_who_is_a_reviewer_must_reconnect(
    connect: Connect, session: Session, workspace: Workspace, watcher: User
) -> None:
    reviews = await Permission.objects.aget(codename="review_transcripts")
    await watcher.user_permissions.aadd(reviews)
    socket = await connect(watcher)
    await socket.settle()
    await sync_to_async(remove_from_workspace)(watcher, workspace)
    await socket.send({"type": "sync", "after": "0"})
    assert await socket.close_code() == 4404, "nothing would say that somebody reads it"
    again = await connect(watcher)
    await again.settle()
    readings = await sync_to_async(lambda: list(readings_of(session.uuid)))()
    assert [entry.action for entry in readings] == ["live"]


def rename_table(old: str, new: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


async def test_short_database_failure_closes_no_socket(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_refresh, "LOOK_INTERVAL_SECONDS", 0.05)
    socket = await connect()
    await socket.settle()
    await sync_to_async(rename_table)("conversations_membership", "elsewhere")
    try:
        await asyncio.sleep(0.3)
    finally:
        await sync_to_async(rename_table)("elsewhere", "conversations_membership")
    assert "session_not_rechecked" in caplog.text
    await ask_and_wait(socket, "Still here?")


async def test_archived_session_refuses_messages(
    socket: Socket, session: Session, user: User
) -> None:
    await sync_to_async(lambda: browser_of(user).post(f"/s/{session.uuid}/archive/"))()
    frame = {"type": "send", "client_id": "client-0001", "text": "Hello"}
    assert (await error_after(socket, frame))["code"] == "session_archived"


# --- invalid frames ---


async def test_frame_that_is_not_an_object_closes_the_socket(connect: Connect) -> None:
    for text in (
        *("nonsense", "[]", '"send"', "null", "1", "{", "[" * 100_000, '{"a":' * 50_000, "\0"),
        b'{"type": "ping"}',
    ):
        socket = await connect()
        send = socket.send_text if isinstance(text, str) else socket.send_bytes
        await send(text)
        assert await socket.close_code() == 4400, text[:20]


async def test_size_of_a_frame_in_bytes_is_limited(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_frame_bytes", 100)
    for character, is_taken in [("e", True), ("é", False)]:
        socket = await connect()
        await socket.send_text(f'{{"type": "ping", "padding": "{character * 60}"}}')
        if is_taken:
            await socket.until("pong")
        else:
            assert await socket.close_code() == 4400


async def test_a_frame_of_very_many_values_closes_the_socket(connect: Connect) -> None:
    """The values are counted before the frame is parsed, for every role."""
    socket = await connect()
    await socket.send_text('{"type": "x", "q": [' + "[]," * 6_000 + "0]}")
    error = await socket.until("error")
    assert error["code"] == "too_large"
    assert "10\u202f000 values" in error["message"]
    assert await socket.close_code() == 4400
    socket = await connect()
    text = 'call([1], {"a": "b"})\n' * 4_000  # brackets in a string are no values
    await socket.send({"type": "send", "client_id": "client-0001", "text": text})
    assert (await socket.until("ack"))["client_id"] == "client-0001"


SEND: Frame = {"type": "send", "client_id": "client-0001", "text": "x"}
EDIT: Frame = SEND | {"type": "edit", "turn": 1}
AGAIN: list[Frame] = [SEND | {"type": kind} for kind in ("regenerate", "retry", "continue")]
UNKNOWN = [f"00000000-0000-4000-8000-{n:012}" for n in range(11)]

INVALID: dict[str, list[Frame]] = {
    "unknown_type": [
        {},
        *(
            SEND | {"type": kind}
            for kind in ("", "hello", "__class__", None, 1, [], {"type": "send"})
        ),
    ],
    "message_too_long": [frame | {"text": "x" * 51} for frame in (SEND, EDIT)],
    "message_empty": [
        *(SEND | {"text": text} for text in ("", " \n\t", None, 7, ["x"])),
        *(EDIT | {"text": text} for text in ("", " \n\t", None, 7, ["x"])),
        *(SEND | {"text": "", "attachments": none} for none in ([], None)),
    ],
    "bad_attachments": [
        SEND | {"text": "", "attachments": files}
        for files in ("x", 7, ["x"], [None], [{"uuid": "x"}])
    ],
    "attachment_unknown": [SEND | {"text": "", "attachments": UNKNOWN[:1]}],
    "too_many_attachments": [SEND | {"text": "", "attachments": UNKNOWN}],
    "bad_client_id": [
        frame | {"client_id": client_id}
        for frame in (SEND, EDIT, *AGAIN)
        for client_id in (None, "", "short", "x" * 65, "a b c d e", 12345678, ["x" * 8])
    ]
    + [SEND | {"client_id": client_id} for client_id in ("half-\ud83d-pair", "\udcff" * 8)],
    "bad_number": [
        EDIT | {"turn": turn} for turn in (0, -1, 1.5, True, "1", None, 2**53, 10**400, [1])
    ],
    "bad_run": [{"type": "withdraw", "run": run} for run in (None, "", "x", 1, "0" * 33, "\0")],
    "invalid": [
        SEND | {"text": "half \ud83d of a pair"},
        EDIT | {"text": "\ude00\ud83d"},
        {"type": "deny", "call": UNKNOWN[0], "reason": "because \udfff"},
    ],
    "nothing_to_answer": AGAIN,
    "nothing_to_compact": [SEND | {"type": "compact"}],
}


async def test_invalid_frame_is_an_error(
    socket: Socket, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_message_chars", 50)
    for code, frames in INVALID.items():
        for frame in frames:
            error = await error_after(socket, frame)
            assert error["code"] == code, frame
            client_id = frame.get("client_id")
            # JSON in UTF-8 has no half of a surrogate pair, which is not printable.
            is_named = isinstance(client_id, str) and client_id.isprintable()
            assert error.get("client_id", 0) == (client_id if is_named else 0), frame
            if code == "invalid":
                assert "Half a surrogate pair" in error["message"], frame
    await socket.settle()
    assert await turns_of(session) == []
    assert not await Run.objects.aexists()


async def test_queued_message_of_another_session_cannot_be_changed(
    socket: Socket, workspace: Workspace, other_user: User
) -> None:
    def queue_elsewhere() -> Run:
        theirs = create_session(workspace, owner=other_user)
        accept_message(
            theirs, client_id="client-0001", text="x", user_pk=None, max_queued=5, owner="gone"
        )
        waiting = accept_message(
            theirs, client_id="client-0002", text="y", user_pk=None, max_queued=5
        )
        return Run.objects.get(pk=waiting.run_pk)

    run = await sync_to_async(queue_elsewhere)()
    for frame in ("withdraw", "now"):
        error = await error_after(socket, {"type": frame, "run": str(run.uuid)})
        assert error["code"] == "not_queued"
    await run.arefresh_from_db()
    assert run.finished_at is None


async def test_text_with_control_characters_is_stored_and_shown(
    socket: Socket, session: Session
) -> None:
    for text in ("nul \0 and \x1b[31m", "\u2028\u202e💥"):
        await ask_and_wait(socket, text)
        shown = text.replace("\0", "\ufffd")
        assert (await turns_of(session))[-2] == ("user", shown)


async def test_text_with_control_characters_can_be_queued(slow: None, connect: Connect) -> None:
    socket = await connect()
    await ask(socket, "long")
    await ask(socket, "nul \0 and \u202e")
    await socket.until("queue", where=lambda frame: frame["items"])
    late = await connect()
    await late.until("queue", where=lambda frame: frame["items"])


async def test_page_reports_the_number_of_dropped_rows(
    socket: Socket, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "conversations"):
        await socket.send({"type": "trimmed", "rows": 200})
        await socket.settle()
    [fields] = [r.fields for r in caplog.records if r.message == "chat_render_trimmed"]
    assert (fields["session_id"], fields["trimmed_rows"]) == (str(session.uuid), 200)
    assert (await error_after(socket, {"type": "trimmed", "rows": "x"}))["code"] == "bad_number"


async def test_closed_socket_is_unsubscribed(connect: Connect, user: User) -> None:
    hub = (await current_runtime()).hub
    socket = await connect()
    await socket.settle()
    assert hub.subscriber_count == 1
    await socket.close()
    assert hub.subscriber_count == 0
    refused = await connect(None)
    await refused.close_code()
    assert hub.subscriber_count == 0
