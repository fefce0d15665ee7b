"""Attachments in requests to a test server that refuses what the real API refuses."""

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command

from conversations.agent.recall.queries import read_past_turns
from conversations.agent.recall.quotation import quote_turn
from conversations.agent.window.manifest import rebuild_request
from conversations.agent.window.summary import SummaryCaps, make_part
from conversations.archive.append import append
from conversations.archive.attachments import attachment_block, save_attachment, upload_attachment
from conversations.archive.blobs import blob_path, put_blob, read_blob
from conversations.archive.verify import verify_session
from conversations.domain.errors import Rejected
from conversations.domain.stream import ModelInfo
from conversations.domain.text import dump_json, load_json
from conversations.domain.turns import NewTurn
from conversations.models import Attachment, ChatEvent, ModelCall, Run, Session, Turn
from conversations.runtime.service import Runtime
from tests.archive import files
from tests.archive.searching import find_in
from tests.archive.turns import read_turns
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Page, ask, fresh


async def attach(session: Session, data: bytes, name: str) -> Attachment:
    return await sync_to_async(upload_attachment)(
        session.pk, data=data, name=name, user_pk=session.owner_id
    )


async def send(runtime: Runtime, session: Session, text: str, *attached: Attachment) -> Run:
    accepted = await runtime.send(
        session,
        client_id=f"client-{text.encode().hex():0>8}",
        text=text,
        user_pk=session.owner_id,
        attachments=[str(one.uuid) for one in attached],
    )
    await runtime.wait_idle(session.pk)
    run: Run = await Run.objects.aget(pk=accepted.run_pk)
    return run


def sent(wire: WireThread, message: int = 0) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = wire.requests[-1]["messages"][message]["content"]
    return [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]


def refused(wire: WireThread) -> list[Any]:
    return [exchange.error for exchange in wire.exchanges if exchange.error]


async def test_attachments_of_every_kind_are_sent_before_the_text(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    data = [files.image_bytes(), files.pdf_bytes(2), "Grüße".encode("utf-16")]
    kept = [
        await attach(garden, content, name)
        for content, name in zip(data, ["a.png", "b.pdf", "c.txt"], strict=True)
    ]
    run = await send(runtime, garden, "What is in these?", *kept)
    assert (run.state, refused(wire)) == ("completed", [])
    assert sent(wire)[:5] == [
        {"type": "text", "text": "[a.png]"},
        {
            "type": "image",
            "source": {
                "type": "base64",
                "media_type": "image/png",
                "data": base64.b64encode(data[0]).decode(),
            },
        },
        {
            "type": "document",
            "title": "b.pdf",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": base64.b64encode(data[1]).decode(),
            },
        },
        {
            "type": "document",
            "title": "c.txt",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
        },
        {"type": "text", "text": "What is in these?"},
    ]
    turn = await Turn.objects.aget(session=garden, number=1)
    assert turn.content == "What is in these?"
    assert [block["type"] for block in load_json(turn.blocks)] == [
        "image",
        "document",
        "document",
        "text",
    ]
    assert turn.token_count > sum(one.tokens for one in kept)
    row = await ChatEvent.objects.aget(session=garden, event_type="user_message")
    shown = load_json(row.payload)["attachments"]
    assert [(one["uuid"], one["name"], one["kind"]) for one in shown] == [
        (str(one.uuid), one.name, one.kind) for one in kept
    ]
    assert [one.turn_number async for one in Attachment.objects.order_by("pk")] == [1, 1, 1]


