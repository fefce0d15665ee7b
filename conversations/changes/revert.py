"""Putting files back as they were before a call, a run or all of a session.

A revert is a change too: what it replaces is kept and put on record first, so it can
itself be taken back, and a revert that was cut short is simply done again.
"""

import asyncio
import errno
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conversations.archive.append import Appended
from conversations.archive.blobs import read_blob
from conversations.archive.file_changes import Outcome, Scope
from conversations.archive.reverts import Begun, begin_revert, finish_revert
from conversations.domain.crossing import Crossing
from conversations.domain.errors import LoomError, Rejected
from conversations.domain.file_changes import Change, FileState, digest_of, same_state
from conversations.folder.paths import shown
from conversations.models import Session

from .disk import (
    ROOT,
    change_mode,
    make_folder,
    put_file,
    put_link,
    read_state,
    remove_drafts,
    remove_entry,
)
from .planning import BACK, CONFLICT, READY, FilePlan, plan_revert
from .shielding import carry_through

MOST_TOLD = 20
"""Files that the model is told by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverted:
    """``back`` are the files that are as they were now, ``left`` those that are not, each
    with the reason."""

    back: list[str]
    left: dict[str, str]
    appended: Appended


@dataclass(slots=True, kw_only=True)
class _Work:
    """The files that are to be put back. ``failed``: those that were not, and why."""

    root: Path
    plans: list[FilePlan]
    changes: list[Change] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def keep(self) -> None:
        """Keep what is there now. What changed since the plan was made is left alone."""
        for plan in self.plans:
            now = read_state(self.root, plan.path, limit=None, keep=True)
            is_unread = plan.current is not None and not plan.current.is_read
            if not is_unread and not same_state(now, plan.current):
                raise Rejected(
                    f"{shown(plan.path)} was changed this moment. Look again.",
                    code="file_changed",
                )
            self.changes.append(Change(path=plan.path, before=now, after=plan.target))

    def touch(self) -> None:
        """Folders that get other permissions are opened first; then what is in the way
        goes, deepest first; then folders, files and links come back; and last of all
        folders get the permissions that they had."""
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

    def judge(self, begun: Begun) -> tuple[list[Outcome], list[int]]:
        """Which of the records have come true, and which have not."""
        done, dropped = [], []
        for pk, change in zip(begun.changes, self.changes, strict=True):
            now = read_state(self.root, change.path, limit=None, keep=False)
            if same_state(now, change.before):
                dropped.append(pk)
                self.failed.setdefault(change.path, "It could not be put back.")
            else:
                done.append(Outcome(pk=pk, after=now))
        return done, dropped


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
    """Put back what the changes in the scope replaced. A file that is not what they left
    stays as it is, unless ``replace`` names it.

    Raises Conflict while an answer is being written, Rejected when there is nothing to
    put back."""
    plans = await read(plan_revert, session.pk, root, scope=scope)
    chosen = [p for p in plans if p.state == READY or (p.state == CONFLICT and p.path in replace)]
    if not chosen:
        raise Rejected("There is nothing that can be put back.", code="nothing_to_revert")
    work = _Work(root=root, plans=chosen)
    await asyncio.to_thread(work.keep)
    return await carry_through(
        _carry_out(session, work, plans, scope=scope, actor_pk=actor_pk, write=write)
    )


async def _carry_out(
    session: Session,
    work: _Work,
    plans: Sequence[FilePlan],
    *,
    scope: Scope,
    actor_pk: int | None,
    write: Crossing,
) -> Reverted:
    begun = await write(begin_revert, session, scope=scope, actor_pk=actor_pk, changes=work.changes)
    try:
        await asyncio.to_thread(work.touch)
    finally:
        done, dropped = await asyncio.to_thread(work.judge, begun)
        already = [plan for plan in plans if plan.state == BACK]
        left = {p.path: p.reason for p in plans if p not in work.plans and p not in already}
        left |= work.failed
        undone = [p for p in (*already, *work.plans) if p.path not in work.failed]
        back = [plan.path for plan in work.plans if plan.path not in work.failed]
        appended = await write(
            finish_revert,
            session,
            begun,
            done=done,
            dropped=dropped,
            undone=[change for plan in undone for change in plan.changes],
            back=back,
            text=describe(scope, back, left),
            told=_tell_model(scope, back, left),
            left=len(left),
        )
    return Reverted(back=back, left=left, appended=appended)


def describe(scope: Scope, back: Sequence[str], left: Mapping[str, str]) -> str:
    """What was done, for people."""
    they, are = ("it", "is") if len(back) == 1 else ("they", "are")
    if scope.revert:
        told = f"What was undone is taken back: {_count(back)} {are} as before that"
    else:
        what = "this call" if scope.call else "this answer" if scope.run else "this session"
        was = "was" if len(back) == 1 else "were"
        told = f"{_count(back)} put back as {they} {was} before {what}"
    if left:
        told += f"; {_count([*left])} left as {'it is' if len(left) == 1 else 'they are'}"
    return f"{told}."


def _tell_model(scope: Scope, back: Sequence[str], left: Mapping[str, str]) -> str:
    names = ", ".join(shown(path) for path in back[:MOST_TOLD])
    more = f" and {len(back) - MOST_TOLD} more" if len(back) > MOST_TOLD else ""
    told = f"Note: {describe(scope, back, left)}"
    if back:
        told += (
            f" The person did this, outside of any tool: {names}{more}. Earlier results do not"
            " say what these files hold now; read them again before you change them."
        )
    return told


def _count(paths: Sequence[str]) -> str:
    return "1 file" if len(paths) == 1 else f"{len(paths):,} files"
