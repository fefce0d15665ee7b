"""Shortcuts that append and read the turns of a test's session."""

from asgiref.sync import sync_to_async

from conversations.archive.append import append
from conversations.archive.turns import walk_turns
from conversations.domain.turns import NewTurn, StoredTurn
from conversations.models import Session


def append_turn(session: Session, turn: NewTurn) -> int:
    """Append one turn without an event and return its number."""
    return append(session.pk, session_uuid=session.uuid, turns=[turn]).turns[0]


def read_turns(session_pk: int) -> list[StoredTurn]:
    """Return all turns of a test's session, which has at most 500."""
    return walk_turns(session_pk, start=None, is_back=False, limit=500)


async def turns_of(session: Session) -> list[tuple[str, str]]:
    """Return the role and text of each turn."""
    return [(turn.role, turn.content) for turn in await sync_to_async(read_turns)(session.pk)]
