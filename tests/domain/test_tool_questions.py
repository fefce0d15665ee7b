"""Questions of tool servers to people, and the answers."""

from typing import Any

import pytest

from conversations.domain.errors import Rejected
from conversations.domain.tool_questions import (
    BadQuestion,
    ToolQuestion,
    make_question,
    read_content,
    read_question,
)

TEXT = {"type": "text", "text": "Why?"}

PROPERTIES: dict[str, Any] = {
    "name": {"type": "string", "title": "Your name", "minLength": 2, "default": "Ann"},
    "mail": {"type": "string", "format": "email"},
    "beds": {"type": "integer", "minimum": 1, "maximum": 9},
    "width": {"type": "number"},
    "sunny": {"type": "boolean", "default": True},
    "soil": {"type": "string", "enum": ["sand", "clay"], "enumNames": ["Sand", "Clay"]},
    "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l"}]},
    "tools": {"type": "array", "items": {"enum": ["spade", "rake"]}, "maxItems": 1},
}


def ask(required: list[str] | None = None, **properties: Any) -> ToolQuestion:
    schema = {"type": "object", "properties": properties, "required": required or []}
    asked = {"message": "Which?", "requestedSchema": schema}
    return make_question(asked, call="c", server="almanac")


def test_fields_are_read_from_the_schema() -> None:
    question = ask(["name"], **PROPERTIES)
    assert [(one.name, one.kind) for one in question.fields] == [
        *(("name", "text"), ("mail", "text"), ("beds", "whole"), ("width", "number")),
        *(("sunny", "flag"), ("soil", "one"), ("size", "one"), ("tools", "several")),
    ]
    name, _, beds, _, sunny, soil, size, _ = question.fields
    assert (name.title, name.is_required, name.default, name.least) == ("Your name", True, "Ann", 2)
    assert (beds.least, beds.most, sunny.default) == (1, 9, True)
    assert soil.choices == [("sand", "Sand"), ("clay", "Clay")]
    assert size.choices == [("s", "Small"), ("l", "l")]
    assert read_question(question.as_data()) == question


@pytest.mark.parametrize("data", [None, {}, {"fields": 5}, {"fields": [{}]}, {"fields": [3]}])
def test_invalid_data_is_no_question(data: Any) -> None:
    assert read_question(data) is None


def test_answers_are_read_from_form_texts_and_from_values() -> None:
    question = ask(["name", "sunny"], **PROPERTIES)
    given = {"name": "Bob", "beds": "3", "width": "1.5", "soil": "clay", "sunny": ""}
    read = {"name": "Bob", "beds": 3, "width": 1.5, "sunny": False, "soil": "clay"}
    assert read_content(question, given) == read
    given = {"name": "Bob", "sunny": "on", "tools": "rake", "mail": ""}
    assert read_content(question, given) == {"name": "Bob", "sunny": True, "tools": ["rake"]}


def test_missing_answers_get_their_default() -> None:
    question = ask(["name"], **PROPERTIES)
    assert read_content(question, {}) == {"name": "Ann", "sunny": True}
    given = {"name": "Bob", "sunny": "", "size": ""}
    assert read_content(question, given) == {"name": "Bob"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": ""}, "“Your name” is required."),
        ({"name": "B"}, "“Your name” must have at least 2 characters."),
        ({"name": 5}, "“Your name” must be text."),
        ({"name": "Bo\0b"}, "“Your name” must be text."),
        ({"name": "x" * 10_001}, "“Your name” can have at most 10\u202f000 characters."),
        ({"name": "Bob", "mail": "bob"}, "“mail” must be an e-mail address."),
        ({"name": "Bob", "beds": "many"}, "“beds” must be a number."),
        ({"name": "Bob", "beds": "1e999"}, "“beds” must be a number."),
        ({"name": "Bob", "beds": "1.5"}, "“beds” must be a whole number."),
        ({"name": "Bob", "beds": 10}, "“beds” must be at most 9."),
        ({"name": "Bob", "soil": "loam"}, "Choose one of the options for “soil”."),
        ({"name": "Bob", "tools": ["spade", "rake"]}, "Choose at most 1 option for “tools”."),
        ({"name": "Bob", "tools": [{}]}, "Choose one of the options for “tools”."),
        ({"name": []}, "“Your name” is required."),
    ],
)
def test_invalid_answers_are_refused_with_the_name_of_the_field(given: Any, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_content(ask(["name"], **PROPERTIES), given)
    assert refused.value.message == reason


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"requestedSchema": {"type": "object"}},
        {"requestedSchema": {"properties": {"bed": {"type": "object"}}}},
        {"requestedSchema": {"properties": {"bed": 5}}},
        {"requestedSchema": {"properties": {"beds": {"type": "array", "items": {}}}}},
        {"requestedSchema": {"properties": {str(n): {"type": "string"} for n in range(21)}}},
        {"mode": "url", "url": "javascript:alert(1)"},
        {"mode": "url", "url": "https://a b"},
        {"mode": "url"},
    ],
)
def test_a_question_that_cannot_be_shown_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion):
        make_question({"message": "?"} | asked, call="c", server="almanac")


def test_the_address_of_a_question_is_unchanged() -> None:
    asked = {"mode": "url", "message": "Sign in", "url": "https://example.org/?a=1"}
    question = make_question(asked, call="c", server="almanac")
    assert (question.url, question.fields) == ("https://example.org/?a=1", [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": []}, "last message must be"),
        ({"messages": [{"role": "assistant", "content": TEXT}]}, "last message must be"),
        ({"messages": [{"role": "user", "content": TEXT | {"text": " "}}]}, "is empty"),
        ({"messages": [{"role": "user", "content": {"type": "image"}}]}, "text only"),
        ({"tools": [{"name": "read"}]}, "not given tools"),
        ({"systemPrompt": "x" * 100_001}, "at most 100,000 characters"),
    ],
)
def test_an_invalid_sampling_request_is_refused(change: dict[str, Any], reason: str) -> None:
    asked = {"mode": "sampling", "model": "m", "maxTokens": 5}
    asked |= {"messages": [{"role": "user", "content": TEXT}]}
    assert make_question(asked, call="c", server="s").prompt["messages"][0]["text"] == "Why?"
    with pytest.raises(BadQuestion, match=reason):
        make_question(asked | change, call="c", server="s")
