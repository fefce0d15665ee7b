"""Files of a message: taken in, shown small, given out, taken back.

What is given out was sent by somebody: the browser saves it, or shows it as an image
inside a page, and never runs it.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.files.uploadedfile import SimpleUploadedFile, UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
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

RESOURCE_SECONDS = 90.0  # That a tool server may take to give a resource

# Files that come with a form.


class FilesRefused(Rejected):
    """Some files cannot be attached; ``kept`` are the uuids of the others."""

    code = "attachment_refused"

    def __init__(self, message: str, *, kept: Sequence[str], is_full: bool) -> None:
        super().__init__(message)
        self.kept = kept
        if is_full:
            self.status = StorageFull.status


def save_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[dict[str, Any]]:
    """Of each file its name and, as ``attachment``, what is shown of it; or ``code`` and
    ``reason`` where it cannot be attached. Raises Rejected where they are too many."""
    most = settings.LOOM.max_attachments
    if len(files) > most:
        raise Rejected(
            "At most %(limit)s files can be attached to a message.",
            code="too_many_attachments",
            limit=most,
        )
    results: list[dict[str, Any]] = []
    for file in files:
        name = clean_name(file.name or "")
        try:
            check_size(file.size or 0, name)
            kept = archive_attachments.upload_attachment(
                session_pk, data=file.read(), name=name, user_pk=user_pk
            )
        except (OSError, LoomError) as error:
            # One file that is refused keeps no other from being attached.
            refusal = translate_storage_error(error) or error
            if not isinstance(refusal, Rejected | StorageFull):
                raise
            results.append({"name": name, "code": refusal.code, "reason": refusal.message})
        else:
            shown = shown_attachment(archive_attachments.attachment_block(kept))
            results.append({"name": name, "attachment": shown})
    return results


def read_resource(session: Session, name: str) -> list["UploadedFile[Any]"]:
    """The contents of a tool server's resource, ``server:uri``, as files to be kept. Raises
    NotFound, and Rejected with the reason."""
    workspace = session.workspace
    require_tool_server(workspace.slug, name.partition(":")[0])
    servers = require_runtime().tool_servers
    reading = servers.read_resource(workspace.slug, Path(workspace.root), name)
    found = run_on_runtime(reading, seconds=RESOURCE_SECONDS)
    return [SimpleUploadedFile(name, data) for name, data in found]


def require_files(
    session_pk: int, files: Sequence["UploadedFile[Any]"], *, user_pk: int
) -> list[str]:
    """Keep the files; returns their uuids. Raises FilesRefused."""
    results = save_files(session_pk, files, user_pk=user_pk)
    kept = [result["attachment"]["uuid"] for result in results if "attachment" in result]
    if reasons := [result["reason"] for result in results if "reason" in result]:
        reason = join_messages(dict.fromkeys(reasons))
        raise FilesRefused(reason, kept=kept, is_full=lacks_space(results))
    return kept


def lacks_space(results: Sequence[dict[str, Any]]) -> bool:
    """Whether a file was refused only since the server has no room for it."""
    return any(result.get("code") == StorageFull.code for result in results)


POLICY = "sandbox; default-src 'none'"

OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # how a text in UTF-16 begins

CACHED = "private, max-age=3600"


def session_attachments(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Files of the next message: taken in by POST, described by GET."""
    answer = upload_files if request.method == "POST" else describe_files
    return answer(request, uuid=uuid)


