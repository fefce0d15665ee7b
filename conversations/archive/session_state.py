"""The session state: reading it for the window and the panel, editing and rebuilding it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import merge
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from conversations.domain.active_path import (
    Marker,
    Ranges,
    first_difference,
    hidden_ranges,
    merge_ranges,
)
from conversations.domain.errors import NotFound, Rejected, TooLarge, Unavailable
from conversations.domain.events import INFO, Info, MalformedPayload, parse_payload
from conversations.domain.messages import Message, say
from conversations.domain.session_state import (
    ACTIONS,
    BY_LATER,
    BY_MODEL,
    DECISION,
    EMPTY,
    ERROR,
    FILE,
    FOCUS,
    MAX_FOCUS_CHARS,
    MAX_ITEM_CHARS,
    MAX_PINS,
    PIN,
    PREFERENCE,
    PREFIX,
    REWORD,
    RULE,
    STATE_EDIT,
    STRIKE,
    UNPIN,
    UNSTRIKE,
    VALUE,
    ItemMark,
    KeptItem,
    SessionState,
    StateEdit,
    StateItem,
    apply_edit,
    choose_kept,
    drop_marks,
    dump_edit,
    dump_state,
    list_items,
    load_state,
    write_yaml,
)
from conversations.domain.session_state.facts import fold_facts
from conversations.domain.text import one_line, storable
from conversations.domain.turns import StoredTurn
from conversations.models import ChatEvent, Rewind, Session, StateCheckpoint, Turn
from conversations.models.fields import locate_folder

from .append import (
    AppendResult,
    NewEvent,
    append,
    lock_session,
    locked_session,
    read_row,
    walk_rows,
)
from .memory import read_kept
from .rights import is_for_members
from .state_updates import CHECKPOINT_TURNS, INSERT_CHECKPOINT, edit_of, read_facts_of
from .turns import COLUMNS, marker_columns, read_markers
from .workspaces import read_username

# The session state at any moment, computed from the nearest checkpoint and the turns after it.


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StateMoment:
    """A moment of a session: its last turn, its last event and its number of rewinds."""

    turn: int
    seq: int
    rewinds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The session state as stored in the session's row.

    ``state_turn`` is the last turn that ``text`` includes, and ``root`` is the workspace's folder.
    ``owner_pk`` is the person whose own workspace memory stands in the state, or None if other
    people than members read the session. ``has_memory`` says whether the workspace memory may have
    entries.
    """

    session_pk: int
    uuid: UUID
    root: str
    workspace_pk: int
    owner_pk: int | None
    has_memory: bool
    moment: StateMoment
    text: str
    state_turn: int

    def load(self) -> SessionState | None:
        """Return the state after the last turn, or None if the stored state is behind."""
        return load_state(self.text) if self.state_turn == self.moment.turn else None


_SELECT = (
    "SELECT s.uuid, w.root, w.id, s.owner_id, s.channel, s.key, s.former_key,"
    " EXISTS(SELECT 1 FROM conversations_memoryentry m WHERE m.workspace_id = w.id"
    " AND NOT m.is_declined), s.next_turn, s.next_seq, s.rewind_count, s.state, s.state_turn"
    " FROM conversations_session s JOIN conversations_workspace w ON w.id = s.workspace_id"
    " WHERE s.id = %s"
)


def read_stored_state(session_pk: int) -> StoredState:
    """Return the stored state. Raise NotFound if the session does not exist.

    This uses raw SQL because the query delays the first word of the answer.
    """
    row = read_row(_SELECT, [session_pk])
    if row is None:
        raise NotFound("This session does not exist.")
    uuid, root, workspace, owner, channel, key, former_key, has_memory, *rest = row
    next_turn, next_seq, rewinds, text, state_turn = rest
    return StoredState(
        session_pk=session_pk,
        uuid=UUID(str(uuid)),
        root=locate_folder(root),
        workspace_pk=workspace,
        has_memory=bool(has_memory),
        owner_pk=owner if is_for_members(channel, key, former_key) else None,
        moment=StateMoment(turn=next_turn - 1, seq=next_seq - 1, rewinds=rewinds),
        text=text,
        state_turn=state_turn,
    )


