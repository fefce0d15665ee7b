"""The state as YAML, as the model reads it: at most 1,000 tokens.

Written by hand because the shape is fixed and this stands before every first word
(a YAML library takes milliseconds): keys and integers as they are, texts as JSON
strings, which are YAML, unless they are plain words in YAML, too.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from json import JSONEncoder
from typing import NamedTuple

from conversations.domain.text import estimate_tokens

from . import (
    COMMIT,
    DECISION,
    ERROR,
    FILE,
    FOCUS,
    MAX_DECISIONS,
    MAX_ERRORS,
    MAX_FILES,
    OBSERVED,
    PATH_CHARS,
    PIN,
    REWORD,
    SAID,
    STRIKE,
    UNPIN,
    UNSTRIKE,
    ItemMark,
    SessionState,
    StateDecision,
)
from .facts import READ

# What the state shows: the register's items as a person's marks leave them.


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
        text = self.original or self.text
        return ItemMark(self.id, self.kind, text, self.turn, self.action, self.source)


def list_items(state: SessionState) -> tuple[tuple[StateItem, ...], tuple[StateItem, ...]]:
    """The items in force and those that were struck: each kind in the order of its
    turns. Pinned ones always stay and count within the limit of their kind, but half of
    it is the newest's."""
    marks = {mark.id: mark for mark in state.marks}
    registered = [
        *(
            StateItem(_file_id(path), FILE, path, turn, action)
            for path, action, turn in state.files
        ),
        *map(_decision, state.decisions),
        *(StateItem(error.id, ERROR, error.text, error.turn) for error in state.errors),
    ]
    if state.focus:
        text, turn = state.focus
        registered.append(StateItem(f"c{turn}", FOCUS, text, turn, source=SAID))
    known = {item.id for item in registered}
    # What a person marked outlives its place in the register.
    gone = {mark.id: _item(mark) for mark in state.marks if mark.id not in known}
    registered += [item for item in gone.values() if marks[item.id].is_pinned]
    shown: list[StateItem] = []
    struck = [
        _decision(decision)._replace(struck_by=BY_MODEL)
        for decision in state.struck
        if decision.id not in marks or not marks[decision.id].is_pinned
    ]
    for item in sorted(registered, key=lambda item: item.turn):
        mark = marks.get(item.id)
        if mark and mark.is_struck and item.turn <= mark.turn:
            struck.append(_marked(item, mark))
        else:
            shown.append(_marked(item, mark) if mark else item)
    told = {item.id for item in (*shown, *struck)}
    struck += [
        _marked(_item(mark), mark) for mark in state.marks if mark.is_struck and mark.id not in told
    ]
    items = [item for kind in _LIMITS for item in _limited(shown, kind)]
    return tuple(items), tuple(sorted(struck, key=lambda item: (item.kind, item.turn)))


def _file_id(path: str) -> str:
    return "f" + sha256(path.encode()).hexdigest()[:16]


def _decision(decision: StateDecision) -> StateItem:
    item, text, turn, source = decision
    return StateItem(item, DECISION, text, turn, source=source)


def _item(mark: ItemMark) -> StateItem:
    return StateItem(*mark[:5], source=mark.source or OBSERVED)


def _marked(item: StateItem, mark: ItemMark) -> StateItem:
    is_struck = mark.is_struck and item.turn <= mark.turn
    item = item._replace(is_pinned=mark.is_pinned, struck_by=BY_PERSON if is_struck else "")
    return item._replace(text=mark.rewording, original=item.text) if mark.rewording else item


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


MAX_TOKENS = 1_000

_LISTS = {
    FILE: "files_touched",
    DECISION: "key_decisions",
    FOCUS: "current_focus",
    ERROR: "errors_resolved",
}

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_ENCODER = JSONEncoder(ensure_ascii=False)
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def write_yaml(state: SessionState, *, session: str, workspace: str, turn_count: int) -> str:
    """The state as YAML; empty when there is nothing to say. What does not fit is left
    out: what was only read first, then the oldest of the rest, pinned items last."""
    items, _ = list_items(state)
    if not items:
        return ""
    head = [
        "session:",
        f"  id: {_scalar(session)}",
        f"  workspace: {_scalar(workspace[-PATH_CHARS:])}",
        *([f"  model: {_scalar(state.model)}"] if state.model else []),
        f"  turn_count: {turn_count}",
        f"  total_tokens: {state.tokens}",
    ]
    text = _document(head, items)
    # As few items are left out as it takes, found by halving.
    order = sorted(items, key=_worth)
    low, high = (1, len(order)) if estimate_tokens(text) > MAX_TOKENS else (0, 0)
    while low < high:
        middle = (low + high) // 2
        if estimate_tokens(_document(head, _without(items, order[:middle]))) <= MAX_TOKENS:
            high = middle
        else:
            low = middle + 1
    return _document(head, _without(items, order[:low])) if low else text


def _without(items: Sequence[StateItem], left_out: Sequence[StateItem]) -> list[StateItem]:
    gone = {item.id for item in left_out}
    return [item for item in items if item.id not in gone]


def _worth(item: StateItem) -> tuple[bool, int, int]:
    """What sorts first is left out first."""
    rank = {FILE: 1, ERROR: 1, DECISION: 3, FOCUS: 4}[item.kind]
    if item.action == READ:
        rank = 0
    elif item.source == COMMIT:
        rank = 2
    return item.is_pinned, rank, item.turn


def _document(head: Sequence[str], items: Sequence[StateItem]) -> str:
    lines = [*head]
    for kind, name in _LISTS.items():
        found = [item for item in items if item.kind == kind]
        if kind == FOCUS:
            lines += [f"{name}: {_quoted(item.text)}" for item in found]
            continue
        lines += [f"{name}:"] if found else []
        for item in found:
            if kind == FILE:
                lines.append(f"  - path: {_scalar(item.text)}")
                lines.append(f"    action: {_scalar(item.action)}")
                lines.append(f"    turn: {item.turn}")
            else:
                lines.append(f"  - {_quoted(f'{item.text} (turn {item.turn})')}")
    return "\n".join([*lines, ""])


def _scalar(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.casefold() not in _WORDS
    return text if is_plain else _quoted(text)


def _quoted(text: str) -> str:
    """A double-quoted scalar. JSON's escapes are YAML's; YAML has more characters that
    may not stand as they are."""
    quoted = _ENCODER.encode(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
