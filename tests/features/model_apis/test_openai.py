"""OpenAI's APIs as clients use them through the openai SDK."""

import base64
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx2
import openai
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from openai import AsyncOpenAI
from pydantic import BaseModel

from conversations.models import Attachment, Run, Session, Turn
from loomweb.asgi import application
from tests.api.conftest import token_of
from tests.archive.files import image_bytes
from tests.wire.scenario import Scenario, ToolCall
from tests.wire.server import WireThread

from .conftest import MODEL
from .test_choices import OLD_MODEL
from .test_client import turns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("workspace")]

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
TOOL: Any = {"type": "function", "function": WEATHER}
FUNCTION: Any = {"type": "function", "strict": False} | WEATHER
ROME = ToolCall(name="weather", input={"place": "Rome"})


@pytest.fixture
async def client(provider: WireThread, user: User) -> AsyncIterator[AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=application))
    async with AsyncOpenAI(
        base_url="http://testserver/api/v1/openai/garden/v1",
        api_key=await sync_to_async(token_of)(user),
        max_retries=0,
        http_client=http,
    ) as made:
        yield made


async def chat(client: AsyncOpenAI, *messages: Any, **more: Any) -> Any:
    said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return await client.chat.completions.create(**({"model": MODEL, "messages": said} | more))


async def respond(client: AsyncOpenAI, said: Any, **more: Any) -> Any:
    return await client.responses.create(**({"model": MODEL, "input": said} | more))


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_a_completion_is_answered_and_kept(client: AsyncOpenAI, provider: WireThread) -> None:
    provider.enqueue(Scenario(text="Plant beans.", thinking="Which bed?"))
    done = await chat(client, system("You look after a garden."), "What now?")
    choice = done.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "Plant beans.")
    assert (choice.finish_reason, done.model, choice.message.tool_calls) == ("stop", MODEL, None)
    usage = done.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 2
    session = await Session.objects.aget()
    assert (session.key, session.channel) == (None, "openai")
    assert session.instructions == "You look after a garden."
    assert await turns() == [("user", "What now?"), ("assistant", "Plant beans.")]


async def test_a_conversation_that_is_sent_whole_continues_its_session(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    said: list[Any] = [system("Be brief.")]
    for text in ("one", "two", "three"):
        said.append({"role": "user", "content": text})
        said.append(answered((await chat(client, *said)).choices[0].message.content))
    assert await Session.objects.acount() == 1
    assert [text for role, text in await turns() if role == "user"] == ["one", "two", "three"]
    # Conversations with another answer or another last message are other sessions.
    await chat(client, *said[:2], answered("Something else."), "two")
    await chat(client, *said[:5], {"role": "user", "content": "four"})
    assert await Session.objects.acount() == 3
    last = await Session.objects.order_by("-pk").afirst()
    texts = [turn.content async for turn in last.turns.filter(role="user").order_by("number")]
    assert texts == ["one", "two", "four"]


async def test_the_stream_has_the_chunks_of_the_api(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    provider.enqueue(Scenario(words=60, rate=400, thinking="Which words?"))
    texts, reasons, usages = [], [], []
    stream = await chat(client, "Go on", stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            reasons.append(choice.finish_reason)
        usages.append(chunk.usage)
    assert len(texts) > 3
    assert "".join(texts) == (await turns())[1][1]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert usages[-1].completion_tokens > 0
    assert not any(usages[:-1])


@pytest.mark.parametrize("streams", [False, True])
async def test_the_client_executes_its_own_functions(
    client: AsyncOpenAI, provider: WireThread, streams: bool
) -> None:
    provider.enqueue(Scenario(text="I look.", tools=(ROME, ROME)), Scenario(text="Warm."))

    async def say(*said: Any) -> Any:
        if not streams:
            return (await chat(client, *said, tools=[TOOL])).choices[0]
        asked: Any = {"model": MODEL, "messages": list(said), "tools": [TOOL]}
        async with client.chat.completions.stream(**asked) as stream:
            return (await stream.get_final_completion()).choices[0]

    question = {"role": "user", "content": "And Rome?"}
    choice = await say(question)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    calls = choice.message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"place":"Rome"}'] * 2
    message = choice.message.to_dict()
    message.pop("parsed", None)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "25"} for call in calls]
    choice = await say(question, message, *results)
    assert (choice.finish_reason, choice.message.content) == ("stop", "Warm.")
    assert [role for role, _ in await turns()] == ["user", "assistant", "tool", "tool", "assistant"]
    assert await Session.objects.acount() == 1


