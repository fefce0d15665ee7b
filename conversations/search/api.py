"""Looking things up: in all that the caller may read, and in one session."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from django.db import DatabaseError
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from pydantic import StringConstraints

from conversations.access import (
    HIDDEN,
    get_session_for,
    record_reading,
    require_reason_to_search,
    visit_of,
)
from conversations.accounts.tokens import READ
from conversations.api.auth import caller_of, needs
from conversations.api.fields import Page, ShortText, Text
from conversations.archive.rights import is_reviewer, readable_sessions, readable_workspaces
from conversations.archive.storage import is_storage_error
from conversations.domain.errors import NotFound, Unavailable

from . import (
    EVERYWHERE,
    Surroundings,
    TurnHit,
    Within,
    as_answer,
    as_hit,
    parse_query,
    read_surroundings,
    search_session,
    search_sessions,
)
from . import SearchQuery as Asked

logger = logging.getLogger(__name__)

router = Router(tags=["Search"])

Words = Annotated[Text, StringConstraints(min_length=1, max_length=1000)]

MAX_HITS = 200


class HitOut(Schema):
    """A turn that matches. ``score`` compares hits of one answer. ``is_near``: the words
    are in the turns next to it."""

    turn: int
    score: float
    role: str
    tool_name: str | None
    created_at: datetime
    is_near: bool
    snippet: str


class FoundOut(HitOut):
    """A hit with its session. ``active`` is false where the turn was taken back."""

    session: UUID
    title: str
    workspace: str
    active: bool


class SearchOut(Page[FoundOut]):
    """``total`` counts the turns that matched, and is a lower bound where
    ``total_is_bound``. ``missing`` are the words and phrases that match nothing."""

    total: int
    total_is_bound: bool
    missing: list[str]


class RecallOut(Schema):
    """The same of one session, as ``manage.py recall --json`` prints it."""

    hits: list[HitOut]
    total: int
    total_is_bound: bool
    missing: list[str]


class SearchFilters(Schema):
    q: Words = Field(
        description="Words, phrases in quotes, and filters such as `role:user`, `tool:read_file`,"
        " `after:2026-01-31`, `is:error`."
    )
    workspace: ShortText | None = Field(None, description="Its slug.")
    order: Literal["best", "newest"] = "best"
    limit: int = Field(20, ge=1, le=MAX_HITS)
    cursor: ShortText = Field("", description="`next` of another page of this search.")


class RecallFilters(Schema):
    q: Words
    limit: int = Field(10, ge=1, le=MAX_HITS)


@router.get("/search", auth=needs(READ), response=SearchOut, url_name="search")
def search(request: HttpRequest, wanted: Query[SearchFilters]) -> dict[str, Any]:
    """Turns of all sessions that you may read."""
    user, visit = caller_of(request).user, visit_of(request)
    workspaces = dict(readable_workspaces(user).values_list("slug", "pk"))
    if wanted.workspace is not None and wanted.workspace not in workspaces:
        raise NotFound(HIDDEN)
    chosen = tuple(workspaces.values())
    if wanted.workspace is not None:
        chosen = (workspaces[wanted.workspace],)
    if is_reviewer(user):
        require_reason_to_search(visit, chosen)
    is_all = wanted.workspace is None and is_reviewer(user)
    query = parse_query(wanted.q)
    with _unavailable():
        found = search_sessions(
            readable_sessions(user),
            query,
            within=EVERYWHERE if is_all else Within(workspaces=chosen),
            limit=wanted.limit,
            cursor=wanted.cursor,
            order=wanted.order,
        )
        around = read_surroundings(found.hits)
    record_reading(visit, around.sessions.values())
    return {
        "items": [_as_found(hit, query, around) for hit in found.hits],
        "next": found.cursor or None,
        "total": found.total,
        "total_is_bound": found.total_is_bound,
        "missing": list(found.missing),
    }


@router.get("/sessions/{uuid:uuid}/recall", auth=needs(READ), response=RecallOut, url_name="recall")
def recall(request: HttpRequest, uuid: UUID, wanted: Query[RecallFilters]) -> dict[str, Any]:
    """Turns of one session, as the model finds them."""
    session, _ = get_session_for(request, uuid)
    with _unavailable():
        found = search_session(session.pk, wanted.q, limit=wanted.limit, with_neighbours=True)
    return as_answer(found, wanted.q)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if is_storage_error(error):
            raise
        logger.exception("search_failed")
        raise Unavailable("The search is not responding. Try again.") from error


def _as_found(hit: TurnHit, query: Asked, around: Surroundings) -> dict[str, Any]:
    session = around.sessions[hit.session_pk]
    return as_hit(hit, query) | {
        "session": session.uuid,
        "title": session.title,
        "workspace": session.workspace.slug,
        "active": (hit.session_pk, hit.turn) not in around.replaced,
    }
