"""Runs: listed, read while they go on, begun anew, stopped, taken back."""

from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from conversations.access import get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.run_transcript import find_run, list_runs, read_run, read_said
from conversations.domain.errors import Rejected
from conversations.domain.runs import COMPACT, CONTINUE, MESSAGE, REGENERATE
from conversations.web.forms import check_message_text

from .auth import needs, open_for_writing
from .fields import MAX_NUMBER, Page, Paging, make_page, walk_of
from .idempotency import OtherRequest
from .messages import Key, RunOut, RunSaidOut, Wait, answer_begun, client_id_of, run_out, said_out
from .streams import STREAMED, require_room

router = Router(tags=["Messages and runs"])


@router.get("/sessions/{uuid:uuid}/runs", auth=needs(READ), response=Page[RunOut], url_name="runs")
def list_session_runs(request: HttpRequest, uuid: UUID, wanted: Query[Paging]) -> dict[str, Any]:
    """Runs of a session, the newest first."""
    session, _ = get_session_for(request, uuid)
    walk = walk_of(wanted)
    found = list_runs(session.pk, from_pk=walk.number, back=walk.is_back, limit=walk.limit + 1)
    return make_page(walk, found, as_item=run_out, place_of=lambda run: str(run.pk))


@router.get(
    "/sessions/{uuid:uuid}/runs/{uuid:run}", auth=needs(READ), response=RunSaidOut, url_name="run"
)
def get_run(request: HttpRequest, uuid: UUID, run: UUID) -> dict[str, Any]:
    """A run with what it has said by now. To follow it without asking again and again,
    there is its stream."""
    session, _ = get_session_for(request, uuid)
    return said_out(read_said(find_run(session, run).pk))


KINDS = {"regenerate": REGENERATE, "edit": MESSAGE, "continue": CONTINUE, "compact": COMPACT}


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
    session, runtime, user_pk = await open_for_writing(request, uuid)
    require_room(request, runtime)
    given: dict[str, Any] = {"client_id": client_id_of(key), "user_pk": user_pk}
    if wanted.kind == "regenerate":
        accepted = await runtime.regenerate(session, turn=wanted.turn, **given)
    elif wanted.kind == "continue":
        accepted = await runtime.continue_run(session, **given)
    elif wanted.kind == "compact":
        accepted = await runtime.compact(session, **given)
    elif wanted.turn is None:
        raise Rejected("Say which message is edited: its turn.", code="bad_number")
    else:
        text = check_message_text(wanted.text, may_be_empty=True)
        accepted = await runtime.edit(session, turn=wanted.turn, text=text, **given)
    if not accepted.is_new:
        run = await runtime.readers.read(read_run, accepted.run_pk)
        if run.kind != KINDS[wanted.kind]:
            raise OtherRequest("This key was used in the session for something else.")
    return await answer_begun(request, runtime, session, accepted, wait=wait)


@router.post("/sessions/{uuid:uuid}/stop", auth=needs(WRITE), response={204: None}, url_name="stop")
async def stop_run(request: HttpRequest, uuid: UUID) -> Status[None]:
    """End the running answer; its text is kept. Nothing happens where none is written."""
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.stop_run(session)
    return Status(204, None)


@router.post(
    "/sessions/{uuid:uuid}/runs/{uuid:run}/withdraw",
    auth=needs(WRITE),
    response={204: None},
    url_name="run_withdraw",
)
async def withdraw_run(request: HttpRequest, uuid: UUID, run: UUID) -> Status[None]:
    """Take a message back that still waits."""
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.readers.read(find_run, session, run)
    await runtime.withdraw(session, run=run)
    return Status(204, None)
