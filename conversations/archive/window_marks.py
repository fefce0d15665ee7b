"""Where a session's window starts and how full it is, for the pages that show it."""

from dataclasses import dataclass
from uuid import UUID

from conversations.domain.text import cost_text
from conversations.models import Session

from .turns import count_active_before


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMark:
    """``floor`` is the window's first turn, ``left_out`` counts the active turns below
    it. ``tokens`` of ``limit`` are used, both 0 while that is not known. The cost is
    that of the whole session."""

    session: UUID
    floor: int
    left_out: int
    tokens: int
    limit: int
    cost_microusd: int

    @property
    def key(self) -> str:
        """The same for the same mark."""
        cost = cost_text(self.cost_microusd)
        return f"{self.floor}.{self.left_out}.{self.tokens}.{self.limit}.{cost}"


def read_window_mark(session_pk: int) -> WindowMark:
    return window_mark_of(Session.objects.get(pk=session_pk))


def window_mark_of(session: Session) -> WindowMark:
    floor = session.floor_turn
    has_rewinds = session.rewind_count > 0 and floor > 1
    return WindowMark(
        session=session.uuid,
        floor=floor,
        left_out=count_active_before(session.pk, floor, has_rewinds=has_rewinds),
        tokens=session.context_tokens,
        limit=session.context_limit,
        cost_microusd=session.cost_microusd,
    )
