"""Files of a message: taken in, shown small, given out, taken back.

What is given out was sent by somebody: the browser saves it, or shows it as an image
inside a page, and never runs it.
"""

from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import get_conditional_response
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from conversations.access import get_session_for, post_by_person
from conversations.archive.attachments import (
    attachment_block,
    get_attachment,
    list_attachments,
    remove_attachment,
)
from conversations.archive.blobs import read_blob
from conversations.archive.file_types import decode_text
from conversations.archive.rights import WRITE
from conversations.domain.attachments import HIDDEN, TEXT, shown_attachment
from conversations.domain.errors import LoomError, NotFound, Rejected, StorageFull
from conversations.models import Attachment

from .forms import check_attachment_ids
from .pages import person
from .uploads import lacks_space, save_files

POLICY = "sandbox; default-src 'none'"

CACHED = "private, max-age=3600"


def session_attachments(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Files of the next message: taken in by POST, described by GET."""
    answer = _take_files if request.method == "POST" else _describe_files
    return answer(request, uuid=uuid)


@login_required
@require_safe
def _describe_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Of the named files those that the person can send, with what is shown of each."""
    found, _ = get_session_for(request, uuid)
    wanted = check_attachment_ids(request.GET.getlist("uuid")[: settings.LOOM.max_attachments])
    files = [
        shown_attachment(attachment_block(file))
        for file in list_attachments(found.pk, wanted)
        if file.turn_number is None and file.added_by_id == person(request).pk
    ]
    return JsonResponse({"files": files})


@post_by_person
def _take_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Keep files that are to be sent; says of each what became of it."""
    found, _ = get_session_for(request, uuid, to=WRITE)
    files = request.FILES.getlist("files")
    if not files:
        raise Rejected("The request has no file.", code="no_file")
    if len(files) > settings.LOOM.max_attachments:
        raise Rejected(
            f"At most {settings.LOOM.max_attachments} files can be attached to a message.",
            code="too_many_attachments",
        )
    results = save_files(found.pk, files, user_pk=person(request).pk)
    status = StorageFull.status if lacks_space(results) else 200
    return JsonResponse({"files": results}, status=status)


@login_required
@require_safe
def attachment(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """The file as it came, to be saved."""
    return give_attachment(request, _attachment_for(request, uuid, attachment))


@login_required
@require_safe
def attachment_thumb(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """A small picture of an image, made here."""
    return give_thumbnail(request, _attachment_for(request, uuid, attachment))


def give_attachment(request: HttpRequest, found: Attachment) -> HttpResponse:
    """The content, to be saved."""
    response = _give(request, found.digest, "application/octet-stream")
    if response.status_code == 200:
        response["Content-Type"] = _safe_type(found, response.content)
    header = content_disposition_header(as_attachment=True, filename=found.name)
    response["Content-Disposition"] = header or "attachment"
    return response


def give_thumbnail(request: HttpRequest, found: Attachment) -> HttpResponse:
    """The small picture. Raises NotFound where there is none."""
    if not found.thumbnail:
        raise NotFound(HIDDEN)
    return _give(request, found.thumbnail, "image/webp")


@post_by_person
def attachment_remove(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """Take back a file that is not sent."""
    found, _ = get_session_for(request, uuid, to=WRITE)
    try:
        remove_attachment(found.pk, attachment, user_pk=person(request).pk)
    except LoomError as error:
        return JsonResponse({"code": error.code, "reason": error.message}, status=error.status)
    return HttpResponse(status=204)


def _attachment_for(request: HttpRequest, uuid: UUID, attachment: UUID) -> Attachment:
    found, _ = get_session_for(request, uuid)
    return get_attachment(found.pk, attachment, user_pk=person(request).pk)


def _give(request: HttpRequest, digest: str, media_type: str) -> HttpResponse:
    """A content never changes, so its digest says whether the browser has it."""
    etag = f'"{digest}"'
    response = get_conditional_response(request, etag=etag)
    if not isinstance(response, HttpResponse):
        response = HttpResponse(read_blob(digest), content_type=media_type)
    response["ETag"] = etag
    response["Cache-Control"] = CACHED
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = POLICY
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    # Images and PDF are compressed already, and it would take seconds.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)
    return response


def _safe_type(found: Attachment, data: bytes) -> str:
    """What was found out about the content; a text is a plain one."""
    if found.kind != TEXT:
        return found.media_type
    is_utf8 = decode_text(data) is not None and not data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return "text/plain; charset=utf-8" if is_utf8 else "application/octet-stream"
