"""Which session a client's request belongs to, and what of the request is new there.

The archive is the memory: of a session that has begun, only what follows the last answer
is taken. What was said before counts for a session that begins with the request.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.http import HttpRequest

from conversations.access import get_workspace_for
from conversations.agent.tools.tool import ToolResult
from conversations.api.auth import caller_of
from conversations.api.fields import KEY_HEADER
from conversations.api.idempotency import OtherRequest
from conversations.archive import sessions as archive_sessions
from conversations.archive.attachments import attachment_block, save_attachment
from conversations.archive.file_types import examine
from conversations.archive.message_formats import (
    import_history,
    prepare_messages,
    save_spoken_files,
)
from conversations.archive.messages import Accepted, find_accepted
from conversations.archive.rights import WRITE
from conversations.archive.runs import message_text
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.formats import ANTHROPIC, Spoken, read_new_file
from conversations.domain.runs import MESSAGE, NO_CHOICES, RunChoices, read_first_choices
from conversations.domain.session_keys import check_key
from conversations.domain.text import dump_json, is_storable, storable
from conversations.domain.tool_calls import OPEN_STATES
from conversations.domain.turns import text_of_blocks
from conversations.models import Run, Session, ToolCall, Turn
from conversations.web.forms import check_message_text

from . import shapes

CHANNEL = "anthropic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientExchange:
    """A request, read: ``words`` is what the person says, None where only results come.
    ``known`` is what became of it where it was sent before. ``results``: what tools of the
    client gave."""

    session: Session
    user: User
    client_id: str
    known: Accepted | None
    words: Spoken | None
    results: list[tuple[ToolCall, ToolResult]] = field(default_factory=list)
    attachments: list[str] = field(default_factory=list)
    choices: RunChoices = NO_CHOICES


def open_exchange(request: HttpRequest, slug: str, asked: shapes.MessagesIn) -> ClientExchange:
    """Find or begin the session, and keep what is attached. Raises as the archive does."""
    choices = shapes.read_client_choices(asked)
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    before, said = shapes.split_messages(asked.messages)
    words, given = shapes.read_words(said), shapes.read_results(said)
    check_message_text(words.text, may_be_empty=bool(words.files or given))
    user = caller_of(request).user
    # The same request sent again begins with the same, and means the same run.
    once = request.headers.get(KEY_HEADER, "")
    text = f"key {once}" if once else dump_json([asked.messages, choices.as_json()])
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    beginning = f"{CHANNEL}-{digest[:40]}"
    is_retry = request.headers.get("X-Stainless-Retry-Count", "0") != "0"
    instructions = shapes.read_instructions(asked.system)
    begun: dict[str, Any] = {"instructions": instructions, "model": asked.model}
    if key := _key_of(request, asked, user):
        session = archive_sessions.get_or_create_by_key(
            workspace, key=key, owner=user, channel=CHANNEL, **begun
        )
    else:
        begun_so = Session.objects.filter(
            workspace=workspace, owner=user, channel=CHANNEL, key=None, archived_at=None
        ).filter(runs__client_id__startswith=beginning)
        again = begun_so.order_by("-pk").first() if is_retry else None
        session = again or archive_sessions.create_session(
            workspace, owner=user, channel=CHANNEL, **begun
        )
    _follow(session, before, asked, instructions)
    client_id = f"{beginning}-{uuid4().hex[:12]}"
    # Sent again: by the client's own key, by a list of messages that can only be sent once,
    # or since the client says so.
    if once or before or is_retry:
        runs = Run.objects.filter(session=session.pk, client_id__startswith=beginning)
        newest = runs.order_by("-pk").values_list("client_id", flat=True).first()
        client_id = newest or (beginning if once or before else client_id)
    known = find_accepted(session, client_id)
    if known is not None and not was_said_before(known.run_pk, words.text, choices):
        raise OtherRequest("This key was already used in this session for another request.")
    has_words = bool(words.text or words.files)
    results = [_read_result(session, user, block) for block in given]
    return ClientExchange(
        session=session,
        user=user,
        client_id=client_id,
        known=known,
        words=words if has_words or not results else None,
        results=results,
        attachments=save_spoken_files(session, words.files, client_id=client_id, user_pk=user.pk),
        choices=choices,
    )


def _key_of(request: HttpRequest, asked: shapes.MessagesIn, user: User) -> str:
    # Of the session. A request without one, that can be sent again, is the session of its
    # ``Idempotency-Key``.
    if given := request.headers.get("Loom-Session-Key", ""):
        return check_key(given)
    whose = asked.metadata.user_id if asked.metadata else None
    if not whose:
        once = request.headers.get(KEY_HEADER, "")
        return f"{CHANNEL}:once-{sha256(f'{user.pk} {once}'.encode()).hexdigest()}" if once else ""
    try:
        return check_key(f"{CHANNEL}:{whose}")
    except Rejected:
        return f"{CHANNEL}:{sha256(dump_json(whose).encode()).hexdigest()}"


def _follow(
    session: Session, before: list[dict[str, Any]], asked: shapes.MessagesIn, instructions: str
) -> None:
    # Bring a history along where the session begins with it; take over what the client changed
    # since.
    if before and session.turn_count == 0:
        brought = prepare_messages(before, format=ANTHROPIC, model=asked.model)
        with suppress(Conflict):  # another request was first
            import_history(session, brought, user_pk=session.owner_id)
    if session.model != asked.model:
        archive_sessions.choose_model(session, model=asked.model)
    if instructions and session.instructions != instructions:
        archive_sessions.instruct_session(session, instructions=instructions)


def was_said_before(run_pk: int, text: str, choices: RunChoices) -> bool:
    """Whether the message that this run answers has that text, and its answer is what was
    asked for at first."""
    run = Run.objects.get(pk=run_pk)
    if run.choices is not None and read_first_choices(run.choices) != choices:
        return False
    if run.kind == MESSAGE:
        return message_text(run) == text
    turns = Turn.objects.filter(session=run.session_id, number=run.user_turn or 0)
    return turns.filter(content=storable(text)).exists()


def _read_result(
    session: Session, user: User, block: dict[str, Any]
) -> tuple[ToolCall, ToolResult]:
    call_id = str(block.get("tool_use_id", ""))
    calls = ToolCall.objects.select_related("run").filter(session=session.pk, call_id=call_id)
    call = calls.order_by("-pk").first() if is_storable(call_id) else None
    if call is None:
        raise Rejected(f"The call {call_id} does not exist in this session.", code="no_such_call")
    content = block.get("content")
    blocks = content if isinstance(content, list) else []
    kept = []
    for one in blocks if call.state in OPEN_STATES else ():
        if isinstance(one, dict) and one.get("type") != "text":
            file = read_new_file(one)
            attachment = save_attachment(
                session.pk,
                data=file.data,
                name=file.name,
                user_pk=user.pk,
                turn=call.turn_number,
                content=examine(file.data, file.name),
            )
            kept.append(attachment_block(attachment))
    text = content if isinstance(content, str) else text_of_blocks(blocks)
    return call, ToolResult(ok=block.get("is_error") is not True, output=text, blocks=kept)
