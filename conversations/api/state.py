"""API operations of the session state, of changed files, and of summaries."""

import pathlib
from typing import Any, Literal
from urllib.parse import quote, unquote
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from ninja import Field, Path, Query, Router, Schema

from conversations.access import (
    access_context_of,
    get_session_for,
    list_kept_for,
    permission_for_memory,
)
from conversations.accounts.tokens import READ, WRITE
from conversations.agent.undo.disk import FileState, real_path, stored_path
from conversations.agent.undo.records import ChangeScope, recent_reverts
from conversations.agent.undo.review import review_changes
from conversations.archive.context import require_compaction
from conversations.archive.session_records import SessionRecord, read_session_record
from conversations.archive.session_state import StateView, read_state_view
from conversations.domain.errors import Rejected
from conversations.domain.keyset import PageCursor, parse_page_cursor
from conversations.web.memory import save_item

from .auth import caller_of, needs, open_for_writing
from .fields import Moment, Page, Text
from .sessions import SessionOut

router = Router(tags=["Session state and files"])


class StateItemOut(Schema):
    """An item of the session state.

    ``kind`` is file, decision, error, focus, rule, preference or value. ``actions`` are the actions
    that are possible now. ``original`` is the text before a person reworded it. ``struck_by`` is
    person, model, or later, which means that a statement of the turn ``replaced_in`` replaced the
    item. ``times`` is how often it was said.
    """

    id: str
    kind: str
    text: str
    turn: int
    action: str
    source: str
    is_pinned: bool
    original: str
    struck_by: str
    replaced_in: int
    times: int
    actions: list[str]


class KeptItemOut(Schema):
    """A rule or a preference of the workspace memory. ``id`` is its id there."""

    id: UUID
    kind: str
    text: str
    scope: str


class StateOut(Schema):
    """The session state after the turn ``turn`` and the event ``seq``.

    ``kept`` has the items that the workspace memory adds.
    """

    turn: int
    seq: int
    items: list[StateItemOut]
    struck: list[StateItemOut]
    kept: list[KeptItemOut]


class StateEditIn(Schema):
    """A change of an item. ``text`` is the new wording of an ``edit``."""

    action: Literal["pin", "unpin", "edit", "strike", "unstrike"]
    text: Text = ""


@router.get("/state", auth=needs(READ), response=StateOut, url_name="session_state")
def get_session_state(request: HttpRequest, uuid: Path[UUID]) -> StateView:
    """Return the items of the session state that are in force, and items that were struck."""
    session, _ = get_session_for(request, uuid)
    view = read_state_view(session.pk)
    # If the caller is a reviewer, this records the reading of the kept items' sessions.
    list_kept_for(request, session, view.kept)
    return view


@router.post("/state/{item}", auth=needs(WRITE), response=StateOut, url_name="session_state_item")
async def edit_session_state(
    request: HttpRequest, uuid: Path[UUID], item: str, wanted: StateEditIn
) -> StateView:
    """Pin, unpin, reword (`edit`), strike or restore (`unstrike`) one item.

    Nothing changes if the item is in that state already.
    """
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await runtime.edit_state(
        session, actor_pk=user_pk, action=wanted.action, item=item, text=wanted.text
    )
    return await sync_to_async(read_state_view)(session.pk)


class KeepIn(Schema):
    """The ``scope``: all sessions of the workspace (owners only), or your own (``person``)."""

    scope: Literal["person", "workspace"]


@router.post(
    "/state/{item}/keep", auth=needs(WRITE), response=StateOut, url_name="session_state_keep"
)
def keep_state_item(request: HttpRequest, uuid: Path[UUID], item: str, wanted: KeepIn) -> StateView:
    """Save a rule or a preference of the session in the workspace memory."""
    context = access_context_of(request)
    session, _ = get_session_for(context, uuid, to=permission_for_memory(wanted.scope))
    save_item(session, item, scope=wanted.scope, context=context, by=caller_of(request).user)
    return read_state_view(session.pk)


# Files that tool calls changed, and reverting them.


class FileStateOut(Schema):
    """The state of a file, folder or link (``kind``).

    ``size`` is in bytes, and ``mode`` has the permissions.
    """

    kind: str
    size: int | None
    mode: int


class ChangedFileOut(Schema):
    """A file that tool calls changed.

    ``before`` is its state before the first change, and ``after`` its state after the last one.
    Null means that the file did not exist. ``state`` is ``back`` if the file is as it was before.
    Otherwise ``state`` says whether a revert is possible: ``ready``, or ``conflict`` or ``lost``
    with a ``reason``.
    """

    path: str
    before: FileStateOut | None
    after: FileStateOut | None
    state: str
    reason: str
    moved_from: str
    moved_to: str
    calls: list[UUID]


