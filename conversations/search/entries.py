"""From turns to entries: what the index keeps of each."""

from dataclasses import dataclass
from typing import Any

from conversations.archive.turns import COLUMNS as TURN_COLUMNS
from conversations.domain.searchable import Searchable, SearchableTurn, make_entry, read_searchable
from conversations.domain.turns import ASSISTANT, TOOL, StoredTurn, calls_of
from conversations.models import Turn
from conversations.models.search import COLUMNS, entry_id

MAX_TURNS_LOOKED_BACK = 20  # Turns before a result among which the call may be that it answers.


ENTRY_COLUMNS = ("id", "session_id", "length", "created_at", *COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEntry:
    """An entry and the turn that it stands for."""

    session_pk: int
    turn: StoredTurn
    searchable: Searchable
    entry: SearchableTurn

    @property
    def id(self) -> int:
        return entry_id(self.session_pk, self.turn.number)

    @property
    def row(self) -> tuple[Any, ...]:
        """By :data:`ENTRY_COLUMNS`."""
        words = (getattr(self.entry, name) for name in COLUMNS)
        return (self.id, self.session_pk, self.entry.length, self.turn.created_at, *words)


# A session's key, and the first and the last of some turns of it.
type Stretch = tuple[int, int, int]


def read_entries(*stretches: Stretch) -> list[TurnEntry]:
    """The entries of these turns, made anew. One query for each stretch (SQLite reads
    the whole table for stretches that are joined by OR), and one for each result of a
    tool that does not name it."""
    entries: list[TurnEntry] = []
    for session_pk, first, last in stretches:
        rows = Turn.objects.filter(session=session_pk, number__range=(first, last))
        columns = (*TURN_COLUMNS, "session__owner_id", "session__workspace_id")
        for row in rows.order_by("number").values(*columns):
            owner, workspace = row.pop("session__owner_id"), row.pop("session__workspace_id")
            turn = StoredTurn(**row)
            searchable = searchable_of(session_pk, turn)
            entry = make_entry(turn, searchable, owner=owner, workspace=workspace)
            entries.append(
                TurnEntry(session_pk=session_pk, turn=turn, searchable=searchable, entry=entry)
            )
    return entries


def searchable_of(session_pk: int, turn: StoredTurn) -> Searchable:
    """In some older archives a result of a tool does not name it: its call does."""
    name = None
    if turn.role == TOOL and not turn.tool_name and turn.tool_call_id:
        before = (turn.number - MAX_TURNS_LOOKED_BACK, turn.number - 1)
        rows = Turn.objects.filter(session=session_pk, number__range=before, role=ASSISTANT)
        answers = (StoredTurn(**row) for row in rows.order_by("-number").values(*TURN_COLUMNS))
        calls = (call for answer in answers for call in calls_of(answer))
        named = (str(c.get("name") or "") for c in calls if c.get("id") == turn.tool_call_id)
        name = next(named, None)
    return read_searchable(turn, call_name=name)
