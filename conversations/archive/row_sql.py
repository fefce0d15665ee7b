"""How a turn and an event become rows of their tables: for appending and importing."""

from datetime import UTC, datetime
from typing import Any

from django.db import connection

from conversations.domain.invisible_chars import without_unseen
from conversations.domain.text import one_line, strip_marks
from conversations.domain.turns import NewTurn

PREVIEW_CHARS = 160
TITLE_CHARS = 80

INSERT_TURN = (
    "INSERT INTO conversations_turn (session_id, number, role, content, blocks, tool_calls,"
    " tool_call_id, tool_name, token_count, stop_reason, complete, metadata, created_at,"
    " digest) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
INSERT_EVENT = (
    "INSERT INTO conversations_chatevent (session_id, seq, event_type, payload,"
    " turn_number, created_at, digest, html, render_version)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)


def turn_values(
    session_pk: int, turn: NewTurn, *, number: int, created_at: datetime, digest: str
) -> tuple[Any, ...]:
    """The parameters of :data:`INSERT_TURN`."""
    return (
        session_pk,
        number,
        turn.role,
        turn.content,
        turn.blocks,
        turn.tool_calls,
        turn.tool_call_id,
        turn.tool_name,
        turn.token_count,
        turn.stop_reason,
        turn.complete,
        turn.metadata,
        moment_value(created_at),
        digest,
    )


def moment_value(moment: datetime) -> Any:
    """An instant as the database takes it."""
    return connection.ops.adapt_datetimefield_value(moment.astimezone(UTC))


def read_moment(value: datetime) -> datetime:
    """An instant as the database gives it; SQLite's are UTC and do not say so."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def updated_words(turn: NewTurn, *, title: str, preview: str) -> tuple[str, str]:
    """The session's title and preview after this turn: a list shows the first
    message of the person and the last message."""
    if turn.role not in ("user", "assistant") or not turn.content.strip():
        return title, preview
    if turn.role == "user" and not title:
        title = one_line(without_unseen(turn.content[: TITLE_CHARS * 8]), limit=TITLE_CHARS)
    return title, one_line(without_unseen(strip_marks(turn.content)), limit=PREVIEW_CHARS)
