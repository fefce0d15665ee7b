"""Walking through all rows of a chain in bounded memory.

Rows are read by key in pages, never by one long-running cursor: on SQLite that
would keep the log from being checkpointed, on PostgreSQL it needs a transaction.
Pages shrink where rows are long.
"""

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

MOST_ROWS, FIRST_ROWS = 50, 10
PAGE_CHARS = 2_000_000


def walk_rows(rows: QuerySet[Any], *columns: str, key: str) -> Iterator[dict[str, Any]]:
    """The rows as dicts of these columns, in the order of ``key``, which is unique
    among them, positive and one of the columns."""
    last, size = 0, FIRST_ROWS
    while True:
        page = list(rows.filter(**{f"{key}__gt": last}).order_by(key).values(*columns)[:size])
        if not page:
            return
        is_last = len(page) < size
        last, size = page[-1][key], _next_size(page)
        yield from page
        if is_last:
            return


def _next_size(page: list[dict[str, Any]]) -> int:
    chars = sum(len(value) for row in page for value in row.values() if isinstance(value, str))
    return max(1, min(MOST_ROWS, PAGE_CHARS * len(page) // max(1, chars)))
