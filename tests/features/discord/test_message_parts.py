"""Splitting long texts into messages."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conversations.features.discord.message_parts import size_of, split_message

LIMIT = 100

words = st.text(alphabet="abc é漢🌱,.", min_size=1, max_size=40)
fences = st.tuples(
    st.sampled_from(["```", "~~~", "````"]),
    st.sampled_from(["", "python", "a b", "x" * 40]),
    st.lists(st.text(alphabet="ab c`~é", max_size=60), max_size=8),
).map(lambda parts: "\n".join([parts[0] + parts[1], *parts[2], parts[0]]))
pieces = st.one_of(words, fences, st.just(""), st.text(max_size=30), st.sampled_from(["```", "~~"]))
texts = st.lists(st.tuples(pieces, st.sampled_from(["\n", "\n\n", " "])), max_size=25).map(
    lambda rows: "".join(piece + gap for piece, gap in rows)
)


def is_left_out(text: str) -> bool:
    """Return whether a split may omit the text: white space, or the closing line of a block."""
    return not text.strip() or re.fullmatch(r"[`~]{3,}", text.strip()) is not None


def bodies(message: str) -> list[str]:
    """Return the pieces of the text that a message may hold.

    They may lack the first or the last line, if a fence there was added by the split.
    """
    opened = re.sub(r"\A[`~]{3,}[^\n]*\n", "", message)
    return [text for one in (message, opened) for text in (one, re.sub(r"\n[`~]{3,}\Z", "", one))]


def ends_of(body: str, text: str, at: int) -> set[int]:
    """Return the ends of all occurrences after ``at`` that have only omissible text before them."""
    starts = (start for start in range(at, len(text) + 1) if text.startswith(body, start))
    return {start + len(body) for start in starts if is_left_out(text[at:start])}


CLOSED_BY_MORE = f"```\naa🌱\n\n````{'x' * 40}\n\n\n\n`\n``\n````a\n```` `\n``````````a\n````\n`\n"


@given(texts)
@example(CLOSED_BY_MORE)
@settings(max_examples=30)
def test_messages_fit_the_limit_are_not_blank_and_lose_no_text(text: str) -> None:
    ends = {0}
    for message in split_message(text, limit=LIMIT):
        assert message.strip()
        assert size_of(message) <= LIMIT
        ends = {end for body in bodies(message) for at in ends for end in ends_of(body, text, at)}
        assert ends
    assert any(is_left_out(text[at:]) for at in ends)


@given(texts, st.data())
@settings(max_examples=30)
def test_earlier_messages_do_not_change_while_a_text_grows(text: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(text)))
    before = split_message(text[:length], limit=LIMIT)[:-1]
    assert split_message(text, limit=LIMIT)[: len(before)] == before


@given(st.lists(words, max_size=9), st.lists(st.text(alphabet="ab c", max_size=20), max_size=3))
@settings(max_examples=20)
def test_a_code_block_that_fits_one_message_is_not_split(
    before: list[str], code: list[str]
) -> None:
    block = "\n".join(["```python", *code, "```"])
    text = "\n\n".join([*before, block, "and so on"])
    assert any(block in part for part in split_message(text, limit=LIMIT))


def test_a_short_text_is_one_message() -> None:
    assert split_message("One.\n\nTwo.\n") == ["One.\n\nTwo."]
    assert split_message(" \n\n ") == []


def test_a_text_is_split_at_paragraphs_lines_sentences_or_words() -> None:
    para = "word " * 11 + "end."
    assert split_message(f"{para}\n\n{para}", limit=LIMIT) == [para, para]
    assert split_message(f"{para}\n{para}", limit=LIMIT) == [para, para]
    assert split_message(f"{para} {para}", limit=LIMIT) == [para, para]
    long = split_message("word " * 40, limit=LIMIT)
    assert all(set(part.split()) == {"word"} for part in long)
    assert [len(part) for part in split_message("x" * 150, limit=LIMIT)] == [92, 58]


def test_a_long_code_block_is_closed_and_reopened_with_its_language() -> None:
    lines = [f"line {number} of the program" for number in range(10)]
    parts = split_message(
        "\n".join(["So:", "```python title", *lines, "```", "Done."]), limit=LIMIT
    )
    assert parts[0] == "So:"
    assert all(part.startswith("```python") for part in parts[1:-1])
    assert all(part.rstrip().endswith("```") for part in parts[1:-1])
    code = "\n".join(line for part in parts[1:] for line in part.split("\n") if "line" in line)
    assert code == "\n".join(lines)
    assert parts[-1].endswith("Done.")


def test_a_code_block_ending_at_the_limit_leaves_no_empty_message() -> None:
    code = "\n".join(["x" * 20] * 4)
    for filler in range(20):
        parts = split_message(f"```\n{code}\n{'y' * filler}\n```\n\nEnd.", limit=LIMIT)
        assert not [part for part in parts if not part.replace("`", "").strip()]


def test_an_answer_that_ends_in_an_open_block_is_shown_as_code() -> None:
    assert split_message("```py\nprint(") == ["```py\nprint(\n```"]


@pytest.mark.parametrize("joined", ["👩\u200d🌾", "e\u0301", "❤\ufe0f"])
def test_a_character_of_several_code_points_is_not_split(joined: str) -> None:
    parts = split_message("x" * 91 + joined * 20, limit=LIMIT)
    assert "".join(parts) == "x" * 91 + joined * 20
    assert all(part[0] in ("x", joined[0]) for part in parts)
