"""Connections to SQLite outlast the requests that opened them."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from loomweb.sqlite3.base import MAX_IDLE, close_idle

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="they are SQLite's"),
]


@pytest.fixture(autouse=True)
def _nothing_idle() -> Iterator[None]:
    connection.ensure_connection()  # Else it takes what a test has closed.
    close_idle()
    yield
    close_idle()


def open_connection() -> BaseDatabaseWrapper:
    """As another thread has it."""
    opened = connections.create_connection(DEFAULT_DB_ALIAS)
    opened.ensure_connection()
    return opened


def count_groups(of: BaseDatabaseWrapper) -> int:
    with of.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM auth_group")
        return int(cursor.fetchone()[0])


def test_the_next_request_gets_what_the_last_one_closed() -> None:
    first = open_connection()
    raw, before = first.connection, count_groups(first)
    first.close()
    Group.objects.create(name="Gardeners")
    second, third = open_connection(), open_connection()
    assert second.connection is raw
    assert count_groups(second) == before + 1
    assert third.connection is not raw  # two at once have one each
    second.close()
    third.close()


def test_as_many_are_kept_as_the_limit_says() -> None:
    opened = [open_connection() for _ in range(MAX_IDLE + 2)]
    raw = {id(one.connection) for one in opened}
    held: list[Any] = [one.connection for one in opened]
    for one in opened:
        one.close()
    again = [open_connection() for _ in held]
    assert sum(id(one.connection) in raw for one in again) == MAX_IDLE
    for one in again:
        one.close()


@pytest.mark.parametrize("left", ["transaction", "statement", "error"])
def test_none_is_kept_with_what_was_left_open(left: str) -> None:
    first = open_connection()
    raw, before = first.connection, count_groups(first)
    cursor = first.cursor()
    if left == "transaction":
        cursor.execute("BEGIN")
        cursor.close()
        del cursor
    elif left == "statement":
        # Not read to the end: its connection would go on without the new group.
        cursor.execute("SELECT count(*) FROM auth_group UNION ALL SELECT 2")
    else:
        with suppress(DatabaseError):
            cursor.execute("SELECT * FROM nowhere")
        cursor.close()
        del cursor
    first.close()
    Group.objects.create(name="Gardeners")
    second = open_connection()
    assert second.connection is not raw
    assert count_groups(second) == before + 1
    second.close()
