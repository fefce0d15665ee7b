"""A session whose search entries the database refuses.

PostgreSQL's index, for example, refuses very long words.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from conversations.models import Session
from conversations.models.search import ENTRIES
from conversations.search import indexing

_STATEMENTS = {
    "sqlite": (
        f"CREATE TRIGGER refused BEFORE INSERT ON {ENTRIES} WHEN NEW.session_id = {{pk}}"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "DROP TRIGGER refused",
    ),
    "postgresql": (
        "SET CONSTRAINTS ALL IMMEDIATE;"
        f" ALTER TABLE {ENTRIES} ADD CONSTRAINT refused CHECK (session_id <> {{pk}})",
        f"SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE {ENTRIES} DROP CONSTRAINT refused",
    ),
}


@contextmanager
def refused_entries(session: Session) -> Iterator[None]:
    refuse, accept = _STATEMENTS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(refuse.format(pk=session.pk))
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(accept)
        indexing._suspended_until.clear()  # another test's session may have the same key
