"""Text in the columns of a terminal: its width and its line breaks."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.features.terminal.screen import LineWrapper, char_width, fit, text_width

ORDINARY = st.text(alphabet=" \nabc.,é中文。👩\u200d💻e\u0301`|", max_size=200)


def wrap(text: str, width: int) -> str:
    wrapper = LineWrapper(width)
    return wrapper.feed(text) + wrapper.place_word()


@pytest.mark.parametrize(
    ("char", "columns"), [("a", 1), ("é", 1), ("中", 2), ("👩", 2), ("\u0301", 0), ("\u200d", 0)]
)
def test_char_width_counts_terminal_columns(char: str, columns: int) -> None:
    assert char_width(char) == columns


def test_lines_break_between_words() -> None:
    assert wrap("one two three four", 9) == "one two\nthree\nfour"


def test_wide_text_breaks_between_characters() -> None:
    assert wrap("中文中文中文", 5) == "中文\n中文\n中文"


def test_joined_characters_are_not_separated() -> None:
    assert wrap("👩\u200d💻👩\u200d💻", 4) == "👩\u200d💻\n👩\u200d💻"


@pytest.mark.parametrize("line", ["| a table | of this | width |", "    indented code goes on"])
def test_tables_and_indented_code_are_not_wrapped(line: str) -> None:
    assert wrap(line, 10) == line


def test_fenced_code_is_not_wrapped() -> None:
    text = "a b c d\n```sh\nls one two three\n```\na b c d"
    assert wrap(text, 5) == "a b c\nd\n```sh\nls one two three\n```\na b c\nd"


@given(ORDINARY, st.integers(4, 20))
def test_wrapping_changes_only_white_space(text: str, width: int) -> None:
    assert re.sub(r"\s", "", wrap(text, width)) == re.sub(r"\s", "", text)


@given(st.text(alphabet=" \nabc中", max_size=200), st.integers(4, 20))
def test_wrapped_lines_fit_the_width_of_the_terminal(text: str, width: int) -> None:
    for line in wrap(text, width).split("\n"):
        is_one_word = len(re.split(r"\s+", line.strip())) == 1
        assert text_width(line.strip()) <= width or is_one_word or line.startswith("    ")


@given(ORDINARY, st.lists(st.integers(0, 200)), st.integers(4, 20))
def test_text_fed_in_pieces_wraps_like_the_whole_text(
    text: str, cuts: list[int], width: int
) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    wrapper = LineWrapper(width)
    pieces = [text[low:high] for low, high in pairwise(places)]
    assert "".join(map(wrapper.feed, pieces)) + wrapper.place_word() == wrap(text, width)


@given(st.text(alphabet="ab 中\u0301", max_size=40), st.integers(1, 20))
def test_a_shortened_line_fits(text: str, width: int) -> None:
    assert text_width(fit(text, width)) <= width
