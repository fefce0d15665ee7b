"""What putting files back would do to each of them, found out without touching any.

A file is put back only from the state in which the changes left it. If it is anything
else now, somebody changed it since, and what they wrote is worth as much as what would
replace it: a person decides, file by file.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from conversations.archive.blobs import has_blob
from conversations.archive.file_changes import Scope, paths_of_others, read_changes
from conversations.domain.file_changes import FileState, StoredChange, same_state

from .disk import read_state

READY, BACK, CONFLICT, LOST = "ready", "back", "conflict", "lost"
"""It can be put back; it is as it was before already; somebody has to decide; it cannot
be put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file: the changes that are to be undone, oldest first, what is there now, and
    what was there before them. ``reason`` is a sentence for a conflict."""

    path: str
    changes: Sequence[StoredChange]
    current: FileState | None
    state: str
    reason: str = ""

    @property
    def target(self) -> FileState | None:
        return self.changes[0].before

    @property
    def left(self) -> FileState | None:
        """What the last of the changes left."""
        return self.changes[-1].after

    @property
    def is_folder(self) -> bool:
        """What is put back, or what goes, is a folder."""
        state = self.target or self.current or self.left
        return state is not None and state.is_folder


def plan_revert(session_pk: int, root: Path, *, scope: Scope) -> list[FilePlan]:
    """What would become of each file, by path; reads the database and the folder. What
    was undone before is left out."""
    changes = [c for c in read_changes(session_pk, scope) if c.reverted_by is None]
    if not changes:
        return []
    grouped = group_by_path(changes)
    since = min(change.started_at for change in changes)
    others = {} if scope.revert else paths_of_others(session_pk, paths=[*grouped], since=since)
    return [judge_file(root, path, grouped[path], others=others) for path in sorted(grouped)]


def group_by_path(changes: Iterable[StoredChange]) -> dict[str, list[StoredChange]]:
    grouped: dict[str, list[StoredChange]] = {}
    for change in changes:
        grouped.setdefault(change.path, []).append(change)
    return grouped


def judge_file(
    root: Path, path: str, changes: Sequence[StoredChange], *, others: Container[str] = ()
) -> FilePlan:
    """What can become of one file; ``others`` are those that somebody else changed too."""
    try:
        current, target = read_current(root, path, changes), changes[0].before
    except OSError as error:
        reason = f"It cannot be read: {error.strerror}."
        return FilePlan(path=path, changes=changes, current=None, state=LOST, reason=reason)
    state, reason = READY, ""
    if same_state(current, target):
        state = BACK
    elif target is not None and not _is_kept(target):
        state, reason = LOST, "What it was before was too large to be kept, or no file."
    elif not _leads_back(current, changes):
        state, reason = CONFLICT, _what_happened(current)
    elif path in others:
        state, reason = CONFLICT, "Another session changed it at the same time or since."
    elif current is not None and current.is_file and not current.is_read:
        state, reason = CONFLICT, "It is too large to be kept: what is there now would be gone."
    return FilePlan(path=path, changes=changes, current=current, state=state, reason=reason)


def read_current(root: Path, path: str, changes: Sequence[StoredChange]) -> FileState | None:
    """What is there now. A large file is read only if it is not what the changes left as
    far as can be told without."""
    limit = settings.LOOM.snapshot_max_file_bytes
    current = read_state(root, path, limit=limit, keep=False)
    if current is not None and current.is_file and not _leads_back(current, changes):
        return read_state(root, path, limit=None, keep=False) if not current.is_read else current
    return current


def _is_kept(state: FileState) -> bool:
    return state.has_copy and (state.is_folder or has_blob(state.digest))


def _leads_back(current: FileState | None, changes: Sequence[StoredChange]) -> bool:
    """Whether the changes, the newest first, lead from what is there to what was."""
    state = current
    for change in reversed(changes):
        if same_state(state, change.after):
            state = change.before
        elif change.is_done or not same_state(state, change.before):
            return False
    return True


def _what_happened(current: FileState | None) -> str:
    return "It was changed since." if current is not None else "It was removed since."
