"""A session of its own that begins as another one did, up to a turn of it.

The turns are copied, on the active path or on the branch that has the turn; their rows are made
from them, as those of older imports are.
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
    markers_until_left,
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

MAX_COPIED_TURNS = 2000  # The last ones; the model can look up those before in the parent.
BATCH_ROWS = 200
FIRST_PLACE = 1000  # In the ids of pinned items without a turn, which no other item of turn 1 has


def fork_session(session: Session, *, turn: int, owner: User, channel: str = "web") -> Session:
    """A new session with what was said up to a turn, results of its tool calls included. Raises
    NotFound where there is no such turn."""
    if not 1 <= turn <= session.turn_count:
        raise NotFound("This turn does not exist in this session.")
    gone = read_hidden_beside(session, turn)
    turns = _turns_up_to(session, turn, gone=gone)
    with transaction.atomic():
        made = create_session(
            session.workspace,
            owner=owner,
            model=session.model,
            instructions=session.instructions,
            channel=channel,
            title=f"{session.title} (fork)" if session.title else "",
            continues=session,
        )
        is_chosen = session.title_is_chosen
        Session.objects.filter(pk=made.pk).update(fork_turn=turn, title_is_chosen=is_chosen)
        numbers = {one.number: number for number, one in enumerate(turns, 1)}
        names = _copy_attachments(session, made, turns)
        for start in range(0, len(turns), BATCH_ROWS):
            copies = [_copy(one, names, numbers) for one in turns[start : start + BATCH_ROWS]]
            append(made.pk, session_uuid=made.uuid, turns=copies)
        _copy_skills(session, made, numbers, gone=gone)
        _copy_marks(session, made, numbers, turn=turn, owner=owner)
    return get_session(made.uuid)


def _turns_up_to(session: Session, turn: int, *, gone: Ranges) -> list[StoredTurn]:
    aside = read_aside(session.pk, gone=gone)
    later = walk_turns(
        session.pk, start=turn, is_back=False, limit=BATCH_ROWS, rewound=gone, active=True
    )
    results = list(takewhile(lambda one: one.role == TOOL, later))
    earlier = walk_turns(
        session.pk, start=turn + 1, is_back=True, limit=MAX_COPIED_TURNS, rewound=gone, active=True
    )
    whole = [*reversed(earlier), *results]
    # What stands aside was refused: the fork begins without it, and without the notes that say so.
    kept = [
        one
        for one in whole
        if not are_within(one.number, aside) and ASIDE not in read_metadata(one)
    ]
    if len(earlier) == MAX_COPIED_TURNS:  # never in the middle of an answer
        first = next((place for place, one in enumerate(kept) if one.role == USER), 0)
        return kept[first:]
    return kept


def read_hidden_beside(session: Session, turn: int) -> Ranges:
    """What is not on the path with that turn: the active one, or the branch that has it."""
    markers = read_markers(session.pk, "turn")
    branch = branch_with(markers, turn)
    if branch is not None:
        markers = markers_until_left(markers, branch.back_to, last=session.turn_count)
    return hidden_ranges(markers)


def read_state_moment(session_pk: int, turn: int) -> StateMoment:
    """When that turn was the last one of the session."""
    later = first_seq_from_turn(session_pk, turn + 1)
    last = read_stored_state(session_pk).moment.seq
    rewinds = Rewind.objects.filter(session=session_pk, to_turn__lt=turn).count()
    return StateMoment(turn=turn, seq=last if later is None else later - 1, rewinds=rewinds)


def _copy(turn: StoredTurn, names: Mapping[str, str], numbers: Mapping[int, int]) -> NewTurn:
    content: dict[str, Any] = {name: getattr(turn, name) for name in CONTENT_COLUMNS}
    blocks = content["blocks"]
    for old, new in names.items() if blocks else ():
        blocks = blocks.replace(old, new)
    # What the model struck is named by its turn, which has another number here.
    text = renumber_strike(turn, numbers.get)
    return NewTurn(**content | {"content": text, "blocks": blocks, "created_at": turn.created_at})


def _copy_attachments(
    session: Session, made: Session, turns: Sequence[StoredTurn]
) -> dict[str, str]:
    """The files that these turns name, which stay stored once; returns the new names by the old
    ones."""
    names: dict[str, str] = {}
    copies = []
    # What an edited message names, or one that a file was sent with again, belongs to an earlier
    # turn, which may stay behind.
    numbers: dict[str, int] = {}
    for place, turn in enumerate(turns, 1):
        for block in read_references(turn.blocks):
            numbers.setdefault(str(block.get("attachment")), place)
    sent = Attachment.objects.filter(session=session.pk, turn_number__isnull=False)
    for one in sent.order_by("pk").iterator(chunk_size=BATCH_ROWS):
        old, new = str(one.uuid), uuid4()
        if (number := numbers.get(old)) is not None:
            names[old] = str(new)
            one.pk, one.uuid, one.session = None, new, made
            one.turn_number = number
            copies.append(one)
    Attachment.objects.bulk_create(copies, batch_size=BATCH_ROWS)
    return names


def _copy_skills(
    session: Session, made: Session, numbers: Mapping[int, int], *, gone: Ranges
) -> None:
    """Those of the turns that are copied, and as loaded at turn 1 what was in force before."""
    skills = list(SessionSkill.objects.filter(session=session.pk).order_by("pk"))
    first = min(numbers, default=1)
    before = {
        one.name: one
        for one in skills
        if one.turn_number < first and not are_within(one.turn_number, gone)
    }
    copies = [*before.values(), *(one for one in skills if one.turn_number in numbers)]
    for one in copies:
        one.pk, one.session, one.turn_number = None, made, numbers.get(one.turn_number, 1)
    SessionSkill.objects.bulk_create(copies)


def _copy_marks(
    session: Session, made: Session, numbers: Mapping[int, int], *, turn: int, owner: User
) -> None:
    """What people had pinned, removed and reworded in the session state when that turn was the
    last one; pinned items stay even where their turn is not copied."""
    state = read_state_at(session.pk, read_state_moment(session.pk, turn))
    marks, copied = [], list(numbers)
    for place, mark in enumerate(state.marks):
        number = numbers.get(mark.turn)
        if number is None and not mark.is_pinned:
            continue
        # A file's id is that of its path, any other has the turn between its letter and its place.
        _, dot, rest = mark.id.partition(".")
        end = f".{FIRST_PLACE + place}" if number is None else f"{dot}{rest}"
        number = number or 1
        new = mark.id if mark.kind == FILE else f"{mark.id[:1]}{number}{end}"
        after = bisect_right(copied, mark.reworded_after)
        marks.append(mark._replace(id=new, turn=number, reworded_after=after))
    mark_items(made, marks, by=owner.get_username())
