"""Server-sent events: a run as it is written, and a session row by row.

Each event has an id that says where it stands (see ``domain.run_story``), so a client
that comes again with ``Last-Event-ID`` goes on right after it. Comments keep the
connection open and are no part of what is said.
"""

from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Annotated, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from ninja import Header, Query, Router

from conversations.archive.run_story import RunFacts, find_run
from conversations.domain.errors import LoomError
from conversations.domain.jsontext import dump_json
from conversations.domain.run_story import RUN, Place, StoryEvent, parse_place
from conversations.domain.tokens import READ
from conversations.models import Session
from conversations.runtime.current import current_runtime
from conversations.runtime.engine import Runtime
from conversations.runtime.following import END_ID, Reader, RunReader, follow
from conversations.web.access import get_session_for

from .auth import needs, visit_of
from .staying import free_connection, recheck_of

router = Router(tags=["Streams"])

MEDIA_TYPE = "text/event-stream"

RETRY = "retry: 2000\n"
"""Milliseconds before a browser comes again."""

RECHECK_SECONDS = 5.0
"""How long somebody may go on reading after the right to was lost."""

STREAMED: dict[str, Any] = {
    "responses": {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}
}

LastEventId = Annotated[
    str | None,
    Header(None, alias="Last-Event-ID", description="The stream goes on after this event."),
]
LastEventIdQuery = Annotated[
    str | None, Query(None, alias="last_event_id", description="The same, for those who cannot.")
]


@router.get(
    "/sessions/{uuid:uuid}/runs/{uuid:run}/stream",
    auth=needs(READ),
    response={200: str, 204: None},
    openapi_extra=STREAMED,
    url_name="run_stream",
)
async def follow_run(
    request: HttpRequest,
    uuid: UUID,
    run: UUID,
    last_event_id: LastEventId = None,
    given: LastEventIdQuery = None,
) -> HttpResponseBase:
    """What a run says: its rows, and the text of its answers as it is written. The last
    event is ``end``; whoever comes again after that gets 204."""
    session, _ = await sync_to_async(get_session_for)(visit_of(request), uuid)
    found = await sync_to_async(find_run)(session, run)
    at = last_event_id or given or ""
    if at == END_ID:
        return HttpResponse(status=204)
    place = parse_place(at or "0")
    runtime = await current_runtime()
    return await stream_run(request, runtime, session, found, place, is_resumed=bool(at))


def wants_stream(request: HttpRequest) -> bool:
    return MEDIA_TYPE in request.headers.get("Accept", "")


async def stream_run(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    run: RunFacts,
    place: Place,
    *,
    is_resumed: bool = False,
) -> HttpResponseBase:
    data = {"run": str(run.uuid), "session": str(run.session)}
    first = None if is_resumed else StoryEvent(str(Place()), RUN, data)
    return await _respond(request, runtime, session, RunReader(run.pk, place), first)


async def _respond(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    reader: Reader,
    first: StoryEvent | None,
) -> HttpResponseBase:
    # Compressed, events would wait for each other in the browser's end of the stream.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)
    recheck = await recheck_of(request, session)
    content = _write(runtime, session, reader, first, recheck)
    response = StreamingHttpResponse(content, content_type=f"{MEDIA_TYPE}; charset=utf-8")
    response["X-Accel-Buffering"] = "no"
    return response


async def _write(
    runtime: Runtime,
    session: Session,
    reader: Reader,
    first: StoryEvent | None,
    recheck: Callable[[], None],
) -> AsyncIterator[str]:
    await free_connection()
    yield RETRY + event_text(first) if first else ":\n\n"
    checked_at = monotonic()
    heartbeat = settings.LOOM.sse_heartbeat_seconds
    async for event in follow(runtime, session.pk, reader, heartbeat=heartbeat):
        if monotonic() >= checked_at + RECHECK_SECONDS:
            try:
                await runtime.readers.read(recheck)
            except LoomError:
                return
            checked_at = monotonic()
        yield ":\n\n" if event is None else event_text(event)


def event_text(event: StoryEvent) -> str:
    """The event on the wire."""
    data = {name: _plain(value) for name, value in event.data.items()}
    return f"id: {event.id}\nevent: {event.kind}\ndata: {dump_json(data)}\n\n"


def _plain(value: Any) -> Any:
    """Times as the rest of the API writes them."""
    return DjangoJSONEncoder().default(value) if hasattr(value, "isoformat") else value
