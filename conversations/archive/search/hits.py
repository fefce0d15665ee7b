"""From ids of entries to the turns that are shown."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db.models import Q

from conversations.archive.turns import COLUMNS
from conversations.domain.turns import StoredTurn
from conversations.models import Turn
from conversations.models.search import TURN_BITS

from .entries import read_searchables
from .results import Hit


def read_hits(
    scores: Sequence[tuple[float, int]], *, near: frozenset[int] = frozenset()
) -> list[Hit]:
    """The turns of these entries, in this order. One query, and none for none."""
    hits = {}
    rows = Turn.objects.filter(_named(pk for _, pk in scores)) if scores else Turn.objects.none()
    score_of = {pk: score for score, pk in scores}
    for row in rows.order_by().values("session_id", "session__uuid", *COLUMNS):
        session_pk, uuid = row.pop("session_id"), row.pop("session__uuid")
        [(turn, searchable)] = read_searchables(session_pk, [StoredTurn(**row)])
        pk = session_pk << TURN_BITS | turn.number
        hits[pk] = Hit(
            session_pk=session_pk,
            session=uuid,
            turn=turn.number,
            role=turn.role,
            tool_name=next(iter(searchable.names), None),
            created_at=turn.created_at,
            text=searchable.text,
            score=score_of[pk],
            is_near=pk in near,
        )
    return [hits[pk] for _, pk in scores if pk in hits]


def _named(ids: Iterable[int]) -> Q:
    numbers: dict[int, list[int]] = defaultdict(list)
    for pk in ids:
        numbers[pk >> TURN_BITS].append(pk & (1 << TURN_BITS) - 1)
    condition = Q()
    for session_pk, found in numbers.items():
        condition |= Q(session=session_pk, number__in=found)
    return condition
