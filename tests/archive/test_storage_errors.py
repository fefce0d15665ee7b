"""Translation of storage errors, tested with exceptions of the drivers and the system."""

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
    raising(psycopg.OperationalError),  # as when the server closed the connection
]
OTHER = [raising(postgres.UniqueViolation), raising(postgres.QueryCanceled), raising(psycopg.Error)]


def catch(fail: Callable[[Path], None], folder: Path, *, wrapped: bool) -> Exception:
    """Return the error that ``fail`` raises, or an error that has it as its cause."""
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
def test_storage_failure_is_translated_into_one_of_two_errors(
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
def test_other_errors_are_not_translated(fail: Callable[[Path], None], tmp_path: Path) -> None:
    assert translate_storage_error(catch(fail, tmp_path, wrapped=True)) is None


def test_own_errors_keep_their_type() -> None:
    full = StorageFull("No room.")
    assert translate_storage_error(full) is full
    busy = Conflict("This session is busy.")
    busy.__cause__ = postgres.DiskFull("no room")
    assert translate_storage_error(busy) is None
    assert translate_storage_error(OSError(errno.EACCES, "not permitted")) is None
