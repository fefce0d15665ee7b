"""What stands around hits: their sessions, their neighbours, whether they were replaced.

Each is one query, whatever the number of hits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from conversations.domain.text import one_line, strip_marks
from conversations.models import Session

from .results import Place, TurnHit, select_at

LINE = 160
"""Characters of a neighbour that are shown."""


@dataclass(frozen=True, slots=True)
class SurroundingTurn:
    """A turn in one line."""

    role: str
    tool_name: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """``sessions`` by key, with the names of workspace and owner; ``lines`` of the turns next to
    hits, but for those without text; ``replaced``: hits that left the active path."""

    sessions: dict[int, Session]
    lines: dict[Place, SurroundingTurn]
    replaced: set[Place]


_NAMED = (
    *("uuid", "title", "archived_at", "expires_at"),
    *("owner__username", "workspace__name", "workspace__slug"),
)
_LINES = (
    "SELECT turn.session_id, turn.number, turn.role, turn.tool_name,"
    f" SUBSTR(turn.content, 1, {LINE * 4}) FROM place CROSS JOIN conversations_turn turn"
    " WHERE turn.session_id = place.session AND turn.number = place.turn"
    " AND turn.content <> ''"
)
_REPLACED = (
    "SELECT place.session, place.turn FROM place CROSS JOIN conversations_rewind rewind"
    " WHERE rewind.session_id = place.session"
    " AND place.turn BETWEEN rewind.from_turn AND rewind.to_turn"
)


def read_surroundings(hits: Sequence[TurnHit]) -> Surroundings:
    places = {(hit.session_pk, hit.turn) for hit in hits}
    wanted = {(pk, turn + step) for pk, turn in places for step in (-1, 1)} - places
    return Surroundings(
        sessions=_read_sessions({pk for pk, _ in places}),
        lines=_read_lines(wanted),
        replaced=set(select_at(_REPLACED, places)),
    )


def _read_sessions(pks: Iterable[int]) -> dict[int, Session]:
    """With what a list of hits names."""
    sessions = Session.objects.select_related("workspace", "owner").only(*_NAMED)
    return sessions.in_bulk(list(pks))


def _read_lines(places: Collection[Place]) -> dict[Place, SurroundingTurn]:
    return {
        (pk, number): SurroundingTurn(role, tool_name, one_line(strip_marks(text), limit=LINE))
        for pk, number, role, tool_name, text in select_at(_LINES, places)
    }