class RevertOut(Schema):
    """A revert, which can be reverted itself."""

    uuid: UUID
    at: Moment
    by: str
    files: int
    folders: int


class ChangesOut(Page[ChangedFileOut]):
    """A page of changed files, ordered by path.

    ``total`` is the number of files on all pages, and ``standing`` is the number of files that were
    not reverted. ``reverts`` has the latest reverts.
    """

    total: int
    standing: int
    reverts: list[RevertOut]


class ChangeFilters(Schema):
    """Filters of changed files: at most one of ``run`` and ``call``.

    Without a filter, the files are those of the whole session.
    """

    run: UUID | None = None
    call: UUID | None = None
    cursor: str = Field("", max_length=20_000, description="`next` from another page.")


class RevertIn(Schema):
    """Exactly one of ``all``, ``run``, ``call`` and ``revert`` says which changes are reverted.

    ``replace`` names files that are reverted even if they were changed since.
    """

    all: bool = False
    run: UUID | None = None
    call: UUID | None = None
    revert: UUID | None = None
    replace: list[Text] = Field(default_factory=list, max_length=1000)


class RevertedOut(Schema):
    """The result of a revert. ``left`` has the files that were not reverted, with the reason."""

    back: list[str]
    left: dict[str, str]


@router.get("/changes", auth=needs(READ), response=ChangesOut, url_name="changes")
def list_changed_files(
    request: HttpRequest, uuid: Path[UUID], wanted: Query[ChangeFilters]
) -> dict[str, Any]:
    """List the files that tool calls have changed, and their state."""
    session, _ = get_session_for(request, uuid)
    scope = _scope_of(run=wanted.run, call=wanted.call)
    after = real_path(unquote(parse_page_cursor(wanted.cursor).place)) if wanted.cursor else ""
    review = review_changes(
        session.pk, pathlib.Path(session.workspace.root), scope=scope, after=after
    )
    following = quote(stored_path(review.following)) if review.following else ""
    return {
        "items": [
            {
                "path": stored_path(file.path),
                "before": _as_file_state(file.before),
                "after": _as_file_state(file.after),
                "state": file.plan.state if file.plan else "back",
                "reason": file.plan.reason if file.plan else "",
                "moved_from": stored_path(file.moved_from),
                "moved_to": stored_path(file.moved_to),
                "calls": list(dict.fromkeys(change.call for change in file.changes if change.call)),
            }
            for file in review.files
        ],
        "next": str(PageCursor(following)) if following else None,
        "total": review.total,
        "standing": review.standing,
        "reverts": recent_reverts(session.pk),
    }


@router.post("/changes/revert", auth=needs(WRITE), response=RevertedOut, url_name="changes_revert")
async def revert_changes(
    request: HttpRequest, uuid: Path[UUID], wanted: RevertIn
) -> dict[str, Any]:
    """Revert files to their state before a call, a run, the session, or a revert."""
    session, runtime, user_pk = await open_for_writing(request, uuid)
    scope = _scope_of(run=wanted.run, call=wanted.call, revert=wanted.revert)
    if wanted.all is (scope != ChangeScope()):
        raise Rejected("Name what to restore.", code="nothing_to_revert")
    result = await runtime.revert_files(
        session,
        pathlib.Path(session.workspace.root),
        scope=scope,
        actor_pk=user_pk,
        replace={real_path(path) for path in wanted.replace},
    )
    return {
        "back": [stored_path(path) for path in result.back],
        "left": {stored_path(path): reason for path, reason in result.left.items()},
    }


def _scope_of(**ids: UUID | None) -> ChangeScope:
    chosen = {name: uuid for name, uuid in ids.items() if uuid is not None}
    if len(chosen) > 1:
        raise Rejected(f"Give exactly one of {', '.join(ids)}.", code="bad_scope")
    return ChangeScope(**chosen)


def _as_file_state(state: FileState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    kind = "file"
    if state.is_folder:
        kind = "folder"
    elif state.is_link:
        kind = "link"
    return {"kind": kind, "size": state.size, "mode": state.permissions}


# Summaries that replace older turns in the window.


@router.post(
    "/summaries/{uuid:summary}/undo",
    auth=needs(WRITE),
    response=SessionOut,
    url_name="summary_undo",
)
async def undo_summary(request: HttpRequest, uuid: Path[UUID], summary: UUID) -> SessionRecord:
    """Undo a summary, so that the model is given the turns themselves again.

    The row of the summary has the type `compaction`, and contains the summary's uuid.
    """
    session, runtime, user_pk = await open_for_writing(request, uuid)
    await sync_to_async(require_compaction)(session, summary)
    await runtime.undo_compaction(session, uuid=summary, user_pk=user_pk)
    return await sync_to_async(read_session_record)(session.pk)
