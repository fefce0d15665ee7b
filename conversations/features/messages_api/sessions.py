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
from conversations.api.stored_responses import OtherRequest
from conversations.archive.attachments import (
    attachment_block,
    examine,
    save_attachment,
)
from conversations.archive.message_formats import (
    import_history,
    prepare_messages,
    save_spoken_files,
)
from conversations.archive.messages import Accepted, find_accepted
from conversations.archive.rights import WRITE
from conversations.archive.sessions import (
    choose_model,
    create_session,
    get_or_create_by_key,
    instruct_session,
)
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.formats import ANTHROPIC
from conversations.domain.formats.spoken import Spoken, read_new_file
from conversations.domain.runs import NO_CHOICES, RunChoices
from conversations.domain.session_keys import check_key
from conversations.domain.text import dump_json
from conversations.domain.turns import text_of_blocks
from conversations.models import Session
from conversations.web.forms import check_message_text

from .records import AskedCall, find_asked_call, find_begun, find_resent, was_said_before
from .shapes import (
    MessagesIn,
    read_client_choices,
    read_instructions,
    read_results,
    read_words,
    split_messages,
)

CHANNEL = "anthropic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a tool of the client gave."""

    call: AskedCall
    gave: ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientExchange:
    """A request, read: ``words`` is what the person says, None where only results come.
    ``known`` is what became of it where it was sent before."""

    session: Session
    user: User
    client_id: str
    known: Accepted | None
    words: Spoken | None
    results: list[Result] = field(default_factory=list)
    attachments: list[str] = field(default_factory=list)
    choices: RunChoices = NO_CHOICES


def open_exchange(request: HttpRequest, slug: str, asked: MessagesIn) -> ClientExchange:
    """Find or begin the session, and keep what is attached. Raises as the archive does."""
    choices = read_client_choices(asked)
    workspace, _ = get_workspace_for(request, slug, to=WRITE)
    before, said = split_messages(asked.messages)
    words, given = read_words(said), read_results(said)
    check_message_text(words.text, may_be_empty=bool(words.files or given))
    user = caller_of(request).user
    begun: dict[str, Any] = {
        "instructions": read_instructions(asked.system),
        "model": asked.model,
    }
    key = _key_of(request, asked, user)
    beginning, is_retry = _beginning_of(request, asked, choices), _is_retry(request)
    if key:
        session = get_or_create_by_key(workspace, key=key, owner=user, channel=CHANNEL, **begun)
    else:
        again = find_begun(workspace, user, CHANNEL, beginning) if is_retry else None
        session = again or create_session(workspace, owner=user, channel=CHANNEL, **begun)
    _follow(session, before, asked)
    client_id = _client_id_of(request, session, beginning, has_history=bool(before))
    known = find_accepted(session, client_id)
    if known is not None and not was_said_before(known.run_pk, words.text, choices=choices):
        raise OtherRequest("This key was used in the session for something else.")
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


def _key_of(request: HttpRequest, asked: MessagesIn, user: User) -> str:
    """Of the session. A request without one, that can be sent again, is the session of its
    ``Idempotency-Key``."""
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


def _follow(session: Session, before: list[dict[str, Any]], asked: MessagesIn) -> None:
    """Bring a history along where the session begins with it; take over what the client
    changed since."""
    if before and session.turn_count == 0:
        brought = prepare_messages(before, format=ANTHROPIC, model=asked.model)
        with suppress(Conflict):  # another request was first
            import_history(session, brought, user_pk=session.owner_id)
    if session.model != asked.model:
        choose_model(session, model=asked.model)
    instructions = read_instructions(asked.system)
    if instructions and session.instructions != instructions:
        instruct_session(session, instructions=instructions)


def _beginning_of(request: HttpRequest, asked: MessagesIn, choices: RunChoices) -> str:
    """What the ``client_id`` of a request begins with, and of the same one sent again."""
    key = request.headers.get(KEY_HEADER, "")
    text = f"key {key}" if key else dump_json([asked.messages, choices.as_json()])
    return f"{CHANNEL}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _is_retry(request: HttpRequest) -> bool:
    """Whether the client says that it sends this again."""
    return request.headers.get("X-Stainless-Retry-Count", "0") != "0"


def _client_id_of(
    request: HttpRequest, session: Session, beginning: str, *, has_history: bool
) -> str:
    """The same for a request that is sent again: by the client's own key, by a list of
    messages that can only be sent once, or since the client says so."""
    if request.headers.get(KEY_HEADER) or has_history:
        return find_resent(session, beginning) or beginning
    known = find_resent(session, beginning) if _is_retry(request) else None
    return known or f"{beginning}-{uuid4().hex[:12]}"


def _read_result(session: Session, user: User, block: dict[str, Any]) -> Result:
    call = find_asked_call(session, str(block.get("tool_use_id", "")))
    content = block.get("content")
    blocks = content if isinstance(content, list) else []
    shown = [one for one in blocks if isinstance(one, dict) and one.get("type") != "text"]
    text = content if isinstance(content, str) else text_of_blocks(blocks)
    return Result(
        call=call,
        gave=ToolResult(
            ok=block.get("is_error") is not True,
            output=text,
            blocks=[_keep(session, user, call, one) for one in shown] if call.is_open else [],
        ),
    )


def _keep(session: Session, user: User, call: AskedCall, block: dict[str, Any]) -> dict[str, Any]:
    file = read_new_file(block)
    kept = save_attachment(
        session.pk,
        data=file.data,
        name=file.name,
        user_pk=user.pk,
        turn=call.turn,
        content=examine(file.data, file.name),
    )
    return attachment_block(kept)
