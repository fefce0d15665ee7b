"""The session state at any moment, folded from the nearest checkpoint.

A moment is a turn, an event and a number of rewinds. In the life of a session all
three only grow, and every rewind and every edit leaves a checkpoint; so between a
moment and the newest checkpoint before it lie fewer than fifty turns, all of them
active, and no edit. Where history was imported, or the moment never was, rewinds that
the checkpoint does not know decide how far back to go.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import count
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from conversations.domain.errors import NotFound, Unavailable
from conversations.domain.events import INFO, Malformed, parse_payload
from conversations.domain.session_state import (
    EMPTY,
    PREFIX,
    STATE_EDIT,
    SessionState,
    StateEdit,
    apply_edit,
    drop_marks,
    dump_state,
    load_state,
)
from conversations.domain.session_state.facts import fold_facts
from conversations.domain.turns import StoredTurn
from conversations.models import ChatEvent, Rewind, Session, StateCheckpoint, Turn

from .append import lock_session, walk_rows
from .state_updates import CHECKPOINT_TURNS, INSERT_CHECKPOINT, edit_of, read_facts_of
from .turns import COLUMNS, merge_ranges

type Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMoment:
    turn: int
    seq: int
    rewinds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What the session's row says. ``state_turn`` is the turn that ``text`` is of,
    ``root`` the folder of the workspace."""

    session_pk: int
    uuid: UUID
    root: str
    moment: StateMoment
    text: str
    state_turn: int

    def load(self) -> SessionState | None:
        """The state of the last turn, None if the text is not that: it is behind."""
        return load_state(self.text) if self.state_turn == self.moment.turn else None


_SELECT = (
    "SELECT s.uuid, w.root, s.next_turn, s.next_seq, s.rewind_count, s.state, s.state_turn"
    " FROM conversations_session s JOIN conversations_workspace w ON w.id = s.workspace_id"
    " WHERE s.id = %s"
)


def read_stored_state(session_pk: int) -> StoredState:
    """Raises NotFound. Raw SQL, since a first word waits for it."""
    with connection.cursor() as cursor:
        cursor.execute(_SELECT, [session_pk])
        row = cursor.fetchone()
    if row is None:
        raise NotFound("There is no such session.")
    uuid, root, next_turn, next_seq, rewinds, text, state_turn = row
    return StoredState(
        session_pk=session_pk,
        uuid=uuid if isinstance(uuid, UUID) else UUID(uuid),
        root=root,
        moment=StateMoment(turn=next_turn - 1, seq=next_seq - 1, rewinds=rewinds),
        text=text,
        state_turn=state_turn,
    )


_START = StateCheckpoint(turn=0, seq=0, rewinds=0, state=EMPTY)


def read_state_at(session_pk: int, moment: StateMoment) -> SessionState:
    """The state as it was then."""
    base = _checkpoint(session_pk, moment, through=moment.turn)
    later = _rewinds(session_pk, after=base.rewinds, through=moment.rewinds)
    marked = drop_marks(_load(base), later)
    # The newest checkpoint none of whose turns was rewound after it.
    while (lowest := min((low for low, _ in later), default=base.turn + 1)) <= base.turn:
        base = _checkpoint(session_pk, moment, through=lowest - 1)
        later = _rewinds(session_pk, after=base.rewinds, through=moment.rewinds)
    state = _load(base)
    for turn in active_turns(session_pk, base.turn, moment.turn, later):
        state = fold_facts(state, turn.number, read_facts_of(turn))
    return state._replace(marks=marked.marks, edit_seq=marked.edit_seq)


def _load(checkpoint: StateCheckpoint) -> SessionState:
    state = load_state(checkpoint.state)
    if state is None:
        raise Unavailable(
            "A checkpoint of the session state is damaged; rebuild_state makes it anew.",
            code="state_damaged",
        )
    return state


def _checkpoint(session_pk: int, moment: StateMoment, *, through: int) -> StateCheckpoint:
    found = StateCheckpoint.objects.filter(
        session=session_pk,
        turn__lte=through,
        seq__lte=moment.seq,
        rewinds__lte=moment.rewinds,
        state__startswith=PREFIX,
    )
    return found.order_by("-turn", "-seq", "-rewinds").first() or _START


def _rewinds(session_pk: int, *, after: int, through: int) -> Ranges:
    """The turns of the rewinds with these numbers, the first being number 1."""
    if after >= through:
        return []
    rows = Rewind.objects.filter(session=session_pk).order_by("pk")
    return [
        (low, high)
        for low, high in rows.values_list("from_turn", "to_turn")[after:through]
        if low <= high
    ]


