"""Writing, moving and removing files, each recorded before it is touched.

The steps are: store a copy of the current content (a blob), record the change (durably), touch the
file, and record that the change is done. After a crash at any point the record says which file may
have been touched, and its former content is available.
"""

import asyncio
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from django.conf import settings

from conversations.agent.files import confined
from conversations.agent.files.confined import FileConflict
from conversations.agent.files.paths import find_place, reason, shown
from conversations.agent.sandbox.command_run import run_to_completion
from conversations.archive.blobs import batch, put_blob
from conversations.domain.errors import Rejected, TooLarge
from conversations.domain.messages import say

from . import disk
from .disk import ChangeAuthor, DatabaseCall, EntryChange, FileState
from .records import ChangeOutcome, complete_changes, record_changes

MAX_MOVED_FILES = 5000  # Limit for moving a folder: each file in it is recorded

_ODD = say("a special file")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAction:
    """Write a whole file.

    ``expect`` is the digest that the current content must have. If it is empty, the file must not
    exist; if it is None, any content is accepted."""

    path: str
    data: bytes
    expect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAction:
    """Remove a file, a link (not what it leads to), or a folder that is empty."""

    path: str
    expect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAction:
    """Rename a file or a folder. There must be nothing at ``target``."""

    source: str
    target: str


type FileAction = WriteAction | RemoveAction | MoveAction

# The changes that an action will make, and the function that makes them. An action without changes
# has nothing to do.
type _Step = tuple[list[EntryChange], Callable[[], None]]


async def apply_changes(
    root: Path, actions: Sequence[FileAction], *, author: ChangeAuthor, write: DatabaseCall
) -> None:
    """Execute the actions in order, inside the workspace's folder.

    Missing parent folders are created. Raise FileConflict, or Rejected with a sentence that says
    why (outside the folder, not a file, too large, no space). Actions that were executed before the
    error stay done and recorded."""
    for action in actions:
        await run_to_completion(_execute(root, action, author, write))


async def _execute(
    root: Path, action: FileAction, author: ChangeAuthor, write: DatabaseCall
) -> None:
    changes, touch = await asyncio.to_thread(_prepare, root, action)
    if not changes:
        return
    pks = await write(record_changes, author=author, changes=changes)
    has_touched = False
    try:
        await asyncio.to_thread(touch)
        has_touched = True
    finally:
        now = await asyncio.to_thread(disk.read_states, root, [c.path for c in changes])
        # Record which changes have happened, with the permissions that the files got, and which
        # have not. If somebody else wrote to the file right afterwards, that write is not recorded
        # as this change.
        outcome = ChangeOutcome()
        for pk, change, state in zip(pks, changes, now, strict=True):
            is_as_meant = disk.digest_of(state) == disk.digest_of(change.after)
            if has_touched or (is_as_meant and not disk.same_state(change.before, state)):
                outcome.done.append((pk, state if is_as_meant else change.after))
            else:
                outcome.dropped.append(pk)
        await write(complete_changes, outcome)


def _prepare(root: Path, action: FileAction) -> _Step:
    try:
        if isinstance(action, MoveAction):
            return _prepare_move(root, action)
        if isinstance(action, WriteAction):
            return _prepare_write(root, action)
        return _prepare_remove(root, action)
    except OSError as error:
        path = action.source if isinstance(action, MoveAction) else action.path
        raise Rejected("%(path)s: %(reason)s.", path=shown(path), reason=reason(error)) from error


def _prepare_write(root: Path, action: WriteAction) -> _Step:
    path = find_place(root, action.path).path
    before = _read_and_copy(root, path)
    _check_expected(path, before, action.expect)
    mode = before.permissions if before else 0o644
    digest, size = put_blob(action.data), len(action.data)
    after = FileState(mode=stat.S_IFREG | mode, digest=digest, size=size)
    expect = before.digest if before else ""
    touch = partial(confined.replace_file, root, path, action.data, expect=expect)
    if disk.same_state(before, after):
        return [], touch
    return [
        *_missing_folders(root, path),
        EntryChange(path=path, before=before, after=after),
    ], touch


def _prepare_remove(root: Path, action: RemoveAction) -> _Step:
    path = find_place(root, action.path, follow_last=False).path
    before = _read_and_copy(root, path)
    _check_expected(path, before, action.expect)
    if before is None:
        raise Rejected("%(path)s does not exist.", path=shown(path))
    if not before.has_copy:  # folders and links always have a copy
        raise Rejected("%(path)s is %(kind)s, not a file.", path=shown(path), kind=_ODD)
    expect = before.digest if before.is_file else None
    touch = partial(confined.remove, root, path, expect=expect)
    return [EntryChange(path=path, before=before, after=None)], touch


def _prepare_move(root: Path, action: MoveAction) -> _Step:
    source = find_place(root, action.source, follow_last=False).path
    target = find_place(root, action.target, follow_last=False).path
    if disk.read_state(root, target, limit=0) is not None:
        raise Rejected("%(path)s already exists.", path=shown(target))
    changes = _missing_folders(root, target)
    total = 0
    for path in disk.list_below(root, source, limit=MAX_MOVED_FILES):
        before = _read_and_copy(root, path)
        if before is None:
            raise Rejected("%(path)s does not exist.", path=shown(path))
        if not before.has_copy:
            raise Rejected("%(path)s is %(kind)s, not a file.", path=shown(path), kind=_ODD)
        total += before.size
        if total > settings.LOOM.snapshot_max_bytes:
            raise TooLarge(
                "%(path)s is too large to be moved in a way that can be undone.", path=shown(source)
            )
        moved = target + path.removeprefix(source)
        changes.append(EntryChange(path=path, before=before, after=None))
        changes.append(EntryChange(path=moved, before=None, after=before))
    return changes, partial(confined.rename, root, source, target)


def _read_and_copy(root: Path, path: str) -> FileState | None:
    """Return the current state of the entry, and store a copy of its content."""
    if path == ".":
        raise Rejected("This is the workspace's folder itself.")
    with batch() as blobs:
        state = disk.read_state(root, path, limit=settings.LOOM.snapshot_max_bytes, blobs=blobs)
    if state is not None and state.is_file and not state.is_read:
        raise TooLarge(
            "%(path)s is too large to be stored, so the change could not be undone.",
            path=shown(path),
        )
    return state


def _check_expected(path: str, before: FileState | None, expect: str | None) -> None:
    if expect is None or disk.digest_of(before) == expect:
        return
    if before is None:
        raise FileConflict("%(path)s was removed in the meantime.", path=shown(path))
    if not expect:
        raise FileConflict("%(path)s was created in the meantime.", path=shown(path))
    raise FileConflict("%(path)s was changed in the meantime.", path=shown(path))


def _missing_folders(root: Path, path: str) -> list[EntryChange]:
    new_folder = FileState(mode=stat.S_IFDIR | 0o755, digest=disk.NOTHING, size=0)
    return [
        EntryChange(path=folder, before=None, after=new_folder)
        for folder in disk.folders_of(path)[1:]
        if disk.read_state(root, folder, limit=0) is None
    ]
