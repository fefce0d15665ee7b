"""A person's pins, strikes and rewordings of state items, and the marks that store them."""

from typing import Any

import pytest

from conversations.domain.session_state import (
    DECISION,
    MAX_MARKS,
    MAX_PINS,
    RULE,
    SAID,
    ItemMark,
    SessionState,
    StateEdit,
    StateFile,
    StateFocus,
    StateItem,
    Statement,
    apply_edit,
    drop_marks,
    dump_edit,
    list_items,
    read_edit,
)
from conversations.domain.session_state.facts import TurnFacts, fold_facts


def decided(*texts: str) -> SessionState:
    decisions = (Statement(f"d{n}.0", text, n, SAID) for n, text in enumerate(texts, start=1))
    return SessionState(decisions=tuple(decisions))


def item(state: SessionState, wanted: str) -> StateItem:
    shown, struck = list_items(state)
    return next(found for found in (*shown, *struck) if wanted in (found.id, found.text))


def edited(state: SessionState, action: str, wanted: str, text: str = "") -> SessionState:
    edit = StateEdit(action=action, item=item(state, wanted).as_mark(), text=text)
    read = read_edit(dump_edit(edit, by="ann"))
    assert read == edit
    return apply_edit(state, edit, seq=state.edit_seq + 1, turn=99)


def texts(state: SessionState) -> list[str]:
    return [found.text for found in list_items(state)[0]]


def test_a_rewording_and_a_strike_can_be_undone() -> None:
    state = decided("tabs", "roses")
    reworded = edited(state, "edit", "d1.0", "spaces")
    assert texts(reworded) == ["spaces", "roses"]
    assert item(reworded, "d1.0").original == "tabs"
    again = edited(reworded, "edit", "d1.0", "tabs")
    assert (texts(again), again.marks) == (["tabs", "roses"], ())
    struck = edited(reworded, "strike", "d1.0")
    assert texts(struck) == ["roses"]
    assert texts(edited(struck, "unstrike", "d1.0")) == ["spaces", "roses"]


def test_a_struck_file_returns_when_it_is_touched_again() -> None:
    state = edited(SessionState(files=(StateFile("a.py", "read", 3),)), "strike", "a.py")
    assert texts(state) == []
    assert texts(state._replace(files=(StateFile("a.py", "edited", 8),))) == ["a.py"]


def test_a_pinned_focus_stays_until_it_is_unpinned() -> None:
    state = edited(SessionState(focus=StateFocus("tests", 1)), "pin", "c1")
    state = fold_facts(state, 2, TurnFacts(role="user", tokens=1, focus="docs"))
    assert texts(state) == ["tests"]
    assert texts(edited(state, "unpin", "c1")) == ["docs"]


def test_pinned_items_count_towards_the_limit_of_their_kind() -> None:
    state = decided(*(f"row {n}" for n in range(1, 11)))
    for number in (1, 2):
        state = edited(state, "pin", f"d{number}.0")
    state = fold_facts(
        state,
        50,
        TurnFacts(role="user", tokens=0, statements=((DECISION, "new a"), (DECISION, "new b"))),
    )
    assert texts(state) == ["row 1", "row 2", *(f"row {n}" for n in range(5, 11)), "new a", "new b"]


def test_new_items_are_shown_even_if_all_others_are_pinned() -> None:
    state = decided(*(f"row {n}" for n in range(1, 11)))
    for number in range(1, 11):
        state = edited(state, "pin", f"d{number}.0")
    state = fold_facts(
        state,
        50,
        TurnFacts(role="user", tokens=0, statements=((DECISION, "new a"), (DECISION, "new b"))),
    )
    assert texts(state) == [*(f"row {n}" for n in range(1, 11)), "new a", "new b"]


def test_the_number_of_marks_is_limited() -> None:
    state = SessionState()
    for number in range(1, 3 * MAX_MARKS):
        state = state._replace(decisions=(Statement(f"d{number}.0", f"x {number}", number, SAID),))
        state = edited(state, "pin" if number % 2 else "strike", f"d{number}.0")
    assert len(state.marks) == MAX_MARKS
    assert sum(mark.is_pinned for mark in state.marks) == MAX_PINS
    assert state.marks[-1].turn == 3 * MAX_MARKS - 1


def test_marks_are_dropped_with_the_turns_of_their_items() -> None:
    state = decided("tabs", "roses")
    for number in (1, 2):
        state = edited(state, "pin", f"d{number}.0")
    left = decided("tabs")
    assert [mark.id for mark in drop_marks(state, [(2, 9)], left=left).marks] == ["d1.0"]
    assert drop_marks(state, [(3, 9)], left=state) == state


ITEM = {"id": "d1.0", "kind": "decision", "text": "tabs", "turn": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"action": "pin"},
        {"action": "burn", "item": ITEM},
        {"action": ["pin"], "item": ITEM},
        {"action": "pin", "item": ITEM | {"kind": "ghost"}},
        {"action": "pin", "item": ITEM | {"kind": {}}},
        {"action": "pin", "item": ITEM | {"turn": "1"}},
        {"action": "pin", "item": ITEM | {"turn": True}},
        {"action": "pin", "item": ITEM | {"turn": 10**30}},
        {"action": "pin", "item": [1]},
        {"action": "pin", "item": ITEM, "after": -1},
    ],
)
def test_an_invalid_event_is_no_edit(data: Any) -> None:
    assert read_edit(data) is None


def test_long_texts_of_an_edit_are_cut() -> None:
    edit = read_edit({"action": "edit", "item": ITEM | {"text": "x\n" * 900}, "text": "y" * 900})
    assert edit
    assert (len(edit.item.text), len(edit.text)) == (200, 160)


def test_marks_on_a_decision_apply_to_the_rule_it_became() -> None:
    said = Statement("r1.2", "Never commit to main", 1, SAID)
    state = SessionState(rules=(said,))
    was = ItemMark("d1.0", DECISION, said.text, 1, "", SAID)
    for action in ("pin", "strike", "edit"):
        marked = apply_edit(state, StateEdit(action, was, "Main is closed"), seq=1, turn=99)
        [found] = [one for part in list_items(marked) for one in part]
        assert (found.id, found.kind) == ("r1.2", RULE)
        back = {"pin": "unpin", "strike": "unstrike", "edit": "edit"}[action]
        assert edited(marked, back, "r1.2", said.text).marks == ()
    struck = apply_edit(state, StateEdit("strike", was), seq=1, turn=99)
    assert texts(struck) == []
