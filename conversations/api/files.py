"""API operations of files: uploading, downloading and removing attachments."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Field, File, Path, Router, Schema, Status, UploadedFile

from conversations.access import get_session_for
from conversations.accounts.tokens import READ, WRITE
from conversations.archive.attachments import get_attachment, remove_attachment
from conversations.archive.file_types import FORMATS
from conversations.archive.rights import WRITE as TO_WRITE
from conversations.domain.errors import StorageFull
from conversations.models import Session
from conversations.web.attachments import lacks_space, read_resource, save_files, serve_attachment

from .auth import caller_of, needs
from .idempotency import idempotent
from .problems import problem

router = Router(tags=["Files"])

BYTES = {"schema": {"type": "string", "format": "binary"}}
FILE_TYPES = ("application/octet-stream", "application/pdf", "text/plain", *FORMATS.values())

Files = Annotated[list[UploadedFile], File(..., min_length=1)]


class AttachmentOut(Schema):
    """A file that a message can name by its ``uuid``.

    Until it is sent with a message, only its sender can read it. It is removed after a day if it
    is not sent.
    """

    uuid: UUID
    name: str
    kind: str
    media_type: str
    size: int
    width: int | None = None
    height: int | None = None


class AttachmentsOut(Schema):
    items: list[AttachmentOut]


@router.post(
    "/attachments", auth=needs(WRITE), response={201: AttachmentsOut}, url_name="attachments"
)
@idempotent(in_one=False)
def attach(request: HttpRequest, uuid: Path[UUID], files: Files) -> Status[Any] | HttpResponse:
    """Upload files to be sent with a message.

    If a file is refused, the response is a problem whose ``files`` has the reason. The other files
    are also listed there, and are kept.
    """
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    return _upload(request, session, files)


def _upload(
    request: HttpRequest, session: Session, files: Sequence[Any]
) -> Status[Any] | HttpResponse:
    results = save_files(session.pk, files, user_pk=caller_of(request).user.pk)
    refused = [result for result in results if "reason" in result]
    if refused:
        detail = " ".join(result["reason"] for result in refused)
        status, code = 400, "attachment_refused"
        if lacks_space(results):
            status, code = StorageFull.status, StorageFull.code
        return problem(status, detail, code=code, files=results)
    return Status(201, {"items": [result["attachment"] for result in results]})


class ResourceIn(Schema):
    resource: str = Field(max_length=2_100, description="`server:uri`, listed or not.")


@router.post(
    "/attachments/resource",
    auth=needs(WRITE),
    response={201: AttachmentsOut},
    url_name="attachments_resource",
)
@idempotent(in_one=False)
def attach_resource(
    request: HttpRequest, uuid: Path[UUID], wanted: ResourceIn
) -> Status[Any] | HttpResponse:
    """Save the contents of a tool server's resource as files to be sent with a message."""
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    return _upload(request, session, read_resource(session, wanted.resource))


@router.get(
    "/attachments/{uuid:attachment}",
    auth=needs(READ),
    url_name="attachment",
    openapi_extra={
        "responses": {
            200: {
                "description": "The original file.",
                "content": dict.fromkeys(sorted(FILE_TYPES), BYTES),
            }
        }
    },
)
def get_file(request: HttpRequest, uuid: Path[UUID], attachment: UUID) -> HttpResponse:
    """Return a file as it was received. Only its sender can read a file that is not sent yet."""
    session, _ = get_session_for(request, uuid)
    user_pk = caller_of(request).user.pk
    return serve_attachment(request, get_attachment(session.pk, attachment, user_pk=user_pk))


@router.delete(
    "/attachments/{uuid:attachment}", auth=needs(WRITE), response={204: None}, url_name="attachment"
)
def take_back(request: HttpRequest, uuid: Path[UUID], attachment: UUID) -> Status[None]:
    """Remove a file that is not sent yet."""
    session, _ = get_session_for(request, uuid, to=TO_WRITE)
    remove_attachment(session.pk, attachment, user_pk=caller_of(request).user.pk)
    return Status(204, None)
