"""Sending a message."""

from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Field, Router, Schema

from conversations.archive.messages import Accepted, was_sent_before
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.domain.errors import Conflict, Rejected
from conversations.domain.tokens import WRITE
from conversations.runtime.current import current_runtime
from conversations.web.access import get_session_for
from conversations.web.forms import check_attachment_ids, check_message_text

from .auth import caller_of, needs, visit_of
from .sending import Key, RunOut, RunSaidOut, Wait, answer_begun, client_id_of
from .streams import STREAMED

router = Router(tags=["Messages and runs"])


class MessageIn(Schema):
    """A person's message. ``content`` is a text or a list of text blocks, in the place of
    ``text``. With attachments (uuids) the text may be empty."""

    text: str = ""
    content: str | list[dict[str, Any]] | None = None
    attachments: list[UUID] = Field(default_factory=list)


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
    session, _ = await sync_to_async(get_session_for)(visit_of(request), uuid, to=TO_WRITE)
    attachments = check_attachment_ids([str(one) for one in message.attachments])
    text = check_message_text(_text_of(message), may_be_empty=bool(attachments))
    runtime = await current_runtime()
    accepted = await runtime.send(
        session,
        client_id=client_id_of(key),
        text=text,
        user_pk=caller_of(request).user.pk,
        attachments=attachments,
    )
    if not accepted.is_new:
        await runtime.readers.read(_require_same, accepted, text, attachments)
    return await answer_begun(request, runtime, session, accepted, wait=wait)


def _require_same(accepted: Accepted, text: str, attachments: list[str]) -> None:
    if not was_sent_before(accepted.run_pk, text=text, attachments=attachments):
        raise Conflict(
            "This key was used in the session for something else.", code="idempotency_mismatch"
        )


def _text_of(message: MessageIn) -> str:
    if message.content is None:
        return message.text
    if isinstance(message.content, str):
        return message.content
    return "\n\n".join(_text_of_block(block) for block in message.content)


def _text_of_block(block: dict[str, Any]) -> str:
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        raise Rejected("A block is a text here; send files as attachments.", code="bad_message")
    return text
