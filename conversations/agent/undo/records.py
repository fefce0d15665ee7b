"""Records of changed files, which are written before a file is touched and read to undo."""

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from conversations.archive.append import AppendResult, NewEvent, append, lock_session
from conversations.archive.messages import refuse_archived, refuse_busy
from conversations.domain.errors import Conflict, NotFound
from conversations.domain.events import REVERTED, Info
from conversations.domain.messages import say, say_number
from conversations.domain.session_state.facts import MAX_PUT_BACK_PATHS
from conversations.domain.text import dump_json, estimate_tokens, number_text, storable
from conversations.domain.tool_calls import OPEN_STATES
from conversations.domain.turns import FILES_BACK, MODEL_NOTE, SYSTEM, NewTurn
from conversations.feature import features
from conversations.models import Attachment, FileChange, Revert, Run, Session, ToolCall

from .disk import ChangeAuthor, EntryChange, FileState, real_path, stored_path

BATCH_ROWS = 400  # Per statement, and preferably per transaction: other writers need a turn


def record_changes(
    *, author: ChangeAuthor, changes: Sequence[EntryChange], is_done: bool = False
) -> list[int]:
    """Record the changes and return their keys.

    With ``is_done`` the changes have already happened; otherwise they are about to happen."""
    now = timezone.now()
    rows = [
        FileChange(
            session_id=author.session_pk,
            run_id=author.run_pk,
            call_id=author.call_pk,
            revert_id=author.revert_pk,
            path=stored_path(change.path),
            has_copy=change.before is None or change.before.has_copy,
            created_at=now,
            done_at=now if is_done else None,
            **_columns("before", change.before),
            **_columns("after", change.after),
        )
        for change in changes
    ]
    with transaction.atomic():
        created = FileChange.objects.bulk_create(rows, batch_size=BATCH_ROWS)
    return [row.pk for row in created]


def record_found(*, author: ChangeAuthor, changes: Sequence[EntryChange]) -> None:
    """Record the changes that a call has made, unless another process has recorded them already."""
    with transaction.atomic():
        lock_session(author.session_pk)
        paths = [stored_path(change.path) for change in changes]
        rows = FileChange.objects.filter(call=author.call_pk, revert=None, path__in=paths)
        recorded = {real_path(path) for path in rows.values_list("path", flat=True)}
        missing = [change for change in changes if change.path not in recorded]
        record_changes(author=author, changes=missing, is_done=True)


def _columns(name: str, state: FileState | None) -> dict[str, str | int | None]:
    return {
        name: state.digest if state else "",
        f"{name}_mode": state.mode if state else None,
        f"{name}_size": state.size if state else None,
    }


