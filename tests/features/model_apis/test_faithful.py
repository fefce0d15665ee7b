"""Each client gets only its own answer, once, and each of its messages is stored once."""

import asyncio
import base64
import gc
import json
from typing import Any
from uuid import uuid4

import anthropic
import pytest
from anthropic import AsyncAnthropic
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User

from conversations.features.model_apis import responses
from conversations.features.model_apis.anthropic_shapes import MessagesIn, read_request
from conversations.features.model_apis.anthropic_writing import MessageWriter
from conversations.features.model_apis.runs import RunAnswer
from conversations.models import Attachment, Run, Session
from conversations.runtime.access_refresh import STREAMS
from conversations.runtime.current import current_runtime
from loomweb.asgi import django_application
from tests.api.conftest import Program, token_of
from tests.archive.files import image_bytes
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MakeClient
from .test_choices import OLD_MODEL
from .test_client import WEATHER, answered, request, say, streamed, turns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

MESSAGES = "/api/v1/anthropic/garden/v1/messages"


async def test_a_client_that_waits_for_a_run_streams_only_its_own_answer(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="roses " * 30, first_delay=0.5), Scenario(text="herbs " * 3))
    first = asyncio.create_task(streamed(client, "one"))
    while not provider.requests:
        await asyncio.sleep(0.01)
    second = await streamed(client, "two")
    assert "roses" in (await first).content[0].text
    assert [block.text.strip() for block in second.content] == ["herbs herbs herbs"]


async def test_a_client_that_joins_between_two_texts_streams_both(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    look = ToolCall(name="list_files", input={})
    texts = ["I look at the files first.", "There are two beds and one pond in it."]
    provider.enqueue(
        Scenario(text=texts[0], tools=(look,)), Scenario(text=texts[1], rate=40, first_delay=1)
    )
    said = ("Hello", answered("Hi."), "Look")
    first = asyncio.create_task(streamed(client, *said))
    while len(provider.requests) < 2:
        await asyncio.sleep(0.01)
    second = await streamed(client, *said)
    assert [block.text for block in second.content] == texts
    assert [block.text for block in (await first).content] == texts


def written(frames: list[tuple[int, str]], *texts: str) -> list[str]:
    """Return the texts of a stream that wrote ``frames`` before the answer's ``texts`` were known.

    ``frames`` are pieces of drafts, each with the number of its part.
    """
    run = Run(uuid=uuid4())
    client_request = read_request(MessagesIn(**request("Look")))
    writer = MessageWriter(run=run, after_turn=0, client_request=client_request)
    events: list[str] = []
    for part, text in frames:
        events += writer.add_draft({"part": part, "offset": 0, "text": text, "run": str(run.uuid)})
    events += writer.finish(RunAnswer(blocks=[{"type": "text", "text": text} for text in texts]))
    found: dict[int, str] = {}
    for event in events:
        data = json.loads(event.partition("data: ")[2])
        if data["type"] == "content_block_delta":
            found[data["index"]] = found.get(data["index"], "") + data["delta"]["text"]
    return list(found.values())


def test_a_text_without_draft_does_not_shorten_a_streamed_text() -> None:
    texts = written([(2, "There are")], "I look at the files.", "There are two.")
    assert texts == ["There are two.", "I look at the files."]


def test_a_draft_that_was_thinking_does_not_repeat_the_answer() -> None:
    thought = "Which bed is free?\n"
    assert written([(0, thought), (1, "Plant")], "Plant beans.") == [thought, "Plant beans."]
    assert written([(0, thought)], "Plant beans.") == [thought, "Plant beans."]
    assert written([(0, "Two beds."), (1, thought)], "Two beds.", "Plant beans.") == [
        "Two beds.",
        thought,
        "Plant beans.",
    ]


async def test_thinking_begun_in_the_prompt_does_not_repeat_the_answer(
    client: AsyncAnthropic, several: WireThread
) -> None:
    look = ToolCall(name="list_files", input={})
    several.enqueue(
        Scenario(text="Let me see.\n</think>\n\nI look.", tools=(look,), rate=60),
        Scenario(text="Two beds.", rate=60),
    )
    message = await streamed(client, "Look", model=f"chat/{OLD_MODEL}")
    assert [block.text for block in message.content][-2:] == ["I look.", "Two beds."]
    assert len(message.content) <= 3  # with the thinking that was streamed as text


async def test_a_text_of_white_space_does_not_repeat_the_answer(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    look = ToolCall(name="list_files", input={})
    provider.enqueue(Scenario(text="\n\n", tools=(look,)), Scenario(text="Two beds.", rate=50))
    message = await streamed(client, "Look")
    assert [block.text for block in message.content if block.text.strip()] == ["Two beds."]


async def test_an_idempotency_key_of_another_message_is_refused(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    key = {"Idempotency-Key": "order-1"}
    await say(client, "one", extra_headers=key)
    with pytest.raises(anthropic.APIStatusError) as refused:
        await say(client, "two", extra_headers=key)
    assert refused.value.status_code == 400


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "order-1"}])
async def test_a_retry_without_a_session_key_is_stored_once(
    make_client: MakeClient, user: User, provider: WireThread, headers: dict[str, str]
) -> None:
    client = make_client(await sync_to_async(token_of)(user), retries=1)
    provider.enqueue(Scenario(status=529), Scenario(text="At last."))
    await say(client, "Hello", extra_headers=headers)
    assert await turns() == [("user", "Hello"), ("assistant", "At last.")]
    assert await Session.objects.acount() == 1
    await say(client, "Hello")
    assert await Session.objects.acount() == 2


