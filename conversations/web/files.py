"""The files of a workspace: browsing, showing, downloading and uploading them.

An address names a path below the workspace's folder, and optionally the digest of a version that a
session has made of the file. The content of a file is only shown in a frame without an origin, or
sent as a download.
"""

import os
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.middleware.csp import get_nonce
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.csp import CSP
from django.utils.http import content_disposition_header
from django.utils.translation import gettext
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.csp import csp_override
from django.views.decorators.http import require_safe

from conversations.access import (
    Access,
    access_context_of,
    get_folder_for,
    get_session_for,
    person,
    post_by_person,
)
from conversations.agent.files import confined, paths
from conversations.agent.files.confined import content_digest
from conversations.agent.files.paths import FILE, FOLDER, FileStatus, MissingFile, shown
from conversations.agent.files.searching import find_files
from conversations.agent.files.text_files import read_text
from conversations.agent.files.walking import FolderWalk
from conversations.agent.undo.disk import real_path, stored_path
from conversations.agent.undo.records import ChangeScope, read_changes
from conversations.agent.undo.versions import (
    REMOVED,
    FileVersion,
    digest_now,
    list_versions,
    read_version,
    session_marks,
)
from conversations.archive import audit
from conversations.archive.rights import WRITE
from conversations.archive.storage import require_space, translate_storage_error
from conversations.domain.audit import UPLOADED
from conversations.domain.errors import LoomError, NotFound, Rejected, StorageFull, TooLarge
from conversations.domain.messages import join_messages, say, say_number
from conversations.domain.text import number_text, storable
from conversations.feature import links_at
from conversations.models import Session, Workspace
from conversations.rendering.messages import translate
from conversations.rendering.previews import HTML, KIND_LABELS, PDF, preview_kind, render_preview
from conversations.rendering.source_text import show_hidden, size_text
from conversations.rendering.tool_rows import tool_word

from .addresses import query_of
from .attachments import guard_content
from .forms import check_uuid
from .pages import is_fragment

MAX_ENTRIES = 1_000  # of a folder
MAX_FOUND_FILES = 50  # that a search by a part of their path shows
MAX_LISTING_SECONDS = 3.0
PIECE_BYTES = 256 * 1024

# Policies of the preview frame. It executes nothing, has no origin and loads nothing, so it
# contains the style sheets of the product. The second policy is for a file that has its own styles.
PREVIEW_POLICY: dict[str, Any] = {
    "sandbox": ["allow-popups", "allow-popups-to-escape-sandbox"],
    "default-src": [CSP.NONE],
    "style-src": [CSP.NONCE],
    "img-src": ["data:"],
    "form-action": [CSP.NONE],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.SELF],
}
PREVIEW_STYLES = ("app.css", "rich.css", "tools.css", "preview.css")
PAGE_POLICY = PREVIEW_POLICY | {
    "sandbox": True,
    "style-src": [CSP.UNSAFE_INLINE],
    "font-src": ["data:"],
}


class FileAddress(NamedTuple):
    """A file of a workspace.

    ``path`` is the path as the file system has it. ``version`` is a digest, or empty for the
    current file.
    """

    workspace: Workspace
    path: str
    version: str = ""

    @property
    def name(self) -> str:
        """The name as a page can show it, with U+FFFD in a name that is not UTF-8."""
        return storable(self.path.rpartition("/")[2]) or self.workspace.name

    @property
    def root(self) -> Path:
        return Path(self.workspace.root)

    def url(self, view: str = "workspace_files", **extra: str) -> str:
        path = stored_path(self.path) if self.path != "." else ""
        query = query_of({"path": path, "version": self.version} | extra)
        address = reverse(view, args=[self.workspace.slug])
        return f"{address}?{query}" if query else address


def read_address(request: HttpRequest, workspace: Workspace) -> FileAddress:
    path = real_path(storable(request.GET.get("path", ""))).strip("/") or "."
    return FileAddress(workspace, path, request.GET.get("version", ""))


