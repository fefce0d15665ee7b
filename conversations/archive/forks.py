"""The sessions that came from another: branches of it, and those that go on in its place."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from conversations.models import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """``fork_turn`` is the last turn that both share; None: it goes on in the other's
    place."""

    uuid: UUID
    title: str
    fork_turn: int | None
    turn_count: int
    is_archived: bool
    last_active_at: datetime


def list_forks(session: Session, *, limit: int) -> list[Fork]:
    """The first of them, as they were made. Only those of the same workspace, which
    whoever reads the session may read too."""
    forks = Session.objects.filter(parent=session.pk, workspace=session.workspace_id)
    columns = ("uuid", "title", "fork_turn", "next_turn", "archived_at", "last_active_at")
    return [
        Fork(
            uuid=uuid,
            title=title,
            fork_turn=fork_turn,
            turn_count=next_turn - 1,
            is_archived=archived_at is not None,
            last_active_at=last_active_at,
        )
        for uuid, title, fork_turn, next_turn, archived_at, last_active_at in forks.order_by(
            "pk"
        ).values_list(*columns)[:limit]
    ]