async def test_requests_are_rebuilt_even_if_an_attachments_content_is_gone(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    one = await attach(garden, files.image_bytes(), "a.png")
    await send(runtime, garden, "look", one)
    blob_path(one.digest).unlink()
    await ask(runtime, garden, "and now?")
    assert refused(wire) == []
    assert sent(wire)[:2] == [
        {"type": "text", "text": "[a.png]"},
        {
            "type": "text",
            "text": "[a.png was attached here, and is left out: its content is not kept any more.]",
        },
    ]
    for call in [call async for call in ModelCall.objects.order_by("pk")]:
        assert (await sync_to_async(rebuild_request)(call.pk)).matches
    assert (await sync_to_async(verify_session)(await fresh(garden))).problem == (
        "the content of the attachment a.png is missing"
    )
    await sync_to_async(put_blob)(files.image_bytes())
    await sync_to_async(call_command)("verify_archive", windows=True)
    blob_path(one.digest).write_bytes(b"other")
    assert "is damaged" in (await sync_to_async(verify_session)(await fresh(garden))).problem
    blob_path(one.digest).unlink()


async def test_a_message_may_consist_of_attachments_only(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    one = await attach(garden, files.image_bytes(), "a.png")
    run = await send(runtime, garden, "", one)
    assert (run.state, refused(wire)) == ("completed", [])
    assert [block["type"] for block in sent(wire)][:2] == ["text", "image"]
    assert "text" in [b["type"] for b in sent(wire)]


async def test_missing_and_too_many_attachments_are_refused(
    runtime: Runtime, garden: Session
) -> None:
    one = await attach(garden, b"words", "a.txt")
    await Attachment.objects.all().adelete()
    with pytest.raises(Rejected, match="no longer exists"):
        await send(runtime, garden, "look", one)
    many = [await attach(garden, b"words", "a.txt") for _ in range(11)]
    with pytest.raises(Rejected, match="at most 10"):
        await send(runtime, garden, "look", *many)
    assert await Run.objects.acount() == 0


async def test_a_repeated_message_with_an_attachment_is_accepted_once(
    runtime: Runtime, garden: Session
) -> None:
    one = await attach(garden, b"words", "a.txt")
    await send(runtime, garden, "look", one)
    await send(runtime, garden, "look", one)
    assert await Turn.objects.filter(role="user").acount() == 1


async def test_a_queued_message_keeps_its_attachments(
    runtime: Runtime, wire: WireThread, garden: Session, open_page: Callable[[Runtime], Page]
) -> None:
    page = open_page(runtime)
    one = await attach(garden, b"words", "a.txt")
    wire.enqueue(Scenario(text="slow", first_delay=0.4))
    first = await runtime.send(garden, client_id="client-first", text="go", user_pk=garden.owner_id)
    assert first.turn is not None
    await runtime.send(
        garden,
        client_id="client-second",
        text="then this",
        user_pk=garden.owner_id,
        attachments=[str(one.uuid)],
    )
    await page.until(lambda: any(frame["items"] for frame in page.of_type("queue")))
    [item] = next(frame["items"] for frame in page.of_type("queue") if frame["items"])
    assert [shown["name"] for shown in item["attachments"]] == ["a.txt"]
    await runtime.wait_idle(garden.pk)
    assert (await Attachment.objects.aget()).turn_number == 3
    assert sent(wire, -1)[0]["title"] == "a.txt"


async def test_attachments_of_a_withdrawn_message_can_be_sent_again(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    one = await attach(garden, b"words", "a.txt")
    wire.enqueue(Scenario(text="slow", first_delay=0.4))
    await runtime.send(garden, client_id="client-first", text="go", user_pk=garden.owner_id)
    waiting = await runtime.send(
        garden,
        client_id="client-second",
        text="x",
        user_pk=garden.owner_id,
        attachments=[str(one.uuid)],
    )
    await runtime.withdraw(garden, run=waiting.run, user_pk=garden.owner_id)
    await runtime.wait_idle(garden.pk)
    run = await send(runtime, garden, "now", one)
    assert run.state == "completed"
    assert (await Attachment.objects.aget()).turn_number == run.user_turn


async def test_an_edited_message_keeps_its_attachments(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    one = await attach(garden, files.image_bytes(), "a.png")
    await send(runtime, garden, "what is thsi?", one)
    await runtime.edit(
        garden, client_id="client-edit", turn=1, text="what is this?", user_pk=garden.owner_id
    )
    await runtime.wait_idle(garden.pk)
    assert [block["type"] for block in sent(wire)][:3] == ["text", "image", "text"]
    assert sent(wire)[2]["text"] == "what is this?"
    row = await ChatEvent.objects.filter(event_type="user_message").order_by("-seq").afirst()
    assert row is not None
    assert [shown["name"] for shown in load_json(row.payload)["attachments"]] == ["a.png"]


async def test_an_attachment_of_a_tool_is_sent_with_a_successful_result(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    kept = await sync_to_async(save_attachment)(
        garden.pk, data=files.image_bytes(), name="plot.png", user_pk=None, turn=3
    )
    call = {"type": "tool_use", "id": "call_1", "name": "read_file", "input": {}}
    failed = call | {"id": "call_2"}
    block = dump_json([attachment_block(kept)])
    await sync_to_async(append)(
        garden.pk,
        session_uuid=garden.uuid,
        turns=[
            NewTurn(role="user", content="show"),
            NewTurn(role="assistant", content="", blocks=dump_json([call, failed])),
            NewTurn(role="tool", content="An image.", tool_call_id="call_1", blocks=block),
            NewTurn(
                role="tool",
                content="It failed.",
                tool_call_id="call_2",
                blocks=block,
                metadata='{"ok": false}',
            ),
        ],
    )
    run = await ask(runtime, garden, "and?")
    assert (run.state, refused(wire)) == ("completed", [])
    first, second = sent(wire, 2)[:2]
    assert [part["type"] for part in first["content"]] == ["text", "text", "image"]
    assert second["content"] == "It failed."


SMALL = ModelInfo(
    id="claude-haiku-4-5", name="Small", max_input_tokens=32_000, max_output_tokens=2_000
)


async def test_the_oldest_attachments_are_left_out_of_a_small_window(
    start_runtime: Callable[..., Any], wire: WireThread, garden: Session
) -> None:
    models = wire.server.models
    models[SMALL.id] = replace(models[SMALL.id], max_input_tokens=32_000, max_tokens=2_000)
    runtime = await start_runtime(model=SMALL.id)
    await runtime.models.refresh()
    image = files.image_bytes("PNG", (1500, 1500))
    kept = [await attach(garden, image, f"{number}.png") for number in range(9)]
    run = await send(runtime, garden, "Compare these with care", *kept)
    assert (run.state, refused(wire)) == ("completed", [])
    texts = [block["text"] for block in sent(wire) if block["type"] == "text"]
    images = [block for block in sent(wire) if block["type"] == "image"]
    assert texts[1] == (
        "[0.png was attached here, and is left out: it does not fit into the window.]"
    )
    assert 1 <= len(images) <= 8
    assert "Compare these with care" in texts
    for call in [call async for call in ModelCall.objects.order_by("pk")]:
        assert (await sync_to_async(rebuild_request)(call.pk)).matches, call.error_code


async def test_the_oldest_attachment_is_left_out_of_a_too_large_request(
    start_runtime: Callable[..., Any],
    wire: WireThread,
    garden: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = await start_runtime()
    one = await attach(garden, files.image_bytes("PNG", (50, 50)), "old.png")
    two = await attach(garden, files.image_bytes("JPEG", (60, 60)), "new.jpg")
    monkeypatch.setattr("conversations.agent.window.messages.MAX_ATTACHED_BYTES", 1_000)
    assert len(read_blob(two.sent)) * 4 // 3 < 1_000
    await send(runtime, garden, "look", one, two)
    assert refused(wire) == []
    assert "would be too large" in sent(wire)[1]["text"]
    assert sent(wire)[3]["type"] == "image"
    monkeypatch.setattr("conversations.agent.window.messages.MAX_ATTACHED_BYTES", 10_000)
    call = await ModelCall.objects.aget()
    assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_only_the_newest_copy_of_an_attachment_is_sent(
    runtime: Runtime, wire: WireThread, garden: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.agent.window.messages.MAX_PAGES", 3)
    note = await attach(garden, files.pdf_bytes(1), "note.pdf")
    await send(runtime, garden, "a note", note)
    for text in ("the plan", "once more", "and what is on page 2?"):
        plan = await attach(garden, files.pdf_bytes(2), "plan.pdf")
        await send(runtime, garden, text, plan)
    assert refused(wire) == []
    again = "[plan.pdf was attached here, and is left out: the same is attached again later.]"
    firsts = [sent(wire, number)[0] for number in (0, 2, 4, 6)]
    assert [block.get("title") for block in firsts] == ["note.pdf", None, None, "plan.pdf"]
    assert [block.get("text") for block in firsts] == [None, again, again, None]
    for call in [call async for call in ModelCall.objects.order_by("pk")]:
        assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_the_demo_model_accepts_attachments(
    start_runtime: Callable[..., Any], garden: Session
) -> None:
    runtime = await start_runtime(providers=())
    one = await attach(garden, files.image_bytes(), "a.png")
    run = await send(runtime, garden, "", one)
    assert run.state == "completed"


async def test_names_of_attachments_can_be_searched(runtime: Runtime, garden: Session) -> None:
    one = await attach(garden, files.pdf_bytes(), "Invoice Kowalski.pdf")
    await send(runtime, garden, "please check", one)
    [turn] = await sync_to_async(read_past_turns)(garden.pk, [1])
    [said] = quote_turn(turn)
    assert "attached: Invoice Kowalski.pdf" in said.head
    stored, *_ = await sync_to_async(read_turns)(garden.pk)
    assert "(attached: Invoice Kowalski.pdf)\nplease check" in make_part(stored, SummaryCaps()).text
    found = await sync_to_async(find_in)(garden.pk, "kowalski")
    assert [hit.turn for hit in found.hits] == [1]


async def test_a_session_continues_after_the_provider_refuses_a_file(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    kept = await attach(garden, files.image_bytes(), "a.png")
    refusal = Scenario(status=400, error_message="Could not process image")
    wire.enqueue(refusal, Scenario(text="A picture?"), refusal, Scenario(text="Yes."))
    run = await send(runtime, garden, "What is this?", kept)
    assert run.state == "completed"
    assert "a.png was attached here, and is left out: the provider refused" in str(sent(wire))
    notices = [
        load_json(event.payload)
        async for event in ChatEvent.objects.filter(session=garden, event_type="info")
    ]
    assert [(notice["code"], "still stored" in notice["text"]) for notice in notices] == [
        ("files_refused", True)
    ]
    assert (await send(runtime, garden, "Go on without it.")).state == "completed"
    async for call in ModelCall.objects.filter(session=garden):
        assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_files_are_not_blamed_if_the_request_fails_without_them_too(
    runtime: Runtime, wire: WireThread, garden: Session
) -> None:
    kept = await attach(garden, files.image_bytes(), "a.png")
    wire.enqueue(*[Scenario(status=400, error_message="no such thing")] * 2)
    assert (await send(runtime, garden, "What is this?", kept)).state == "failed"
    codes = [
        load_json(event.payload)["code"]
        async for event in ChatEvent.objects.filter(session=garden, event_type="info")
    ]
    assert codes == ["set_aside", "invalid_request"]