_START = StateCheckpoint(turn=0, seq=0, rewinds=0, state=EMPTY)


def read_state_at(session_pk: int, moment: StateMoment) -> SessionState:
    """Return the state as it was at the moment."""
    markers = read_markers(session_pk, "turn")
    return _compute_state(session_pk, moment, markers, partial(_newest_checkpoint, session_pk))


def _compute_state(
    session_pk: int,
    moment: StateMoment,
    markers: Sequence[Marker],
    newest: Callable[[StateMoment], StateCheckpoint],
) -> SessionState:
    """Return the state at the moment. ``newest`` returns the newest checkpoint up to a moment.

    For example, there are checkpoints at the turns 50 and 100, and the turns 80 to 110 are taken
    off the path. The items come from the checkpoint at turn 50 and the turns 51 to 79. A person's
    marks come from the checkpoint at turn 100, because every edit adds a checkpoint."""
    gone = hidden_ranges(markers[: moment.rewinds])
    base = newest(moment)
    marked = _load_checkpoint(base)
    while (apart := first_difference(hidden_ranges(markers[: base.rewinds]), gone)) <= base.turn:
        base = newest(replace(moment, turn=apart - 1))
    state = _load_checkpoint(base)
    for turn in active_turns(session_pk, base.turn, moment.turn, gone):
        state = fold_facts(state, turn.number, read_facts_of(turn))
    marks = drop_marks(marked, gone, left=state).marks
    return state._replace(marks=marks, edit_seq=marked.edit_seq)


def _load_checkpoint(checkpoint: StateCheckpoint) -> SessionState:
    state = load_state(checkpoint.state)
    if state is None:
        raise Unavailable(
            "A checkpoint of the session state is damaged. Run rebuild_state to repair it.",
            code="state_damaged",
        )
    return state


def _newest_checkpoint(session_pk: int, moment: StateMoment) -> StateCheckpoint:
    checkpoints = StateCheckpoint.objects.filter(
        session=session_pk,
        turn__lte=moment.turn,
        seq__lte=moment.seq,
        rewinds__lte=moment.rewinds,
        state__startswith=PREFIX,
    )
    return checkpoints.order_by("-turn", "-seq", "-rewinds").first() or _START


def active_turns(session_pk: int, after: int, through: int, gone: Ranges) -> Iterator[StoredTurn]:
    """Yield the turns after ``after`` and up to ``through``, without those in ``gone``."""
    start = after + 1
    ranges = []
    for first, last in merge_ranges(gone):
        ranges.append((start, min(first - 1, through)))
        start = max(start, last + 1)
    ranges.append((start, through))
    for low, high in ranges:
        if low > high:
            continue
        turns = Turn.objects.filter(session=session_pk, number__gte=low, number__lte=high)
        for row in walk_rows(turns, *COLUMNS, key="number"):
            yield StoredTurn(**row)


def store_rewound_state(session_pk: int, *, as_of: StateMoment | None) -> None:
    """Update the state after a rewind that was just recorded and counted, in its transaction.

    ``as_of`` is the moment to which the rewind returned, if it did. A state that is behind is not
    updated.
    """
    stored = read_stored_state(session_pk)
    current = stored.load()
    if current is None:
        return
    state = read_state_at(session_pk, as_of or stored.moment)
    state = state._replace(edit_seq=max(state.edit_seq, current.edit_seq))
    text = dump_state(state)
    Session.objects.filter(pk=session_pk).update(state=text)
    StateCheckpoint.objects.create(
        session_id=session_pk,
        turn=stored.moment.turn,
        seq=state.edit_seq,
        rewinds=stored.moment.rewinds,
        state=text,
    )


# Rebuilding the session state from the archive

MAX_UNLOCKED_ATTEMPTS = 4  # After these attempts, the state is computed under the lock


