"""Streams of runs and sessions by the API."""

import asyncio
import gc
import json
import math
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse

from conversations.accounts.tokens import list_tokens, revoke_token
from conversations.api import messages, streams
from conversations.api.json_format import refuse_constant
from conversations.archive.append import NewEvent, append
from conversations.archive.workspaces import remove_member
from conversations.domain.events import ToolCallStarted
from conversations.models import Session, Turn
from conversations.runtime.current import current_runtime
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import Program, token_of

pytestmark = pytest.mark.django_db(transaction=True)


async def open_stream(program: Program, session: Session, text: str = "Hello") -> Any:
    return await program.post(
        f"/api/v1/sessions/{session.uuid}/messages",
        {"text": text},
        content_type="application/json",
        headers={"Accept": "text/event-stream", "Accept-Encoding": "gzip"},
    )


async def read(response: Any) -> str:
    assert isinstance(response, StreamingHttpResponse)
    return "".join([piece.decode() async for piece in response])  # type: ignore[union-attr]


async def test_a_message_is_answered_with_the_stream_of_its_run(
    program: Program, provider: WireThread, session: Session
) -> None:
    provider.enqueue(Scenario(words=8))
    response = await open_stream(program, session)
    assert response["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response["Cache-Control"] == "no-store"
    assert response["X-Accel-Buffering"] == "no"
    assert "Content-Encoding" not in response
    text = await read(response)
    assert text.startswith('retry: 2000\nid: 0\nevent: run\ndata: {"run":"')
    assert text.endswith('"state":"completed","error_code":""}\n\n')
    run = text.partition('"run":"')[2][:36]
    stream = f"/api/v1/sessions/{session.uuid}/runs/{run}/stream"
    assert await read(await program.get(stream)) == text
    ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
    blocks = text.removesuffix("\n\n").split("\n\n")
    for place, at in enumerate(ids[:-1], 1):
        left = await read(await program.get(stream, headers={"Last-Event-ID": at}))
        assert left.removeprefix(":\n\n") == "".join(f"{b}\n\n" for b in blocks[place:])
    assert await read(await program.get(f"{stream}?last_event_id={ids[-2]}")) == left
    assert (await program.get(stream, headers={"Last-Event-ID": ids[-1]})).status_code == 204
    refused = await program.get(stream, headers={"Last-Event-ID": "x"})
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_event_id")


async def test_a_session_stream_starts_after_a_row_or_at_the_end(
    program: Program, provider: WireThread, session: Session
) -> None:
    await read(await open_stream(program, session))
    stream = f"/api/v1/sessions/{session.uuid}/events/stream"
    from_one = await begin(await program.get(f"{stream}?after=1"), 3)
    assert [event.partition("\n")[0] for event in from_one] == ["retry: 2000", "id: 2", "id: 3"]
    now = (await begin(await program.get(stream), 1))[0]
    assert now.startswith("retry: 2000\nid: 3\nevent: session")
    rows = await program.get(f"/api/v1/sessions/{session.uuid}/events?limit=2")
    seen = rows.json()["items"][1]
    seen.pop("active")
    assert streams.dump_json(seen) in from_one[1]


async def test_an_infinite_number_is_null_in_a_stream(
    program: Program, provider: WireThread, session: Session
) -> None:
    row = NewEvent(payload=ToolCallStarted(call_id="c", name="t", arguments={"at": [math.inf]}))
    await sync_to_async(append)(session.pk, session_uuid=session.uuid, turns=[], events=[row])
    stream = f"/api/v1/sessions/{session.uuid}/events/stream"
    _, event = await begin(await program.get(f"{stream}?after=0"), 2)
    data = json.loads(event.partition("data: ")[2], parse_constant=refuse_constant)
    assert data["payload"]["arguments"] == {"at": [None]}


async def begin(response: Any, count: int) -> list[str]:
    """Return the first ``count`` pieces of a stream that does not end."""
    pieces = aiter(response)
    found = [(await anext(pieces)).decode() for _ in range(count)]
    await pieces.aclose()
    return found


async def test_a_stream_ends_when_its_reader_loses_access(
    provider: WireThread, session: Session, viewer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader loses access when the token is revoked or the membership is removed."""
    monkeypatch.setattr(streams, "RECHECK_SECONDS", 0)
    monkeypatch.setattr(settings.LOOM, "sse_heartbeat_seconds", 0.05)
    address = f"/api/v1/sessions/{session.uuid}/events/stream"

    def revoke() -> None:
        revoke_token(viewer.pk, token_pk=list_tokens(viewer.pk)[0].pk)

    def leave() -> None:
        remove_member(session.workspace, user_pk=viewer.pk)

    for lose in (revoke, leave):
        program = Program(await sync_to_async(token_of)(viewer))
        pieces = aiter(await program.get(address))
        assert [(await anext(pieces))[:6] for _ in range(2)] == [b"retry:", b":\n\n"]
        await sync_to_async(lose)()
        assert [piece async for piece in pieces] in ([], [b":\n\n"])
    assert (await current_runtime()).hub.listener_count == 0


async def test_the_number_of_streams_per_person_is_limited(
    provider: WireThread, session: Session, user: User, viewer: User, monkeypatch: Any
) -> None:
    """The limit is for all tokens of a person together. A stream that ends makes room."""
    monkeypatch.setattr(settings.LOOM, "max_streams", 2)
    monkeypatch.setattr(settings.LOOM, "sse_heartbeat_seconds", 0.05)
    address = f"/api/v1/sessions/{session.uuid}/events/stream"
    first, second = [Program(await sync_to_async(token_of)(user)) for _ in range(2)]
    opened = [aiter(await one.get(address)) for one in (first, second)]
    for pieces in opened:
        assert (await anext(pieces)).startswith(b"retry:")
    refused = await first.get(address)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_open")
    assert int(refused["Retry-After"]) > 0
    assert "2 streams" in refused.json()["detail"]
    refused = await open_stream(second, session)
    assert refused.status_code == 429
    assert not await Turn.objects.aexists(), "the message was not sent"
    other = aiter(await Program(await sync_to_async(token_of)(viewer)).get(address))
    assert (await anext(other)).startswith(b"retry:")
    assert (await current_runtime()).limiter.refused == 2
    await opened[0].aclose()
    while (response := await first.get(address)).status_code == 429:
        gc.collect()  # the stream's generators end when they are collected
        await asyncio.sleep(0.02)
    opened[0] = aiter(response)
    assert (await anext(opened[0])).startswith(b"retry:")
    for pieces in (*opened, other):
        await pieces.aclose()


async def test_excess_streams_that_begin_at_once_end(
    provider: WireThread, session: Session, program: Program, monkeypatch: Any
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_streams", 1)
    address = f"/api/v1/sessions/{session.uuid}/events/stream"
    responses = [await program.get(address) for _ in range(2)]
    assert [one.status_code for one in responses] == [200, 200]
    pieces = aiter(responses[0])
    await anext(pieces)
    assert [piece async for piece in responses[1]] == []
    await pieces.aclose()


async def test_a_begun_run_is_streamed_even_above_the_stream_limit(
    provider: WireThread, session: Session, program: Program, user: User, monkeypatch: Any
) -> None:
    """A refusal would make the caller send the message a second time."""
    monkeypatch.setattr(settings.LOOM, "max_streams", 1)
    limiter = (await current_runtime()).limiter
    begin_stream = messages.stream_run

    async def begin_later(*given: Any, **more: Any) -> Any:
        limiter.acquire(streams.STREAMS, user.pk)
        return await begin_stream(*given, **more)

    monkeypatch.setattr(messages, "stream_run", begin_later)
    text = await read(await open_stream(program, session))
    assert text.endswith('"state":"completed","error_code":""}\n\n')
    limiter.release(streams.STREAMS, user.pk)
