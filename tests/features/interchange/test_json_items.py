"""Reading JSON in pieces: the items do not depend on the size of the pieces."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations.features.interchange import lines, sources
from conversations.features.interchange.lines import as_input
from conversations.features.interchange.sources import DamagedJson, read_items
from tests.properties import costly

VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def items(text: str | bytes, *, chunk: int = 8) -> list[Any]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_items(io.BytesIO(data), chunk=chunk))


@costly
@given(
    value=st.lists(st.dictionaries(st.text(max_size=3), VALUES), max_size=4),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 2]),
)
def test_the_items_of_a_list_are_read_one_by_one(
    value: Any, chunk: int, indent: int | None
) -> None:
    assert items(json.dumps(value, indent=indent), chunk=chunk) == value
    assert items("\ufeff " + json.dumps(value, ensure_ascii=False), chunk=chunk) == value


def test_one_object_is_one_item() -> None:
    assert items('{"a": [1, 2]}') == [{"a": [1, 2]}]
    assert items("") == []


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b"', '[{"a": 1}', '[{"a": 1} {b: 2}]'])
def test_items_before_damage_are_read(text: str) -> None:
    found = read_items(io.BytesIO(text.encode()), chunk=4)
    assert next(found) == {"a": 1}
    with pytest.raises(DamagedJson):
        next(found)


def test_too_deep_nesting_is_damage() -> None:
    with pytest.raises(DamagedJson):
        items("[" + "[" * 200_000 + "]" * 200_000 + "]", chunk=1_000_000)


def test_invalid_utf8_bytes_are_kept_as_surrogates() -> None:
    assert items(b'[{"a": "\xff"}]') == [{"a": "\udcff"}]


def test_json_text_with_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_ITEM_VALUES", 40)
    assert as_input(json.dumps({"a": [[]] * 10})) == {"a": [[]] * 10}
    many = json.dumps({"a": [[]] * 50})
    assert as_input(many) == {"text": many}


def test_an_item_with_too_many_values_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values take many times their bytes in memory. Other items and texts do not count."""
    monkeypatch.setattr(sources, "MAX_ITEM_VALUES", 40)
    small = {"a": [[], [], []], "code": "[{," * 100}
    whole = [small] * 30
    for chunk in (1, 50, 1_000_000):
        assert items(json.dumps(whole), chunk=chunk) == whole
        found = read_items(io.BytesIO(json.dumps([small, [[]] * 40, small]).encode()), chunk=chunk)
        assert next(found) == small
        with pytest.raises(DamagedJson, match="more than 40 values"):
            next(found)
