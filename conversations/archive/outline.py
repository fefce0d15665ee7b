"""The outline of a session: the person's messages, and the first turn of a day."""

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime

from django.db.models.functions import Left

from conversations.domain.text import one_line, strip_marks
from conversations.models import Session, Turn

from .turns import active_user_turns

MAX_LINE_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineEntry:
    """A message of a person, with the beginning of its text."""

    turn: int
    text: str
    created_at: datetime


def read_outline(session: Session, *, before: int | None, limit: int) -> list[OutlineEntry]:
    """Return messages on the active path before a turn, oldest first.

    If ``before`` is None, return the last messages.
    """
    end = session.turn_count + 1 if before is None else before
    turns = active_user_turns(session.pk, end, has_rewinds=session.rewind_count > 0)
    rows = turns.annotate(begins=Left("content", MAX_LINE_CHARS * 4))
    newest = rows.values_list("number", "begins", "created_at")[:limit]
    return [
        OutlineEntry(
            turn=number,
            text=one_line(strip_marks(text), limit=MAX_LINE_CHARS),
            created_at=created_at,
        )
        for number, text, created_at in reversed(newest)
    ]


def first_turn_since(session: Session, moment: datetime) -> int:
    """Return the first turn at or after the moment, or the last turn if there is none.

    Turns are ordered by time, so a binary search reads only a few of them.
    """

    def time_of(number: int) -> datetime:
        times = Turn.objects.filter(session=session.pk, number=number)
        return times.values_list("created_at", flat=True).get()

    numbers = range(1, session.turn_count + 1)
    return min(bisect_left(numbers, moment, key=time_of) + 1, session.turn_count)
