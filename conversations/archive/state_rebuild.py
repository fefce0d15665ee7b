"""The session state made anew from the archive, as it came about.

Turns, a person's edits and rewinds are walked through in the order in which they
happened: an edit after the turn that its event names, a rewind after the last turn and
the last event that it names. So the checkpoints are those that the session left while
it lived, and all readings of earlier moments stay cheap.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from conversations.domain.events import INFO, Malformed, parse_payload
from conversations.domain.session_state.fold import fold_facts
from conversations.domain.session_state.marks import STATE_EDIT, StateEdit, apply_edit, drop_marks
from conversations.domain.session_state.stored import EMPTY, PREFIX, dump_state
from conversations.domain.session_state.values import SessionState
from conversations.models import ChatEvent, Rewind, Session, StateCheckpoint

from .advancing import CHECKPOINT_TURNS, INSERT_CHECKPOINT, edit_of, read_facts_of
from .locks import lock_session
from .state_history import Ranges, StateMoment, StoredState, active_turns, read_stored_state
from .walking import walk_rows

ATTEMPTS = 4
"""Foldings without the lock; after them, with it."""

type Key = tuple[int, int, int]
"""Turn, event and rewinds of a checkpoint."""


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
            _apply(session_pk, rebuilt, following)
            following = next(happenings, None)
        turn = next(turns, None)
        if turn is None:
            break
        rebuilt.state = fold_facts(rebuilt.state, turn.number, read_facts_of(turn))
        rebuilt.turn = turn.number
        if turn.number % CHECKPOINT_TURNS == 0:
            _keep(rebuilt)
    return rebuilt


def _keep(rebuilt: RebuiltState) -> None:
    key = (rebuilt.turn, rebuilt.state.edit_seq, rebuilt.rewinds)
    rebuilt.checkpoints[key] = dump_state(rebuilt.state)
    rebuilt.valid.append((rebuilt.turn, rebuilt.state))


def _apply(session_pk: int, rebuilt: RebuiltState, happening: _Happening) -> None:
    if happening.edit is not None:
        rebuilt.state = apply_edit(rebuilt.state, happening.edit, seq=happening.seq)
        rebuilt.state = drop_marks(rebuilt.state, rebuilt.gone)
    else:
        rebuilt.rewinds += 1
        _rewind(session_pk, rebuilt, happening.rewound)
    _keep(rebuilt)


def _rewind(session_pk: int, rebuilt: RebuiltState, rewound: tuple[int, int]) -> None:
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
    edits, rewinds = _edits(session_pk, moment), _rewinds(session_pk, moment)
    edit, rewind = next(edits, None), next(rewinds, None)
    while edit is not None or rewind is not None:
        if rewind is None or (edit is not None and _place(edit) <= _place(rewind)):
            assert edit is not None
            yield edit
            edit = next(edits, None)
        else:
            yield rewind
            rewind = next(rewinds, None)


def _place(happening: _Happening) -> tuple[int, int]:
    return happening.turn, happening.seq


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


def _rewinds(session_pk: int, moment: StateMoment) -> Iterator[_Happening]:
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
