"""The files of a message: uploading, thumbnails, downloading and removing them.

A person has sent the content that is served here. The browser saves it, or shows it as an image
inside a page, and never executes it.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.utils.cache import get_conditional_response
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from conversations.access import get_session_for, person, post_by_person
from conversations.archive import attachments as archive_attachments
from conversations.archive.blobs import read_blob
from conversations.archive.file_types import check_size, decode_text
from conversations.archive.rights import WRITE
from conversations.archive.storage import translate_storage_error
from conversations.domain.attachments import HIDDEN, TEXT, clean_name, shown_attachment
from conversations.domain.errors import LoomError, NotFound, Rejected, StorageFull
from conversations.domain.messages import join_messages
from conversations.domain.text import storable
from conversations.models import Attachment, Session
from conversations.rendering.messages import translate
from conversations.runtime.current import require_runtime, run_on_runtime

from .forms import check_attachment_ids
from .tool_rules import require_tool_server

RESOURCE_SECONDS = 90.0  # Time limit for a tool server to return a resource

# Files that are sent with a form.


class FilesRefused(Rejected):
    """An error for files that cannot be attached. ``kept`` holds the uuids of the others."""

    code = "attachment_refused"

    def __init__(self, message: str, *, kept: Sequence[str], is_full: bool) -> None:
        super().__init__(message)
        self.kept = kept
        if is_full:
            self.status = StorageFull.status


def save_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[dict[str, Any]]:
    """Save the files and return a result for each of them, with its name.

    A result has an ``attachment`` with the data to show, or ``code`` and ``reason`` if the file
    cannot be attached. Raise Rejected if there are too many files.
    """
    max_files = settings.LOOM.max_attachments
    if len(files) > max_files:
        raise Rejected(
            "At most %(limit)s files can be attached to a message.",
            code="too_many_attachments",
            limit=max_files,
        )
    results: list[dict[str, Any]] = []
    for file in files:
        name = clean_name(file.name or "")
        try:
            check_size(file.size or 0, name)
            saved = archive_attachments.upload_attachment(
                session_pk, data=file.read(), name=name, user_pk=user_pk
            )
        except (OSError, LoomError) as error:
            # A refused file does not prevent the others from being attached.
            refusal = translate_storage_error(error) or error
            if not isinstance(refusal, Rejected | StorageFull):
                raise
            results.append({"name": name, "code": refusal.code, "reason": refusal.message})
        else:
            shown = shown_attachment(archive_attachments.attachment_block(saved))
            results.append({"name": name, "attachment": shown})
    return results


def read_resource(session: Session, name: str) -> list["UploadedFile[Any]"]:
    """Return the contents of a tool server's resource, ``server:uri``, as files to save.

    Raise NotFound if there is no such server, and Rejected with a reason.
    """
    workspace = session.workspace
    require_tool_server(workspace.slug, name.partition(":")[0])
    servers = require_runtime().tool_servers
    reading = servers.read_resource(workspace.slug, Path(workspace.root), name)
    contents = run_on_runtime(reading, seconds=RESOURCE_SECONDS)
    return [SimpleUploadedFile(name, data) for name, data in contents]


def require_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[str]:
    """Save the files and return their uuids. Raise FilesRefused if any file is refused."""
    results = save_files(session_pk, files, user_pk=user_pk)
    uuids = [result["attachment"]["uuid"] for result in results if "attachment" in result]
    if reasons := [result["reason"] for result in results if "reason" in result]:
        reason = join_messages(dict.fromkeys(reasons))
        raise FilesRefused(reason, kept=uuids, is_full=lacks_space(results))
    return uuids


def lacks_space(results: Sequence[dict[str, Any]]) -> bool:
    """Return whether the server had no room for one of the files."""
    return any(result.get("code") == StorageFull.code for result in results)


POLICY = "sandbox; default-src 'none'"

OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16

CACHED = "private, max-age=3600"


def session_attachments(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Upload (POST) or describe (GET) files of the next message."""
    answer = upload_files if request.method == "POST" else describe_files
    return answer(request, uuid=uuid)


