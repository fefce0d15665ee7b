"""Runs, from the message to the footer, over the real SDK and a real server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.archive.journal import walk_events
from conversations.archive.messages import queued_messages
from conversations.archive.sessions import create_session
from conversations.archive.transcript import read_page
from conversations.archive.verify import verify_session
from conversations.domain.errors import Conflict, Rejected, StorageFull
from conversations.domain.events import SET_ASIDE, Info, ToolCallCompleted, TurnSeparator
from conversations.models import DraftChunk, ModelCall, Run, Session, ToolCall
from conversations.runtime import drafts
from conversations.runtime.database import FULL_NOTE
from conversations.runtime.service import Runtime
from tests.archive.test_rewinding import MANY, rewind_often
from tests.archive.turns import append_turn, read_turns, turns_of
from tests.mcp_servers.running import until
from tests.runtime.conftest import Page, ask, fresh, run_state
from tests.runtime.tool_stories import notices
from tests.wire.scenario import Scenario
from tests.wire.scenario import ToolCall as WireCall
from tests.wire.server import WireThread

pytestmark = pytest.mark.django_db(transaction=True)


async def events_of(session: Session) -> list[Any]:
    return [e.payload for e in await sync_to_async(walk_events)(session.pk, start=None, limit=500)]


async def notice_of(session: Session) -> Info:
    found = [event for event in await events_of(session) if isinstance(event, Info)]
    [notice] = [one for one in found if one.code != SET_ASIDE]
    return notice


async def is_clean(session: Session) -> bool:
    return (await sync_to_async(verify_session)(await fresh(session))).problem == ""


async def test_an_answer_is_stored_and_shown(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(text="Plant **beans**.", thinking="Which bed?"))
    page = open_page(runtime)
    run = await ask(runtime, garden, "What now?")
    assert run.state == "completed"
    assert await turns_of(garden) == [("user", "What now?"), ("assistant", "Plant **beans**.")]
    assert page.row_types == ["user_message", "assistant_text", "turn_separator"]
    assert "<strong>beans</strong>" in page.rows[1]["html"]
    assert page.of_type("state")[-1]["run_state"] == "idle"
    assert await is_clean(garden)


async def test_a_session_with_many_rewinds_is_answered(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="Plant beans."))
    full = await sync_to_async(rewind_often)(garden)
    assert (await ask(runtime, full, "What now?")).state == "completed"
    [request] = wire.requests
    sent = str(request["messages"])
    assert f"Row {2 * MANY - 1}'" in sent
    assert f"Row {2 * MANY}'" not in sent


async def test_blocks_are_kept_exactly_as_received(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="Yes.", thinking="Let me see", extras=True))
    await ask(runtime, garden, "first")
    wire.enqueue(Scenario(text="Again."))
    await ask(runtime, garden, "second")
    thinking = wire.requests[1]["messages"][1]["content"][0]
    assert thinking["thinking"] == "Let me see"
    assert thinking["signature"]


async def test_live_rows_are_byte_identical_to_reloaded_rows(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(
        Scenario(text="Looking.", thinking="hm", tools=(WireCall(name="look", input={"a": 1}),)),
        Scenario(text="# Done\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nx = 1\n```"),
    )
    page = open_page(runtime)
    await ask(runtime, garden, "go")
    reloaded = await sync_to_async(read_page)(await fresh(garden), limit=100)
    assert [row["html"] for row in page.rows] == [row.html for row in reloaded.rows]


async def test_a_message_with_the_same_client_id_is_executed_once(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=20, rate=200))
    send = {"client_id": "client-1", "text": "once", "user_pk": None}
    first = await runtime.send(garden, **send)
    again = await runtime.send(garden, **send)
    await runtime.wait_idle(garden.pk)
    late = await runtime.send(garden, **send)
    assert first.run == again.run == late.run
    assert (first.is_new, again.is_new, late.is_new) == (True, False, False)
    assert (again.seq, late.seq) == (first.seq, first.seq)
    assert len(wire.requests) == 1
    assert [role for role, _ in await turns_of(garden)] == ["user", "assistant"]


async def test_messages_queue_while_an_answer_is_written(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(words=30, rate=150), Scenario(text="two"), Scenario(text="three"))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    second = await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    await runtime.send(garden, client_id="client-3", text="3", user_pk=None)
    assert second.turn is None
    waiting = await sync_to_async(queued_messages)(garden.pk)
    assert [message["text"] for message in waiting] == ["2", "3"]
    await runtime.wait_idle(garden.pk)
    turns = await turns_of(garden)
    assert [text for role, text in turns if role == "user"] == ["1", "2", "3"]
    assert [role for role, _ in turns] == ["user", "assistant"] * 3
    assert page.of_type("queue")[-1]["items"] == []


async def test_a_queued_message_can_be_withdrawn(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=20, rate=200))
    await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    second = await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    await runtime.withdraw(garden, run=second.run, user_pk=garden.owner_id)
    with pytest.raises(Conflict):
        await runtime.withdraw(garden, run=second.run, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    assert [text for role, text in await turns_of(garden) if role == "user"] == ["1"]


async def test_a_message_put_first_is_sent_at_the_next_tool_call(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    """Two messages are put first, one of them while it waits. A third waits for the answer."""
    look = Scenario(text="I look.", tools=(WireCall(name="look"),), first_delay=0.3)
    wire.enqueue(look, Scenario(text="Both."), Scenario(text="And that."))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    third = await runtime.send(garden, client_id="client-3", text="3", user_pk=None)
    await runtime.send(garden, client_id="client-4", text="4", user_pk=None, goes_first=True)
    await runtime.put_first(garden, run=third.run, stops=False)
    waiting = page.of_type("queue")[-1]["items"]
    assert [(one["text"], one["now"]) for one in waiting] == [
        ("3", True),
        ("4", True),
        ("2", False),
    ]
    await runtime.wait_idle(garden.pk)
    said = [text for role, text in await turns_of(garden) if role != "tool"]
    assert said == ["1", "I look.", "3", "4", "Both.", "2", "And that."]
    given = wire.requests[1]["messages"][-1]["content"]
    assert given[0]["type"] == "tool_result"
    assert [block["text"] for block in given[1:3]] == ["3", "4"]
    states = [state async for state in Run.objects.order_by("pk").values_list("state", flat=True)]
    assert states == ["completed"] * 4
    with pytest.raises(Conflict, match="no longer queued"):
        await runtime.put_first(garden, run=third.run, stops=False)
    assert await is_clean(garden)


async def test_a_message_put_first_can_stop_the_running_answer(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(words=500, rate=100), Scenario(text="three"), Scenario(text="two"))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    third = await runtime.send(garden, client_id="client-3", text="3", user_pk=None)
    await page.until(lambda: len(page.of_type("draft")) > 5)
    await runtime.put_first(garden, run=third.run, stops=True)
    await runtime.wait_idle(garden.pk)
    assert [text for role, text in await turns_of(garden) if role == "user"] == ["1", "3", "2"]
    assert [run.state async for run in Run.objects.order_by("pk")] == [
        "stopped",
        "completed",
        "completed",
    ]


async def test_a_late_stop_of_one_answer_does_not_stop_the_next(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    """A request to stop an answer may arrive when the answer has just ended."""
    wire.enqueue(Scenario(text="one"), Scenario(words=40, rate=100))
    page = open_page(runtime)
    first = await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    await runtime.wait_idle(garden.pk)
    await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    await page.until(lambda: len(page.of_type("draft")) > 5)
    await runtime.queue.stop_run(garden.pk, only=first.run)
    await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "completed"


async def test_too_many_waiting_messages_are_refused_with_the_reason(
    start_runtime: Any, wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(max_queued=1)
    wire.enqueue(Scenario(words=50, rate=100))
    await runtime.send(garden, client_id="client-1", text="1", user_pk=None)
    await runtime.send(garden, client_id="client-2", text="2", user_pk=None)
    with pytest.raises(Conflict, match="already queued"):
        await runtime.send(garden, client_id="client-3", text="3", user_pk=None)
    await runtime.stop_run(garden)


async def test_stop_keeps_the_text_that_has_arrived(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(words=500, rate=100))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: len(page.of_type("draft")) > 5)
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    shown = "".join(frame["text"] for frame in page.of_type("draft"))
    (_, answer) = (await turns_of(garden))[1]
    assert answer == shown
    assert await run_state(garden) == "stopped"
    assert page.row_types == ["user_message", "assistant_text", "turn_separator"]
    assert await DraftChunk.objects.acount() == 0
    assert await is_clean(garden)


async def test_page_and_log_say_once_that_the_disk_is_full_until_there_is_room(
    runtime: Runtime,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[Any] = []

    def refuse(chunks: Any) -> None:
        tries.append(chunks)
        raise StorageFull("full")

    def notes() -> list[str]:
        return [frame["text"] for frame in page.of_type("state") if frame["text"]]

    wire.enqueue(Scenario(words=500, rate=100))
    page = open_page(runtime)
    monkeypatch.setattr(drafts, "RETRY_SECONDS", 0.02)
    with monkeypatch.context() as patch:
        patch.setattr(drafts, "append_draft_chunks", refuse)
        await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
        await page.until(lambda: len(tries) > 3)
        assert notes() == [FULL_NOTE]
        assert caplog.messages.count("draft_not_kept") == 1
    await page.until(lambda: page.of_type("state")[-1]["text"] == "")
    assert page.of_type("state")[-1]["run_state"] == "running"
    assert notes() == [FULL_NOTE]
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)


async def test_room_on_the_disk_does_not_remove_the_note_on_a_retry(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
) -> None:
    runtime = await start_runtime(provider_retries=1)
    wire.enqueue(Scenario(status=529, retry_after="60"))
    page = open_page(runtime)
    accepted = await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: "Trying again" in page.of_type("state")[-1]["text"])
    runtime.queue.count_waiting(accepted.run_pk, 1)
    assert page.of_type("state")[-1]["text"] == FULL_NOTE
    runtime.queue.count_waiting(accepted.run_pk, -1)
    assert "Trying again" in page.of_type("state")[-1]["text"]
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)


async def test_stopping_before_the_first_word_leaves_only_the_footer(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(first_delay=5))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await until(lambda: wire.requests)
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    assert page.row_types == ["user_message", "turn_separator"]


async def test_an_unknown_tool_gets_an_error_result_and_the_run_goes_on(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    calls = (WireCall(name="look", input={"path": "a"}), WireCall(name="dig"))
    wire.enqueue(Scenario(text="I look.", tools=calls), Scenario(text="Nothing there."))
    run = await ask(runtime, garden, "look")
    assert run.state == "completed"
    assert [role for role, _ in await turns_of(garden)] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    results = [e for e in await events_of(garden) if isinstance(e, ToolCallCompleted)]
    assert [(r.name, r.ok) for r in results] == [("look", False), ("dig", False)]
    assert await ToolCall.objects.filter(state="completed", ok=False).acount() == 2
    sent = wire.requests[1]["messages"][-1]["content"]
    assert [block["is_error"] for block in sent[:2]] == [True, True]


async def test_an_endless_run_ends_at_the_limit_of_model_calls(
    start_runtime: Any, wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(max_model_calls=3)
    wire.enqueue(*[Scenario(tools=(WireCall(name="again"),)) for _ in range(3)])
    await ask(runtime, garden, "loop")
    assert (await notice_of(garden)).code == "too_many_calls"
    assert len(wire.requests) == 3


WAYS_TO_FAIL = [
    (Scenario(status=401), "bad_key", "failed"),
    (Scenario(status=403), "permission", "failed"),
    (Scenario(status=400, error_message="no such thing"), "invalid_request", "failed"),
    (Scenario(status=404), "unknown_model", "failed"),
    (Scenario(status=413), "request_too_large", "failed"),
    (Scenario(error_after=3, error_type="overloaded_error"), "overloaded", "failed"),
    (Scenario(drop_after=3), "connection_lost", "failed"),
    (Scenario(end_after=3), "incomplete_stream", "failed"),
    (Scenario(hang_after=3), "timeout", "failed"),
    (Scenario(garbage_after=3), "bad_response", "failed"),
    (Scenario(body="html"), "bad_response", "failed"),
    (Scenario(stop_reason="refusal"), "refusal", "failed"),
    (Scenario(empty=True), "empty_answer", "failed"),
    (Scenario(words=9, stop_reason="max_tokens"), "max_tokens", "completed"),
    (
        Scenario(words=9, stop_reason="model_context_window_exceeded"),
        "model_context_window_exceeded",
        "completed",
    ),
]


async def test_every_failure_has_a_row_with_a_next_step(
    start_runtime: Any, wire: WireThread, garden: Session, subtests: pytest.Subtests
) -> None:
    runtime = await start_runtime(provider_retries=0, provider_timeout=1.0)
    for scenario, code, state in WAYS_TO_FAIL:
        session = await sync_to_async(create_session)(garden.workspace, owner=garden.owner)
        with subtests.test(code=code, scenario=scenario):
            wire.enqueue(scenario)
            run = await ask(runtime, session, "hello")
            notice = await notice_of(session)
            assert (notice.code, run.state) == (code, state)
            assert notice.action in ("retry", "continue")
            assert run.error_code == ("" if state == "completed" else code)
            assert isinstance((await events_of(session))[-1], TurnSeparator)
            assert await is_clean(session)
            wire.enqueue(Scenario(text="Better."))
            await ask(runtime, session, "and now?")
            assert (await turns_of(session))[-1] == ("assistant", "Better.")


async def test_a_failure_after_tool_calls_offers_to_continue(
    start_runtime: Any, wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(provider_retries=0)
    wire.enqueue(Scenario(tools=(WireCall(name="look", input={}),)), Scenario(status=529))
    assert (await ask(runtime, garden, "Go")).state == "failed"
    notice = await notice_of(garden)
    # A retry would discard the tool calls.
    assert (notice.kind, notice.code, notice.action) == ("error", "overloaded", "continue")
    assert "Everything so far is saved. Wait a moment, then try again." in notice.text

    wire.enqueue(Scenario(status=401))
    await runtime.continue_run(garden, client_id="continue1", user_pk=None)
    await runtime.wait_idle(garden.pk)
    failed = [event for event in await events_of(garden) if isinstance(event, Info)]
    assert [one.action for one in failed] == ["continue", "continue"]

    wire.enqueue(Scenario(text="Done."))
    await runtime.continue_run(garden, client_id="continue2", user_pk=None)
    await runtime.wait_idle(garden.pk)
    roles = [role for role, _ in await turns_of(garden)]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_text_before_a_broken_stream_is_kept_as_a_partial_turn(
    start_runtime: Any, wire: WireThread, garden: Session
) -> None:
    runtime = await start_runtime(provider_retries=0)
    wire.enqueue(Scenario(text="one two three four", drop_after=3))
    await ask(runtime, garden, "count")
    turns = await sync_to_async(read_turns)(garden.pk)
    assert turns[1].content
    assert "one two three four".startswith(turns[1].content)
    assert not turns[1].complete


async def test_retries_of_an_overloaded_provider_are_shown(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(status=529, retry_after="0", times=2), Scenario(text="Here I am."))
    page = open_page(runtime)
    run = await ask(runtime, garden, "hello")
    assert run.state == "completed"
    states = [frame["run_state"] for frame in page.of_type("state")]
    assert states.count("retrying") == 2
    assert "Trying again" in next(f["text"] for f in page.of_type("state") if f["text"])
    assert [call.error_code async for call in ModelCall.objects.order_by("ordinal")] == [
        "overloaded",
        "overloaded",
        "",
    ]


async def test_a_retry_replaces_the_failed_rows(
    start_runtime: Any, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    runtime = await start_runtime(provider_retries=0)
    wire.enqueue(Scenario(text="one two three four", drop_after=2), Scenario(text="Whole."))
    await ask(runtime, garden, "hello")
    page = open_page(runtime)
    await runtime.regenerate(garden, client_id="retry-01", turn=None, user_pk=None)
    await runtime.wait_idle(garden.pk)
    [rewound] = page.of_type("rewound")
    assert (rewound["from_seq"], rewound["to_seq"]) == (2, 4)
    reloaded = await sync_to_async(read_page)(await fresh(garden), limit=100)
    assert rewound["html"] in [row.html for row in reloaded.rows]
    assert "Whole." in reloaded.rows[-2].html
    [message] = wire.requests[-1]["messages"]
    said, state = [block["text"] for block in message["content"]]
    assert said == "hello"
    assert "current_focus" in state


async def test_an_edit_replaces_the_message_and_all_later_turns(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    await ask(runtime, garden, "first")
    await ask(runtime, garden, "secnod")
    await runtime.edit(garden, client_id="edit-0001", turn=3, text="second", user_pk=None)
    await runtime.wait_idle(garden.pk)
    sent = [m["content"][0]["text"] for m in wire.requests[-1]["messages"] if m["role"] == "user"]
    assert sent == ["first", "second"]
    page = await sync_to_async(read_page)(await fresh(garden), limit=100)
    html = "".join(row.html for row in page.rows)
    assert "secnod" not in html
    assert "second" in html
    everything = await sync_to_async(read_page)(
        await fresh(garden), limit=100, include_rewound=True
    )
    assert "secnod" in "".join(row.html for row in everything.rows)
    assert await is_clean(garden)


async def test_only_messages_on_the_active_path_can_be_edited(
    runtime: Runtime, garden: Session
) -> None:
    await ask(runtime, garden, "first")
    await runtime.edit(garden, client_id="edit-0001", turn=1, text="other", user_pk=None)
    await runtime.wait_idle(garden.pk)
    for turn in (1, 2, 99):
        with pytest.raises(Rejected):
            await runtime.edit(
                garden, client_id=f"edit-{turn:04}x", turn=turn, text="x", user_pk=None
            )


async def test_an_edit_is_refused_while_an_answer_is_written(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=100, rate=100))
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    with pytest.raises(Conflict):
        await runtime.edit(garden, client_id="edit-0001", turn=1, text="x", user_pk=None)
    await runtime.stop_run(garden)


async def test_continue_goes_on_from_the_partial_answer(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=9, stop_reason="max_tokens"), Scenario(text="the rest"))
    await ask(runtime, garden, "write")
    await runtime.continue_run(garden, client_id="continue1", user_pk=None)
    await runtime.wait_idle(garden.pk)
    assert (await turns_of(garden))[-1] == ("assistant", "the rest")
    roles = [message["role"] for message in wire.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


async def test_a_provider_without_usage_or_ids_is_supported(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(text="ok", usage=False, split=1, extras=True))
    run = await ask(runtime, garden, "hello")
    assert run.state == "completed"
    footer = (await events_of(garden))[-1]
    assert footer.input_tokens is None


async def test_a_window_that_is_too_long_is_cut_and_sent_again(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(
        Scenario(status=400, error_message="prompt is too long: 300000 tokens > 200000 maximum"),
        Scenario(text="fits"),
    )
    run = await ask(runtime, garden, "hello")
    assert run.state == "completed"


async def test_the_manifest_lists_the_turns_that_were_sent(
    runtime: Runtime, garden: Session
) -> None:
    from conversations.domain.text import load_json

    await ask(runtime, garden, "one")
    await ask(runtime, garden, "two")
    call = await ModelCall.objects.order_by("-pk").afirst()
    assert call is not None
    manifest = load_json(call.manifest)
    assert manifest["turns"] == [[1, 3]]
    assert len(call.request_digest) == 64


async def test_a_running_answer_is_kept_when_the_server_stops(
    start_runtime: Any, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    runtime = await start_runtime()
    wire.enqueue(Scenario(words=500, rate=100))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: len(page.of_type("draft")) > 3)
    await runtime.stop()
    turns = await turns_of(garden)
    assert turns[1][1] == "".join(frame["text"] for frame in page.of_type("draft"))
    assert await run_state(garden) == "interrupted"
    # Open pages get the rows before their connections are closed.
    assert page.row_types[-3:] == ["assistant_text", "info", "turn_separator"]
    [notice] = await notices(garden, "interrupted")
    assert notice.text == "The server stopped during this answer. Everything above is saved."
    assert (notice.kind, notice.action) == ("interrupted", "continue")


@pytest.mark.parametrize("stops_elsewhere", [False, True])
async def test_a_run_stopped_by_a_person_during_shutdown_counts_as_stopped(
    start_runtime: Any,
    wire: WireThread,
    garden: Session,
    open_page: Callable[[Runtime], Page],
    stops_elsewhere: bool,
) -> None:
    runtime = await start_runtime(heartbeat=60)  # too long to notice the stop in time
    wire.enqueue(Scenario(words=500, rate=100))
    page = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await page.until(lambda: page.of_type("draft"))
    asked = await start_runtime(supervise=False) if stops_elsewhere else runtime
    await asked.stop_run(garden)
    await runtime.stop()
    assert await run_state(garden) == "stopped"
    assert await notices(garden, "interrupted") == []


async def test_a_page_opened_later_gets_the_draft_so_far(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    wire.enqueue(Scenario(words=200, rate=200))
    early = open_page(runtime)
    await runtime.send(garden, client_id="client-1", text="go", user_pk=None)
    await early.until(lambda: len(early.of_type("draft")) > 4)
    frames, _ = await runtime.catch_up(garden.uuid, cursor=None, rewinds=None, hello=True)
    [snapshot] = [frame for frame in frames if frame["type"] == "draft"]
    so_far = "".join(frame["text"] for frame in early.of_type("draft"))
    assert snapshot["reset"] is True
    assert snapshot["text"] == so_far
    await runtime.stop_run(garden)


async def test_editing_a_turn_without_events_reloads_the_page(
    runtime: Runtime, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    from conversations.domain.turns import NewTurn

    await sync_to_async(append_turn)(garden, NewTurn(role="user", content="from long ago"))
    page = open_page(runtime)
    await runtime.edit(garden, client_id="edit-0001", turn=1, text="today", user_pk=None)
    await runtime.wait_idle(garden.pk)
    assert [frame["reason"] for frame in page.of_type("reload")] == ["rewound"]
    reloaded = await sync_to_async(read_page)(await fresh(garden), limit=100)
    assert "from long ago" not in "".join(row.html for row in reloaded.rows)


async def test_a_message_sent_the_moment_a_run_ends_is_answered(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    for number in range(12):
        wire.enqueue(Scenario(text=f"answer {number}"))
    page = open_page(runtime)
    for number in range(12):
        await runtime.send(garden, client_id=f"quick-{number:04}", text=str(number), user_pk=None)
        # The footer is shown and the session is idle, but its worker has not ended yet.
        await page.until(lambda n=number: page.row_types.count("turn_separator") == n + 1)
    states = [run.state async for run in Run.objects.filter(session=garden.pk)]
    assert states == ["completed"] * 12


async def test_a_stop_right_after_continue_is_not_lost(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    wire.enqueue(Scenario(words=9, stop_reason="max_tokens"), Scenario(words=900, rate=30))
    await ask(runtime, garden, "write")
    await runtime.continue_run(garden, client_id="continue1", user_pk=None)
    await runtime.stop_run(garden)  # the run is still queued
    async with asyncio.timeout(20):
        await runtime.wait_idle(garden.pk)
    assert await run_state(garden) == "stopped"
