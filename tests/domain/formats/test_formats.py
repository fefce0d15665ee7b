"""Conversion of other programs' messages to turns and back, without loss."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.errors import Rejected
from conversations.domain.formats import ANTHROPIC, OPENAI, READERS, WRITERS
from conversations.domain.formats.contents import difference, leave_closed, make_turn, restore
from conversations.domain.formats.messages_api import split_system
from conversations.domain.stream import SEALED
from conversations.domain.text import dump_json, is_storable
from conversations.domain.turns import AnyTurn, NewTurn, read_metadata, read_tool_calls
from tests.properties import costly

from . import samples

BOTH = (ANTHROPIC, OPENAI)


def read(name: str, messages: Sequence[Any]) -> list[NewTurn]:
    return list(READERS[name](messages))


def write(name: str, turns: Sequence[AnyTurn]) -> list[dict[str, Any]]:
    return [message for _, message in WRITERS[name](turns, leave_closed)]


def there_and_back(name: str, messages: Sequence[Any]) -> str:
    return json.dumps(write(name, read(name, messages)), sort_keys=True)


def exact(messages: Sequence[Any]) -> str:
    """Return the messages' JSON, in which 1, True and 1.0 are different."""
    return json.dumps(list(messages), sort_keys=True)


@given(samples.json_values, samples.json_values)
def test_a_difference_restores_one_value_from_another(written: Any, given: Any) -> None:
    assert exact([restore(written, difference(written, given))]) == exact([given])


@given(samples.json_values, samples.json_values)
def test_a_difference_that_does_not_fit_raises_no_error(written: Any, kept: Any) -> None:
    restore(written, kept)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (ANTHROPIC, samples.ANTHROPIC),
        (OPENAI, samples.OPENAI),
        (OPENAI, samples.CHAT_MESSAGES),
    ],
)
def test_documented_messages_are_restored_exactly(name: str, messages: list[Any]) -> None:
    assert there_and_back(name, messages) == exact(messages)


@costly
@given(samples.anthropic_messages)
def test_any_messages_of_the_messages_api_are_restored_exactly(messages: list[Any]) -> None:
    """The turns can also be stored, and written in the other format."""
    turns = read(ANTHROPIC, messages)
    assert json.dumps(write(ANTHROPIC, turns), sort_keys=True) == exact(messages)
    for turn in turns:
        columns = (turn.content, turn.blocks, turn.tool_calls, turn.tool_call_id, turn.metadata)
        assert all(is_storable(text) for text in columns if text is not None)
    assert len(write(OPENAI, turns)) == len(turns)


@costly
@given(samples.openai_messages)
def test_any_chat_messages_are_restored_exactly(messages: list[Any]) -> None:
    """The turns can also be written for the Messages API."""
    turns = read(OPENAI, messages)
    assert json.dumps(write(OPENAI, turns), sort_keys=True) == exact(messages)
    written = write(ANTHROPIC, turns)
    assert {message["role"] for message in written} <= {"user", "assistant", "system"}


inputs = st.dictionaries(st.text(max_size=5), samples.json_values, max_size=2)
storable = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@st.composite
def plain_turns(draw: st.DrawFn) -> list[NewTurn]:
    """Return exchanges as the runtime writes them: messages, answers with calls, results."""
    turns = []
    for number in range(draw(st.integers(1, 3))):
        turns.append(make_turn("user", draw(storable)))
        ids = [f"call_{number}_{place}" for place in range(draw(st.integers(0, 3)))]
        calls = [{"type": "tool_use", "id": i, "name": "look", "input": draw(inputs)} for i in ids]
        said = draw(storable.filter(str.strip))
        blocks = [{"type": "text", "text": said}, *calls]
        turns.append(make_turn("assistant", said, blocks=blocks, tool_calls=calls))
        for call_id in ids:
            ok = {"ok": draw(st.booleans())}
            result = draw(storable)
            turns.append(make_turn("tool", result, call_id=call_id, name="look", metadata=ok))
    return turns


def substance(turn: NewTurn) -> tuple[Any, ...]:
    """Return the fields of a turn that both formats can hold."""
    calls = [(call["id"], call["name"], call["input"]) for call in read_tool_calls(turn)]
    return turn.role, turn.content, dump_json(calls), turn.tool_call_id, turn.tool_name


@costly
@given(plain_turns())
def test_turns_are_restored_from_either_format(turns: list[NewTurn]) -> None:
    for name in BOTH:
        assert [substance(turn) for turn in read(name, write(name, turns))] == [
            substance(turn) for turn in turns
        ]


@costly
@given(plain_turns())
def test_failures_and_blocks_are_restored_from_the_messages_api(turns: list[NewTurn]) -> None:
    back = read(ANTHROPIC, write(ANTHROPIC, turns))
    assert [turn.blocks for turn in back] == [turn.blocks for turn in turns]
    failed = [read_metadata(turn).get("ok") is False for turn in turns]
    assert [read_metadata(turn).get("ok") is False for turn in back] == failed


