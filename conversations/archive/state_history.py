"""The session state at any moment, folded from the nearest checkpoint.

A moment is a turn, an event and a number of rewinds. In the life of a session all
three only grow, and every rewind and every edit leaves a checkpoint; so between a
moment and the newest checkpoint before it lie fewer than fifty turns, all of them
active, and no edit. Where history was imported, or the moment never was, rewinds that
the checkpoint does not know decide how far back to go.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from conversations.domain.errors import NotFound, Unavailable
from conversations.domain.session_state.fold import fold_facts
from conversations.domain.session_state.marks import drop_marks
from conversations.domain.session_state.stored import EMPTY, PREFIX, dump_state, load_state
from conversations.domain.session_state.values import SessionState
from conversations.domain.turns import StoredTurn
from conversations.models import Rewind, Session, StateCheckpoint, Turn

from .advancing import read_facts_of
from .turns import COLUMNS, merge_ranges
from .walking import walk_rows

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
    newest = _checkpoint(session_pk, moment, through=moment.turn)
    later = _rewinds(session_pk, after=newest.rewinds, through=moment.rewinds)
    marked = drop_marks(_load(newest), later)
    base, gone = _valid(session_pk, moment, newest, later)
    state = _load(base)
    for turn in active_turns(session_pk, base.turn, moment.turn, gone):
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


def _valid(
    session_pk: int, moment: StateMoment, checkpoint: StateCheckpoint, later: Ranges
) -> tuple[StateCheckpoint, Ranges]:
    """The newest checkpoint none of whose turns was rewound after it, and the rewinds
    that it does not know."""
    while checkpoint.turn:
        lowest = min((low for low, _ in later), default=checkpoint.turn + 1)
        if lowest > checkpoint.turn:
            break
        checkpoint = _checkpoint(session_pk, moment, through=lowest - 1)
        later = _rewinds(session_pk, after=checkpoint.rewinds, through=moment.rewinds)
    return checkpoint, later


def active_turns(session_pk: int, after: int, through: int, gone: Ranges) -> Iterator[StoredTurn]:
    """The turns after one and up to another, without those rewound."""
    for low, high in _stretches(after + 1, through, gone):
        turns = Turn.objects.filter(session=session_pk, number__gte=low, number__lte=high)
        for row in walk_rows(turns, *COLUMNS, key="number"):
            yield StoredTurn(**row)


def _stretches(low: int, high: int, gone: Ranges) -> Ranges:
    """What is left of low to high without some ranges."""
    left = []
    for first, last in merge_ranges(gone):
        if first > low:
            left.append((low, min(first - 1, high)))
        low = max(low, last + 1)
    return [(first, last) for first, last in [*left, (low, high)] if first <= last]


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
