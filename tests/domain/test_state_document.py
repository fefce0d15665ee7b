"""The session state as YAML: any content, at most 1,000 tokens and deterministic."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conversations.domain.session_state import (
    COMMIT,
    MAX_STATE_TOKENS,
    SAID,
    ResolvedError,
    SessionState,
    StateEdit,
    StateFile,
    StateFocus,
    Statement,
    apply_edit,
    list_items,
    write_yaml,
)
from conversations.domain.text import estimate_tokens


def document(state: SessionState) -> str:
    return write_yaml(state, session="id", workspace="/srv/garden", turn_count=9)


def parsed(state: SessionState) -> Any:
    return yaml.safe_load(document(state))


def full(text: str) -> SessionState:
    return SessionState(
        files=tuple(StateFile(f"{n} {text}"[:200], "edited", n) for n in range(20)),
        decisions=tuple(Statement(f"d{n}.0", f"{n} {text}"[:160], n, SAID) for n in range(10)),
        errors=tuple(ResolvedError(f"e{n}.0.0", f"{n} {text}"[:160], n) for n in range(5)),
        focus=StateFocus(text[:100], 30),
    )


def pinned(state: SessionState, item: str) -> SessionState:
    found = next(i for i in list_items(state)[0] if i.id == item)
    return apply_edit(state, StateEdit(action="pin", item=found.as_mark()), seq=1, turn=99)


def test_the_document_of_an_empty_state_is_empty() -> None:
    assert document(SessionState(tokens=5, model="m")) == ""


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_can_be_read_back_from_the_yaml(text: str) -> None:
    state = SessionState(
        files=(StateFile(text, "read", 1),),
        decisions=(Statement("d1.0", text, 1, SAID),),
        focus=StateFocus(text, 1),
        model=text,
    )
    found = parsed(state)
    assert found["files_touched"] == [{"path": text, "action": "read", "turn": 1}]
    assert found["key_decisions"] == [f"{text} (turn 1)"]
    assert found["current_focus"] == text
    assert found["session"].get("model", "") == text


@pytest.mark.parametrize("text", ["yes", "null", "On", "1e3", "0x1", "~", "-", "a: b", "- a", "{"])
def test_yaml_keywords_stay_text(text: str) -> None:
    assert (
        parsed(SessionState(files=(StateFile(text, "read", 1),)))["files_touched"][0]["path"]
        == text
    )


@pytest.mark.parametrize("text", ["word " * 50, "記憶" * 100, '\\"' * 100, "é👍\u2028" * 70])
def test_the_document_stays_within_its_token_limit(text: str) -> None:
    state = full(text)
    assert estimate_tokens(document(state)) <= MAX_STATE_TOKENS
    assert document(state) == document(state)
    assert parsed(state)["current_focus"] == text[:100]


def test_items_are_left_out_oldest_first_and_pinned_last() -> None:
    state = full("word " * 50)
    state = state._replace(
        files=(*state.files[:19], StateFile("read.py", "read", 50)),
        decisions=(*state.decisions[:9], Statement("d9.0", "word " * 30, 9, COMMIT)),
    )
    found = parsed(pinned(state, "d0.0"))
    paths = [file["path"] for file in found["files_touched"]]
    assert "read.py" not in paths
    assert paths == [file.path for file in state.files if file.path in paths]
    assert paths[-1].startswith("18 ")
    assert len(paths) < 19
    assert len(found["key_decisions"]) == 10
    wide = full("記憶" * 100)
    found = parsed(pinned(wide, "d0.0"))
    assert found["key_decisions"][0].endswith("(turn 0)")
    assert "files_touched" not in found
