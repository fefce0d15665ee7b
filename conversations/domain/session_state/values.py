"""The state as values. Tuples throughout: they are their own JSON."""

from typing import NamedTuple

RULES_VERSION = 1
"""Raised whenever the same turns would give another state."""

FILE, DECISION, ERROR, FOCUS = "file", "decision", "error", "focus"
KINDS = (FILE, DECISION, ERROR, FOCUS)

SAID, COMMIT, NOTED, OBSERVED = "said", "commit", "noted", "observed"
"""Where an item comes from: the person, a commit, the model, a tool's outcome."""

MAX_FILES, MAX_DECISIONS, MAX_ERRORS = 20, 10, 5
"""How many of each are kept, the newest."""

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
    is_pinned: bool
    is_struck: bool
    rewording: str


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
