"""The session state: read for the window."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateText:
    """The state as YAML, at most 1,000 tokens; empty when there is nothing to say.
    It holds after turn ``turn`` and event ``seq``."""

    yaml: str
    turn: int
    seq: int


def read_state_text(session_pk: int) -> StateText:
    """The state as it is now."""
    return StateText(yaml="", turn=0, seq=0)


def rebuild_state_text(session_pk: int, *, turn: int, seq: int, rewinds: int) -> StateText:
    """The state as it was after that turn and event, when the session had that many
    rewinds; reads a bounded number of rows."""
    return StateText(yaml="", turn=turn, seq=seq)
