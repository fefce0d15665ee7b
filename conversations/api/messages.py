"""API operations of messages and runs."""

from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from ninja import Field, Path, Query, Router, Schema, Status

from conversations.access import get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive import run_transcript
from conversations.archive.message_formats import read_messages, save_message_files
from conversations.archive.messages import AcceptedMessage, was_begun_before, was_sent_before
from conversations.domain.errors import KeyMismatch, Rejected
from conversations.domain.events import ASSISTANT_TEXT, INFO
from conversations.domain.formats import read_content
from conversations.domain.keyset import PageCursor, bad_cursor
from conversations.domain.run_transcript import TEXT, StreamCursor
from conversations.domain.runs import COMPACT, CONTINUE, MESSAGE, REGENERATE
from conversations.models import Run, Session
from conversations.runtime.following import wait_for_end
from conversations.runtime.service import Runtime
from conversations.web.forms import CLIENT_ID, check_attachment_ids, check_message_text

from .auth import needs, open_for_writing
from .fields import MAX_NUMBER, FormatName, Page, Paging, key_header, make_page, page_request_of
from .streams import STREAMED, free_connection, recheck_of, require_room, stream_run, wants_stream
from .turns import RowOut

# Shared by the operations that begin a run: the key, waiting, and responses.

MAX_WAIT_SECONDS = 600  # seconds; after that, a program asks again or follows the stream

Key = Annotated[
    str | None,
    key_header("The same key is executed once per session; use a new one for each message."),
]

Wait = Annotated[
    float,
    Query(
        0,
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Seconds to wait for the end of the run; 0 responds as soon as it is accepted.",
    ),
]


class RunError(Schema):
    """The reason why a run failed.

    ``message`` is the transcript's text. It is empty in responses without the run's rows.
    """

    code: str
    message: str


class RunOut(Schema):
    """A run: one piece of work by the model.

    ``turn`` and ``seq`` are the numbers of the person's message, and null while the run waits.
    ``note`` says what a running run waits for. ``url`` is the address of the run, and ``stream`` is
    the address of its stream.
    """

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
    """A run with its rows so far.

    ``text`` is the text of all its answers, including an answer that is still streaming.
    """

    rows: list[RowOut]
    text: str


def client_id_of(key: str | None) -> str:
    """Return the key if it is a valid client id, else its digest, and a new id without a key."""
    if key is None:
        return uuid4().hex
    return key if CLIENT_ID.fullmatch(key) else "key-" + sha256(key.encode()).hexdigest()[:60]


async def respond_to_begun(
    request: HttpRequest,
    runtime: Runtime,
    session: Session,
    accepted: AcceptedMessage,
    *,
    wait: float,
) -> HttpResponseBase | Status[Any]:
    """Return the run after waiting for its end, or its stream if the caller accepts that.

    Raise the errors of ``access`` if the caller loses the right to read while waiting.
    """
    await free_connection()
    run = await runtime.readers.read(run_transcript.read_run, accepted.run_pk)
    if wants_stream(request):
        return await stream_run(request, runtime, session, run, StreamCursor(), is_let_in=True)
    if wait:
        recheck = await recheck_of(request, session)
        await free_connection()
        has_ended = await wait_for_end(runtime, run, seconds=wait)
        await runtime.readers.read(recheck)
        if has_ended:
            return Status(
                200,
                run_transcript_out(
                    await runtime.readers.read(run_transcript.read_run_transcript, run.pk)
                ),
            )
    return Status(202, run_out(await runtime.readers.read(run_transcript.read_run, run.pk)))


def run_out(run: Run, message: str = "") -> dict[str, Any]:
    args = [run.session.uuid, run.uuid]
    names = ("kind", "state", "client_id", "note", "created_at", "started_at", "finished_at")
    return {name: getattr(run, name) for name in names} | {
        "run": run.uuid,
        "session": run.session.uuid,
        "turn": run.user_turn,
        "seq": run.user_seq,
        "error": {"code": run.error_code, "message": message} if run.error_code else None,
        "url": reverse("api:run", args=args),
        "stream": reverse("api:run_stream", args=args),
    }


