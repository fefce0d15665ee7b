"""Sending a message, and reading all of them as another program would."""

import re
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from ninja import Field, Query, Router, Schema, Status

from conversations.access import get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.message_formats import read_messages, save_spoken_files
from conversations.archive.messages import Accepted, was_sent_before
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.run_transcript import RunTranscript, read_run, read_said
from conversations.domain.events import ASSISTANT_TEXT, INFO
from conversations.domain.formats.spoken import read_spoken
from conversations.domain.keyset import PageCursor, bad_cursor
from conversations.domain.run_transcript import TEXT, StreamCursor
from conversations.models import Run, Session
from conversations.runtime.current import current_runtime
from conversations.runtime.following import wait_for_end
from conversations.runtime.service import Runtime
from conversations.web.forms import check_attachment_ids, check_message_text

from .auth import caller_of, needs
from .fields import (
    FormatName,
    Page,
    Paging,
    key_header,
    walk_of,
)
from .stored_responses import OtherRequest
from .streams import STREAMED, free_connection, recheck_of, require_room, stream_run, wants_stream
from .turns import RowOut

# What the operations that begin a run have in common: a key, waiting, answers.


MAX_WAIT_SECONDS = 600
"""Seconds; then a program asks again, or follows the stream."""

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")

Key = Annotated[
    str | None, key_header("The same key in a session is carried out once; a new one each time.")
]

Wait = Annotated[
    float,
    Query(
        0,
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Seconds to wait for the end of the run; 0 answers when it is accepted.",
    ),
]


class RunError(Schema):
    """Why a run failed; ``message`` is what the transcript says, where rows are given."""

    code: str
    message: str


class RunOut(Schema):
    """A run: one piece of work of the model. ``turn`` and ``seq`` are those of the
    person's message, null while it waits. ``note`` says what a running run waits for.
    ``url`` is where it is read again, ``stream`` where it is followed."""

    run: UUID
    session: UUID
    kind: str
    state: str
    client_id: str
    turn: int | None
    seq: int | None
    note: str
    error: RunError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    url: str
    stream: str


class RunSaidOut(RunOut):
    """A run with what it has said by now: its rows, and the text of all its answers, that
    of the one which is being written included."""

    rows: list[RowOut]
    text: str


def client_id_of(key: str | None) -> str:
    """The key itself where it can be one; else one that stands for it, or a new one."""
    if key is None:
        return uuid4().hex
    return key if _CLIENT_ID.fullmatch(key) else "key-" + sha256(key.encode()).hexdigest()[:60]


async def answer_begun(
    request: HttpRequest, runtime: Runtime, session: Session, accepted: Accepted, *, wait: float
) -> HttpResponseBase | Status[Any]:
    """The run as it is after waiting, or its stream if that is what the caller takes.
    Raises as ``access`` does for who has lost the right to it while waiting."""
    await free_connection()
    run = await runtime.readers.read(read_run, accepted.run_pk)
    if wants_stream(request):
        return await stream_run(request, runtime, session, run, StreamCursor(), is_let_in=True)
    if wait:
        recheck = await recheck_of(request, session)
        await free_connection()
        has_ended = await wait_for_end(runtime, run, seconds=wait)
        await runtime.readers.read(recheck)
        if has_ended:
            return Status(200, said_out(await runtime.readers.read(read_said, run.pk)))
    return Status(202, run_out(await runtime.readers.read(read_run, run.pk)))


def run_out(run: Run, message: str = "") -> dict[str, Any]:
    where = [run.session.uuid, run.uuid]
    return {
        "run": run.uuid,
        "session": run.session.uuid,
        "kind": run.kind,
        "state": run.state,
        "client_id": run.client_id,
        "turn": run.user_turn,
        "seq": run.user_seq,
        "note": run.note,
        "error": {"code": run.error_code, "message": message} if run.error_code else None,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "url": reverse("api:run", args=where),
        "stream": reverse("api:run_stream", args=where),
    }


def said_out(said: RunTranscript) -> dict[str, Any]:
    texts = [_text_of(row) for row in said.rows if row["event_type"] == ASSISTANT_TEXT]
    texts += [part.text for part in said.draft if part.kind == TEXT]
    return run_out(said.run, reason_of(said)) | {
        "rows": said.rows,
        "text": "\n\n".join(text for text in texts if text),
    }


def _text_of(row: dict[str, Any]) -> str:
    return str((row["payload"] or {}).get("text", ""))


def reason_of(said: RunTranscript) -> str:
    """Why a run failed, as the transcript says it; empty for one that has not."""
    notices = [row for row in said.rows if row["event_type"] == INFO and row["payload"]]
    reasons = [row for row in notices if row["payload"].get("code") == said.run.error_code]
    return _text_of(reasons[-1]) if reasons else ""


router = Router(tags=["Messages and runs"])


class MessageIn(Schema):
    """A person's message. ``content`` stands in the place of ``text``: a text, or a list of
    texts, images and documents as the Messages API or OpenAI's chat completions have them.
    With files (or attachments by their uuids) the text may be empty."""

    text: str = ""
    content: str | list[dict[str, Any]] | None = None
    attachments: list[UUID] = Field(default_factory=list)


class HistoryFilters(Paging):
    format: FormatName = "anthropic"


@router.get(
    "/sessions/{uuid:uuid}/messages",
    auth=needs(READ),
    response=Page[dict[str, Any]],
    url_name="messages",
)
def list_messages(
    request: HttpRequest, uuid: UUID, wanted: Query[HistoryFilters]
) -> dict[str, Any]:
    """The conversation as it stands, as messages of another program's format, files
    included. Results of tools that belong together are never parted."""
    session, _ = get_session_for(request, uuid)
    walk = walk_of(wanted)
    if walk.is_back:
        raise bad_cursor()
    page = read_messages(
        session,
        format=wanted.format,
        from_turn=walk.number or 0,
        limit=walk.limit,
    )
    following = None if page.next_turn is None else str(PageCursor(str(page.next_turn)))
    return {"items": page.messages, "next": following, "previous": None}


@router.post(
    "/sessions/{uuid:uuid}/messages",
    auth=needs(WRITE),
    response={200: RunSaidOut, 202: RunOut},
    openapi_extra=STREAMED,
    url_name="messages",
)
async def send_message(
    request: HttpRequest, uuid: UUID, message: MessageIn, key: Key = None, wait: Wait = 0
) -> Any:
    """Send a message; the run that answers it goes on whether or not anybody waits. It
    waits itself while another run of the session is not over. With ``Accept:
    text/event-stream`` the answer is the run's stream."""
    session, _ = await sync_to_async(get_session_for)(request, uuid, to=TO_WRITE)
    runtime = await current_runtime()
    require_room(request, runtime)
    spoken = read_spoken([message.text if message.content is None else message.content])
    given = check_attachment_ids([str(one) for one in message.attachments])
    text = check_message_text(spoken.text, may_be_empty=bool(given or spoken.files))
    user_pk, client_id = caller_of(request).user.pk, client_id_of(key)
    attachments = given + await sync_to_async(save_spoken_files)(
        session, spoken.files, client_id=client_id, user_pk=user_pk
    )
    accepted = await runtime.send(
        session, client_id=client_id, text=text, user_pk=user_pk, attachments=attachments
    )
    if not accepted.is_new:
        is_same = await runtime.readers.read(
            was_sent_before, accepted.run_pk, text=text, attachments=attachments
        )
        if not is_same:
            raise OtherRequest("This key was used in the session for something else.")
    return await answer_begun(request, runtime, session, accepted, wait=wait)
