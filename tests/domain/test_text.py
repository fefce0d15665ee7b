"""Text: encodable values, previews without markup and the number of values in JSON."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.errors import NotEncodable
from conversations.domain.text import (
    MAX_JSON_VALUES,
    count_signs,
    count_values,
    has_more_values,
    require_encodable,
    strip_marks,
)
from conversations.web.forms import check_message_text, check_reason

TEXTS = st.text("ab\0\xe9\u20ac\ud83d\udeb2\U0001fad8", max_size=6)
"""Texts that may contain halves of surrogate pairs, in either order."""

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
def test_a_value_is_accepted_if_utf_8_can_encode_all_of_it(value: Any) -> None:
    if is_encodable(value):
        assert require_encodable(value) is value
    else:
        with pytest.raises(NotEncodable, match="Half a surrogate pair"):
            require_encodable(value)


@given(TEXTS)
def test_messages_and_reasons_must_be_encodable(text: str) -> None:
    check_message = partial(check_message_text, may_be_empty=False)
    for check, checked_text in ((check_message, f"said {text}"), (check_reason, text)):
        if is_encodable(text):
            assert check(checked_text).encode() is not None
        else:
            with pytest.raises(NotEncodable):
                check(checked_text)


def test_deep_nesting_does_not_exhaust_the_stack() -> None:
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
def test_a_preview_drops_markup_and_keeps_other_characters(written: str, shown: str) -> None:
    assert strip_marks(written) == shown


@given(
    st.recursive(
        st.none() | st.floats(allow_nan=False) | st.text('ab"\\[{,]}\n\u00e9', max_size=6),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{'), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_values_are_counted_as_they_are_parsed(value: Any, is_spaced: bool) -> None:
    text = json.dumps(value, indent=1 if is_spaced else None)
    count = count_of(value)
    assert count_values(text, limit=count) == count
    # The same if other values follow, as in a list.
    assert count_values(f"[{text}, [1, 2, 3]]", limit=1000, start=1) == count
    assert count_signs(text) >= count
    assert has_more_values(text, count - 1)
    assert not has_more_values(text, count)


def count_of(value: Any) -> int:
    """Count every list and object, and each of their items but the first."""
    if not isinstance(value, dict | list):
        return 0
    items = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(items) - 1) + sum(map(count_of, items))


@pytest.mark.parametrize(
    "text", ["[1, [", '{"a": [1, "', '{"a": [1, "b\\', '[[,"[[,', "]" + "[" * 9, '"[[[["', ""]
)
def test_the_beginning_of_invalid_json_is_counted(text: str) -> None:
    assert count_values(text, limit=1000) <= 3


def test_brackets_and_commas_in_a_text_are_not_counted() -> None:
    """Source code may have more brackets and commas than a request may have values."""
    text = json.dumps({"text": 'call([1, 2], {"a": "b"})\n' * 700_000, "more": [1, 2, 3]})
    assert count_signs(text) > MAX_JSON_VALUES
    assert not has_more_values(text)
    assert has_more_values('{"a":[' + "[]," * MAX_JSON_VALUES + "0]}")
