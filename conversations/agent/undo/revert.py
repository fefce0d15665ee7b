"""Putting files back as they were before a call, a run or all of a session.

A revert is a change too: what it replaces is kept and put on record first, so it can itself be
taken back, and a revert that was cut short is simply done again.
"""

import asyncio
import errno
import stat
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path

from django.conf import settings

from conversations.agent.files.paths import shown
from conversations.agent.sandbox.repositories import Repositories, find_repositories
from conversations.archive.append import Appended
from conversations.archive.blobs import batch, has_blob, read_blob
from conversations.domain.errors import LoomError, Rejected
from conversations.models import Session

from .disarming import disarm
from .disk import (
    ROOT,
    Change,
    Crossing,
    FileState,
    StoredChange,
    carry_through,
    change_mode,
    count_entries,
    digest_of,
    make_folder,
    put_file,
    put_link,
    read_state,
    remove_drafts,
    remove_entry,
    same_state,
    save_state,
)
from .records import (
    ROWS,
    Begun,
    FileChangeOutcome,
    Scope,
    begin_revert,
    complete_changes,
    finish_revert,
    mark_undone,
    paths_of_others,
    read_changes,
    record_changes,
)

# What putting files back would do to each of them, found out without touching any.


# It can be put back; it is as it was before already; somebody has to decide; it cannot be put back.
READY, BACK, CONFLICT, LOST = "ready", "back", "conflict", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file: the changes that are to be undone, oldest first, what is there now, and what was
    there before them. ``reason`` is a sentence for a conflict."""

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
    """What would become of each file, by path; reads the database and the folder. What was undone
    before is left out."""
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
    elif target is not None and not (
        target.has_copy and (target.is_folder or has_blob(target.digest))
    ):
        state, reason = LOST, "What it was before was too large to be kept, or no file."
    elif not _leads_back(current, changes):
        state, reason = (
            CONFLICT,
            ("It was changed since." if current is not None else "It was removed since."),
        )
    elif path in others:
        state, reason = CONFLICT, "Another session changed it at the same time or since."
    elif current is not None and current.is_file and not current.is_read:
        state, reason = CONFLICT, "It is too large to be kept: what is there now would be gone."
    return FilePlan(path=path, changes=changes, current=current, state=state, reason=reason)


def read_current(root: Path, path: str, changes: Sequence[StoredChange]) -> FileState | None:
    """What is there now. A large file is read only if it is not what the changes left as far as can
    be told without."""
    limit = settings.LOOM.snapshot_max_file_bytes
    current = read_state(root, path, limit=limit, keep=False)
    if current is not None and current.is_file and not _leads_back(current, changes):
        return read_state(root, path, limit=None, keep=False) if not current.is_read else current
    return current


def _leads_back(current: FileState | None, changes: Sequence[StoredChange]) -> bool:
    """Whether the changes, the newest first, lead from what is there to what was."""
    state = current
    for change in reversed(changes):
        if same_state(state, change.after):
            state = change.before
        elif change.is_done or not same_state(state, change.before):
            return False
    return True


KEPT_TOGETHER = 1000

MAX_PATHS_NAMED = 20  # Files that the model is told by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverted:
    """``back`` are the files that are as they were now, ``left`` those that are not, each with the
    reason; ``folders`` are those of both that are none."""

    back: list[str]
    left: dict[str, str]
    folders: frozenset[str]
    appended: Appended


@dataclass(slots=True, kw_only=True)
class _Work:
    """The files that are to be put back. ``changes`` are what is on record of it, with the keys
    ``keys``; ``confirmed``, ``dropped`` and ``others`` what became of them: as recorded, nothing,
    something else. ``failed``: the files that are not back, and why."""

    root: Path
    plans: list[FilePlan]
    changes: list[Change] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    confirmed: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    others: list[FileChangeOutcome] = field(default_factory=list)
    git: Repositories = field(default_factory=Repositories)

    def keep(self) -> None:
        """Keep what is there now. What changed since the plan was made is left alone."""
        self.git = find_repositories(self.root)
        for chunk in batched(self.plans, KEPT_TOGETHER, strict=False):
            with batch() as kept:
                for plan in chunk:
                    now = save_state(self.root, plan.path, kept)
                    is_unread = plan.current is not None and not plan.current.is_read
                    if not is_unread and not same_state(now, plan.current):
                        raise Rejected(
                            f"{shown(plan.path)} was changed this moment. Look again.",
                            code="file_changed",
                        )
                    self.changes.append(Change(path=plan.path, before=now, after=plan.target))

    def touch(self) -> None:
        """Folders that get other permissions are opened first; then what is in the way goes,
        deepest first; then folders, files and links come back; and last of all folders get the
        permissions that they had."""
        for change in sorted(self.changes, key=_depth):
            if change.before is not None and change.before.is_folder and _is_folder(change.after):
                self._try(change, lambda c: change_mode(self.root, c.path, _opened(c.after)))
        for change in sorted(self.changes, key=_depth, reverse=True):
            if change.before is not None and not _same_type(change.before, change.after):
                self._try(change, self._remove)
        for change in sorted(self.changes, key=_depth):
            if _is_folder(change.after) and not _is_folder(change.before):
                self._try(change, lambda c: make_folder(self.root, c.path, mode=_opened(c.after)))
        for change in self.changes:
            if change.after is not None and not change.after.is_folder:
                self._try(change, self._put)
        for change in sorted(self.changes, key=_depth, reverse=True):
            if change.after is not None and change.after.is_folder:
                self._try(change, self._close)
        # What a call had made may come back by taking back an undo.
        for path in disarm(self.root, self.git.parts, contents=self.git.contents).paths:
            self.failed[path] = "Git would run or obey it, so it was disarmed."

    def _try(self, change: Change, step: Callable[[Change], None]) -> None:
        if change.path in self.failed:
            return
        try:
            step(change)
        except OSError as error:
            full = error.errno == errno.ENOTEMPTY
            told = "The folder is not empty." if full else f"{error.strerror}."
            self.failed[change.path] = told
        except LoomError as error:
            self.failed[change.path] = error.message

    def _remove(self, change: Change) -> None:
        self._check(change)
        remove_entry(self.root, change.path)

    def _put(self, change: Change) -> None:
        assert change.after is not None
        if _same_type(change.before, change.after):
            self._check(change)
            if digest_of(change.before) == change.after.digest:
                change_mode(self.root, change.path, change.after.mode)
                return
        data = read_blob(change.after.digest)
        remove_drafts(self.root, change.path, data)
        if change.after.is_link:
            put_link(self.root, change.path, data)
        else:
            put_file(self.root, change.path, data, mode=change.after.mode)

    def _close(self, change: Change) -> None:
        assert change.after is not None
        change_mode(self.root, change.path, change.after.mode)

    def _check(self, change: Change) -> None:
        """Right before it is replaced: it is what was kept."""
        now = read_state(self.root, change.path, limit=None, keep=False)
        if not _is_folder(now) and not same_state(now, change.before):
            raise Rejected("It was changed this moment.", code="file_changed")

    def judge(self) -> None:
        """Find out which of the records have come true."""
        for pk, change in zip(self.keys, self.changes, strict=True):
            try:
                now = read_state(self.root, change.path, limit=None, keep=False)
            except OSError as error:
                self.failed.setdefault(change.path, f"It cannot be read: {error.strerror}.")
                continue
            if same_state(now, change.after):
                self.confirmed.append(pk)
            elif same_state(now, change.before):
                self.dropped.append(pk)
                self.failed.setdefault(change.path, "It could not be put back.")
            else:
                self.others.append(FileChangeOutcome(pk=pk, after=now))
                self.failed.setdefault(change.path, "It is not as it was.")


def _depth(change: Change) -> tuple[int, str]:
    return -1 if change.path == ROOT else change.path.count("/"), change.path


def _is_folder(state: FileState | None) -> bool:
    return state is not None and state.is_folder


def _opened(state: FileState | None) -> int:
    """Permissions with which the folder can be worked in."""
    return (state.permissions if state else 0) | 0o700


def _same_type(one: FileState | None, other: FileState | None) -> bool:
    if one is None or other is None:
        return one is other
    return stat.S_IFMT(one.mode) == stat.S_IFMT(other.mode)


async def revert_files(
    session: Session,
    root: Path,
    *,
    scope: Scope,
    actor_pk: int | None,
    replace: Collection[str],
    read: Crossing,
    write: Crossing,
) -> Reverted:
    """Put back what the changes in the scope replaced. A file that is not what they left stays as
    it is, unless ``replace`` names it.

    Raises Conflict while an answer is being written, Rejected when there is nothing to put back."""
    plans = await read(plan_revert, session.pk, root, scope=scope)
    chosen = [p for p in plans if p.state == READY or (p.state == CONFLICT and p.path in replace)]
    if not chosen:
        raise Rejected("There is nothing that can be put back.", code="nothing_to_revert")
    work = _Work(root=root, plans=chosen)
    await asyncio.to_thread(work.keep)
    return await carry_through(
        _execute(session, work, plans, scope=scope, actor_pk=actor_pk, write=write)
    )


async def _execute(
    session: Session,
    work: _Work,
    plans: Sequence[FilePlan],
    *,
    scope: Scope,
    actor_pk: int | None,
    write: Crossing,
) -> Reverted:
    begun = await write(begin_revert, session, scope=scope, actor_pk=actor_pk)
    for chunk in batched(work.changes, ROWS, strict=False):
        work.keys += await write(record_changes, author=begun.author, changes=chunk)
    try:
        await asyncio.to_thread(work.touch)
    finally:
        await asyncio.to_thread(work.judge)
        appended = await _complete(session, begun, work, plans, scope, write)
    back, left = _sum_up(work, plans)
    return Reverted(back=back, left=left, folders=_folders(plans), appended=appended)


async def _complete(
    session: Session,
    begun: Begun,
    work: _Work,
    plans: Sequence[FilePlan],
    scope: Scope,
    write: Crossing,
) -> Appended:
    """Record what has become of the files, a part at a time, and say so."""
    for confirmed in batched(work.confirmed, ROWS, strict=False):
        await write(complete_changes, confirmed=confirmed)
    await write(complete_changes, done=work.others, dropped=work.dropped)
    undone = [p for p in plans if p.state == BACK]
    undone += [p for p in work.plans if p.path not in work.failed]
    changes = [change for plan in undone for change in plan.changes]
    for chunk in batched(changes, ROWS, strict=False):
        await write(mark_undone, begun, changes=chunk)
    back, left = _sum_up(work, plans)
    said = describe(scope, back, left, folders=_folders(plans))
    names = ", ".join(shown(path) for path in back[:MAX_PATHS_NAMED])
    more = f" and {len(back) - MAX_PATHS_NAMED} more" if len(back) > MAX_PATHS_NAMED else ""
    told = f"Note: {said}"
    if back:
        told += (
            f" The person did this, outside of any tool: {names}{more}. Earlier results do not"
            " say what these files hold now; read them again before you change them."
        )
    return await write(
        finish_revert,
        session,
        begun,
        back=back,
        text=said,
        told=told,
        left=len(left),
    )


def _sum_up(work: _Work, plans: Sequence[FilePlan]) -> tuple[list[str], dict[str, str]]:
    """The files that are back, and those that are not, each with the reason."""
    chosen = {plan.path for plan in work.plans}
    left = {p.path: p.reason for p in plans if p.path not in chosen and p.state != BACK}
    back = [plan.path for plan in work.plans if plan.path not in work.failed]
    return back, left | work.failed


def _folders(plans: Sequence[FilePlan]) -> frozenset[str]:
    return frozenset(plan.path for plan in plans if plan.is_folder)


def describe(
    scope: Scope, back: Sequence[str], left: Mapping[str, str], *, folders: Collection[str]
) -> str:
    """What was done, for people."""
    if scope.revert:
        what = "the undo"
    else:
        what = "this call" if scope.call else "this answer" if scope.run else "this session"
    whose = "its" if len(back) == 1 else "their"
    told = f"Restored {_count(back, folders)} to {whose} state before {what}"
    if left:
        told += f"; {_count([*left], folders)} left as {'it is' if len(left) == 1 else 'they are'}"
    return f"{told}."


def _count(paths: Sequence[str], folders: Collection[str]) -> str:
    many = sum(path in folders for path in paths)
    return count_entries(files=len(paths) - many, folders=many)
