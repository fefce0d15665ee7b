"""SQLite: connections that outlast their requests, and the line for the write lock."""

import itertools
import re
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

from loomweb.env import BASE_DIR
from loomweb.sqlite3.base import MAX_IDLE_CONNECTIONS, close_idle

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="they are SQLite's"),
]


@pytest.fixture(autouse=True)
def _nothing_idle() -> Iterator[None]:
    connection.ensure_connection()  # Otherwise it would reuse one that a test has closed.
    close_idle()
    yield
    close_idle()


def open_connection() -> BaseDatabaseWrapper:
    """Open a second connection, as another thread would have."""
    opened = connections.create_connection(DEFAULT_DB_ALIAS)
    opened.ensure_connection()
    return opened


def begin(on: BaseDatabaseWrapper) -> None:
    with on.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")


def count_groups(of: BaseDatabaseWrapper) -> int:
    with of.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM auth_group")
        return int(cursor.fetchone()[0])


def test_a_closed_connection_is_used_again() -> None:
    first = open_connection()
    raw, before = first.connection, count_groups(first)
    first.close()
    Group.objects.create(name="Gardeners")
    second, third = open_connection(), open_connection()
    assert second.connection is raw
    assert count_groups(second) == before + 1
    assert third.connection is not raw  # the second one is still using it
    second.close()
    third.close()


def test_a_waiting_writer_comes_before_one_that_begins_again() -> None:
    writes, is_writing, is_over = itertools.count(), threading.Event(), threading.Event()
    last = 0

    def write_again_and_again() -> None:
        nonlocal last
        while not is_over.is_set():
            with transaction.atomic():
                last = next(writes)
                is_writing.set()
                sleep(0.002)
                is_writing.clear()
        connection.close()

    thread = threading.Thread(target=write_again_and_again)
    thread.start()
    try:
        for _ in range(30):
            is_writing.wait()
            before = last
            with transaction.atomic():
                assert last - before <= 1
    finally:
        is_over.set()
        thread.join()


def test_a_connection_that_had_to_wait_is_used_again() -> None:
    first, other = open_connection(), open_connection()
    raw = first.connection
    begin(other)
    timer = threading.Timer(0.05, other.connection.rollback)
    timer.start()
    first.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    first.rollback()
    first.close()
    timer.join()
    again = open_connection()
    assert again.connection is raw
    again.close()
    other.close()


def test_the_lines_file_has_the_permissions_of_the_database() -> None:
    database = Path(connection.settings_dict["NAME"])
    line = database.with_name(f"{database.name}-line")
    line.unlink(missing_ok=True)
    database.chmod(0o660)
    with transaction.atomic():
        assert line.stat().st_mode == database.stat().st_mode
    database.chmod(0o600)


def test_a_lock_timeout_raises_and_leaves_the_connection_usable() -> None:
    other = open_connection()
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 20")
        begin(other)
        with pytest.raises(OperationalError, match="locked"), transaction.atomic():
            pass
        with other.cursor() as cursor:
            cursor.execute("ROLLBACK")
        with transaction.atomic(), connection.cursor() as cursor:
            assert cursor.execute("PRAGMA busy_timeout").fetchone() == (20,)
    finally:
        connection.close()
        other.close()


def test_idle_connections_are_kept_up_to_the_limit() -> None:
    opened = [open_connection() for _ in range(MAX_IDLE_CONNECTIONS + 2)]
    raw = {id(one.connection) for one in opened}
    held: list[Any] = [one.connection for one in opened]
    for one in opened:
        one.close()
    again = [open_connection() for _ in held]
    assert sum(id(one.connection) in raw for one in again) == MAX_IDLE_CONNECTIONS
    for one in again:
        one.close()


@pytest.mark.parametrize("left", ["transaction", "statement", "error"])
def test_a_connection_with_unfinished_work_or_an_error_is_not_kept(left: str) -> None:
    first = open_connection()
    raw, before = first.connection, count_groups(first)
    cursor = first.cursor()
    if left == "transaction":
        cursor.execute("BEGIN")
        cursor.close()
        del cursor
    elif left == "statement":
        # The rows are not read to the end, so the connection would not see the new group.
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


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="it takes SQLite's program")
def test_the_backup_of_the_readme_ends_while_others_commit(tmp_path: Path) -> None:
    command = re.search(r"^.*\.backup .*$", (BASE_DIR / "README.md").read_text(), re.MULTILINE)
    assert command
    (tmp_path / "var").mkdir()
    writing = sqlite3.connect(tmp_path / "var/loom.sqlite3", isolation_level=None)
    with closing(writing):
        writing.execute("PRAGMA journal_mode = WAL")
        writing.execute("CREATE TABLE beds (id INTEGER PRIMARY KEY, plants BLOB)")
        writing.execute("INSERT INTO beds (plants) VALUES (zeroblob(100000000))")
        backup = subprocess.Popen(command[0], shell=True, cwd=tmp_path)
        try:
            deadline = monotonic() + 20
            while backup.poll() is None and monotonic() < deadline:
                writing.execute("INSERT INTO beds (plants) VALUES (zeroblob(10))")
            assert backup.poll() == 0
        finally:
            backup.kill()
    made = tmp_path / "backup.sqlite3"
    assert made.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(made)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("SELECT length(plants) FROM beds").fetchone() == (100_000_000,)