@dataclass(slots=True, kw_only=True)
class ChangeOutcome:
    """What became of recorded changes that were about to happen, by their keys.

    The changes ``confirmed`` have happened as they were recorded. ``done`` have happened and left
    these states. ``dropped`` have not happened."""

    confirmed: list[int] = field(default_factory=list)
    done: list[tuple[int, FileState | None]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


def complete_changes(outcome: ChangeOutcome) -> None:
    now = timezone.now()
    with transaction.atomic():
        if outcome.confirmed:
            FileChange.objects.filter(pk__in=outcome.confirmed).update(done_at=now)
        for pk, after in outcome.done:
            FileChange.objects.filter(pk=pk).update(done_at=now, **_columns("after", after))
        if outcome.dropped:
            FileChange.objects.filter(pk__in=outcome.dropped, done_at=None).delete()


def record_tree(call_pk: int, *, digest: str) -> None:
    """Record the blob that lists the folder right before a command of the call.

    Raise Conflict if the call already has one."""
    if not ToolCall.objects.filter(pk=call_pk, tree="").update(tree=digest):
        raise Conflict("This call has already changed files.", code="call_has_tree")


def release_tree(call_pk: int) -> str:
    """Record that all changes since the call's listing are recorded.

    Return the digest of the listing, which is not referred to any more."""
    with transaction.atomic():
        tree = ToolCall.objects.values_list("tree", flat=True).get(pk=call_pk)
        ToolCall.objects.filter(pk=call_pk).update(tree="")
    return tree


def append_disarmed(session_pk: int, *, text: str) -> None:
    """Show in the transcript what was disarmed after a call whose process died."""
    session = Session.objects.only("uuid").get(pk=session_pk)
    notice = NewEvent(payload=Info(text=text, code="git_disarmed"))
    append(session_pk, session_uuid=session.uuid, events=[notice])


def unfinished_calls() -> list[int]:
    """Return the keys of calls that have ended, but whose changes are not completely recorded."""
    ended = ToolCall.objects.exclude(state__in=OPEN_STATES)
    begun = FileChange.objects.filter(done_at=None, call__isnull=False, revert=None).values("call")
    unfinished = {*ended.exclude(tree="").values_list("pk", flat=True)}
    return sorted(unfinished | {*ended.filter(pk__in=begun).values_list("pk", flat=True)})


def read_unfinished(call_pk: int) -> tuple[ToolCall, list[tuple[int, EntryChange]]]:
    """Return a call whose process died, and its unfinished changes with their keys."""
    call = ToolCall.objects.select_related("session__workspace").get(pk=call_pk)
    rows = FileChange.objects.filter(call=call_pk, revert=None, done_at=None).order_by("pk")
    return call, [(row.pk, EntryChange(**states_of(row))) for row in rows]


def unfinished_reverts() -> list[int]:
    """Return the keys of reverts with unfinished changes: running and interrupted ones."""
    begun = FileChange.objects.filter(done_at=None, revert__isnull=False).order_by()
    keys = begun.values_list("revert", flat=True)
    # Filtered by the call, because the index of unfinished changes is on that column.
    return sorted({*keys.filter(call=None), *keys.filter(call__gt=0)})


def read_revert(pk: int) -> Revert:
    return Revert.objects.select_related("session__workspace", "run", "call").get(pk=pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeScope:
    """Selects the changes of a call, run or revert, or, with none given, of a session's calls."""

    run: UUID | None = None
    call: UUID | None = None
    revert: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange(EntryChange):
    """A recorded change.

    ``is_done`` is False if the change was about to happen when its process died. ``started_at`` is
    the latest time at which the entry was still in the state ``before``."""

    pk: int
    started_at: datetime
    is_done: bool
    run: UUID | None = None
    call: UUID | None = None
    call_name: str = ""
    turn: int | None = None
    revert: UUID | None = None
    reverted_by: UUID | None = None


def read_changes(session_pk: int, scope: ChangeScope) -> list[StoredChange]:
    """Return the changes in the order in which they were made.

    Changes by reverts are only included if the scope is a revert. Raise NotFound if the session
    does not have the call, run or revert."""
    rows = _rows_of(session_pk, scope).annotate(
        started_at=Coalesce("call__started_at", "created_at"),
        run_uuid=F("run__uuid"),
        call_uuid=F("call__uuid"),
        call_name=F("call__name"),
        turn=F("call__turn_number"),
        revert_uuid=F("revert__uuid"),
        reverter=F("reverted_by__uuid"),
    )
    return [
        StoredChange(
            pk=row.pk,
            **states_of(row),
            started_at=row.started_at,
            is_done=row.done_at is not None,
            run=row.run_uuid,
            call=row.call_uuid,
            call_name=row.call_name or "",
            turn=row.turn,
            revert=row.revert_uuid,
            reverted_by=row.reverter,
        )
        for row in rows.order_by("pk").iterator()
    ]


def _rows_of(session_pk: int, scope: ChangeScope) -> QuerySet[FileChange]:
    rows = FileChange.objects.filter(session=session_pk)
    chosen: dict[str, tuple[type[Revert | ToolCall | Run], UUID | None]] = {
        "revert": (Revert, scope.revert),
        "call": (ToolCall, scope.call),
        "run": (Run, scope.run),
    }
    for name, (table, uuid) in chosen.items():
        if uuid is not None:
            pks = table.objects.filter(session=session_pk, uuid=uuid).values_list("pk", flat=True)
            if (pk := pks.first()) is None:
                raise NotFound("This call, run or undo does not exist in this session.")
            rows = rows.filter(**{name: pk})
            return rows if name == "revert" else rows.filter(revert=None)
    return rows.filter(revert=None)


def paths_of_others(session_pk: int, *, paths: Iterable[str], since: datetime) -> dict[str, UUID]:
    """Return which of the paths other sessions of the workspace have changed after ``since``.

    Each path has the last such session. Changes by reverts, and changes that were undone, do not
    count."""
    workspace = Session.objects.values_list("workspace_id", flat=True).get(pk=session_pk)
    rows = FileChange.objects.filter(
        session__workspace=workspace, done_at__gte=since, revert=None, reverted_by=None
    ).exclude(session=session_pk)
    stored_paths = {stored_path(path) for path in paths}
    rows_of_path = rows.order_by("pk").values_list("path", "session__uuid")
    return {real_path(path): uuid for path, uuid in rows_of_path.iterator() if path in stored_paths}


def last_of_answer(run_pk: int, *, turn: int, path: str) -> EntryChange | None:
    """Return the last change of a file by the calls of the answer in this turn."""
    rows = FileChange.objects.filter(run=run_pk, call__turn_number=turn, revert=None)
    row = rows.filter(path=stored_path(path)).exclude(done_at=None).order_by("-pk").first()
    return EntryChange(**states_of(row)) if row else None


def has_changes(session_pk: int, *, call: UUID | None = None) -> bool:
    """Return whether the call, or any call of the session, changed files."""
    rows = FileChange.objects.filter(session=session_pk, revert=None)
    return (rows if call is None else rows.filter(call__uuid=call)).exists()


def last_changing_run(session_pk: int) -> UUID | None:
    """Return the last run with a change that was not undone."""
    rows = FileChange.objects.filter(session=session_pk, revert=None, reverted_by=None)
    return rows.exclude(run=None).order_by("-pk").values_list("run__uuid", flat=True).first()


def states_of(row: FileChange) -> dict[str, Any]:
    """Return the fields of an ``EntryChange``."""
    before = after = None
    if row.before_mode is not None:
        size, has_copy = row.before_size or 0, row.has_copy
        before = FileState(mode=row.before_mode, digest=row.before, size=size, has_copy=has_copy)
    if row.after_mode is not None:
        after = FileState(mode=row.after_mode, digest=row.after, size=row.after_size or 0)
    return {"path": real_path(row.path), "before": before, "after": after}


def begin_revert(session: Session, *, scope: ChangeScope, actor_pk: int | None) -> Revert:
    """Record that files are about to be restored.

    Raise Conflict while an answer is being written, and for an archived session."""
    with transaction.atomic():
        refuse_archived(lock_session(session.pk))
        refuse_busy(session.pk)
        run = session.runs.filter(uuid=scope.run).first() if scope.run else None
        call = session.tool_calls.filter(uuid=scope.call).first() if scope.call else None
        return Revert.objects.create(
            session=session, run=run, call=call, actor_id=actor_pk, created_at=timezone.now()
        )


def scopes_of(revert: Revert) -> list[ChangeScope]:
    """Return the scopes that the revert may have had.

    The record names a call or a run, but not an earlier revert or the whole session."""
    if revert.call or revert.run:
        return [
            ChangeScope(
                call=revert.call.uuid if revert.call else None,
                run=revert.run.uuid if revert.run else None,
            )
        ]
    earlier = Revert.objects.filter(session=revert.session_id, pk__lt=revert.pk).order_by("-pk")
    uuids = earlier.values_list("uuid", flat=True)
    return [*(ChangeScope(revert=uuid) for uuid in uuids), ChangeScope()]


def finish_revert(
    revert: Revert,
    *,
    outcome: ChangeOutcome,
    back: Sequence[str],
    text: str,
    note_text: str,
    left_count: int,
) -> AppendResult:
    """Record what the revert restored, and show it in the transcript.

    ``back`` has the files that were restored, and ``left_count`` is the number of files that were
    not. ``text`` is the text of the row, and ``note_text`` is what the model reads with the next
    message. ``outcome`` is recorded in the same transaction, so a revert without a message in the
    transcript still has unfinished changes."""
    data = {"revert": str(revert.uuid), "files": len(back), "left": left_count}
    note = {
        MODEL_NOTE: True,
        "user_facing": True,
        FILES_BACK: [stored_path(path) for path in back[:MAX_PUT_BACK_PATHS]],
    } | data
    turn = NewTurn(
        role=SYSTEM,
        content=storable(note_text),
        token_count=estimate_tokens(note_text),
        metadata=dump_json(note),
    )
    event = NewEvent(payload=Info(text=text, code=REVERTED, data=data), new=0)
    session = revert.session
    with transaction.atomic():
        complete_changes(outcome)
        return append(session.pk, session_uuid=session.uuid, turns=[turn], events=[event])


def mark_undone(revert: Revert, *, changes: Sequence[StoredChange]) -> None:
    """Mark the changes as undone by this revert.

    If changes of an earlier revert are undone, the changes that it had undone count again. If that
    earlier revert had taken back an undo, the changes of calls are marked as undone again."""
    earlier = {change.revert for change in changes if change.revert is not None}
    paths = [stored_path(change.path) for change in changes]
    of_calls = FileChange.objects.filter(session=revert.session_id, revert=None, path__in=paths)
    with transaction.atomic():
        rows = FileChange.objects.filter(pk__in=[change.pk for change in changes])
        rows.update(reverted_by=revert.pk)
        for earlier_revert in Revert.objects.filter(uuid__in=earlier).order_by("pk"):
            undo, was_undone = _first_undo(earlier_revert)
            if not was_undone:
                of_calls.filter(reverted_by=earlier_revert).update(reverted_by=None)
                continue
            chosen = {"call": undo.call_id, "run": undo.run_id}
            undone_again = of_calls.filter(**{name: pk for name, pk in chosen.items() if pk})
            begun = undo.file_changes.order_by("pk").values("pk")[:1]
            undone_again.filter(pk__lt=begun, reverted_by=None).update(reverted_by=revert.pk)


def _first_undo(revert: Revert) -> tuple[Revert, bool]:
    """Return the undo of calls that began a chain of reverts, each taking back the one before.

    Also return whether that undo was taken back after the given revert."""
    was_undone = False
    taken_back = Revert.objects.order_by("pk")
    while later := taken_back.filter(file_changes__reverted_by=revert).first():
        revert, was_undone = later, not was_undone
    return revert, was_undone


_FOLDER_MODES = (stat.S_IFDIR, stat.S_IFDIR | 0o7777)
_IS_FOLDER = Q(file_changes__after_mode__range=_FOLDER_MODES) | Q(
    file_changes__after_mode=None, file_changes__before_mode__range=_FOLDER_MODES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRevert:
    """A revert whose changes were not undone, according to the records."""

    uuid: UUID
    at: datetime
    by: str
    files: int
    folders: int

    @property
    def what(self) -> str:
        return count_entries(files=self.files, folders=self.folders)


def count_entries(*, files: int, folders: int) -> str:
    """Return a text such as "2 files and 1 folder"; omit files if there are only folders."""
    of_files = say_number("%(count)s file", "%(count)s files", files, count=number_text(files))
    of_folders = say_number(
        "%(count)s folder", "%(count)s folders", folders, count=number_text(folders)
    )
    if files and folders:
        return say("%(files)s and %(folders)s", files=of_files, folders=of_folders)
    return of_folders if folders else of_files


MAX_REVERTS_SHOWN = 5


def recent_reverts(session_pk: int) -> list[PastRevert]:
    """Return the last reverts that can be taken back, the newest first."""
    standing = Q(file_changes__done_at__isnull=False, file_changes__reverted_by=None)
    rows = (
        Revert.objects.filter(session=session_pk)
        .annotate(
            entries=Count("file_changes", filter=standing),
            folders=Count("file_changes", filter=standing & _IS_FOLDER),
        )
        .filter(entries__gt=0)
        .order_by("-pk")
        .values_list("uuid", "created_at", "actor__username", "entries", "folders")
    )
    return [
        PastRevert(uuid=uuid, at=at, by=by or "", files=entries - folders, folders=folders)
        for uuid, at, by, entries, folders in rows[:MAX_REVERTS_SHOWN]
    ]


def used_digests() -> set[bytes]:
    """Return the digests of all blobs that a change, attachment, call or feature refers to."""
    changes = FileChange.objects.order_by("pk").values_list("before", "after")
    attachments = Attachment.objects.order_by("pk").values_list("digest", "thumbnail", "sent")
    rows = chain(changes.iterator(), attachments.iterator())
    of_features = chain.from_iterable(feature.named_blobs() for feature in features())
    named = chain(open_trees(), chain.from_iterable(rows), of_features)
    return {bytes.fromhex(digest) for digest in named if digest}


def open_trees() -> list[str]:
    """Return the listings of calls whose changes are not recorded yet."""
    calls = ToolCall.objects.exclude(tree="").order_by("pk")
    return list(calls.values_list("tree", flat=True))