def run_transcript_out(transcript: run_transcript.RunTranscript) -> dict[str, Any]:
    texts = [_text_of(row) for row in transcript.rows if row["event_type"] == ASSISTANT_TEXT]
    texts += [part.text for part in transcript.draft if part.kind == TEXT]
    text = "\n\n".join(text for text in texts if text)
    return run_out(transcript.run, reason_of(transcript)) | {"rows": transcript.rows, "text": text}


def _text_of(row: dict[str, Any]) -> str:
    return str((row["payload"] or {}).get("text", ""))


def reason_of(transcript: run_transcript.RunTranscript) -> str:
    """Return the transcript's reason why a run failed, empty if it has not failed."""
    notices = [row for row in transcript.rows if row["event_type"] == INFO and row["payload"]]
    reasons = [row for row in notices if row["payload"].get("code") == transcript.run.error_code]
    return _text_of(reasons[-1]) if reasons else ""


router = Router(tags=["Messages and runs"])


class MessageIn(Schema):
    """A person's message.

    ``content`` replaces ``text``. It is a text, or a list of texts, images and documents in the
    format of the Messages API or of OpenAI's chat completions. With files, or with uuids of
    ``attachments``, the text may be empty. ``now`` means that, if the message has to wait, it goes
    before the others, and already at the next tool call of the answer that runs.
    """

    text: str = ""
    content: str | list[dict[str, Any]] | None = None
    attachments: list[UUID] = Field(default_factory=list)
    now: bool = False


class HistoryFilters(Paging):
    format: FormatName = "anthropic"


@router.get("/messages", auth=needs(READ), response=Page[dict[str, Any]], url_name="messages")
def list_messages(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[HistoryFilters]
) -> dict[str, Any]:
    """List the messages of the active path in another program's format, including files.

    Results of tools that belong together are always on the same page.
    """
    session, _ = get_session_for(request, uuid)
    walk = page_request_of(wanted)
    if walk.is_back:
        raise bad_cursor()
    page = read_messages(
        session, format=wanted.format, from_turn=walk.number or 0, limit=walk.limit
    )
    following = None if page.next_turn is None else str(PageCursor(str(page.next_turn)))
    return {"items": page.messages, "next": following, "previous": None}


@router.post(
    "/messages",
    auth=needs(WRITE),
    response={200: RunSaidOut, 202: RunOut},
    openapi_extra=STREAMED,
    url_name="messages",
)
async def send_message(
    request: HttpRequest, uuid: Path[UUID], message: MessageIn, key: Key = None, wait: Wait = 0
) -> Any:
    """Send a message.

    The run that answers it continues even if the caller does not wait. If another run of the
    session has not ended, the new run waits for it. With ``Accept: text/event-stream``, the
    response is the run's stream.
    """
    session, runtime, user_pk = await open_for_writing(request, uuid)
    require_room(request, runtime)
    content = read_content([message.text if message.content is None else message.content])
    attachments = check_attachment_ids([str(attachment) for attachment in message.attachments])
    text = check_message_text(content.text, may_be_empty=bool(attachments or content.files))
    client_id = client_id_of(key)
    all_attachments = attachments + await sync_to_async(save_message_files)(
        session, content.files, client_id=client_id, user_pk=user_pk
    )
    accepted = await runtime.send(
        session,
        client_id=client_id,
        text=text,
        user_pk=user_pk,
        attachments=all_attachments,
        goes_first=message.now,
    )
    if not accepted.is_new:
        is_same = await runtime.readers.read(
            was_sent_before, accepted.run_pk, text=text, attachments=all_attachments
        )
        if not is_same:
            raise KeyMismatch("This key was already used in this session for another request.")
    return await respond_to_begun(request, runtime, session, accepted, wait=wait)


# Runs: listing, reading, beginning, stopping and withdrawing them.


@router.get("/runs", auth=needs(READ), response=Page[RunOut], url_name="runs")
def list_session_runs(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[Paging]
) -> dict[str, Any]:
    """List the runs of a session, the newest first."""
    session, _ = get_session_for(request, uuid)
    walk = page_request_of(wanted)
    runs = run_transcript.list_runs(
        session.pk, from_pk=walk.number, back=walk.is_back, limit=walk.limit + 1
    )
    return make_page(walk, runs, as_item=run_out, place_of=lambda run: str(run.pk))


