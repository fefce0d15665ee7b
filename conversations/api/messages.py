"""Sending a message, and reading all of them as another program would."""

from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from conversations.archive.api_answers import OtherRequest
from conversations.archive.export_messages import read_messages
from conversations.archive.messages import Accepted, was_sent_before
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.archive.spoken_files import save_spoken_files
from conversations.domain.formats.spoken import Spoken, read_spoken
from conversations.domain.tokens import READ, WRITE
from conversations.runtime.current import current_runtime
from conversations.web.access import get_session_for
from conversations.web.forms import check_attachment_ids, check_message_text

from .auth import caller_of, needs, visit_of
from .fields import FormatName
from .paging import Paging, bad_cursor, make_cursor, number_of, walk_of
from .schemas import Page
from .sending import Key, RunOut, RunSaidOut, Wait, answer_begun, client_id_of
from .streams import STREAMED, require_room

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
    session, _ = get_session_for(visit_of(request), uuid)
    walk = walk_of(wanted)
    if walk.is_back:
        raise bad_cursor()
    page = read_messages(
        session,
        format=wanted.format,
        from_turn=number_of(walk.place) if walk.place else 0,
        limit=walk.limit,
    )
    following = None if page.next_turn is None else make_cursor("next", str(page.next_turn))
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
    session, _ = await sync_to_async(get_session_for)(visit_of(request), uuid, to=TO_WRITE)
    runtime = await current_runtime()
    require_room(request, runtime)
    spoken = _spoken(message)
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
        await runtime.readers.read(_require_same, accepted, text, attachments)
    return await answer_begun(request, runtime, session, accepted, wait=wait)


def _require_same(accepted: Accepted, text: str, attachments: list[str]) -> None:
    if not was_sent_before(accepted.run_pk, text=text, attachments=attachments):
        raise OtherRequest("This key was used in the session for something else.")


def _spoken(message: MessageIn) -> Spoken:
    content = message.text if message.content is None else message.content
    return read_spoken([content])