def active_turns(session_pk: int, after: int, through: int, gone: Ranges) -> Iterator[StoredTurn]:
    """The turns after one and up to another, without those rewound."""
    start, left = after + 1, []
    for first, last in merge_ranges(gone):
        left.append((start, min(first - 1, through)))
        start = max(start, last + 1)
    for low, high in (pair for pair in [*left, (start, through)] if pair[0] <= pair[1]):
        turns = Turn.objects.filter(session=session_pk, number__gte=low, number__lte=high)
        for row in walk_rows(turns, *COLUMNS, key="number"):
            yield StoredTurn(**row)


def store_rewound_state(session_pk: int) -> None:
    """Bring the state in line with a rewind that was just recorded and counted, in its
    transaction. A state that is behind stays so."""
    stored = read_stored_state(session_pk)
    if stored.load() is None:
        return
    state = read_state_at(session_pk, stored.moment)
    text = dump_state(state)
    Session.objects.filter(pk=session_pk).update(state=text)
    StateCheckpoint.objects.create(
        session_id=session_pk,
        turn=stored.moment.turn,
        seq=state.edit_seq,
        rewinds=stored.moment.rewinds,
        state=text,
    )


# The session state made anew from the archive, as it came about.


ATTEMPTS = 4  # Foldings without the lock; after them, with it.

type Key = tuple[int, int, int]  # Turn, event and rewinds of a checkpoint.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happening:
    """An edit or a rewind, after this turn and event."""

    turn: int
    seq: int
    edit: StateEdit | None = None
    rewound: tuple[int, int] = (1, 0)


@dataclass(slots=True, kw_only=True)
class RebuiltState:
    """The state and its checkpoints as of a moment. ``valid`` are the states after
    turns none of which was rewound since."""

    moment: StateMoment
    state: SessionState = field(default_factory=SessionState)
    checkpoints: dict[Key, str] = field(default_factory=dict)
    valid: list[tuple[int, SessionState]] = field(default_factory=list)
    gone: Ranges = field(default_factory=list)
    turn: int = 0
    rewinds: int = 0

    @property
    def text(self) -> str:
        return dump_state(self.state) if self.turn or self.checkpoints else EMPTY


def fold_session(session_pk: int, moment: StateMoment) -> RebuiltState:
    """Everything up to a moment. Memory grows by one state for fifty turns."""
    rebuilt = RebuiltState(moment=moment)
    happenings = _happenings(session_pk, moment)
    following = next(happenings, None)
    turns = active_turns(session_pk, 0, moment.turn, [])
    for number in count():
        while following is not None and following.turn <= number:
            if following.edit is not None:
                edited = apply_edit(rebuilt.state, following.edit, seq=following.seq)
                rebuilt.state = drop_marks(edited, rebuilt.gone)
            else:
                _apply_rewind(session_pk, rebuilt, following.rewound)
            _add_checkpoint(rebuilt)
            following = next(happenings, None)
        turn = next(turns, None)
        if turn is None:
            break
        rebuilt.state = fold_facts(rebuilt.state, turn.number, read_facts_of(turn))
        rebuilt.turn = turn.number
        if turn.number % CHECKPOINT_TURNS == 0:
            _add_checkpoint(rebuilt)
    return rebuilt


def _add_checkpoint(rebuilt: RebuiltState) -> None:
    key = (rebuilt.turn, rebuilt.state.edit_seq, rebuilt.rewinds)
    rebuilt.checkpoints[key] = dump_state(rebuilt.state)
    rebuilt.valid.append((rebuilt.turn, rebuilt.state))


def _apply_rewind(session_pk: int, rebuilt: RebuiltState, rewound: tuple[int, int]) -> None:
    rebuilt.rewinds += 1
    low, high = rewound
    if low > high:
        return
    rebuilt.gone.append(rewound)
    while rebuilt.valid and rebuilt.valid[-1][0] >= low:
        rebuilt.valid.pop()
    after, state = rebuilt.valid[-1] if rebuilt.valid else (0, SessionState())
    for turn in active_turns(session_pk, after, rebuilt.turn, rebuilt.gone):
        state = fold_facts(state, turn.number, read_facts_of(turn))
    marked = drop_marks(rebuilt.state, [rewound])
    rebuilt.state = state._replace(marks=marked.marks, edit_seq=marked.edit_seq)


def _happenings(session_pk: int, moment: StateMoment) -> Iterator[_Happening]:
    """In order; what an import has out of order happens as late as what was before it."""
    return merge(
        _edits(session_pk, moment),
        _rewind_happenings(session_pk, moment),
        key=lambda happening: (happening.turn, happening.seq),
    )


