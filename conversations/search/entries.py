"""From turns to entries: what the index keeps of each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from conversations.archive.turns import COLUMNS
from conversations.domain.searchable import Searchable, SearchableTurn, make_entry, read_searchable
from conversations.domain.turns import (
    ASSISTANT,
    TOOL,
    MalformedTurn,
    StoredTurn,
    read_tool_calls,
)
from conversations.models import Turn
from conversations.models.search import entry_id

LOOKED_BACK = 20
"""Turns before a result among which the call may be that it answers."""


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
    def row(self) -> tuple[int, int, int, datetime, str, str, str, str]:
        entry = self.entry
        return (
            self.id,
            self.session_pk,
            entry.length,
            self.turn.created_at,
            entry.said,
            entry.tools,
            entry.paths,
            entry.marks,
        )


type Stretch = tuple[int, int, int]
"""A session's key, and the first and the last of some turns of it."""


def read_entries(*stretches: Stretch) -> list[TurnEntry]:
    """The entries of these turns, made anew. One query for each stretch (SQLite reads
    the whole table for stretches that are joined by OR), and one for each result of a
    tool that does not name it."""
    return [item for stretch in stretches for item in _make_entries(stretch)]


def _make_entries(stretch: Stretch) -> Iterator[TurnEntry]:
    session_pk, *_ = stretch
    rows = Turn.objects.filter(_within(stretch)).order_by("number")
    for row in rows.values(*COLUMNS, "session__owner_id", "session__workspace_id"):
        owner, workspace = row.pop("session__owner_id"), row.pop("session__workspace_id")
        [(turn, searchable)] = read_searchables(session_pk, [StoredTurn(**row)])
        entry = make_entry(turn, searchable, owner=owner, workspace=workspace)
        yield TurnEntry(session_pk=session_pk, turn=turn, searchable=searchable, entry=entry)


def _within(stretch: Stretch) -> Q:
    session_pk, first, last = stretch
    return Q(session=session_pk, number__gte=first, number__lte=last)


def read_searchables(
    session_pk: int, turns: Iterable[StoredTurn]
) -> Iterator[tuple[StoredTurn, Searchable]]:
    for turn in turns:
        call_name = _name_of_call(session_pk, turn) if _is_nameless(turn) else None
        yield turn, read_searchable(turn, call_name=call_name)


def _is_nameless(turn: StoredTurn) -> bool:
    return turn.role == TOOL and not turn.tool_name and bool(turn.tool_call_id)


def _name_of_call(session_pk: int, result: StoredTurn) -> str | None:
    """The tool of a result that does not name it, as in some older archives."""
    before = _within((session_pk, result.number - LOOKED_BACK, result.number - 1))
    for row in Turn.objects.filter(before).order_by("-number").values(*COLUMNS):
        turn = StoredTurn(**row)
        if turn.role == ASSISTANT:
            for call in _calls_of(turn):
                if call.get("id") == result.tool_call_id:
                    return str(call.get("name") or "")
    return None


def _calls_of(turn: StoredTurn) -> list[dict[str, object]]:
    try:
        return read_tool_calls(turn)
    except MalformedTurn:
        return []