def test_parallel_results_are_one_message_or_several_chat_messages() -> None:
    turns = read(ANTHROPIC, samples.ANTHROPIC[:4])
    assert [turn.role for turn in turns] == [
        "user", "assistant", "tool", "tool", "user", "assistant",
    ]  # fmt: skip
    assert [turn.tool_name for turn in turns[2:4]] == ["weather", "weather"]
    assert [read_metadata(turn)["ok"] for turn in turns[2:4]] == [True, False]
    assert [m["role"] for m in write(OPENAI, turns)] == [turn.role for turn in turns]
    assert [call["id"] for call in write(OPENAI, turns)[1]["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [m.get("tool_call_id") for m in write(OPENAI, turns)[2:4]] == ["toolu_1", "toolu_2"]


def test_chat_messages_become_blocks() -> None:
    written = write(ANTHROPIC, read(OPENAI, samples.OPENAI))
    assert [m["role"] for m in written[:5]] == ["system", "user", "assistant", "user", "assistant"]
    assert written[2]["content"] == [
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"place": "Paris"}},
        {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"text": '{"place": "Ro'}},
    ]
    assert [block["tool_use_id"] for block in written[3]["content"]] == ["call_1", "call_2"]
    _, image, remote, audio, document, file = written[5]["content"]
    assert image == samples.IMAGE
    assert remote["source"] == {"type": "url", "url": "https://example.org/a.png"}
    assert audio == {"type": "text", "text": "[input_audio]"}
    assert document["title"] == "a.pdf"
    assert file["source"] == {"type": "file", "file_id": "file-1"}


def test_blocks_become_parts_or_a_text_with_their_name() -> None:
    content = write(OPENAI, read(ANTHROPIC, samples.ANTHROPIC))[6]["content"]
    assert [part["type"] for part in content[:4]] == ["text", "image_url", "image_url", "file"]
    assert content[2]["image_url"]["url"] == f"data:image/png;base64,{samples.PNG}"
    search = [{"role": "user", "content": [{"type": "search_result", "title": "Roses"}]}]
    [message] = write(OPENAI, read(ANTHROPIC, search))
    assert message["content"] == [{"type": "text", "text": "[search_result: Roses]"}]


def test_input_that_is_no_json_keeps_its_text() -> None:
    block = {"type": "tool_use", "id": "a", "name": "look", "input": {"_unparsed": '{"x": '}}
    [message] = write(OPENAI, read(ANTHROPIC, [{"role": "assistant", "content": [block]}]))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": '
    assert message["content"] is None


def test_sealed_content_of_a_call_is_in_chat_messages_only() -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    blocks = [call | {SEALED: {"google": {"thought_signature": "SIG"}}}]
    turn = make_turn("assistant", "", blocks=blocks, tool_calls=blocks)
    [message] = write(OPENAI, [turn])
    assert message["tool_calls"][0][SEALED] == blocks[0][SEALED]
    [message] = write(ANTHROPIC, [turn])
    assert message["content"] == [call]


def test_cache_control_is_not_in_the_blocks_but_is_restored() -> None:
    [turn] = read(ANTHROPIC, [samples.ANTHROPIC[4]])
    assert "cache_control" not in (turn.blocks or "")
    assert "cache_control" in json.dumps(write(ANTHROPIC, [turn]))


def test_a_refusal_sets_the_stop_reason() -> None:
    turn = read(OPENAI, samples.OPENAI)[7]
    assert (turn.content, turn.stop_reason) == ("I cannot look at that.", "refusal")


def test_the_system_prompt_is_split_off() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *samples.ANTHROPIC]
    system, rest = split_system(write(ANTHROPIC, read(ANTHROPIC, messages)))
    assert system == [{"type": "text", "text": "Be brief."}]
    assert exact(rest) == exact(samples.ANTHROPIC)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "bad",
    [
        "Hello",
        {"content": "Hello"},
        {"role": "somebody", "content": "Hello"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["Hello"]},
        {"role": "user", "content": [{"text": "Hello"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "assistant", "content": [{"type": "text", "text": None}]},
        {"role": "assistant", "content": [{"type": "text"}]},
    ],
)
def test_an_invalid_message_is_refused_with_its_index(name: str, bad: Any) -> None:
    with pytest.raises(Rejected, match=r"messages\[1\]") as caught:
        read(name, [{"role": "user", "content": "Hello"}, bad])
    assert caught.value.code == "bad_message"


@pytest.mark.parametrize("name", BOTH)
def test_a_message_that_is_nested_too_deeply_is_refused(name: str) -> None:
    value: Any = []
    for _ in range(30_000):
        value = [value]
    with pytest.raises(Rejected, match="too deeply"):
        read(name, [{"role": "user", "content": "Hello", "more": value}])
    while value:  # freeing it at once would recurse too deeply as well
        value = value[0]
