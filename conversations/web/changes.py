"""What a session has changed in its folder, file by file, and putting files back."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from stat import filemode
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

from conversations.access import Access, get_session_for, sign_in_first, visit_of
from conversations.agent.files.executed_files import runs_itself
from conversations.agent.files.paths import shown
from conversations.agent.tools.file_edits import unified_diff
from conversations.agent.undo.disk import ROOT, FileState, digest_of, real_path, stored_path
from conversations.agent.undo.records import Scope, recent_reverts
from conversations.agent.undo.revert import LOST
from conversations.agent.undo.review import FileReview, content_of, review_changes
from conversations.archive.rights import WRITE
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.text import storable
from conversations.models import Session
from conversations.rendering.diffs import render_diff
from conversations.rendering.source_text import number_text, show_hidden
from conversations.rendering.tool_rows import changes_text
from conversations.rendering.tool_words import tool_word
from conversations.runtime.current import current_runtime

from .pages import is_fragment
from .panel import render_panel

# One changed file as the review shows it: what became of it, as a diff where it can be.


MOST_LINES, MOST_CHARS = 400, 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFileDiff:
    """A diff, or a sentence in its place."""

    html: str = ""
    left_out: str = ""
    changes: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCall:
    call: UUID | None
    word: str
    turn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """``name_html`` has nothing hidden in it, ``value`` names the file in a form, ``key``
    in the page: what is ticked and unfolded there stays with its file when the list
    changes. ``since`` is what somebody else made of it."""

    name_html: str
    value: str
    key: str
    facts: list[str]
    state: str
    reason: str
    diff: ChangedFileDiff
    since: ChangedFileDiff | None
    is_conflict: bool
    runs_itself: bool
    calls: list[ShownCall]


def show_file(root: Path, file: FileReview) -> ShownFile:
    plan = file.plan
    is_moved = bool(file.moved_from or file.moved_to)
    diff = ChangedFileDiff() if is_moved else _diff(root, file.path, file.before, file.after)
    return ShownFile(
        name_html=show_hidden(storable(file.path)) if file.path != ROOT else "the folder itself",
        value=stored_path(file.path),
        key=sha256(stored_path(file.path).encode()).hexdigest()[:16],
        facts=[*_facts(file), *([diff.changes] if diff.changes else [])],
        state=_state(file),
        reason=plan.reason if plan else "",
        diff=diff,
        since=_diff(root, file.path, file.after, plan.current)
        if plan and file.is_conflict
        else None,
        is_conflict=file.is_conflict,
        runs_itself=file.after is not None and runs_itself(file.path),
        calls=list(_calls(file)),
    )


def _state(file: FileReview) -> str:
    if file.is_back:
        return "undone"
    if file.is_conflict:
        return "changed since"
    return "cannot be put back" if file.plan and file.plan.state == LOST else ""


def _facts(file: FileReview) -> Iterator[str]:
    before, after = file.before, file.after
    there = after or before
    kind = "folder" if there and there.is_folder else ""
    if file.moved_to:
        yield f"moved to {shown(file.moved_to)}"
    elif file.moved_from:
        yield f"moved from {shown(file.moved_from)}"
    elif before is None:
        yield f"new {kind}".strip()
    elif after is None:
        yield f"{kind} removed".strip()
    elif before.permissions != after.permissions and before.digest == after.digest:
        yield f"{filemode(before.mode)} → {filemode(after.mode)}"


def _diff(
    root: Path, path: str, before: FileState | None, after: FileState | None
) -> ChangedFileDiff:
    if digest_of(before) == digest_of(after):
        return ChangedFileDiff()
    texts = []
    for state in (before, after):
        text, note = _text_of(root, path, state)
        if note:
            return ChangedFileDiff(note=note)
        texts.append(text)
    diff = unified_diff(path, *texts)
    rendered = render_diff(diff, most_lines=MOST_LINES, most_chars=MOST_CHARS)
    return ChangedFileDiff(
        html=rendered.html,
        left_out=number_text(rendered.left_out) if rendered.left_out else "",
        changes=changes_text(rendered.added, rendered.removed),
    )


def _text_of(root: Path, path: str, state: FileState | None) -> tuple[str | None, str]:
    """The text, or a sentence why there is none; neither where there is no file."""
    if state is None or state.is_folder:
        return None, ""
    if not (state.is_file or state.is_link):
        return None, "This is no file that can be shown."
    data = content_of(root, path, state)
    if data is None:
        return None, "This is too large to be shown."
    if b"\0" in data:
        return None, "This is not text."
    text = data.decode("utf-8", "replace")
    return (f"link to {text}" if state.is_link else text), ""


def _calls(file: FileReview) -> Iterator[ShownCall]:
    """Each call once."""
    seen = set()
    for change in file.changes:
        if change.call not in seen:
            seen.add(change.call)
            yield ShownCall(call=change.call, word=tool_word(change.call_name)[0], turn=change.turn)


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
            raise Rejected("Choose what to undo.", code="nothing_to_revert")
        runtime = await current_runtime()
        done = await runtime.revert_files(
            found,
            Path(found.workspace.root),
            scope=asked.scope,
            actor_pk=user.pk,
            replace={real_path(path) for path in request.POST.getlist("replace")},
        )
    except Rejected as error:
        return await sync_to_async(_changes)(request, found, access, shown, error=error)
    if is_fragment(request):
        return await sync_to_async(_changes)(request, found, access, shown, said=done.said)
    messages.success(request, done.said)
    return redirect(_address(found, shown))


def read_asked(query: QueryDict) -> ChangeScope:
    """Raises Rejected for what is no uuid."""
    for name in SCOPES:
        if text := query.get(name, ""):
            try:
                return ChangeScope(scope=Scope(**{name: UUID(text)}), fields={name: text})
            except ValueError as error:
                raise Rejected(f"{name} must be a UUID.", code="bad_uuid") from error
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
