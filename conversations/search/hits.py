"""From ids of entries to the turns that are shown."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from conversations.archive.row_sql import read_moment
from conversations.archive.turns import COLUMNS
from conversations.domain.turns import StoredTurn
from conversations.models.search import TURN_BITS

from .entries import read_searchables
from .matching import TURN_MASK
from .results import TurnHit, select_at

_TURNS = (
    f"SELECT session.id, session.uuid, {', '.join(f'turn.{name}' for name in COLUMNS)} FROM place"
    " CROSS JOIN conversations_turn turn"
    " JOIN conversations_session session ON session.id = turn.session_id"
    " WHERE turn.session_id = place.session AND turn.number = place.turn"
)


def read_hits(
    scores: Sequence[tuple[float, int]], *, near: frozenset[int] = frozenset()
) -> list[TurnHit]:
    """The turns of these entries, in this order. One query, and none for none."""
    score_of = {pk: score for score, pk in scores}
    hits = {}
    for session_pk, uuid, *values in select_at(_TURNS, [_place(pk) for pk in score_of]):
        [(turn, searchable)] = read_searchables(session_pk, [_stored(values)])
        pk = session_pk << TURN_BITS | turn.number
        hits[pk] = TurnHit(
            session_pk=session_pk,
            session=uuid if isinstance(uuid, UUID) else UUID(uuid),
            turn=turn.number,
            role=turn.role,
            tool_name=next(iter(searchable.names), None),
            created_at=turn.created_at,
            text=searchable.text,
            score=score_of[pk],
            is_near=pk in near,
        )
    return [hits[pk] for _, pk in scores if pk in hits]


def _place(pk: int) -> tuple[int, int]:
    return pk >> TURN_BITS, pk & TURN_MASK


def _stored(values: Sequence[Any]) -> StoredTurn:
    row = dict(zip(COLUMNS, values, strict=True))
    return StoredTurn(**row | {"created_at": read_moment(row["created_at"])})
