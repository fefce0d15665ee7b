"""Exporting sessions as interchange lines, streamed.

A session's counters are read first; only rows below them are written, so that an
export of a session in use is whole as of its first line. Memory does not
grow with the session.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from conversations.archive.row_sql import walk_rows
from conversations.archive.turns import COLUMNS
from conversations.domain.digest import instant
from conversations.domain.errors import NotFound
from conversations.domain.text import dump_json
from conversations.domain.turns import StoredTurn
from conversations.models import (
    ChatEvent,
    Compaction,
    JournalGap,
    Rewind,
    Session,
    SessionSkill,
    Turn,
)

from .attachments import attachment_lines
from .fields import BLOCKS, METADATA, PAYLOAD, STATE, TOOL_CALLS

VERSION = 1
PAGE = 100


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
    return _by_key(found)


def _by_key(sessions: QuerySet[Session]) -> Iterator[Session]:
    last = 0
    while page := list(sessions.filter(pk__gt=last)[:PAGE]):
        yield from page
        last = page[-1].pk


def session_lines(session: Session) -> Iterator[str]:
    """The session as lines of JSON, without line ends. Raises NotFound, before the first
    one, where it is gone."""
    # What was read with the list may be old by now, and must fit to the rows.
    try:
        session.refresh_from_db()
    except Session.DoesNotExist:
        raise NotFound("There is no such session.") from None
    yield dump_json(_session_line(session))
    yield from _turn_lines(session)
    yield from attachment_lines(session)
    yield from _event_lines(session)
    yield from _rewind_lines(session)
    yield from _gap_lines(session)
    yield from _skill_lines(session)
    yield from _compaction_lines(session)


def _session_line(session: Session) -> dict[str, Any]:
    line: dict[str, Any] = {
        "type": "session",
        "version": VERSION,
        "uuid": str(session.uuid),
        "workspace": session.workspace.slug,
        "owner": session.owner.get_username(),
        "key": session.key,
        "channel": session.channel,
        "title": session.title,
        "title_is_chosen": session.title_is_chosen,
        "model": session.model,
        "system_prompt": session.system_prompt,
        "instructions": session.instructions,
        **STATE.write(session.state),
        "state_turn": session.state_turn,
        "floor_turn": session.floor_turn,
        "parent": str(session.parent.uuid) if session.parent else None,
        "fork_turn": session.fork_turn,
        "created_at": instant(session.created_at),
        "last_active_at": instant(session.last_active_at),
        "expires_at": _instant(session.expires_at),
        "archived_at": _instant(session.archived_at),
        "pinned_at": _instant(session.pinned_at),
        "turns": session.turn_count,
        "events": session.last_seq,
        "turn_digest": session.turn_digest,
        "event_digest": session.event_digest,
        "journal_turn": session.journal_turn,
        "input_tokens": session.input_tokens,
        "output_tokens": session.output_tokens,
        "cached_tokens": session.cached_tokens,
        "cost_microusd": session.cost_microusd,
        **METADATA.write(session.metadata),
    }
    return _without_nothing(line)


def _without_nothing(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if value is not None}


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else instant(moment)


def _turn_lines(session: Session) -> Iterator[str]:
    turns = Turn.objects.filter(session=session.pk, number__lt=session.next_turn)
    for row in walk_rows(turns, *COLUMNS, key="number"):
        turn = StoredTurn(**row)
        line: dict[str, Any] = {
            "type": "turn",
            "number": turn.number,
            "role": turn.role,
            "content": turn.content,
            **BLOCKS.write(turn.blocks),
            **TOOL_CALLS.write(turn.tool_calls),
            "tool_call_id": turn.tool_call_id,
            "tool_name": turn.tool_name,
            "token_count": turn.token_count or None,
            "stop_reason": turn.stop_reason or None,
            "complete": None if turn.complete else False,
            **METADATA.write(turn.metadata),
            "created_at": instant(turn.created_at),
        }
        yield dump_json(_without_nothing(line))


def _event_lines(session: Session) -> Iterator[str]:
    events = ChatEvent.objects.filter(session=session.pk, seq__lt=session.next_seq)
    columns = ("seq", "event_type", "payload", "turn_number", "created_at")
    for event in walk_rows(events, *columns, key="seq"):
        line = {
            "type": "event",
            "seq": event["seq"],
            "event_type": event["event_type"],
            **PAYLOAD.write(event["payload"]),
            "turn": event["turn_number"],
            "created_at": instant(event["created_at"]),
        }
        yield dump_json(_without_nothing(line))


def _rewind_lines(session: Session) -> Iterator[str]:
    rewinds = Rewind.objects.select_related("actor").filter(
        session=session.pk, to_turn__lt=session.next_turn, to_seq__lt=session.next_seq
    )
    for rewind in rewinds.order_by("pk"):
        line = {
            "type": "rewind",
            "from_turn": rewind.from_turn,
            "to_turn": rewind.to_turn,
            "from_seq": rewind.from_seq,
            "to_seq": rewind.to_seq,
            "reason": rewind.reason,
            "actor": rewind.actor.get_username() if rewind.actor else None,
            "created_at": instant(rewind.created_at),
        }
        yield dump_json(_without_nothing(line))


def _gap_lines(session: Session) -> Iterator[str]:
    gaps = JournalGap.objects.filter(
        session=session.pk, to_turn__lte=session.journal_turn, after_seq__lt=session.next_seq
    )
    columns = ("from_turn", "to_turn", "after_seq")
    for gap in gaps.order_by("from_turn").values(*columns):
        yield dump_json({"type": "gap"} | gap)


def _skill_lines(session: Session) -> Iterator[str]:
    skills = SessionSkill.objects.filter(session=session.pk, turn_number__lt=session.next_turn)
    columns = ("pk", "name", "path", "content", "digest", "turn_number", "loaded_at", "metadata")
    for skill in walk_rows(skills, *columns, key="pk"):
        line = {
            "type": "skill",
            "name": skill["name"],
            "path": skill["path"],
            "content": skill["content"],
            "digest": skill["digest"],
            "turn": skill["turn_number"],
            "loaded_at": instant(skill["loaded_at"]),
            **METADATA.write(skill["metadata"]),
        }
        yield dump_json(line)


def _compaction_lines(session: Session) -> Iterator[str]:
    rows = Compaction.objects.select_related("actor", "undone_by").filter(
        session=session.pk, to_turn__lt=session.next_turn
    )
    for row in rows.order_by("pk"):
        line = {
            "type": "compaction",
            "uuid": str(row.uuid),
            "from_turn": row.from_turn,
            "to_turn": row.to_turn,
            "floor_before": row.floor_before,
            "summary": row.summary,
            "model": row.model,
            "reason": row.reason,
            "before_turns": row.before_turns,
            "after_turns": row.after_turns,
            "before_tokens": row.before_tokens,
            "after_tokens": row.after_tokens,
            "actor": row.actor.get_username() if row.actor else None,
            "created_at": instant(row.created_at),
            "undone_at": _instant(row.undone_at),
            "undone_by": row.undone_by.get_username() if row.undone_by else None,
            **METADATA.write(row.metadata),
        }
        yield dump_json(_without_nothing(line))
