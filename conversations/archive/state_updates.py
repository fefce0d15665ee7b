"""Updates of the session state in the transaction of each append.

Under the session's lock, the stored state is parsed, the facts of the new turns are added, and the
text is saved with the session's counters. Every fiftieth turn and every edit adds a checkpoint.

If the stored state is behind (because it is older than this feature or was computed by another
version of the rules), it is not updated here. Until it is rebuilt, readers compute it from the
turns.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conversations.domain.events import Info, Payload
from conversations.domain.session_state import (
    STATE_EDIT,
    SessionState,
    StateEdit,
    apply_edit,
    dump_state,
    load_state,
    read_edit,
)
from conversations.domain.session_state.facts import TurnFacts, fold_facts, read_facts
from conversations.domain.turns import AnyTurn

logger = logging.getLogger(__name__)

CHECKPOINT_TURNS = 50

LEFT_BEHIND = -1  # The ``state_turn`` of a state that is not updated until it is rebuilt

INSERT_CHECKPOINT = (
    "INSERT INTO conversations_statecheckpoint (session_id, turn, seq, rewinds, state)"
    " VALUES (%s, %s, %s, %s, %s)"
)


@dataclass(slots=True, kw_only=True)
class StateUpdate:
    """A locked session's stored state. ``turn`` is the session's last turn before the append."""

    session_pk: int
    turn: int
    rewinds: int
    state: str
    state_turn: int

    def load(self) -> SessionState | None:
        """Return the parsed state, or None if it is behind."""
        return load_state(self.state) if self.state_turn == self.turn else None


def read_facts_of(turn: AnyTurn) -> TurnFacts:
    """Return the facts of a turn for the session state.

    An error in a rule must not lose the turn, so a turn whose facts cannot be read adds none, now
    and when the state is rebuilt.
    """
    try:
        return read_facts(turn)
    except Exception:
        logger.exception("state_facts_failed", extra={"fields": {"role": turn.role}})
        return TurnFacts(role=turn.role, tokens=turn.token_count)


def edit_of(payload: Payload) -> StateEdit | None:
    """Return the edit of the state that an event contains, or None."""
    if isinstance(payload, Info) and payload.code == STATE_EDIT:
        return read_edit(payload.data)
    return None


def advance_state(
    cursor: Any,
    update: StateUpdate,
    *,
    facts: Sequence[tuple[int, TurnFacts]],
    edits: Sequence[tuple[int, StateEdit]] = (),
) -> None:
    """Add turns, then edits, each with its number. The new state is left in ``advance``."""
    state = update.load() if facts or edits else None
    if state is None:
        return
    for number, turn_facts in facts:
        state = fold_facts(state, number, turn_facts)
        update.turn = number
        if number % CHECKPOINT_TURNS == 0:
            _insert_checkpoint(cursor, update, state)
    for seq, edit in edits:
        state = apply_edit(state, edit, seq=seq, turn=update.turn)
        _insert_checkpoint(cursor, update, state)
    update.state, update.state_turn = dump_state(state), update.turn


def _insert_checkpoint(cursor: Any, update: StateUpdate, state: SessionState) -> None:
    values = (update.turn, state.edit_seq, update.rewinds, dump_state(state))
    cursor.execute(INSERT_CHECKPOINT, [update.session_pk, *values])
