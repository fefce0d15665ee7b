"""Rewinds: markers that take turns and rows off the active path. Nothing is deleted."""

from dataclasses import dataclass

from django.db.models import F
from django.utils import timezone

from conversations.domain.active_path import Branch, are_within, branch_with
from conversations.domain.errors import Rejected
from conversations.domain.events import CONTENT_INDICATOR, USER_MESSAGE
from conversations.models import ChatEvent, JournalGap, Rewind, Session

from .session_state import StateMoment, store_rewound_state
from .turns import read_markers, read_rewound


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindResult:
    """The rows that left the active path; the range is empty if the journal has none.

    ``has_synthesised`` says whether rows that stand for turns without events left the path too.
    ``has_returned`` says whether other rows came back. ``count`` is the session's number of rewinds
    afterwards, or 0 if nothing was rewound.
    """

    from_seq: int
    to_seq: int
    has_synthesised: bool = False
    has_returned: bool = False
    count: int = 0


NOTHING_REWOUND = RewindResult(from_seq=1, to_seq=0)


def append_rewind(
    session: Session, *, from_turn: int, from_seq: int | None, reason: str, actor_pk: int | None
) -> RewindResult:
    """Take all turns and rows from the given ones on off the active path.

    This runs in the caller's transaction. If ``from_seq`` is None, no row leaves the path. The
    session state is updated. If none of the turns and rows is on the active path, nothing is added.
    """
    counters = Session.objects.values(*_COUNTERS).get(pk=session.pk)
    last_turn, last_seq = counters["next_turn"] - 1, counters["next_seq"] - 1
    from_seq = last_seq + 1 if from_seq is None else from_seq
    if _is_within(from_turn, last_turn, read_rewound(session.pk, "turn")) and _is_within(
        from_seq, last_seq, read_rewound(session.pk, "seq")
    ):
        return NOTHING_REWOUND
    return _insert_rewind(
        session,
        Rewind(from_turn=from_turn, from_seq=from_seq, reason=reason, actor_id=actor_pk),
        counters,
    )


_COUNTERS = ("next_turn", "next_seq", "journal_turn", "rewind_count")


def _insert_rewind(
    session: Session,
    rewind: Rewind,
    counters: dict[str, int],
    *,
    as_of: StateMoment | None = None,
) -> RewindResult:
    rewind.session_id, rewind.created_at = session.pk, timezone.now()
    rewind.to_turn, rewind.to_seq = counters["next_turn"] - 1, counters["next_seq"] - 1
    rewind.save(force_insert=True)
    first = rewind.from_turn if rewind.back_to is None else 1
    Session.objects.filter(pk=session.pk).update(rewind_count=F("rewind_count") + 1)
    # All active turns may now be before the window's floor, so reset the floor; it is chosen again.
    Session.objects.filter(pk=session.pk, floor_turn__gte=first).update(floor_turn=1)
    store_rewound_state(session.pk, as_of=as_of)
    gaps = JournalGap.objects.filter(session=session.pk, to_turn__gte=first)
    return RewindResult(
        from_seq=rewind.from_seq,
        to_seq=rewind.to_seq,
        has_synthesised=counters["journal_turn"] < rewind.to_turn or gaps.exists(),
        has_returned=rewind.back_to is not None,
        count=counters["rewind_count"] + 1,
    )


def require_branch(session_pk: int, turn: int) -> Branch:
    """Return the branch with that turn. Raise Rejected if no branch that was left has it."""
    branch = branch_with(read_markers(session_pk, "turn"), turn)
    if branch is None:
        raise Rejected("This turn is on no other branch of the session.", code="no_branch")
    return branch


def return_to_branch(session: Session, *, turn: int, actor_pk: int | None) -> RewindResult:
    """Make the branch with this turn the active path again, as it was when it was left.

    The turns and rows since then leave the active path. The window and the session state become
    those of the branch. This runs in the caller's transaction. Raise Rejected if no branch that was
    left has the turn.
    """
    branch = require_branch(session.pk, turn)
    left_by = Rewind.objects.filter(session=session.pk).order_by("pk")[branch.back_to]
    counters = Session.objects.values(*_COUNTERS).get(pk=session.pk)
    back = Rewind(
        from_turn=branch.end + 1,
        from_seq=left_by.to_seq + 1,
        back_to=branch.back_to,
        reason=Rewind.Reason.SWITCH,
        actor_id=actor_pk,
    )
    left_at = StateMoment(turn=branch.end, seq=left_by.to_seq, rewinds=branch.back_to)
    return _insert_rewind(session, back, counters, as_of=left_at)


def first_seq_of_answer(session_pk: int, user_turn: int) -> int | None:
    """Return the first row after a person's message, for rewinding its answer.

    If an answer has no turn of its own, its notices and footers carry the turn of the message.
    """
    message_rows = ChatEvent.objects.filter(
        session=session_pk, turn_number=user_turn, event_type__in=(USER_MESSAGE, CONTENT_INDICATOR)
    )
    last = message_rows.order_by("-seq").values_list("seq", flat=True).first()
    return last + 1 if last is not None else first_seq_from_turn(session_pk, user_turn + 1)


def first_seq_from_turn(session_pk: int, turn: int) -> int | None:
    """Return the first row of that turn, or of the next turn that has rows."""
    events = ChatEvent.objects.filter(session=session_pk, turn_number__gte=turn)
    return events.order_by("turn_number", "seq").values_list("seq", flat=True).first()


def is_rewound(session_pk: int, number: int) -> bool:
    return are_within(number, read_rewound(session_pk, "turn"))


def read_rewinds(session_pk: int, *, from_seq: int, to_seq: int) -> list[Rewind]:
    """Return the rewinds that were made when the session's last row was in this range, in order."""
    rewinds = Rewind.objects.filter(session=session_pk, to_seq__range=(from_seq, to_seq))
    return list(rewinds.order_by("to_seq", "pk"))


def _is_within(first: int, last: int, ranges: list[tuple[int, int]]) -> bool:
    """Return whether one of the ranges contains all numbers from ``first`` to ``last``.

    The result is also True if ``last`` is smaller than ``first``. The ranges must not touch each
    other.
    """
    return first > last or any(low <= first and last <= high for low, high in ranges)
