"""Importing what other programs kept: upload a file, watch it become sessions.

The page answers without scripts; with them the state of an import is fetched again every
second until it is over.
"""

import json
from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.defaultfilters import filesizeformat
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import get_workspace_for, post_by_person
from conversations.archive.disk_space import require_space
from conversations.archive.rights import WRITE, writable_workspaces
from conversations.domain.attachments import clean_name
from conversations.domain.errors import Conflict, LoomError, NotFound, StorageFull

from . import service as archive
from .models import Import
from .running import AUTO, FORMATS
from .worker import import_path

FORMAT_NAMES = {
    AUTO: "Recognised by its content",
    "loom": "Loom Web (interchange file)",
    "loom-sqlite": "Loom (database)",
    "claude-code": "Claude Code",
    "chatgpt": "ChatGPT",
    "claude": "Claude.ai",
    "openwebui": "Open WebUI",
}

TOLD = {
    "sessions_added": "Sessions added",
    "sessions_extended": "Sessions extended",
    "sessions_unchanged": "Sessions that were there already",
    "turns_added": "Messages added",
    "turns_unchanged": "Messages that were there already",
    "attachments_added": "Files added",
    "skipped": "Entries that could not be read",
    "conflicts": "Entries that differ from what is there",
    "repaired": "Entries kept, but not as they are",
}
"""Of the counts those that say something to a person; without what is 0."""


class ImportForm(forms.Form):
    """What is imported, and where to."""

    workspace = forms.ChoiceField(
        label="Workspace",
        help_text="Its members can read what you import.",
        error_messages={
            "required": "Choose the workspace.",
            "invalid_choice": "Choose a workspace in which you can write.",
        },
    )
    file = forms.FileField(
        label="File",
        help_text="An export or database of another program, or an archive (ZIP) of such files.",
        error_messages={"required": "Choose a file.", "empty": "The file is empty."},
    )
    format = forms.ChoiceField(
        label="Format",
        choices=[(name, FORMAT_NAMES[name]) for name in (AUTO, *FORMATS)],
        error_messages={
            "required": "Choose what the file is.",
            "invalid_choice": "Choose what the file is.",
        },
    )

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        found = writable_workspaces(user).values_list("slug", "name")
        self.fields["workspace"].choices = list(found)  # type: ignore[attr-defined]

    def clean_file(self) -> "UploadedFile[Any]":
        file: UploadedFile[Any] = self.cleaned_data["file"]
        limit = settings.LOOM.max_import_bytes
        if (file.size or 0) > limit:
            size = filesizeformat(limit)
            raise forms.ValidationError(f"It is too large: at most {size} can be imported.")
        return file


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def imports(request: HttpRequest) -> HttpResponse:
    """The form, and one's imports so far."""
    if not settings.LOOM.max_import_bytes:
        raise NotFound("Nothing can be imported here.")
    user = _user(request)
    is_post = request.method == "POST"
    given = request.GET.get("workspace", "")
    initial = {"workspace": given, "format": AUTO}
    refused: LoomError | None = None
    form = ImportForm(user, *(request.POST, request.FILES) if is_post else (), initial=initial)
    if is_post and form.is_valid():
        try:
            made = _take(request, user, form.cleaned_data)
        except (Conflict, StorageFull) as error:
            form.add_error(None, error.message)
            refused = error
        else:
            return redirect("import_one", import_uuid=made.uuid)
    context = {"form": form, "imports": archive.list_imports(user)}
    status = 507 if isinstance(refused, StorageFull) else 400 if form.errors else 200
    return render(request, "imports/list.html", context, status=status)


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _take(request: HttpRequest, user: User, given: dict[str, Any]) -> Import:
    """Keep the file, then the import. Raises Conflict, and StorageFull while room is short."""
    workspace, _ = get_workspace_for(request, given["workspace"], to=WRITE)
    require_space("Imports")
    uuid, file = uuid4(), given["file"]
    path = import_path(settings.LOOM.data_dir, uuid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    try:
        with path.open("wb") as kept:
            for chunk in file.chunks():
                kept.write(chunk)
        return archive.add_import(
            workspace,
            user,
            uuid=uuid,
            name=clean_name(file.name or ""),
            size=file.size or 0,
            format=given["format"],
        )
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@login_required
@require_safe
def import_one(request: HttpRequest, import_uuid: UUID) -> HttpResponse:
    """How far one is, and what became of it; to htmx only that."""
    found = archive.get_import(_user(request), import_uuid)
    counts = json.loads(found.counts)
    context = {
        "import": found,
        "format": FORMAT_NAMES.get(found.format, found.format) if found.format != AUTO else "",
        "counts": [(words, counts[name]) for name, words in TOLD.items() if counts.get(name)],
        "report": json.loads(found.report),
    }
    is_part = request.headers.get("HX-Request") == "true"
    return render(request, "imports/one.html#state" if is_part else "imports/one.html", context)


@post_by_person
def import_stop(request: HttpRequest, import_uuid: UUID) -> HttpResponse:
    archive.stop_import(archive.get_import(_user(request), import_uuid))
    messages.success(request, "Stopped. What was imported stays.")
    return redirect("import_one", import_uuid=import_uuid)
