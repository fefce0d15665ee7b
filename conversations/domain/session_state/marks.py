"""A person's edits of single items: pin, strike, reword, and back.

An edit is an event of the journal, an :class:`~conversations.domain.events.Info`
with the code ``state_edit`` and the item as it was in its data.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conversations.domain.text import one_line, storable

from .values import ITEM_CHARS, KINDS, PATH_CHARS, ItemMark, SessionState

STATE_EDIT = "state_edit"
EDIT_VERSION = 1

PIN, UNPIN, REWORD, STRIKE, UNSTRIKE = "pin", "unpin", "edit", "strike", "unstrike"
ACTIONS = (PIN, UNPIN, REWORD, STRIKE, UNSTRIKE)

MAX_MARKS, MAX_PINS = 60, 20
"""Marks that are remembered, more than there are items; pinned items among them."""

_CHANGES: dict[str, dict[str, bool]] = {
    PIN: {"is_pinned": True, "is_struck": False},
    UNPIN: {"is_pinned": False},
    STRIKE: {"is_pinned": False, "is_struck": True},
    UNSTRIKE: {"is_struck": False},
    REWORD: {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEdit:
    """``item`` is unmarked, as the register has it. ``text``: the new wording."""

    action: str
    item: ItemMark
    text: str = ""


def dump_edit(edit: StateEdit, *, by: str) -> dict[str, Any]:
    """The data of the event. ``by`` is a user name, for people to read."""
    item = edit.item
    data: dict[str, Any] = {
        "v": EDIT_VERSION,
        "action": edit.action,
        "item": {
            "id": item.id,
            "kind": item.kind,
            "text": item.text,
            "turn": item.turn,
            "action": item.action,
            "source": item.source,
        },
        "text": edit.text,
        "by": by,
    }
    return {name: value for name, value in data.items() if value != ""}


def read_edit(data: dict[str, Any] | None) -> StateEdit | None:
    """The edit that an event's data holds, None if they hold none."""
    data = data or {}
    item = data.get("item")
    if data.get("action") not in ACTIONS or not isinstance(item, dict):
        return None
    turn = item.get("turn")
    if item.get("kind") not in KINDS or type(turn) is not int or not 0 <= turn < 2**53:
        return None
    return StateEdit(
        action=str(data["action"]),
        item=ItemMark(
            id=_text(item, "id", 64),
            kind=str(item["kind"]),
            text=_text(item, "text", max(ITEM_CHARS, PATH_CHARS)),
            turn=turn,
            action=_text(item, "action", 20),
            source=_text(item, "source", 20),
            is_pinned=False,
            is_struck=False,
            rewording="",
        ),
        text=_text(data, "text", ITEM_CHARS),
    )


def _text(values: dict[str, Any], name: str, limit: int) -> str:
    value = values.get(name)
    return one_line(storable(value), limit=limit) if isinstance(value, str) else ""


def apply_edit(state: SessionState, edit: StateEdit, *, seq: int) -> SessionState:
    """The state after the edit that is the event ``seq``. The newest marks stay, pins
    before others."""
    known = next((mark for mark in state.marks if mark.id == edit.item.id), None)
    mark = (known or edit.item)._replace(**_CHANGES[edit.action])  # type: ignore[arg-type]
    if edit.action == REWORD:
        mark = mark._replace(rewording=edit.text if edit.text != mark.text else "")
    if edit.action == STRIKE:
        mark = mark._replace(turn=edit.item.turn)
    marks = [other for other in state.marks if other.id != mark.id]
    if mark.is_pinned or mark.is_struck or mark.rewording:
        marks.append(mark)
    return state._replace(marks=_limited(marks), edit_seq=seq)


def _limited(marks: list[ItemMark]) -> tuple[ItemMark, ...]:
    pins = [mark.id for mark in marks if mark.is_pinned][-MAX_PINS:]
    kept = [mark for mark in marks if mark.id in pins or not mark.is_pinned]
    while len(kept) > MAX_MARKS:
        kept.remove(next(mark for mark in kept if not mark.is_pinned))
    return tuple(kept)


def drop_marks(state: SessionState, ranges: Iterable[tuple[int, int]]) -> SessionState:
    """Without the marks on items of these turns, which left the active path."""
    gone = list(ranges)
    marks = tuple(
        mark for mark in state.marks if not any(low <= mark.turn <= high for low, high in gone)
    )
    return state if marks == state.marks else state._replace(marks=marks)
