"""The session state: a register of what happened, by rules and without a model.

``facts`` reads from one turn what the rules need (``statements`` reads its sentences and
commands) and adds it to the state. Here is the state with a person's pins, strikes and
rewordings, its JSON, what of it is shown, and its YAML.

The state is a pure function of the session's active turns in order and of the
person's edits in order: turns never look at marks, and marks at most at the turn in which
their item was said last, so rebuilding from the archive gives the same bytes however the two
were interleaved.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from json import JSONEncoder
from threading import Lock
from typing import Any, NamedTuple, TypeGuard

from conversations.domain.active_path import are_within
from conversations.domain.text import cut_words, estimate_tokens, load_json, one_line, storable
from conversations.domain.words import STOP_WORDS

from .matters import is_same_topic, says_less

RULES_VERSION = 8  # Raised whenever the same turns would give another state.
FILE, DECISION, ERROR, FOCUS = "file", "decision", "error", "focus"
RULE, PREFERENCE, VALUE = "rule", "preference", "value"
KINDS = (FILE, DECISION, ERROR, FOCUS, RULE, PREFERENCE, VALUE)
READ = "read"  # What was done to a file that was only looked at.

# Where an item comes from: the person, a commit, the model, a tool's outcome.
SAID, COMMIT, NOTED, OBSERVED = "said", "commit", "noted", "observed"
MAX_FILES, MAX_DECISIONS, MAX_ERRORS = 20, 10, 5  # How many of each are kept, the newest.
MAX_OPEN_FAILURES = 5
# What was struck or replaced is remembered as long as it takes to tell which wordings it replaced.
MAX_STRUCK = 20
MAX_RULES, MAX_PREFERENCES, MAX_VALUES, MAX_REPLACED = 40, 40, 40, 20
MAX_REMEMBERED_VALUES = 40  # Values that are not known to have changed; they are not shown.
MAX_ITEM_CHARS, MAX_FOCUS_CHARS, MAX_PATH_CHARS = 160, 100, 200


class StateFile(NamedTuple):
    path: str
    action: str
    turn: int


class Statement(NamedTuple):
    """A decision, a rule or a preference, and how often it was said."""

    id: str
    text: str
    turn: int
    source: str
    times: int = 1


class StateValue(NamedTuple):
    """``amounts`` have their class before them, such as ``measure 250 ms``; ``times``: how
    often it was known to have changed, 0 for one that is only remembered."""

    id: str
    text: str
    turn: int
    amounts: tuple[str, ...]
    times: int


class ReplacedStatement(NamedTuple):
    """What a later statement, of the turn ``by``, took the place of."""

    id: str
    kind: str
    text: str
    turn: int
    source: str
    by: int


class ResolvedError(NamedTuple):
    """An error, and what made it go away at ``turn``."""

    id: str
    text: str
    turn: int


class StateFocus(NamedTuple):
    text: str
    turn: int


class PendingCall(NamedTuple):
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


class FailedCall(NamedTuple):
    """A call that failed and was not made good yet. ``fixes``: what was done since."""

    key: str
    kind: str
    text: str
    fixes: tuple[str, ...]


class ItemMark(NamedTuple):
    """What a person did to an item, with the item as it was, so that a pinned one
    outlives its place in the register. ``rewording`` empty: as it was; ``reworded_after``: the
    last turn when that was made."""

    id: str
    kind: str
    text: str
    turn: int
    action: str
    source: str
    is_pinned: bool = False
    is_struck: bool = False
    rewording: str = ""
    reworded_after: int = 0


class SessionState(NamedTuple):
    """``tokens`` and ``model`` are of the active turns, ``struck`` is what the model took
    back, ``replaced`` what a later statement did, ``calls`` and ``failures`` are open;
    ``edit_seq`` is the event of the last edit that ``marks`` hold."""

    tokens: int = 0
    model: str = ""
    focus: StateFocus | None = None
    files: tuple[StateFile, ...] = ()
    decisions: tuple[Statement, ...] = ()
    rules: tuple[Statement, ...] = ()
    preferences: tuple[Statement, ...] = ()
    values: tuple[StateValue, ...] = ()
    errors: tuple[ResolvedError, ...] = ()
    struck: tuple[Statement, ...] = ()
    replaced: tuple[ReplacedStatement, ...] = ()
    calls: tuple[PendingCall, ...] = ()
    failures: tuple[FailedCall, ...] = ()
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


# What one append writes the next one starts from, under the session's lock, and the window
# reads in between.
MAX_RECENT_STATES = 200
_RECENT: dict[str, SessionState] = {}
_RECENT_LOCK = Lock()


def _remember(text: str, state: SessionState) -> None:
    with _RECENT_LOCK:
        _RECENT[text] = state
        if len(_RECENT) > MAX_RECENT_STATES:
            del _RECENT[next(iter(_RECENT))]


@lru_cache(maxsize=1_000)
def _dump_part(part: Any) -> str:
    """One field. Most are what they were in the state before."""
    return _ENCODER.encode(part)


def load_state(text: str) -> SessionState | None:
    """Read what :func:`dump_state` wrote, None for what these rules did not write or
    what was damaged: the archive gives it again."""
    if text == EMPTY:
        return SessionState()
    if (recent := _RECENT.get(text)) is not None:
        return recent
    try:
        value = load_json(text) if text.startswith(PREFIX) else {}
        if [*value] != ["v", *SessionState._fields]:
            return None
        del value["v"]
        for name, kind in _PARTS.items():
            value[name] = tuple(
                kind(*(tuple(cell) if isinstance(cell, list) else cell for cell in row))
                for row in value[name]
            )
        value["focus"] = StateFocus(*value["focus"]) if value["focus"] else None
        state = SessionState(**value)
    except (ValueError, KeyError, TypeError):
        return None
    _remember(text, state)
    return state


_PARTS: dict[str, type[Any]] = {
    "files": StateFile,
    "decisions": Statement,
    "rules": Statement,
    "preferences": Statement,
    "values": StateValue,
    "errors": ResolvedError,
    "struck": Statement,
    "replaced": ReplacedStatement,
    "calls": PendingCall,
    "failures": FailedCall,
    "marks": ItemMark,
}


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
    """``item`` is unmarked, as the register has it. ``text``: the new wording. ``after``: the last
    turn when it was made; 0: that of its event."""

    action: str
    item: ItemMark
    text: str = ""
    after: int = 0


def dump_edit(edit: StateEdit, *, by: str) -> dict[str, Any]:
    """The data of the event. ``by`` is a user name, for people to read."""
    item = dict(zip(ItemMark._fields[:6], edit.item, strict=False))
    data = {"v": EDIT_VERSION, "action": edit.action, "item": item, "text": edit.text, "by": by}
    data |= {"after": edit.after} if edit.after else {}
    return {name: value for name, value in data.items() if value != ""}


def read_edit(data: dict[str, Any] | None) -> StateEdit | None:
    """The edit that an event's data holds, None if they hold none."""
    data = data or {}
    item = data.get("item")
    if data.get("action") not in ACTIONS or not isinstance(item, dict):
        return None
    turn, after = item.get("turn"), data.get("after", 0)
    if item.get("kind") not in KINDS or not _is_turn(turn) or not _is_turn(after):
        return None
    return StateEdit(
        action=str(data["action"]),
        item=ItemMark(
            id=_text(item, "id", 64),
            kind=str(item["kind"]),
            text=_text(item, "text", max(MAX_ITEM_CHARS, MAX_PATH_CHARS)),
            turn=turn,
            action=_text(item, "action", 20),
            source=_text(item, "source", 20),
        ),
        text=_text(data, "text", MAX_ITEM_CHARS),
        after=after,
    )


