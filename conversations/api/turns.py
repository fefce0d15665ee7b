"""API operations of turns and of the journal's events."""

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Field, Path, Query, Router, Schema

from conversations.access import get_session_for
from conversations.accounts.tokens import READ
from conversations.archive.journal import StoredEvent, walk_events
from conversations.archive.turns import read_rewound, read_turn, walk_turns
from conversations.domain.active_path import Ranges, are_within
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.turns import (
    MalformedTurn,
    StoredTurn,
    read_blocks,
    read_metadata,
    read_tool_calls,
)

from .auth import needs
from .fields import MAX_NUMBER, Page, PageRequest, Paging, make_page, page_request_of

router = Router(tags=["Turns and events"])


class TurnOut(Schema):
    """A turn.

    ``blocks`` are the provider's content blocks as received. ``tool_calls`` are the tool calls in
    them, in the same format for all providers. ``active`` is false if the turn was taken back or
    replaced. ``damage`` says which part of the turn cannot be read.
    """

    number: int
    role: str
    content: str
    blocks: list[Any] | None
    tool_calls: list[dict[str, Any]]
    tool_call_id: str | None
    tool_name: str | None
    token_count: int
    stop_reason: str
    complete: bool
    active: bool
    metadata: dict[str, Any]
    created_at: datetime
    digest: str
    damage: str | None = None


class NumberRange(Paging):
    """A range of numbers, which excludes its bounds.

    With ``before``, the page is the one right before that number. Without any bound, it is the
    first page.
    """

    after: int | None = Field(None, ge=0, le=MAX_NUMBER)
    before: int | None = Field(None, ge=1, le=MAX_NUMBER)


class TurnFilters(NumberRange):
    active: bool | None = Field(
        None, description="True: leave out rewound turns. False: only rewound turns."
    )


@router.get("/turns", auth=needs(READ), response=Page[TurnOut], url_name="turns")
def list_turns(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[TurnFilters]
) -> dict[str, Any]:
    """List the turns of a session in order."""
    session, _ = get_session_for(request, uuid)
    walk = walk_by_number(wanted)
    rewound = read_rewound(session.pk, "turn")
    turns = walk_turns(
        session.pk,
        start=walk.number,
        is_back=walk.is_back,
        limit=walk.limit + 1,
        rewound=rewound,
        active=wanted.active,
    )
    return make_page(
        walk,
        turns,
        as_item=lambda turn: as_turn(turn, rewound),
        place_of=lambda turn: str(turn.number),
    )


@router.get("/turns/{int:number}", auth=needs(READ), response=TurnOut, url_name="turn")
def get_turn(request: HttpRequest, uuid: Path[UUID], number: Path[int]) -> dict[str, Any]:
    """Return one turn."""
    session, _ = get_session_for(request, uuid)
    turn = read_turn(session.pk, number)
    if turn is None:
        raise NotFound("This turn does not exist in this session.")
    return as_turn(turn, read_rewound(session.pk, "turn"))


def walk_by_number(wanted: NumberRange) -> PageRequest:
    """Return the requested page of a list that is ordered by number.

    Raise Rejected if more than one of cursor, ``after`` and ``before`` is given.
    """
    bounds = (wanted.cursor or None, wanted.after, wanted.before)
    if sum(bound is not None for bound in bounds) > 1:
        raise Rejected("Give only one of cursor, after and before.", code="bad_cursor")
    if wanted.before is not None:
        return PageRequest(wanted.limit, str(wanted.before), is_back=True)
    if wanted.after:
        return PageRequest(wanted.limit, str(wanted.after))
    return page_request_of(wanted)


def as_turn(turn: StoredTurn, rewound: Ranges) -> dict[str, Any]:
    """Return the data of a turn for :class:`TurnOut`."""
    calls: list[dict[str, Any]] = []
    blocks = damage = None
    try:
        blocks = read_blocks(turn)
        names = ("id", "name", "input")
        calls = [{name: call.get(name) for name in names} for call in read_tool_calls(turn)]
    except MalformedTurn as error:
        # The error is reported in the turn and not raised, so that other turns can be read.
        blocks, damage = None, str(error)
    return asdict(turn) | {
        "blocks": blocks,
        "tool_calls": calls,
        "active": not are_within(turn.number, rewound),
        "metadata": read_metadata(turn),
        "damage": damage,
    }


# Events: rows of the transcript, by seq.


class FallbackOut(Schema):
    """The replacement of a payload that cannot be read: the reason, and the payload's text."""

    reason: str
    raw: str


class RowOut(Schema):
    """A row as it was shown.

    ``payload`` is the stored data. If that cannot be read, ``payload`` is null and ``fallback`` is
    set.
    """

    seq: int
    event_type: str
    payload: dict[str, Any] | None
    fallback: FallbackOut | None
    turn: int | None
    created_at: datetime


class EventOut(RowOut):
    """An event of the journal. ``active`` is false if the event was taken back or replaced."""

    active: bool


@router.get("/events", auth=needs(READ), response=Page[EventOut], url_name="events")
def list_events(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[NumberRange]
) -> dict[str, Any]:
    """List the events of the journal in order. Turns that it does not cover have no events."""
    session, _ = get_session_for(request, uuid)
    walk = walk_by_number(wanted)
    events = walk_events(session.pk, start=walk.number, is_back=walk.is_back, limit=walk.limit + 1)
    rewound = read_rewound(session.pk, "seq")
    return make_page(
        walk,
        events,
        as_item=lambda event: as_event(event, rewound),
        place_of=lambda event: str(event.seq),
    )


def as_event(event: StoredEvent, rewound: Ranges) -> dict[str, Any]:
    """Return the data of an event for :class:`EventOut`."""
    return event.as_data() | {"active": not are_within(event.seq, rewound)}
