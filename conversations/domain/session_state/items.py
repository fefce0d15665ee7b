"""What the state shows: the register's items as a person's marks leave them."""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from .marks import ACTIONS, PIN, REWORD, STRIKE, UNPIN, UNSTRIKE
from .values import (
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    MAX_DECISIONS,
    MAX_ERRORS,
    MAX_FILES,
    OBSERVED,
    SAID,
    ItemMark,
    SessionState,
)

_LIMITS = {FILE: MAX_FILES, DECISION: MAX_DECISIONS, ERROR: MAX_ERRORS, FOCUS: 1}

BY_PERSON, BY_MODEL = "person", "model"


class StateItem(NamedTuple):
    """One line of the register. ``id`` is stable. ``text`` is a file's path, else a
    sentence; ``action`` is what was done to a file; ``original`` is the text before
    a person reworded it, else empty. ``struck_by``: person, model or nobody."""

    id: str
    kind: str
    text: str
    turn: int
    action: str = ""
    source: str = OBSERVED
    is_pinned: bool = False
    original: str = ""
    struck_by: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """What a person can do to it now."""
        if self.struck_by:
            return (UNSTRIKE,)
        pin = UNPIN if self.is_pinned else PIN
        return (pin, STRIKE) if self.kind == FILE else (pin, REWORD, STRIKE)

    def as_mark(self) -> ItemMark:
        """The item as an edit keeps it."""
        return ItemMark(
            id=self.id,
            kind=self.kind,
            text=self.original or self.text,
            turn=self.turn,
            action=self.action,
            source=self.source,
            is_pinned=False,
            is_struck=False,
            rewording="",
        )


assert {PIN, UNPIN, REWORD, STRIKE, UNSTRIKE} == set(ACTIONS)


def list_items(state: SessionState) -> tuple[tuple[StateItem, ...], tuple[StateItem, ...]]:
    """The items in force and those that were struck: each kind in the order of its
    turns. Pinned ones always stay and count within the limit of their kind, but half of
    it is the newest's."""
    marks = {mark.id: mark for mark in state.marks}
    shown: list[StateItem] = []
    struck = [
        _decision(d)._replace(struck_by=BY_MODEL)
        for d in state.struck
        if d.id not in marks or not marks[d.id].is_pinned
    ]
    for item in _with_pinned(state):
        mark = marks.get(item.id)
        if mark is None:
            shown.append(item)
        elif mark.is_struck and item.turn <= mark.turn:
            struck.append(_marked(item, mark)._replace(struck_by=BY_PERSON))
        else:
            shown.append(_marked(item, mark))
    struck += [
        _marked(_item(mark), mark)._replace(struck_by=BY_PERSON)
        for mark in state.marks
        if mark.is_struck and not any(item.id == mark.id for item in (*shown, *struck))
    ]
    items = [item for kind in _LIMITS for item in _limited(shown, kind)]
    return tuple(items), tuple(sorted(struck, key=lambda item: (item.kind, item.turn)))


def _with_pinned(state: SessionState) -> list[StateItem]:
    items = list(_registered(state))
    known = {item.id for item in items}
    items += [_item(mark) for mark in state.marks if mark.is_pinned and mark.id not in known]
    return sorted(items, key=lambda item: item.turn)


def _registered(state: SessionState) -> Iterator[StateItem]:
    for path, action, turn in state.files:
        yield StateItem(id=file_id(path), kind=FILE, text=path, turn=turn, action=action)
    for decision in state.decisions:
        yield _decision(decision)
    for error in state.errors:
        yield StateItem(id=error.id, kind=ERROR, text=error.text, turn=error.turn)
    if state.focus:
        turn = state.focus.turn
        yield StateItem(id=f"c{turn}", kind=FOCUS, text=state.focus.text, turn=turn, source=SAID)


def _decision(decision: tuple[str, str, int, str]) -> StateItem:
    item, text, turn, source = decision
    return StateItem(id=item, kind=DECISION, text=text, turn=turn, source=source)


def file_id(path: str) -> str:
    return "f" + sha256(path.encode()).hexdigest()[:16]


def _item(mark: ItemMark) -> StateItem:
    return StateItem(
        id=mark.id,
        kind=mark.kind,
        text=mark.text,
        turn=mark.turn,
        action=mark.action,
        source=mark.source or OBSERVED,
    )


def _marked(item: StateItem, mark: ItemMark) -> StateItem:
    item = item._replace(is_pinned=mark.is_pinned)
    if not mark.rewording:
        return item
    return item._replace(text=mark.rewording, original=item.text)


def _limited(items: list[StateItem], kind: str) -> list[StateItem]:
    """The pinned ones of a kind, and the newest of the others."""
    found = [item for item in items if item.kind == kind]
    pinned = [item for item in found if item.is_pinned]
    if kind == FOCUS:
        return (pinned or found)[-1:]
    others = [item for item in found if not item.is_pinned]
    room = max(_LIMITS[kind] // 2, _LIMITS[kind] - len(pinned))
    kept = {item.id for item in (*pinned, *others[-room:])}
    return [item for item in found if item.id in kept]
