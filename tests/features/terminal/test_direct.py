"""Two processes on one data folder: each can follow and control the runs of the other."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.utils import timezone

from conversations.archive.append import NewEvent, Row, append
from conversations.domain.events import (
    APPROVAL_ASKED,
    AssistantText,
    Info,
    Payload,
    UserMessage,
)
from conversations.features.terminal.connection import (
    Happening,
    OpenSession,
    RowReceived,
    RunEnded,
    TextDelta,
)
from conversations.features.terminal.direct import DirectConnection
from conversations.models import Run, Session, ToolCall
from conversations.runtime.publish import Subscriber, rows_frame
from tests.runtime.sample_tools import witness
from tests.runtime.tool_stories import answers
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

from .conftest import decline_elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def two(
    tools: WireThread, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[DirectConnection, DirectConnection]]:
    monkeypatch.setattr(settings.LOOM, "watch_seconds", 0.05)
    monkeypatch.setattr(settings.LOOM, "draft_interval_ms", 20)
    both = DirectConnection(), DirectConnection()
    for one in both:
        await one.open()
    yield both
    for one in both:
        await one.close(at_once=True)


async def test_pages_receive_a_new_title_and_model(
    two: tuple[DirectConnection, DirectConnection], session: Session
) -> None:
    here, told = two[0], list[str]()
    here._runtime.hub.add(Subscriber(session.pk, told.append, held=False))
    await here.rename(session.uuid, " Beans ")
    model = here._runtime.models.listed[0]
    await here.choose_model(session.uuid, model.id)
    # The watcher may find the title before it is published, and publish it as well.
    assert [json.loads(text) for text in dict.fromkeys(told)] == [
        {"type": "title", "title": "Beans"},
        {"type": "model", "model": model.id},
    ]


async def test_expired_sessions_do_not_count_towards_the_list_limit(
    two: tuple[DirectConnection, DirectConnection], session: Session
) -> None:
    await Session.objects.aupdate(title="Beds")
    for _ in range(3):
        await two[0].begin_session(session.workspace.slug)
    others = Session.objects.exclude(pk=session.pk)
    await others.aupdate(title="Old beds", expires_at=timezone.now())
    for query in ("", "beds"):
        [found] = await two[0].list_sessions(session.workspace.slug, query=query, limit=1)
        assert found.title == "Beds"


async def next_delta(happenings: AsyncIterator[Happening]) -> str:
    async for happening in happenings:
        if isinstance(happening, TextDelta):
            return happening.text
    raise AssertionError("nothing was written")


async def begin_long_answer(
    here: DirectConnection, tools: WireThread, session: Session
) -> tuple[OpenSession, AsyncIterator[Happening]]:
    tools.enqueue(Scenario(words=4000, rate=50))
    at = await here.open_session(session.uuid)
    own = here.ask(at, "go", client_id="client-1", after=0)
    async with asyncio.timeout(60):
        await next_delta(own)
    return at, own


async def test_an_answer_of_another_process_is_followed_and_stopped(
    two: tuple[DirectConnection, DirectConnection], tools: WireThread, session: Session
) -> None:
    here, there = two
    at, own = await begin_long_answer(here, tools, session)
    watched = there.watch(at, after=at.last_seq)
    async with asyncio.timeout(60):
        assert await next_delta(watched)
        await there.stop(session.uuid)
        for happenings in (own, watched):
            assert [one async for one in happenings][-1] == RunEnded("stopped")
        assert [one async for one in there.watch(at, after=0)] == []


async def test_leaving_during_an_answer_stops_the_run(
    two: tuple[DirectConnection, DirectConnection], tools: WireThread, session: Session
) -> None:
    here, _ = two
    _, _own = await begin_long_answer(here, tools, session)  # readers keep it, too
    async with asyncio.timeout(60):
        await here.close(at_once=True)
    run = await Run.objects.aget()
    assert run.state == "stopped"


async def test_a_question_of_another_process_is_answered(
    two: tuple[DirectConnection, DirectConnection], tools: WireThread, session: Session
) -> None:
    here, there = two
    tools.enqueue(*answers(("add", {"line": "beans"})))
    at = await here.open_session(session.uuid)
    own = here.ask(at, "go", client_id="client-1", after=0)
    async with asyncio.timeout(60):
        async for happening in own:
            if asks(happening):
                break
        watched = there.watch(at, after=0)
        assert asks(await anext(watched))
        call = await ToolCall.objects.aget()
        await there.decide(session.uuid, UUID(str(call.uuid)), decision="once")
        for happenings in (own, watched):
            assert [one async for one in happenings][-1] == RunEnded("completed")
    assert witness(Path(session.workspace.root)) == ["beans"]


@pytest.mark.usefixtures("questions")
async def test_a_tool_server_question_in_another_process_is_declined(
    two: tuple[DirectConnection, DirectConnection], session: Session
) -> None:
    await decline_elsewhere(*two, session.uuid)


async def test_draft_text_comes_before_its_row_even_when_read_late(
    two: tuple[DirectConnection, DirectConnection], session: Session
) -> None:
    runtime = two[0]._runtime

    def say(payload: Payload) -> list[Row]:
        return append(
            session.pk, session_uuid=session.uuid, events=[NewEvent(payload=payload)]
        ).rows

    async def begin() -> Any:
        """Publish everything that the run says before any of it is read."""
        for payload in (UserMessage(text="go"), AssistantText(text="Beans")):
            rows = await runtime.writer.write(say, payload)
            runtime.hub.publish(session.pk, rows_frame(rows))
            piece = {"part": 0, "kind": "text", "offset": 0, "text": "Beans"}
            if isinstance(payload, UserMessage):
                runtime.hub.publish(session.pk, {"type": "draft", **piece})
        run = await Run.objects.acreate(
            session=session, client_id="c", state="completed", created_at=session.created_at
        )
        return SimpleNamespace(run_pk=run.pk)

    happened = [one async for one in two[0]._follow(session, begin(), after=0)]
    kinds = [type(one.payload if isinstance(one, RowReceived) else one) for one in happened]
    assert kinds == [UserMessage, TextDelta, AssistantText, RunEnded]


def asks(happening: Happening) -> bool:
    payload = happening.payload if isinstance(happening, RowReceived) else None
    return isinstance(payload, Info) and payload.code == APPROVAL_ASKED
