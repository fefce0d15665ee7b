"""The Messages API as clients use it through the anthropic SDK."""

import asyncio
import base64
import json
from itertools import product
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from conversations.archive.workspaces import create_workspace
from conversations.features.model_apis import responses
from conversations.models import Attachment, Membership, Run, Session, Turn, Workspace
from conversations.models import ToolCall as ToolCallRow
from conversations.runtime.current import current_runtime
from conversations.runtime.program_tools import GIVEN_UP
from loomweb.asgi import application
from tests.api.conftest import Program, token_of
from tests.archive.files import image_bytes
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL, MakeClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

WEATHER = {
    "name": "weather",
    "description": "The weather at a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


def request(*messages: Any, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return {"model": MODEL, "max_tokens": 100, "messages": said} | more


async def say(client: AsyncAnthropic, *messages: Any, **more: Any) -> Any:
    return await client.messages.create(**request(*messages, **more))


async def streamed(client: AsyncAnthropic, *said: Any, **more: Any) -> Any:
    async with client.messages.stream(**request(*said, **more)) as stream:
        return await stream.get_final_message()


async def turns() -> list[tuple[str, str]]:
    return [(t.role, t.content) async for t in Turn.objects.order_by("session", "number")]


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_a_message_is_answered_and_kept(client: AsyncAnthropic, provider: WireThread) -> None:
    provider.enqueue(Scenario(text="Plant beans.", thinking="Which bed?"))
    message = await say(client, "What now?", system="You look after a garden.")
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")
    assert [(block.type, block.text) for block in message.content] == [("text", "Plant beans.")]
    assert message.usage.output_tokens > 0
    session = await Session.objects.aget()
    assert (session.key, session.channel) == ("sdk:default", "sdk")
    assert await turns() == [("user", "What now?"), ("assistant", "Plant beans.")]
    assert "You look after a garden." in str(provider.requests[-1]["system"])
    await say(client, "And now?", system=[{"type": "text", "text": "Be brief."}])
    assert "Be brief." in str(provider.requests[-1]["system"])
    assert "You look after" not in str(provider.requests[-1]["system"])


async def test_the_session_contains_earlier_messages_only_once(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await say(client, "one")
    first = (await turns())[1][1]
    await say(client, "one", answered(first), "two")
    await say(client, "three")
    assert [text for role, text in await turns() if role == "user"] == ["one", "two", "three"]
    assert str(provider.requests[-1]["messages"]).count("'one'") == 1


async def test_a_session_begins_with_the_history_in_the_request(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await say(client, "one", answered("first"), "two", answered("second"), "three")
    assert [text for _, text in await turns()][:5] == ["one", "first", "two", "second", "three"]
    texts = str(provider.requests[-1]["messages"])
    assert all(text in texts for text in ("one", "first", "second", "three"))


async def test_the_stream_has_the_events_of_the_api(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(words=60, rate=400, thinking="Which words?"))
    kinds, texts = [], []
    async with client.messages.stream(**request("Go on")) as stream:
        async for event in stream:
            kinds.append(event.type)
            if event.type == "text":
                texts.append(event.text)
        message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert len(texts) > 1
    assert message.content[0].text == "".join(texts) == (await turns())[1][1]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0


async def test_the_client_executes_its_own_tools(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    asked = (ToolCall(name="weather", input={"place": "Paris"}), ToolCall(name="weather"))
    provider.enqueue(Scenario(text="I look.", tools=asked), Scenario(text="18 degrees."))
    message = await say(client, "What is the weather?", tools=[WEATHER])
    assert message.stop_reason == "tool_use"
    text, first, second = message.content
    assert (text.text, first.name, first.input) == ("I look.", "weather", {"place": "Paris"})
    results = [
        {"type": "tool_result", "tool_use_id": first.id, "content": "18 degrees"},
        {
            "type": "tool_result",
            "tool_use_id": second.id,
            "content": [{"type": "text", "text": "Where?"}],
            "is_error": True,
        },
    ]
    said = [
        "What is the weather?",
        {"role": "assistant", "content": [block.to_dict() for block in message.content]},
        {"role": "user", "content": results},
    ]
    message = await say(client, *said, tools=[WEATHER])
    assert [block.text for block in message.content] == ["18 degrees."]
    assert message.stop_reason == "end_turn"
    assert [role for role, _ in await turns()] == ["user", "assistant", "tool", "tool", "assistant"]
    sent = provider.requests[-1]["messages"][-1]["content"][:2]
    assert [(one["content"], one.get("is_error")) for one in sent] == [
        ("18 degrees", None),
        ("Where?", True),
    ]
    again = await say(client, *said, tools=[WEATHER])  # as if the answer had not arrived
    assert again.content == message.content


async def test_tool_calls_and_answers_to_results_are_streamed(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(
        Scenario(text="I look.", tools=(ToolCall(name="weather", input={"place": "Rome"}),)),
        Scenario(text="Warm."),
    )
    async with client.messages.stream(**request("And Rome?", tools=[WEATHER])) as stream:
        message = await stream.get_final_message()
    assert (message.stop_reason, message.content[1].input) == ("tool_use", {"place": "Rome"})
    result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "25"}
    said = [{"role": "assistant", "content": message.content}]
    said += [{"role": "user", "content": [result]}]
    async with client.messages.stream(**request(*said)) as stream:
        assert "".join([text async for text in stream.text_stream]) == "Warm."


async def test_a_client_that_continues_without_results_is_answered(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)))
    first = await say(client, "What is the weather?", tools=[WEATHER])
    provider.enqueue(Scenario(text="Hello."))
    message = await say(client, "Never mind")
    assert [block.text for block in message.content] == ["Hello."]
    assert ("tool", "The program that provided this tool continued without a result.") in (
        await turns()
    )
    late = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    with pytest.raises(anthropic.BadRequestError):
        await say(client, {"role": "user", "content": [late | {"tool_use_id": "other"}]})


async def test_results_of_stopped_calls_are_refused(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)))
    message = await say(client, "What is the weather?", tools=[WEATHER])
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.stop_run(session)
    await runtime.wait_idle(session.pk)
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    with pytest.raises(anthropic.BadRequestError, match="has ended"):
        await say(client, {"role": "user", "content": [result]})


MIXED = (
    ToolCall(name="weather", input={"place": "Rome"}),
    ToolCall(name="write_file", input={"path": "rome.txt", "content": "Warm"}),
    ToolCall(name="weather", input={"place": "Oslo"}),
)


async def _approve_waiting() -> None:
    runtime, session = await current_runtime(), await Session.objects.aget()
    while (call := await session.tool_calls.filter(state="waiting_approval").afirst()) is None:
        await asyncio.sleep(0.02)
    await runtime.decide_call(session, call=call.uuid, decision="once", user_pk=session.owner_id)


@pytest.mark.parametrize("policy", ["auto", "ask"])
async def test_client_calls_around_a_workspace_call_are_sent_together(
    client: AsyncAnthropic, provider: WireThread, policy: str
) -> None:
    await Workspace.objects.aupdate(tool_policy=policy)
    provider.enqueue(Scenario(text="I look.", tools=MIXED), Scenario(text="Both are warm."))
    message = await say(client, "And Rome?", tools=[WEATHER])
    calls = message.content[1:]
    assert [call.input for call in calls] == [{"place": "Rome"}, {"place": "Oslo"}]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": call.input["place"]}
        for call in calls
    ]
    with pytest.raises(anthropic.BadRequestError, match="needs its result"):
        await say(client, {"role": "user", "content": results[:1]})
    answering = asyncio.create_task(say(client, {"role": "user", "content": results}))
    if policy == "ask":
        await _approve_waiting()
    assert (await answering).content[0].text == "Both are warm."
    given = [text for role, text in await turns() if role == "tool"]
    assert given == ["Rome", "Created rome.txt: 1 line.", "Oslo"]