@dataclass(slots=True, kw_only=True)
class RebuiltState:
    """The state and its checkpoints at a moment, rebuilt from the archive.

    ``turn`` is the last turn that was added. ``left_at`` are the moments right before each of the
    ``markers``, to which a later rewind may return.
    """

    moment: StateMoment
    state: SessionState = field(default_factory=SessionState)
    checkpoints: dict[StateMoment, str] = field(default_factory=dict)
    markers: list[Marker] = field(default_factory=list)
    left_at: list[StateMoment] = field(default_factory=list)
    turn: int = 0

    @property
    def now(self) -> StateMoment:
        return StateMoment(turn=self.turn, seq=self.state.edit_seq, rewinds=len(self.markers))

    @property
    def text(self) -> str:
        return dump_state(self.state) if self.turn or self.checkpoints else EMPTY

    def add_checkpoint(self) -> None:
        self.checkpoints[self.now] = dump_state(self.state)

    def newest_checkpoint(self, moment: StateMoment) -> StateCheckpoint:
        for at, text in reversed(self.checkpoints.items()):
            if at.turn <= moment.turn and at.seq <= moment.seq and at.rewinds <= moment.rewinds:
                return StateCheckpoint(turn=at.turn, seq=at.seq, rewinds=at.rewinds, state=text)
        return _START

    def rewind(self, session_pk: int, marker: Marker) -> None:
        self.left_at.append(self.now)
        self.markers.append(marker)
        as_of = self.now if marker.back_to is None else self.left_at[marker.back_to]
        state = _compute_state(session_pk, as_of, self.markers, self.newest_checkpoint)
        self.state = state._replace(edit_seq=max(state.edit_seq, self.state.edit_seq))


def fold_session(session_pk: int, moment: StateMoment) -> RebuiltState:
    """Rebuild the state up to a moment. The memory use grows by one state for each fifty turns."""
    rebuilt = RebuiltState(moment=moment)
    turns = ((turn.number, -1, turn) for turn in active_turns(session_pk, 0, moment.turn, []))
    edits, rewinds = _read_edits(session_pk, moment), _read_rewinds(session_pk, moment)
    changes: Iterator[_Change] = merge(turns, edits, rewinds, key=lambda change: change[:2])
    for _, seq, change in changes:
        if isinstance(change, StoredTurn):
            rebuilt.state = fold_facts(rebuilt.state, change.number, read_facts_of(change))
            rebuilt.turn = change.number
        elif isinstance(change, StateEdit):
            edited = apply_edit(rebuilt.state, change, seq=seq, turn=rebuilt.turn)
            rebuilt.state = drop_marks(edited, hidden_ranges(rebuilt.markers), left=edited)
        else:
            rebuilt.rewind(session_pk, change)
        if not isinstance(change, StoredTurn) or change.number % CHECKPOINT_TURNS == 0:
            rebuilt.add_checkpoint()
    return rebuilt


# A turn, or an edit or a rewind with the turn and event after which it came. If an import has them
# out of order, each comes at least as late as the one before it.
type _Change = tuple[int, int, StoredTurn | StateEdit | Marker]


def _read_edits(session_pk: int, moment: StateMoment) -> Iterator[tuple[int, int, StateEdit]]:
    rows = ChatEvent.objects.filter(
        session=session_pk, seq__lte=moment.seq, event_type=INFO, payload__contains=STATE_EDIT
    )
    reached = 0
    for seq, payload, turn in rows.order_by("seq").values_list("seq", "payload", "turn_number"):
        try:
            edit = edit_of(parse_payload(INFO, payload))
        except MalformedPayload:
            continue
        if edit is not None:
            reached = max(reached, min(turn or 0, moment.turn))
            yield reached, seq, edit


def _read_rewinds(session_pk: int, moment: StateMoment) -> Iterator[tuple[int, int, Marker]]:
    rows = Rewind.objects.filter(session=session_pk).order_by("pk")
    columns = rows.values_list("to_seq", *marker_columns("turn"))
    turn = seq = 0
    for to_seq, *marker in columns[: moment.rewinds]:
        turn, seq = max(turn, min(marker[1], moment.turn)), max(seq, to_seq)
        yield turn, seq, Marker(*marker)


