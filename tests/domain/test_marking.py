"""Marking of the words of a text that match a query, by the words of the index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.search_tokens import read_tokens
from conversations.search.query import mark_words, parse_query, snippet


def marked(text: str, query: str) -> list[str]:
    return [piece for piece, is_match in mark_words(text, parse_query(query)) if is_match]


@pytest.mark.parametrize(
    ("text", "query", "words"),
    [
        ("The beans, the Bean.", "bean", ["beans", "Bean"]),
        ("She went home", "go", ["went"]),
        ("call fitToContextWindow()", "context window", ["fitToContextWindow"]),
        ("Die Straße", "strasse", ["Straße"]),
        ("我们使用数据库工作", "数据库", ["数据库"]),
        ("用Python写", "python", ["Python"]),
        ("the red door and a door, red", '"red door"', ["red", "door"]),
        ("what is it about plums", "what is the plum", ["plums"]),
        ("nothing here", "plum", []),
        ("a role:user plum", "plum role:user", ["plum"]),
    ],
)
def test_matching_words_are_marked(text: str, query: str, words: list[str]) -> None:
    assert marked(text, query) == words


@given(text=st.text(max_size=200), query=st.text(max_size=40))
def test_the_marked_pieces_add_up_to_the_text(text: str, query: str) -> None:
    asked = parse_query(query)
    assert "".join(piece for piece, _ in mark_words(text, asked)) == text
    assert len(snippet(text, asked, limit=50)) <= 50


@given(text=st.text(max_size=300))
def test_tokens_are_letters_and_digits_of_limited_length(text: str) -> None:
    for token in read_tokens(text):
        assert 0 < len(token) <= 64
        assert all(not c.isascii() or c.isalnum() for c in token)
        assert "\x00" not in token
        assert not any("\ud800" <= c <= "\udfff" for c in token)


def test_a_snippet_shows_the_place_with_the_most_words() -> None:
    text = "beans " + "filler " * 100 + "beans beside the peas " + "filler " * 100
    found = snippet(text, parse_query("beans peas"), limit=60)
    assert "beans beside the peas" in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert snippet("short text", parse_query("peas"), limit=60) == "short text"


@given(st.text(max_size=200))
def test_any_text_is_a_query(text: str) -> None:
    query = parse_query(text)
    assert len(query.tokens) <= 40


def test_filters_are_read_and_invalid_ones_are_words() -> None:
    query = parse_query('bean role:user tool:"my tool" after:7 before:2026-02-30 role:king in:')
    assert query.roles == ("user",)
    assert query.tools == ("my tool",)
    assert query.from_turn == 8
    assert query.before_moment is None
    assert [word.text for word in query.words] == [
        "bean",
        "before",
        "2026-02-30",
        "role",
        "king",
        "in",
    ]