async def test_results_can_be_sent_again_before_the_last_call_is_reached(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=MIXED), Scenario(text="Both are warm."))
    message = await say(client, "And Rome?", tools=[WEATHER])
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "25"} for call in message.content
    ]
    first = asyncio.create_task(say(client, {"role": "user", "content": results}))
    while not await ToolCallRow.objects.filter(state="completed").aexists():
        await asyncio.sleep(0.02)
    again = asyncio.create_task(say(client, {"role": "user", "content": results}))
    await asyncio.wait({again}, timeout=0.3)
    await _approve_waiting()
    assert (await first).content == (await again).content


async def test_later_calls_are_given_up_together_with_waiting_calls(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    await Workspace.objects.aupdate(tool_policy="auto")
    provider.enqueue(Scenario(tools=MIXED), Scenario(text="Hello."))
    await say(client, "And Rome?", tools=[WEATHER])
    message = await say(client, "Never mind")
    assert [block.text for block in message.content] == ["Hello."]
    given = [text for role, text in await turns() if role == "tool"]
    assert given == [GIVEN_UP, "Created rome.txt: 1 line.", GIVEN_UP]


async def test_repeated_results_are_answered_with_the_calls_now_waiting(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    look = (ToolCall(name="weather"),)
    provider.enqueue(Scenario(tools=look), Scenario(text="And then?", tools=look))
    first = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    second = await say(client, {"role": "user", "content": [result]})
    again = await say(client, {"role": "user", "content": [result]})
    assert second.content[1].id != first.content[0].id
    assert (again.id, again.content) == (second.id, second.content)
    provider.enqueue(Scenario(text="Warm."))
    result = {"type": "tool_result", "tool_use_id": second.content[1].id, "content": "25"}
    message = await say(client, {"role": "user", "content": [result]})
    assert message.content[0].text == "Warm."


async def test_the_results_of_all_calls_must_be_sent_together(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"), ToolCall(name="weather"))))
    message = await say(client, "Both", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    with pytest.raises(anthropic.BadRequestError, match="needs its result"):
        await say(client, {"role": "user", "content": [result]})


async def test_two_results_for_one_call_are_refused(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    message = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    with pytest.raises(anthropic.BadRequestError, match="one result"):
        await say(client, {"role": "user", "content": [result, result]})
    message = await say(client, {"role": "user", "content": [result]})
    assert message.content[0].text == "Warm."


async def test_a_refused_message_does_not_change_the_waiting_call(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    message = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "25"}
    text = {"type": "text", "text": "And what to sow?"}
    refused: list[dict[str, Any]] = [
        {"tools": [{"name": "the weather", "input_schema": {}}]},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "rain"}},
    ]
    for more, content in product(refused, ([text], [result, text])):
        with pytest.raises(anthropic.BadRequestError):
            await say(client, {"role": "user", "content": content}, **more)
        assert [text for _, text in await turns()] == ["And Rome?", ""]
    message = await say(client, {"role": "user", "content": [result]})
    assert message.content[0].text == "Warm."
    assert [text for _, text in await turns()] == ["And Rome?", "", "25", "Warm."]


async def test_an_invalid_result_is_refused_and_can_be_corrected(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    message = await say(client, "And Rome?", tools=[WEATHER])
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.content[0].id}
    for odd in ({"a": 1}, 5, ["text"], [{"type": "text", "text": 5}]):
        result["content"] = odd
        with pytest.raises(anthropic.BadRequestError, match="content: The result of") as refused:
            await say(client, {"role": "user", "content": [result]})
        assert refused.value.body["error"]["type"] == "invalid_request_error"
    result["content"] = "25"
    answer = await say(client, {"role": "user", "content": [result]})
    assert answer.content[0].text == "Warm."


async def test_images_are_sent_to_the_model(client: AsyncAnthropic, provider: WireThread) -> None:
    data = base64.b64encode(image_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "text", "text": "Look"}, {"type": "image", "source": source}]
    await say(client, {"role": "user", "content": content})
    assert await Attachment.objects.filter(turn_number=1).acount() == 1
    sent = provider.requests[-1]["messages"][0]["content"]
    assert [block["type"] for block in sent if block["type"] == "image"] == ["image"]


@pytest.mark.parametrize("user_id", ["ann", "ä\n" * 200])
async def test_the_user_id_in_the_metadata_identifies_the_session(
    make_client: MakeClient, user: User, user_id: str
) -> None:
    client = make_client(await sync_to_async(token_of)(user))
    for text in ("one", "two"):
        await say(client, text, metadata={"user_id": user_id})
    session = await Session.objects.aget()
    assert session.key.startswith("anthropic:")
    await say(client, "three")
    assert await Session.objects.acount() == 2
    agent = {"X-Claude-Code-Agent-Id": "a1"}
    for text in ("four", "five"):
        await say(client, text, metadata={"user_id": user_id}, extra_headers=agent)
    assert await Session.objects.acount() == 3


async def test_a_repeated_request_is_answered_once(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:again")
    key = {"Idempotency-Key": "order 1"}
    first, second = await asyncio.gather(
        *(say(client, "Hello", extra_headers=key) for _ in range(2))
    )
    assert first.id == second.id
    said = ("Hello", answered("Hi"), "Again")
    assert (await say(client, *said)).id == (await say(client, *said)).id
    assert await Run.objects.acount() == 2


async def test_a_retry_after_a_failure_does_not_repeat_the_message(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:again", retries=1)
    provider.enqueue(Scenario(status=529), Scenario(text="At last."))
    message = await say(client, "Hello")
    assert [block.text for block in message.content] == ["At last."]
    assert await turns() == [("user", "Hello"), ("assistant", "At last.")]


@pytest.mark.parametrize("key", ["", "sdk:results"])
async def test_results_are_answered_when_sent_again_after_a_failure(
    make_client: MakeClient, user: User, provider: WireThread, key: str
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key=key, retries=2)
    provider.enqueue(
        Scenario(tools=(ToolCall(name="weather"),)),
        Scenario(status=529),
        Scenario(text="It is warm.", error_after=2),
        Scenario(text="Warm."),
        Scenario(text="Then water."),
    )
    first = await say(client, "And Rome?", tools=[WEATHER], tool_choice={"type": "any"})
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    said = ["And Rome?", answered(first.content), {"role": "user", "content": [result]}]
    message = await say(client, *said, tools=[WEATHER], max_tokens=50)
    # The text that arrived before the stream broke off is part of the answer.
    assert [block.text for block in message.content][-1] == "Warm."
    sent = provider.requests[-1]
    assert "25" in str(sent["messages"])
    assert (sent["max_tokens"], "tool_choice" in sent) == (50, False)
    assert "weather" in [tool["name"] for tool in sent["tools"]]
    # The client repeats the request as if the answer had not arrived.
    again = await say(client, *said, tools=[WEATHER], max_tokens=50)
    assert (again.id, again.content) == (message.id, message.content)
    await say(client, *said, answered(message.content), "Then?", tools=[WEATHER])
    assert len(provider.requests) == 5
    assert await Session.objects.acount() == 1
    assert [text for role, text in await turns() if role in ("user", "tool")] == [
        "And Rome?",
        "25",
        "Then?",
    ]


async def test_results_are_answered_when_sent_again_after_a_crash(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(
        Scenario(tools=(ToolCall(name="weather"),)), Scenario(status=529), Scenario(text="Warm.")
    )
    first = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    said = ["And Rome?", answered(first.content), {"role": "user", "content": [result]}]
    once = {"Idempotency-Key": "the weather"}
    with pytest.raises(anthropic.InternalServerError):
        await say(client, *said, tools=[WEATHER], extra_headers=once)
    await Run.objects.aupdate(state="interrupted")  # as after a restart
    for _ in range(2):
        message = await say(client, *said, tools=[WEATHER], extra_headers=once)
        assert [block.text for block in message.content] == ["Warm."]


async def test_failed_results_are_not_answered_after_another_message(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(
        Scenario(tools=(ToolCall(name="weather"),)), Scenario(status=529), Scenario(text="Hello.")
    )
    first = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    said = ["And Rome?", answered(first.content), {"role": "user", "content": [result]}]
    with pytest.raises(anthropic.InternalServerError):
        await say(client, *said)
    await say(client, "Hello")
    with pytest.raises(anthropic.InternalServerError):
        await say(client, *said)
    assert len(provider.requests) == 3


async def test_errors_raise_the_exceptions_of_the_sdk(
    make_client: MakeClient, client: AsyncAnthropic, user: User, provider: WireThread
) -> None:
    token = await sync_to_async(token_of)(user)
    reader = await sync_to_async(token_of)(user, scopes=["read"])
    with pytest.raises(anthropic.AuthenticationError) as refused:
        await say(make_client("loom_wrong"), "Hello")
    assert refused.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.PermissionDeniedError):
        await say(make_client(reader), "Hello")
    with pytest.raises(anthropic.NotFoundError):
        await say(make_client(token, slug="elsewhere"), "Hello")
    with pytest.raises(anthropic.NotFoundError, match="model: gpt"):
        await say(client, "Hello", model="gpt")
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await say(client, "Hello", max_tokens=0)
    with pytest.raises(anthropic.BadRequestError, match="The message is empty"):
        await say(client, " ")
    with pytest.raises(anthropic.APIStatusError) as too_long:
        await say(client, "word " * 200_000)
    assert too_long.value.status_code == 413
    with pytest.raises(anthropic.BadRequestError, match="must end with a user message"):
        await say(client, "Hello", answered("Hi, I am"))
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]"):
        await say(client, "Hello", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="not loaded"):
        await say(client, {"role": "user", "content": [url]})
    assert await turns() == []


async def test_the_same_key_in_two_workspaces_names_two_sessions(
    make_client: MakeClient, client: AsyncAnthropic, tmp_path: Path, provider: WireThread
) -> None:
    other = await sync_to_async(User.objects.create_user)("bob")
    await sync_to_async(create_workspace)(root=tmp_path, name="Orchard", owner=other)
    theirs = make_client(await sync_to_async(token_of)(other), slug="orchard", key="sdk:default")
    await say(client, "roses")
    await say(theirs, "apples")
    assert await Session.objects.filter(key="sdk:default").acount() == 2
    assert "roses" not in str(provider.requests[-1])
    with pytest.raises(anthropic.NotFoundError):
        await say(make_client(await sync_to_async(token_of)(other)), "let me in")


async def test_provider_failures_raise_the_exceptions_of_the_sdk(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(status=529), Scenario(status=429))
    with pytest.raises(anthropic.InternalServerError, match="overloaded") as overloaded:
        await say(client, "one")
    assert overloaded.value.status_code == 529
    with pytest.raises(anthropic.RateLimitError):
        await say(client, "two")
    provider.enqueue(Scenario(status=402, error_type="billing_error"))
    with pytest.raises(anthropic.APIStatusError) as unpaid:
        await say(client, "paid?")
    assert (unpaid.value.status_code, unpaid.value.type) == (402, "billing_error")
    provider.enqueue(Scenario(status=500))
    with pytest.raises(anthropic.APIStatusError):
        async with client.messages.stream(**request("three")) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_of_the_server_is_not_the_clients_and_is_not_retried(
    make_client: MakeClient, user: User, provider: WireThread, status: int
) -> None:
    client = make_client(await sync_to_async(token_of)(user), retries=2)
    provider.enqueue(Scenario(status=status))
    with pytest.raises(anthropic.InternalServerError, match="API key"):
        await say(client, "Hello")
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("scenario", "reason", "said"),
    [
        (Scenario(text="I cannot help.", stop_reason="refusal"), "refusal", ["I cannot help."]),
        (Scenario(empty=True, stop_reason="refusal"), "refusal", []),
        (Scenario(empty=True), "end_turn", []),
    ],
)
async def test_refusals_and_empty_answers_are_not_errors(
    make_client: MakeClient,
    user: User,
    provider: WireThread,
    scenario: Scenario,
    reason: str,
    said: list[str],
) -> None:
    token = await sync_to_async(token_of)(user)
    client = make_client(token, key="sdk:declined", retries=2)
    provider.enqueue(scenario)
    message = await say(client, "Hello")
    assert (message.stop_reason, [block.text for block in message.content]) == (reason, said)
    assert len(provider.requests) == 1
    provider.enqueue(scenario)
    async with client.messages.stream(**request("Hello", answered("No."), "Please")) as stream:
        message = await stream.get_final_message()
    assert (message.stop_reason, [block.text for block in message.content]) == (reason, said)


async def test_the_available_models_are_listed(client: AsyncAnthropic) -> None:
    await say(client, "Hello")
    assert MODEL in [model.id async for model in client.models.list()]


async def test_tokens_are_counted_roughly(client: AsyncAnthropic) -> None:
    asked = request("word " * 100)
    counted = await client.messages.count_tokens(model=MODEL, messages=asked["messages"])
    assert 100 < counted.input_tokens < 250


async def test_the_data_of_files_is_not_counted_as_text(client: AsyncAnthropic) -> None:
    for data in (image_bytes(), bytes(range(256)) * 1000):  # the second is no image
        given = base64.b64encode(data).decode()
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": given},
        }
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
        asked = request({"role": "user", "content": [image, result]})
        counted = await client.messages.count_tokens(model=MODEL, messages=asked["messages"])
        assert counted.input_tokens < 100


async def test_deeply_nested_values_are_counted(client: AsyncAnthropic) -> None:
    content: Any = "word"
    for level in range(3_000):
        content = [content] if level % 2 else {"type": content}
    asked = [{"role": "user", "content": content}]
    counted = await client.messages.count_tokens(model=MODEL, messages=asked)
    assert counted.input_tokens > 3_000


async def test_a_removed_member_does_not_get_the_answer(
    client: AsyncAnthropic, provider: WireThread, user: User
) -> None:
    provider.enqueue(Scenario(words=60, rate=80))
    waiting = asyncio.create_task(say(client, "What now?"))
    while not await Turn.objects.aexists():
        await asyncio.sleep(0.02)
    await Membership.objects.filter(user=user).adelete()
    with pytest.raises(anthropic.NotFoundError):
        await waiting


async def test_the_stream_of_a_removed_member_ends_with_an_error(
    client: AsyncAnthropic, provider: WireThread, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "RECHECK_SECONDS", 0.1)
    provider.enqueue(Scenario(words=60, rate=40))

    async def read() -> None:
        async with client.messages.stream(**request("What now?")) as stream:
            await stream.get_final_message()

    reading = asyncio.create_task(read())
    while not await Turn.objects.aexists():
        await asyncio.sleep(0.02)
    await Membership.objects.filter(user=user).adelete()
    with pytest.raises(anthropic.APIStatusError) as ended:
        await reading
    assert ended.value.body["error"]["type"] == "not_found_error"


@pytest.mark.usefixtures("provider")
async def test_call_ids_that_databases_cannot_store_are_refused(user: User) -> None:
    program = Program(await sync_to_async(token_of)(user))
    for odd in ("\ud800", "a\0b"):
        result = {"type": "tool_result", "tool_use_id": odd, "content": "Sun."}
        answer = await program.post(
            "/api/v1/anthropic/garden/v1/messages",
            json.dumps(request({"role": "user", "content": [result]})),
            content_type="application/json",
        )
        error = answer.json()["error"]["type"]
        assert (answer.status_code, error) == (400, "invalid_request_error"), odd


async def test_a_client_that_reads_slowly_gets_the_whole_answer(
    user: User, provider: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MAX_DELTAS_WAITING", 1)
    texts = ["One two three four five six seven eight nine ten.", "And eleven, twelve, thirteen."]
    look = ToolCall(name="list_files", input={})
    provider.enqueue(
        Scenario(text=texts[0], rate=200, tools=(look,)), Scenario(text=texts[1], first_delay=0.2)
    )

    async def read_slowly(scope: Any, receive: Any, send: Any) -> None:
        async def wait(message: Any) -> None:
            while b"_delta" in message.get("body", b"") and len(provider.requests) < 2:
                await asyncio.sleep(0.01)
            await send(message)

        await application(scope, receive, wait)

    token = await sync_to_async(token_of)(user)
    transport = httpx2.ASGITransport(app=read_slowly)
    async with AsyncAnthropic(
        base_url="http://testserver/api/v1/anthropic/garden",
        auth_token=token,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:
        assert [block.text for block in (await streamed(client, "Count.")).content] == texts