@login_required
@require_safe
def workspace_files(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a folder or a file.

    ``session`` names a session whose changes are marked. ``q`` is a part of the path of a file to
    find.
    """
    workspace, access = get_folder_for(request, slug)
    return _show(request, read_address(request, workspace), access)


def _show(
    request: HttpRequest,
    file: FileAddress,
    access: Access,
    *,
    refused: LoomError | None = None,
) -> HttpResponse:
    status = confined.stat_file(file.root, file.path)
    if status and status.kind == FILE:  # shown under the name of the file that a link leads to
        return _show_file(request, file._replace(path=status.path), status, access)
    if file.version:
        return _show_file(request, file, None, access)
    session = _marked_session(request, file.workspace)
    marks = session_marks(session.pk) if session else {}
    if status is None and not any(_is_below(path, file.path) for path in marks):
        return _show_file(request, file, None, access)
    query = storable(request.GET.get("q", ""))[:200].strip()
    note, rows = _find(file, query) if query else _list(file, marks, session)
    parent = file.path.rpartition("/")[0]
    context = {
        "at": file,
        "crumbs": _crumbs(file, session),
        "up": FileAddress(file.workspace, parent or ".").url(**_marking(session)),
        "is_top": file.path == ".",
        "folder": stored_path(file.path) if status and file.path != "." else "",
        "rows": rows,
        "query": query,
        "note": note,
        "session": session,
        "unmarked_url": file.url(),
        "can_upload": access.can_write and bool(settings.LOOM.max_upload_bytes) and not query,
        "upload_url": file.url("workspace_file_upload"),
        "most": size_text(settings.LOOM.max_upload_bytes),
        "max_bytes": settings.LOOM.max_upload_bytes,
        "refused": refused,
    }
    return render(request, "files.html", context, status=refused.status if refused else 200)


def _marked_session(request: HttpRequest, workspace: Workspace) -> Session | None:
    text = request.GET.get("session", "")
    if not text:
        return None
    session, _ = get_session_for(request, check_uuid(text, "session"))
    if session.workspace_id != workspace.pk:
        raise NotFound("This session belongs to another workspace.")
    return session


def _marking(session: Session | None) -> dict[str, str]:
    return {"session": str(session.uuid)} if session else {}


def _crumbs(file: FileAddress, session: Session | None = None) -> list[dict[str, str]]:
    """Return links to the folders that contain the file, from the workspace's own on."""
    parts = [] if file.path == "." else file.path.split("/")[:-1]
    folders = [".", *("/".join(parts[: end + 1]) for end in range(len(parts)))]
    return [
        {
            "name": show_hidden(storable(folder.rpartition("/")[2]))
            if folder != "."
            else gettext("Files"),
            "url": FileAddress(file.workspace, folder).url(**_marking(session)),
        }
        for folder in folders
    ]


def _is_below(path: str, folder: str) -> bool:
    return folder == "." or path.startswith(f"{folder}/")


def _list(
    folder: FileAddress, marks: dict[str, str], session: Session | None
) -> tuple[str, list[dict[str, Any]]]:
    """Return a note about the list, and its rows with files that the session removed.

    Folders come first.
    """
    deadline = time.monotonic() + MAX_LISTING_SECONDS
    walk = FolderWalk(
        root=folder.root, path=folder.path, with_ignored=True, deadline=deadline, max_depth=1
    )
    entries: list[FileStatus] = []
    try:
        entries = list(walk.entries())
    except MissingFile:
        if folder.path == ".":
            raise
    prefix = "" if folder.path == "." else f"{folder.path}/"
    inside = {
        path.removeprefix(prefix): mark
        for path, mark in marks.items()
        if _is_below(path, folder.path)
    }
    below = Counter(path.partition("/")[0] for path in inside if "/" in path)
    entries.sort(key=lambda entry: (entry.kind != FOLDER, entry.path.lower()))
    rows = []
    for entry in entries[:MAX_ENTRIES]:
        name = entry.path.rpartition("/")[2]
        row = _row(FileAddress(folder.workspace, f"{prefix}{name}"), entry, session)
        if entry.kind == FOLDER:
            count = below[name]
            mark = say_number("%(count)s changed", "%(count)s changed", count) if count else ""
        else:
            mark = inside.get(name, "")
        rows.append(row | {"mark": mark})
    present_names = {entry.path.rpartition("/")[2] for entry in entries}
    rows += [
        {
            "name": name,
            "name_html": show_hidden(storable(name)),
            "url": FileAddress(folder.workspace, f"{prefix}{name}").url(**_marking(session)),
            "kind": FILE if name in inside else FOLDER,
            "mark": REMOVED,
        }
        for name in sorted({path.partition("/")[0] for path in inside} - present_names)
    ]
    note = ""
    if len(entries) > MAX_ENTRIES or walk.is_late:
        note = gettext("Only part of this folder is shown. Find other files by name.")
        if not walk.is_late:
            note = gettext(
                "Only %(shown)s of %(count)s entries of this folder are shown. Find other "
                "files by name."
            ) % {"shown": number_text(MAX_ENTRIES), "count": number_text(len(entries))}
    return note, rows


def _find(folder: FileAddress, query: str) -> tuple[str, list[dict[str, Any]]]:
    matches, is_cut = find_files(
        folder.root, query, path=folder.path, with_ignored=True, limit=MAX_FOUND_FILES
    )
    rows = []
    for path in matches:
        with suppress(Rejected):  # it was replaced meanwhile
            entry = confined.stat_file(folder.root, path, follow_last=False)
            if entry is not None:
                row = _row(FileAddress(folder.workspace, path), entry, None)
                rows.append(row | {"name_html": show_hidden(storable(path))})
    note = gettext("There are too many files to search. Choose a folder.") if is_cut else ""
    if len(matches) == MAX_FOUND_FILES:
        note = gettext("The best %(count)s matches.") % {"count": MAX_FOUND_FILES}
    return note, rows


def _row(file: FileAddress, entry: FileStatus, session: Session | None) -> dict[str, Any]:
    return {
        "name": file.name,
        "name_html": show_hidden(file.name),
        "url": file.url(**(_marking(session) if entry.kind == FOLDER else {})),
        "kind": entry.kind,
        "size": size_text(entry.size) if entry.kind == FILE else "",
        "at": datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC),
    }


