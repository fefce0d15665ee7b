"""What the operations that begin a run have in common: a key, waiting, answers.

A key makes an operation happen once in a session: it becomes the run's ``client_id``,
which the database keeps unique, so it holds across restarts and processes.
"""

import re
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID, uuid4

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from ninja import Query, Schema, Status

from conversations.archive.messages import Accepted
from conversations.archive.run_story import RunFacts, RunTranscript, read_run, read_said
from conversations.domain.events import ASSISTANT_TEXT, INFO
from conversations.domain.run_story import TEXT, StreamCursor
from conversations.models import Session
from conversations.runtime.engine import Runtime
from conversations.runtime.following import wait_for_end

from .events import RowOut
from .fields import key_header
from .staying import free_connection, recheck_of
from .streams import stream_run, wants_stream

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
    Raises as ``web.access`` does for who has lost the right to it while waiting."""
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


def run_out(run: RunFacts, message: str = "") -> dict[str, Any]:
    where = [run.session, run.uuid]
    return {
        "run": run.uuid,
        "session": run.session,
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
