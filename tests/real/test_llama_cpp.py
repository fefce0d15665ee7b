"""Sessions with a model that takes 2,048 tokens, in all protocols that its server speaks."""

from pathlib import Path

import pytest

from benchmarks.script import make_words
from conversations.providers.config import ANTHROPIC, KINDS, OPENAI

from .conftest import running_product


def make_message(number: int, words: int) -> str:
    return f"Message {number}. {make_words(words)} What do you think of that?"


def base_of(llama: str, kind: str) -> str:
    return llama if kind == ANTHROPIC else f"{llama}/v1"


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", KINDS)
def test_twelve_turns_with_tools_and_a_kill(llama: str, tmp_path: Path, kind: str) -> None:
    with running_product(tmp_path / "data", kind=kind, url=base_of(llama, kind)) as product:
        (product.folder / "hello.txt").write_text("The code is 42.\n")
        for number in range(1, 13):
            is_call = number in (2, 9)
            text = "Read the file hello.txt." if is_call else make_message(number, 40 * number)
            if number == 6:
                product.wait(product.send("Count to one hundred.", key="killed-00001"), "running")
                product.server.kill()
                product.server.start()
            product.say(text, key=f"message-{number:05}")
        turns = product.turns()
        assert len([turn for turn in turns if turn["role"] == "user"]) == 13
        read = [turn for turn in turns if turn["role"] == "tool"]
        assert len(read) >= 2
        assert all("The code is 42." in turn["content"] for turn in read)
        assert product.server.problems() == []
        product.command("verify_archive")


@pytest.mark.timeout(3_000)
def test_fifty_messages_of_five_hundred_words(llama: str, tmp_path: Path) -> None:
    with running_product(tmp_path / "data", kind=OPENAI, url=base_of(llama, OPENAI)) as product:
        for number in range(50):
            product.say(make_message(number, 500), key=f"message-{number:05}")
        product.command("verify_archive")
