"""Versions of a workspace's files that sessions made, and the files that a session changed."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet

from conversations.archive.blobs import read_blob
from conversations.domain.errors import NotFound
from conversations.models import FileChange
from conversations.models.tools import PATH_HEAD_CHARS, PathHead

from . import disk
from .disk import FileState, stored_path
from .records import ChangeScope, read_changes, states_of
from .revert import group_by_path

MAX_VERSIONS = 100
"""The newest versions of a file that are listed."""

NEW, CHANGED, REMOVED = "new", "changed", "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """A version of a file that a call or an undo made.

    ``state`` is None if the file was removed. ``is_first`` marks the file as it was before any
    session changed it."""

    state: FileState | None
    at: datetime
    session: UUID
    title: str
    call_name: str
    turn: int | None
    is_first: bool = False


def list_versions(workspace_pk: int, path: str) -> tuple[list[FileVersion], bool]:
    """Return the versions, newest first, and whether there are more.

    If there are no more, the last version is the file as it was before any session changed it."""
    rows = list(
        changes_of_path(workspace_pk, path)
        .annotate(
            uuid=F("session__uuid"),
            title=F("session__title"),
            call_name=F("call__name"),
            turn=F("call__turn_number"),
        )
        .order_by("-pk")[: MAX_VERSIONS + 1]
    )
    versions: list[FileVersion] = []
    before: FileState | None = None
    for row in rows[:MAX_VERSIONS]:
        states = states_of(row)
        about: dict[str, Any] = {
            "at": row.done_at,
            "session": row.uuid,
            "title": row.title,
            "call_name": row.call_name or "",
            "turn": row.turn,
        }
        versions.append(FileVersion(state=states["after"], **about))
        before = states["before"]
    is_cut = len(rows) > MAX_VERSIONS
    if before is not None and not is_cut:
        versions.append(FileVersion(state=before, is_first=True, **about))
    return [v for v in versions if v.state is None or v.state.is_file], is_cut


def read_version(workspace_pk: int, path: str, digest: str) -> bytes:
    """Return a content that a session wrote to the file, or replaced.

    Raise NotFound if the file had no such content, or if it is not stored."""
    named = changes_of_path(workspace_pk, path).filter(Q(before=digest) | Q(after=digest))
    if not digest or not named.exists():
        raise NotFound("This file has no such version.")
    return read_blob(digest)


def changes_of_path(workspace_pk: int, path: str) -> QuerySet[FileChange]:
    """Return the changes of the file that have happened, in any session of the workspace."""
    stored = stored_path(path)
    # These conditions make SQLite use the index on the path. It would otherwise go through all
    # sessions of the workspace; a sum is not indexed. An equality would put the path into the
    # index's expression, and the expression would not match the index any more.
    rows = FileChange.objects.annotate(
        path_head=PathHead("path"), of_workspace=F("session__workspace") + 0
    )
    rows = rows.filter(path_head=stored[:PATH_HEAD_CHARS], path__gte=stored, path__lte=stored)
    return rows.filter(of_workspace=workspace_pk, done_at__isnull=False)


def session_marks(session_pk: int) -> dict[str, str]:
    """Return NEW, CHANGED or REMOVED for each file that differs from its state before the session.

    Changes that were undone do not count."""
    changes = (c for c in read_changes(session_pk, ChangeScope()) if c.reverted_by is None)
    marks = {}
    for path, path_changes in group_by_path(changes).items():
        before, after = path_changes[0].before, path_changes[-1].after
        states = [state for state in (before, after) if state is not None]
        if not disk.same_state(before, after) and not any(state.is_folder for state in states):
            if after is None:
                marks[path] = REMOVED
            elif before is None:
                marks[path] = NEW
            else:
                marks[path] = CHANGED
    return marks


def digest_now(root: Path, path: str, *, limit: int) -> str:
    """Return the file's current digest, or an empty string if it does not exist or is too large."""
    state = disk.read_state(root, path, limit=limit)
    return state.digest if state is not None and state.is_file and state.is_read else ""
