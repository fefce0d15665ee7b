"""The parameters of a client's request: they are passed on to the model or refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from openai import AsyncOpenAI

from conversations.agent.window.manifest import rebuild_request
from conversations.archive.runs import ClaimedRun, claim_next_run
from conversations.models import ModelCall, Run, Session, Turn
from conversations.runtime import current
from conversations.runtime.access_refresh import STREAMS
from conversations.runtime.current import current_runtime
from conversations.runtime.options import read_options
from conversations.runtime.program_tools import ProgramTools
from conversations.runtime.service import Runtime
from loomweb.asgi import application
from tests.api.conftest import token_of
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL, MakeClient
from .test_client import WEATHER, answered, request, say

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

OLD_MODEL = "claude-haiku-4-5"
"""A model that accepts a temperature."""


async def ask(client: AsyncAnthropic, *said: Any, **more: Any) -> Any:
    """Send messages with parameters that the SDK no longer knows."""
    asked = request(*said) | {"model": more.pop("model", request()["model"])}
    return await client.messages.create(**asked, extra_body=more)


async def _call_weather(client: AsyncAnthropic, provider: WireThread, **asked: Any) -> list[Any]:
    """Let the model call ``weather``. Return the call and its result as the next messages."""
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)))
    message = await say(client, "And today?", tools=[WEATHER], **asked)
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    return [answered(message.content), {"role": "user", "content": [result]}]


def texts_of(message: Any) -> list[str]:
    return [block.text for block in message.content if block.type == "text"]


async def test_max_tokens_is_passed_on_up_to_the_workspaces_limit(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="Beans and", stop_reason="max_tokens"))
    message = await say(client, "What now?", max_tokens=7)
    assert provider.requests[-1]["max_tokens"] == 7
    assert message.stop_reason == "max_tokens"
    await ask(client, "And then?", max_tokens=120_000)
    assert provider.requests[-1]["max_tokens"] < 120_000, "the workspace's own limit"


async def test_an_answer_ends_at_a_stop_sequence(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="Beans. END Peas."))
    message = await say(client, "What now?", stop_sequences=["END", "Peas"])
    assert provider.requests[-1]["stop_sequences"] == ["END", "Peas"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert texts_of(message) == ["Beans. "]


async def test_a_stop_sequence_at_the_beginning_gives_an_empty_answer(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="END"), Scenario(text="END"))
    message = await say(client, "What now?", stop_sequences=["END"])
    assert (message.content, message.stop_reason) == ([], "stop_sequence")
    async with client.messages.stream(**request("Again", stop_sequences=["END"])) as stream:
        message = await stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert {run.state async for run in Run.objects.all()} == {"completed"}


async def test_parameters_are_recorded_with_the_model_call(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await say(client, "What now?", stop_sequences=["END"], thinking={"type": "disabled"})
    assert provider.requests[-1]["thinking"] == {"type": "disabled"}
    call = await ModelCall.objects.aget()
    rebuilt = await sync_to_async(rebuild_request)(call.pk)
    assert rebuilt.matches
    assert rebuilt.request is not None
    assert rebuilt.request.choices == {"stop_sequences": ["END"], "thinking": {"type": "disabled"}}
    assert rebuilt.request.max_tokens == 100


async def test_a_tool_call_is_forced_only_once(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    forced = {"type": "tool", "name": "weather"}
    message = await say(client, "And today?", tools=[WEATHER], tool_choice=forced)
    assert provider.requests[-1]["tool_choice"] == forced
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    said = [answered(message.content), {"role": "user", "content": [result]}]
    message = await say(client, *said, tools=[WEATHER], max_tokens=50)
    assert texts_of(message) == ["Warm."]
    assert "tool_choice" not in provider.requests[-1], "the second request asks for none"
    assert provider.requests[-1]["max_tokens"] == 50


async def test_an_idempotency_key_stays_valid_after_results_were_sent(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    key: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "order-1"}, "tools": [WEATHER]}
    first = await say(client, "And today?", **key)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    await say(client, {"role": "user", "content": [result]}, max_tokens=50)
    again = await say(client, "And today?", **key)
    assert again.id == first.id


async def test_a_model_may_be_told_to_use_no_tools(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await say(client, "What now?", tool_choice={"type": "none"})
    assert provider.requests[-1]["tool_choice"] == {"type": "none"}
    await say(client, "What now?", tool_choice={"type": "auto"})
    assert "tool_choice" not in provider.requests[-1]


async def test_a_temperature_is_refused_for_models_that_accept_none(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await ask(client, "What now?", model=OLD_MODEL, temperature=0.2, top_k=5)
    assert (provider.requests[-1]["temperature"], provider.requests[-1]["top_k"]) == (0.2, 5)
    with pytest.raises(anthropic.BadRequestError, match="temperature: claude-haiku-5-5 does not"):
        await ask(client, "What now?", temperature=0.2)
    await ask(client, "What now?", temperature=1.0, top_p=1)
    assert "temperature" not in provider.requests[-1], "it asks for nothing"


NOT_TO_BE_HAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 3}, "temperature"),
    ({"stop_sequences": ["  "]}, "white space"),
    ({"stop_sequences": "END"}, "stop_sequences"),
    ({"tool_choice": {"type": "any"}}, "needs tools in the request"),
    ({"tool_choice": {"type": "some"}}, "auto, any, tool, none"),
    ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "It needs a name"),
    (
        {"tool_choice": {"type": "tool", "name": "grep"}, "tools": [WEATHER]},
        "grep is not among",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "not supported for this model"),
    ({"metadata": {"user_id": 7}}, "user_id"),
    (
        {"mcp_servers": [{"url": "https://example.org"}]},
        "mcp_servers: Extra inputs are not permitted",
    ),
    ({"output_config": {"format": "x" * 70_000}}, "characters"),
]


async def test_unsupported_parameters_are_refused_with_the_reason(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    for asked, reason in NOT_TO_BE_HAD:
        with pytest.raises(anthropic.BadRequestError, match=reason) as refused:
            await ask(client, "What now?", **asked)
        assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert not await Turn.objects.aexists()


async def test_parameters_without_effect_are_accepted(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    nothing: dict[str, Any] = {"mcp_servers": [], "container": None}
    await ask(client, "What now?", service_tier="auto", **nothing)
    await ask(client, "What now?", metadata={"user_id": "ann", "more": 1})
    assert "service_tier" not in provider.requests[-1]


async def test_a_null_parameter_counts_as_missing(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("system", "tools", "stop_sequences", "stream"))
    await ask(client, "What now?", **nothing)
    assert len(provider.requests) == 1
    for name in ("system", "tools"):
        await client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "Hi."}], **{name: None}
        )
    with pytest.raises(anthropic.BadRequestError, match="'system: Input should be a valid string"):
        await ask(client, "What now?", system=5)


async def test_regenerate_and_continue_use_the_same_parameters(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await say(client, "What now?", max_tokens=7, stop_sequences=["END"])
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.regenerate(session, client_id="retry-01", turn=None, user_pk=None)
    await runtime.wait_idle(session.pk)
    await runtime.continue_run(session, client_id="more-01", user_pk=None)
    await runtime.wait_idle(session.pk)
    assert [(r["max_tokens"], r.get("stop_sequences")) for r in provider.requests] == [
        (7, ["END"])
    ] * 3
    await runtime.send(session, client_id="other-01", text="Something else", user_pk=None)
    await runtime.wait_idle(session.pk)
    assert "stop_sequences" not in provider.requests[-1], "they are of that message"


async def test_an_answer_with_a_forced_call_can_be_regenerated(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)))
    forced = {"type": "tool", "name": "weather"}
    await say(client, "And today?", tools=[WEATHER], tool_choice=forced)
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.stop_run(session)
    await runtime.wait_idle(session.pk)
    await runtime.regenerate(session, client_id="retry-01", turn=None, user_pk=None)
    await runtime.wait_idle(session.pk)
    assert "tool_choice" not in provider.requests[-1], "the tool is with the client"
    assert (await Run.objects.order_by("-pk").afirst()).state == "completed"


async def test_regenerate_uses_the_parameters_of_the_message(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    called = await _call_weather(client, provider, max_tokens=70)
    await say(client, *called, tools=[WEATHER], max_tokens=9, tool_choice={"type": "none"})
    assert provider.requests[-1]["max_tokens"] == 9
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.wait_idle(session.pk)
    await runtime.regenerate(session, client_id="retry-01", turn=None, user_pk=None)
    await runtime.wait_idle(session.pk)
    assert provider.requests[-1]["max_tokens"] == 70
    assert "tool_choice" not in provider.requests[-1]


async def test_results_for_a_call_of_another_process_must_be_sent_again(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    called = await _call_weather(client, provider, max_tokens=70)
    runtime, run = await current_runtime(), await Run.objects.aget()
    here, runtime.program_tools = runtime.program_tools, ProgramTools()
    forced = {"type": "tool", "name": "weather"}
    with pytest.raises(anthropic.InternalServerError, match="another process"):
        await say(client, *called, tools=[WEATHER], max_tokens=9, tool_choice=forced)
    runtime.program_tools = here
    assert (await Run.objects.aget()).choices == run.choices
    await runtime.stop_run(await Session.objects.aget())
    await runtime.wait_idle(run.session_id)


@pytest.fixture
async def elsewhere(provider: WireThread) -> AsyncIterator[Callable[[], None]]:
    """A function that sends the next requests to another process, or back to the first."""
    first, other = await current_runtime(), Runtime(read_options(supervise=True))
    await other.start()

    def change() -> None:
        current._runtime = other if current._runtime is first else first

    yield change
    current._runtime = first
    await other.stop()


async def test_a_message_with_tools_must_reach_the_process_of_the_run(
    client: AsyncAnthropic, provider: WireThread, elsewhere: Callable[[], None]
) -> None:
    with provider.held():
        first = asyncio.create_task(say(client, "one"))
        while not provider.requests:
            await asyncio.sleep(0.01)
        elsewhere()
        with pytest.raises(anthropic.InternalServerError, match="another process"):
            await say(client, "two", tools=[WEATHER])
        without = asyncio.create_task(say(client, "three"))  # any process can answer it
        while await Run.objects.acount() < 2:
            await asyncio.sleep(0.01)
    await asyncio.gather(first, without)
    await say(client, "two", tools=[WEATHER])  # the first process has no run any more
    offered = ["weather" in str(sent["tools"]) for sent in provider.requests]
    assert offered == [False, False, True]


async def test_a_message_is_refused_while_a_call_waits_in_another_process(
    client: AsyncAnthropic, provider: WireThread, elsewhere: Callable[[], None]
) -> None:
    await _call_weather(client, provider)
    elsewhere()
    with pytest.raises(anthropic.InternalServerError, match="another process"):
        await say(client, "Never mind")
    elsewhere()
    provider.enqueue(Scenario(text="Hello."))
    assert texts_of(await say(client, "Never mind")) == ["Hello."]
    assert [run.state async for run in Run.objects.all()] == ["completed", "completed"]


async def test_a_repeat_is_refused_while_its_calls_wait_in_another_process(
    make_client: MakeClient, user: User, provider: WireThread, elsewhere: Callable[[], None]
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="")
    weather = Scenario(tools=(ToolCall(name="weather"),))
    provider.enqueue(weather, weather)
    once: dict[str, Any] = {"tools": [WEATHER], "extra_headers": {"Idempotency-Key": "order 1"}}
    first = await say(client, "And Rome?", **once)
    elsewhere()
    with pytest.raises(anthropic.InternalServerError, match="another process"):
        await say(client, "And Rome?", **once)
    elsewhere()
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    said = ["And Rome?", answered(first.content), {"role": "user", "content": [result]}]
    await say(client, *said, tools=[WEATHER])
    elsewhere()
    with pytest.raises(anthropic.InternalServerError, match="another process"):
        await say(client, *said, tools=[WEATHER])
    elsewhere()
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.stop_run(session)
    await runtime.wait_idle(session.pk)


async def test_another_process_claims_a_run_with_its_parameters(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(status=500))
    with pytest.raises(anthropic.APIStatusError):
        await say(client, "What now?", max_tokens=7, stop_sequences=["END"])
    run = await Run.objects.select_related("session").aget()
    await Run.objects.filter(pk=run.pk).aupdate(state="queued")

    def claim() -> ClaimedRun | None:
        return claim_next_run(run.session_id, owner="another process")

    claimed = await sync_to_async(claim)()
    assert claimed is not None
    assert claimed.choices.as_json() == {"max_tokens": 7, "stop_sequences": ["END"]}


async def test_the_same_words_with_other_parameters_are_another_request(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:again")
    said = ("Hello", answered("Hi"), "Again")
    first = await say(client, *said)
    assert (await say(client, *said)).id == first.id
    assert (await say(client, *said, max_tokens=50)).id != first.id
    key = {"Idempotency-Key": "order 1"}
    await say(client, "Once", extra_headers=key)
    with pytest.raises(anthropic.BadRequestError, match="another request"):
        await say(client, "Once", extra_headers=key, max_tokens=50)


async def test_an_answer_names_the_model_that_gave_it(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    token = await sync_to_async(token_of)(user)
    client = make_client(token, key="sdk:queue")
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=application))
    openai = AsyncOpenAI(
        base_url="http://testserver/api/v1/openai/garden/v1",
        api_key=token,
        default_headers={"Loom-Session-Key": "sdk:queue"},
        http_client=http,
    )
    asked = [asyncio.create_task(say(client, "one"))]
    waiting: list[Awaitable[Any]] = [
        say(client, "two", model=OLD_MODEL),
        openai.responses.create(model=OLD_MODEL, input="three"),
        openai.chat.completions.create(
            model=OLD_MODEL, messages=[{"role": "user", "content": "four"}]
        ),
        say(client, "five"),
    ]
    with provider.held():  # so that the others wait for the first
        for one in waiting:
            while await Run.objects.acount() < len(asked):
                await asyncio.sleep(0.01)
            asked.append(asyncio.ensure_future(one))
        while await Run.objects.acount() < len(asked):
            await asyncio.sleep(0.01)
    answers = await asyncio.gather(*asked)
    await openai.close()
    used = [sent["model"] for sent in provider.requests]
    assert [answer.model for answer in answers] == used == [MODEL] * 5


async def test_a_person_cannot_open_more_streams_than_the_limit(
    client: AsyncAnthropic, provider: WireThread, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_streams", 1)
    limiter = (await current_runtime()).limiter
    for text in ("one", "two"):
        async with client.messages.stream(**request(text)) as stream:
            await stream.get_final_message()
    limiter.acquire(STREAMS, user.pk)
    with pytest.raises(anthropic.RateLimitError, match="At most 1 streams can be open"):
        async with client.messages.stream(**request("three")):
            pass
    assert await Turn.objects.filter(role="user").acount() == 2
    limiter.release(STREAMS, user.pk)
