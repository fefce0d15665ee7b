"""Exporting sessions in several formats, streamed, so that memory does not grow with a session."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import QuerySet

from conversations.archive.append import walk_rows
from conversations.archive.blobs import read_blob
from conversations.archive.message_formats import walk_messages
from conversations.archive.rights import workspaces_of
from conversations.archive.sessions import refuse_purged
from conversations.archive.transcript_plan import rewound_ranges
from conversations.archive.turns import COLUMNS
from conversations.domain.errors import NotFound
from conversations.domain.formats import ANTHROPIC, OPENAI
from conversations.domain.formats.contents import Message
from conversations.domain.formats.messages_api import split_system
from conversations.domain.messages import say
from conversations.domain.text import (
    dump_json,
    instant,
    null_constants,
    one_line,
    strip_terminal_codes,
)
from conversations.domain.turns import (
    ASSISTANT,
    SYSTEM,
    TOOL,
    USER,
    MalformedTurn,
    StoredTurn,
    attached_names,
    calls_of,
    read_blocks,
    read_metadata,
)
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
PAGE_ROWS = 100
ATTACHMENT_PAGE_ROWS = 20
MARKER_PAGE_ROWS = 10

# A session as lines of the interchange file, the complete format.


def choose_sessions(
    *, session: UUID | None = None, workspace: str | None = None
) -> Iterator[Session]:
    """Return the sessions to export, oldest first. Raise NotFound if ``session`` does not exist."""
    sessions = Session.objects.select_related("workspace", "owner", "parent").order_by("pk")
    if session is not None:
        sessions = sessions.filter(uuid=session)
        if not sessions.exists():
            raise NotFound("The session %(uuid)s does not exist.", uuid=session)
    if workspace is not None:
        sessions = sessions.filter(workspace__slug=workspace)
    return _by_key(sessions, page=PAGE_ROWS)


def _by_key(rows: QuerySet[Any], *, page: int, key: str = "pk") -> Iterator[Any]:
    last = 0
    while page_rows := list(rows.filter(**{f"{key}__gt": last}).order_by(key)[:page]):
        yield from page_rows
        last = getattr(page_rows[-1], key)


def session_lines(session: Session) -> Iterator[str]:
    """Yield the session as lines of JSON, without line ends.

    Raise NotFound before the first line if the session no longer exists, and Conflict after the
    last line if it was purged meanwhile."""
    # The session may have changed since the list was read, and its line must match its rows.
    try:
        session.refresh_from_db()
    except Session.DoesNotExist:
        raise NotFound("This session does not exist.") from None
    # Write only rows up to the counters in the session line, so that the export of a session in
    # use is consistent with that line.
    yield dump_json(write_line("session", session, SESSION_COLUMNS, version=VERSION))
    turns = Turn.objects.filter(session=session.pk, number__lt=session.next_turn)
    for row in walk_rows(turns, *COLUMNS, key="number"):
        line = write_line("turn", StoredTurn(**row), TURN_COLUMNS)
        for name, usual in (("token_count", 0), ("stop_reason", ""), ("complete", True)):
            if line[name] == usual:
                del line[name]
        yield dump_json(line)
    sent = Attachment.objects.filter(session=session.pk, turn_number__lt=session.next_turn)
    for attachment in _by_key(sent.select_related("added_by"), page=ATTACHMENT_PAGE_ROWS):
        yield dump_json(_attachment_line(attachment))
    events = ChatEvent.objects.filter(session=session.pk, seq__lt=session.next_seq)
    for row in walk_rows(events, *EVENT_COLUMNS, key="seq"):
        yield dump_json(write_line("event", ChatEvent(**row), EVENT_COLUMNS))
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
        # Read few at a time, because the text of a skill may be long.
        for marker in _by_key(rows.filter(session=session.pk), page=MARKER_PAGE_ROWS, key=key):
            yield dump_json(write_line(kind, marker, MARKER_COLUMNS[rows.model]))
    refuse_purged(session.pk)


def _attachment_line(attachment: Attachment) -> dict[str, Any]:
    line = write_line("attachment", attachment, ATTACHMENT_COLUMNS)
    contents = {"data": attachment.digest}
    if attachment.sent not in ("", attachment.digest):
        line |= {"sent_digest": attachment.sent, "sent_type": attachment.sent_type}
        contents["sent_data"] = attachment.sent
    for name, digest in contents.items():
        with suppress(NotFound):  # the content no longer exists
            line[name] = base64.b64encode(read_blob(digest)).decode()
    return line


# A session as Markdown, for reading.

SPEAKERS = {USER: "You", ASSISTANT: "Assistant", TOOL: "Tool", SYSTEM: "System"}

_BACKTICKS = re.compile(r"`{3,}")
_MARKUP = re.compile(r"([\\`*_\[\]<>#])")


def session_markdown(session: Session) -> Iterator[str]:
    """Yield the session as Markdown in pieces.

    Each turn has a heading; tool calls and outputs are code blocks. Replaced turns and answers
    that were cut off are marked. Raise Conflict if the session is purged meanwhile."""
    facts = [
        f"- Workspace: {_plain(session.workspace.name)}",
        f"- Session: {session.uuid}",
        f"- Model: {_plain(session.model)}" if session.model else "",
        f"- Created: {_moment(session.created_at)}",
        f"- Last active: {_moment(session.last_active_at)}",
        f"- Turns: {session.turn_count}",
    ]
    title = _plain(session.title) or "Untitled session"
    yield f"# {title}\n\n" + "\n".join(fact for fact in facts if fact) + "\n"
    rewound = rewound_ranges(session, source="turn")
    turns = Turn.objects.filter(session=session.pk, number__lt=session.next_turn)
    for row in walk_rows(turns, *COLUMNS, key="number"):
        turn = StoredTurn(**row)
        is_replaced = any(rewind.low <= turn.number <= rewind.high for rewind in rewound)
        marks = [
            f"turn {turn.number}",
            _moment(turn.created_at),
            "replaced" if is_replaced else "",
            "" if turn.complete else "cut off",
        ]
        speaker = SPEAKERS[turn.role]
        if turn.role == TOOL and turn.tool_name:
            speaker = f"Tool: {_plain(turn.tool_name)}"
        parts = [f"## {speaker}", f"*{', '.join(mark for mark in marks if mark)}*", *_body(turn)]
        yield "\n" + "\n\n".join(parts) + "\n"
    refuse_purged(session.pk)


def _body(turn: StoredTurn) -> Iterator[str]:
    for name in attached_names(turn):
        yield f"Attached: {_plain(name)}"
    if turn.role == TOOL:
        if read_metadata(turn).get("ok") is False:
            yield "Failed."
        yield fenced(strip_terminal_codes(turn.content))
        return
    try:
        blocks = read_blocks(turn) or []
    except MalformedTurn:  # the content is written without the thinking
        thinking = ""
    else:
        parts = [str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking"]
        thinking = "\n\n".join(parts).strip() or str(read_metadata(turn).get("thinking") or "")
    if thinking:
        yield "Thinking:"
        yield fenced(thinking)
    if turn.content.strip():
        yield turn.content.rstrip()
    for call in calls_of(turn) if turn.role == ASSISTANT else ():
        name = one_line(str(call.get("name") or "tool").replace("`", "'"), limit=120)
        yield f"Tool call `{name}`:"
        text = json.dumps(call.get("input"), ensure_ascii=False, indent=2)
        yield fenced(text.encode("utf-8", "backslashreplace").decode(), language="json")


def fenced(text: str, *, language: str = "") -> str:
    """Return the text as a code block, with a fence longer than any in the text."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip('\n')}\n{fence}"


