"""Forks: new sessions that begin like another session, up to one of its turns.

The turns are copied from the active path, or from the branch that contains the given turn. The rows
of the new session are synthesised from the copied turns, as for older imports.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import transaction

from conversations.domain.active_path import (
    Ranges,
    are_within,
    branch_with,
    hidden_ranges,
    merge_ranges,
)
from conversations.domain.attachments import read_references
from conversations.domain.errors import NotFound
from conversations.domain.session_state import FILE
from conversations.domain.session_state.facts import renumber_strike
from conversations.domain.turns import (
    ASIDE,
    CONTENT_COLUMNS,
    TOOL,
    USER,
    NewTurn,
    StoredTurn,
    read_metadata,
)
from conversations.models import Attachment, Rewind, Session, SessionSkill

from .append import append
from .asides import read_aside
from .rewinds import first_seq_from_turn
from .session_state import StateMoment, mark_items, read_state_at, read_stored_state
from .sessions import create_session, get_session
from .turns import read_markers, walk_turns

MAX_COPIED_TURNS = 2000  # The last turns; the model can look up earlier ones in the parent session
BATCH_ROWS = 200
# The place in the ids of pinned items whose turn is not copied. No other item of turn 1 has such a
# place.
FIRST_PLACE = 1000


def fork_session(session: Session, *, turn: int, owner: User, channel: str = "web") -> Session:
    """Create a session with the turns up to ``turn``, including the results of its tool calls.

    Raise NotFound if the turn does not exist.
    """
    if not 1 <= turn <= session.turn_count:
        raise NotFound("This turn does not exist in this session.")
    gone = read_hidden_beside(session, turn)
    turns = _turns_up_to(session, turn, gone=gone)
    with transaction.atomic():
        fork = create_session(
            session.workspace,
            owner=owner,
            model=session.model,
            instructions=session.instructions,
            channel=channel,
            title=f"{session.title} (fork)" if session.title else "",
            continues=session,
        )
        Session.objects.filter(pk=fork.pk).update(
            fork_turn=turn, title_is_chosen=session.title_is_chosen
        )
        numbers = {t.number: number for number, t in enumerate(turns, 1)}
        uuids = _copy_attachments(session, fork, turns)
        for start in range(0, len(turns), BATCH_ROWS):
            copies = [_copy_turn(t, uuids, numbers) for t in turns[start : start + BATCH_ROWS]]
            append(fork.pk, session_uuid=fork.uuid, turns=copies)
        _copy_skills(session, fork, numbers, gone=gone)
        _copy_marks(session, fork, numbers, turn=turn, owner=owner)
    return get_session(fork.uuid)


def _turns_up_to(session: Session, turn: int, *, gone: Ranges) -> list[StoredTurn]:
    aside = read_aside(session.pk, gone=gone)
    later = walk_turns(
        session.pk, start=turn, is_back=False, limit=BATCH_ROWS, rewound=gone, active=True
    )
    results = list(takewhile(lambda candidate: candidate.role == TOOL, later))
    earlier = walk_turns(
        session.pk, start=turn + 1, is_back=True, limit=MAX_COPIED_TURNS, rewound=gone, active=True
    )
    candidates = [*reversed(earlier), *results]
    # Leave out asides and their markers, because the provider refused the turns.
    kept = [
        candidate
        for candidate in candidates
        if not are_within(candidate.number, aside) and ASIDE not in read_metadata(candidate)
    ]
    if len(earlier) == MAX_COPIED_TURNS:  # do not begin in the middle of an answer
        first = next((place for place, candidate in enumerate(kept) if candidate.role == USER), 0)
        return kept[first:]
    return kept


def read_hidden_beside(session: Session, turn: int) -> Ranges:
    """Return the turns that are not on the path of the given turn.

    That path is the active path, or the branch that contains the turn.
    """
    markers = read_markers(session.pk, "turn")
    branch = branch_with(markers, turn)
    if branch is None:
        return hidden_ranges(markers)
    return merge_ranges([*branch.hidden, (branch.end + 1, session.turn_count)])


def read_state_moment(session_pk: int, turn: int) -> StateMoment:
    """Return the moment at which that turn was the last one of the session."""
    later = first_seq_from_turn(session_pk, turn + 1)
    last = read_stored_state(session_pk).moment.seq
    rewinds = Rewind.objects.filter(session=session_pk, to_turn__lt=turn).count()
    return StateMoment(turn=turn, seq=last if later is None else later - 1, rewinds=rewinds)


def _copy_turn(turn: StoredTurn, uuids: Mapping[str, str], numbers: Mapping[int, int]) -> NewTurn:
    columns: dict[str, Any] = {name: getattr(turn, name) for name in CONTENT_COLUMNS}
    blocks = columns["blocks"]
    if blocks:
        for old, new in uuids.items():
            blocks = blocks.replace(old, new)
    # An item that the model struck is identified by its turn, which has another number in the fork.
    content = renumber_strike(turn, numbers.get)
    changed = {"content": content, "blocks": blocks, "created_at": turn.created_at}
    return NewTurn(**columns | changed)


def _copy_attachments(
    session: Session, fork: Session, turns: Sequence[StoredTurn]
) -> dict[str, str]:
    """Copy the rows of the attachments that these turns refer to.

    The blobs are not copied. Return the new UUIDs by old UUID.
    """
    uuids: dict[str, str] = {}
    copies = []
    # The attachments of an edited message, or of a message that sent the same file again, belong to
    # an earlier turn, and that turn may not be copied.
    turn_numbers: dict[str, int] = {}
    for number, turn in enumerate(turns, 1):
        for block in read_references(turn.blocks):
            turn_numbers.setdefault(str(block.get("attachment")), number)
    sent = Attachment.objects.filter(session=session.pk, turn_number__isnull=False)
    for attachment in sent.order_by("pk").iterator(chunk_size=BATCH_ROWS):
        old = str(attachment.uuid)
        if old in turn_numbers:
            attachment.pk, attachment.uuid, attachment.session = None, uuid4(), fork
            attachment.turn_number = turn_numbers[old]
            uuids[old] = str(attachment.uuid)
            copies.append(attachment)
    Attachment.objects.bulk_create(copies, batch_size=BATCH_ROWS)
    return uuids


def _copy_skills(
    session: Session, fork: Session, numbers: Mapping[int, int], *, gone: Ranges
) -> None:
    """Copy the skills that were loaded in the copied turns.

    Skills that were loaded in earlier turns and are still in force are copied as loaded in turn 1.
    """
    skills = list(SessionSkill.objects.filter(session=session.pk).order_by("pk"))
    first = min(numbers, default=1)
    earlier = {
        skill.name: skill
        for skill in skills
        if skill.turn_number < first and not are_within(skill.turn_number, gone)
    }
    copies = [*earlier.values(), *(skill for skill in skills if skill.turn_number in numbers)]
    for skill in copies:
        skill.pk, skill.session, skill.turn_number = None, fork, numbers.get(skill.turn_number, 1)
    SessionSkill.objects.bulk_create(copies)


def _copy_marks(
    session: Session, fork: Session, numbers: Mapping[int, int], *, turn: int, owner: User
) -> None:
    """Copy the marks of the session state: the items that people had pinned, removed or reworded.

    The state is the one at the time when ``turn`` was the session's last turn. Pinned items are
    copied even if their turn is not.
    """
    state = read_state_at(session.pk, read_state_moment(session.pk, turn))
    marks, copied = [], list(numbers)
    for place, mark in enumerate(state.marks):
        number = numbers.get(mark.turn)
        if number is None and not mark.is_pinned:
            continue
        # The id of a file item depends only on its path. All other ids contain the turn, between
        # the letter and the place.
        _, dot, rest = mark.id.partition(".")
        end = f".{FIRST_PLACE + place}" if number is None else f"{dot}{rest}"
        number = number or 1
        new = mark.id if mark.kind == FILE else f"{mark.id[:1]}{number}{end}"
        after = bisect_right(copied, mark.reworded_after)
        marks.append(mark._replace(id=new, turn=number, reworded_after=after))
    mark_items(fork, marks, by=owner.get_username())
