"""What a search gives."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHit:
    """One turn that matches. ``score`` is above 0 and comparable within one answer;
    ``text`` is the turn's searchable text as it was written, ``tool_name`` is set
    for turns that call a tool or hold its result. Where ``is_near`` is set, the turn
    has none of the words itself: those around it do."""

    session_pk: int
    session: UUID
    turn: int
    role: str
    tool_name: str | None
    created_at: datetime
    text: str
    score: float
    is_near: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResults:
    """``hits`` are in the order asked for (best first, unless said otherwise).
    ``total`` counts the turns that matched, and is a lower bound when
    ``total_is_bound``. ``missing`` are the words and phrases of the query, as
    written, that match nothing in what was searched. ``cursor`` goes on after the
    last hit; empty: there is no more."""

    hits: list[TurnHit]
    total: int
    total_is_bound: bool = False
    missing: tuple[str, ...] = ()
    cursor: str = ""


NOTHING = SearchResults(hits=[], total=0)
