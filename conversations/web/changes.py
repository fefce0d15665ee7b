"""What a session has changed in its folder, file by file, and putting files back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from conversations.archive.file_changes import Scope
from conversations.archive.reverts import recent_reverts
from conversations.archive.rights import WRITE
from conversations.changes.revert import describe
from conversations.changes.review import review_changes
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.file_changes import real_path, stored_path
from conversations.models import Session
from conversations.rendering.tool_words import tool_word
from conversations.runtime.current import current_runtime

from .access import Access, get_session_for, sign_in_first, visit_of
from .changed_files import show_file
from .pages import is_fragment
from .panel import render_panel

SCOPES = ("run", "call", "revert")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScope:
    """Which changes a page shows: of a call, of an answer, or all."""

    scope: Scope
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        return {"run": "this answer", "call": "this call"}.get(next(iter(self.fields), ""), "")


@login_required
@require_safe
def session_changes(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """The files that were changed, by path; ``run`` or ``call`` narrows them down,
    ``after`` is the path after which the page begins."""
    found, access = get_session_for(request, uuid)
    return _changes(request, found, access, read_asked(request.GET))


@require_POST
async def session_changes_revert(request: HttpRequest, uuid: UUID) -> HttpResponseBase:
    """Put files back as they were before a ``call``, a ``run``, the session (``all``) or
    a ``revert``. ``replace`` names files that are put back though they were changed
    since."""
    user = await request.auser()
    if not user.is_authenticated:
        return sign_in_first(uuid=uuid)
    found, access = await sync_to_async(get_session_for)(visit_of(request, user), uuid, to=WRITE)
    asked = read_asked(request.POST)
    shown = ChangeScope(scope=Scope()) if asked.scope.revert else asked
    try:
        if not asked.fields and "all" not in request.POST:
            raise Rejected("Say what is to be put back.", code="nothing_to_revert")
        runtime = await current_runtime()
        done = await runtime.undo.revert(
            found,
            Path(found.workspace.root),
            scope=asked.scope,
            actor_pk=user.pk,
            replace={real_path(path) for path in request.POST.getlist("replace")},
        )
    except Rejected as error:
        return await sync_to_async(_changes)(request, found, access, shown, error=error)
    said = describe(asked.scope, done.back, done.left, folders=done.folders)
    if is_fragment(request):
        return await sync_to_async(_changes)(request, found, access, shown, said=said)
    messages.success(request, said)
    return redirect(_address(found, shown))


def read_asked(query: QueryDict) -> ChangeScope:
    """Raises Rejected for what is no uuid."""
    for name in SCOPES:
        if text := query.get(name, ""):
            try:
                return ChangeScope(scope=Scope(**{name: UUID(text)}), fields={name: text})
            except ValueError as error:
                raise Rejected(f"{name} is a uuid.", code="bad_uuid") from error
    return ChangeScope(scope=Scope())


def _changes(
    request: HttpRequest,
    found: Session,
    access: Access,
    asked: ChangeScope,
    *,
    said: str = "",
    error: LoomError | None = None,
) -> HttpResponse:
    root = Path(found.workspace.root)
    after = real_path(request.GET.get("after", ""))
    review = review_changes(found.pk, root, scope=asked.scope, after=after)
    following = {"after": stored_path(review.following)} if review.following else {}
    context: dict[str, Any] = {
        "heading": "Files changed",
        "asked": asked,
        "address": _address(found, asked),
        "all_url": reverse("session_changes", args=[found.uuid]),
        "revert_url": reverse("session_changes_revert", args=[found.uuid]),
        "review": review,
        "files": [show_file(root, file) for file in review.files],
        "calls": [{"it": call, "word": tool_word(call.name)[0]} for call in review.calls[:50]],
        "next_url": f"{_address(found, asked, **following)}" if following else "",
        "is_first": not after,
        "reverts": [] if asked.fields else recent_reverts(found.pk),
        "said": said,
        "error": error.message if error else "",
    }
    return render_panel(
        request, found, access, "changes", context, status=error.status if error else 200
    )


def _address(found: Session, asked: ChangeScope, **more: str) -> str:
    query = urlencode(asked.fields | more)
    return reverse("session_changes", args=[found.uuid]) + (f"?{query}" if query else "")