async def test_a_retry_of_a_failed_message_keeps_the_turns_of_others(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:two")
    key = {"Idempotency-Key": "mine"}
    provider.enqueue(Scenario(status=500))
    with pytest.raises(anthropic.APIStatusError):
        await say(client, "first", extra_headers=key)
    provider.enqueue(Scenario(text="Other answer."))
    await say(client, "of another caller")
    provider.enqueue(Scenario(text="Mine now."))
    message = await say(client, "first", extra_headers=key)
    assert message.content[0].text == "Mine now."
    asked = str(provider.requests[-1]["messages"])
    assert "of another caller" in asked
    assert "Other answer." in asked


@pytest.mark.parametrize("ask", [say, streamed])
async def test_a_retry_contains_nothing_of_the_interrupted_answer(
    client: AsyncAnthropic, provider: WireThread, ask: Any
) -> None:
    provider.enqueue(Scenario(words=40, error_after=20), Scenario(text="Plant beans.", rate=40))
    with pytest.raises(anthropic.APIStatusError):
        await ask(client, "What now?")
    assert [role for role, _ in await turns()] == ["user", "assistant"], "a part was kept"
    message = await ask(client, "What now?")
    assert [block.text for block in message.content] == ["Plant beans."]


async def test_a_repeated_request_gets_its_answer_despite_a_newer_version(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="Plant beans."), Scenario(text="Plant peas."))
    said = ("Hello", answered("Hi."), "What now?")
    first = await say(client, *said)
    runtime, session = await current_runtime(), await Session.objects.aget()
    await runtime.regenerate(session, turn=3, client_id="page-1", user_pk=session.owner_id)
    await runtime.wait_idle(session.pk)
    assert (await turns())[-2:] == [("assistant", "Plant beans."), ("assistant", "Plant peas.")]
    assert (await say(client, *said)).content == first.content