def _is_turn(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def _text(values: dict[str, Any], name: str, limit: int) -> str:
    value = values.get(name)
    return one_line(storable(value), limit=limit) if isinstance(value, str) else ""


def apply_edit(state: SessionState, edit: StateEdit, *, seq: int, turn: int) -> SessionState:
    """The state after the edit that is the event ``seq`` after this turn. Pins outlive other
    marks."""
    after = edit.after or turn
    known = [mark for mark in state.marks if is_same_item(mark, edit.item)]
    marks = [mark for mark in state.marks if mark not in known]
    mark = known[-1]._replace(id=edit.item.id, kind=edit.item.kind) if known else edit.item
    mark = mark._replace(**_CHANGES[edit.action])  # type: ignore[arg-type]
    if edit.action == REWORD:
        rewording = edit.text if edit.text != mark.text else ""
        mark = mark._replace(rewording=rewording, reworded_after=after)
    if edit.action in (STRIKE, REWORD):
        # Earlier rules left what was said again at its first turn: the edit is of the last one.
        said = (*state.decisions, *state.rules, *state.preferences)
        turns = (one.turn for one in said if one.turn <= after and is_same_item(one, edit.item))
        mark = mark._replace(turn=max(edit.item.turn, *turns, 0))
    if mark.is_pinned or mark.is_struck or mark.rewording:
        marks.append(mark)
    pins = [mark.id for mark in marks if mark.is_pinned][-MAX_PINS:]
    kept = [mark for mark in marks if mark.id in pins or not mark.is_pinned]
    while len(kept) > MAX_MARKS:
        kept.remove(next(mark for mark in kept if not mark.is_pinned))
    return state._replace(marks=tuple(kept), edit_seq=seq)


def is_same_item(one: "ItemMark | Statement", other: "ItemMark | Statement") -> bool:
    """Also where it was said again, and where other rules gave it another id: what is a rule now
    was a decision once."""
    are_said = one.id[:1] in "drp" and other.id[:1] in "drp" and one.text == other.text
    return one.id == other.id or (are_said and (one.turn == other.turn or one.id[0] == other.id[0]))


def drop_marks(
    state: SessionState, ranges: Iterable[tuple[int, int]], *, left: SessionState
) -> SessionState:
    """Without the marks on items of these turns, which left the active path. ``left`` is the state
    without them: what was said before as well stands there, and keeps its mark."""
    gone, marks = list(ranges), []
    said = (*left.decisions, *left.rules, *left.preferences)
    for mark in state.marks:
        if not are_within(mark.turn, gone):
            marks.append(mark)
        elif turns := [one.turn for one in said if is_same_item(one, mark)]:
            marks.append(mark._replace(turn=max(turns)))
    return state._replace(marks=tuple(marks))


# What the state shows: the register's items as a person's marks leave them.
_LIMITS = {
    FILE: MAX_FILES,
    DECISION: MAX_DECISIONS,
    RULE: MAX_RULES,
    PREFERENCE: MAX_PREFERENCES,
    VALUE: MAX_VALUES,
    ERROR: MAX_ERRORS,
    FOCUS: 1,
}
BY_PERSON, BY_MODEL, BY_LATER = "person", "model", "later"
# By the first letter of an item's id.
STATEMENT_KINDS = {"d": DECISION, "r": RULE, "p": PREFERENCE, "v": VALUE}


class StateItem(NamedTuple):
    """One line of the register. ``id`` is stable. ``text`` is a file's path, else a
    sentence; ``action`` is what was done to a file; ``original`` is the text before
    a person reworded it, else empty. ``struck_by``: person, model, later (a statement of
    the turn ``replaced_in`` took its place) or nobody. ``times``: how often it was said."""

    id: str
    kind: str
    text: str
    turn: int
    action: str = ""
    source: str = OBSERVED
    is_pinned: bool = False
    original: str = ""
    struck_by: str = ""
    replaced_in: int = 0
    times: int = 1

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


class KeptItem(NamedTuple):
    """A rule or a preference of the workspace's memory. ``scope``: whose sessions it stands
    in, a person's or the whole workspace's."""

    id: str
    kind: str
    text: str
    scope: str


FOR_PERSON, FOR_WORKSPACE = "person", "workspace"


def gives_way(earlier: str, later: str) -> bool:
    """Whether a rule or a preference goes where a later one on its matter stands: a wish does not
    lift a rule, but a rule ends a wish."""
    return (earlier, later) != (RULE, PREFERENCE)


def choose_kept(
    kept: Iterable[KeptItem], items: Iterable[StateItem]
) -> tuple[tuple[KeptItem, ...], tuple[KeptItem, ...]]:
    """Those that stand beside a session's own items, and those in whose place one of its rules
    or preferences on the same matter stands. What is for the person goes before the rest."""
    said = [(item.kind, item.text) for item in items if item.kind in (RULE, PREFERENCE)]
    chosen: list[KeptItem] = []
    replaced: list[KeptItem] = []
    for one in sorted(kept, key=lambda one: one.scope != FOR_PERSON):
        is_said = any(
            one.text.casefold() == text.casefold() or is_same_topic(one.text, text)
            for kind, text in (*said, *((other.kind, other.text) for other in chosen))
            if gives_way(one.kind, kind)
        )
        (replaced if is_said else chosen).append(one)
    return tuple(chosen), tuple(replaced)


def list_items(state: SessionState) -> tuple[tuple[StateItem, ...], tuple[StateItem, ...]]:
    """The items in force and those that were struck: each kind in the order of its
    turns. Pinned ones always stay and count within the limit of their kind, but half of
    it is the newest's."""
    # What a person reworded is on the matter of its wording: what took the place of the earlier
    # one says nothing of it.
    reworded = {mark.id: mark.turn for mark in state.marks if mark.rewording}
    back = [
        Statement(gone.id, gone.text, gone.turn, gone.source)
        for gone in state.replaced
        if gone.kind in (RULE, PREFERENCE) and gone.turn <= reworded.get(gone.id, 0)
    ]
    said = (*state.decisions, *state.rules, *state.preferences, *back)
    registered = [
        *(
            StateItem("f" + sha256(path.encode()).hexdigest()[:16], FILE, path, turn, action)
            for path, action, turn in state.files
        ),
        *map(_statement, said),
        *(
            StateItem(value.id, VALUE, value.text, value.turn, source=SAID, times=value.times)
            for value in state.values
            if value.times
        ),
        *(StateItem(error.id, ERROR, error.text, error.turn) for error in state.errors),
    ]
    if state.focus:
        text, turn = state.focus
        registered.append(StateItem(f"c{turn}", FOCUS, text, turn, source=SAID))
    known = {item.id for item in registered}
    marks = {}
    for made in state.marks:
        same = [one.id for one in said if is_same_item(one, made)]
        now = made.id if made.id in known or not same else same[0]
        marks[now] = made
    # What a person marked outlives its place in the register.
    registered += [
        _item(mark) for now, mark in marks.items() if mark.is_pinned and now not in known
    ]
    shown: list[StateItem] = []
    gone_items = [
        *(_statement(gone)._replace(struck_by=BY_MODEL) for gone in state.struck),
        *(
            StateItem(*gone[:4], source=gone.source, struck_by=BY_LATER, replaced_in=gone.by)
            for gone in state.replaced
            if gone.id not in known
        ),
    ]
    # What a person removed before it was replaced stands there as replaced: restoring pins it.
    struck = [
        _marked(item, mark)._replace(struck_by=item.struck_by) if mark else item
        for item in gone_items
        if not ((mark := marks.get(item.id)) and mark.is_pinned)
    ]
    for item in sorted(registered, key=lambda item: item.turn):
        mark = marks.get(item.id)
        if mark is None:
            shown.append(item)
            continue
        item = _marked(item, mark)
        by = _replaced_in(state, item, mark)
        item = item._replace(struck_by=BY_LATER, replaced_in=by) if by else item
        (struck if item.struck_by else shown).append(item)
    told = {item.id for item in (*shown, *struck)}
    struck += [
        _marked(_item(mark), mark)
        for now, mark in marks.items()
        if mark.is_struck and now not in told
    ]
    items = [item for kind in _LIMITS for item in _limited(shown, kind)]
    return tuple(items), tuple(sorted(struck, key=lambda item: (item.kind, item.turn)))


def _statement(said: Statement) -> StateItem:
    item, text, turn, source, times = said
    return StateItem(item, STATEMENT_KINDS[item[:1]], text, turn, source=source, times=times)


def _item(mark: ItemMark) -> StateItem:
    return StateItem(*mark[:5], source=mark.source or OBSERVED)


def _marked(item: StateItem, mark: ItemMark) -> StateItem:
    """What is said again after it was removed or reworded stands as it was said."""
    item = item._replace(is_pinned=mark.is_pinned)
    if item.turn > mark.turn:
        return item
    item = item._replace(struck_by=BY_PERSON if mark.is_struck else item.struck_by)
    return item._replace(text=mark.rewording, original=item.text) if mark.rewording else item


def _replaced_in(state: SessionState, item: StateItem, mark: ItemMark) -> int:
    """The first turn that stated something in the place of what a person had reworded; 0: none."""
    is_stated = item.kind in (RULE, PREFERENCE)
    if not is_stated or not item.original or item.is_pinned:
        return 0
    said: list[Statement | ReplacedStatement] = [*state.rules, *state.preferences]
    said += [*state.struck, *state.replaced]
    turns = [
        one.turn
        for one in said
        if one.turn > mark.reworded_after
        and (kind := STATEMENT_KINDS[one.id[:1]]) in (RULE, PREFERENCE)
        and gives_way(item.kind, kind)
        and is_same_topic(item.text, one.text)
        and not says_less(item.text, one.text)
    ]
    return min(turns, default=0)


def _limited(items: list[StateItem], kind: str) -> list[StateItem]:
    found = [item for item in items if item.kind == kind]
    pinned = [item for item in found if item.is_pinned]
    if kind == FOCUS:
        return (pinned or found)[-1:]
    others = [item for item in found if not item.is_pinned]
    room = max(_LIMITS[kind] // 2, _LIMITS[kind] - len(pinned))
    kept = {item.id for item in (*pinned, *others[-room:])}
    return [item for item in found if item.id in kept]


MAX_STATE_TOKENS = 1_000
# How long preferences may be at most, one after the other, until all of them fit.
SHORTENED_CHARS = (100, 80, 65)

_LISTS = {
    RULE: "rules",
    PREFERENCE: "preferences",
    VALUE: "changed_values",
    FILE: "files_touched",
    DECISION: "key_decisions",
    FOCUS: "current_focus",
    ERROR: "errors_resolved",
}

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_PLAIN_SENTENCE = re.compile(r"[A-Za-z][A-Za-z0-9 ,.;()'’“”%$€£/+*&_…–—-]*\)")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_QUOTER = JSONEncoder(ensure_ascii=False)
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def write_yaml(
    state: SessionState,
    *,
    session: str,
    workspace: str,
    turn_count: int,
    kept: Iterable[KeptItem] = (),
) -> str:
    """The state as YAML, with what the workspace's memory holds for the session; empty when
    there is nothing to say. What does not fit is left out, as ``_worth`` says."""
    items, _ = list_items(state)
    standing, _ = choose_kept(kept, items)
    items = (*(StateItem(*one[:3], turn=0, source=one.scope) for one in standing), *items)
    if not items:
        return ""
    head = [
        "session:",
        f"  id: {_scalar(session)}",
        f"  workspace: {_scalar(workspace[-MAX_PATH_CHARS:])}",
        *([f"  model: {_scalar(state.model)}"] if state.model else []),
        f"  turn_count: {turn_count}",
        f"  total_tokens: {state.tokens}",
    ]
    for limit in (None, *SHORTENED_CHARS):
        if limit:
            items = tuple(_shortened(item, limit) for item in items)
        text = _document(head, items)
        if estimate_tokens(text) <= MAX_STATE_TOKENS:
            return text
    order = sorted(items, key=_worth)

    def write_without(count: int) -> str:
        gone = {item.id for item in order[:count]}
        return _document(head, [item for item in items if item.id not in gone])

    # As few items are left out as it takes, found by halving.
    counts = range(len(order))
    least = bisect_left(
        counts, True, 1, key=lambda count: estimate_tokens(write_without(count)) <= MAX_STATE_TOKENS
    )
    return write_without(least)


def _shortened(item: StateItem, limit: int) -> StateItem:
    """The beginning of a long preference, which says most; what is pinned stays whole."""
    if item.is_pinned or item.kind != PREFERENCE or len(item.text) <= limit:
        return item
    words = cut_words(item.text, limit).split(" ")
    while len(words) > 1 and words[-1].casefold() in STOP_WORDS:
        words.pop()  # ``for the`` before the cut says nothing.
    said = " ".join(words).rstrip(" ,;:")
    # Not every language has spaces.
    said = said if len(said) > limit // 2 else item.text[:limit]
    return item._replace(text=f"{said}…")


def _worth(item: StateItem) -> tuple[bool, int, int, int]:
    """What sorts first is left out first: a rule last, else the oldest of the least used."""
    ranks = {FILE: 1, ERROR: 1, VALUE: 3, PREFERENCE: 4, DECISION: 4, FOCUS: 5, RULE: 6}
    rank = ranks[item.kind]
    if item.action == READ:
        rank = 0
    elif item.source == COMMIT:
        rank = 2
    times = min(item.times, 2) if item.kind == VALUE else item.times
    return item.is_pinned, rank, times, item.turn


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
                is_kept = item.source in (FOR_PERSON, FOR_WORKSPACE)
                where = f"kept for the {item.source}" if is_kept else f"turn {item.turn}"
                lines.append(f"  - {_sentence(f'{item.text} ({where})')}")
    return "\n".join([*lines, ""])


def _scalar(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.casefold() not in _WORDS
    return text if is_plain else _quoted(text)


def _sentence(text: str) -> str:
    # Quotes and escapes cost tokens: most sentences are plain scalars as they are.
    return text if _PLAIN_SENTENCE.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    """A double-quoted scalar. JSON's escapes are YAML's; YAML has more characters that
    may not stand as they are."""
    quoted = _QUOTER.encode(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