def _show_file(
    request: HttpRequest, file: FileAddress, status: FileStatus | None, access: Access
) -> HttpResponse:
    loom = settings.LOOM
    versions, is_cut = list_versions(file.workspace.pk, file.path)
    current = ""
    if status and versions:
        current = digest_now(file.root, file.path, limit=loom.snapshot_max_file_bytes)
    if status is None and not versions:
        raise NotFound("%(path)s does not exist in this workspace.", path=shown(file.path))
    opened, note = None, ""
    if status or file.version:
        try:
            opened = read_file(file)
        except LoomError as error:
            note = translate(error.message)
    else:
        note = gettext("This file has been removed. Its versions are still available.")
    context: dict[str, Any] = {
        "at": file,
        "name_html": show_hidden(file.name),
        "crumbs": _crumbs(file),
        "found": status,
        "file": opened,
        "note": note,
        "versions": [_show_version(file, version, current) for version in versions],
        "is_cut": is_cut,
        "is_current": not file.version or file.version == current,
        "current_url": file._replace(version="").url() if status else "",
    }
    if opened is not None:
        context |= {
            **describe_file(request, opened),
            "preview_url": file.url("workspace_file_preview", page=str(page_number(request))),
            "download_url": file.url("workspace_file_download"),
            "links": list(
                links_at(
                    "workspace.file",
                    request,
                    slug=file.workspace.slug,
                    path=stored_path(file.path),
                    version=file.version,
                    can_write=access.can_write,
                )
            ),
        }
    return render(request, "file.html", context, status=200 if opened or not note else 404)


def _show_version(file: FileAddress, version: FileVersion, current: str) -> dict[str, Any]:
    digest = version.state.digest if version.state else ""
    return {
        "it": version,
        "word": translate(tool_word(version.call_name)[0])
        if version.call_name
        else gettext("Undo"),
        "url": file._replace(version=digest).url() if digest else "",
        "size": size_text(version.state.size) if version.state else "",
        "is_shown": bool(digest) and digest == (file.version or current),
        "is_current": bool(digest) and digest == current,
    }


@login_required
@require_safe
def tool_call_file(request: HttpRequest, uuid: UUID, call: UUID) -> HttpResponse:
    """Redirect to the file that a call has changed, as the call left it.

    If the call did not change exactly one file, or the person may not see the folder, redirect to
    the changes of the call.
    """
    session, access = get_session_for(request, uuid)
    changed = [
        (change.path, state.digest)
        for change in read_changes(session.pk, ChangeScope(call=call))
        if (state := change.after or change.before) is not None and state.is_file
    ]
    if access.role is None or len(changed) != 1:
        return redirect(reverse("session_changes", args=[uuid], query={"call": call}))
    return redirect(FileAddress(session.workspace, *changed[0]).url())


