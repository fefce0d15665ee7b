"""How turns and events become rows of their tables, and all of them are walked through."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from conversations.domain.invisible_chars import without_unseen
from conversations.domain.text import one_line, strip_marks
from conversations.domain.turns import CONTENT_COLUMNS, NewTurn, content_values

PREVIEW_CHARS = 160
TITLE_CHARS = 80

_TURN_COLUMNS = ("session_id", "number", *CONTENT_COLUMNS, "created_at", "digest")
INSERT_TURN = (
    f"INSERT INTO conversations_turn ({', '.join(_TURN_COLUMNS)})"  # noqa: S608 (constants)
    f" VALUES ({', '.join(['%s'] * len(_TURN_COLUMNS))})"
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
    return (session_pk, number, *content_values(turn), moment_value(created_at), digest)


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


FIRST_PAGE_ROWS, MAX_PAGE_ROWS, MAX_PAGE_CHARS = 10, 50, 2_000_000


def walk_rows(rows: QuerySet[Any], *columns: str, key: str) -> Iterator[dict[str, Any]]:
    """The rows as dicts of these columns, in the order of ``key``, which is unique
    among them, positive and one of the columns; in bounded memory."""
    # Never by one long-running cursor: on SQLite that would keep the log from being
    # checkpointed, on PostgreSQL it needs a transaction.
    last, size = 0, FIRST_PAGE_ROWS
    while True:
        page = list(rows.filter(**{f"{key}__gt": last}).order_by(key).values(*columns)[:size])
        if not page:
            return
        is_last, last = len(page) < size, page[-1][key]
        # Pages shrink where rows are long.
        chars = sum(len(value) for row in page for value in row.values() if isinstance(value, str))
        size = max(1, min(MAX_PAGE_ROWS, MAX_PAGE_CHARS * len(page) // max(1, chars)))
        yield from page
        if is_last:
            return
