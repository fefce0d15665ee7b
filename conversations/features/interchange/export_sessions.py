"""Exporting sessions as interchange lines, streamed.

A session's counters are read first; only rows below them are written, so that an
export of a session in use is whole as of its first line. Memory does not
grow with the session.
"""

import base64
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from conversations.archive.append import walk_rows
from conversations.archive.blobs import read_blob
from conversations.archive.turns import COLUMNS
from conversations.domain.errors import NotFound
from conversations.domain.text import dump_json
from conversations.domain.turns import StoredTurn
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

from .fields import (
    ATTACHMENT_COLUMNS,
    EVENT_COLUMNS,
    MARKER_COLUMNS,
    SESSION_COLUMNS,
    TURN_COLUMNS,
    write_line,
)

VERSION = 1
PAGE = 100
ATTACHMENT_PAGE = 20
MARKER_PAGE = 10


def choose_sessions(
    *, session: UUID | None = None, workspace: str | None = None
) -> Iterator[Session]:
    """The sessions to export, oldest first: one, a workspace's, or all. Raises
    NotFound when none can be meant."""
    found = Session.objects.select_related("workspace", "owner", "parent").order_by("pk")
    if session is not None:
        found = found.filter(uuid=session)
        if not found.exists():
            raise NotFound(f"There is no session {session}.")
    if workspace is not None:
        found = found.filter(workspace__slug=workspace)
    return _by_key(found, page=PAGE)


def _by_key(rows: QuerySet[Any], *, page: int, key: str = "pk") -> Iterator[Any]:
    last = 0
    while found := list(rows.filter(**{f"{key}__gt": last}).order_by(key)[:page]):
        yield from found
        last = getattr(found[-1], key)


def session_lines(session: Session) -> Iterator[str]:
    """The session as lines of JSON, without line ends. Raises NotFound, before the first
    one, where it is gone."""
    # What was read with the list may be old by now, and must fit to the rows.
    try:
        session.refresh_from_db()
    except Session.DoesNotExist:
        raise NotFound("There is no such session.") from None
    for line in _lines(session):
        yield dump_json(line)


def _lines(session: Session) -> Iterator[dict[str, Any]]:
    yield write_line("session", session, SESSION_COLUMNS, version=VERSION)
    turns = Turn.objects.filter(session=session.pk, number__lt=session.next_turn)
    for row in walk_rows(turns, *COLUMNS, key="number"):
        line = write_line("turn", StoredTurn(**row), TURN_COLUMNS)
        for name, usual in (("token_count", 0), ("stop_reason", ""), ("complete", True)):
            if line[name] == usual:
                del line[name]
        yield line
    sent = Attachment.objects.filter(session=session.pk, turn_number__lt=session.next_turn)
    for attachment in _by_key(sent.select_related("added_by"), page=ATTACHMENT_PAGE):
        yield _attachment_line(attachment)
    events = ChatEvent.objects.filter(session=session.pk, seq__lt=session.next_seq)
    for row in walk_rows(events, *EVENT_COLUMNS, key="seq"):
        yield write_line("event", ChatEvent(**row), EVENT_COLUMNS)
    rewinds = Rewind.objects.filter(to_turn__lt=session.next_turn, to_seq__lt=session.next_seq)
    gaps = JournalGap.objects.filter(
        to_turn__lte=session.journal_turn, after_seq__lt=session.next_seq
    )
    skills = SessionSkill.objects.filter(turn_number__lt=session.next_turn)
    compactions = Compaction.objects.filter(to_turn__lt=session.next_turn)
    markers: tuple[tuple[str, QuerySet[Any], str], ...] = (
        ("rewind", rewinds.select_related("actor"), "pk"),
        ("gap", gaps, "from_turn"),
        ("skill", skills, "pk"),
        ("compaction", compactions.select_related("actor", "undone_by"), "pk"),
    )
    for kind, rows, key in markers:
        # Few at a time, since the text of a skill may be long.
        for marker in _by_key(rows.filter(session=session.pk), page=MARKER_PAGE, key=key):
            yield write_line(kind, marker, MARKER_COLUMNS[rows.model])


def _attachment_line(attachment: Attachment) -> dict[str, Any]:
    """With its content, and the smaller copy that the model got where there is one."""
    line = write_line("attachment", attachment, ATTACHMENT_COLUMNS)
    more = {"data": _read(attachment.digest)}
    if attachment.sent not in ("", attachment.digest):
        more |= {
            "sent_digest": attachment.sent,
            "sent_type": attachment.sent_type,
            "sent_data": _read(attachment.sent),
        }
    return line | {name: value for name, value in more.items() if value is not None}


def _read(digest: str) -> str | None:
    try:
        return base64.b64encode(read_blob(digest)).decode()
    except NotFound:
        return None