def _plain(text: str) -> str:
    return _MARKUP.sub(r"\\\1", one_line(text, limit=200))


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def session_messages(session: Session, *, format: str) -> Iterator[str]:
    """Yield the session as one line of JSON, in pieces.

    The object has the session's facts, then ``system`` if the format has it apart from the
    messages, then ``messages``. Raise Conflict before the last piece if the session was purged
    meanwhile."""
    facts = {
        "session": str(session.uuid),
        "workspace": session.workspace.slug,
        "key": session.key,
        "title": session.title,
        "model": session.model,
        "created_at": instant(session.created_at),
    }
    head = dump_json({name: value for name, value in facts.items() if value})
    messages = (message for _, message in walk_messages(session, format=format))
    first = next(messages, None)
    yield head[:-1]
    if format == ANTHROPIC:
        front: list[Message] = []
        while first is not None and first["role"] == SYSTEM:
            front.append(first)
            first = next(messages, None)
        system, _ = split_system(front)
        if system:
            yield f',"system":{null_constants(dump_json(system))}'
    yield ',"messages":['
    if first is not None:
        yield null_constants(dump_json(first))
    for message in messages:
        yield "," + null_constants(dump_json(message))
    refuse_purged(session.pk)
    yield "]}\n"


def session_text(session: Session) -> Iterator[str]:
    """Yield the session's interchange lines with line ends."""
    return (line + "\n" for line in session_lines(session))


def own_session_text(user: User) -> Iterator[bytes]:
    """Yield an interchange file of a person's sessions, oldest first."""
    # Sessions in workspaces that the person has left may no longer be read.
    sessions = Session.objects.filter(owner=user, workspace__in=workspaces_of(user.pk))
    for row in walk_rows(sessions, "pk", key="pk"):
        of_key = Session.objects.select_related("workspace", "owner", "parent")
        for session in of_key.filter(pk=row["pk"]):  # none if the session was purged meanwhile
            for line in session_text(session):
                yield line.encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format of exported sessions. ``says`` is its label, ``ending`` the file name extension."""

    says: str
    write: Callable[[Session], Iterator[str]]
    ending: str
    content_type: str


# The first format is the default.
FORMATS = {
    "markdown": ExportFormat(
        say("Markdown, for reading"), session_markdown, "md", "text/markdown; charset=utf-8"
    ),
    "jsonl": ExportFormat(
        say("JSON lines, complete"), session_text, "jsonl", "application/jsonl; charset=utf-8"
    ),
    **{
        name: ExportFormat(
            says, partial(session_messages, format=name), f"{name}.json", "application/json"
        )
        for name, says in (
            (ANTHROPIC, say("Messages of the Messages API")),
            (OPENAI, say("Messages of OpenAI's chat completions")),
        )
    },
}