def rebuild_state(session_pk: int) -> bool:
    """Rebuild the state and its checkpoints, and return whether anything was different."""
    # Computing the state takes time, so do it without the lock. Repeat it if the session has
    # changed.
    for _ in range(MAX_UNLOCKED_ATTEMPTS):
        rebuilt = fold_session(session_pk, read_stored_state(session_pk).moment)
        with transaction.atomic():
            lock_session(session_pk)
            stored = read_stored_state(session_pk)
            if stored.moment == rebuilt.moment:
                return _store_rebuilt(stored, rebuilt)
    with transaction.atomic():
        lock_session(session_pk)
        stored = read_stored_state(session_pk)
        return _store_rebuilt(stored, fold_session(session_pk, stored.moment))


def catch_up_state(session_pk: int) -> None:
    """Rebuild the state if it is behind."""
    if read_stored_state(session_pk).load() is None:
        rebuild_state(session_pk)


def check_state(session_pk: int) -> str:
    """Return the first difference between the stored state and the archive, or an empty text."""
    for _ in range(MAX_UNLOCKED_ATTEMPTS):
        stored, checkpoints = read_stored_state(session_pk), _stored_checkpoints(session_pk)
        rebuilt = fold_session(session_pk, stored.moment)
        if read_stored_state(session_pk).moment == rebuilt.moment:
            break
    for at in sorted(rebuilt.checkpoints.keys() | checkpoints.keys()):
        if rebuilt.checkpoints.get(at) != checkpoints.get(at):
            return f"the checkpoint after turn {at.turn} does not match the turns"
    is_same = (stored.text, stored.state_turn) == (rebuilt.text, rebuilt.turn)
    return "" if is_same else "the state does not match the turns"


def behind_sessions() -> QuerySet[Session]:
    """Return the sessions whose state is behind or was computed by another version of the rules."""
    is_late = ~Q(state_turn=F("next_turn") - 1)
    is_other = ~Q(state=EMPTY) & ~Q(state__startswith=PREFIX)
    return Session.objects.filter(is_late | is_other)


def rebuild_behind_states() -> None:
    for session_pk, _ in walk_sessions(behind_sessions()):
        rebuild_state(session_pk)


def walk_sessions(sessions: QuerySet[Session]) -> Iterator[tuple[int, UUID]]:
    """Yield the primary key and UUID of each session."""
    for row in walk_rows(sessions, "pk", "uuid", key="pk"):
        yield row["pk"], row["uuid"]


def _stored_checkpoints(session_pk: int) -> dict[StateMoment, str]:
    rows = StateCheckpoint.objects.filter(session=session_pk).order_by("turn", "seq", "rewinds")
    columns = rows.values_list("turn", "seq", "rewinds", "state")
    return {StateMoment(turn=t, seq=s, rewinds=r): state for t, s, r, state in columns}