class OpenedFile(NamedTuple):
    """The beginning of a file, as far as a preview shows it. ``text`` is None if it is not text."""

    data: bytes
    text: str | None
    size: int
    kind: str

    @property
    def is_cut(self) -> bool:
        return self.size > len(self.data)


def read_file(file: FileAddress) -> OpenedFile:
    """Return the beginning of a file or of a version of it.

    Raise NotFound, and Rejected if the path is not a file or leads out of the folder.
    """
    if file.version:
        return open_content(file.name, read_content(file))
    limit = settings.LOOM.max_preview_bytes
    content = confined.read_bytes(file.root, file.path, limit=limit)
    return open_content(file.name, content.data, size=content.found.size)


def open_content(name: str, data: bytes, *, size: int | None = None) -> OpenedFile:
    """Return an opened file. ``size`` is its size, or None if ``data`` is all of it."""
    size, data = len(data) if size is None else size, data[: settings.LOOM.max_preview_bytes]
    text = read_text(data, is_cut=size > len(data))
    kind = preview_kind(name, data, is_text=text is not None)
    return OpenedFile(data, text.text if text else None, size, kind)


def describe_file(request: HttpRequest, file: OpenedFile) -> dict[str, Any]:
    """Return what a page says about a file beside its preview (``parts/preview.html``)."""
    return {
        "kind": translate(KIND_LABELS[file.kind]),
        "size": size_text(file.size),
        "is_page": file.kind == HTML,
        "is_pdf": file.kind == PDF,
        "page": page_number(request),
    }


def read_content(file: FileAddress) -> bytes:
    """Return the whole content of a version, from the store or from the file if it is the same.

    Raise NotFound if neither has it.
    """
    try:
        return read_version(file.workspace.pk, file.path, file.version)
    except NotFound:
        limit = settings.LOOM.snapshot_max_file_bytes
        data = confined.read_bytes(file.root, file.path, limit=limit).data
        if content_digest(data) != file.version:
            raise NotFound("This version of the file is no longer stored.") from None
        return data


def read_whole(file: FileAddress) -> bytes:
    """Return the whole content of a file. Raise TooLarge, or the errors of ``read_file``."""
    if file.version:
        return read_content(file)
    limit = settings.LOOM.snapshot_max_file_bytes
    content = confined.read_bytes(file.root, file.path, limit=limit)
    if content.is_cut:
        raise TooLarge(
            "%(name)s is too large. The limit is %(limit)s.",
            name=shown(file.name),
            limit=size_text(limit),
        )
    return content.data


def page_number(request: HttpRequest) -> int:
    text = request.GET.get("page", "")[:6]
    return max(1, int(text)) if text.isascii() and text.isdigit() else 1


