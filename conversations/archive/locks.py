"""The lock of a session: its row."""

from django.db import connection
from django.utils import timezone

from conversations.domain.errors import NotFound

OPEN, ARCHIVED, EXPIRED = "", "archived", "expired"
"""Whether a session can be gone on with, and if not, why."""


def lock_session(session_pk: int) -> str:
    """Take the row's lock first, so that two callers cannot both find the session
    idle. Returns how it is closed, if it is; raises NotFound.

    (The columns come back as they are: in RETURNING, SQLite 3.40 takes every column of
    this table for NOT NULL where it is asked about that.)"""
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE conversations_session SET rewind_count = rewind_count WHERE id = %s"
            " RETURNING archived_at, expires_at <= %s",
            [session_pk, now],
        )
        found = cursor.fetchone()
    if found is None:
        raise NotFound("There is no such session.")
    archived_at, is_over = found
    return ARCHIVED if archived_at is not None else EXPIRED if is_over else OPEN