@login_required
@require_safe
def describe_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Return the data to show for those of the named files that the person can send."""
    session, _ = get_session_for(request, uuid)
    uuids = check_attachment_ids(request.GET.getlist("uuid")[: settings.LOOM.max_attachments])
    files = [
        shown_attachment(archive_attachments.attachment_block(file))
        for file in archive_attachments.list_attachments(session.pk, uuids)
        if file.turn_number is None and file.added_by_id == person(request).pk
    ]
    return JsonResponse({"files": files})


@post_by_person
def upload_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Save files that are going to be sent, and return a result for each."""
    session, _ = get_session_for(request, uuid, to=WRITE)
    files: Sequence[UploadedFile[Any]] = request.FILES.getlist("files")
    if resource := storable(request.POST.get("resource", "")):
        try:
            files = read_resource(session, resource)
        except LoomError as error:  # reported like an error of a file
            reason = translate(error.message)
            refusal = {"name": resource, "code": error.code, "reason": reason}
            return JsonResponse({"files": [refusal]})
    if not files:
        raise Rejected("The request contains no file.", code="no_file")
    results = save_files(session.pk, files, user_pk=person(request).pk)
    status = StorageFull.status if lacks_space(results) else 200
    for result in results:
        if "reason" in result:
            result["reason"] = translate(result["reason"])
    return JsonResponse({"files": results}, status=status)


@login_required
@require_safe
def attachment(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """Serve the original file as a download."""
    return serve_attachment(request, _attachment_for(request, uuid, attachment))


@login_required
@require_safe
def attachment_thumb(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """Serve the thumbnail of an image, which this server has made."""
    return serve_thumbnail(request, _attachment_for(request, uuid, attachment))


def serve_attachment(request: HttpRequest, attachment: Attachment) -> HttpResponse:
    """Return a response with the content of the attachment as a download."""
    response = _serve_blob(request, attachment.digest, "application/octet-stream")
    if response.status_code == 200:
        data = response.content
        response["Content-Type"] = attachment.media_type
        if attachment.kind == TEXT:
            # Text is served as plain text, whatever its media type, so that the browser executes
            # nothing.
            is_utf8 = decode_text(data) is not None and not data.startswith(OTHER_MARKS)
            plain = "text/plain; charset=utf-8"
            response["Content-Type"] = plain if is_utf8 else "application/octet-stream"
    header = content_disposition_header(as_attachment=True, filename=attachment.name)
    response["Content-Disposition"] = header or "attachment"
    return response


def serve_thumbnail(request: HttpRequest, attachment: Attachment) -> HttpResponse:
    """Return a response with the thumbnail. Raise NotFound if there is none."""
    if not attachment.thumbnail:
        raise NotFound(HIDDEN)
    return _serve_blob(request, attachment.thumbnail, "image/webp")


@post_by_person
def attachment_remove(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    session, _ = get_session_for(request, uuid, to=WRITE)
    try:
        archive_attachments.remove_attachment(session.pk, attachment, user_pk=person(request).pk)
    except LoomError as error:
        answer = {"code": error.code, "reason": translate(error.message)}
        return JsonResponse(answer, status=error.status)
    return HttpResponse(status=204)


def _attachment_for(request: HttpRequest, uuid: UUID, attachment: UUID) -> Attachment:
    session, _ = get_session_for(request, uuid)
    return archive_attachments.get_attachment(session.pk, attachment, user_pk=person(request).pk)


def _serve_blob(request: HttpRequest, digest: str, media_type: str) -> HttpResponse:
    # The content of a digest never changes, so the digest is its ETag.
    etag = f'"{digest}"'
    response = get_conditional_response(request, etag=etag)
    if not isinstance(response, HttpResponse):
        response = HttpResponse(read_blob(digest), content_type=media_type)
    response["ETag"] = etag
    response["Cache-Control"] = CACHED
    guard_content(request, response)
    return response


def guard_content(request: HttpRequest, response: HttpResponseBase) -> None:
    """Keep the browser from executing content that other people made, or guessing its type."""
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = POLICY
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    # Images and PDF files are compressed already, and compressing them again would take seconds.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)


# Long files that are created while the browser downloads them.

PIECE_BYTES = 64_000


def stream_download(
    pieces: Iterator[str] | Iterator[bytes], *, name: str, content_type: str
) -> StreamingHttpResponse:
    response = StreamingHttpResponse(in_threads(pieces), content_type=content_type)
    response["Content-Disposition"] = content_disposition_header(as_attachment=True, filename=name)
    response["Cache-Control"] = "private, no-store"
    return response


async def in_threads(pieces: Iterator[str] | Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the content in pieces of about PIECE_BYTES, read in a thread.

    The event loop does not wait for the database, and only one piece is held in memory.
    """
    while piece := await sync_to_async(_read_piece)(pieces):
        yield piece


def _read_piece(pieces: Iterator[str] | Iterator[bytes]) -> bytes:
    read = bytearray()
    for piece in pieces:
        read += piece.encode("utf-8", "backslashreplace") if isinstance(piece, str) else piece
        if len(read) >= PIECE_BYTES:
            break
    return bytes(read)
