"""The session state: a register of what happened, which is built by rules and without a model.

``facts`` reads the facts of one turn (with ``statements``, ``values`` and ``commands``) and adds
them to the state. This module has the state, a person's edits of it (pins, strikes and rewordings),
its JSON, the items that are shown, and its YAML.

The state is a pure function of the session's active turns and of the person's edits, each in their
order. Adding a turn never reads the marks of edits. Applying an edit reads at most the turn in
which its item was said last. So rebuilding from the archive gives the same bytes, however turns and
edits were interleaved.
"""

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from json import JSONEncoder
from threading import Lock
from typing import Any, NamedTuple, TypeGuard

from conversations.domain.active_path import are_within
from conversations.domain.search_tokens import STOP_WORDS
from conversations.domain.text import cut_words, estimate_tokens, load_json, one_line, storable

from .topics import is_same_topic, says_less

RULES_VERSION = 8  # Increased whenever the same turns would give a different state.
FILE, DECISION, ERROR, FOCUS = "file", "decision", "error", "focus"
RULE, PREFERENCE, VALUE = "rule", "preference", "value"
KINDS = (FILE, DECISION, ERROR, FOCUS, RULE, PREFERENCE, VALUE)
READ = "read"  # The action of a file that was only read.

# The source of an item: the person, a commit, the model, the outcome of a tool.
SAID, COMMIT, NOTED, OBSERVED = "said", "commit", "noted", "observed"
MAX_FILES, MAX_DECISIONS, MAX_ERRORS = 20, 10, 5  # The newest of each are kept.
MAX_OPEN_FAILURES = 5
# Struck and replaced statements are remembered, because they may have replaced a person's rewording
# of an earlier statement (see ``_replaced_in``).
MAX_STRUCK = 20
MAX_RULES, MAX_PREFERENCES, MAX_VALUES, MAX_REPLACED = 40, 40, 40, 20
MAX_REMEMBERED_VALUES = 40  # Values that are not known to have changed, which are not shown.
MAX_ITEM_CHARS, MAX_FOCUS_CHARS, MAX_PATH_CHARS = 160, 100, 200


class StateFile(NamedTuple):
    path: str
    action: str
    turn: int


class Statement(NamedTuple):
    """A decision, a rule or a preference, and the number of times that it was said."""

    id: str
    text: str
    turn: int
    source: str
    times: int = 1


class StateValue(NamedTuple):
    """A value that the person stated.

    Each of the ``amounts`` begins with its kind, such as ``measure 250 ms``. ``times`` is the
    number of known changes. It is 0 for a value that is only remembered.
    """

    id: str
    text: str
    turn: int
    amounts: tuple[str, ...]
    times: int


class ReplacedStatement(NamedTuple):
    """A statement or value that a later one, of the turn ``by``, replaced."""

    id: str
    kind: str
    text: str
    turn: int
    source: str
    by: int


class ResolvedError(NamedTuple):
    """An error that was resolved at ``turn``, with its solution in ``text``."""

    id: str
    text: str
    turn: int


class StateFocus(NamedTuple):
    text: str
    turn: int


class PendingCall(NamedTuple):
    """A tool call that waits for its result.

    ``kind`` is one of the kinds in :mod:`facts`. ``key`` is equal for calls that try the same
    thing. ``detail`` describes the call; its meaning depends on the kind.
    """

    id: str
    name: str
    kind: str
    turn: int
    place: int
    paths: tuple[str, ...]
    key: str
    detail: str


class FailedCall(NamedTuple):
    """A failed call that has not succeeded since. ``fixes`` are actions since the failure."""

    key: str
    kind: str
    text: str
    fixes: tuple[str, ...]


class ItemMark(NamedTuple):
    """A person's edits of an item, with the item as it was.

    The item is stored so that a pinned item remains when it is no longer in the register.
    ``rewording`` is empty if the item was not reworded. ``reworded_after`` is the session's last
    turn at the time of the rewording.
    """

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
    """The state of a session after a turn and an edit.

    ``tokens`` and ``model`` are those of the active turns. ``struck`` are statements that the model
    struck, and ``replaced`` are statements that later ones replaced. ``calls`` and ``failures`` are
    open. ``edit_seq`` is the event of the last edit that ``marks`` include.
    """

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

# The beginning of the text of every state that this version of the rules made.
PREFIX = f'{{"v":{RULES_VERSION},'
EMPTY = "{}"

