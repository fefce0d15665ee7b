"""The changes of a session, file by file, and the current state of each file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from conversations.archive.blobs import read_blob
from conversations.domain.errors import NotFound

from . import disk
from .disk import FileState
from .records import ChangeScope, StoredChange, paths_of_others, read_changes
from .revert import BACK, CONFLICT, FilePlan, group_by_path, judge_file

PAGE_FILES = 30
MAX_COMPARED_BYTES = 300_000  # Larger files are not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReview:
    """The changes of one file.

    ``before`` is the state before the first change, and ``after`` the state after the last one.
    ``plan`` says what a revert would do; it is None if all changes were undone. If the content was
    only moved, ``moved_from`` or ``moved_to`` is the other name."""

    path: str
    changes: Sequence[StoredChange]
    plan: FilePlan | None
    moved_from: str = ""
    moved_to: str = ""

    @property
    def before(self) -> FileState | None:
        return self.changes[0].before

    @property
    def after(self) -> FileState | None:
        return self.changes[-1].after

    @property
    def is_conflict(self) -> bool:
        return self.plan is not None and self.plan.state == CONFLICT

    @property
    def is_back(self) -> bool:
        return self.plan is None or self.plan.state == BACK


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReview:
    """A page of changed files.

    ``total`` counts all files. ``passing`` counts the files that were created and removed again, or
    have their old content again, and ``standing`` the files with changes that were not undone.
    ``following`` is the path after which the next page begins, or empty if there is none. ``calls``
    has a dict for each call that changed files, newest first, with the number of files that it
    changed and the number that were not undone."""

    files: Sequence[FileReview]
    total: int
    passing: int
    standing: int
    following: str
    calls: Sequence[dict[str, Any]]


def review_changes(session_pk: int, root: Path, *, scope: ChangeScope, after: str) -> ChangeReview:
    """Return the files that the changes in the scope concern, by path, starting after ``after``.

    Reads the database, and the page's files in the folder."""
    changes = read_changes(session_pk, scope)
    standing = group_by_path(change for change in changes if change.reverted_by is None)
    grouped = group_by_path(changes) | standing
    # The sorted paths, without files whose state is the same before and after, and without folders
    # of which another entry is shown.
    differing = [
        path
        for path, path_changes in sorted(grouped.items())
        if not disk.same_state(path_changes[0].before, path_changes[-1].after)
    ]
    folders = {folder for path in differing for folder in disk.folders_of(path)}
    shown_paths = [path for path in differing if path not in folders]
    page = [path for path in shown_paths if path > after][: PAGE_FILES + 1]
    files = page[:PAGE_FILES]
    others: dict[str, UUID] = {}
    if concerned := [c for path in files for c in standing.get(path, ())]:
        since = min(change.started_at for change in concerned)
        others = paths_of_others(session_pk, paths={c.path for c in concerned}, since=since)
    moves = _moves(grouped)
    by_call: dict[UUID, list[StoredChange]] = {}
    for change in changes:
        if change.call is not None:
            by_call.setdefault(change.call, []).append(change)
    back = {target: source for source, target in moves.items()}
    return ChangeReview(
        files=[
            FileReview(
                path=path,
                changes=grouped[path],
                plan=judge_file(root, path, grouped[path], others=others)
                if path in standing
                else None,
                moved_from=back.get(path, ""),
                moved_to=moves.get(path, ""),
            )
            for path in files
        ],
        total=len(shown_paths),
        passing=sum(disk.same_state(c[0].before, c[-1].after) for c in grouped.values()),
        standing=len(standing),
        following=files[-1] if len(page) > PAGE_FILES else "",
        calls=[
            {
                "call": call,
                "name": call_changes[0].call_name,
                "turn": call_changes[0].turn or 0,
                "run": call_changes[0].run,
                "files": len(call_changes),
                "standing": sum(change.reverted_by is None for change in call_changes),
            }
            for call, call_changes in reversed(by_call.items())
        ],
    )


def _moves(grouped: dict[str, list[StoredChange]]) -> dict[str, str]:
    """Return the moved files: the old path and the new path.

    A file counts as moved if exactly one removed file and exactly one new file have its content."""
    removed: dict[str, list[str]] = {}
    added: dict[str, list[str]] = {}
    for path, path_changes in grouped.items():
        before, after = path_changes[0].before, path_changes[-1].after
        if before and not after and before.is_file and before.size:
            removed.setdefault(before.digest, []).append(path)
        if after and not before and after.is_file and after.size:
            added.setdefault(after.digest, []).append(path)
    return {
        paths[0]: added[digest][0]
        for digest, paths in removed.items()
        if len(paths) == 1 and len(added.get(digest, ())) == 1
    }


def content_of(root: Path, path: str, state: FileState | None) -> bytes | None:
    """Return the content of a file in that state, from the store or from the folder.

    Return None if the content is not available, or too large to be shown."""
    if state is None or state.size > MAX_COMPARED_BYTES or not (state.is_file or state.is_link):
        return None
    try:
        return read_blob(state.digest)
    except NotFound:
        data = disk.read_content(root, path, limit=MAX_COMPARED_BYTES)
    is_same = data is not None and hashlib.sha256(data).hexdigest() == state.digest
    return data if is_same else None