async def test_outputs_are_answered_when_sent_again_after_a_failure(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    failed, warm = Scenario(status=529), Scenario(text="Warm.")
    provider.enqueue(Scenario(tools=(ROME,)), failed, warm)
    first = (await chat(client, "And Rome?", tools=[TOOL])).choices[0].message
    call = first.tool_calls[0].id
    result = {"role": "tool", "tool_call_id": call, "content": "25"}
    said = ["And Rome?", first.to_dict(), result]
    with pytest.raises(openai.InternalServerError):
        await chat(client, *said, tools=[TOOL])
    assert (await chat(client, *said, tools=[TOOL])).choices[0].message.content == "Warm."
    provider.enqueue(Scenario(tools=(ROME,)), failed, warm)
    response = await respond(client, "And Rome now?", tools=[FUNCTION])
    output = [
        {"type": "function_call_output", "call_id": response.output[0].call_id, "output": "26"}
    ]
    more: dict[str, Any] = {"previous_response_id": response.id, "tools": [FUNCTION]}
    with pytest.raises(openai.InternalServerError):
        await respond(client, output, **more)
    answers = [await respond(client, output, **more) for _ in range(2)]
    assert [one.output_text for one in answers] == ["Warm.", "Warm."]
    assert "26" in str(provider.requests[-1]["messages"])


async def test_parameters_are_passed_on_to_the_model(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    class Bed(BaseModel):
        plant: str

    provider.enqueue(Scenario(text='{"plant":"bean"}'))
    done = await client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Which plant?"}],
        response_format=Bed,
        max_completion_tokens=50,
        stop="END",
        temperature=0.3,
        reasoning_effort="low",
        tools=[TOOL | {"function": WEATHER | {"strict": True}}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
        user="ann",
        seed=1,
        n=1,
        frequency_penalty=0,
    )
    assert done.choices[0].message.parsed == Bed(plant="bean")
    sent = provider.requests[-1]
    assert sent["max_tokens"] == 50
    assert sent["stop_sequences"] == ["END"]
    assert "temperature" not in sent, "the model does not take one"
    assert sent["output_config"]["effort"] == "low"
    assert sent["output_config"]["format"]["schema"]["required"] == ["plant"]
    forced = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    assert sent["tool_choice"] == forced
    await chat(client, "Hello", model="claude-haiku-4-5", temperature=1.8)
    assert provider.requests[-1]["temperature"] == 1


async def test_temperature_is_adapted_to_the_models_of_every_provider(
    client: AsyncOpenAI, several: WireThread
) -> None:
    await chat(client, "Hello", model=f"second/{OLD_MODEL}", temperature=1.8)
    assert several.requests[-1]["temperature"] == 1
    await chat(client, "Hello again", model=f"second/{MODEL}", temperature=0.2)
    assert "temperature" not in several.requests[-1]


@pytest.mark.parametrize("strict", [True, False, None])
async def test_a_format_is_as_strict_as_the_client_requests(
    client: AsyncOpenAI, several: WireThread, strict: bool | None
) -> None:
    names = ["bed", "plant"] if strict else ["plant"]
    properties = {name: {"type": "string"} for name in ("bed", "plant")}
    wished: dict[str, Any] = {
        "name": "Bed",
        "schema": {
            "type": "object",
            "properties": properties,
            "required": names,
            "additionalProperties": False,
        },
    } | ({} if strict is None else {"strict": strict})
    asked: dict[str, Any] = {"response_format": schema(wished)}
    await chat(client, "Which plant?", model=f"chat/{OLD_MODEL}", **asked)
    sent = several.requests[-1]["response_format"]["json_schema"]
    assert (sent["schema"], sent["strict"]) == (wished["schema"], bool(strict))
    await chat(client, "Which one?", **asked)
    assert several.requests[-1]["output_config"]["format"] == {
        "type": "json_schema",
        "schema": wished["schema"],
    }
    text = {"format": {"type": "json_schema"} | wished}
    await respond(client, "Which?", model=f"responses/{OLD_MODEL}", text=text)
    assert several.requests[-1]["text"]["format"]["strict"] is bool(strict)


NOT_TO_BE_HAD: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n: This is not supported here"),
    ({"logprobs": True}, "logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format: It must be text or"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, r"tools\[0\]: Tools of type"),
    ({"tool_choice": "required"}, "tool_choice: Forcing a call needs tools"),
    ({"reasoning_effort": "utmost"}, "reasoning_effort"),
    ({"stop": ["\n"]}, "stop: Each must"),
    ({"messages": [answered("Hi.")]}, "The last message must be"),
    ({"messages": [{"role": "critic", "content": "Hi."}]}, r"messages\[0\]: Its role"),
    ({"messages": [{"role": "user", "content": " "}]}, "The message is empty"),
    (
        {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "25"}]},
        "There is no call call_1",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
                    ],
                }
            ]
        },
        "URLs are not loaded",
    ),
]


