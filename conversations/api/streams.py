"""Server-sent events: streams of a run as it is written, and of a session row by row.

The id of an event is its position in the stream (see ``domain.run_transcript``), so a client that
reconnects with ``Last-Event-ID`` continues right after that event. Comments keep the connection
open and have no content.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Annotated, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from ninja import Header, Path, Query, Router

from conversations.access import SignedOut, access_context_of, get_session_for, recheck_access
from conversations.accounts.tokens import READ, is_working
from conversations.archive.rights import READ as MAY_READ
from conversations.archive.rights import OpenPage, read_snapshot
from conversations.archive.run_transcript import find_run
from conversations.domain.errors import LoomError, TooManyRequests, Unavailable
from conversations.domain.run_transcript import (
    RUN,
    SESSION,
    StreamCursor,
    StreamEvent,
    parse_stream_cursor,
)
from conversations.domain.text import dump_json, instant, null_constants
from conversations.models import Run, Session
from conversations.runtime.access_refresh import STREAMS
from conversations.runtime.current import current_runtime
from conversations.runtime.database import wait_for_database
from conversations.runtime.following import END_ID, Reader, RunReader, SessionReader, follow
from conversations.runtime.service import Runtime

from .auth import caller_of, needs
from .fields import MAX_NUMBER

logger = logging.getLogger(__name__)

# Streams last long. So they hold no database connection, and end if the caller loses the right to
# read the session.


@sync_to_async
def free_connection() -> None:
    """Close this thread's database connections for the duration of a long request.

    A few threads read new events for all streams.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def recheck_of(request: HttpRequest, session: Session) -> Callable[[], object]:
    """Return a function that checks again whether the caller may read the session.

    The function raises SignedOut, NotFound or NotPermitted.
    """
    caller, context = caller_of(request), access_context_of(request)
    if caller.token_pk is None:
        key = request.session.session_key or ""
        page = OpenPage(key, caller.user.pk, session.workspace_id, session.pk)
        earlier = await sync_to_async(read_snapshot)(page)
        return partial(recheck_access, page, session.workspace, to=MAY_READ, earlier=earlier)

    def recheck() -> None:
        user = User.objects.filter(pk=caller.user.pk, is_active=True).first()
        if user is None or caller.token_pk is None or not is_working(caller.token_pk):
            raise SignedOut("The token no longer works.")
        get_session_for(replace(context, user=user), session.uuid)

    return recheck


router = Router(tags=["Streams"])

MEDIA_TYPE = "text/event-stream"

RETRY = "retry: 2000\n"  # milliseconds before a browser reconnects

COMMENT = ":\n\n"

RECHECK_SECONDS = 5.0  # how long a caller who has lost the right to read may still read

# The description of an operation that responds with a stream. (A schema of an event would be
# taken for a schema of the whole stream.)
_EVENTS = {"type": "string", "description": "Events with `id`, `event`, `data` and `retry`."}
STREAMED: dict[str, Any] = {"responses": {200: {"content": {MEDIA_TYPE: {"schema": _EVENTS}}}}}

LastEventId = Annotated[
    str | None,
    Header(None, alias="Last-Event-ID", description="The stream resumes after this event."),
]
LastEventIdQuery = Annotated[
    str | None,
    Query(
        None, alias="last_event_id", description="The same, for clients that cannot set the header."
    ),
]
After = Annotated[
    int | None, Query(None, ge=0, le=MAX_NUMBER, description="The number of a row; 0: all rows.")
]


@router.get(
    "/runs/{uuid:run}/stream",
    auth=needs(READ),
    response={200: None, 204: None},
    openapi_extra=STREAMED,
    url_name="run_stream",
)
async def follow_run(
    request: HttpRequest,
    uuid: Path[UUID],
    run: UUID,
    last_event_id: LastEventId = None,
    given: LastEventIdQuery = None,
) -> HttpResponseBase:
    """Stream the rows of a run, and the text of its answers as it is written.

    The last event is ``end``. A client that reconnects after it gets 204.
    """
    session, _ = await sync_to_async(get_session_for)(request, uuid)
    stored_run = await sync_to_async(find_run)(session, run)
    event_id = last_event_id or given or ""
    if event_id == END_ID:
        return HttpResponse(status=204)
    cursor = parse_stream_cursor(event_id or "0")
    runtime = await current_runtime()
    return await stream_run(
        request, runtime, session, stored_run, cursor, is_resumed=bool(event_id)
    )


