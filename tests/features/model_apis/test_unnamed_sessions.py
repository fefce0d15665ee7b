"""Clients that name no session, and other requests that programs commonly send."""

from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User

from conversations.agent.window.manifest import rebuild_request
from conversations.archive.workspaces import add_member
from conversations.models import ModelCall, Run, Session, Workspace
from conversations.models import ToolCall as CallRecord
from conversations.runtime.current import current_runtime
from tests.api.conftest import Program, token_of
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL, MakeClient
from .test_client import WEATHER, answered, request, say, turns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

ROME = ToolCall(name="weather", input={"place": "Rome"})


@pytest.fixture
async def unnamed(make_client: MakeClient, user: User) -> AsyncAnthropic:
    """A client that sends no session key."""
    return make_client(await sync_to_async(token_of)(user))


def results_of(message: Any, *more: Any) -> dict[str, Any]:
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": "25"} for c in calls]
    return {"role": "user", "content": [*results, *more]}


async def test_results_are_added_to_the_session_of_their_call(
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


async def test_calls_with_the_same_id_are_distinguished_by_their_input(
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


async def test_results_for_another_persons_call_are_refused(
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


async def test_a_token_may_be_sent_in_the_x_api_key_header(
    provider: WireThread, user: User
) -> None:
    program = Program("")
    key = await sync_to_async(token_of)(user)
    for given, status in ((key, 200), ("loom_wrong", 401)):
        answer = await program.get(
            "/api/v1/anthropic/garden/v1/models", headers={"Authorization": "", "X-Api-Key": given}
        )
        assert answer.status_code == status


async def test_a_single_model_can_be_retrieved(unnamed: AsyncAnthropic) -> None:
    await say(unnamed, "Hello")
    model = await unnamed.models.retrieve(MODEL)
    assert (model.id, model.type, model.lifecycle) == (MODEL, "model", "active")
    with pytest.raises(anthropic.NotFoundError, match="model: gpt/4"):
        await unnamed.models.retrieve("gpt/4")


async def test_system_messages_at_any_position_become_instructions(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    note = {"role": "system", "content": [{"type": "text", "text": "Answer in verse."}]}
    texts = ("x-anthropic-billing-header: cc_version=2.1.197;", "Be kind.")
    system = [{"type": "text", "text": text} for text in texts]
    await say(unnamed, "Hello", note, answered("Hi."), "Go on", note, system=system)
    assert [text for _, text in await turns()][:3] == ["Hello", "Hi.", "Go on"]
    assert (await Session.objects.aget()).instructions.startswith("Be kind.")
    assert "Be kind.\n\nAnswer in verse." in str(provider.requests[-1]["system"][-1]["text"])
    with pytest.raises(anthropic.BadRequestError, match="Content must be"):
        await say(unnamed, "Hello", {"role": "system", "content": 5})


async def test_a_thinking_budget_is_refused_for_models_that_accept_none(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    await say(unnamed, "Hello", model="claude-haiku-4-5", thinking=budget, max_tokens=2000)
    assert provider.requests[-1]["thinking"] == budget
    with pytest.raises(anthropic.BadRequestError, match=r'Use "thinking.type.adaptive"'):
        await say(unnamed, "Hello", thinking=budget)


@pytest.mark.parametrize(
    ("most", "budget", "given"),
    [(16_000, 31_999, 12_000), (16_000, 2_000, 2_000), (1_300, 31_999, None)],
)
async def test_a_thinking_budget_is_reduced_to_fit_the_output_limit(
    unnamed: AsyncAnthropic,
    provider: WireThread,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    budget: int,
    given: int | None,
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_output_tokens", most)
    thinking = {"type": "enabled", "budget_tokens": budget}
    asked = request("Hello", model="claude-haiku-4-5", thinking=thinking, max_tokens=32_000)
    async with unnamed.messages.stream(**asked) as stream:
        await stream.get_final_message()
    sent = provider.requests[-1]
    assert sent["max_tokens"] == most
    assert sent.get("thinking", {}).get("budget_tokens") == given
    call = await ModelCall.objects.alatest("pk")
    assert (await sync_to_async(rebuild_request)(call.pk)).matches


async def test_the_sdk_continues_without_a_thread(
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


async def test_a_conversation_continues_after_interrupted_answers(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    said: list[Any] = ["What now?"]
    provider.enqueue(Scenario(text="Plant beans."))
    await say(unnamed, *said)
    said += [answered("Plant beans."), "And then?"]
    provider.enqueue(Scenario(words=40, error_after=20))
    with pytest.raises(anthropic.InternalServerError):
        await say(unnamed, *said)
    # Some programs send back the part that they received. Others omit it or join the messages.
    part = (await turns())[3][1]
    provider.enqueue(Scenario(text="Water."), Scenario(words=40, error_after=20))
    said += [answered(part[: len(part) // 2]), "Go on."]
    await say(unnamed, *said)
    said += [answered("Water.")]
    with pytest.raises(anthropic.InternalServerError):
        await say(unnamed, *said, "Hello?")
    blocks = [{"type": "text", "text": text} for text in ("Hello?", "Are you there?")]
    provider.enqueue(Scenario(text="Yes."), Scenario(text="I am."))
    await say(unnamed, *said, {"role": "user", "content": blocks})
    await say(unnamed, *said, {"role": "user", "content": blocks}, answered("Yes."), "Really?")
    assert await Session.objects.acount() == 1
    assert [text for role, text in await turns() if role == "user"] == [
        *("What now?", "And then?", "Go on.", "Hello?", "Are you there?", "Really?")
    ]


async def test_a_message_can_follow_an_unanswered_first_message(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(status=500), Scenario(text="Plant beans."))
    with pytest.raises(anthropic.InternalServerError):
        await say(unnamed, "What now?")
    await say(unnamed, "What now?", "Hello?")
    assert [text for _, text in await turns()][-2:] == ["Hello?", "Plant beans."]
    await say(unnamed, "What now?", "Are you there?")
    assert await Session.objects.acount() == 2, "that was answered"


async def test_a_call_identifies_the_session_if_earlier_messages_change(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ROME,)), Scenario(text="Warm."), Scenario(text="Yes."))
    asked = await say(unnamed, "It is noon. And Rome?", tools=[WEATHER])
    called = [answered(asked.content), results_of(asked)]
    await say(unnamed, "It is noon. And Rome?", *called, tools=[WEATHER])
    await say(unnamed, "It is one. And Rome?", *called, answered("Warm."), "Really?")
    await say(unnamed, "It is two. And Rome?", *called, answered("Cold."), "Really?")
    sessions = [len([t async for t in s.turns.all()]) async for s in Session.objects.order_by("pk")]
    assert sessions == [6, 6], "the second tells of another answer"


AGENT = "You are a gardener who writes code. " + "Be careful with the roses. " * 60


@pytest.mark.parametrize("metadata", [None, {"user_id": "ann"}])
async def test_another_role_in_the_system_prompt_is_another_session(
    unnamed: AsyncAnthropic, provider: WireThread, metadata: dict[str, str] | None
) -> None:
    def asked(*messages: Any, system: str) -> Any:
        more = {"metadata": metadata} if metadata else {}
        return say(unnamed, *messages, system=system, **more)

    provider.enqueue(*(Scenario(text=text) for text in ("Beans.", "A garden", "Water.")))
    await asked("What now?", system=AGENT)
    said = ["What now?", answered("Beans.")]
    await asked(*said, "What is this about?", system="You find titles. " + AGENT)
    await asked(*said, "And then?", system=AGENT + "It is noon.")
    first, second = [session async for session in Session.objects.order_by("pk")]
    spoken = [
        [turn.content async for turn in one.turns.order_by("number")] for one in (first, second)
    ]
    assert spoken == [
        ["What now?", "Beans.", "And then?", "Water."],
        ["What now?", "Beans.", "What is this about?", "A garden"],
    ]
    assert first.instructions.startswith("You are a gardener")


async def test_a_client_tool_replaces_the_workspaces_tool_of_that_name(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    own = {"name": "read_file", "description": "Mine.", "input_schema": {"type": "object"}}
    call = ToolCall(name="read_file", input={"path": "a.txt"})
    provider.enqueue(Scenario(tools=(call,)), Scenario(text="Read."))
    message = await say(unnamed, "Read it", tools=[own])
    offered = {tool["name"]: tool["description"] for tool in provider.requests[-1]["tools"]}
    assert offered["read_file"] == "Mine."
    assert len(offered) == len(provider.requests[-1]["tools"]) > 1
    said = ["Read it", answered(message.content), results_of(message)]
    assert (await say(unnamed, *said, tools=[own])).content[0].text == "Read."
    assert ("tool", "25") in await turns()


async def test_results_that_arrive_after_a_crash_become_a_message(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ROME,)), Scenario(text="Warm."))
    message = await say(unnamed, "And Rome?", tools=[WEATHER])
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.stop_run(session)
    await runtime.wait_idle(session.pk)
    # The states are those after a restart.
    await CallRecord.objects.aupdate(state="interrupted")
    await Run.objects.aupdate(state="interrupted")
    said = ["And Rome?", answered(message.content), results_of(message)]
    answer = await say(unnamed, *said, tools=[WEATHER])
    assert answer.content[0].text == "Warm."
    assert (await turns())[-2:] == [("user", "[Result of weather]\n25"), ("assistant", "Warm.")]


async def test_a_conversation_continues_after_an_answer_of_a_retry(
    unnamed: AsyncAnthropic, provider: WireThread
) -> None:
    said: list[Any] = ["What now?"]
    provider.enqueue(Scenario(text="Plant beans."), Scenario(words=40, error_after=20))
    await say(unnamed, *said)
    said += [answered("Plant beans."), "And then?"]
    provider.enqueue(Scenario(text="Water them."), Scenario(text="Welcome."))
    again = {"X-Stainless-Retry-Count": "1"}
    with pytest.raises(anthropic.InternalServerError):
        await say(unnamed, *said)
    await say(unnamed, *said, extra_headers=again)
    # Some programs send back the answers of both attempts.
    answers = [text for role, text in await turns() if role == "assistant"]
    provider.enqueue(Scenario(text="You too."))
    said += [answered(f"Water them. {answers[1][:20]}"), "Thank you."]
    await say(unnamed, *said)
    await say(unnamed, *said, answered("Welcome."), "Bye.")
    assert await Session.objects.acount() == 1
    await say(unnamed, *said, answered("Welcome! What else?"), "Bye.")
    assert await Session.objects.acount() == 2


@pytest.mark.parametrize("metadata", [None, {"user_id": "ann"}])
async def test_an_unanswered_first_message_is_stored_once(
    unnamed: AsyncAnthropic, provider: WireThread, metadata: dict[str, str] | None
) -> None:
    provider.enqueue(Scenario(status=500), Scenario(text="Plant beans."))
    more = {"metadata": metadata} if metadata else {}
    with pytest.raises(anthropic.InternalServerError):
        await say(unnamed, "What now?", **more)
    assert (await say(unnamed, "What now?", **more)).content[0].text == "Plant beans."
    assert [text for role, text in await turns() if role == "user"] == ["What now?"]
    await say(unnamed, "What now?", **more)  # a new message, because the first was answered
    assert [text for role, text in await turns() if role == "user"] == ["What now?"] * 2