async def test_unsupported_parameters_are_refused_with_the_reason(client: AsyncOpenAI) -> None:
    for more, reason in NOT_TO_BE_HAD:
        with pytest.raises(openai.BadRequestError, match=reason) as refused:
            await chat(client, "Hello", **more)
        assert refused.value.type == "invalid_request_error"
    assert not await Turn.objects.aexists()


def named(function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


ODD_VALUES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(
        ("tool_choice", {"tool_choice": named(odd)}, {"tool_choice": named(odd)})
        for odd in (None, 5, "name", [], {"name": None})
    ),
    *(
        ("response_format", {"response_format": schema(odd)}, {"text": {"format": schema(odd)}})
        for odd in (None, "x", [], {"schema": 5})
    ),
    *(
        ("reasoning_effort", {"reasoning_effort": "some"}, {"reasoning": {"effort": odd}})
        for odd in ([], {}, ["low"], 5)
    ),
]


async def test_invalid_values_are_refused_with_the_parameters_name(client: AsyncOpenAI) -> None:
    for param, of_chat, of_response in ODD_VALUES:
        with pytest.raises(openai.BadRequestError) as chatted:
            await chat(client, "Hello", **of_chat)
        with pytest.raises(openai.BadRequestError) as responded:
            await respond(client, "Hello", **of_response)
        for refused in (chatted.value, responded.value):
            assert (refused.type, refused.param) == ("invalid_request_error", param)