@router.get(
    "/events/stream",
    auth=needs(READ),
    response={200: None},
    openapi_extra=STREAMED,
    url_name="events_stream",
)
async def follow_session(
    request: HttpRequest,
    uuid: Path[UUID],
    after: After = None,
    last_event_id: LastEventId = None,
    given: LastEventIdQuery = None,
) -> HttpResponseBase:
    """Stream the rows of a session after the row ``after``, and all new rows.

    Without ``after``, only new rows are sent. The stream does not end by itself.
    """
    session, _ = await sync_to_async(get_session_for)(request, uuid)
    event_id = last_event_id or given or ""
    first: StreamEvent | None = None
    if event_id:
        cursor = parse_stream_cursor(event_id)
    else:
        cursor = StreamCursor(session.last_seq if after is None else after)
        first = StreamEvent(str(cursor), SESSION, {"session": str(uuid)})
    reader = SessionReader(session.pk, cursor)
    return await _respond(request, await current_runtime(), session, reader, first)


def wants_stream(request: HttpRequest) -> bool:
    return MEDIA_TYPE in request.headers.get("Accept", "")


def require_room(request: HttpRequest, runtime: Runtime) -> None:
    """Raise TooManyRequests if the response would be a stream and the caller has too many.

    Call this before a run is begun.
    """
    if wants_stream(request):
        runtime.limiter.require_room(STREAMS, caller_of(request).user.pk)


async def stream_run(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    run: Run,
    cursor: StreamCursor,
    *,
    is_resumed: bool = False,
    is_let_in: bool = False,
) -> HttpResponseBase:
    """Return the stream of a run from ``cursor`` on.

    ``is_let_in`` says that the caller has just begun the run, after a check that there is room for
    its stream. The stream is then opened even if others have taken the room in the meantime,
    because a refusal would suggest that the run was not begun.
    """
    data = {"run": str(run.uuid), "session": str(run.session.uuid)}
    first = None if is_resumed else StreamEvent(str(StreamCursor()), RUN, data)
    reader = RunReader(run.pk, cursor)
    return await _respond(request, runtime, session, reader, first, is_let_in=is_let_in)


async def _respond(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    reader: Reader,
    first: StreamEvent | None,
    *,
    is_let_in: bool = False,
) -> HttpResponseBase:
    limiter, person_pk = runtime.limiter, caller_of(request).user.pk
    if not is_let_in:
        limiter.require_room(STREAMS, person_pk)
    recheck = await recheck_of(request, session)

    async def write() -> AsyncGenerator[str]:
        await free_connection()
        try:
            if is_let_in:
                limiter.acquire_anyway(STREAMS, person_pk)
            else:
                limiter.acquire(STREAMS, person_pk)
        except TooManyRequests:
            return  # too many streams began at once; the client is refused when it reconnects
        try:
            yield RETRY + event_text(first) if first else COMMENT
            wait_for_database(runtime.options.database_wait)
            checked_at = monotonic()
            heartbeat = settings.LOOM.sse_heartbeat_seconds
            async with aclosing(follow(runtime, session.pk, reader, heartbeat=heartbeat)) as events:
                async for event in events:
                    if monotonic() >= checked_at + RECHECK_SECONDS:
                        await runtime.readers.read(recheck)
                        checked_at = monotonic()
                    yield COMMENT if event is None else event_text(event)
        except (DatabaseError, Unavailable) as error:
            # The client reconnects, and continues where this stream ended.
            fields = {"error_class": type(error).__name__}
            logger.warning("stream_not_read", extra={"fields": fields})
        except LoomError:
            return  # the caller may no longer read, which they are told when they reconnect
        finally:
            limiter.release(STREAMS, person_pk)

    return respond_with_events(request, write())


def respond_with_events(request: HttpRequest, events: AsyncIterator[str]) -> StreamingHttpResponse:
    # No compression, because a compressed event may not be readable before the next one arrives.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)
    response = StreamingHttpResponse(events, content_type=f"{MEDIA_TYPE}; charset=utf-8")
    response["X-Accel-Buffering"] = "no"
    return response


def event_text(event: StreamEvent) -> str:
    """Return the event in the format of server-sent events."""
    data = {
        # Times have the same format as in the rest of the API.
        name: instant(value) if isinstance(value, datetime) else value
        for name, value in event.data.items()
    }
    return f"id: {event.id}\nevent: {event.kind}\ndata: {null_constants(dump_json(data))}\n\n"
