"""The session state: a register of what happened, by rules and without a model.

``facts`` reads from one turn what the rules need (``statements`` reads its sentences and
commands), ``fold`` adds it to the state. ``values`` is the state with a person's pins,
strikes and rewordings, and its JSON; ``document`` is what of it is shown, and its YAML.

The state is a pure function of the session's active turns in order and of the
person's edits in order: turns never look at marks and marks never at turns, so
rebuilding from the archive gives the same bytes however the two were interleaved.
"""

from collections.abc import Iterable
from functools import lru_cache
from json import JSONEncoder
from threading import Lock
from typing import Any, NamedTuple

from conversations.domain.text import load_json, one_line, storable

RULES_VERSION = 1  # Raised whenever the same turns would give another state.

FILE, DECISION, ERROR, FOCUS = "file", "decision", "error", "focus"
KINDS = (FILE, DECISION, ERROR, FOCUS)

# Where an item comes from: the person, a commit, the model, a tool's outcome.
SAID, COMMIT, NOTED, OBSERVED = "said", "commit", "noted", "observed"

MAX_FILES, MAX_DECISIONS, MAX_ERRORS = 20, 10, 5  # How many of each are kept, the newest.

MAX_OPEN_FAILURES, MAX_STRUCK = 5, 5
ITEM_CHARS, FOCUS_CHARS, PATH_CHARS = 160, 100, 200


class File(NamedTuple):
    path: str
    action: str
    turn: int


class StateDecision(NamedTuple):
    id: str
    text: str
    turn: int
    source: str


class Resolved(NamedTuple):
    """An error, and what made it go away at ``turn``."""

    id: str
    text: str
    turn: int


class Focus(NamedTuple):
    text: str
    turn: int


class Call(NamedTuple):
    """A tool call that waits for its result. ``kind`` is a :mod:`facts` kind; ``key``
    says when two calls try the same thing, ``detail`` is the kind's telling text."""

    id: str
    name: str
    kind: str
    turn: int
    place: int
    paths: tuple[str, ...]
    key: str
    detail: str


class Failure(NamedTuple):
    """A call that failed and was not made good yet. ``fixes``: what was done since."""

    key: str
    kind: str
    text: str
    fixes: tuple[str, ...]


class ItemMark(NamedTuple):
    """What a person did to an item, with the item as it was, so that a pinned one
    outlives its place in the register. ``rewording`` empty: as it was."""

    id: str
    kind: str
    text: str
    turn: int
    action: str
    source: str
    is_pinned: bool = False
    is_struck: bool = False
    rewording: str = ""


class SessionState(NamedTuple):
    """``tokens`` and ``model`` are of the active turns, ``struck`` are decisions that
    the model took back, ``calls`` and ``failures`` are open; ``edit_seq`` is the event
    of the last edit that ``marks`` hold."""

    tokens: int = 0
    model: str = ""
    focus: Focus | None = None
    files: tuple[File, ...] = ()
    decisions: tuple[StateDecision, ...] = ()
    errors: tuple[Resolved, ...] = ()
    struck: tuple[StateDecision, ...] = ()
    calls: tuple[Call, ...] = ()
    failures: tuple[Failure, ...] = ()
    marks: tuple[ItemMark, ...] = ()
    edit_seq: int = 0


# The state as JSON text. The same state always gives the same text.


# What the text of every state begins with that these rules made.
PREFIX = f'{{"v":{RULES_VERSION},'

EMPTY = "{}"

# Every text in a state is storable already.
_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dump_state(state: SessionState) -> str:
    parts = (f'"{name}":{_dump_part(getattr(state, name))}' for name in SessionState._fields)
    text = f"{PREFIX}{','.join(parts)}}}"
    _remember(text, state)
    return text


@lru_cache(maxsize=1_000)
def _dump_part(part: Any) -> str:
    """One field. Most are what they were in the state before."""
    return _ENCODER.encode(part)


def load_state(text: str) -> SessionState | None:
    """Read what :func:`dump_state` wrote, None for what these rules did not write or
    what was damaged: the archive gives it again."""
    if text == EMPTY:
        return SessionState()
    state = _RECENT.get(text)
    if state is None and text.startswith(PREFIX):
        try:
            state = parse_state(text)
        except (ValueError, KeyError, TypeError):
            return None
        _remember(text, state)
    return state


# The newest states by their text: what one append writes the next one starts from, and the
# window reads in between.
_RECENT: dict[str, SessionState] = {}
_RECENT_LOCK = Lock()
MAX_RECENT_STATES = 200


def _remember(text: str, state: SessionState) -> None:
    with _RECENT_LOCK:
        _RECENT[text] = state
        if len(_RECENT) > MAX_RECENT_STATES:
            del _RECENT[next(iter(_RECENT))]


def parse_state(text: str) -> SessionState:
    """Raises ValueError, KeyError or TypeError for anything else."""
    value = load_json(text)
    if [*value] != ["v", *SessionState._fields]:
        raise ValueError("not a state of these rules")
    del value["v"]
    for name, kind in _PARTS.items():
        value[name] = tuple(kind(*map(_tupled, row)) for row in value[name])
    value["focus"] = Focus(*value["focus"]) if value["focus"] else None
    return SessionState(**value)


_PARTS: dict[str, type[Any]] = {
    "files": File,
    "decisions": StateDecision,
    "errors": Resolved,
    "struck": StateDecision,
    "calls": Call,
    "failures": Failure,
    "marks": ItemMark,
}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# A person's edits of single items: pin, strike, reword, and back.


STATE_EDIT = "state_edit"
EDIT_VERSION = 1

PIN, UNPIN, REWORD, STRIKE, UNSTRIKE = "pin", "unpin", "edit", "strike", "unstrike"
ACTIONS = (PIN, UNPIN, REWORD, STRIKE, UNSTRIKE)

# Marks that are remembered, more than there are items; pinned items among them.
MAX_MARKS, MAX_PINS = 60, 20

_CHANGES: dict[str, dict[str, bool]] = {
    PIN: {"is_pinned": True, "is_struck": False},
    UNPIN: {"is_pinned": False},
    STRIKE: {"is_pinned": False, "is_struck": True},
    UNSTRIKE: {"is_struck": False},
    REWORD: {},
}


class StateEdit(NamedTuple):
    """``item`` is unmarked, as the register has it. ``text``: the new wording."""

    action: str
    item: ItemMark
    text: str = ""


def dump_edit(edit: StateEdit, *, by: str) -> dict[str, Any]:
    """The data of the event. ``by`` is a user name, for people to read."""
    item = dict(zip(ItemMark._fields[:6], edit.item, strict=False))
    data = {"v": EDIT_VERSION, "action": edit.action, "item": item, "text": edit.text, "by": by}
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
    pins = [mark.id for mark in marks if mark.is_pinned][-MAX_PINS:]
    kept = [mark for mark in marks if mark.id in pins or not mark.is_pinned]
    while len(kept) > MAX_MARKS:
        kept.remove(next(mark for mark in kept if not mark.is_pinned))
    return state._replace(marks=tuple(kept), edit_seq=seq)


def drop_marks(state: SessionState, ranges: Iterable[tuple[int, int]]) -> SessionState:
    """Without the marks on items of these turns, which left the active path."""
    gone = list(ranges)
    marks = tuple(
        mark for mark in state.marks if not any(low <= mark.turn <= high for low, high in gone)
    )
    return state if marks == state.marks else state._replace(marks=marks)
