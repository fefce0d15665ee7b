"""``POST …/v1/messages`` and ``GET …/v1/models``, as clients of the Messages API call them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from ninja import Router

from conversations.access import get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.api.auth import caller_of, needs
from conversations.api.messages import reason_of
from conversations.api.streams import STREAMED, free_connection, recheck_of
from conversations.archive.rights import READ as TO_READ
from conversations.archive.run_transcript import read_run, read_said
from conversations.domain.errors import LoomError, NotFound, Unavailable
from conversations.domain.text import dump_json, estimate_tokens
from conversations.runtime.current import current_runtime, list_models
from conversations.runtime.publish import Subscriber
from conversations.runtime.service import Runtime
from conversations.runtime.visitors import STREAMS

from .asking import UNANSWERED, Answered, PendingRun, ask, wait_for_answer
from .errors import ERRORS, OVERLOADED, STATUS, error_body, error_response
from .sessions import open_exchange
from .shapes import CountIn, MessageOut, MessagesIn, TokensOut
from .writing import EventWriter, make_message, write_event

router = Router(tags=["Messages API compatibility"])

RECHECK_SECONDS = 5.0
"""How long somebody may go on reading after the right to was lost."""


@router.post(
    "/anthropic/{slug:slug}/v1/messages",
    auth=needs(WRITE),
    response=MessageOut,
    openapi_extra={"responses": ERRORS["responses"] | STREAMED["responses"]},
    url_name="anthropic_messages",
)
async def create_message(request: HttpRequest, slug: str, asked: MessagesIn) -> HttpResponseBase:
    """Say something in a session of the workspace and get the answer, with ``stream`` as
    server-sent events. ``Loom-Session-Key`` (or ``metadata.user_id``) names the session;
    without either a new one begins."""
    runtime, person_pk = await current_runtime(), caller_of(request).user.pk
    await runtime.models.wait_until_listed()
    if asked.model not in {one.id for one in runtime.models.listed}:
        raise NotFound(f"model: {asked.model}")  # in the words of the API
    if asked.stream:
        runtime.lines.require_room(STREAMS, person_pk)
    exchange = await sync_to_async(open_exchange)(request, slug, asked)
    drafts = _Drafts(runtime, exchange.session.pk)
    try:
        answering = await ask(runtime, exchange, asked)
        run = (await runtime.readers.read(read_run, answering.run_pk)).uuid
        recheck = await recheck_of(request, exchange.session)
        await free_connection()
    except BaseException:
        drafts.close()
        raise
    if asked.stream:
        writer = EventWriter(run=run, model=asked.model)
        events = _stream(runtime, answering, drafts, writer, recheck, person_pk)
        response: HttpResponseBase = StreamingHttpResponse(
            events, content_type="text/event-stream; charset=utf-8"
        )
        response["X-Accel-Buffering"] = "no"
    else:
        drafts.close()
        answered = await wait_for_answer(runtime, answering)
        await runtime.readers.read(recheck)
        if answered.answer.state in UNANSWERED:
            response = error_response(*await _failure_of(runtime, answering, answered))
        else:
            response = JsonResponse(make_message(answered, run=run, model=asked.model))
    response["Request-Id"] = f"req_{run.hex}"
    response["Loom-Session"] = str(exchange.session.uuid)
    return response


async def _failure_of(runtime: Runtime, asked: PendingRun, answered: Answered) -> tuple[int, str]:
    """The status, and what the transcript says."""
    code = answered.answer.error_code
    reason = reason_of(await runtime.readers.read(read_said, asked.run_pk))
    return STATUS.get(code, 500), reason or f"The run failed: {code or 'unknown'}."


MAX_DELTAS_WAITING = 2_000
"""Pieces of text that wait for a client which does not read; it gets the rest at the end."""


class _Drafts:
    """The texts of a session's answers as they are written."""

    def __init__(self, runtime: Runtime, session_pk: int) -> None:
        self._hub = runtime.hub
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._subscriber = Subscriber(session_pk=session_pk, deliver=self._take, held=False)
        self._hub.add(self._subscriber)

    def _take(self, text: str) -> None:
        if self._frames.qsize() >= MAX_DELTAS_WAITING:
            return
        frame = json.loads(text)
        if frame["type"] == "draft" and frame.get("kind") == "text":
            self._frames.put_nowait(frame)

    async def next(self) -> dict[str, Any]:
        return await self._frames.get()

    def rest(self) -> list[dict[str, Any]]:
        """Those that came and were not taken."""
        return [self._frames.get_nowait() for _ in range(self._frames.qsize())]

    def close(self) -> None:
        self._hub.remove(self._subscriber)


