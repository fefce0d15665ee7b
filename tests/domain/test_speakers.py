"""Who is called so in a conversation of two."""

import pytest

from conversations.search.best import find_speaker, is_name


@pytest.mark.parametrize("word", ["Ann", "Zoë", "Ольга"])
def test_a_capital_and_small_letters_can_be_a_name(word: str) -> None:
    assert is_name(word)


@pytest.mark.parametrize("word", ["ann", "A", "HTTP", "fitToWindow", "v2", "Ann2", "auth.py", ""])
def test_other_words_are_none(word: str) -> None:
    assert not is_name(word)


def test_turns_that_begin_with_a_name_are_theirs() -> None:
    turns = [("user", "Ann: hello"), ("assistant", "Bob: hi, Ann!")] * 6
    assert find_speaker("Ann", turns) == "user"
    assert find_speaker("Bob", turns) == "assistant"


def test_who_is_addressed_is_the_other_side() -> None:
    turns = [("assistant", "Thanks, Ann!"), ("assistant", "Ann, look."), ("user", "Me?")] * 3
    assert find_speaker("Ann", turns) == "user"


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [("assistant", "Thanks, Ann!")] * 4,
        [("assistant", "I told Ann about it")] * 20,
        [("assistant", "Hi, Ann!"), ("user", "Hi, Ann!")] * 10,
        [("tool", "Ann: 1")] * 20,
        [("user", "Ann: 1"), ("assistant", "Ann: 2")] * 10,
    ],
)
def test_what_does_not_show_it_says_nothing(turns: list[tuple[str, str]]) -> None:
    assert find_speaker("Ann", turns) is None
