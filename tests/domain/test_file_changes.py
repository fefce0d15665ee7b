"""Paths as they are stored."""

import os

from hypothesis import given
from hypothesis import strategies as st

from conversations.agent.undo.disk import real_path, stored_path


@given(name=st.binary(min_size=1, max_size=20).filter(lambda data: b"\0" not in data))
def test_every_file_name_can_be_stored_and_restored(name: bytes) -> None:
    path = os.fsdecode(name)
    stored = stored_path(path)
    stored.encode()
    assert real_path(stored) == path


@given(text=st.text(alphabet='"\\\\07é', max_size=8))
def test_an_invalid_stored_path_is_read_as_some_path(text: str) -> None:
    assert isinstance(real_path(text), str)
