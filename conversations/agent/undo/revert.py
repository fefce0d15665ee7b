"""Restoring files to their state before a call, a run or a whole session.

A revert is a change too: the content that it replaces is stored and recorded first, so a revert can
itself be taken back. An interrupted revert is completed by comparing the files with the record, and
can be repeated.
"""

import asyncio
import errno
import logging
import stat
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import NoReturn

from django.conf import settings

from conversations.agent.files.confined import FileConflict
from conversations.agent.files.paths import shown
from conversations.agent.sandbox.command_run import run_to_completion
from conversations.agent.sandbox.repositories import find_repositories
from conversations.archive.append import AppendResult
from conversations.archive.blobs import batch, has_blob, read_blob
from conversations.archive.messages import refuse_busy
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.messages import say, say_number
from conversations.models import Revert, Session

from . import disk, records
from .disarming import disarm
from .disk import DatabaseCall, EntryChange, FileState
from .records import BATCH_ROWS, ChangeOutcome, ChangeScope, StoredChange
from .trees import judge_begun

logger = logging.getLogger(__name__)

# READY: the file can be restored. BACK: it already is as it was before. CONFLICT: a person has to
# decide. LOST: it cannot be restored.
READY, BACK, CONFLICT, LOST = "ready", "back", "conflict", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """What a revert would do with one file.

    ``changes`` are the changes to undo, oldest first, and ``current`` is the present state.
    ``target`` is the state before the changes. ``reason`` is a sentence that explains the state."""

    path: str
    changes: Sequence[StoredChange]
    current: FileState | None
    state: str
    reason: str = ""

    @property
    def target(self) -> FileState | None:
        return self.changes[0].before

    @property
    def is_folder(self) -> bool:
        """Return whether the entry that is restored, or removed, is a folder."""
        return _is_folder(self.target or self.current or self.changes[-1].after)


def plan_revert(session_pk: int, root: Path, *, scope: ChangeScope) -> list[FilePlan]:
    """Return what a revert would do with each file, sorted by path.

    Changes that are already undone are left out. Reads the database and the folder."""
    changes = [c for c in records.read_changes(session_pk, scope) if c.reverted_by is None]
    if not changes:
        return []
    grouped = group_by_path(changes)
    since = min(change.started_at for change in changes)
    others = (
        {} if scope.revert else records.paths_of_others(session_pk, paths=[*grouped], since=since)
    )
    return [judge_file(root, path, grouped[path], others=others) for path in sorted(grouped)]


def group_by_path(changes: Iterable[StoredChange]) -> dict[str, list[StoredChange]]:
    grouped: dict[str, list[StoredChange]] = {}
    for change in changes:
        grouped.setdefault(change.path, []).append(change)
    return grouped


def judge_file(
    root: Path, path: str, changes: Sequence[StoredChange], *, others: Container[str] = ()
) -> FilePlan:
    """Return what a revert can do with one file.

    ``others`` has the paths that other sessions changed too."""
    try:
        current, target = read_current(root, path, changes), changes[0].before
    except OSError as error:
        reason: str = say("It cannot be read: %(reason)s.", reason=error.strerror)
        return FilePlan(path=path, changes=changes, current=None, state=LOST, reason=reason)
    state, reason = CONFLICT, ""
    if disk.same_state(current, target):
        state = BACK
    elif target is not None and not (
        target.has_copy and (target.is_folder or has_blob(target.digest))
    ):
        state, reason = (
            LOST,
            say("Its earlier content was too large to be stored, or was not a file."),
        )
    elif not _leads_back(current, changes):
        reason = (
            say("It was changed afterwards.")
            if current is not None
            else say("It was removed afterwards.")
        )
    elif path in others:
        reason = say("Another session changed it at the same time or afterwards.")
    elif current is not None and current.is_file and not current.is_read:
        reason = say("Its current content is too large to be stored and would be lost.")
    else:
        state = READY
    return FilePlan(path=path, changes=changes, current=current, state=state, reason=reason)


def read_current(root: Path, path: str, changes: Sequence[StoredChange]) -> FileState | None:
    """Return the current state of the entry.

    A large file is only read if its size and times do not show already that it is as the changes
    left it."""
    current = disk.read_state(root, path, limit=settings.LOOM.snapshot_max_file_bytes)
    is_unread = current is not None and current.is_file and not current.is_read
    return (
        disk.read_state(root, path) if is_unread and not _leads_back(current, changes) else current
    )