@router.get("/runs/{uuid:run}", auth=needs(READ), response=RunSaidOut, url_name="run")
def get_run(request: HttpRequest, uuid: Path[UUID], run: UUID) -> dict[str, Any]:
    """Return a run with its rows so far. To follow a run without polling, use its stream."""
    session, _ = get_session_for(request, uuid)
    return run_transcript_out(
        run_transcript.read_run_transcript(run_transcript.find_run(session, run).pk)
    )


KINDS = {"regenerate": REGENERATE, "edit": MESSAGE, "continue": CONTINUE, "compact": COMPACT}


class RunIn(Schema):
    """The kind of run to begin.

    ``regenerate`` answers the message ``turn`` again, by default the last message. ``edit``
    replaces the message ``turn`` and everything after it by ``text``. ``continue`` continues an
    answer that was cut off. ``compact`` summarises older turns for the model.
    """

    kind: Literal["regenerate", "edit", "continue", "compact"]
    turn: int | None = Field(None, ge=1, le=MAX_NUMBER)
    text: str = ""


@router.post(
    "/runs",
    auth=needs(WRITE),
    response={200: RunSaidOut, 202: RunOut},
    openapi_extra=STREAMED,
    url_name="runs",
)
async def begin_run(
    request: HttpRequest, uuid: Path[UUID], wanted: RunIn, key: Key = None, wait: Wait = 0
) -> Any:
    """Begin a run without a new message."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    require_room(request, runtime)
    arguments: dict[str, Any] = {"client_id": client_id_of(key), "user_pk": user_pk}
    if wanted.kind == "regenerate":
        accepted = await runtime.regenerate(session, turn=wanted.turn, **arguments)
    elif wanted.kind == "continue":
        accepted = await runtime.continue_run(session, **arguments)
    elif wanted.kind == "compact":
        accepted = await runtime.compact(session, **arguments)
    elif wanted.turn is None:
        raise Rejected("Name the turn of the message to edit.", code="bad_number")
    else:
        text = check_message_text(wanted.text, may_be_empty=True)
        accepted = await runtime.edit(session, turn=wanted.turn, text=text, **arguments)
    if not accepted.is_new:
        is_same = await runtime.readers.read(
            was_begun_before,
            accepted.run_pk,
            kind=KINDS[wanted.kind],
            turn=wanted.turn,
            text=wanted.text,
        )
        if not is_same:
            raise KeyMismatch("This key was already used in this session for another request.")
    return await respond_to_begun(request, runtime, session, accepted, wait=wait)


@router.post("/stop", auth=needs(WRITE), response={204: None}, url_name="stop")
async def stop_run(request: HttpRequest, uuid: Path[UUID]) -> Status[None]:
    """Stop the running answer and keep its text. Without a running answer, nothing happens."""
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.stop_run(session)
    return Status(204, None)


@router.post(
    "/runs/{uuid:run}/withdraw", auth=needs(WRITE), response={204: None}, url_name="run_withdraw"
)
async def withdraw_run(request: HttpRequest, uuid: Path[UUID], run: UUID) -> Status[None]:
    """Withdraw a message that still waits."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await runtime.readers.read(run_transcript.find_run, session, run)
    await runtime.withdraw(session, run=run, user_pk=user_pk)
    return Status(204, None)


class NowIn(Schema):
    """``stop`` ends the running answer at once, instead of waiting for its next tool call."""

    stop: bool = False


@router.post("/runs/{uuid:run}/now", auth=needs(WRITE), response={204: None}, url_name="run_now")
async def put_run_first(
    request: HttpRequest, uuid: Path[UUID], run: UUID, wanted: NowIn
) -> Status[None]:
    """Put a message that still waits before the others.

    It is given to the model at the next tool call of the running answer, or at the end of it.
    """
    session, runtime, _ = await open_for_writing(request, uuid)
    await runtime.readers.read(run_transcript.find_run, session, run)
    await runtime.put_first(session, run=run, stops=wanted.stop)
    return Status(204, None)
