"""Verification of the archive: a session's hash chains and markers, checked in constant memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection
from django.db.models import Q, QuerySet

from conversations.domain.errors import NotFound
from conversations.domain.text import first_digest
from conversations.domain.turns import NewTurn
from conversations.models import (
    Attachment,
    ChatEvent,
    Compaction,
    JournalGap,
    Rewind,
    Session,
    SessionSkill,
    Turn,
)

from .append import event_digest, turn_digest, walk_by_key, walk_rows
from .blobs import read_blob
from .context import digest_of
from .turns import COLUMNS

BATCH_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result for one session. ``problem`` describes the first wrong row, or is empty."""

    session: UUID
    turns: int
    events: int
    problem: str


def verify_sessions(*, session: UUID | None = None) -> Iterator[VerificationResult]:
    """Verify all sessions, oldest first, or only the given one."""
    rows = Session.objects.all()
    if session is not None:
        rows = rows.filter(uuid=session)
    for row in walk_by_key(rows):
        with suppress(Session.DoesNotExist):  # the session was purged meanwhile
            verified = verify_session(row)
            if not verified.problem or Session.objects.filter(pk=row.pk).exists():
                yield verified


def verify_session(session: Session) -> VerificationResult:
    turns, turn_problem = _walk_safely(_walk_turns, session, "turn")
    events, event_problem = _walk_safely(_walk_events, session, "event")
    problem = turn_problem or event_problem
    checks = (_check_rewinds, _check_gaps, _check_skills, _check_compactions, _check_attachments)
    for check in checks:
        problem = problem or check(session)
    return VerificationResult(session=session.uuid, turns=turns, events=events, problem=problem)


def _walk_safely(
    walk: Callable[[Session], tuple[int, str]], session: Session, kind: str
) -> tuple[int, str]:
    try:
        return walk(session)
    # Data written to the database by other programs may not even be readable.
    except (DatabaseError, ValueError, TypeError, AttributeError, OverflowError) as error:
        return 0, f"a stored {kind} cannot be read ({type(error).__name__}: {error})"


def _check_rewinds(session: Session) -> str:
    rewinds = Rewind.objects.filter(session=session.pk)
    count, newest = rewinds.count(), rewinds.order_by("-pk").values_list("pk", flat=True).first()
    # Counters only grow, so read them after the rows that are compared with them.
    counters = _read_counters(session)
    if not session.rewind_count <= count <= counters["rewind_count"]:
        return f"there are {count} rewinds, but the session counts {counters['rewind_count']}"
    outside = Q(from_turn__lt=1) | Q(from_seq__lt=1)
    outside |= Q(to_turn__gte=counters["next_turn"]) | Q(to_seq__gte=counters["next_seq"])
    wrong = rewinds.filter(outside, pk__lte=newest or 0).order_by("pk").first()
    if wrong is None:
        return ""
    return f"the rewind of turns {wrong.from_turn} to {wrong.to_turn} names missing rows"


def _check_gaps(session: Session) -> str:
    counters = _read_counters(session)
    if counters["journal_turn"] >= counters["next_turn"]:
        return f"the journal covers turn {counters['journal_turn']}, which is missing"
    gaps = JournalGap.objects.filter(session=session.pk, to_turn__lte=counters["journal_turn"])
    columns = ("from_turn", "to_turn", "after_seq")
    rows = gaps.order_by("from_turn").values_list(*columns)
    reached, after = 0, 0
    for low, high, after_seq in rows.iterator(chunk_size=BATCH_ROWS):
        if not reached < low <= high or not after <= after_seq < counters["next_seq"]:
            return f"the gap of turns {low} to {high} does not match the journal"
        reached, after = high, after_seq
    return ""


def _check_skills(session: Session) -> str:
    skills = SessionSkill.objects.filter(session=session.pk)
    columns = ("pk", "name", "content", "digest", "turn_number")
    for skill in walk_rows(skills, *columns, key="pk"):
        if digest_of(skill["content"]) != skill["digest"]:
            return f"the skill {skill['name']} does not match its digest"
        if skill["turn_number"] >= _read_counters(session)["next_turn"]:
            return f"the skill {skill['name']} was loaded at a missing turn"
    return ""


