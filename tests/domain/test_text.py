"""What texts may come in, and how they are shown on one line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.errors import NotEncodable
from conversations.domain.text import require_encodable, strip_marks
from conversations.web.forms import check_message_text, check_reason

TEXTS = st.text("ab\0\xe9\u20ac\ud83d\udeb2\U0001fad8", max_size=6)
"""Halves of pairs included, in either order."""

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def is_encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@given(VALUES)
def test_a_value_comes_in_if_utf_8_can_encode_all_of_it(value: Any) -> None:
    if is_encodable(value):
        assert require_encodable(value) is value
    else:
        with pytest.raises(NotEncodable, match="Half a surrogate pair"):
            require_encodable(value)


@given(TEXTS)
def test_so_does_what_a_person_says(text: str) -> None:
    for check, said in ((check_message_text, f"said {text}"), (check_reason, text)):
        if is_encodable(text):
            assert check(said).encode() is not None
        else:
            with pytest.raises(NotEncodable):
                check(said)


def test_nesting_costs_no_stack() -> None:
    value: Any = "\ud800"
    for _ in range(20_000):
        value = [value]
    with pytest.raises(NotEncodable):
        require_encodable(value)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("## Hello\n*I am* the **demo**: `ls`", "Hello\nI am the demo: ls"),
        ("> You wrote\n> > - this", "You wrote\nthis"),
        ("2 * 3 * 4, 2*3*4, *.py and x = *args", "2 * 3 * 4, 2*3*4, *.py and x = *args"),
    ],
)
def test_a_preview_has_no_marks_but_those_that_mean_something(written: str, shown: str) -> None:
    assert strip_marks(written) == shown
