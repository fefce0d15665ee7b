"""Clients that name no session, and what else programs send as a matter of course."""

from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from conversations.archive.workspaces import add_member
from conversations.models import Session, Workspace
from tests.api.conftest import Program, token_of
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL, MakeClient
from .test_client import WEATHER, answered, request, say, turns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

ROME = ToolCall(name="weather", input={"place": "Rome"})


@pytest.fixture
async def unnamed(make_client: MakeClient, user: User) -> AsyncAnthropic:
    """A client without a key of its session."""
    return make_client(await sync_to_async(token_of)(user))


def results_of(message: Any, *more: Any) -> dict[str, Any]:
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": "25"} for c in calls]
    return {"role": "user", "content": [*results, *more]}


async def test_results_find_the_session_of_their_call(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ROME, ROME)), Scenario(tools=(ROME,)), Scenario(text="Warm."))
    said: list[Any] = ["And Rome?"]
    ids = []
    for _ in range(2):
        message = await say(unnamed, *said, tools=[WEATHER])
        ids.append(message.id)
        said += [answered(message.content), results_of(message)]
    message = await say(unnamed, *said, tools=[WEATHER])
    assert [block.text for block in message.content] == ["Warm."]
    assert await Session.objects.acount() == 1
    assert [role for role, _ in await turns()].count("tool") == 3
    assert len({*ids, message.id}) == 3, "programs keep answers by their ids"


async def test_calls_of_the_same_id_are_told_apart_by_their_input(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    first = ToolCall(name="weather", input={"place": "Rome"}, id="toolu_0")
    second = ToolCall(name="weather", input={"place": "Oslo"}, id="toolu_0")
    provider.enqueue(Scenario(tools=(first,)), Scenario(tools=(second,)), Scenario(text="Warm."))
    rome = await say(unnamed, "And Rome?", tools=[WEATHER])
    await say(unnamed, "And Oslo?", tools=[WEATHER])
    said = ["And Rome?", answered(rome.content), results_of(rome)]
    message = await say(unnamed, *said, tools=[WEATHER])
    assert [block.text for block in message.content] == ["Warm."]
    session = await Session.objects.order_by("pk").afirst()
    assert [turn.content async for turn in session.turns.filter(role="tool")] == ["25"]


async def test_nobody_finds_the_calls_of_others(
    unnamed: AsyncAnthropic, make_client: MakeClient, provider: WireThread, workspace: Workspace
) -> None:
    provider.enqueue(Scenario(tools=(ROME,)))
    message = await say(unnamed, "And Rome?", tools=[WEATHER])
    other = await sync_to_async(User.objects.create_user)("bob")
    await sync_to_async(add_member)(workspace, user_pk=other.pk, role="member")
    theirs = make_client(await sync_to_async(token_of)(other))
    with pytest.raises(anthropic.BadRequestError, match="There is no call"):
        await say(theirs, "And Rome?", answered(message.content), results_of(message))
    assert await Session.objects.acount() == 1


async def test_a_key_may_be_sent_as_the_api_had_it_first(provider: WireThread, user: User) -> None:
    program = Program("")
    key = await sync_to_async(token_of)(user)
    for given, status in ((key, 200), ("loom_wrong", 401)):
        answer = await program.get(
            "/api/v1/anthropic/garden/v1/models", headers={"Authorization": "", "X-Api-Key": given}
        )
        assert answer.status_code == status


async def test_one_model(unnamed: AsyncAnthropic) -> None:
    await say(unnamed, "Hello")
    model = await unnamed.models.retrieve(MODEL)
    assert (model.id, model.type) == (MODEL, "model")
    with pytest.raises(anthropic.NotFoundError, match="model: gpt/4"):
        await unnamed.models.retrieve("gpt/4")


async def test_messages_of_the_system_are_instructions_wherever_they_stand(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    note = {"role": "system", "content": [{"type": "text", "text": "Answer in verse."}]}
    await say(unnamed, "Hello", note, answered("Hi."), "Go on", note, system="Be kind.")
    assert [text for _, text in await turns()][:3] == ["Hello", "Hi.", "Go on"]
    assert "Be kind.\n\nAnswer in verse." in str(provider.requests[-1]["system"][-1]["text"])
    with pytest.raises(anthropic.BadRequestError, match="Content must be"):
        await say(unnamed, "Hello", {"role": "system", "content": 5})


async def test_a_budget_is_for_models_that_take_one(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    await say(unnamed, "Hello", model="claude-haiku-4-5", thinking=budget, max_tokens=2000)
    assert provider.requests[-1]["thinking"] == budget
    with pytest.raises(anthropic.BadRequestError, match=r'Use "thinking.type.adaptive"'):
        await say(unnamed, "Hello", thinking=budget)


async def test_the_sdk_goes_on_without_a_thread(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await unnamed.messages.create(**request("Hello"), extra_body={"thread": {"type": "create"}})
    assert refused.value.error_code == "thread_unsupported_request"
    thread = unnamed.beta.messages.thread(
        model=MODEL, max_tokens=100, unsupported_request_behavior="continue_unthreaded"
    )
    provider.enqueue(Scenario(text="Beans."))
    message = await thread.send({"role": "user", "content": "What now?"})
    assert message.content[0].text == "Beans."
