"""The state as YAML, as the model reads it: at most 1,000 tokens.

Written by hand because the shape is fixed and this stands before every first word
(a YAML library takes milliseconds): keys and integers as they are, texts as JSON
strings, which are YAML, unless they are plain words in YAML, too.
"""

import re
from collections.abc import Iterator, Sequence
from json import JSONEncoder

from conversations.domain.text import estimate_tokens

from .facts import READ
from .items import StateItem, list_items
from .values import COMMIT, DECISION, ERROR, FILE, FOCUS, PATH_CHARS, SessionState

MAX_TOKENS = 1_000

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
    return text if estimate_tokens(text) <= MAX_TOKENS else _fitted(head, items)


def _fitted(head: Sequence[str], items: Sequence[StateItem]) -> str:
    """With as few items left out as it takes, found by halving."""
    order = sorted(items, key=_worth)
    low, high = 1, len(order)
    while low < high:
        middle = (low + high) // 2
        text = _document(head, _without(items, order[:middle]))
        if estimate_tokens(text) <= MAX_TOKENS:
            high = middle
        else:
            low = middle + 1
    return _document(head, _without(items, order[:low]))


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
    by_kind: dict[str, list[StateItem]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    return "\n".join([*head, *_sections(by_kind), ""])


def _sections(by_kind: dict[str, list[StateItem]]) -> Iterator[str]:
    if files := by_kind.get(FILE):
        yield "files_touched:"
        for item in files:
            yield f"  - path: {_scalar(item.text)}"
            yield f"    action: {_scalar(item.action)}"
            yield f"    turn: {item.turn}"
    if decisions := by_kind.get(DECISION):
        yield "key_decisions:"
        yield from (f"  - {_quoted(_with_turn(item))}" for item in decisions)
    for item in by_kind.get(FOCUS, ()):
        yield f"current_focus: {_quoted(item.text)}"
    if errors := by_kind.get(ERROR):
        yield "errors_resolved:"
        yield from (f"  - {_quoted(_with_turn(item))}" for item in errors)


def _with_turn(item: StateItem) -> str:
    return f"{item.text} (turn {item.turn})"


def _scalar(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.casefold() not in _WORDS
    return text if is_plain else _quoted(text)


def _quoted(text: str) -> str:
    """A double-quoted scalar. JSON's escapes are YAML's; YAML has more characters that
    may not stand as they are."""
    quoted = _ENCODER.encode(text)
    return quoted if quoted.isascii() and "\x7f" not in quoted else _UNSAFE.sub(_escaped, quoted)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
