"""API operations for exporting a session and for imports."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from ninja import Field, File, Form, Query, Router, Schema, Status, UploadedFile

from conversations.access import get_session_for, get_workspace_for
from conversations.accounts.tokens import READ, WRITE
from conversations.api.auth import caller_of, needs
from conversations.api.fields import Page
from conversations.api.idempotency import idempotent
from conversations.archive.rights import WRITE as TO_WRITE

from . import service
from .export import FORMATS as EXPORT_FORMATS
from .models import STATES, STOPPED, Import
from .reports import read_notes
from .views import export_response

router = Router()

TEXT = {"type": "string"}

Format = Literal["auto", "loom", "loom-sqlite", "claude-code", "chatgpt", "claude", "openwebui"]


class ExportFilters(Schema):
    format: str = Field("jsonl", json_schema_extra={"enum": list(EXPORT_FORMATS)})


class ImportReport(Schema):
    """A message about an entry. ``place`` is the position of the entry in the file."""

    place: str
    text: str


class ImportOut(Schema):
    """An upload that is imported as sessions of its sender.

    ``format`` is ``auto`` until the format has been detected. ``error`` says why a failed import
    ended. ``counts`` has the numbers of entries by result. ``reports_left`` is the number of
    reports that were not stored."""

    uuid: UUID
    page: str = Field(description="Where people see it.")
    workspace: str
    name: str
    size: int
    format: str
    state: str = Field(json_schema_extra={"enum": list(STATES)})
    error: str
    counts: dict[str, int]
    reports_left: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class ImportWithReports(ImportOut):
    reports: list[ImportReport]


@router.get(
    "/sessions/{uuid:uuid}/export",
    auth=needs(READ),
    url_name="export",
    tags=["Files"],
    openapi_extra={
        "responses": {
            200: {
                "description": "The session as a file, streamed.",
                "content": {
                    format.content_type.partition(";")[0]: {
                        "schema": {} if "/json" in format.content_type else TEXT
                    }
                    for format in EXPORT_FORMATS.values()
                },
            }
        }
    },
)
async def export(
    request: HttpRequest, uuid: UUID, wanted: Query[ExportFilters]
) -> HttpResponseBase:
    """Download the whole session as it is now."""
    session, _ = await sync_to_async(get_session_for)(request, uuid)
    return export_response(session, wanted.format)


@router.post(
    "/workspaces/{slug:slug}/imports",
    auth=needs(WRITE),
    response={201: ImportOut},
    url_name="workspace_imports",
    tags=["Imports"],
)
@idempotent(in_one=False)
def start_import(
    request: HttpRequest,
    response: HttpResponse,
    slug: str,
    file: Annotated[UploadedFile, File(...)],
    format: Form[Format] = "auto",
) -> Status[dict[str, Any]]:
    """Import a file of another program into the workspace.

    The file is an export, a database, or an archive (ZIP) of such files. The server imports it in
    the background. The ``Location`` header has the address of the import."""
    service.require_imports()
    workspace, _ = get_workspace_for(request, slug, to=TO_WRITE)
    service.check_size(file)
    new_import = service.save_upload(workspace, caller_of(request).user, file, format=format)
    response["Location"] = reverse("api:import", args=[new_import.uuid])
    return Status(201, _as_import(new_import))


@router.get(
    "/imports", auth=needs(READ), response=Page[ImportOut], url_name="imports", tags=["Imports"]
)
def list_imports(request: HttpRequest) -> dict[str, Any]:
    """List the caller's imports, newest first. Older ended imports are deleted."""
    service.require_imports()
    max_imports = service.MAX_KEPT_IMPORTS + service.MAX_OPEN_IMPORTS
    imports = service.list_imports(caller_of(request).user, limit=max_imports)
    return {"items": [_as_import(row) for row in imports]}


@router.get(
    "/imports/{uuid:import_uuid}",
    auth=needs(READ),
    response=ImportWithReports,
    url_name="import",
    tags=["Imports"],
)
def get_import(request: HttpRequest, import_uuid: UUID) -> dict[str, Any]:
    """Return the progress or the result of an import, with its reports."""
    row = service.get_import(caller_of(request).user, import_uuid)
    notes = read_notes(row.report)
    reports = [{"place": str(place), "text": str(text)} for place, text in notes]
    return _as_import(row) | {"reports": reports}


@router.post(
    "/imports/{uuid:import_uuid}/stop",
    auth=needs(WRITE),
    response=ImportOut,
    url_name="import_stop",
    tags=["Imports"],
)
def stop_import(request: HttpRequest, import_uuid: UUID) -> dict[str, Any]:
    """Stop an import.

    Sessions that were imported stay. An import that has ended does not change."""
    row = service.get_import(caller_of(request).user, import_uuid)
    service.end_import(row, STOPPED)
    row.refresh_from_db()
    return _as_import(row)


def _as_import(row: Import) -> dict[str, Any]:
    plain_names = ("uuid", "name", "size", "format", "state", "error")
    time_names = ("created_at", "started_at", "finished_at")
    return {name: getattr(row, name) for name in (*plain_names, *time_names)} | {
        "page": reverse("import_one", args=[row.uuid]),
        "workspace": row.workspace.slug,
        "counts": json.loads(row.counts),
        "reports_left": row.report_left,
    }
