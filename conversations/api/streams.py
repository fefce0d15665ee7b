"""Server-sent events: a run as it is written, and a session row by row.

Each event has an id that says where it stands (see ``domain.run_transcript``), so a client
that comes again with ``Last-Event-ID`` goes on right after it. Comments keep the
connection open and are no part of what is said.
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

# Requests that last: they hold no connection to the database, and end for those who lose the
# right to what they read.


@sync_to_async
def free_connection() -> None:
    """Let go of the database for as long as the request may last: what comes is read by
    the few threads that do so for all."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def recheck_of(request: HttpRequest, session: Session) -> Callable[[], object]:
    """What asks again whether the caller may still read the session. It raises
    SignedOut, NotFound or NotPermitted."""
    caller, context = caller_of(request), access_context_of(request)
    if caller.token_pk is None:
        key = request.session.session_key or ""
        place = OpenPage(key, caller.user.pk, session.workspace_id, session.pk)
        earlier = await sync_to_async(read_snapshot)(place)
        return partial(recheck_access, place, session.workspace, to=MAY_READ, earlier=earlier)

    def recheck() -> None:
        user = User.objects.filter(pk=caller.user.pk, is_active=True).first()
        if user is None or caller.token_pk is None or not is_working(caller.token_pk):
            raise SignedOut("The token no longer works.")
        get_session_for(replace(context, user=user), session.uuid)

    return recheck


logger = logging.getLogger(__name__)

router = Router(tags=["Streams"])

MEDIA_TYPE = "text/event-stream"

RETRY = "retry: 2000\n"  # milliseconds before a browser comes again

COMMENT = ":\n\n"

RECHECK_SECONDS = 5.0  # how long somebody may go on reading after the right to was lost

# The description of an operation that answers with a stream. (A schema of an event would be
# taken for one of the whole.)
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
    """What a run says: its rows, and the text of its answers as it is written. The last
    event is ``end``; whoever comes again after that gets 204."""
    session, _ = await sync_to_async(get_session_for)(request, uuid)
    found = await sync_to_async(find_run)(session, run)
    at = last_event_id or given or ""
    if at == END_ID:
        return HttpResponse(status=204)
    place = parse_stream_cursor(at or "0")
    runtime = await current_runtime()
    return await stream_run(request, runtime, session, found, place, is_resumed=bool(at))


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
    """The rows of a session after the row ``after``, and those that come from now on.
    It never ends by itself. Without ``after`` it begins with what comes."""
    session, _ = await sync_to_async(get_session_for)(request, uuid)
    at = last_event_id or given or ""
    place = (
        parse_stream_cursor(at)
        if at
        else StreamCursor(session.last_seq if after is None else after)
    )
    first = None if at else StreamEvent(str(place), SESSION, {"session": str(uuid)})
    reader = SessionReader(session.pk, place)
    return await _respond(request, await current_runtime(), session, reader, first)


def wants_stream(request: HttpRequest) -> bool:
    return MEDIA_TYPE in request.headers.get("Accept", "")


def require_room(request: HttpRequest, runtime: Runtime) -> None:
    """Before something is said whose answer is streamed. Raises TooManyRequests."""
    if wants_stream(request):
        runtime.limiter.require_room(STREAMS, caller_of(request).user.pk)


async def stream_run(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    run: Run,
    place: StreamCursor,
    *,
    is_resumed: bool = False,
    is_let_in: bool = False,
) -> HttpResponseBase:
    """``is_let_in``: the caller has begun the run, having had room for its stream; however
    many others began meanwhile, it is not told that nothing was said."""
    data = {"run": str(run.uuid), "session": str(run.session.uuid)}
    first = None if is_resumed else StreamEvent(str(StreamCursor()), RUN, data)
    reader = RunReader(run.pk, place)
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
            (limiter.acquire_anyway if is_let_in else limiter.acquire)(STREAMS, person_pk)
        except TooManyRequests:
            return  # many began at once: its client comes again, and is told
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
            # The client comes again, and goes on where this ended.
            fields = {"error_class": type(error).__name__}
            logger.warning("stream_not_read", extra={"fields": fields})
        except LoomError:
            return  # who reads may not any more, which is told when they come again
        finally:
            limiter.release(STREAMS, person_pk)

    return respond_with_events(request, write())


def respond_with_events(request: HttpRequest, events: AsyncIterator[str]) -> StreamingHttpResponse:
    # Compressed, events would wait for each other in the browser's end of the stream.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)
    response = StreamingHttpResponse(events, content_type=f"{MEDIA_TYPE}; charset=utf-8")
    response["X-Accel-Buffering"] = "no"
    return response


def event_text(event: StreamEvent) -> str:
    """The event on the wire."""
    data = {
        # Times as the rest of the API writes them.
        name: instant(value) if isinstance(value, datetime) else value
        for name, value in event.data.items()
    }
    return f"id: {event.id}\nevent: {event.kind}\ndata: {null_constants(dump_json(data))}\n\n"
