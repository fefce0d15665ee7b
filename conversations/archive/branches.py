"""Branches of a session: paths left by an edit, a new answer or a reset, and returning to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from conversations.domain.active_path import (
    Branch,
    Marker,
    find_branches,
    find_versions,
)
from conversations.domain.text import one_line, strip_marks
from conversations.domain.turns import SYSTEM
from conversations.models import Rewind, Session, Turn

from .append import joined_transaction, lock_session
from .messages import refuse_busy, refuse_closed
from .rewinds import RewindResult, require_branch, return_to_branch
from .transcript import TranscriptPage, read_page
from .turns import marker_columns, read_beginnings

MAX_BRANCHES = 100  # Maximum in a list, which has the most recently left branches
MAX_LINE_CHARS = 160
PARTING = (Rewind.Reason.EDIT, Rewind.Reason.REGENERATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBranch:
    """A branch that is not the active one.

    ``turn`` is the first turn of the branch that is not on the active path, ``begins`` is the
    beginning of its text, and ``turns`` is the number of turns from there to ``tip``. ``left_at``
    and ``reason`` say when and why the branch was left.
    """

    turn: int
    tip: int
    turns: int
    role: str
    begins: str
    left_at: datetime
    reason: str


def list_branches(session: Session) -> list[LeftBranch]:
    """Return the branches that were left, the latest first."""
    if session.rewind_count == 0:
        return []
    rewinds = Rewind.objects.filter(session=session.pk).order_by("pk")
    rows = list(rewinds.values_list(*marker_columns("turn"), "created_at", "reason"))
    markers = [Marker(*row[:3]) for row in rows]
    branches = list(islice(find_branches(markers), MAX_BRANCHES))
    firsts = [branch.first for branch in branches]
    begins = read_beginnings(session.pk, firsts, chars=MAX_LINE_CHARS * 4)
    roles = _read_roles(session, firsts)
    return [
        LeftBranch(
            turn=branch.first,
            tip=branch.tip,
            turns=branch.length,
            role=roles.get(branch.first, ""),
            begins=one_line(strip_marks(begins.get(branch.first, "")), limit=MAX_LINE_CHARS),
            left_at=rows[branch.back_to][3],
            reason=rows[branch.back_to][4],
        )
        for branch in branches
    ]


def _read_roles(session: Session, turns: Sequence[int]) -> dict[int, str]:
    rows = Turn.objects.filter(session=session.pk, number__in=turns)
    return dict(rows.values_list("number", "role"))


def list_versions(session: Session) -> list[tuple[int, ...]]:
    """Return groups of turns that are versions of each other.

    A group holds the edits of one message or the answers to one message.
    """
    if session.rewind_count == 0:
        return []
    rewinds = Rewind.objects.filter(session=session.pk).order_by("pk")
    rows = list(rewinds.values_list(*marker_columns("turn"), "reason"))
    groups = find_versions(
        [Marker(*row[:3]) for row in rows],
        last=session.turn_count,
        parting=(index for index, row in enumerate(rows) if row[3] in PARTING),
    )
    roles = _read_roles(session, [turn for group in groups for turn in group])
    versions = []
    for group in groups:
        # An aside marker is not an answer to the message.
        role = next((roles[turn] for turn in reversed(group) if roles[turn] != SYSTEM), SYSTEM)
        versions.append(tuple(turn for turn in group if roles[turn] == role))
    return [group for group in versions if len(group) > 1]


def is_branch_due(session: Session) -> bool:
    """Return whether no turn was added since the last rewind."""
    return Rewind.objects.filter(session=session.pk, to_turn=session.turn_count).exists()


def read_branch(session: Session, *, turn: int, limit: int) -> tuple[Branch, TranscriptPage]:
    """Return the branch that contains the turn, and its first rows from that turn on.

    Raise Rejected if no branch that was left contains the turn.
    """
    branch = require_branch(session.pk, turn)
    return branch, read_page(session, limit=limit, from_turn=turn, as_of=branch.back_to)


def use_branch(session: Session, *, turn: int, actor_pk: int | None) -> RewindResult:
    """Make the branch that contains the turn the active one.

    Raise Rejected if no branch that was left contains the turn. Raise Conflict while a run is
    active and if the session is archived or expired.
    """
    with joined_transaction():
        refuse_closed(lock_session(session.pk))
        refuse_busy(session.pk)
        return return_to_branch(session, turn=turn, actor_pk=actor_pk)
