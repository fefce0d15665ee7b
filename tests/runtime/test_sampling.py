"""Tool servers that ask the model in the middle of a call, once a person approves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from conversations.agent.window.manifest import rebuild_request
from conversations.domain.stream import ModelRequest, StreamItem
from conversations.models import ModelCall, Session
from conversations.runtime.service import Runtime
from tests.mcp_servers.running import HttpServer, config, plain
from tests.runtime.conftest import fresh
from tests.runtime.test_tool_questions import garden_auto, server, until_asked
from tests.runtime.tool_stories import answers, notices, require_whole, results
from tests.tools.test_mcp import QUICK
from tests.wire.scenario import Scenario
from tests.wire.server import WireThread

__all__ = ["garden_auto", "server"]

pytestmark = pytest.mark.django_db(transaction=True)

type Start = Callable[..., Any]

MAY: dict[str, Any] = {"max_tokens": 700}


@pytest.fixture(params=["sdk", "plain"])
def made(request: pytest.FixtureRequest, server: HttpServer) -> dict[str, Any]:
    """Return a server whose tool asks the model in its result or in a separate request."""
    return {"url": server.url} if request.param == "sdk" else plain("samples")


async def begin(
    runtime: Runtime, session: Session, wire: WireThread, *said: Scenario, **arguments: Any
) -> None:
    first, last = answers(("mcp__sdk__sum_up", {"text": "the beans", **arguments}))
    wire.enqueue(first, *said, last)
    await runtime.send(session, client_id="client-1", text="go", user_pk=session.owner_id)


async def decide(runtime: Runtime, session: Session, action: str) -> dict[str, Any]:
    call, asked = await until_asked(session)
    await runtime.answer_question(
        session, call=call.uuid, question=asked["id"], action=action, user_pk=session.owner_id
    )
    return asked


async def test_the_model_answers_a_server_once_a_person_approves(
    start_runtime: Start, wire: WireThread, garden_auto: Session, made: dict[str, Any]
) -> None:
    garden = garden_auto
    runtime: Runtime = await start_runtime(
        mcp=config(sdk=made | {"sampling": MAY}), mcp_timing=QUICK
    )
    await begin(runtime, garden, wire, Scenario(text="They are dry."))
    asked = await decide(runtime, garden, "accept")
    await runtime.wait_idle(garden.pk)
    said = {"role": "user", "text": "Sum up: the beans"}
    assert asked["prompt"] == {
        "model": "claude-haiku-5-5",  # named by the server's hint
        "max_tokens": 700,
        "system": "Be short.",
        "messages": [said],
        "stop": [],
    }
    assert await results(garden) == ["claude-haiku-5-5 (endTurn): They are dry."]
    request = wire.requests[1]
    assert (request["model"], request["max_tokens"]) == ("claude-haiku-5-5", 700)
    assert [one["role"] for one in request["messages"]] == ["user"], "nothing of the session"
    assert "tools" not in request
    [decided] = await notices(garden, "question_answered")
    assert decided.text == "Approved by ann: sdk asks the model: Sum up: the beans"
    [answer] = await notices(garden, "model_answered")
    assert (answer.text, answer.detail) == ("claude-haiku-5-5 answered sdk.", "They are dry.")
    calls = [call async for call in ModelCall.objects.filter(session=garden.pk).order_by("pk")]
    assert [call.model for call in calls][1] == "claude-haiku-5-5"
    assert all([(await sync_to_async(rebuild_request)(call.pk)).matches for call in calls])
    counted = sum(call.output_tokens or 0 for call in calls)
    assert (await fresh(garden)).output_tokens == counted > 0
    await require_whole(garden)


async def test_a_denied_request_reaches_no_model(
    start_runtime: Start, wire: WireThread, garden_auto: Session
) -> None:
    garden = garden_auto
    made = config(sdk=plain("samples", sampling=MAY))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await begin(runtime, garden, wire)
    await decide(runtime, garden, "decline")
    await runtime.wait_idle(garden.pk)
    [result] = await results(garden)
    assert "denied" in result
    assert len(wire.requests) == 2
    [decided] = await notices(garden, "question_answered")
    assert decided.text.startswith("Denied by ann: sdk asks the model")


async def test_a_call_may_ask_the_model_only_up_to_its_limit(
    start_runtime: Start, wire: WireThread, garden_auto: Session
) -> None:
    garden = garden_auto
    made = config(sdk=plain("samples", sampling={"max_requests": 1}))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await begin(runtime, garden, wire, Scenario(text="Dry."), times=2)
    await decide(runtime, garden, "accept")
    await runtime.wait_idle(garden.pk)
    [result] = await results(garden)
    assert result == "claude-haiku-5-5 (endTurn): Dry.\nA call may ask the model 1 times."


async def test_a_server_without_permission_to_sample_is_refused(
    start_runtime: Start, wire: WireThread, garden_auto: Session, made: dict[str, Any]
) -> None:
    garden = garden_auto
    runtime: Runtime = await start_runtime(mcp=config(sdk=made), mcp_timing=QUICK)
    await begin(runtime, garden, wire)
    await runtime.wait_idle(garden.pk)
    assert await notices(garden, "question_asked") == []
    assert len(wire.requests) == 2


async def test_a_stop_ends_the_answer_to_a_server(
    start_runtime: Start,
    wire: WireThread,
    garden_auto: Session,
    made: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    garden = garden_auto
    runtime: Runtime = await start_runtime(
        mcp=config(sdk=made | {"sampling": MAY}), mcp_timing=QUICK
    )
    stream, has_begun = runtime.models.stream, asyncio.Event()

    async def watched(request: ModelRequest) -> AsyncIterator[StreamItem]:
        async with aclosing(stream(request)) as items:
            async for item in items:
                yield item
                if len(wire.requests) == 2:
                    has_begun.set()

    monkeypatch.setattr(runtime.models, "stream", watched)
    await begin(runtime, garden, wire, Scenario(words=400, rate=50))
    await decide(runtime, garden, "accept")
    await has_begun.wait()
    await runtime.stop_run(garden)
    await runtime.wait_idle(garden.pk)
    assert await notices(garden, "model_answered") == []
    call = await ModelCall.objects.aget(session=garden.pk, error_code="stopped")
    assert (call.input_tokens or 0) > 0  # the provider counts its tokens
    await require_whole(garden)


async def test_a_failure_of_the_model_is_reported_to_the_server(
    start_runtime: Start, wire: WireThread, garden_auto: Session
) -> None:
    garden = garden_auto
    made = config(sdk=plain("samples", sampling=MAY))
    runtime: Runtime = await start_runtime(mcp=made, mcp_timing=QUICK)
    await begin(runtime, garden, wire, Scenario(words=100, error_after=50))
    await decide(runtime, garden, "accept")
    await runtime.wait_idle(garden.pk)
    [result] = await results(garden)
    assert result.startswith("The model did not answer: ")
    call = await ModelCall.objects.exclude(error_code="").aget(session=garden.pk)
    assert (call.error_code, (call.output_tokens or 0) > 10) == ("overloaded", True)
