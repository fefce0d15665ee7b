"""What stands around hits: their sessions, their neighbours, whether they were replaced.

Each is one query, whatever the number of hits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q
from django.db.models.functions import Substr

from conversations.domain.text import one_line, strip_marks
from conversations.models import Rewind, Session, Turn

from .results import Hit

LINE = 160
"""Characters of a neighbour that are shown."""

type Place = tuple[int, int]
"""A session's key and a turn's number."""


@dataclass(frozen=True, slots=True)
class Line:
    """A turn in one line."""

    role: str
    tool_name: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """``sessions`` by key, with workspace and owner; ``lines`` of the turns next to
    hits, but for those without text; ``replaced``: hits that left the active path."""

    sessions: dict[int, Session]
    lines: dict[Place, Line]
    replaced: set[Place]


def read_surroundings(hits: Sequence[Hit]) -> Surroundings:
    places = {(hit.session_pk, hit.turn) for hit in hits}
    wanted = {(pk, turn + step) for pk, turn in places for step in (-1, 1)} - places
    return Surroundings(
        sessions=_read_sessions({pk for pk, _ in places}),
        lines=_read_lines(wanted),
        replaced=_find_replaced(places),
    )


def _read_sessions(pks: Iterable[int]) -> dict[int, Session]:
    return Session.objects.select_related("workspace", "owner").in_bulk(list(pks))


def _read_lines(places: Iterable[Place]) -> dict[Place, Line]:
    by_session = _by_session(places)
    if not by_session:
        return {}
    turns = Turn.objects.filter(
        reduce(or_, (Q(session=pk, number__in=turns) for pk, turns in by_session.items()))
    ).exclude(content="")
    rows = turns.order_by("session", "number").values_list(
        "session_id", "number", "role", "tool_name", Substr("content", 1, LINE * 4)
    )
    return {
        (pk, number): Line(role, tool_name, one_line(strip_marks(text), limit=LINE))
        for pk, number, role, tool_name, text in rows
    }


def _find_replaced(places: Collection[Place]) -> set[Place]:
    by_session = _by_session(places)
    if not by_session:
        return set()
    rewinds = Rewind.objects.filter(
        reduce(or_, (Q(session=pk, from_turn__lte=turn, to_turn__gte=turn) for pk, turn in places))
    ).order_by("pk")
    return {
        (pk, turn)
        for pk, low, high in rewinds.values_list("session_id", "from_turn", "to_turn")
        for turn in by_session[pk]
        if low <= turn <= high
    }


def _by_session(places: Iterable[Place]) -> dict[int, list[int]]:
    by_session: dict[int, list[int]] = {}
    for pk, turn in places:
        by_session.setdefault(pk, []).append(turn)
    return by_session
