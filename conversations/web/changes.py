"""The files that a session has changed in its folder, and putting them back."""

from hashlib import sha256
from pathlib import Path
from stat import filemode
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from conversations.access import Access, get_session_for, post_to_session
from conversations.agent.files.executed_files import runs_itself
from conversations.agent.files.paths import shown
from conversations.agent.files.text_files import read_text
from conversations.agent.tools.file_edits import unified_diff
from conversations.agent.undo.disk import ROOT, FileState, digest_of, real_path, stored_path
from conversations.agent.undo.records import ChangeScope, recent_reverts
from conversations.agent.undo.revert import LOST
from conversations.agent.undo.review import FileReview, content_of, review_changes
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.messages import say
from conversations.domain.text import number_text, storable
from conversations.models import Session, Workspace
from conversations.rendering.diffs import render_diff
from conversations.rendering.messages import fill_marks, translate
from conversations.rendering.source_text import show_hidden
from conversations.rendering.tool_rows import changes_text, tool_word
from conversations.runtime.current import current_runtime

from .files import FileAddress
from .forms import check_uuid
from .pages import is_fragment
from .panel import render_panel

# A changed file in the review: what has happened to it, as a diff if that is possible.

MAX_DIFF_LINES, MAX_DIFF_CHARS = 400, 60_000
MIN_CLOSED_FILES = 4  # From this number of files on, their diffs are closed.


def show_file(workspace: Workspace, file: FileReview) -> dict[str, Any]:
    """Return the template data of a changed file.

    ``name_html`` makes hidden characters visible. ``value`` names the file in a form. ``key`` names
    it in the page, so that ticked boxes and open diffs stay with their file when the list changes.
    ``since`` is the diff of changes that somebody else made later.
    """
    root = Path(workspace.root)
    plan, before, after = file.plan, file.before, file.after
    is_moved = bool(file.moved_from or file.moved_to)
    diff = {} if is_moved else _diff(root, file.path, before, after)
    state = after or before
    is_folder = state is not None and state.is_folder
    fact = ""
    if file.moved_to:
        fact = gettext("moved to %(path)s") % {"path": shown(file.moved_to)}
    elif file.moved_from:
        fact = gettext("moved from %(path)s") % {"path": shown(file.moved_from)}
    elif before is None:
        fact = gettext("new folder") if is_folder else gettext("new")
    elif after is None:
        fact = gettext("folder removed") if is_folder else gettext("removed")
    elif before.permissions != after.permissions and before.digest == after.digest:
        fact = f"{filemode(before.mode)} → {filemode(after.mode)}"
    # The page's style depends on the English state.
    label = ""
    if file.is_back:
        label = say("undone")
    elif file.is_conflict:
        label = say("changed afterwards")
    elif plan and plan.state == LOST:
        label = say("cannot be undone")
    since = _diff(root, file.path, after, plan.current) if plan and file.is_conflict else {}
    calls: dict[Any, Any] = {}
    for change in file.changes:
        calls.setdefault(change.call, change)
    return {
        "name_html": show_hidden(storable(file.path))
        if file.path != ROOT
        else gettext("the folder itself"),
        "value": stored_path(file.path),
        "key": sha256(stored_path(file.path).encode()).hexdigest()[:16],
        "facts": [text for text in (fact, diff.get("recoded"), diff.get("changes")) if text],
        "state": label,
        "reason": translate(plan.reason) if plan else "",
        "diff": diff,
        "since": since,
        "is_conflict": file.is_conflict,
        "url": FileAddress(workspace, file.path, digest_of(state)).url()
        if state and state.is_file
        else "",
        "runs_itself": after is not None and runs_itself(file.path),
        "calls": [
            {
                "call": change.call,
                "word": translate(tool_word(change.call_name)[0]),
                "turn": change.turn,
            }
            for change in calls.values()
        ],
    }


def _diff(
    root: Path, path: str, before: FileState | None, after: FileState | None
) -> dict[str, str]:
    """Return a rendered diff, or a ``note`` instead of it."""
    if digest_of(before) == digest_of(after):
        return {}
    texts: list[str | None] = []
    forms: list[tuple[str, str]] = []
    for state in (before, after):
        if state is None or state.is_folder:
            texts.append(None)
            continue
        if not (state.is_file or state.is_link):
            return {"note": gettext("This file cannot be shown.")}
        data = content_of(root, path, state)
        if data is None:
            return {"note": gettext("This is too large to show.")}
        if state.is_link:
            texts.append(gettext("link to %(path)s") % {"path": data.decode("utf-8", "replace")})
            continue
        file = read_text(data)
        if file is None:
            return {"note": gettext("This is not text.")}
        texts.append(file.text)
        forms.append((file.encoding_name, file.newline_name))
    diff = unified_diff(path, *texts)
    rendered = render_diff(diff, most_lines=MAX_DIFF_LINES, most_chars=MAX_DIFF_CHARS)
    # Changes of the encoding or the line breaks, which a diff does not show.
    pairs = zip(*forms, strict=True) if len(forms) == 2 else ()
    recoded = [f"{translate(a)} → {translate(b)}" for a, b in pairs if a and b and a != b]
    return {
        "html": fill_marks(rendered.html),
        "recoded": ", ".join(recoded),
        "left_out": number_text(rendered.left_out) if rendered.left_out else "",
        "changes": changes_text(rendered.added, rendered.removed),
    }


