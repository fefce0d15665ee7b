"""Runs: listed, read while they go on, begun anew, stopped, taken back."""

from typing import Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from conversations.access import get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.messages import Accepted
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.run_transcript import find_run, list_runs, read_run, read_said
from conversations.domain.errors import Rejected
from conversations.domain.runs import COMPACT, CONTINUE, MESSAGE, REGENERATE
from conversations.models import Session
from conversations.runtime.current import current_runtime
from conversations.runtime.service import Runtime
from conversations.web.forms import check_message_text

from .auth import caller_of, needs
from .fields import MAX_NUMBER, Page, Paging, make_page, walk_of
from .messages import Key, RunOut, RunSaidOut, Wait, answer_begun, client_id_of, run_out, said_out
from .stored_responses import OtherRequest
from .streams import STREAMED, require_room

router = Router(tags=["Messages and runs"])


@router.get("/sessions/{uuid:uuid}/runs", auth=needs(READ), response=Page[RunOut], url_name="runs")
def list_session_runs(request: HttpRequest, uuid: UUID, wanted: Query[Paging]) -> dict[str, Any]:
    """Runs of a session, the newest first."""
    session, _ = get_session_for(request, uuid)
    walk = walk_of(wanted)
    found = list_runs(
        session.pk,
        from_pk=walk.number,
        back=walk.is_back,
        limit=walk.limit + 1,
    )
    return make_page(walk, found, as_item=run_out, place_of=lambda run: str(run.pk))


@router.get(
    "/sessions/{uuid:uuid}/runs/{uuid:run}",
    auth=needs(READ),
    response=RunSaidOut,
    url_name="run",
)
def get_run(request: HttpRequest, uuid: UUID, run: UUID) -> dict[str, Any]:
    """A run with what it has said by now. To follow it without asking again and again,
    there is its stream."""
    session, _ = get_session_for(request, uuid)
    return said_out(read_said(find_run(session, run).pk))


class RunIn(Schema):
    """What is to be done: ``regenerate`` answers the message ``turn`` (the last one)
    again, ``edit`` replaces the message ``turn`` and all that follows by ``text``,
    ``continue`` goes on after an answer that was cut off, ``compact`` has older turns
    summarised for the model."""

    kind: Literal["regenerate", "edit", "continue", "compact"]
    turn: int | None = Field(None, ge=1, le=MAX_NUMBER)
    text: str = ""


@router.post(
    "/sessions/{uuid:uuid}/runs",
    auth=needs(WRITE),
    response={200: RunSaidOut, 202: RunOut},
    openapi_extra=STREAMED,
    url_name="runs",
)
async def begin_run(
    request: HttpRequest, uuid: UUID, wanted: RunIn, key: Key = None, wait: Wait = 0
) -> Any:
    """Begin a run that no new message asks for."""
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=TO_WRITE)
    runtime = await current_runtime()
    require_room(request, runtime)
    user_pk = caller_of(request).user.pk
    accepted = await _begin(runtime, session, wanted, client_id_of(key), user_pk)
    if not accepted.is_new:
        run = await runtime.readers.read(read_run, accepted.run_pk)
        if run.kind != KINDS[wanted.kind]:
            raise OtherRequest("This key was used in the session for something else.")
    return await answer_begun(request, runtime, session, accepted, wait=wait)


KINDS = {"regenerate": REGENERATE, "edit": MESSAGE, "continue": CONTINUE, "compact": COMPACT}


async def _begin(
    runtime: Runtime, session: Session, wanted: RunIn, client_id: str, user_pk: int
) -> Accepted:
    if wanted.kind == "regenerate":
        return await runtime.regenerate(
            session, client_id=client_id, turn=wanted.turn, user_pk=user_pk
        )
    if wanted.kind == "continue":
        return await runtime.continue_run(session, client_id=client_id, user_pk=user_pk)
    if wanted.kind == "compact":
        return await runtime.compact(session, client_id=client_id, user_pk=user_pk)
    if wanted.turn is None:
        raise Rejected("Say which message is edited: its turn.", code="bad_number")
    text = check_message_text(wanted.text, may_be_empty=True)
    return await runtime.edit(
        session, client_id=client_id, turn=wanted.turn, text=text, user_pk=user_pk
    )


@router.post("/sessions/{uuid:uuid}/stop", auth=needs(WRITE), response={204: None}, url_name="stop")
async def stop_run(request: HttpRequest, uuid: UUID) -> Status[None]:
    """End the running answer; its text is kept. Nothing happens where none is written."""
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=TO_WRITE)
    await (await current_runtime()).stop_run(session)
    return Status(204, None)


@router.post(
    "/sessions/{uuid:uuid}/runs/{uuid:run}/withdraw",
    auth=needs(WRITE),
    response={204: None},
    url_name="run_withdraw",
)
async def withdraw_run(request: HttpRequest, uuid: UUID, run: UUID) -> Status[None]:
    """Take a message back that still waits."""
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=TO_WRITE)
    runtime = await current_runtime()
    await runtime.readers.read(find_run, session, run)
    await runtime.withdraw(session, run=run)
    return Status(204, None)
