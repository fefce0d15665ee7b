"""The lock of a session: its row."""

from django.db import connection

from conversations.domain.errors import NotFound


def lock_session(session_pk: int) -> bool:
    """Take the row's lock first, so that two callers cannot both find the session
    idle. Returns whether it is archived; raises NotFound."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE conversations_session SET rewind_count = rewind_count WHERE id = %s"
            " RETURNING archived_at",
            [session_pk],
        )
        found = cursor.fetchone()
    if found is None:
        raise NotFound("There is no such session.")
    return found[0] is not None
