"""The page of a workspace's memory: rules and preferences for its sessions."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_safe

from conversations.access import (
    AccessContext,
    access_context_of,
    get_memory_entry_for,
    get_memory_for,
    get_workspace_for,
    has_personal_memory,
    permission_for_memory,
    person,
    post_by_person,
)
from conversations.archive.memory import (
    MAX_ENTRIES,
    add_entry,
    change_entry,
    remove_entry,
)
from conversations.archive.session_state import find_statement
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.session_state import FOR_PERSON, FOR_WORKSPACE, MAX_ITEM_CHARS
from conversations.models import Session
from conversations.rendering.messages import translate

HINTS = {
    FOR_WORKSPACE: gettext_lazy(
        "Included in every session here, also in those of channels and programs."
    ),
    FOR_PERSON: gettext_lazy(
        "Included in your own sessions here, where other members can read it."
    ),
}


def save_item(session: Session, item: str, *, scope: str, context: AccessContext, by: User) -> None:
    """Copy a rule or a preference of the session to its workspace's memory.

    The caller has checked that the person may change that memory. Raise Rejected, or Conflict if
    the memory is full.
    """
    statement = find_statement(session.pk, item)
    if scope == FOR_PERSON and not has_personal_memory(session, by):
        raise Rejected("This session does not belong to you.", code="memory_scope_unknown")
    add_entry(
        session.workspace,
        kind=statement.kind,
        text=statement.text,
        scope=scope,
        by=by,
        origin=context.origin,
        source=(session, statement),
    )


@login_required
@require_safe
def workspace_memory(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the entries of the workspace's memory and the person's own."""
    return _page(request, slug)


@post_by_person
def workspace_memory_add(request: HttpRequest, slug: str) -> HttpResponse:
    scope = request.POST.get("scope", "")
    workspace, _ = get_workspace_for(request, slug, to=permission_for_memory(scope))
    kind, text = request.POST.get("kind", ""), request.POST.get("text", "")
    try:
        add_entry(
            workspace,
            kind=kind,
            text=text,
            scope=scope,
            by=person(request),
            origin=access_context_of(request).origin,
        )
    except Rejected as error:
        return _page(request, slug, error=error, draft={"kind": kind, "text": text, "scope": scope})
    messages.success(request, gettext("Added."))
    return redirect("workspace_memory", slug=slug)


@post_by_person
def workspace_memory_edit(request: HttpRequest, slug: str, entry: UUID) -> HttpResponse:
    _, memory_entry = get_memory_entry_for(request, slug, entry)
    try:
        change_entry(
            memory_entry,
            text=request.POST.get("text", ""),
            origin=access_context_of(request).origin,
        )
    except Rejected as error:
        return _page(request, slug, error=error)
    messages.success(request, gettext("Saved."))
    return redirect("workspace_memory", slug=slug)


@post_by_person
def workspace_memory_remove(request: HttpRequest, slug: str, entry: UUID) -> HttpResponse:
    _, memory_entry = get_memory_entry_for(request, slug, entry)
    remove_entry(memory_entry, origin=access_context_of(request).origin)
    messages.success(request, gettext("Removed."))
    return redirect("workspace_memory", slug=slug)


def _page(
    request: HttpRequest,
    slug: str,
    *,
    error: LoomError | None = None,
    draft: dict[str, str] | None = None,
) -> HttpResponse:
    workspace, access, entries = get_memory_for(request, slug)
    may_change = {FOR_WORKSPACE: access.can_manage, FOR_PERSON: access.can_write}
    names = {FOR_WORKSPACE: gettext("For everyone"), FOR_PERSON: gettext("For you")}
    groups = [
        _group(scope, name, entries, may_change=may_change[scope]) for scope, name in names.items()
    ]
    context = {
        "workspace": {"name": workspace.name, "slug": workspace.slug},
        # A reviewer who is not a member has no entries of their own here.
        "groups": [group for group in groups if access.can_write or group["scope"] != FOR_PERSON],
        "scopes": [group for group in groups if group["may_change"]],
        "longest": MAX_ITEM_CHARS,
        "error": translate(error.message) if error else "",
        "draft": draft or {},
    }
    return render(request, "workspace_memory.html", context, status=error.status if error else 200)


def _group(scope: str, name: str, entries: list[Any], *, may_change: bool) -> dict[str, Any]:
    is_own = scope == FOR_PERSON
    return {
        "scope": scope,
        "name": name,
        "hint": HINTS[scope],
        "may_change": may_change,
        "entries": [entry for entry in entries if (entry.owner_id is not None) is is_own],
        "most": MAX_ENTRIES,
    }
