"""Putting files back, on record: what is about to happen, and what has."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from conversations.domain.events import REVERTED, Info
from conversations.domain.file_changes import Author, Change, StoredChange, stored_path
from conversations.domain.jsontext import dump_json
from conversations.domain.session_state.facts import MAX_PUT_BACK
from conversations.domain.text import estimate_tokens, storable
from conversations.domain.turns import FILES_BACK, MODEL_NOTE, SYSTEM, NewTurn
from conversations.models import FileChange, Revert, Session

from .append import Appended, NewEvent, append
from .file_changes import Outcome, Scope, record_changes, settle_changes
from .locks import lock_session
from .messages import refuse_archived, refuse_busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A revert that is on record. ``changes`` are the keys of the records, in order."""

    pk: int
    uuid: UUID
    author: Author
    changes: list[int]


def begin_revert(
    session: Session, *, scope: Scope, actor_pk: int | None, changes: Sequence[Change]
) -> Begun:
    """Put on record what is about to be put back. Raises Conflict while an answer is
    being written, and for an archived session."""
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
        keys = record_changes(author=author, changes=changes)
    return Begun(pk=revert.pk, uuid=revert.uuid, author=author, changes=keys)


def finish_revert(
    session: Session,
    begun: Begun,
    *,
    done: Sequence[Outcome],
    dropped: Sequence[int],
    undone: Sequence[StoredChange],
    back: Sequence[str],
    text: str,
    told: str,
    left: int,
) -> Appended:
    """Say what was put back: ``undone`` are the changes that are no more, ``back`` the
    files that are as they were. ``text`` is the row's, ``told`` what the model reads
    with the next message."""
    with transaction.atomic():
        settle_changes(done=done, dropped=dropped)
        _mark_undone(begun, undone)
        data = {"revert": str(begun.uuid), "files": len(done), "left": left}
        note = {MODEL_NOTE: True, "user_facing": True, FILES_BACK: _names(back)} | data
        return append(
            session.pk,
            session_uuid=session.uuid,
            turns=[
                NewTurn(
                    role=SYSTEM,
                    content=storable(told),
                    token_count=estimate_tokens(told),
                    metadata=dump_json(note),
                )
            ],
            events=[NewEvent(payload=Info(text=storable(text), code=REVERTED, data=data), new=0)],
        )


def _names(paths: Sequence[str]) -> list[str]:
    return [stored_path(path) for path in paths[:MAX_PUT_BACK]]


def _mark_undone(begun: Begun, undone: Sequence[StoredChange]) -> None:
    """Changes of calls are undone by this revert; those of an earlier revert too, and
    then what that one had undone stands again."""
    keys = [change.pk for change in undone]
    rows = FileChange.objects.filter(pk__in=keys)
    for path, earlier in rows.exclude(revert=None).values_list("path", "revert"):
        FileChange.objects.filter(path=path, reverted_by=earlier).update(reverted_by=None)
    rows.update(reverted_by=begun.pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRevert:
    """A revert whose files are as it left them, as far as records go."""

    uuid: UUID
    at: datetime
    by: str
    files: int


def recent_reverts(session_pk: int, *, limit: int = 5) -> list[PastRevert]:
    """The last reverts that can be taken back, the newest first."""
    standing = Q(file_changes__done_at__isnull=False, file_changes__reverted_by=None)
    found = (
        Revert.objects.filter(session=session_pk)
        .annotate(files=Count("file_changes", filter=standing))
        .filter(files__gt=0)
        .order_by("-pk")
        .values_list("uuid", "created_at", "actor__username", "files")
    )
    return [PastRevert(uuid=u, at=at, by=by or "", files=n) for u, at, by, n in found[:limit]]
