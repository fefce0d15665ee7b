"""API operations for searching: all sessions that the caller may read, or one session."""

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
    access_context_of,
    get_session_for,
    record_reading,
    require_reason_to_search,
)
from conversations.accounts.tokens import READ
from conversations.api.auth import caller_of, needs
from conversations.api.fields import Page, ShortText, Text
from conversations.archive.rights import is_reviewer, readable_sessions, readable_workspaces
from conversations.archive.storage import is_storage_error
from conversations.domain.errors import NotFound, Unavailable

from .find import MAX_HITS, search_session
from .find_everywhere import EVERYWHERE, SearchedSessions, search_sessions
from .query import parse_query
from .results import as_answer, read_hit_context

logger = logging.getLogger(__name__)

router = Router(tags=["Search"])

Words = Annotated[Text, StringConstraints(min_length=1, max_length=1000)]


class HitOut(Schema):
    """A turn that matches.

    ``score`` compares hits of one answer. ``is_near``: the words are in the turns next to it, or it
    means the same in other words."""

    turn: int
    score: float
    role: str
    tool_name: str | None
    created_at: datetime
    is_near: bool
    snippet: str


class FoundOut(HitOut):
    """A hit with its session. ``active`` is false if the turn is no longer on the active path."""

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
    """A search of one session, as ``manage.py recall --json`` prints it."""

    hits: list[HitOut]
    total: int
    total_is_bound: bool
    missing: list[str]


class SearchFilters(Schema):
    q: Words = Field(
        description="Words, phrases in quotes, and filters such as `role:user`, `tool:read_file`,"
        " `after:2026-01-31`, `is:error`."
    )
    workspace: ShortText | None = Field(None, description="The slug of the workspace.")
    order: Literal["best", "newest"] = "best"
    limit: int = Field(20, ge=1, le=MAX_HITS)
    cursor: ShortText = Field("", description="`next` from another page of this search.")


class RecallFilters(Schema):
    q: Words
    limit: int = Field(10, ge=1, le=MAX_HITS)


@router.get("/search", auth=needs(READ), response=SearchOut, url_name="search")
def search(request: HttpRequest, wanted: Query[SearchFilters]) -> dict[str, Any]:
    """Turns of all sessions that you may read."""
    user, context = caller_of(request).user, access_context_of(request)
    workspaces = dict(readable_workspaces(user).values_list("slug", "pk"))
    if wanted.workspace is not None and wanted.workspace not in workspaces:
        raise NotFound(HIDDEN)
    slugs = workspaces if wanted.workspace is None else (wanted.workspace,)
    within = SearchedSessions(workspaces=tuple(workspaces[slug] for slug in slugs))
    if is_reviewer(user):
        require_reason_to_search(context, within.workspaces)
        within = EVERYWHERE if wanted.workspace is None else within
    query = parse_query(wanted.q)
    with _unavailable():
        results = search_sessions(
            readable_sessions(user),
            query,
            within=within,
            limit=wanted.limit,
            cursor=wanted.cursor,
            order=wanted.order,
        )
        hit_context = read_hit_context(results.hits)
    record_reading(context, hit_context.sessions.values())
    answer = as_answer(results, query)
    for hit, item in zip(results.hits, answer["hits"], strict=True):
        item["session"] = hit.session
        item["title"] = hit_context.sessions[hit.session_pk].title
        item["workspace"] = hit_context.sessions[hit.session_pk].workspace.slug
        item["active"] = (hit.session_pk, hit.turn) not in hit_context.replaced
    return answer | {"items": answer["hits"], "next": results.cursor or None}


@router.get("/sessions/{uuid:uuid}/recall", auth=needs(READ), response=RecallOut, url_name="recall")
def recall(request: HttpRequest, uuid: UUID, wanted: Query[RecallFilters]) -> dict[str, Any]:
    """Turns of one session, as the model finds them."""
    session, _ = get_session_for(request, uuid)
    query = parse_query(wanted.q)
    with _unavailable():
        results = search_session(session.pk, query, limit=wanted.limit, with_neighbours=True)
    return as_answer(results, query)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if is_storage_error(error):
            raise
        logger.exception("search_failed")
        raise Unavailable("The search is not responding. Try again.") from error
