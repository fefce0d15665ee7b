"""Finding the changes that a command makes in a folder, by comparing it before and after.

Before the command the whole folder is listed, and contents that are not stored yet are copied. The
listing itself is a blob that the call's record names. After the command the folder is listed again.
If the process dies in between, the record still names the listing, and the comparison is made
later.

The comparison cannot tell who wrote a file. If somebody else changes the folder while the command
runs, that change counts as the command's.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import batched
from pathlib import Path

from django.conf import settings

from conversations.agent.sandbox.bubblewrap import WriteProtection
from conversations.agent.sandbox.command_run import run_to_completion
from conversations.agent.sandbox.repositories import (
    Repositories,
    find_repositories,
    hold_parts,
    make_protection,
)
from conversations.agent.sandbox.support import UNSANDBOXED, find_mode
from conversations.archive.blobs import has_blob, put_blob, read_blob, remove_blob
from conversations.archive.storage import require_space
from conversations.domain.errors import LoomError, NotFound, Rejected
from conversations.domain.messages import say

from . import disk, records
from .disarming import DisarmResult, disarm, without_failed
from .disk import ChangeAuthor, DatabaseCall, EntryChange
from .listing import FolderListing, dump_listing, load_listing, make_listing
from .records import BATCH_ROWS, ChangeOutcome

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class FolderWatch:
    """The result of watching a folder during a block.

    ``changes`` is filled when the block has ended. ``note`` is a sentence for the tool's result if
    some changes are unknown or cannot be undone."""

    changes: list[EntryChange] = field(default_factory=list)
    note: str = ""
    root: Path = Path()
    repositories: Repositories | None = None
    was_held: Callable[[str], bool] = lambda _: False
    held: ExitStack = field(default_factory=ExitStack)

    def protect(self, *, may_write_config: bool) -> WriteProtection:
        """Return what a sandbox has to hold read-only while the block runs.

        If such a file changes all the same, somebody else has changed it."""
        if self.repositories is None:
            return WriteProtection()
        protection = make_protection(
            self.root, self.repositories, may_write_config=may_write_config
        )
        holding = hold_parts(self.root, self.repositories, protection)
        self.was_held = self.held.enter_context(holding)
        return protection


@asynccontextmanager
async def watched(
    root: Path,
    *,
    author: ChangeAuthor,
    write: DatabaseCall,
    report: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[FolderWatch]:
    """Record the changes in the folder inside the block, however the block ends.

    ``report`` shows the note if the block is cancelled, because then there is no result. Raise
    Rejected or StorageFull before the block starts if the files cannot be copied."""
    await asyncio.to_thread(require_space, say("Commands that may write"), root)
    before, repositories = await asyncio.to_thread(_list_before, root)
    try:
        tree = await asyncio.to_thread(put_blob, dump_listing(before, owner=repr(author)))
    except OSError as error:
        raise Rejected(
            "The workspace's files could not be copied: %(reason)s.",
            reason=error.strerror,
            code="not_kept",
        ) from error
    if author.call_pk is not None:
        await write(records.record_tree, author.call_pk, digest=tree)
    watch = FolderWatch(root=root, repositories=repositories)
    with watch.held:
        is_cancelled = False
        try:
            yield watch
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            await run_to_completion(_conclude(root, before, author, write, watch))
            if is_cancelled and watch.note:
                report(f"\n[{watch.note}]\n")


def _list_before(root: Path) -> tuple[FolderListing, Repositories | None]:
    repositories = None if find_mode() == UNSANDBOXED else find_repositories(root)
    listing = make_listing(root)
    if repositories is not None:
        git = without_failed(root, repositories.parts)
        listing = replace(listing, git=git, git_contents=repositories.contents)
    return listing, repositories


def _list_after(
    root: Path, before: FolderListing, was_held: Callable[[str], bool] = lambda _: False
) -> tuple[FolderListing, DisarmResult]:
    """Disarm files that git would run or obey, and list the folder."""
    disarmed = DisarmResult()
    if before.git is not None:
        disarmed = disarm(
            root,
            before.git,
            contents=before.git_contents,
            entries=before.entries,
            was_held=was_held,
        )
    return make_listing(root, earlier=before), disarmed


async def _conclude(
    root: Path, before: FolderListing, author: ChangeAuthor, write: DatabaseCall, watch: FolderWatch
) -> None:
    try:
        after, disarmed = await asyncio.to_thread(_list_after, root, before, watch.was_held)
    except Rejected as error:  # the command's own result is more important
        watch.note = f"{error.message} The changes will be determined when the server starts next."
        return
    watch.changes = list(compare(before, after))
    lost = sum(c.before is not None and not c.before.has_copy for c in watch.changes)
    sentences = [disarmed.note] if disarmed.note else []
    if lost:
        sentences.append(
            f"{lost:,} {'change' if lost == 1 else 'changes'} cannot be undone: what was there was "
            "too large to be stored, or was not a file."
        )
    if before.unlisted or after.unlisted:
        sentences.append(
            f"The folder has more than {settings.LOOM.snapshot_max_files:,} files or some that "
            "cannot be read; changes in part of it are unknown."
        )
    watch.note = " ".join(sentences)
    for chunk in batched(watch.changes, BATCH_ROWS, strict=False):
        await write(records.record_changes, author=author, changes=chunk, is_done=True)
    if author.call_pk is not None:
        await _forget_tree(author.call_pk, write)


async def _forget_tree(call_pk: int, write: DatabaseCall) -> None:
    tree = await write(records.release_tree, call_pk)
    if tree:
        await asyncio.to_thread(remove_blob, tree)


def compare(before: FolderListing, after: FolderListing) -> Iterator[EntryChange]:
    """Yield the differences, sorted by path; skip folders that are unlisted in either listing."""
    unlisted = before.unlisted | after.unlisted
    for path in sorted(before.entries.keys() | after.entries.keys()):
        was, now = before.entries.get(path), after.entries.get(path)
        if not disk.same_state(was, now) and unlisted.isdisjoint(disk.folders_of(path)):
            yield EntryChange(path=path, before=was, after=now)


async def complete_all(*, read: DatabaseCall, write: DatabaseCall) -> int:
    """Complete the records of calls whose process died, and return how many there were.

    A folder that cannot be read now is tried again the next time."""
    call_pks = await read(records.unfinished_calls)
    for call_pk in call_pks:
        try:
            await complete_interrupted(call_pk, read=read, write=write)
        except (LoomError, OSError):
            logger.warning("changes_not_settled", extra={"fields": {"call_pk": call_pk}})
    return len(call_pks)


async def complete_interrupted(call_pk: int, *, read: DatabaseCall, write: DatabaseCall) -> None:
    """Record the changes of an ended call that are not recorded yet.

    For changes that were about to happen, look at the files. For a command, compare the folder as
    it is now with the listing before the command."""
    call, begun = await read(records.read_unfinished, call_pk)
    root = Path(call.session.workspace.root)
    if begun:
        outcome = await asyncio.to_thread(judge_begun, root, begun)
        await write(records.complete_changes, outcome)

    def compare_now() -> tuple[list[EntryChange], str]:
        try:
            before = load_listing(read_blob(call.tree))
        except NotFound:
            return [], ""
        after, disarmed = _list_after(root, before)
        return list(compare(before, after)), disarmed.note

    if call.tree:
        changes, note = await asyncio.to_thread(compare_now)
        if note:
            logger.warning("git_disarmed", extra={"fields": {"note": note}})
            await write(records.append_disarmed, call.session_id, text=note)
        author = ChangeAuthor(session_pk=call.session_id, run_pk=call.run_id, call_pk=call.pk)
        for chunk in batched(changes, BATCH_ROWS, strict=False):
            await write(records.record_found, author=author, changes=chunk)
        await _forget_tree(call_pk, write)


def judge_begun(root: Path, begun: list[tuple[int, EntryChange]]) -> ChangeOutcome:
    """Return which of the changes have happened, as far as the files show it.

    Also remove the drafts of files that were to be written."""
    outcome = ChangeOutcome()
    for pk, change in begun:
        if change.after is not None and change.after.is_file and has_blob(change.after.digest):
            disk.remove_drafts(root, change.path, read_blob(change.after.digest))
        now = disk.read_state(root, change.path)
        if disk.same_state(now, change.before):
            outcome.dropped.append(pk)
        else:
            is_as_meant = disk.digest_of(now) == disk.digest_of(change.after)
            outcome.done.append((pk, now if is_as_meant else change.after))
    return outcome