async def test_values_of_a_wrong_type_are_refused_with_their_path(
    client: AsyncOpenAI,
) -> None:
    for more, param, words in (
        ({"stop": [5]}, "stop", "stop: Input should be a valid string; stop[0]: Input should"),
        ({"messages": ["Hi."]}, "messages[0]", "messages[0]: Input should be"),
        ({"stream_options": {"include_usage": 5}}, *["stream_options.include_usage"] * 2),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await chat(client, "Hello", **more)
        assert refused.value.param == param
        assert refused.value.body["message"].startswith(words)


async def test_a_null_parameter_counts_as_missing(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    nothing = ("tools", "tool_choice", "stop", "n", "max_tokens", "temperature", "response_format")
    await chat(client, "Hello", **dict.fromkeys(nothing), stream_options={"include_usage": None})
    await respond(client, "Hello", tools=None, text=None, instructions=None)
    assert len(provider.requests) == 2


async def test_invalid_answers_in_the_input_are_refused_with_their_path(
    client: AsyncOpenAI,
) -> None:
    odds: list[Any] = [5, True, {"a": 1}]
    for odd, at in product(odds, (0, 1)):
        contents = ["Hi."]
        contents.insert(at, odd)
        items = [{"role": "user", "content": "Hello"}, *map(answered, contents)]
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(client, [*items, {"role": "user", "content": "And now?"}])
        assert refused.value.type == "invalid_request_error"
        assert refused.value.param == f"input[{at + 1}]"


async def test_errors_raise_the_exceptions_of_the_sdk(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    with pytest.raises(openai.AuthenticationError):
        await chat(client.with_options(api_key="loom_wrong"), "Hello")
    with pytest.raises(openai.NotFoundError, match="gpt") as unknown:
        await chat(client, "Hello", model="gpt")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as missing:
        await client.post("/chat/completions", cast_to=dict, body={"model": MODEL})
    assert missing.value.param == "messages"
    provider.enqueue(Scenario(status=529), Scenario(status=429), Scenario(status=500))
    with pytest.raises(openai.InternalServerError, match="overloaded") as overloaded:
        await chat(client, "one")
    assert overloaded.value.status_code == 503
    with pytest.raises(openai.RateLimitError):
        await chat(client, "two")
    with pytest.raises(openai.APIError):
        async for _ in await chat(client, "three", stream=True):
            pass


async def test_a_refusal_is_reported_as_content_filter(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    refusal = Scenario(text="I cannot help.", stop_reason="refusal")
    provider.enqueue(refusal, refusal)
    choice = (await chat(client, "Hello")).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("content_filter", "I cannot help.")
    response = await respond(client, "Hello?")
    assert (response.status, response.output_text) == ("incomplete", "I cannot help.")
    assert response.incomplete_details.reason == "content_filter"


async def test_images_are_sent_to_the_model(client: AsyncOpenAI, provider: WireThread) -> None:
    url = "data:image/png;base64," + base64.b64encode(image_bytes()).decode()
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    await chat(client, {"role": "user", "content": parts})
    items = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": url, "detail": "auto"},
            ],
        }
    ]
    await respond(client, items)
    assert await Attachment.objects.filter(turn_number=1).acount() == 2
    sent = provider.requests[-1]["messages"][0]["content"]
    assert [block["type"] for block in sent if block["type"] == "image"] == ["image"]


async def test_images_and_files_in_results_are_sent_to_the_model(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    image = "data:image/png;base64," + base64.b64encode(image_bytes()).decode()
    plain = "data:text/plain;base64," + base64.b64encode(b"Sow now.").decode()
    provider.enqueue(*[Scenario(tools=(ROME,)), Scenario(text="Warm.")] * 2)
    response = await respond(client, "And Rome?", tools=[FUNCTION])
    output = [
        {"type": "input_text", "text": "A picture"},
        {"type": "input_image", "image_url": image},
        {"type": "input_file", "filename": "beds.txt", "file_data": plain},
    ]
    call_id = response.output[0].call_id
    result = {"type": "function_call_output", "call_id": call_id, "output": output}
    response = await respond(client, [result], previous_response_id=response.id)
    assert response.output_text == "Warm."
    given = str(provider.requests[-1]["messages"])
    assert "'type': 'image'" in given
    assert "Sow now." in given
    message = (await chat(client, "And Rome now?", tools=[TOOL])).choices[0].message
    parts = [{"type": "image_url", "image_url": {"url": image}}]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": parts}
    assert (await chat(client, result)).choices[0].message.content == "Warm."
    assert await Attachment.objects.acount() == 3


async def test_the_available_models_are_listed(client: AsyncOpenAI) -> None:
    await chat(client, "Hello")
    assert MODEL in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve(MODEL)).object == "model"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt/4")


# Responses


async def test_a_response_is_answered_and_can_be_continued(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="Plant beans."), Scenario(text="Water them."))
    first = await respond(client, "What now?", instructions="You look after a garden.")
    assert (first.output_text, first.status) == ("Plant beans.", "completed")
    assert first.instructions == "You look after a garden."
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    second = await respond(client, "And then?", previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("Water them.", first.id)
    assert await Session.objects.acount() == 1
    assert [text for _, text in await turns()] == [
        *("What now?", "Plant beans.", "And then?", "Water them.")
    ]
    with pytest.raises(openai.ConflictError, match="later messages"):
        await respond(client, "Or else?", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="not found") as unknown:
        await respond(client, "Or else?", previous_response_id="resp_1")
    assert unknown.value.code == "previous_response_not_found"


async def test_a_response_is_streamed_as_events(client: AsyncOpenAI, provider: WireThread) -> None:
    provider.enqueue(Scenario(words=60, rate=400, tools=(ROME,)), Scenario(text="Warm."))
    events = []
    asked: Any = {"model": MODEL, "input": "And Rome?", "tools": [FUNCTION]}
    async with client.responses.stream(**asked) as stream:
        events += [event async for event in stream]
        response = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert kinds.count("output_text.delta") > 3
    message, call = response.output
    assert message.content[0].text == (await turns())[1][1]
    assert (call.name, call.arguments) == ("weather", '{"place":"Rome"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "25"}
    more: Any = {"previous_response_id": response.id, "tools": [FUNCTION]}
    assert (await respond(client, [output], **more)).output_text == "Warm."
    assert await Session.objects.acount() == 1


async def test_items_that_are_sent_whole_continue_their_session(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    provider.enqueue(
        *(Scenario(text="I look.", tools=(ROME,)), Scenario(text="Warm."), Scenario(text="Yes."))
    )
    items: list[Any] = [{"role": "user", "content": "And Rome?"}]
    more: Any = {"tools": [FUNCTION], "store": False, "include": ["reasoning.encrypted_content"]}
    response = await respond(client, items, **more)
    items += [item.to_dict() for item in response.output]
    call = response.output[-1]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "25"})
    response = await respond(client, items, **more)
    assert response.output_text == "Warm."
    items += [item.to_dict() for item in response.output]
    items.append({"type": "message", "role": "user", "content": "Really?"})
    assert (await respond(client, items, **more)).output_text == "Yes."
    assert await Session.objects.acount() == 1
    assert [role for role, _ in await turns()] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]


