"""The demo model: it is labelled and deterministic, and its items are like a real model's."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from conversations.domain.errors import ProviderError
from conversations.domain.stream import (
    BlockCompleted,
    BlockDelta,
    BlockStarted,
    MessageCompleted,
    MessageStarted,
    ModelRequest,
    StreamItem,
)
from conversations.providers.demo import CONNECT, CONTENT, NOTES, DemoProvider, find_keyword, quote

TOOLS = [
    {
        "name": "list_files",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "query": {"type": "string"},
                "depth": {"type": "integer"},
                "kind": {"enum": ["file", "folder"]},
                "sort": {"type": "string", "default": "name"},
                "odd": {"type": ["string", "null"]},
                "optional": {"type": "boolean"},
            },
            "required": ["path", "query", "depth", "kind", "sort", "odd"],
        },
    },
    {"name": "conversation_recall", "input_schema": {"type": "object"}},
]


def make_request(*content: Any, tools: list[dict[str, Any]] | None = None) -> ModelRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": part} for n, part in enumerate(content)]
    return ModelRequest(model="demo", messages=messages, tools=tools or [])


async def read_all(request: ModelRequest) -> list[StreamItem]:
    return [item async for item in DemoProvider(delay=0).stream(request)]


async def answer(*content: Any, tools: list[dict[str, Any]] | None = None) -> MessageCompleted:
    last = (await read_all(make_request(*content, tools=tools)))[-1]
    assert isinstance(last, MessageCompleted)
    return last


def text_of(done: MessageCompleted) -> str:
    return "\n".join(block["text"] for block in done.blocks if block["type"] == "text")


@pytest.mark.asyncio
async def test_the_items_add_up_to_the_blocks() -> None:
    items = await read_all(make_request("think"))
    assert isinstance(items[0], MessageStarted)
    done = items[-1]
    assert isinstance(done, MessageCompleted)
    for index, block in enumerate(done.blocks):
        own = [i for i in items if getattr(i, "index", None) == index]
        assert isinstance(own[0], BlockStarted)
        assert own[0].block[block["type"]] == ""
        pieces = [i.text for i in own if isinstance(i, BlockDelta)]
        assert "".join(pieces) == block[block["type"]]
        assert max(len(piece) for piece in pieces) <= 4
        assert own[-1] == BlockCompleted(index=index, block=block)


@pytest.mark.asyncio
async def test_the_same_text_gets_the_same_answer() -> None:
    assert await read_all(make_request("hello")) == await read_all(make_request("hello"))


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["help", "long", "table", "code", "think", "tool", "What now?"])
async def test_every_answer_names_the_demo_and_how_to_connect_a_model(text: str) -> None:
    said = text_of(await answer(text))
    assert "demo model" in said
    assert CONNECT in said


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Help!", "## What the demo model can do"),
        ("show a table", "| archive |"),
        ("code", "```python"),
        ("Tell me of the weather in Spain", "> Tell me of the weather in Spain"),
        ("x" * 300, "x…"),
    ],
)
async def test_a_keyword_chooses_the_answer(text: str, part: str) -> None:
    assert part in text_of(await answer(text))


@pytest.mark.asyncio
async def test_a_long_answer_has_about_two_thousand_words() -> None:
    assert 1_900 < len(text_of(await answer("long")).split()) < 2_500


@pytest.mark.asyncio
async def test_thinking_comes_before_the_text() -> None:
    done = await answer("think")
    assert [block["type"] for block in done.blocks] == ["thinking", "text"]
    assert done.blocks[0]["signature"]


@pytest.mark.asyncio
async def test_the_first_tool_is_called_with_the_required_arguments() -> None:
    done = await answer("tool", tools=TOOLS)
    assert done.stop_reason == "tool_use"
    call = done.blocks[-1]
    assert (call["type"], call["name"]) == ("tool_use", "list_files")
    assert call["input"] == {
        "path": ".",
        "query": "tool",
        "depth": 1,
        "kind": "file",
        "sort": "name",
        "odd": "tool",
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["recall the plan", "tool conversation_recall"])
async def test_the_requested_tool_is_called(text: str) -> None:
    assert (await answer(text, tools=TOOLS)).blocks[-1]["name"] == "conversation_recall"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("Recall: the beans!", {"action": "search", "query": "the beans!"}),
        ("recall", {"action": "summary"}),
        ("tool conversation_recall", {"action": "summary"}),
    ],
)
async def test_recall_searches_for_the_requested_text(text: str, arguments: dict[str, str]) -> None:
    assert (await answer(text, tools=TOOLS)).blocks[-1]["input"] == arguments


OFFERED = [{"name": name} for name in ("list_files", "read_file", "write_file", "edit_file")]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("Files!", "list_files", {"path": "."}),
        ("read `docs/tools.md`, please", "read_file", {"path": "docs/tools.md"}),
        ("read", "read_file", {"path": "README.md"}),
        ("write notes.md", "write_file", {"path": "notes.md", "content": CONTENT}),
        ("edit", "edit_file", {"path": NOTES}),
    ],
)
async def test_keywords_call_the_file_tools(
    text: str, name: str, arguments: dict[str, str]
) -> None:
    call = (await answer(text, tools=OFFERED)).blocks[-1]
    assert call["name"] == name
    assert call["input"].items() >= arguments.items()


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["please read this", "write code", "read it all to me now", "run"])
async def test_other_messages_call_nothing(text: str) -> None:
    assert [b["type"] for b in (await answer(text, tools=OFFERED)).blocks][-1] == "text"


@pytest.mark.asyncio
@pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": "a\nb"}]])
async def test_the_output_of_a_tool_is_quoted(content: Any) -> None:
    first = await answer("tool", tools=TOOLS)
    call = first.blocks[-1]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
    done = await answer("tool", first.blocks, [result], tools=TOOLS)
    assert done.stop_reason == "end_turn"
    assert "```text\na\nb\n```" in text_of(done)


@pytest.mark.asyncio
async def test_the_answer_says_that_a_tool_failed() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": "no"}
    call = {"type": "tool_use", "id": "t", "name": "t", "input": {}}
    assert "It failed with:" in text_of(await answer("tool", [call], [result]))


@pytest.mark.asyncio
async def test_calls_of_one_provider_have_different_ids() -> None:
    provider = DemoProvider(delay=0)
    ids = set()
    for _ in range(3):
        items = [item async for item in provider.stream(make_request("tool", tools=TOOLS))]
        ids |= {i.block["id"] for i in items if isinstance(i, BlockCompleted) and i.index == 1}
    assert len(ids) == 3


@pytest.mark.asyncio
async def test_only_the_first_text_block_chooses_the_answer() -> None:
    content = [{"type": "text", "text": "table"}, {"type": "text", "text": "<state>help</state>"}]
    assert "| archive |" in text_of(await answer(content))


@pytest.mark.asyncio
async def test_the_keyword_fail_raises_an_overloaded_error() -> None:
    with pytest.raises(ProviderError) as caught:
        await read_all(make_request("fail"))
    assert caught.value.code == "overloaded"
    assert caught.value.transient


@pytest.mark.asyncio
async def test_an_empty_request_is_answered() -> None:
    assert "demo model" in text_of(await answer())


@pytest.mark.asyncio
async def test_a_slow_stream_can_be_cancelled() -> None:
    whole, read, has_begun = await read_all(make_request("long")), [], asyncio.Event()

    async def read_slowly() -> None:
        async for item in DemoProvider(delay=0.1).stream(make_request("long")):
            read.append(item)
            has_begun.set()

    task = asyncio.create_task(read_slowly())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(read) < len(whole)


@pytest.mark.asyncio
async def test_one_model_is_offered() -> None:
    provider = DemoProvider()
    (model,) = await provider.list_models()
    assert (model.id, model.max_input_tokens, model.max_output_tokens) == ("demo", 200_000, 8_192)
    assert provider.is_demo
    await provider.close()


def test_a_keyword_in_a_long_message_is_ignored() -> None:
    assert find_keyword("please write code for my new shop", {"code"}) is None
    assert find_keyword("Code, please!", {"code"}) == "code"


def test_a_quoted_fence_does_not_end_the_quote() -> None:
    assert quote("```\nx\n```").startswith("````text\n")


@pytest.mark.asyncio
async def test_stop_sequences_and_max_tokens_end_the_answer() -> None:
    request = make_request("think")
    whole = text_of((await read_all(request))[-1])  # type: ignore[arg-type]
    word = whole.split()[3]
    cut = (await read_all(replace(request, choices={"stop_sequences": ["#none#", word]})))[-1]
    assert isinstance(cut, MessageCompleted)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert text_of(cut) == whole[: whole.index(word)]
    short = (await read_all(replace(make_request("long"), max_tokens=10)))[-1]
    assert isinstance(short, MessageCompleted)
    assert (short.stop_reason, len(text_of(short))) == ("max_tokens", 40)