def _store_rebuilt(stored: StoredState, rebuilt: RebuiltState) -> bool:
    session_pk = stored.session_pk
    is_same = (stored.text, stored.state_turn) == (rebuilt.text, rebuilt.turn)
    if is_same and _stored_checkpoints(session_pk) == rebuilt.checkpoints:
        return False
    StateCheckpoint.objects.filter(session=session_pk).delete()
    with connection.cursor() as cursor:
        cursor.executemany(
            INSERT_CHECKPOINT,
            [
                (session_pk, at.turn, at.seq, at.rewinds, text)
                for at, text in rebuilt.checkpoints.items()
            ],
        )
    Session.objects.filter(pk=session_pk).update(state=rebuilt.text, state_turn=rebuilt.turn)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateText:
    """The state as YAML of at most 1,000 tokens, or empty if the state has no content.

    ``turn`` and ``seq`` are the last turn and event that the text includes. ``kept`` is the content
    of the workspace memory at that time, and ``root`` is the workspace's folder named in the text.
    """

    yaml: str
    turn: int
    seq: int
    root: str = ""
    kept: tuple[KeptItem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """The items of the state by kind and turn, and the struck items.

    There are at most a few hundred items, whatever the session's length. ``kept`` are the entries
    that the workspace memory adds. ``replaced`` are the entries that an item of the session
    replaces.
    """

    items: tuple[StateItem, ...]
    struck: tuple[StateItem, ...]
    kept: tuple[KeptItem, ...]
    replaced: tuple[KeptItem, ...]
    turn: int
    seq: int


def read_state_text(session_pk: int) -> StateText:
    """Return the current state as text."""
    stored = read_stored_state(session_pk)
    return _make_state_text(stored, _load_current(stored), stored.moment, _kept_items(stored))


def rebuild_state_text(
    session_pk: int,
    *,
    turn: int,
    seq: int,
    rewinds: int,
    root: str | None = None,
    kept: Iterable[KeptItem] = (),
) -> StateText:
    """Return the text of the state as it was after that turn and event.

    ``rewinds`` is the session's number of rewinds, ``root`` the workspace's folder (None: the
    current one) and ``kept`` the content of the workspace memory at that time. The number of rows
    that are read is bounded.
    """
    moment = StateMoment(turn=turn, seq=seq, rewinds=rewinds)
    state, stored = read_state_at(session_pk, moment), read_stored_state(session_pk)
    stored = stored if root is None else replace(stored, root=root)
    return _make_state_text(stored, state, moment, tuple(kept))


def read_state_view(session_pk: int) -> StateView:
    """Return the current state as a person sees and edits it."""
    stored = read_stored_state(session_pk)
    items, struck = list_items(_load_current(stored))
    kept, replaced = choose_kept(_kept_items(stored), items)
    return StateView(
        items=items,
        struck=struck,
        kept=kept,
        replaced=replaced,
        turn=stored.moment.turn,
        seq=stored.moment.seq,
    )


def find_statement(session_pk: int, item: str) -> StateItem:
    """Return the rule or preference in force with this id. Raise Rejected if there is none."""
    for statement in read_state_view(session_pk).items:
        if statement.id == item and statement.kind in (RULE, PREFERENCE):
            return statement
    raise Rejected("This item is no longer in the session state.", code="state_item_unknown")


def _kept_items(stored: StoredState) -> tuple[KeptItem, ...]:
    return read_kept(stored.workspace_pk, stored.owner_pk) if stored.has_memory else ()


def _load_current(stored: StoredState) -> SessionState:
    return stored.load() or read_state_at(stored.session_pk, stored.moment)


def _make_state_text(
    stored: StoredState, state: SessionState, moment: StateMoment, kept: tuple[KeptItem, ...]
) -> StateText:
    yaml = write_yaml(
        state,
        session=str(stored.uuid),
        workspace=stored.root,
        turn_count=moment.turn,
        kept=kept,
    )
    return StateText(yaml=yaml, turn=moment.turn, seq=moment.seq, root=stored.root, kept=kept)


NAMES = {
    FILE: say("File"),
    DECISION: say("Decision"),
    ERROR: say("Resolved error"),
    FOCUS: say("Focus"),
    RULE: say("Rule"),
    PREFERENCE: say("Preference"),
    VALUE: say("Value"),
}


def describe_edit(action: str, *, kind: str, text: str) -> Message:
    """Return the text of the edit's row."""
    item = NAMES[kind]
    sentences = {
        PIN: say("%(kind)s pinned: %(item)s", kind=item, item=text),
        UNPIN: say("%(kind)s unpinned: %(item)s", kind=item, item=text),
        REWORD: say("%(kind)s reworded: %(item)s", kind=item, item=text),
        STRIKE: say("%(kind)s removed: %(item)s", kind=item, item=text),
        UNSTRIKE: say("%(kind)s restored: %(item)s", kind=item, item=text),
    }
    return sentences[action]


def edit_state(
    session: Session, *, actor_pk: int | None, action: str, item: str, text: str = ""
) -> AppendResult:
    """Pin, unpin, reword, strike or unstrike an item, as an event of the journal.

    If the item already has the requested state, nothing is appended. Raise Rejected if the action
    is unknown or not possible for the item, and TooLarge if the wording is too long.
    """
    if action not in ACTIONS:
        raise Rejected(
            "The action %(action)s does not exist.",
            action=repr(action[:40]),
            code="state_action_unknown",
        )
    wording = one_line(storable(text), limit=MAX_ITEM_CHARS + 1) if action == REWORD else ""
    if action == REWORD and not wording:
        raise Rejected("The text must have at least one character.", code="state_text_empty")
    if len(wording) > MAX_ITEM_CHARS:
        raise TooLarge(
            "The text can have at most %(limit)s characters.",
            limit=MAX_ITEM_CHARS,
            code="state_text_too_long",
        )
    catch_up_state(session.pk)
    with locked_session(session.pk) as locked:
        view = read_state_view(session.pk)
        found = next((row for row in (*view.items, *view.struck) if row.id == item), None)
        if found is None:
            raise Rejected(
                "This item is no longer in the session state.", code="state_item_unknown"
            )
        is_done = {
            PIN: found.is_pinned,
            UNPIN: not found.is_pinned,
            STRIKE: bool(found.struck_by),
            UNSTRIKE: not found.struck_by,
            REWORD: found.text == wording,
        }
        if is_done[action]:
            return AppendResult(turns=[], rows=[])
        _refuse_impossible(view, found, action, wording)
        description = describe_edit(action, kind=found.kind, text=wording or found.text)
        if action == UNSTRIKE and found.struck_by in (BY_MODEL, BY_LATER):
            # An item that the model or a later item struck is restored by pinning it, so that it
            # stays.
            action = PIN
        edit = StateEdit(action=action, item=found.as_mark(), text=wording)
        by = "" if actor_pk is None else read_username(actor_pk)
        appended = locked.append(events=[_edit_event(edit, description, by=by)])
        if not appended.rows:
            raise Unavailable("The change could not be saved. Try again.", code="not_kept")
        return appended


def _edit_event(edit: StateEdit, description: Message, *, by: str) -> NewEvent:
    return NewEvent(payload=Info(text=description, code=STATE_EDIT, data=dump_edit(edit, by=by)))


def mark_items(session: Session, marks: Iterable[ItemMark], *, by: str) -> None:
    """Give a session that was just created the same marks on its items as another session has."""
    events = []
    for mark in marks:
        item = ItemMark(*mark[:6])
        marked = {REWORD: bool(mark.rewording), PIN: mark.is_pinned, STRIKE: mark.is_struck}
        for action, is_marked in marked.items():
            if not is_marked:
                continue
            text = mark.rewording if action == REWORD else ""
            description = describe_edit(action, kind=mark.kind, text=mark.rewording or mark.text)
            # In the new session these events come after all turns. ``after`` keeps the original
            # position, so that statements of later turns still count as later.
            edit = StateEdit(action, item, text, after=max(mark.turn, mark.reworded_after))
            events.append(_edit_event(edit, description, by=by))
    if events:
        append(session.pk, session_uuid=session.uuid, events=events)


def _refuse_impossible(view: StateView, item: StateItem, action: str, wording: str) -> None:
    if action not in item.actions:
        raise Rejected(
            say("The text of a file item cannot be edited.")
            if item.kind == FILE
            else say("Restore the item first."),
            code="state_action_impossible",
        )
    if item.kind == FOCUS and len(wording) > MAX_FOCUS_CHARS:
        raise TooLarge(
            "The focus can have at most %(limit)s characters.",
            limit=MAX_FOCUS_CHARS,
            code="state_text_too_long",
        )
    pins = sum(item.is_pinned for item in view.items)
    if pins >= MAX_PINS and (action == PIN or item.struck_by in (BY_MODEL, BY_LATER)):
        raise Rejected(
            "%(count)s items are already pinned. Unpin one first.",
            count=MAX_PINS,
            code="state_pins_full",
        )