SCOPES = ("run", "call", "revert")


@login_required
@require_safe
def session_changes(request: HttpRequest, uuid: UUID) -> HttpResponse:
    """Show the changed files by path.

    ``run`` or ``call`` selects the changes of one. ``after`` is the path before the page's first
    file.
    """
    session, access = get_session_for(request, uuid)
    return _changes(request, session, access, read_scope(request.GET))


@post_to_session
async def session_changes_revert(
    request: HttpRequest, session: Session, access: Access, user: User
) -> HttpResponse:
    """Put files back as they were before a ``call``, a ``run``, a ``revert`` or the session.

    The whole session is named by ``all``. ``replace`` names files to put back even though they were
    changed since.
    """
    scope = read_scope(request.POST)
    # The changes of a revert are shown among all changes.
    shown_scope = ChangeScope() if scope.revert else scope
    try:
        if scope == ChangeScope() and "all" not in request.POST:
            raise Rejected("Choose what to undo.", code="nothing_to_revert")
        runtime = await current_runtime()
        result = await runtime.revert_files(
            session,
            Path(session.workspace.root),
            scope=scope,
            actor_pk=user.pk,
            replace={real_path(path) for path in request.POST.getlist("replace")},
        )
    except Rejected as error:
        return await sync_to_async(_changes)(request, session, access, shown_scope, error=error)
    message = translate(result.said)
    if is_fragment(request):
        return await sync_to_async(_changes)(request, session, access, shown_scope, message=message)
    messages.success(request, message)
    return redirect(_address(session, shown_scope))


def read_scope(query: QueryDict) -> ChangeScope:
    """Return the scope in the query. Raise Rejected if its value is not a UUID."""
    for name in SCOPES:
        if text := query.get(name, ""):
            return ChangeScope(**{name: check_uuid(text, name)})
    return ChangeScope()


def _fields_of(scope: ChangeScope) -> dict[str, str]:
    chosen = {name: getattr(scope, name) for name in SCOPES}
    return {name: str(uuid) for name, uuid in chosen.items() if uuid}


def _changes(
    request: HttpRequest,
    session: Session,
    access: Access,
    scope: ChangeScope,
    *,
    message: str = "",
    error: LoomError | None = None,
) -> HttpResponse:
    workspace, fields = session.workspace, _fields_of(scope)
    after = real_path(request.GET.get("after", ""))
    review = review_changes(session.pk, Path(workspace.root), scope=scope, after=after)
    following = stored_path(review.following) if review.following else ""
    scope_name = next((name for name in ("run", "call") if name in fields), "")
    context: dict[str, Any] = {
        "heading": gettext("Files changed"),
        "asked": {"fields": fields, "what": scope_name},
        "address": _address(session, scope),
        "all_url": reverse("session_changes", args=[session.uuid]),
        # Reviewers may read transcripts but not folders.
        "files_url": FileAddress(workspace, ".").url(session=str(session.uuid))
        if access.role
        else "",
        "revert_url": reverse("session_changes_revert", args=[session.uuid]),
        "review": review,
        # First the files that differ now, then those that were put back and are as before.
        "files": [show_file(workspace, file) for file in review.files if not file.is_back],
        "is_short": len(review.files) < MIN_CLOSED_FILES,
        "put_back": [show_file(workspace, file) for file in review.files if file.is_back],
        "calls": [
            {"it": call, "word": translate(tool_word(call["name"])[0])}
            for call in review.calls[:50]
        ],
        "next_url": _address(session, scope, after=following) if following else "",
        "is_first": not after,
        "reverts": [] if fields else recent_reverts(session.pk),
        "said": message,
        "error": translate(error.message) if error else "",
    }
    status = error.status if error else 200
    return render_panel(request, session, access, "changes", context, status=status)


def _address(session: Session, scope: ChangeScope, **query: str) -> str:
    return reverse("session_changes", args=[session.uuid], query=_fields_of(scope) | query)