# All texts in a state are already storable.
_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dump_state(state: SessionState) -> str:
    parts = (f'"{name}":{_dump_part(getattr(state, name))}' for name in SessionState._fields)
    text = f"{PREFIX}{','.join(parts)}}}"
    _cache_state(text, state)
    return text


# Recent states are cached, because the next append to a session, under the session's lock, starts
# from the state that the last append wrote. In between, the window reads it.
MAX_RECENT_STATES = 200
_RECENT: dict[str, SessionState] = {}
_RECENT_LOCK = Lock()


def _cache_state(text: str, state: SessionState) -> None:
    with _RECENT_LOCK:
        _RECENT[text] = state
        if len(_RECENT) > MAX_RECENT_STATES:
            del _RECENT[next(iter(_RECENT))]


@lru_cache(maxsize=1_000)
def _dump_part(part: Any) -> str:
    """Return the JSON of a field. It is cached because most fields are as in the state before."""
    return _ENCODER.encode(part)


def load_state(text: str) -> SessionState | None:
    """Read a state that :func:`dump_state` wrote.

    Return None if another version of the rules wrote it or if it is damaged. The state can then be
    rebuilt from the archive.
    """
    if text == EMPTY:
        return SessionState()
    recent = _RECENT.get(text)
    if recent is not None:
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
    _cache_state(text, state)
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

# The numbers of remembered marks and, among them, of pinned items.
MAX_MARKS, MAX_PINS = 60, 20

_MARK_CHANGES: dict[str, dict[str, bool]] = {
    PIN: {"is_pinned": True, "is_struck": False},
    UNPIN: {"is_pinned": False},
    STRIKE: {"is_pinned": False, "is_struck": True},
    UNSTRIKE: {"is_struck": False},
    REWORD: {},
}


class StateEdit(NamedTuple):
    """A person's edit of an item.

    ``item`` is the unmarked item of the register. ``text`` is the new wording. ``after`` is the
    session's last turn at the time of the edit; 0 stands for the turn of its event.
    """

    action: str
    item: ItemMark
    text: str = ""
    after: int = 0


def dump_edit(edit: StateEdit, *, by: str) -> dict[str, Any]:
    """Return the data of the event. ``by`` is a user name, for people to read."""
    item = dict(zip(ItemMark._fields[:6], edit.item, strict=False))
    data = {"v": EDIT_VERSION, "action": edit.action, "item": item, "text": edit.text, "by": by}
    data |= {"after": edit.after} if edit.after else {}
    return {name: value for name, value in data.items() if value != ""}


def read_edit(data: dict[str, Any] | None) -> StateEdit | None:
    """Return the edit in an event's data, or None if there is no valid one."""
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
            id=_read_text(item, "id", 64),
            kind=str(item["kind"]),
            text=_read_text(item, "text", max(MAX_ITEM_CHARS, MAX_PATH_CHARS)),
            turn=turn,
            action=_read_text(item, "action", 20),
            source=_read_text(item, "source", 20),
        ),
        text=_read_text(data, "text", MAX_ITEM_CHARS),
        after=after,
    )