async def _stream(
    runtime: Runtime,
    asked: PendingRun,
    drafts: _Drafts,
    writer: EventWriter,
    recheck: Callable[[], None],
    person_pk: int,
) -> AsyncIterator[str]:
    answering = asyncio.create_task(wait_for_answer(runtime, asked))
    runtime.lines.take_anyway(STREAMS, person_pk)
    checked_at = monotonic()
    try:
        yield writer.begin()
        while not answering.done():
            if monotonic() >= checked_at + RECHECK_SECONDS:
                try:
                    await runtime.readers.read(recheck)
                except Unavailable:
                    pass  # asked again in a moment; without the database nothing new is told
                except LoomError:
                    return
                checked_at = monotonic()
            drafted = asyncio.create_task(drafts.next())
            await asyncio.wait(
                {answering, drafted},
                timeout=settings.LOOM.sse_heartbeat_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not drafted.done():
                drafted.cancel()
                if not answering.done():
                    yield write_event("ping")
                continue
            for event in _told(writer, drafted.result()):
                yield event
        for frame in drafts.rest():
            for event in _told(writer, frame):
                yield event
        try:
            answered = answering.result()
        except Unavailable as error:
            yield f"event: error\ndata: {error_body(OVERLOADED, error.message)}\n\n"
            return
        if answered.answer.state in UNANSWERED:
            failure = await _failure_of(runtime, asked, answered)
            yield f"event: error\ndata: {error_body(*failure)}\n\n"
            return
        for event in writer.finish(answered):
            yield event
    finally:
        runtime.lines.release(STREAMS, person_pk)
        answering.cancel()
        drafts.close()


def _told(writer: EventWriter, frame: dict[str, Any]) -> list[str]:
    part = (frame["run"], frame["part"])
    return list(writer.add_text(part, frame["offset"], frame["text"]))


@router.post(
    "/anthropic/{slug:slug}/v1/messages/count_tokens",
    auth=needs(READ),
    response=TokensOut,
    openapi_extra=ERRORS,
    url_name="anthropic_count",
)
def count_tokens(request: HttpRequest, slug: str, counted: CountIn) -> TokensOut:
    """Roughly how many tokens these messages are, by themselves."""
    get_workspace_for(request, slug, to=TO_READ)
    given = [counted.messages, counted.system, counted.tools]
    return TokensOut(input_tokens=sum(estimate_tokens(dump_json(one)) for one in given if one))


@router.get(
    "/anthropic/{slug:slug}/v1/models",
    auth=needs(READ),
    response=dict[str, Any],
    openapi_extra=ERRORS,
    url_name="anthropic_models",
)
def list_offered_models(request: HttpRequest, slug: str) -> dict[str, Any]:
    """The models on offer."""
    get_workspace_for(request, slug, to=TO_READ)
    models = [
        {
            "type": "model",
            "id": model.id,
            "display_name": model.name,
            "created_at": "1970-01-01T00:00:00Z",
        }
        for model in list_models()
    ]
    first, last = (models[0]["id"], models[-1]["id"]) if models else (None, None)
    return {"data": models, "has_more": False, "first_id": first, "last_id": last}