@login_required
@require_safe
@xframe_options_sameorigin
def workspace_file_preview(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Serve the preview of a file for the frame that shows it."""
    workspace, _ = get_folder_for(request, slug)
    address = read_address(request, workspace)
    file = read_file(address)
    return show_preview(request, address.name, file, first_page=page_number(request))


@cache
def preview_style() -> str:
    folder = Path(settings.BASE_DIR) / "static" / "css"
    return "\n".join((folder / name).read_text() for name in PREVIEW_STYLES)


def show_preview(
    request: HttpRequest, name: str, file: OpenedFile, *, first_page: int
) -> HttpResponse:
    preview = render_preview(name, file.data, file.text, is_cut=file.is_cut, first_page=first_page)

    @csp_override(PAGE_POLICY if preview.is_page else PREVIEW_POLICY)
    def respond(request: HttpRequest) -> HttpResponse:
        context = {
            "name": name,
            "preview": preview,
            "style": preview_style(),
            "nonce": get_nonce(request),
        }
        return render(request, "preview.html", context)

    response = respond(request)
    # The browser must not look up host names in links.
    response["X-DNS-Prefetch-Control"] = "off"
    response["Referrer-Policy"] = "no-referrer"
    response["X-Content-Type-Options"] = "nosniff"
    return response


@login_required
@require_safe
def workspace_file_download(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Serve the file as a download."""
    workspace, _ = get_folder_for(request, slug)
    file = read_address(request, workspace)
    if file.version:
        return serve_file(request, file.name, read_content(file))
    resolved = paths.find_place(file.root, file.path)
    with paths.guarded(file.path), paths.open_parent(resolved) as folder:
        descriptor = paths.open_regular(folder, resolved, file.path)
        size = os.fstat(descriptor).st_size
    response = StreamingHttpResponse(FileChunks(descriptor, size))
    response["Content-Length"] = str(size)
    return _to_be_saved(request, response, file.name)


class FileChunks:
    """An open file descriptor as the content of a response, which closes it.

    No more bytes are sent than the file had when it was opened, because the response's
    Content-Length says so.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self.close = weakref.finalize(self, os.close, descriptor)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = self._size
        while remaining > 0:
            size = min(remaining, PIECE_BYTES)
            piece = await sync_to_async(os.read)(self._descriptor, size)
            if not piece:
                # The end of the response would leave the client waiting for the rest. After an
                # error the server closes the connection.
                raise EOFError("The file was cut while it was sent.")
            remaining -= len(piece)
            yield piece


def serve_file(request: HttpRequest, name: str, data: bytes) -> HttpResponse:
    response = HttpResponse(data)
    _to_be_saved(request, response, name)
    return response


def _to_be_saved[T: HttpResponseBase](request: HttpRequest, response: T, name: str) -> T:
    response["Content-Type"] = "application/octet-stream"
    # Django leaves a line break at the end of the name in place, which a header must not contain.
    header = content_disposition_header(as_attachment=True, filename=name.rstrip("\n"))
    response["Content-Disposition"] = header or "attachment"
    response["Cache-Control"] = "private, no-store"
    guard_content(request, response)
    return response


@post_by_person
def workspace_file_upload(request: HttpRequest, slug: str) -> HttpResponse:
    """Save files in the folder ``path``. Existing files are replaced only with ``replace``."""
    workspace, access = get_folder_for(request, slug, to=WRITE)
    folder = read_address(request, workspace)
    try:
        names = _save_files(request, folder)
    except (Rejected, StorageFull) as error:
        status = confined.stat_file(folder.root, folder.path)
        if status is None or status.kind != FOLDER:
            raise
        return _show(request, folder, access, refused=error)
    messages.success(request, gettext("Uploaded: %(names)s.") % {"names": _name_all(names)})
    return HttpResponse(status=204) if is_fragment(request) else redirect(folder.url())


def _save_files(request: HttpRequest, folder: FileAddress) -> list[str]:
    """Write the files and return their names.

    Raise Rejected with the reasons if files were refused, and with the names of those written.
    """
    limit = settings.LOOM.max_upload_bytes
    if not limit:
        raise Rejected("Uploads are turned off on this server.", code="uploads_off")
    files = request.FILES.getlist("files")
    if not files:
        raise Rejected("Choose the files to upload.", code="no_file")
    size = sum(file.size or 0 for file in files)
    if size > limit:
        raise TooLarge(
            "These files are too large for one upload (%(size)s). The limit is %(limit)s.",
            code="upload_too_large",
            size=size_text(size),
            limit=size_text(limit),
        )
    require_space(say("Uploads"), folder.root)
    expect = None if "replace" in request.POST else confined.NO_FILE
    saved: list[str] = []
    refused: list[str] = []
    for file in files:
        name = file.name or ""
        path = name if folder.path == "." else f"{folder.path}/{name}"
        try:
            _write_file(folder.root, path, file.read(), expect)
        except (Rejected, OSError) as error:
            storage_error = translate_storage_error(error)
            if storage_error is not None:
                raise storage_error from error
            if not isinstance(error, Rejected):
                raise
            refused.append(error.message)
        else:
            saved.append(name)
    if saved:
        event = audit.AuditEvent(
            action=UPLOADED,
            workspace=folder.workspace.slug,
            metadata={"folder": stored_path(folder.path), "files": saved[:100]},
        )
        audit.record(access_context_of(request, person(request)).origin, event)
    if refused:
        if saved:
            refused.append(say("Uploaded: %(names)s.", names=_name_all(saved)))
        raise Rejected(join_messages(refused), code="upload_refused")
    return saved


def _name_all(names: list[str]) -> str:
    return ", ".join(map(shown, names))


def _write_file(root: Path, path: str, data: bytes, expect: str | None) -> None:
    if expect == confined.NO_FILE and confined.stat_file(root, path) is not None:
        raise Rejected(
            "%(path)s already exists. To replace it, select “Replace files of the same name”.",
            path=shown(path),
        )
    confined.replace_file(root, path, data, expect=expect)
