"""Reading what stands at some places, by one statement.

A place is a session's key and a turn's number. Conditions joined by OR would say the
same and take the ORM and SQLite ten times as long to make sense of.
"""

from collections.abc import Collection
from typing import Any

from django.db import connection

type Place = tuple[int, int]


def select_at(statement: str, places: Collection[Place]) -> list[tuple[Any, ...]]:
    """The rows of a statement that joins ``place`` (``session``, ``turn``); none, without
    asking, for no places. They are numbers of ours."""
    if not places:
        return []
    values = ", ".join(f"({session}, {turn})" for session, turn in places)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH place AS (SELECT CAST(column1 AS bigint) AS session,"
            f" CAST(column2 AS bigint) AS turn FROM (VALUES {values}) AS listed) {statement}"
        )
        return list(cursor.fetchall())
