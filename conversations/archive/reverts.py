"""Putting files back, on record: what is about to happen, and what has."""

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from conversations.domain.events import REVERTED, Info
from conversations.domain.file_changes import Author, StoredChange, count_entries, stored_path
from conversations.domain.jsontext import dump_json
from conversations.domain.session_state.facts import MAX_PUT_BACK
from conversations.domain.text import estimate_tokens, storable
from conversations.domain.turns import FILES_BACK, MODEL_NOTE, SYSTEM, NewTurn
from conversations.models import FileChange, Revert, Session

from .append import Appended, NewEvent, append
from .file_changes import Scope
from .locks import lock_session
from .messages import refuse_archived, refuse_busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A revert that is on record, and the author of what it changes."""

    pk: int
    uuid: UUID
    author: Author


def begin_revert(session: Session, *, scope: Scope, actor_pk: int | None) -> Begun:
    """Put on record that files are about to be put back. Raises Conflict while an answer
    is being written, and for an archived session."""
    with transaction.atomic():
        refuse_archived(lock_session(session.pk))
        refuse_busy(session.pk)
        run = session.runs.filter(uuid=scope.run).first() if scope.run else None
        call = session.tool_calls.filter(uuid=scope.call).first() if scope.call else None
        revert = Revert.objects.create(
            session=session, run=run, call=call, actor_id=actor_pk, created_at=timezone.now()
        )
        author = Author(
            session_pk=session.pk,
            run_pk=run.pk if run else None,
            call_pk=call.pk if call else None,
            revert_pk=revert.pk,
        )
    return Begun(pk=revert.pk, uuid=revert.uuid, author=author)


def finish_revert(
    session: Session, begun: Begun, *, back: Sequence[str], text: str, told: str, left: int
) -> Appended:
    """Say what was put back: ``back`` are the files that are as they were, and ``left``
    is the number of those that are not. ``text`` is the row's, ``told`` what the model
    reads with the next message."""
    data = {"revert": str(begun.uuid), "files": len(back), "left": left}
    note = {MODEL_NOTE: True, "user_facing": True, FILES_BACK: _names(back)} | data
    turn = NewTurn(
        role=SYSTEM,
        content=storable(told),
        token_count=estimate_tokens(told),
        metadata=dump_json(note),
    )
    event = NewEvent(payload=Info(text=storable(text), code=REVERTED, data=data), new=0)
    return append(session.pk, session_uuid=session.uuid, turns=[turn], events=[event])


def _names(paths: Sequence[str]) -> list[str]:
    return [stored_path(path) for path in paths[:MAX_PUT_BACK]]


def mark_undone(begun: Begun, *, changes: Sequence[StoredChange]) -> None:
    """Changes of calls are undone by this revert; those of an earlier revert too, and
    then what that one had undone stands again."""
    earlier = {change.revert for change in changes if change.revert is not None}
    paths = [stored_path(change.path) for change in changes]
    with transaction.atomic():
        rows = FileChange.objects.filter(pk__in=[change.pk for change in changes])
        rows.update(reverted_by=begun.pk)
        if earlier:
            undone = FileChange.objects.filter(reverted_by__uuid__in=earlier, path__in=paths)
            undone.filter(revert=None).update(reverted_by=None)


_FOLDER_MODES = (stat.S_IFDIR, stat.S_IFDIR | 0o7777)
_IS_FOLDER = Q(file_changes__after_mode__range=_FOLDER_MODES) | Q(
    file_changes__after_mode=None, file_changes__before_mode__range=_FOLDER_MODES
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRevert:
    """A revert whose files are as it left them, as far as records go."""

    uuid: UUID
    at: datetime
    by: str
    files: int
    folders: int

    @property
    def what(self) -> str:
        return count_entries(files=self.files, folders=self.folders)


def recent_reverts(session_pk: int, *, limit: int = 5) -> list[PastRevert]:
    """The last reverts that can be taken back, the newest first."""
    standing = Q(file_changes__done_at__isnull=False, file_changes__reverted_by=None)
    found = (
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
        for uuid, at, by, entries, folders in found[:limit]
    ]
