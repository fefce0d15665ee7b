"""Notes, flags and marks of reviewers.

Each is saved in one transaction with its entry in the audit log. Turns are not changed.
"""

from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from conversations.archive import audit
from conversations.archive.append import lock_session
from conversations.archive.audit import AuditOrigin
from conversations.domain.audit import FLAG, NOTE, REVIEWED, UNFLAG, UNNOTE, UNREVIEWED
from conversations.domain.errors import Conflict, NotFound, NotPermitted, Rejected, TooLarge
from conversations.domain.text import number_text, storable
from conversations.models import ReviewFlag, ReviewMark, ReviewNote, Session
from conversations.models.review import LABELS, MAX_TEXT_CHARS

MAX_MARKS = 20  # shown per session; the audit log has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """The remarks on a session: all notes and flags, oldest first; the last marks, newest first."""

    notes: list[ReviewNote]
    flags: list[ReviewFlag]
    marks: list[ReviewMark]


def read_remarks(session: Session) -> Remarks:
    notes = ReviewNote.objects.filter(session=session.pk)
    flags = ReviewFlag.objects.filter(session=session.pk)
    marks = ReviewMark.objects.filter(session=session.pk).order_by("-id")
    return Remarks(
        notes=list(notes.order_by("id").select_related("author", "withdrawn_by")),
        flags=list(flags.order_by("id").select_related("author", "resolved_by")),
        marks=list(marks.select_related("author")[:MAX_MARKS]),
    )


def write_note(session: Session, origin: AuditOrigin, *, text: str, turn: int | None) -> ReviewNote:
    """Save a note on a turn, or on the session if ``turn`` is None. Raise Rejected."""
    author, text = _author(origin), _checked_text(text)
    if not text:
        raise Rejected("A note must have at least one character.", code="note_empty")
    _require_turn(session, turn)
    with transaction.atomic():
        lock_session(session.pk)
        note = ReviewNote.objects.create(
            session=session, turn=turn, author=author, text=text, created_at=timezone.now()
        )
        _record(session, origin, NOTE, note=str(note.uuid), turn=turn)
    return note


def withdraw_note(session: Session, origin: AuditOrigin, *, uuid: UUID) -> None:
    """Withdraw a note. Its text stays. Raise NotFound or Conflict."""
    person = _author(origin)
    with transaction.atomic():
        lock_session(session.pk)
        notes = ReviewNote.objects.filter(session=session.pk, uuid=uuid)
        note = notes.first()
        if note is None:
            raise NotFound("This note does not exist.")
        if note.withdrawn_at is not None:
            raise Conflict("This note is already withdrawn.", code="note_withdrawn")
        notes.update(withdrawn_at=timezone.now(), withdrawn_by=person)
        _record(session, origin, UNNOTE, note=str(uuid), turn=note.turn)


def set_flag(
    session: Session, origin: AuditOrigin, *, label: str, text: str = "", turn: int | None
) -> ReviewFlag:
    """Flag a turn, or the session if ``turn`` is None, as a problem to deal with."""
    author, text = _author(origin), _checked_text(text)
    if label not in LABELS:
        raise Rejected("Choose the kind of problem.", code="label_unknown")
    _require_turn(session, turn)
    with transaction.atomic():
        lock_session(session.pk)
        flag = ReviewFlag.objects.create(
            session=session,
            turn=turn,
            label=label,
            text=text,
            author=author,
            created_at=timezone.now(),
        )
        _record(session, origin, FLAG, flag=str(flag.uuid), label=label, turn=turn)
    return flag


def resolve_flag(session: Session, origin: AuditOrigin, *, uuid: UUID) -> None:
    """Resolve a flag. Raise NotFound or Conflict."""
    person = _author(origin)
    with transaction.atomic():
        lock_session(session.pk)
        flags = ReviewFlag.objects.filter(session=session.pk, uuid=uuid)
        flag = flags.first()
        if flag is None:
            raise NotFound("This flag does not exist.")
        if flag.resolved_at is not None:
            raise Conflict("This flag is already resolved.", code="flag_resolved")
        flags.update(resolved_at=timezone.now(), resolved_by=person)
        _record(session, origin, UNFLAG, flag=str(uuid), label=flag.label, turn=flag.turn)


def mark_reviewed(session: Session, origin: AuditOrigin, *, through: int) -> ReviewMark:
    """Mark the session as reviewed through a turn, or with 0 as to be reviewed again.

    The turn is the last one that the reviewer saw, as later turns may have been added. Raise
    Rejected if it does not exist, and Conflict if the mark would change nothing.
    """
    if not 0 <= through <= session.turn_count:
        raise Rejected("This turn does not exist in this session.", code="turn_unknown")
    sessions = Session.objects.filter(pk=session.pk)
    with transaction.atomic():
        lock_session(session.pk)
        reviewed = sessions.values_list("reviewed_turn", flat=True).get()
        if not through and not reviewed:
            raise Conflict("This session is not marked as reviewed.", code="not_reviewed")
        if through and reviewed >= through:
            raise Conflict("This session is already marked as reviewed.", code="reviewed_already")
        author, now = _author(origin), timezone.now()
        sessions.update(reviewed_turn=through)
        mark = ReviewMark.objects.create(
            session=session, through_turn=through, author=author, created_at=now
        )
        _record(session, origin, REVIEWED if through else UNREVIEWED, through=through)
    return mark


def _record(
    session: Session, origin: AuditOrigin, action: str, **metadata: str | int | None
) -> None:
    known_metadata = {name: value for name, value in metadata.items() if value is not None}
    audit.record(origin, audit.session_event(session, action, **known_metadata))


def _author(origin: AuditOrigin) -> User:
    if origin.user is None:
        raise NotPermitted("Only a person can review.")
    return origin.user


def _checked_text(text: str) -> str:
    text = storable(text).strip()
    if len(text) > MAX_TEXT_CHARS:
        raise TooLarge(
            "The text can have at most %(limit)s characters.",
            limit=number_text(MAX_TEXT_CHARS),
            code="text_too_long",
        )
    return text


def _require_turn(session: Session, turn: int | None) -> None:
    if turn is not None and not 1 <= turn <= session.turn_count:
        raise Rejected("This turn does not exist in this session.", code="turn_unknown")