def _leads_back(current: FileState | None, changes: Sequence[StoredChange]) -> bool:
    """Return whether undoing the changes, newest first, leads from ``current`` to the target."""
    state = current
    for change in reversed(changes):
        if disk.same_state(state, change.after):
            state = change.before
        elif change.is_done or not disk.same_state(state, change.before):
            return False
    return True


BATCH_FILES = 1000

MAX_PATHS_NAMED = 20  # Files that are named to the model


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertResult:
    """The result of a revert.

    ``back`` has the files that were restored, and ``left`` the files that were not, each with the
    reason. ``said`` is the message for people."""

    back: list[str]
    left: dict[str, str]
    said: str
    appended: AppendResult


class _RevertExecution:
    """The execution of a revert for a list of files.

    ``changes`` are the recorded changes, and ``keys`` their keys. ``failed`` has the files that
    were not restored, and why. ``left_as`` has the failed files that somebody else changed just
    now, with the states in which the revert itself left them. For example, if a folder ``a`` has to
    become a file again, and somebody creates ``a`` as soon as the revert has removed the folder,
    the revert has left it as None: not existing."""

    def __init__(self, root: Path, plans: list[FilePlan]) -> None:
        self.root = root
        self.plans = plans
        self.changes: list[EntryChange] = []
        self.keys: list[int] = []
        self.failed: dict[str, str] = {}
        self.left_as: dict[str, FileState | None] = {}

    def save_current(self) -> None:
        """Store the current content; raise Rejected if a file changed after planning."""
        self.git = find_repositories(self.root)
        for chunk in batched(self.plans, BATCH_FILES, strict=False):
            with batch() as blobs:
                for plan in chunk:
                    now = disk.read_state(self.root, plan.path, blobs=blobs)
                    is_unread = plan.current is not None and not plan.current.is_read
                    if not is_unread and not disk.same_state(now, plan.current):
                        raise Rejected(
                            "%(path)s has just changed. Reload the page and try again.",
                            path=shown(plan.path),
                            code="file_changed",
                        )
                    self.changes.append(EntryChange(path=plan.path, before=now, after=plan.target))

    def apply(self) -> None:
        # The workspace's folder itself comes before its contents.
        changes = sorted(
            self.changes, key=lambda c: (c.path != disk.ROOT, c.path.count("/"), c.path)
        )
        # The order is: open the permissions of folders that get other ones, so that they can be
        # changed; remove the entries that are in the way, deepest first; create folders, files and
        # links; and finally set the folders' former permissions.
        for change in changes:
            if _is_folder(change.before) and _is_folder(change.after):
                self._try(change, disk.change_mode, self.root, change.path, _opened(change.after))
        for change in reversed(changes):
            if change.before is not None and not _same_type(change.before, change.after):
                self._try(change, self._remove, change)
        for change in changes:
            if _is_folder(change.after) and not _is_folder(change.before):
                self._try(
                    change, disk.make_folder, self.root, change.path, mode=_opened(change.after)
                )
        for change in self.changes:
            if change.after is not None and not change.after.is_folder:
                self._try(change, self._put, change, change.after)
        for change in reversed(changes):
            if change.after is not None and change.after.is_folder:
                self._try(change, disk.change_mode, self.root, change.path, change.after.mode)
        # Taking back an undo may restore files that a call had made and that git would run or obey.
        for path in disarm(self.root, self.git.parts, contents=self.git.contents).paths:
            self.failed[path] = say("Git would run or obey it, so it was disarmed.")

    def _try[**P](
        self, change: EntryChange, step: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        if change.path in self.failed:
            return
        try:
            step(*args, **kwargs)
        except OSError as error:
            full = error.errno == errno.ENOTEMPTY
            reason = say("The folder is not empty.") if full else f"{error.strerror}."
            self.failed[change.path] = reason
        except LoomError as error:
            self.failed[change.path] = error.message

    def _remove(self, change: EntryChange) -> None:
        self._check(change)
        disk.remove_entry(self.root, change.path)

    def _put(self, change: EntryChange, after: FileState) -> None:
        replaces = _same_type(change.before, after)
        if replaces:
            self._check(change)
            if disk.digest_of(change.before) == after.digest:
                disk.change_mode(self.root, change.path, after.mode)
                return
        data = read_blob(after.digest)
        disk.remove_drafts(self.root, change.path, data)
        try:
            if after.is_link:
                disk.put_link(self.root, change.path, data, replaces=replaces)
            else:
                disk.put_file(self.root, change.path, data, mode=after.mode, replaces=replaces)
        except FileExistsError:
            self._refuse(change, left_as=None)

    def _check(self, change: EntryChange) -> None:
        """Raise FileConflict if a file or link, about to be replaced, is not what was stored."""
        now = disk.read_state(self.root, change.path)
        if not _is_folder(now) and not disk.same_state(now, change.before):
            self._refuse(change, left_as=change.before)

    def _refuse(self, change: EntryChange, *, left_as: FileState | None) -> NoReturn:
        self.left_as[change.path] = left_as
        raise FileConflict("It was changed just now.")

    def judge(self) -> ChangeOutcome:
        """Return which recorded changes have happened, and note which files were not restored."""
        outcome = ChangeOutcome()
        for pk, change in zip(self.keys, self.changes, strict=True):
            try:
                now = (
                    self.left_as[change.path]
                    if change.path in self.left_as
                    else disk.read_state(self.root, change.path)
                )
            except OSError as error:
                reason = say("It cannot be read: %(reason)s.", reason=error.strerror)
                self.failed.setdefault(change.path, reason)
                now = change.after
            if disk.same_state(now, change.after):
                outcome.confirmed.append(pk)
            elif disk.same_state(now, change.before):
                outcome.dropped.append(pk)
                self.failed.setdefault(change.path, say("It could not be restored."))
            else:
                outcome.done.append((pk, now))
                reason = say("Its content differs from the recorded one.")
                self.failed.setdefault(change.path, reason)
        return outcome


def _is_folder(state: FileState | None) -> bool:
    return state is not None and state.is_folder


def _opened(state: FileState | None) -> int:
    """Return the permissions with which the owner can change the folder's contents."""
    return (state.permissions if state else 0) | 0o700


def _same_type(first: FileState | None, second: FileState | None) -> bool:
    if first is None or second is None:
        return first is second
    return stat.S_IFMT(first.mode) == stat.S_IFMT(second.mode)


async def revert_files(
    session: Session,
    root: Path,
    *,
    scope: ChangeScope,
    actor_pk: int | None,
    replace: Collection[str],
    read: DatabaseCall,
    write: DatabaseCall,
) -> RevertResult:
    """Restore what the changes in the scope replaced.

    A file that was changed since then stays as it is, unless ``replace`` names it. Raise Conflict
    while an answer is being written, and Rejected if no file can be restored."""
    plans = await read(plan_revert, session.pk, root, scope=scope)
    chosen = [p for p in plans if p.state == READY or (p.state == CONFLICT and p.path in replace)]
    if not chosen:
        unrestored = next((plan for plan in plans if plan.state != BACK), None)
        if unrestored is None:
            raise Rejected("Nothing can be restored.", code="nothing_to_revert")
        raise Rejected(
            "Nothing can be restored. %(path)s: %(reason)s",
            path=shown(unrestored.path),
            reason=unrestored.reason,
            code="nothing_to_revert",
        )
    work = _RevertExecution(root, chosen)
    await asyncio.to_thread(work.save_current)
    return await run_to_completion(
        _execute(session, work, plans, scope=scope, actor_pk=actor_pk, write=write)
    )


async def _execute(
    session: Session,
    work: _RevertExecution,
    plans: Sequence[FilePlan],
    *,
    scope: ChangeScope,
    actor_pk: int | None,
    write: DatabaseCall,
) -> RevertResult:
    revert = await write(records.begin_revert, session, scope=scope, actor_pk=actor_pk)
    author = disk.ChangeAuthor(
        session_pk=session.pk, run_pk=revert.run_id, call_pk=revert.call_id, revert_pk=revert.pk
    )
    for chunk in batched(work.changes, BATCH_ROWS, strict=False):
        work.keys += await write(records.record_changes, author=author, changes=chunk)
    try:
        await asyncio.to_thread(work.apply)
    finally:
        outcome = await asyncio.to_thread(work.judge)
        chosen = {plan.path for plan in work.plans}
        left = {p.path: p.reason for p in plans if p.path not in chosen and p.state != BACK}
        left |= work.failed
        result = await _conclude(
            revert, plans, scope=scope, chosen=chosen, left=left, outcome=outcome, write=write
        )
    return result


async def _conclude(
    revert: Revert,
    plans: Sequence[FilePlan],
    *,
    scope: ChangeScope,
    chosen: Container[str],
    left: dict[str, str],
    outcome: ChangeOutcome,
    write: DatabaseCall,
) -> RevertResult:
    """Record what happened to the files, in batches, and show it in the transcript.

    ``chosen`` has the files that were to be restored. ``left`` has the files that are not as they
    were before the changes, and why."""
    undone = [plan for plan in plans if plan.path not in left]
    changes = [change for plan in undone for change in plan.changes]
    for chunk in batched(changes, BATCH_ROWS, strict=False):
        await write(records.mark_undone, revert, changes=chunk)
    for keys in batched(outcome.confirmed[BATCH_ROWS:], BATCH_ROWS, strict=False):
        await write(records.complete_changes, ChangeOutcome(confirmed=list(keys)))
    del outcome.confirmed[BATCH_ROWS:]
    back = [plan.path for plan in undone if plan.path in chosen]
    message = _describe(scope, back, left, folders={p.path for p in plans if p.is_folder})
    note = f"Note: {message}"
    if back:
        names = ", ".join(shown(path) for path in back[:MAX_PATHS_NAMED])
        unnamed_count = len(back) - MAX_PATHS_NAMED
        more = f" and {unnamed_count} more" if unnamed_count > 0 else ""
        note += (
            f" The person did this, outside of any tool: {names}{more}. Earlier results do not"
            " say what these files hold now; read them again before you change them."
        )
    appended = await write(
        records.finish_revert,
        revert,
        outcome=outcome,
        back=back,
        text=message,
        note_text=note,
        left_count=len(left),
    )
    return RevertResult(back=back, left=left, said=message, appended=appended)


async def complete_reverts(
    *, read: DatabaseCall, write: DatabaseCall
) -> list[tuple[int, AppendResult]]:
    """Complete the reverts whose process died, and show in their sessions what was restored.

    Return the key of each session with what was appended to it. No revert may be running. A revert
    that cannot be completed now is tried again the next time."""
    appended_rows = []
    for revert_pk in await read(records.unfinished_reverts):
        try:
            if appended := await _complete_interrupted(revert_pk, read=read, write=write):
                appended_rows.append(appended)
        except (LoomError, OSError):
            logger.warning("changes_not_settled", extra={"fields": {"revert_pk": revert_pk}})
    return appended_rows


async def _complete_interrupted(
    revert_pk: int, *, read: DatabaseCall, write: DatabaseCall
) -> tuple[int, AppendResult] | None:
    revert, begun, scope, plans = await read(_plan_again, revert_pk)
    root = Path(revert.session.workspace.root)
    outcome = await asyncio.to_thread(judge_begun, root, [(c.pk, c) for c in begun])
    if not outcome.done:  # it was interrupted before it touched a file
        await write(records.complete_changes, outcome)
        return None
    result = await _conclude(
        revert,
        plans,
        scope=scope,
        chosen={change.path for change in begun},
        left={plan.path: plan.reason for plan in plans if plan.state != BACK},
        outcome=outcome,
        write=write,
    )
    return revert.session_id, result.appended


def _plan_again(
    revert_pk: int,
) -> tuple[Revert, list[StoredChange], ChangeScope, list[FilePlan]]:
    """Return an interrupted revert, its own changes, its scope, and the plans of its files.

    The plans describe the files as they are now. Raise Conflict while an answer is being
    written."""
    revert = records.read_revert(revert_pk)
    session = revert.session
    refuse_busy(session.pk)
    begun = records.read_changes(session.pk, ChangeScope(revert=revert.uuid))
    grouped: dict[str, list[StoredChange]] = {}
    for scope in records.scopes_of(revert):
        changes = records.read_changes(session.pk, scope)
        candidates = group_by_path(
            change
            for change in changes
            if change.pk < begun[0].pk and change.reverted_by in (None, revert.uuid)
        )
        # The right scope is the one whose changes lead to the states that the revert was to
        # restore.
        if all(
            c.path in candidates and disk.same_state(candidates[c.path][0].before, c.after)
            for c in begun
        ):
            grouped = candidates
            break
    root = Path(session.workspace.root)
    return revert, begun, scope, [judge_file(root, path, grouped[path]) for path in sorted(grouped)]


def _describe(
    scope: ChangeScope,
    back: Sequence[str],
    unrestored: Collection[str],
    *,
    folders: Collection[str],
) -> str:
    counts = []
    for paths in (back, unrestored):
        folder_count = sum(path in folders for path in paths)
        counts.append(records.count_entries(files=len(paths) - folder_count, folders=folder_count))
    if scope.revert:
        before = say("before the undo")
    elif scope.call:
        before = say("before this call")
    else:
        before = say("before this answer") if scope.run else say("before this session")
    restored = say("Restored %(entries)s to the state %(before)s", entries=counts[0], before=before)
    if not unrestored:
        return say("%(restored)s.", restored=restored)
    return say_number(
        "%(restored)s. %(left)s was left unchanged.",
        "%(restored)s. %(left)s were left unchanged.",
        len(unrestored),
        restored=restored,
        left=counts[1],
    )
