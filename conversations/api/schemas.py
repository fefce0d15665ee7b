"""Shapes that several operations share. Times are UTC in ISO 8601."""

from ninja import Schema


class Page[T](Schema):
    """A page of a list. ``next`` and ``previous`` are cursors for further pages, null at
    the end."""

    items: list[T]
    next: str | None = None
    previous: str | None = None
