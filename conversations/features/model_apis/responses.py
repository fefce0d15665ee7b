"""Answering a client's request with one message or a stream of events."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from time import monotonic
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase

from conversations.access import get_workspace_for
from conversations.api.auth import caller_of
from conversations.api.messages import reason_of
from conversations.api.streams import (
    RECHECK_SECONDS,
    free_connection,
    recheck_of,
    respond_with_events,
)
from conversations.archive.rights import READ
from conversations.archive.run_transcript import read_run, read_run_transcript
from conversations.domain.errors import LoomError, NotFound, Unavailable
from conversations.domain.stream import ModelInfo
from conversations.domain.tool_calls import OPEN_STATES
from conversations.models import Run
from conversations.runtime import current
from conversations.runtime.access_refresh import STREAMS
from conversations.runtime.current import current_runtime
from conversations.runtime.publish import Subscriber
from conversations.runtime.service import Runtime

from .client_request import ClientRequest
from .errors import OVERLOADED, OWN_KEY_REFUSED, STATUS
from .response_writer import AnswerWriter
from .runs import WITHDRAWN, RunAnswer, submit_exchange, wait_for_answer
from .sessions import ClientExchange, open_exchange

# The limit of text pieces queued for a client that reads slowly. The rest is sent at the end.
MAX_DELTAS_WAITING = 2_000

MAX_UNREAD_SECONDS = 10.0  # How long a stream waits for its client to begin reading.


async def answer_request(
    request: HttpRequest, slug: str, client_request: ClientRequest, make_writer: type[AnswerWriter]
) -> HttpResponseBase:
    """Send the request's message to its session and return the answer in the writer's form.

    Raise the errors of the archive."""
    runtime, person_pk = await current_runtime(), caller_of(request).user.pk
    await runtime.models.wait_until_listed()
    _find_model(client_request.model, runtime.models.listed)
    if client_request.stream:
        runtime.limiter.require_room(STREAMS, person_pk)
    exchange = await sync_to_async(open_exchange)(request, slug, client_request)
    # Subscribe before the run begins, so that no piece of its text is missed.
    drafts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    is_behind = False

    def deliver(text: str) -> None:
        nonlocal is_behind
        frame = json.loads(text)
        if frame["type"] != "draft" or frame.get("kind") != "text":
            return
        # After a piece was dropped, drop all later ones too: a text with a missing piece cannot
        # be completed once the next text has begun.
        is_behind = is_behind or drafts.qsize() >= MAX_DELTAS_WAITING
        if not is_behind:
            drafts.put_nowait(frame)

    subscriber = Subscriber(session_pk=exchange.session.pk, deliver=deliver, held=False)
    if client_request.stream:
        runtime.hub.add(subscriber)
    try:
        run_pk, after_turn = await submit_exchange(runtime, exchange)
        run = await runtime.readers.read(read_run, run_pk)
        recheck = await recheck_of(request, exchange.session)
        await free_connection()
    except BaseException:
        runtime.hub.remove(subscriber)
        raise
    # The beginning of a run that was already executing was not received, so its whole text is
    # sent at the end.
    is_live = not _is_under_way(exchange, run_pk)
    writer = make_writer(
        run=run, after_turn=after_turn, client_request=client_request, is_live=is_live
    )
    if client_request.stream:
        # If the client disconnects before it begins to read, the response is never closed.
        dropping = asyncio.get_running_loop().call_later(
            MAX_UNREAD_SECONDS, runtime.hub.remove, subscriber
        )

        async def events() -> AsyncIterator[str]:
            dropping.cancel()
            runtime.limiter.acquire_anyway(STREAMS, person_pk)
            event_stream = _write_events(runtime, run, after_turn, drafts, writer, recheck)
            try:
                async with aclosing(event_stream):
                    async for event in event_stream:
                        yield event
            finally:
                runtime.limiter.release(STREAMS, person_pk)
                runtime.hub.remove(subscriber)

        response: HttpResponseBase = respond_with_events(request, events())
    else:
        answer = await wait_for_answer(runtime, run, after_turn)
        await runtime.readers.read(recheck)
        if answer.is_missing:
            response = writer.make_error(*await _failure_of(runtime, run, answer))
            if answer.error_code in OWN_KEY_REFUSED:
                response["X-Should-Retry"] = "false"  # the SDKs retry a 500, each time with a run
        else:
            response = JsonResponse(writer.make_document(answer))
    response["Request-Id"] = response["X-Request-Id"] = f"req_{run.uuid.hex}"
    response["Loom-Session"] = str(exchange.session.uuid)
    return response


def _is_under_way(exchange: ClientExchange, run_pk: int) -> bool:
    # The run is under way already if the request was sent before.
    if exchange.content is None:
        last, _ = exchange.results[-1]
        return last.state not in OPEN_STATES
    return exchange.accepted is not None and exchange.accepted.run_pk == run_pk


async def _failure_of(runtime: Runtime, run: Run, answer: RunAnswer) -> tuple[int, str]:
    code = answer.error_code
    if code == WITHDRAWN:
        return STATUS[code], "The message was withdrawn before it was answered."
    reason = reason_of(await runtime.readers.read(read_run_transcript, run.pk))
    return STATUS.get(code, 500), reason or f"The run failed: {code or 'unknown'}."


async def _write_events(
    runtime: Runtime,
    run: Run,
    after_turn: int,
    drafts: "asyncio.Queue[dict[str, Any]]",
    writer: AnswerWriter,
    recheck: Callable[[], object],
) -> AsyncGenerator[str]:
    answering = asyncio.create_task(wait_for_answer(runtime, run, after_turn))
    checked_at = monotonic()
    try:
        for event in writer.begin():
            yield event
        while not answering.done():
            if monotonic() >= checked_at + RECHECK_SECONDS:
                try:
                    await runtime.readers.read(recheck)
                except Unavailable:
                    pass  # checked again later; without the database no new text is sent
                except LoomError as error:
                    for event in writer.fail(error.status, error.message):
                        yield event
                    return
                checked_at = monotonic()
            drafted = asyncio.create_task(drafts.get())
            try:
                await asyncio.wait(
                    {answering, drafted},
                    timeout=settings.LOOM.sse_heartbeat_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                drafted.cancel()
            if drafted.done():
                for event in writer.add_draft(drafted.result()):
                    yield event
            elif not answering.done():
                yield writer.ping()
        while not drafts.empty():
            for event in writer.add_draft(drafts.get_nowait()):
                yield event
        try:
            answer = answering.result()
        except Unavailable as error:
            for event in writer.fail(OVERLOADED, error.message):
                yield event
            return
        if answer.is_missing:
            for event in writer.fail(*await _failure_of(runtime, run, answer)):
                yield event
            return
        for event in writer.finish(answer):
            yield event
    finally:
        answering.cancel()


def list_models(request: HttpRequest, slug: str) -> list[ModelInfo]:
    """Return the models available in the workspace. Raise NotFound."""
    get_workspace_for(request, slug, to=READ)
    return current.list_models()


def get_model(request: HttpRequest, slug: str, model_id: str) -> ModelInfo:
    """Return one of the models available in the workspace. Raise NotFound."""
    return _find_model(model_id, list_models(request, slug))


def _find_model(model_id: str, models: Iterable[ModelInfo]) -> ModelInfo:
    for model in models:
        if model.id == model_id:
            return model
    # The message has the words of Anthropic's API.
    raise NotFound(f"model: {model_id}", code="model_not_found")