def _is_turn(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def _read_text(values: dict[str, Any], name: str, limit: int) -> str:
    value = values.get(name)
    return one_line(storable(value), limit=limit) if isinstance(value, str) else ""


def apply_edit(state: SessionState, edit: StateEdit, *, seq: int, turn: int) -> SessionState:
    """Return the state after the edit that is the event ``seq`` after this turn.

    Beyond the limit of marks, marks without a pin are dropped first.
    """
    after = edit.after or turn
    same = [mark for mark in state.marks if is_same_item(mark, edit.item)]
    marks = [mark for mark in state.marks if mark not in same]
    mark = same[-1]._replace(id=edit.item.id, kind=edit.item.kind) if same else edit.item
    mark = mark._replace(**_MARK_CHANGES[edit.action])  # type: ignore[arg-type]
    if edit.action == REWORD:
        rewording = edit.text if edit.text != mark.text else ""
        mark = mark._replace(rewording=rewording, reworded_after=after)
    if edit.action in (STRIKE, REWORD):
        mark = mark._replace(turn=edit.item.turn)
    if mark.is_pinned or mark.is_struck or mark.rewording:
        marks.append(mark)
    pins = [mark.id for mark in marks if mark.is_pinned][-MAX_PINS:]
    kept = [mark for mark in marks if mark.id in pins or not mark.is_pinned]
    while len(kept) > MAX_MARKS:
        kept.remove(next(mark for mark in kept if not mark.is_pinned))
    return state._replace(marks=tuple(kept), edit_seq=seq)


def is_same_item(one: "ItemMark | Statement", other: "ItemMark | Statement") -> bool:
    """Whether both are the same item, which may have different ids.

    A statement gets a new id when it is repeated. Other versions of the rules may also have given
    it another id: some rules were decisions in earlier versions.
    """
    are_said = one.id[:1] in "drp" and other.id[:1] in "drp" and one.text == other.text
    return one.id == other.id or (are_said and (one.turn == other.turn or one.id[0] == other.id[0]))


def drop_marks(
    state: SessionState, ranges: Iterable[tuple[int, int]], *, left: SessionState
) -> SessionState:
    """Return the state without marks on items of these turns, which left the active path.

    ``left`` is the state without these turns. A mark is kept if its item is in that state, because
    the item was then also said in another turn.
    """
    gone = list(ranges)
    statements = (*left.decisions, *left.rules, *left.preferences)
    marks = []
    for mark in state.marks:
        if not are_within(mark.turn, gone):
            marks.append(mark)
            continue
        turns = [statement.turn for statement in statements if is_same_item(statement, mark)]
        if turns:
            marks.append(mark._replace(turn=max(turns)))
    return state._replace(marks=tuple(marks))


# The items that are shown: the items of the register with a person's marks applied.
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
# The kind of a statement by the first letter of its id.
STATEMENT_KINDS = {"d": DECISION, "r": RULE, "p": PREFERENCE, "v": VALUE}


class StateItem(NamedTuple):
    """One line of the register.

    ``id`` is stable. ``text`` is a file's path or a sentence. ``action`` is the action on a file.
    ``original`` is the text before a person reworded it, and empty if nobody did. ``struck_by`` is
    ``person``, ``model``, ``later`` (a statement of the turn ``replaced_in`` replaced the item) or
    empty. ``times`` is the number of times that the item was said.
    """

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
        """The actions on the item that a person can take now."""
        if self.struck_by:
            return (UNSTRIKE,)
        pin = UNPIN if self.is_pinned else PIN
        return (pin, STRIKE) if self.kind == FILE else (pin, REWORD, STRIKE)

    def as_mark(self) -> ItemMark:
        """Return the item in the form in which an edit stores it."""
        text = self.original or self.text
        return ItemMark(self.id, self.kind, text, self.turn, self.action, self.source)


class KeptItem(NamedTuple):
    """A rule or a preference in workspace memory.

    ``scope`` says whether it stands in the sessions of one person or of the whole workspace.
    """

    id: str
    kind: str
    text: str
    scope: str


FOR_PERSON, FOR_WORKSPACE = "person", "workspace"


def gives_way(earlier: str, later: str) -> bool:
    """Whether a later statement on the same topic replaces an earlier one, by their kinds.

    A preference does not replace a rule, but a rule replaces a preference.
    """
    return (earlier, later) != (RULE, PREFERENCE)


def choose_kept(
    kept: Iterable[KeptItem], items: Iterable[StateItem]
) -> tuple[tuple[KeptItem, ...], tuple[KeptItem, ...]]:
    """Return the kept items that stand beside a session's own items, and those that do not.

    A kept item does not stand if one of the session's rules or preferences on the same topic
    replaces it. A person's own items take precedence over those of the workspace.
    """
    stated = [(item.kind, item.text) for item in items if item.kind in (RULE, PREFERENCE)]
    chosen: list[KeptItem] = []
    replaced: list[KeptItem] = []
    for item in sorted(kept, key=lambda item: item.scope != FOR_PERSON):
        is_replaced = any(
            item.text.casefold() == text.casefold() or is_same_topic(item.text, text)
            for kind, text in (*stated, *((other.kind, other.text) for other in chosen))
            if gives_way(item.kind, kind)
        )
        if is_replaced:
            replaced.append(item)
        else:
            chosen.append(item)
    return tuple(chosen), tuple(replaced)


def list_items(state: SessionState) -> tuple[tuple[StateItem, ...], tuple[StateItem, ...]]:
    """Return the items in force and the struck items, each kind in the order of its turns.

    Pinned items always stay and count towards the limit of their kind. Half of the limit is
    reserved for the newest items.
    """
    # The topic of a reworded item is that of its new wording. So a statement that replaced the
    # earlier wording does not replace the item.
    reworded = {mark.id: mark.turn for mark in state.marks if mark.rewording}
    restored = [
        Statement(old.id, old.text, old.turn, old.source)
        for old in state.replaced
        if old.kind in (RULE, PREFERENCE) and old.turn <= reworded.get(old.id, 0)
    ]
    statements = (*state.decisions, *state.rules, *state.preferences, *restored)
    registered = _items_of_register(state, statements)
    ids = {item.id for item in registered}
    # The marks by the present ids of their items.
    marks: dict[str, ItemMark] = {}
    for mark in state.marks:
        same = [statement.id for statement in statements if is_same_item(statement, mark)]
        item_id = mark.id if mark.id in ids or not same else same[0]
        marks[item_id] = mark
    # A pinned item is shown even if it is no longer in the register.
    registered += [
        _item_of_mark(mark)
        for item_id, mark in marks.items()
        if mark.is_pinned and item_id not in ids
    ]
    struck: list[StateItem] = []
    for item in _struck_and_replaced_items(state, ids):
        item_mark = marks.get(item.id)
        if item_mark is None:
            struck.append(item)
        elif not item_mark.is_pinned:
            # An item that a person struck before it was replaced is listed as replaced. Restoring
            # it pins it.
            struck.append(_with_mark(item, item_mark)._replace(struck_by=item.struck_by))
    shown: list[StateItem] = []
    for item in sorted(registered, key=lambda item: item.turn):
        item_mark = marks.get(item.id)
        if item_mark is not None:
            item = _with_mark(item, item_mark)
            replaced_in = _replaced_in(state, item, item_mark)
            if replaced_in:
                item = item._replace(struck_by=BY_LATER, replaced_in=replaced_in)
        if item.struck_by:
            struck.append(item)
        else:
            shown.append(item)
    listed_ids = {item.id for item in (*shown, *struck)}
    struck += [
        _with_mark(_item_of_mark(mark), mark)
        for item_id, mark in marks.items()
        if mark.is_struck and item_id not in listed_ids
    ]
    items = [item for kind in _LIMITS for item in _limited(shown, kind)]
    return tuple(items), tuple(sorted(struck, key=lambda item: (item.kind, item.turn)))


def _items_of_register(state: SessionState, statements: Iterable[Statement]) -> list[StateItem]:
    """Return the items without marks."""
    items = [
        *(
            StateItem("f" + sha256(path.encode()).hexdigest()[:16], FILE, path, turn, action)
            for path, action, turn in state.files
        ),
        *map(_item_of_statement, statements),
        *(
            StateItem(value.id, VALUE, value.text, value.turn, source=SAID, times=value.times)
            for value in state.values
            if value.times
        ),
        *(StateItem(error.id, ERROR, error.text, error.turn) for error in state.errors),
    ]
    if state.focus:
        text, turn = state.focus
        items.append(StateItem(f"c{turn}", FOCUS, text, turn, source=SAID))
    return items


def _struck_and_replaced_items(state: SessionState, registered: Container[str]) -> list[StateItem]:
    """Return the items that the model struck, and the replaced ones that are not registered."""
    return [
        *(_item_of_statement(struck)._replace(struck_by=BY_MODEL) for struck in state.struck),
        *(
            StateItem(*old[:4], source=old.source, struck_by=BY_LATER, replaced_in=old.by)
            for old in state.replaced
            if old.id not in registered
        ),
    ]


def _item_of_statement(statement: Statement) -> StateItem:
    item, text, turn, source, times = statement
    return StateItem(item, STATEMENT_KINDS[item[:1]], text, turn, source=source, times=times)


def _item_of_mark(mark: ItemMark) -> StateItem:
    return StateItem(*mark[:5], source=mark.source or OBSERVED)


def _with_mark(item: StateItem, mark: ItemMark) -> StateItem:
    """Return the item with the mark applied.

    If the item was said again after it was struck or reworded, it stands as it was said.
    """
    item = item._replace(is_pinned=mark.is_pinned)
    if item.turn > mark.turn:
        return item
    item = item._replace(struck_by=BY_PERSON if mark.is_struck else item.struck_by)
    return item._replace(text=mark.rewording, original=item.text) if mark.rewording else item


def _replaced_in(state: SessionState, item: StateItem, mark: ItemMark) -> int:
    """Return the first turn that replaced an item that a person had reworded, or 0 if none did."""
    is_stated = item.kind in (RULE, PREFERENCE)
    if not is_stated or not item.original or item.is_pinned:
        return 0
    statements: list[Statement | ReplacedStatement] = [*state.rules, *state.preferences]
    statements += [*state.struck, *state.replaced]
    turns = [
        statement.turn
        for statement in statements
        if statement.turn > mark.reworded_after
        and (kind := STATEMENT_KINDS[statement.id[:1]]) in (RULE, PREFERENCE)
        and gives_way(item.kind, kind)
        and is_same_topic(item.text, statement.text)
        and not says_less(item.text, statement.text)
    ]
    return min(turns, default=0)


def _limited(items: list[StateItem], kind: str) -> list[StateItem]:
    of_kind = [item for item in items if item.kind == kind]
    pinned = [item for item in of_kind if item.is_pinned]
    if kind == FOCUS:
        return (pinned or of_kind)[-1:]
    others = [item for item in of_kind if not item.is_pinned]
    room = max(_LIMITS[kind] // 2, _LIMITS[kind] - len(pinned))
    kept_ids = {item.id for item in (*pinned, *others[-room:])}
    return [item for item in of_kind if item.id in kept_ids]


MAX_STATE_TOKENS = 1_000
# The maximum lengths of preferences, which are tried in this order until the state fits.
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
    """Return the state as YAML, with the items of workspace memory for the session.

    Return an empty text if there are no items. If the items do not fit, some are left out in the
    order of ``_worth``.
    """
    items, _ = list_items(state)
    standing, _ = choose_kept(kept, items)
    items = (*(StateItem(*item[:3], turn=0, source=item.scope) for item in standing), *items)
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
        text = _write_document(head, items)
        if estimate_tokens(text) <= MAX_STATE_TOKENS:
            return text
    order = sorted(items, key=_worth)

    def write_without(count: int) -> str:
        gone = {item.id for item in order[:count]}
        return _write_document(head, [item for item in items if item.id not in gone])

    # A binary search finds the smallest number of items to leave out.
    counts = range(len(order))
    count = bisect_left(
        counts, True, 1, key=lambda count: estimate_tokens(write_without(count)) <= MAX_STATE_TOKENS
    )
    return write_without(count)


def _shortened(item: StateItem, limit: int) -> StateItem:
    """Return a long preference cut to its beginning, which says most. Pinned items stay whole."""
    if item.is_pinned or item.kind != PREFERENCE or len(item.text) <= limit:
        return item
    words = cut_words(item.text, limit).split(" ")
    while len(words) > 1 and words[-1].casefold() in STOP_WORDS:
        words.pop()  # Words such as ``for the`` before the cut have no meaning.
    text = " ".join(words).rstrip(" ,;:")
    if len(text) <= limit // 2:  # Not every language has spaces.
        text = item.text[:limit]
    return item._replace(text=f"{text}…")


def _worth(item: StateItem) -> tuple[bool, int, int, int]:
    """Return a sort key. Items that sort first are left out first.

    Pinned items are left out last, and rules just before them. Among items of the same rank, the
    oldest of the least used are left out first.
    """
    ranks = {FILE: 1, ERROR: 1, VALUE: 3, PREFERENCE: 4, DECISION: 4, FOCUS: 5, RULE: 6}
    rank = ranks[item.kind]
    if item.action == READ:
        rank = 0
    elif item.source == COMMIT:
        rank = 2
    times = min(item.times, 2) if item.kind == VALUE else item.times
    return item.is_pinned, rank, times, item.turn


def _write_document(head: Sequence[str], items: Sequence[StateItem]) -> str:
    lines = [*head]
    for kind, name in _LISTS.items():
        of_kind = [item for item in items if item.kind == kind]
        if kind == FOCUS:
            lines += [f"{name}: {_quoted(item.text)}" for item in of_kind]
            continue
        if of_kind:
            lines.append(f"{name}:")
        for item in of_kind:
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
    # Quotes and escapes cost tokens. Most sentences are valid plain scalars without them.
    return text if _PLAIN_SENTENCE.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    """Return a double-quoted scalar.

    JSON's escapes are valid in YAML, but YAML requires escapes for more characters.
    """
    quoted = _QUOTER.encode(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