@login_required
@require_safe
def describe_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Of the named files those that the person can send, with what is shown of each."""
    found, _ = get_session_for(request, uuid)
    wanted = check_attachment_ids(request.GET.getlist("uuid")[: settings.LOOM.max_attachments])
    files = [
        shown_attachment(archive_attachments.attachment_block(file))
        for file in archive_attachments.list_attachments(found.pk, wanted)
        if file.turn_number is None and file.added_by_id == person(request).pk
    ]
    return JsonResponse({"files": files})


@post_by_person
def upload_files(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Keep files that are to be sent; says of each what became of it."""
    found, _ = get_session_for(request, uuid, to=WRITE)
    files: Sequence[UploadedFile[Any]] = request.FILES.getlist("files")
    if resource := storable(request.POST.get("resource", "")):
        try:
            files = read_resource(found, resource)
        except LoomError as error:  # said of it, as of a file
            reason = translate(error.message)
            refusal = {"name": resource, "code": error.code, "reason": reason}
            return JsonResponse({"files": [refusal]})
    if not files:
        raise Rejected("The request contains no file.", code="no_file")
    results = save_files(found.pk, files, user_pk=person(request).pk)
    status = StorageFull.status if lacks_space(results) else 200
    for result in results:
        if "reason" in result:
            result["reason"] = translate(result["reason"])
    return JsonResponse({"files": results}, status=status)


@login_required
@require_safe
def attachment(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """The file as it came, to be saved."""
    return serve_attachment(request, _attachment_for(request, uuid, attachment))


@login_required
@require_safe
def attachment_thumb(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    """A small picture of an image, made here."""
    return serve_thumbnail(request, _attachment_for(request, uuid, attachment))


def serve_attachment(request: HttpRequest, found: Attachment) -> HttpResponse:
    """The content, to be saved."""
    response = _serve_blob(request, found.digest, "application/octet-stream")
    if response.status_code == 200:
        data = response.content
        response["Content-Type"] = found.media_type
        if found.kind == TEXT:
            # A text is a plain one, whatever it calls itself: the browser runs none.
            is_utf8 = decode_text(data) is not None and not data.startswith(OTHER_MARKS)
            plain = "text/plain; charset=utf-8"
            response["Content-Type"] = plain if is_utf8 else "application/octet-stream"
    header = content_disposition_header(as_attachment=True, filename=found.name)
    response["Content-Disposition"] = header or "attachment"
    return response


def serve_thumbnail(request: HttpRequest, found: Attachment) -> HttpResponse:
    """The small picture. Raises NotFound where there is none."""
    if not found.thumbnail:
        raise NotFound(HIDDEN)
    return _serve_blob(request, found.thumbnail, "image/webp")


@post_by_person
def attachment_remove(request: HttpRequest, uuid: UUID, attachment: UUID) -> HttpResponse:
    found, _ = get_session_for(request, uuid, to=WRITE)
    try:
        archive_attachments.remove_attachment(found.pk, attachment, user_pk=person(request).pk)
    except LoomError as error:
        answer = {"code": error.code, "reason": translate(error.message)}
        return JsonResponse(answer, status=error.status)
    return HttpResponse(status=204)


def _attachment_for(request: HttpRequest, uuid: UUID, attachment: UUID) -> Attachment:
    found, _ = get_session_for(request, uuid)
    return archive_attachments.get_attachment(found.pk, attachment, user_pk=person(request).pk)


def _serve_blob(request: HttpRequest, digest: str, media_type: str) -> HttpResponse:
    # A content never changes, so its digest says whether the browser has it.
    etag = f'"{digest}"'
    response = get_conditional_response(request, etag=etag)
    if not isinstance(response, HttpResponse):
        response = HttpResponse(read_blob(digest), content_type=media_type)
    response["ETag"] = etag
    response["Cache-Control"] = CACHED
    guard_content(request, response)
    return response


def guard_content(request: HttpRequest, response: HttpResponseBase) -> None:
    """For what somebody else has made: the browser runs nothing of it, and takes it for nothing
    else."""
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = POLICY
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    # Images and PDF are compressed already, and it would take seconds.
    request.META.pop("HTTP_ACCEPT_ENCODING", None)


# Long files that are written while the browser reads them.

PIECE_CHARS = 64_000


async def in_threads(pieces: Iterator[str]) -> AsyncIterator[bytes]:
    """The text in pieces of about this size: the event loop does not wait for the
    database, and no more than one piece is held."""
    while piece := await sync_to_async(_read_piece)(pieces):
        yield piece


def _read_piece(pieces: Iterator[str]) -> bytes:
    taken: list[str] = []
    size = 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= PIECE_CHARS:
            break
    return "".join(taken).encode("utf-8", "backslashreplace")
