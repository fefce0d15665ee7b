"""What the drivers' errors mean for whoever asked; the errors are real ones."""

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as postgres

from conversations.archive.storage import translate_storage_error
from conversations.domain.errors import Conflict, StorageFull, Unavailable


def fill_sqlite(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "full.sqlite3")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (text)")
        connection.execute("PRAGMA max_page_count = 3")
        connection.execute("INSERT INTO kept VALUES (zeroblob(100000))")


def lock_sqlite(folder: Path) -> None:
    first = sqlite3.connect(folder / "locked.sqlite3", isolation_level=None)
    first.execute("BEGIN EXCLUSIVE")
    second = sqlite3.connect(folder / "locked.sqlite3", timeout=0, isolation_level=None)
    try:
        second.execute("BEGIN IMMEDIATE")
    finally:
        first.close()
        second.close()


def open_nothing(folder: Path) -> None:
    sqlite3.connect(folder / "missing" / "data.sqlite3").close()


def connect_to_nobody(_: Path) -> None:
    psycopg.connect("host=127.0.0.1 port=1 dbname=x user=x connect_timeout=2")


def fill_disk(_: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def exceed_quota(_: Path) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def raising(kind: type[psycopg.Error]) -> Callable[[Path], None]:
    def fail(_: Path) -> None:
        raise kind("a message of the server")

    return fail


FULL = [fill_sqlite, fill_disk, exceed_quota, raising(postgres.DiskFull)]
AWAY = [
    lock_sqlite,
    open_nothing,
    connect_to_nobody,
    raising(postgres.AdminShutdown),
    raising(postgres.CrashShutdown),
    raising(postgres.CannotConnectNow),
    raising(postgres.TooManyConnections),
    raising(postgres.ConnectionFailure),
    raising(postgres.ReadOnlySqlTransaction),
    raising(psycopg.OperationalError),  # as for a connection that the server closed
]
OTHER = [raising(postgres.UniqueViolation), raising(postgres.QueryCanceled), raising(psycopg.Error)]


def catch(fail: Callable[[Path], None], folder: Path, *, wrapped: bool) -> Exception:
    """The error as it is, or as a Django database error that it is the cause of."""
    try:
        try:
            fail(folder)
        except Exception as error:
            if not wrapped:
                raise
            raise RuntimeError("what Django made of it") from error
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("fails", "expected", "code"),
    [(FULL, StorageFull, "storage_full"), (AWAY, Unavailable, "database_unavailable")],
    ids=["full", "away"],
)
def test_a_failure_of_the_storage_is_one_of_two_errors(
    fails: list[Callable[[Path], None]],
    expected: type[StorageFull | Unavailable],
    code: str,
    wrapped: bool,
    tmp_path: Path,
) -> None:
    for fail in fails:
        translated = translate_storage_error(catch(fail, tmp_path, wrapped=wrapped))
        assert isinstance(translated, expected), fail
        assert translated.code == code


@pytest.mark.parametrize("fail", OTHER)
def test_any_other_error_is_left_alone(fail: Callable[[Path], None], tmp_path: Path) -> None:
    assert translate_storage_error(catch(fail, tmp_path, wrapped=True)) is None


def test_an_error_of_ours_stays_what_it_is() -> None:
    full = StorageFull("No room.")
    assert translate_storage_error(full) is full
    busy = Conflict("This session is busy.")
    busy.__cause__ = postgres.DiskFull("no room")
    assert translate_storage_error(busy) is None
    assert translate_storage_error(OSError(errno.EACCES, "not permitted")) is None