async def test_item_references_identify_the_session(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    provider.enqueue(
        *(Scenario(text="I look.", tools=(ROME,)), Scenario(text="Warm."), Scenario(text="Yes."))
    )

    def refer(response: Any) -> list[Any]:
        return [{"type": "item_reference", "id": item.id} for item in response.output]

    items: list[Any] = [{"role": "user", "content": "And Rome?"}]
    response = await respond(client, items, tools=[FUNCTION])
    call = response.output[-1]
    items += refer(response)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "25"})
    response = await respond(client, items, tools=[FUNCTION])
    items += [*refer(response), {"role": "user", "content": "Really?"}]
    assert (await respond(client, items, tools=[FUNCTION])).output_text == "Yes."
    assert await Session.objects.acount() == 1
    assert [role for role, _ in await turns()] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant")
    ]


NO_RESPONSE: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: Tools of type web_search"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, r"input\[0\]: Items of type"),
    ({"text": {"format": {"type": "json_object"}}}, "format"),
    ({"input": []}, "The last message"),
]


async def test_unsupported_parameters_of_a_response_are_refused(client: AsyncOpenAI) -> None:
    for more, reason in NO_RESPONSE:
        with pytest.raises(openai.BadRequestError, match=reason):
            await respond(client, "Hello", **more)
    assert not await Run.objects.aexists()


async def test_a_truncated_or_failed_response_says_so(
    client: AsyncOpenAI, provider: WireThread
) -> None:
    provider.enqueue(Scenario(text="Beans and", stop_reason="max_tokens"))
    response = await respond(client, "What now?", max_output_tokens=5)
    assert (response.status, response.incomplete_details.reason) == (
        *("incomplete", "max_output_tokens"),
    )
    provider.enqueue(Scenario(status=500))
    kinds = [event.type async for event in await respond(client, "And now?", stream=True)]
    assert kinds[-1] == "response.failed"