def _check_compactions(session: Session) -> str:
    rows = Compaction.objects.filter(session=session.pk).order_by("-to_turn")
    last = rows.values_list("to_turn", flat=True).first() or 0
    if last >= _read_counters(session)["next_turn"]:
        return f"a summary covers turn {last}, which is missing"
    return ""


def _check_attachments(session: Session) -> str:
    sent = Attachment.objects.filter(session=session.pk, turn_number__isnull=False)
    for row in walk_rows(sent, "pk", "name", "digest", "sent", key="pk"):
        for digest in {row["digest"], row["sent"] or row["digest"]}:
            try:
                data = read_blob(digest)
            except NotFound:
                return f"the content of the attachment {row['name']} is missing"
            if sha256(data).hexdigest() != digest:
                return f"the content of the attachment {row['name']} is damaged"
    return ""


def _read_counters(session: Session) -> dict[str, int]:
    columns = ("next_turn", "next_seq", "journal_turn", "rewind_count")
    values = Session.objects.values_list(*columns).get(pk=session.pk)
    return dict(zip(columns, values, strict=True))


def _walk_turns(session: Session) -> tuple[int, str]:
    def link(previous: str, row: dict[str, Any]) -> str:
        number, created_at = row.pop("number"), row["created_at"]
        return turn_digest(previous, NewTurn(**row), number=number, created_at=created_at)

    turns = Turn.objects.filter(session=session.pk)
    return _walk(session, turns, "turn", ("number", "next_turn"), COLUMNS, link)


def _walk_events(session: Session) -> tuple[int, str]:
    def link(previous: str, row: dict[str, Any]) -> str:
        row["turn"], row["created_at"] = row.pop("turn_number"), row["created_at"].astimezone(UTC)
        return event_digest(previous, **row)

    events = ChatEvent.objects.filter(session=session.pk)
    columns = ("seq", "event_type", "payload", "turn_number", "created_at", "digest")
    return _walk(session, events, "event", ("seq", "next_seq"), columns, link)


def _walk(
    session: Session,
    rows: QuerySet[Any],
    kind: str,
    names: tuple[str, str],
    columns: Sequence[str],
    link: Callable[[str, dict[str, Any]], str],
) -> tuple[int, str]:
    """Return how many rows of a chain are intact, and a description of the first error.

    ``names`` are the names of the row's number and of the session's counter.
    """
    key, counter = names
    digest, expected = first_digest(session.uuid, chain=f"{kind}s"), 1
    counted = rows.filter(**{f"{key}__lt": getattr(session, counter)})
    for row in walk_rows(counted, *columns, key=key):
        number, stored = row[key], row.pop("digest")
        if number != expected:
            return expected - 1, f"{kind} {expected} is missing"
        digest = link(digest, row)
        if digest != stored:
            return expected, f"{kind} {number} differs from what was written"
        expected += 1
    if getattr(session, counter) != expected:
        total = getattr(session, counter) - 1
        return expected - 1, f"{kind} {expected} is missing: the session counts {total}"
    if digest != getattr(session, f"{kind}_digest"):
        return expected - 1, f"the session's digest does not end at {kind} {expected - 1}"
    # Compare with the current counter, because the session may have grown meanwhile.
    newest = rows.order_by(f"-{key}").values_list(key, flat=True).first() or 0
    total = Session.objects.values_list(counter, flat=True).get(pk=session.pk)
    surplus = f"{key} {newest} is not counted by the session" if newest >= total else ""
    return expected - 1, surplus


def check_database_file() -> str:
    """Return the error that SQLite's own check of the file finds, or an empty text."""
    if connection.vendor != "sqlite":
        return ""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(1)")
        [(verdict,)] = cursor.fetchall()
    return "" if verdict == "ok" else str(verdict)
