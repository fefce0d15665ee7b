"""Sessions with a model whose window has 2,048 tokens, in all protocols of its server."""

import json
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from benchmarks.script import make_words
from conversations.providers.config import ANTHROPIC, KINDS, OPENAI

from .conftest import WINDOW, Product, running_product

READ = "Read the file hello.txt."


def make_message(number: int, *, words: int) -> str:
    """Return a message. tests/real/tools.jinja has an example for its first line."""
    return f"Message {number}: what do you think?\n\n{make_words(words)}"


def base_of(llama: str, kind: str) -> str:
    return llama if kind == ANTHROPIC else f"{llama}/v1"


def read_calls(product: Product) -> list[dict[str, Any]]:
    """Return the model calls of the session's runs, with their manifests."""
    columns = "manifest, error_code, input_tokens, cache_read_tokens, output_tokens"
    rows = product.query(f"SELECT {columns} FROM conversations_modelcall ORDER BY id")
    names = columns.split(", ")
    calls = [dict(zip(names, row, strict=True)) for row in rows]
    return [call | json.loads(call["manifest"]) for call in calls if call["manifest"]]


def check_session(product: Product, texts: list[str]) -> None:
    """Check that all messages are archived in order and answered, without problems.

    No notice asks the person for something impossible, and no window was larger than the model's.
    """
    turns = product.turns()
    assert [turn["number"] for turn in turns] == list(range(1, len(turns) + 1))
    assert [turn["content"] for turn in turns if turn["role"] == "user"] == texts
    assert turns[-1]["role"] == "assistant"
    assert not [one for one in pairwise(turns) if {turn["role"] for turn in one} == {"user"}]
    rows = product.query(
        "SELECT seq, event_type, payload FROM conversations_chatevent ORDER BY seq"
    )
    assert [seq for seq, _, _ in rows] == list(range(1, len(rows) + 1))
    said = [json.loads(payload)["text"] for _, kind, payload in rows if kind == "user_message"]
    assert said == texts
    notices = [json.loads(payload) for _, kind, payload in rows if kind == "info"]
    assert [notice for notice in notices if notice["kind"] == "error"] == []
    assert [notice for notice in notices if not notice["action"]] == []
    assert product.query("SELECT state FROM conversations_run WHERE finished_at IS NULL") == []
    calls = read_calls(product)
    refused = [call["error_code"] for call in calls if call["error_code"]]
    assert refused in ([], ["context_window_exceeded"]), "how the server counts is learnt once"
    for call in calls:
        assert call["limit"] == WINDOW
        prompt = (call["input_tokens"] or 0) + (call["cache_read_tokens"] or 0)
        assert prompt + (call["output_tokens"] or 0) <= WINDOW
    assert product.server.problems() == []
    product.command("verify_archive", "--windows")


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_session_continues_after_tool_calls_and_a_killed_server(
    llama: str, tmp_path: Path, kind: str
) -> None:
    texts = [make_message(number, words=40 * number) for number in range(1, 13)]
    texts[1] = texts[8] = READ
    with running_product(tmp_path / "data", kind=kind, url=base_of(llama, kind)) as product:
        (product.folder / "hello.txt").write_text("The code is 42.\n")
        for number, text in enumerate(texts):
            if number == 5:
                run = product.send(text, key="killed-00001")
                product.wait(run, "running")
                product.server.kill()
                product.server.start()
                assert product.wait(run)["state"] == "interrupted"
                product.answer_again(key="again-000001")
            else:
                product.say(text, key=f"message-{number:05}")
        check_session(product, texts)
        turns = product.turns()
        places = [at for at, turn in enumerate(turns) if turn["content"] == READ]
        for at in places:
            roles = [turn["role"] for turn in turns[at : at + 4]]
            assert roles == ["user", "assistant", "tool", "assistant"]
            assert "The code is 42." in turns[at + 2]["content"]
        calls = read_calls(product)
        assert all(call["tools"] for call in calls)
        assert calls[-1]["floor"] > 1, "the window did move"


@pytest.mark.timeout(3_000)
def test_fifty_messages_of_500_words_are_answered_within_the_window(
    llama: str, tmp_path: Path
) -> None:
    texts = [make_message(number, words=500) for number in range(50)]
    began = monotonic()
    with running_product(tmp_path / "data", kind=OPENAI, url=base_of(llama, OPENAI)) as product:
        for number, text in enumerate(texts):
            product.say(text, key=f"message-{number:05}")
        seconds = monotonic() - began
        check_session(product, texts)
        calls = read_calls(product)
        print(f"{seconds:.0f} s, {len(calls)} calls")
