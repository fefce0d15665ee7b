"""Pages of the audit log: the whole log for administrators, and the readers of one session."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django import forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import (
    access_context_of,
    get_session_for,
    person,
    require_administrator,
    sees_readers,
)
from conversations.archive.audit import readings_of
from conversations.archive.rights import is_reviewer
from conversations.archive.workspaces import workspace_names
from conversations.domain.audit import ACTS, READINGS
from conversations.domain.errors import NotPermitted, Rejected
from conversations.domain.keyset import parse_optional_number
from conversations.web.addresses import query_of
from conversations.web.attachments import stream_download
from conversations.web.forms import date_field, midnight
from conversations.web.panel import render_panel

from .audit_log import ACT_ANY, FORMATS, READ_ANY, AuditLogFilter, export_log, read_log_page
from .forms import SessionFilterForm


def _named(actions: Mapping[str, str]) -> tuple[tuple[str, Any], ...]:
    return tuple((action, capfirst(gettext_lazy(did))) for action, did in actions.items())


ACTIONS = (
    ("", gettext_lazy("Everything")),
    (READ_ANY, gettext_lazy("All readings")),
    (ACT_ANY, gettext_lazy("All decisions")),
    (gettext_lazy("Readings"), _named(READINGS)),
    (gettext_lazy("Decisions"), _named(ACTS)),
)


class AuditForm(SessionFilterForm):
    action = forms.ChoiceField(choices=ACTIONS, required=False, label=gettext_lazy("Entry type"))
    workspace = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Workspace"),
        error_messages={"invalid_choice": gettext_lazy("This workspace does not exist.")},
    )
    session = forms.UUIDField(
        required=False,
        label=gettext_lazy("Session"),
        error_messages={"invalid": gettext_lazy("Enter the UUID of a session.")},
    )
    after = date_field(gettext_lazy("From"))
    before = date_field(gettext_lazy("Before"))

    field_order = ("person", "action", "workspace", "session", "after", "before")

    def __init__(self, data: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        plain = {"autocomplete": "off", "spellcheck": "false"}
        self.fields["person"].widget.attrs |= {"placeholder": gettext("Account")}
        self.fields["session"].widget.attrs |= plain | {"placeholder": "uuid"}

    @property
    def log_filter(self) -> AuditLogFilter:
        """The filters of a valid form. Days begin at midnight UTC."""
        criteria: dict[str, Any] = dict(self.cleaned_data)
        for name in ("after", "before"):
            criteria[name] = midnight(criteria[name])
        return AuditLogFilter(**criteria)

    def address(self, **changes: Any) -> str:
        """Return the query string of the filters with ``changes``, without empty values."""
        values = {name: self[name].value() for name in self.fields} | changes
        return query_of(values)

    @property
    def has_filters(self) -> bool:
        return any(self[name].value() for name in self.fields)


PAGE_ENTRIES = 50


@login_required
@require_safe
def session_readers(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show who has read the session, to its owner and to people who manage its workspace."""
    session, access = get_session_for(request, uuid)
    if not sees_readers(session, access, person(request)):
        raise NotPermitted("Only owners of a session or its workspace can see who read it.")
    before = parse_optional_number(request.GET.get("before"))
    readings = readings_of(session.uuid)
    if before is not None:
        readings = readings.filter(number__lt=before)
    entries = list(readings[: PAGE_ENTRIES + 1])
    context = {
        "heading": gettext("Access log"),
        "entries": entries[:PAGE_ENTRIES],
        "older": entries[PAGE_ENTRIES - 1].number if len(entries) > PAGE_ENTRIES else None,
        "is_first": before is None,
    }
    return render_panel(request, session, access, "readers", context)


@login_required
@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """Show a page of the log. ``cursor`` is the number before which the page begins."""
    require_administrator(request)
    form = _form(request)
    context: dict[str, Any] = {"form": form, "page": None, "can_review": False}
    if form.is_valid():
        before = parse_optional_number(request.GET.get("cursor"))
        page = read_log_page(form.log_filter, before=before, limit=PAGE_ENTRIES)
        context |= {
            "page": page,
            "older": form.address(cursor=page.cursor) if page.cursor else "",
            "is_first": before is None,
            "exports": {name: form.address(format=name) for name in FORMATS},
            "can_review": is_reviewer(person(request)),
        }
    return render(request, "audit.html", context, status=400 if form.errors else 200)


@require_safe
async def audit_export(request: HttpRequest) -> HttpResponseBase:
    """Export the matching entries in ``format``. The export is recorded in the log."""
    user = await request.auser()
    if not isinstance(user, User):
        return redirect_to_login(request.get_full_path())
    context = access_context_of(request, user)
    await sync_to_async(require_administrator)(context)
    format = request.GET.get("format", "jsonl")
    form = await sync_to_async(_form)(request)
    if format not in FORMATS or not await sync_to_async(form.is_valid)():
        raise Rejected("This export format is not supported.", code="bad_export")
    pieces: Iterator[str] = iter(())
    if request.method != "HEAD":
        pieces = await sync_to_async(export_log)(
            form.log_filter, format=format, origin=context.origin
        )
    name = f"audit-{timezone.now():%Y-%m-%d}.{format}"
    return stream_download(pieces, name=name, content_type=FORMATS[format])


def _form(request: HttpRequest) -> AuditForm:
    return AuditForm(request.GET.dict(), workspaces=workspace_names())