async def test_messages_of_unsupported_roles_are_refused(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    for role in ({"role": "system"}, {"role": "tool"}, {"role": "banana"}, {}):
        with pytest.raises(anthropic.BadRequestError):
            await say(client, role | {"content": "obey"}, "Hello")
        assert await turns() == []


async def test_text_beside_results_is_answered_together_with_them(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    look = (ToolCall(name="weather", input={"place": "Rome"}),)
    provider.enqueue(Scenario(tools=look), Scenario(text="Warm, and beans."))
    first = await say(client, "And Rome?", tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    both = {"role": "user", "content": [result, {"type": "text", "text": "And what to sow?"}]}
    said = ["And Rome?", {"role": "assistant", "content": first.content}, both]
    message = await say(client, *said, tools=[WEATHER])
    assert message.content[0].text == "Warm, and beans."
    assert len(provider.requests) == 2
    given = provider.requests[-1]["messages"][-1]["content"]
    assert [block["type"] for block in given][:2] == ["tool_result", "text"]
    assert (await say(client, *said, tools=[WEATHER])).id == message.id
    assert len(await turns()) == 5


async def test_a_message_that_waits_for_results_can_be_sent_again(
    client: AsyncAnthropic, provider: WireThread
) -> None:
    provider.enqueue(Scenario(tools=(ToolCall(name="weather"),)), Scenario(text="Warm."))
    said = ("Hello", answered("Hi."), "And Rome?")
    first = await say(client, *said, tools=[WEATHER])
    again = await say(client, *said, tools=[WEATHER])
    assert again.content == first.content
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "25"}
    message = await say(client, {"role": "user", "content": [result]})
    assert message.content[0].text == "Warm."
    assert ("tool", "25") in await turns()


async def test_a_client_that_never_reads_its_stream_is_unsubscribed(
    user: User, provider: WireThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MAX_UNREAD_SECONDS", 0.1)
    program = Program(await sync_to_async(token_of)(user))
    asked = json.dumps(request("Look") | {"stream": True})
    await program.post(MESSAGES, asked, content_type="application/json")  # its body is not read
    runtime = await current_runtime()
    while runtime.hub.subscriber_count:
        await asyncio.sleep(0.02)
    await runtime.wait_idle((await Session.objects.aget()).pk)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_disconnect_during_a_stream_releases_all_resources(
    user: User, provider: WireThread, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "max_streams", 1)
    wrong: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: wrong.append(told["message"]))
    provider.enqueue(Scenario(text="Beans.", first_delay=60))
    headers = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Accept-Encoding": "gzip",
        "Authorization": f"Bearer {await sync_to_async(token_of)(user)}",
    }
    scope = {"type": "http", "method": "POST", "path": MESSAGES, "query_string": b""}
    scope |= {"headers": [(key.lower().encode(), value.encode()) for key, value in headers.items()]}
    asked, pieces = json.dumps(request("Look") | {"stream": True}).encode(), list[bytes]()
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": asked})

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            pieces.append(message["body"])
            if is_slow:  # the client does not read any more
                await asyncio.Event().wait()

    answering = asyncio.create_task(django_application(scope, received.get, send))
    while not (pieces and provider.requests):
        await asyncio.sleep(0.02)
    received.put_nowait({"type": "http.disconnect"})
    await answering
    runtime, session = await current_runtime(), await Session.objects.aget()
    assert pieces[0].startswith(b"event: message_start\n")
    assert runtime.hub.subscriber_count == 0
    runtime.limiter.require_room(STREAMS, user.pk)
    await runtime.stop_run(session)
    await runtime.wait_idle(session.pk)
    del answering
    gc.collect()
    assert wrong == []


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_withdrawn_message_is_answered_with_a_conflict_error(
    make_client: MakeClient, user: User, provider: WireThread, is_streamed: bool
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:one")
    provider.enqueue(Scenario(text="roses " * 30, first_delay=0.5))
    first = asyncio.create_task(say(client, "one"))
    while not provider.requests:
        await asyncio.sleep(0.01)
    send = streamed if is_streamed else say
    second = asyncio.create_task(send(client, "two", tools=[WEATHER]))
    while (run := await Run.objects.filter(state="queued").afirst()) is None:
        await asyncio.sleep(0.01)
    runtime = await current_runtime()
    await runtime.withdraw(await Session.objects.aget(), run=run.uuid, user_pk=user.pk)
    with pytest.raises(anthropic.APIStatusError, match="was withdrawn") as refused:
        await second
    assert refused.value.body["error"]["type"] == "conflict_error"
    assert not runtime.program_tools.requests
    await first


def spoken(*blocks: Any) -> dict[str, Any]:
    made = [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks]
    return {"role": "user", "content": made}


def image() -> dict[str, Any]:
    data = base64.b64encode(image_bytes()).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize("key", ["", "sdk:seen"])
async def test_an_image_before_its_question_is_sent_to_the_model(
    make_client: MakeClient, user: User, provider: WireThread, key: str
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key=key)
    provider.enqueue(*(Scenario(text=text) for text in ("Hi.", "A rose.", "Red.", "The same.")))
    said: list[Any] = ["Hello"]
    await say(client, *said)
    said += [answered("Hi."), spoken(image(), "What is this?")]
    await say(client, *said)
    assert "image" in [one["type"] for one in provider.requests[-1]["messages"][-1]["content"]]
    said += [answered("A rose."), spoken(image())]
    await say(client, *said)
    said += [answered("Red."), spoken(image(), "And this?")]
    await say(client, *said)
    assert await Attachment.objects.filter(turn_number__isnull=False).acount() == 3
    assert [text for role, text in await turns() if role == "user"] == [
        *("Hello", "What is this?", "", "And this?")
    ]
    assert await Session.objects.acount() == 1


async def test_an_answered_message_can_be_sent_again_with_more_content(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:beds")
    more = (spoken("Delete bed 3?", "Not yet."), spoken(image()), spoken(image(), "What is this?"))
    for said in ("Delete bed 3?", *more):
        await say(client, said)
    assert [text for role, text in await turns() if role == "user"] == [
        *("Delete bed 3?", "Delete bed 3?\n\nNot yet.", "", "What is this?")
    ]
    assert await Attachment.objects.filter(turn_number__isnull=False).acount() == 2


async def test_an_unanswered_message_is_not_stored_again_with_the_next(
    make_client: MakeClient, user: User, provider: WireThread
) -> None:
    client = make_client(await sync_to_async(token_of)(user), key="sdk:beds")
    provider.enqueue(Scenario(status=500), Scenario(status=500), Scenario(text="Yes."))
    both, key = ("Hello?", "Are you there?"), {"Idempotency-Key": "both"}
    with pytest.raises(anthropic.InternalServerError):
        await say(client, "Hello?")
    with pytest.raises(anthropic.InternalServerError):
        await say(client, *both, extra_headers=key)
    answers = [await say(client, *both, extra_headers=key) for _ in range(2)]
    assert answers[0].id == answers[1].id
    assert await turns() == [
        *(("user", "Hello?"), ("user", "Are you there?"), ("assistant", "Yes."))
    ]
