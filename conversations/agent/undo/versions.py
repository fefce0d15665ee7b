"""What sessions have made of the files of a workspace: the versions of one, and which files of a
folder a session has changed."""

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
"""Of a file that are listed, the newest."""

NEW, CHANGED, REMOVED = "new", "changed", "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """What a call, or an undo, has made of a file: ``state`` None, it was removed. ``is_first``:
    the file as it was before any session changed it."""

    state: FileState | None
    at: datetime
    session: UUID
    title: str
    call_name: str
    turn: int | None
    is_first: bool = False


def list_versions(workspace_pk: int, path: str) -> tuple[list[FileVersion], bool]:
    """The newest first, and whether there are more; else the last is the file as it was before."""
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
    """The content that a session has put in the file's place, or replaced there. Raises
    NotFound where none has, or it is not kept."""
    named = changes_of_path(workspace_pk, path).filter(Q(before=digest) | Q(after=digest))
    if not digest or not named.exists():
        raise NotFound("This file has no such version.")
    return read_blob(digest)


def changes_of_path(workspace_pk: int, path: str) -> QuerySet[FileChange]:
    """Those that have happened to the file, in any session of the workspace."""
    stored = stored_path(path)
    # SQLite would rather go through all sessions of the workspace: as a sum it has no index. And
    # with an equation it would put the path into the index's expression, which then fits no more.
    rows = FileChange.objects.annotate(
        path_head=PathHead("path"), of_workspace=F("session__workspace") + 0
    )
    rows = rows.filter(path_head=stored[:PATH_HEAD_CHARS], path__gte=stored, path__lte=stored)
    return rows.filter(of_workspace=workspace_pk, done_at__isnull=False)


def session_marks(session_pk: int) -> dict[str, str]:
    """Of each file that differs from what it was before the session: whether it is NEW, CHANGED
    or REMOVED by it. What was put back does not count."""
    changes = (c for c in read_changes(session_pk, ChangeScope()) if c.reverted_by is None)
    marks = {}
    for path, of in group_by_path(changes).items():
        before, after = of[0].before, of[-1].after
        states = [state for state in (before, after) if state is not None]
        if not disk.same_state(before, after) and not any(state.is_folder for state in states):
            marks[path] = REMOVED if after is None else NEW if before is None else CHANGED
    return marks


def digest_now(root: Path, path: str, *, limit: int) -> str:
    """The digest of what is there now; empty for nothing, or for what is too large."""
    state = disk.read_state(root, path, limit=limit)
    return state.digest if state is not None and state.is_file and state.is_read else ""
