"""API operations of the conversations of work items, in the terms of dispatchers.

A conversation is a session, a project is a workspace, and a work item (bead) is the key
``bead:<id>``. If the conversation of a work item has expired, opening it begins another one under
the same key. The new conversation is linked to the old one, which stays readable.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from ninja import Field, Query, Router, Schema, Status

from conversations.access import get_session_for, get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.message_formats import with_instructions
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.rights import roles_of_person
from conversations.archive.session_records import SessionRecord, read_session_record
from conversations.archive.sessions import find_in_workspaces, open_by_key, refuse_purged
from conversations.archive.turns import walk_active_turns
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.session_keys import BEAD, check_key
from conversations.domain.turns import MalformedTurn, read_tool_calls
from conversations.models import Session
from conversations.web.attachments import in_threads

from .auth import caller_of, needs, open_for_writing
from .fields import LongText, Metadata, Moment, Paging, Title
from .json_format import dump
from .sessions import SessionFilters, SessionStart, begun_as, list_sessions_of

router = Router(tags=["Conversations of work items"])


class ConversationMessage(Schema):
    """One message.

    ``number`` is the number of its turn. Number 0 stands for the session's own instructions, which
    come before all turns unless the first turn is a system turn. ``tool_calls``, ``tool_call_id``
    and ``tool_name`` are null if the message has none.
    """

    number: int
    role: str
    content: str
    timestamp: datetime
    token_count: int
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    tool_name: str | None


class ConversationLine(Schema):
    """A conversation without its messages.

    ``bead_id`` is null if the session has no work item. ``token_count`` is the number of input and
    output tokens so far. ``continues`` is the expired conversation that this one continues.
    """

    session_id: UUID
    bead_id: str | None
    project_id: str
    title: str
    message_count: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    expired: bool
    token_count: int
    metadata: dict[str, Any]
    continues: UUID | None


class ConversationOut(ConversationLine):
    """A conversation with all messages on its active path, the oldest first.

    Messages that were taken back are in the archive and among the session's turns.
    """

    messages: list[ConversationMessage]


class ConversationList(Schema):
    conversations: list[ConversationLine]
    next: str | None
    previous: str | None


class ConversationFilters(Paging):
    project: str | None = Field(None, max_length=120, description="The slug of a workspace.")


class NewConversation(Schema):
    """The values of a new conversation. They do not change a conversation that exists already.

    ``system_message`` has instructions for the model in this conversation only. If ``expires_at``
    is null, the workspace's default applies.
    """

    project_id: str = Field(max_length=120, description="The slug of a workspace.")
    title: Title | None = None
    system_message: LongText = ""
    metadata: Metadata = Field(default_factory=dict)
    expires_at: Moment | None = None


class ResetIn(Schema):
    """``keep_system_message`` keeps the instructions and the leading system messages."""

    keep_system_message: bool = True


@router.get("/conversations", auth=needs(READ), response=ConversationList, url_name="conversations")
def list_conversations(request: HttpRequest, filters: Query[ConversationFilters]) -> dict[str, Any]:
    """List the conversations of your projects, or of one project, the latest active first."""
    session_filters = SessionFilters.model_validate(filters.model_dump(exclude={"project"}))
    page = list_sessions_of(request, filters.project, session_filters, as_item=_as_line)
    return {"conversations": page.pop("items"), **page}


@router.get(
    "/conversations/{uuid:uuid}",
    auth=needs(READ),
    response=ConversationOut,
    url_name="conversation",
)
def get_conversation(request: HttpRequest, uuid: UUID) -> StreamingHttpResponse:
    """Return a conversation with its whole history, however long."""
    session, _ = get_session_for(request, uuid)
    return _stream_conversation(session)


@router.get(
    "/beads/{bead}/conversation",
    auth=needs(READ),
    response=ConversationOut,
    url_name="bead_conversation",
)
def get_conversation_of_bead(
    request: HttpRequest, bead: str, project: str | None = None
) -> StreamingHttpResponse:
    """Return the conversation of a work item, with its whole history.

    If several projects have a conversation for the work item, choose one with ``project``.
    """
    key = check_key(f"{BEAD}:{bead}")
    if project is not None:
        workspace, _ = get_workspace_for(request, project)
        sessions = find_in_workspaces([workspace.pk], key)
    else:
        sessions = find_in_workspaces(roles_of_person(caller_of(request).user.pk), key)
    if len(sessions) > 1:
        slugs = ", ".join(session.workspace.slug for session in sessions)
        raise Conflict(
            f"Several projects have a conversation for this work item: {slugs}. Choose one with "
            "`project`.",
            code="ambiguous",
        )
    if not sessions:
        raise NotFound("This work item has no conversation.")
    session, _ = get_session_for(request, sessions[0].uuid)
    return _stream_conversation(session)


@router.put(
    "/beads/{bead}/conversation",
    auth=needs(WRITE),
    response={200: ConversationLine, 201: ConversationLine},
    url_name="bead_conversation",
)
def open_conversation_of_bead(
    request: HttpRequest, response: HttpResponse, bead: str, new: NewConversation
) -> Status[dict[str, Any]]:
    """Return the conversation of a work item, or begin it (201).

    A conversation is begun at first use, and when the last one has expired.
    """
    workspace, _ = get_workspace_for(request, new.project_id, to=TO_WRITE)
    key = check_key(f"{BEAD}:{bead}")
    values = new.model_dump(include={"title", "metadata", "expires_at"})
    start = SessionStart.model_validate(values | {"instructions": new.system_message})
    session, is_new = open_by_key(
        workspace, key=key, owner=caller_of(request).user, **begun_as(start)
    )
    response["Location"] = reverse("api:conversation", args=[session.uuid])
    return Status(201 if is_new else 200, _as_line(read_session_record(session.pk)))


@router.post(
    "/conversations/{uuid:uuid}/reset",
    auth=needs(WRITE),
    response=ConversationLine,
    url_name="conversation_reset",
)
async def reset_conversation(
    request: HttpRequest, uuid: UUID, wanted: ResetIn | None = None
) -> dict[str, Any]:
    """Start over in the same session.

    The archive keeps the earlier messages, but they are no longer given to the model or listed as
    messages of this conversation.
    """
    session, runtime, user_pk = await open_for_writing(request, uuid)
    keeps = (wanted or ResetIn()).keep_system_message
    await runtime.reset(session, keeps_instructions=keeps, user_pk=user_pk)
    return _as_line(await sync_to_async(read_session_record)(session.pk))


def _stream_conversation(session: Session) -> StreamingHttpResponse:
    # The response is streamed, because a conversation may not fit into memory.

    def pieces() -> Iterator[str]:
        yield dump(_as_line(read_session_record(session.pk)))[:-1] + ', "messages": ['
        comma = ""
        for turn in with_instructions(session, walk_active_turns(session.pk)):
            try:
                calls = read_tool_calls(turn)
            except MalformedTurn:
                calls = []
            # The type of a block is the provider's term, and not part of this format.
            tool_calls = [{k: value for k, value in call.items() if k != "type"} for call in calls]
            message = {name: getattr(turn, name, None) for name in ConversationMessage.model_fields}
            message["number"] = getattr(turn, "number", 0)
            message |= {"timestamp": turn.created_at, "tool_calls": tool_calls or None}
            yield comma + dump(message)
            comma = ", "
        refuse_purged(session.pk)
        yield "]}"

    return StreamingHttpResponse(in_threads(pieces()), content_type="application/json")


def _as_line(record: SessionRecord) -> dict[str, Any]:
    return {
        "session_id": record.uuid,
        "bead_id": record.key.partition(":")[2] if record.key.startswith(f"{BEAD}:") else None,
        "project_id": record.workspace,
        "title": record.title,
        "message_count": record.active_turns,
        "created_at": record.created_at,
        "updated_at": record.last_active_at,
        "expires_at": record.expires_at,
        "expired": record.expired,
        "token_count": record.input_tokens + record.output_tokens,
        "metadata": record.metadata,
        "continues": record.parent if record.fork_turn is None else None,
    }
