"""The pages for exporting sessions and for importing files.

The pages work without scripts. With scripts, the page of an import fetches its state every second
until the import has ended.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from conversations.access import (
    access_context_of,
    get_session_for,
    get_workspace_for,
    person,
    post_by_person,
    sign_in_first,
)
from conversations.archive.rights import WRITE, writable_workspaces
from conversations.domain.audit import EXPORT
from conversations.domain.errors import Conflict, LoomError, Rejected, StorageFull
from conversations.models import Session
from conversations.rendering.messages import translate
from conversations.web.attachments import stream_download
from conversations.web.bulk import read_chosen
from conversations.web.errors import refusal_as_message

from . import service
from .export import FORMATS as EXPORT_FORMATS
from .export import ExportFormat
from .models import STOPPED
from .pipeline import AUTO, FORMATS
from .reports import read_error, read_notes

MAX_NAME_CHARS = 60


@require_safe
async def session_export(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """Download the whole session as it is now, in the format of the parameter ``format``."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(uuid=uuid)
    context = replace(access_context_of(request, user), action=EXPORT)
    session, _ = await sync_to_async(get_session_for)(context, uuid)
    format_name = request.GET.get("format", "markdown")
    return export_response(session, format_name, is_head=request.method == "HEAD")


def export_response(
    session: Session, format_name: str, *, is_head: bool = False
) -> HttpResponseBase:
    """Return the session's file as a streamed response. Raise Rejected for an unknown format."""
    format = EXPORT_FORMATS.get(format_name)
    if format is None:
        raise Rejected(
            "The format must be one of %(formats)s.",
            code="bad_format",
            formats=", ".join(EXPORT_FORMATS),
        )
    pieces = iter(()) if is_head else format.write(session)
    # Letters, digits and hyphens are valid in file names on every system.
    words = slugify(session.title, allow_unicode=True)[:MAX_NAME_CHARS].strip("-_")
    return _stream_file(pieces, format, name=f"{words or 'session'}-{str(session.uuid)[:8]}")


def _stream_file(
    pieces: Iterator[str], format: ExportFormat, *, name: str
) -> StreamingHttpResponse:
    filename = f"{name}.{format.ending}"
    return stream_download(pieces, name=filename, content_type=format.content_type)


@require_POST
async def workspace_export(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Download the sessions chosen in the list as one file of JSON lines."""
    user = await request.auser()
    if not isinstance(user, User):
        return sign_in_first(slug=slug)
    context = replace(access_context_of(request, user), action=EXPORT)
    workspace, _ = await sync_to_async(get_workspace_for)(context, slug, to=WRITE)
    with refusal_as_message(request):
        chosen = await sync_to_async(read_chosen)(request, workspace)
        format = EXPORT_FORMATS["jsonl"]
        pieces = chain.from_iterable(format.write(session) for session in chosen)
        return _stream_file(pieces, format, name=f"{workspace.slug}-sessions")
    return redirect("workspace", slug=slug)


FORMAT_NAMES = {
    AUTO: gettext_lazy("Detect automatically"),
    "loom": gettext_lazy("Loom Web (interchange file)"),
    "loom-sqlite": gettext_lazy("Loom (database)"),
    "claude-code": "Claude Code",
    "chatgpt": "ChatGPT",
    "claude": "Claude.ai",
    "openwebui": "Open WebUI",
}

# The counts that an import's page shows, with their labels. Counts of 0 are not shown.
TOLD = {
    "sessions_added": gettext_lazy("Sessions added"),
    "sessions_extended": gettext_lazy("Sessions extended"),
    "sessions_unchanged": gettext_lazy("Sessions already present"),
    "turns_added": gettext_lazy("Turns added"),
    "turns_unchanged": gettext_lazy("Turns already present"),
    "attachments_added": gettext_lazy("Files added"),
    "skipped": gettext_lazy("Unreadable entries"),
    "conflicts": gettext_lazy("Entries that differ from existing ones"),
    "repaired": gettext_lazy("Entries imported with changes"),
}


class ImportForm(forms.Form):
    """The form for starting an import."""

    workspace = forms.ChoiceField(
        label=gettext_lazy("Workspace"),
        help_text=gettext_lazy("Members of this workspace can read what you import."),
        error_messages={
            "required": gettext_lazy("Choose a workspace."),
            "invalid_choice": gettext_lazy("Choose a workspace in which you can write."),
        },
    )
    file = forms.FileField(
        label=gettext_lazy("File"),
        help_text=gettext_lazy(
            "An export or database from another program, or a ZIP archive of such files."
        ),
        error_messages={
            "required": gettext_lazy("Choose a file."),
            "empty": gettext_lazy("The file is empty."),
        },
    )
    format = forms.ChoiceField(
        label=gettext_lazy("Format"),
        choices=[(name, FORMAT_NAMES[name]) for name in (AUTO, *FORMATS)],
        error_messages={
            "required": gettext_lazy("Choose a format."),
            "invalid_choice": gettext_lazy("Choose a format."),
        },
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = writable_workspaces(user).values_list("slug", "name")
        self.fields["workspace"].choices = list(choices)  # type: ignore[attr-defined]

    def clean_file(self) -> "UploadedFile[Any]":
        file: UploadedFile[Any] = self.cleaned_data["file"]
        try:
            service.check_size(file)
        except Rejected as error:
            raise forms.ValidationError(translate(error.message)) from error
        return file


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def imports(request: HttpRequest) -> HttpResponse:
    """Show the form and the person's imports; on POST, start an import."""
    service.require_imports()
    user = person(request)
    is_post = request.method == "POST"
    initial = {"workspace": request.GET.get("workspace", ""), "format": AUTO}
    refused: LoomError | None = None
    form = ImportForm(user, *(request.POST, request.FILES) if is_post else (), initial=initial)
    if is_post and form.is_valid():
        try:
            chosen = form.cleaned_data
            workspace, _ = get_workspace_for(request, chosen["workspace"], to=WRITE)
            new_import = service.save_upload(
                workspace, user, chosen["file"], format=chosen["format"]
            )
        except (Conflict, StorageFull) as error:
            form.add_error(None, translate(error.message))
            refused = error
        else:
            return redirect("import_one", import_uuid=new_import.uuid)
    context = {"form": form, "imports": service.list_imports(user)}
    status = 400 if form.errors else 200
    if isinstance(refused, StorageFull):
        status = refused.status
    return render(request, "imports/list.html", context, status=status)


@login_required
@require_safe
def import_one(request: HttpRequest, import_uuid: UUID) -> HttpResponse:
    """Show the progress or the result of an import. For htmx, render only the state."""
    row = service.get_import(person(request), import_uuid)
    counts = json.loads(row.counts)
    row.error = translate(read_error(row.report, row.error))
    notes = read_notes(row.report)
    context = {
        "import": row,
        "format": FORMAT_NAMES.get(row.format, row.format) if row.format != AUTO else "",
        "counts": [(words, counts[name]) for name, words in TOLD.items() if counts.get(name)],
        "report": [(translate(place), translate(text)) for place, text in notes],
    }
    is_part = request.headers.get("HX-Request") == "true"
    return render(request, "imports/one.html#state" if is_part else "imports/one.html", context)


@post_by_person
def import_stop(request: HttpRequest, import_uuid: UUID) -> HttpResponse:
    service.end_import(service.get_import(person(request), import_uuid), STOPPED)
    messages.success(request, gettext("Stopped. Everything imported so far stays."))
    return redirect("import_one", import_uuid=import_uuid)
