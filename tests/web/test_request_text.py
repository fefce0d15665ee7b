"""The text of a model request, which is shown in parts of limited size."""

from typing import Any

from conversations.domain.stream import ModelRequest
from conversations.domain.text import estimate_tokens, number_text
from conversations.web.model_calls import MAX_SHOWN_CHARS, PAGE_MESSAGES, make_page


def request(*texts: str, **fields: Any) -> ModelRequest:
    messages = [
        {"role": "assistant" if n % 2 else "user", "content": [{"type": "text", "text": text}]}
        for n, text in enumerate(texts)
    ]
    return ModelRequest(model="m", messages=messages, **fields)


def test_the_newest_messages_come_first_and_all_can_be_reached() -> None:
    long = request(*(f"message {n}" for n in range(1, 96)))
    page = make_page(long)
    assert (page["first"], page["last"], page["count"], page["later"]) == (76, 95, 95, None)
    seen = {text["key"] for text in page["messages"]}
    while page["earlier"] is not None:
        page = make_page(long, start=page["earlier"])
        seen |= {text["key"] for text in page["messages"]}
    assert len(seen) == 95
    assert make_page(long, start=1)["later"] == PAGE_MESSAGES + 1


def test_size_of_a_page_is_limited() -> None:
    page = make_page(request(*["x" * 500_000] * 60))
    assert sum(len(text["text"]) for text in page["messages"]) == PAGE_MESSAGES * MAX_SHOWN_CHARS
    assert page["messages"][0]["left_out"] == number_text(500_000 - MAX_SHOWN_CHARS)
    assert page["messages"][0]["tokens"] == number_text(estimate_tokens("x" * 500_000))


def test_one_text_can_be_shown_alone() -> None:
    one = request("a" * 9000, system=[{"type": "text", "text": "Be brief."}], tools=[{"name": "t"}])
    single = make_page(one, part="1")
    assert (len(single["messages"][0]["text"]), single["messages"][0]["left_out"]) == (9000, "")
    for key, text in (("system", "Be brief."), ("tools", '{"name":"t"}')):
        found = make_page(one, part=key)
        assert found["messages"] == []
        assert found["head"][0]["text"] == text
    for key in ("2", "0", "", "x", "-1", "²", "9" * 40):
        assert make_page(one, part=key) == make_page(one)


def test_blocks_that_are_not_text_are_shown_as_sent() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "tool_use", "id": "1", "name": "look", "input": {"path": "a"}},
    ]
    results = [{"type": "tool_result", "tool_use_id": "1", "content": "\ud800 broken"}]
    sent = ModelRequest(
        model="m",
        messages=[
            {"role": "user", "content": "plain"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results},
        ],
    )
    page = make_page(sent)
    assert [text["name"] for text in page["messages"]] == [
        *("1 · Person", "2 · Assistant", "3 · Tool result")
    ]
    assert '"name":"look"' in page["messages"][1]["text"]
    assert page["messages"][2]["text"] == "[tool_result 1]\n\ufffd broken"
    assert page["head"] == []
