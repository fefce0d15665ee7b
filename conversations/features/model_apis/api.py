"""``POST …/v1/messages`` and ``GET …/v1/models``, as clients of the Messages API call them."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
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
from conversations.api.streams import RECHECK_SECONDS, STREAMED, free_connection, recheck_of
from conversations.archive.rights import READ as TO_READ
from conversations.archive.run_transcript import read_run, read_said
from conversations.domain.errors import LoomError, NotFound, Unavailable
from conversations.domain.text import dump_json, estimate_tokens
from conversations.models import Run
from conversations.runtime.current import current_runtime, list_models
from conversations.runtime.publish import Subscriber
from conversations.runtime.service import Runtime
from conversations.runtime.visitors import STREAMS

from .asking import UNANSWERED, RunAnswer, ask, wait_for_answer
from .errors import ERRORS, OVERLOADED, STATUS, error_body, error_response
from .sessions import open_exchange
from .shapes import CountIn, MessageOut, MessagesIn, TokensOut
from .writing import EventWriter, make_message, write_event

router = Router(tags=["Messages API compatibility"])


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
    # Before the run begins, so that no piece of its text is missed.
    drafts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def deliver(text: str) -> None:
        frame = json.loads(text)
        is_text = frame["type"] == "draft" and frame.get("kind") == "text"
        if is_text and drafts.qsize() < MAX_DELTAS_WAITING:
            drafts.put_nowait(frame)

    subscriber = Subscriber(session_pk=exchange.session.pk, deliver=deliver, held=False)
    runtime.hub.add(subscriber)
    try:
        run_pk, after_turn = await ask(runtime, exchange, asked)
        run = await runtime.readers.read(read_run, run_pk)
        recheck = await recheck_of(request, exchange.session)
        await free_connection()
    except BaseException:
        runtime.hub.remove(subscriber)
        raise
    if asked.stream:
        writer = EventWriter(run=run.uuid, model=asked.model)

        async def events() -> AsyncIterator[str]:
            runtime.lines.take_anyway(STREAMS, person_pk)
            told = _write_events(runtime, run, after_turn, drafts, writer, recheck)
            try:
                async with aclosing(told):
                    async for event in told:
                        yield event
            finally:
                runtime.lines.release(STREAMS, person_pk)
                runtime.hub.remove(subscriber)

        response: HttpResponseBase = StreamingHttpResponse(
            events(), content_type="text/event-stream; charset=utf-8"
        )
        response["X-Accel-Buffering"] = "no"
    else:
        runtime.hub.remove(subscriber)
        answer = await wait_for_answer(runtime, run, after_turn)
        await runtime.readers.read(recheck)
        if answer.state in UNANSWERED:
            response = error_response(*await _failure_of(runtime, run, answer))
        else:
            response = JsonResponse(make_message(answer, run=run.uuid, model=asked.model))
    response["Request-Id"] = f"req_{run.uuid.hex}"
    response["Loom-Session"] = str(exchange.session.uuid)
    return response


async def _failure_of(runtime: Runtime, run: Run, answer: RunAnswer) -> tuple[int, str]:
    code = answer.error_code
    reason = reason_of(await runtime.readers.read(read_said, run.pk))
    return STATUS.get(code, 500), reason or f"The run failed: {code or 'unknown'}."


# Pieces of text that wait for a client which does not read; it gets the rest at the end.
MAX_DELTAS_WAITING = 2_000


async def _write_events(
    runtime: Runtime,
    run: Run,
    after_turn: int,
    drafts: "asyncio.Queue[dict[str, Any]]",
    writer: EventWriter,
    recheck: Callable[[], None],
) -> AsyncGenerator[str]:
    answering = asyncio.create_task(wait_for_answer(runtime, run, after_turn))
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
            drafted = asyncio.create_task(drafts.get())
            await asyncio.wait(
                {answering, drafted},
                timeout=settings.LOOM.sse_heartbeat_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if drafted.done():
                for event in writer.add_draft(drafted.result()):
                    yield event
            else:
                drafted.cancel()
                if not answering.done():
                    yield write_event("ping")
        while not drafts.empty():
            for event in writer.add_draft(drafts.get_nowait()):
                yield event
        try:
            answer = answering.result()
        except Unavailable as error:
            yield f"event: error\ndata: {error_body(OVERLOADED, error.message)}\n\n"
            return
        if answer.state in UNANSWERED:
            failure = await _failure_of(runtime, run, answer)
            yield f"event: error\ndata: {error_body(*failure)}\n\n"
            return
        for event in writer.finish(answer):
            yield event
    finally:
        answering.cancel()


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
