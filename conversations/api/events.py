"""Events: what a person saw, by seq."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Schema

from conversations.archive.journal import RawEvent, read_raw_events
from conversations.archive.rewinds import read_rewound_rows
from conversations.domain.tokens import READ
from conversations.web.access import get_session_for

from .auth import needs, visit_of
from .paging import make_page, number_of
from .schemas import Page
from .turns import Numbered, Ranges, is_in, walk_by_number

router = Router(tags=["Turns and events"])


class FallbackOut(Schema):
    """Stands for a payload that cannot be read: why, and its text."""

    reason: str
    raw: str


class RowOut(Schema):
    """A row as it was shown. ``payload`` is what is stored; where that cannot be read it is
    null, and ``fallback`` stands for it."""

    seq: int
    event_type: str
    payload: dict[str, Any] | None
    fallback: FallbackOut | None
    turn: int | None
    created_at: datetime


class EventOut(RowOut):
    """An event of the journal. ``active`` is false for one that was taken back or
    replaced."""

    active: bool


@router.get(
    "/sessions/{uuid:uuid}/events", auth=needs(READ), response=Page[EventOut], url_name="events"
)
def list_events(request: HttpRequest, uuid: UUID, wanted: Query[Numbered]) -> dict[str, Any]:
    """The journal in its order. Turns that it does not cover have no events."""
    session, _ = get_session_for(visit_of(request), uuid)
    walk = walk_by_number(wanted)
    found = read_raw_events(
        session.pk,
        start=number_of(walk.place) if walk.place else None,
        is_back=walk.is_back,
        limit=walk.limit + 1,
    )
    rewound = read_rewound_rows(session.pk)
    return make_page(
        walk,
        found,
        as_item=lambda event: as_event(event, rewound),
        place_of=lambda event: str(event.seq),
    )


def as_event(event: RawEvent, rewound: Ranges) -> dict[str, Any]:
    """As :class:`EventOut` has it."""
    return event.as_data() | {"active": not is_in(event.seq, rewound)}
