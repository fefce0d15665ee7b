"""How long a workspace's sessions are kept, and purging one of them."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import (
    Access,
    get_session_for,
    get_workspace_for,
    post_by_person,
    require_administrator,
    require_keeper,
    visit_of,
)
from conversations.archive.purge import digest_of_receipt, plan_purge
from conversations.archive.rights import MANAGE, WRITE
from conversations.archive.sessions import has_expired
from conversations.domain.errors import Conflict, NotPermitted, Rejected
from conversations.domain.text import load_json, storable
from conversations.models import PurgeOrder, Session, Workspace

from .forms import HoldForm, PoliciesForm, PurgeForm
from .holds import hold_session, hold_workspace, holds_on, list_holds, release_hold
from .orders import call_off_purge, change_policies, find_order, order_purge
from .receipts import get_receipt, list_receipts
from .service import grace

# Lists that are paged by the key of their last row.


MAX_NUMBER = 2**63 - 1


def read_cursor(request: HttpRequest) -> int | None:
    """The key before which a page begins; None for the first page, and for nonsense."""
    text = request.GET.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_NUMBER else None


# Holds, for administrators and reviewers. Nothing of what was said is shown here.


PAGE = 50


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def holds(request: HttpRequest) -> HttpResponse:
    """What is on hold now, and the form for another one; ``session`` fills that in."""
    require_keeper(request)
    is_sent = request.method == "POST"
    asked = {"what": request.GET.get("session", "")[:120]}
    form = HoldForm(request.POST) if is_sent else HoldForm(initial=asked)
    if form.is_valid() and _set(request, form):
        messages.success(request, "On hold. It cannot be permanently deleted.")
        return redirect("holds")
    before = read_cursor(request)
    found = list_holds(before=before, limit=PAGE + 1)
    context = {
        "form": form,
        "holds": found[:PAGE],
        "older": found[PAGE - 1].pk if len(found) > PAGE else None,
        "is_first": before is None,
    }
    return render(request, "retention/holds.html", context, status=400 if form.errors else 200)


def _set(request: HttpRequest, form: HoldForm) -> bool:
    what, reason = form.cleaned_data["what"], form.cleaned_data["reason"]
    origin = visit_of(request).origin
    try:
        if isinstance(what, Session):
            hold_session(what, origin=origin, reason=reason)
        else:
            hold_workspace(what, origin=origin, reason=reason)
    except Rejected as error:
        form.add_error("reason", error.message)
        return False
    return True


@post_by_person
def hold_release(request: HttpRequest, pk: int) -> HttpResponse:
    require_keeper(request)
    try:
        release_hold(pk, origin=visit_of(request).origin)
    except Conflict as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "Released.")
    return redirect("holds")


# Receipts of purged sessions, for administrators.


@login_required
@require_safe
def receipts(request: HttpRequest) -> HttpResponse:
    """The latest first; ``q`` is the uuid of a session, a workspace or an owner."""
    require_administrator(request)
    query = storable(request.GET.get("q", "")).strip()[:150]
    before = read_cursor(request)
    found = list_receipts(query=query, before=before, limit=PAGE + 1)
    context = {
        "receipts": found[:PAGE],
        "query": query,
        "older": found[PAGE - 1].pk if len(found) > PAGE else None,
        "is_first": before is None,
    }
    return render(request, "retention/receipts.html", context)


@login_required
@require_safe
def receipt(request: HttpRequest, receipt: UUID) -> HttpResponse:
    """One receipt with everything in it."""
    require_administrator(request)
    found = get_receipt(receipt)
    context = {
        "receipt": found,
        "counts": load_json(found.counts, default={}).items(),
        "is_whole": found.digest == digest_of_receipt(found),
    }
    return render(request, "retention/receipt.html", context)


FIELDS = ("expire_after_hours", "retention_days", "members_may_purge", "uses_cold_storage")


def policies_form(workspace: Workspace) -> PoliciesForm:
    """For the card of the workspace's settings."""
    initial = {name: getattr(workspace, name) for name in FIELDS}
    return PoliciesForm(workspace=workspace, initial=initial, auto_id="id_retention_%s")


@post_by_person
def workspace_retention(request: HttpRequest, slug: str) -> HttpResponse:
    found, _ = get_workspace_for(request, slug, to=MANAGE)
    form = PoliciesForm(request.POST, workspace=found)
    if form.is_valid():
        change_policies(found, origin=visit_of(request).origin, **form.policies)
        messages.success(request, "Saved.")
    else:
        messages.error(request, "Hours and days must be positive integers or empty.")
    return redirect("workspace_settings", slug=slug)


def may_purge(session: Session, access: Access, user: User) -> bool:
    """Owners of the workspace; others sessions of their own, where it allows that."""
    is_own = session.owner_id == user.pk and access.can_write
    return access.can_manage or (is_own and session.workspace.members_may_purge)


def may_call_off(session: Session, access: Access, user: User, order: PurgeOrder) -> bool:
    """Who may order it; what the policy has ordered, the session's owner too."""
    is_own = session.owner_id == user.pk and access.can_write
    return may_purge(session, access, user) or (is_own and order.by_policy)


def closing_of(session: Session, access: Access, user: User) -> dict[str, Any]:
    """How a session is closed, and what this person can do about it, for its page. A
    query only for what is archived."""
    is_archived = session.archived_at is not None
    order = find_order(session) if is_archived else None
    expired = has_expired(session.expires_at)
    return {
        "archived": is_archived,
        "expired": expired,
        "closed": is_archived or expired,
        "can_purge": may_purge(session, access, user),
        "purge_due": order.due_at if order else None,
        "purge_reason": order.reason if order else "",
        "can_call_off": order is not None and may_call_off(session, access, user, order),
    }


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def session_purge(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """What a purge would take; and the form that orders it."""
    session = _purgeable(request, uuid)
    form = PurgeForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            order_purge(
                session,
                origin=visit_of(request).origin,
                reason=form.cleaned_data["reason"],
                now=timezone.now(),
                grace=grace(),
            )
        except Conflict as error:
            messages.error(request, error.message)
            return redirect("session_purge", uuid=uuid)
        except Rejected as error:
            form.add_error("reason", error.message)
        else:
            return redirect("session", uuid=uuid)
    return _purge_page(request, session, form)


def _purgeable(request: HttpRequest, uuid: UUID) -> Session:
    session, access = get_session_for(request, uuid, to=WRITE)
    user = request.user
    assert isinstance(user, User)
    if not may_purge(session, access, user):
        raise NotPermitted("Only owners of this workspace can permanently delete its sessions.")
    return session


def _purge_page(request: HttpRequest, session: Session, form: PurgeForm) -> HttpResponse:
    context = {
        "session": session,
        "plan": plan_purge(session),
        "order": find_order(session),
        "holds": list(holds_on(session)),
        "grace": grace(),
        "due_at": timezone.now() + grace(),
        "keeps_copy": session.workspace.uses_cold_storage,
        "form": form,
    }
    return render(request, "retention/purge.html", context, status=400 if form.errors else 200)


@post_by_person
def session_purge_call_off(request: HttpRequest, uuid: UUID) -> HttpResponse:
    session, access = get_session_for(request, uuid, to=WRITE)
    user = request.user
    assert isinstance(user, User)
    order = find_order(session)
    if order is not None and not may_call_off(session, access, user, order):
        raise NotPermitted("Only owners of this workspace can cancel this deletion.")
    try:
        call_off_purge(session, origin=visit_of(request).origin, now=timezone.now())
    except Conflict as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "The deletion is cancelled.")
    return redirect("session", uuid=uuid)