def _edits(session_pk: int, moment: StateMoment) -> Iterator[_Happening]:
    rows = ChatEvent.objects.filter(
        session=session_pk, seq__lte=moment.seq, event_type=INFO, payload__contains=STATE_EDIT
    )
    reached = 0
    columns = rows.order_by("seq").values_list("seq", "payload", "turn_number")
    for seq, payload, turn in columns:
        try:
            edit = edit_of(parse_payload(INFO, payload))
        except Malformed:
            continue
        if edit is not None:
            reached = max(reached, min(turn or 0, moment.turn))
            yield _Happening(turn=reached, seq=seq, edit=edit)


def _rewind_happenings(session_pk: int, moment: StateMoment) -> Iterator[_Happening]:
    rows = Rewind.objects.filter(session=session_pk).order_by("pk")
    columns = rows.values_list("from_turn", "to_turn", "to_seq")[: moment.rewinds]
    turn = seq = 0
    for low, high, to_seq in columns:
        turn, seq = max(turn, min(high, moment.turn)), max(seq, to_seq)
        yield _Happening(turn=turn, seq=seq, rewound=(low, high))


def rebuild_state(session_pk: int) -> bool:
    """Make the state and its checkpoints anew; whether anything was different. Folding
    takes its time and is done without the lock, again if the session moved on."""
    for _ in range(ATTEMPTS):
        rebuilt = fold_session(session_pk, read_stored_state(session_pk).moment)
        with transaction.atomic():
            lock_session(session_pk)
            stored = read_stored_state(session_pk)
            if stored.moment == rebuilt.moment:
                return _store(stored, rebuilt)
    with transaction.atomic():
        lock_session(session_pk)
        stored = read_stored_state(session_pk)
        return _store(stored, fold_session(session_pk, stored.moment))


def catch_up_state(session_pk: int) -> None:
    """Rebuild the state if it is behind."""
    if read_stored_state(session_pk).load() is None:
        rebuild_state(session_pk)


def check_state(session_pk: int) -> str:
    """What of the stored state and checkpoints differs first from what the archive
    gives; empty if nothing does."""
    for _ in range(ATTEMPTS):
        stored, checkpoints = read_stored_state(session_pk), _stored_checkpoints(session_pk)
        rebuilt = fold_session(session_pk, stored.moment)
        if read_stored_state(session_pk).moment == rebuilt.moment:
            break
    for key in sorted(rebuilt.checkpoints.keys() | checkpoints.keys()):
        if rebuilt.checkpoints.get(key) != checkpoints.get(key):
            return f"the checkpoint after turn {key[0]} is not what the turns give"
    return "" if _is_same(stored, rebuilt) else "the state is not what the turns give"


def _is_same(stored: StoredState, rebuilt: RebuiltState) -> bool:
    return (stored.text, stored.state_turn) == (rebuilt.text, rebuilt.turn)


def behind_sessions() -> Iterator[tuple[int, UUID]]:
    """Sessions whose state is behind, or was made by other rules."""
    is_late = ~Q(state_turn=F("next_turn") - 1)
    is_other = ~Q(state=EMPTY) & ~Q(state__startswith=PREFIX)
    return _named(Session.objects.filter(is_late | is_other))


def rebuild_behind_states() -> None:
    for session_pk, _ in behind_sessions():
        rebuild_state(session_pk)


def all_sessions() -> Iterator[tuple[int, UUID]]:
    return _named(Session.objects.all())


def _named(sessions: QuerySet[Session]) -> Iterator[tuple[int, UUID]]:
    for row in walk_rows(sessions, "pk", "uuid", key="pk"):
        yield row["pk"], row["uuid"]


def _stored_checkpoints(session_pk: int) -> dict[Key, str]:
    rows = StateCheckpoint.objects.filter(session=session_pk).order_by("turn", "seq", "rewinds")
    columns = rows.values_list("turn", "seq", "rewinds", "state")
    return {(turn, seq, rewinds): state for turn, seq, rewinds, state in columns}


def _store(stored: StoredState, rebuilt: RebuiltState) -> bool:
    session_pk = stored.session_pk
    if _is_same(stored, rebuilt) and _stored_checkpoints(session_pk) == rebuilt.checkpoints:
        return False
    StateCheckpoint.objects.filter(session=session_pk).delete()
    with connection.cursor() as cursor:
        cursor.executemany(
            INSERT_CHECKPOINT,
            [(session_pk, *key, text) for key, text in rebuilt.checkpoints.items()],
        )
    Session.objects.filter(pk=session_pk).update(state=rebuilt.text, state_turn=rebuilt.turn)
    return True
