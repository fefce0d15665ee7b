"""Storage: free disk space, refusing work before a disk is full, and errors of disk and database.

Messages are small and must always be stored. Larger writes (imports, attachments, copies of files,
commands, exports) are refused while less than ``LOOM_MIN_FREE_MIB`` is free, so that the rest is
left for messages.
"""

import errno
import logging
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DataError, OperationalError, connection, transaction

from conversations.domain.errors import (
    DATABASE_RETRY_AFTER_SECONDS,
    DATABASE_UNAVAILABLE,
    LoomError,
    StorageFull,
    Unavailable,
)
from conversations.domain.messages import say

logger = logging.getLogger(__name__)

# Translation of database and disk errors for the caller

FULL = say("The server’s disk is full. Nothing that was saved is lost.")
AWAY = say("The database is not responding at the moment. Nothing that was saved is lost.")

# The beginnings of statements that change nothing by themselves
READING_SQL = ("SELECT", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

# If a shared-memory file cannot grow, SQLite reports an I/O error instead of FULL.
_SQLITE_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_SQLITE_PRIMARY = 0xFF  # Mask for the primary code in an extended result code

# PostgreSQL's error codes (SQLSTATE). After a failover, the old address may be read-only for a
# moment.
_POSTGRES_FULL = "53100"
_POSTGRES_AWAY = {
    "53300": "too many connections",
    "57P01": "admin shutdown",
    "57P02": "crash shutdown",
    "57P03": "cannot connect now",
    "57P05": "idle session timeout",
    "25P03": "idle in transaction session timeout",
    "25006": "read-only transaction",
}
_CONNECTION_CLASS = "08"

MAX_END_MS = 2000  # How long PostgreSQL waits for the end of a terminated backend process

_STATUS = "SELECT pg_xact_status(%s::xid8)"
_END_PROCESS = """
    SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE backend_xid = %s::xid8::xid
"""


def translate_storage_error(error: BaseException) -> LoomError | None:
    """Return the storage error that caused ``error``, or None for any other error.

    Return StorageFull if no data can be written, and Unavailable (``database_unavailable``) if the
    database cannot be reached. The causes of the error are checked too.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, LoomError):
            is_storage = isinstance(cause, StorageFull) or cause.code == DATABASE_UNAVAILABLE
            return cause if is_storage else None
        if _is_full(cause):
            return StorageFull(FULL)
        if _is_away(cause):
            return database_unavailable()
        cause = cause.__cause__
    return None


def database_unavailable() -> Unavailable:
    """Return the error for a caller while the database cannot be reached."""
    return Unavailable(AWAY, code=DATABASE_UNAVAILABLE, retry_after=DATABASE_RETRY_AFTER_SECONDS)


def is_storage_error(error: BaseException) -> bool:
    return translate_storage_error(error) is not None


class WriteDetector:
    """Detects whether a writing statement was sent.

    A statement counts even if it was not answered, because the answer can be lost after the write.
    """

    were_sent = False

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.were_sent = self.were_sent or not sql.lstrip(" (\n").startswith(READING_SQL)
        return execute(sql, params, many, context)


@contextmanager
def watch_writes() -> Iterator[WriteDetector]:
    """Watch the statements that this thread executes inside the block."""
    writes = WriteDetector()
    with connection.execute_wrapper(writes):
        yield writes


def transaction_id() -> str:
    """Return the id of the current transaction of PostgreSQL, for :func:`was_committed`.

    The id is empty if the transaction has written nothing. SQLite needs no such id, because it
    always reports whether a commit succeeded.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(pg_current_xact_id_if_assigned()::text, '')")
        return str(cursor.fetchone()[0])


def was_committed(transaction: str) -> bool:
    """Return whether a transaction was committed whose COMMIT was not answered.

    Raise OperationalError if this is not known, because the transaction cannot be ended.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(_STATUS, [transaction])
            [status] = cursor.fetchone()
            if status == "in progress":
                # The transaction's client is gone. If the network broke and the server does not
                # notice, it would keep the transaction's locks for hours.
                cursor.execute(_END_PROCESS, [MAX_END_MS, transaction])
                cursor.execute(_STATUS, [transaction])
                [status] = cursor.fetchone()
    except DataError:  # the server crashed before it stored the id, so the id is unknown
        return False
    if status not in ("committed", "aborted"):
        raise OperationalError(f"The transaction is {status}.") from database_unavailable()
    return bool(status == "committed")


def _is_full(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in _SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno in _FULL_ERRNOS
    return getattr(error, "sqlstate", None) == _POSTGRES_FULL


def _is_away(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        primary = _sqlite_code(error) & _SQLITE_PRIMARY
        return primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN)
    if "psycopg" not in sys.modules:  # psycopg is not loaded with SQLite, to save memory
        return False
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InternalError):
        return False
    if error.sqlstate in _POSTGRES_AWAY:
        return True
    # An error without a SQLSTATE does not come from the server: the connection was refused or lost.
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None or error.sqlstate.startswith(_CONNECTION_CLASS)
    )


def _sqlite_code(error: sqlite3.Error) -> int:
    """Return the extended result code, or 0 if the sqlite3 module itself raised the error."""
    return getattr(error, "sqlite_errorcode", 0)


MIB = 2**20

# The size of a test write. It must be more than the space left in the allocated blocks of existing
# files and in SQLite's write-ahead log.
PROBE_BYTES = 64 * 1024

# The minimum time between two probes of :meth:`DiskMonitor.find_problem`.
PROBE_INTERVAL_SECONDS = 1.0

# How long a probe waits for SQLite's write lock. If another writer has it, writing works.
PROBE_WAIT_MS = 500

# The factor of the threshold that must be free before the shortage is over. It keeps a disk with
# free space near the threshold from filling the log.
RECOVERY_FACTOR = 1.1


def min_free_bytes() -> int:
    return int(settings.LOOM.min_free_mib) * MIB


def free_bytes(folder: Path) -> int:
    """Return the bytes that the server's user can still write on the file system of a folder.

    If the folder does not exist, use its nearest existing parent.
    """
    while True:
        try:
            status = os.statvfs(folder)
        except FileNotFoundError:
            if folder == folder.parent:
                raise
            folder = folder.parent
        else:
            return status.f_bavail * status.f_frsize


def data_free_bytes() -> int:
    """Return the free bytes for the data folder or the SQLite database, whichever has less."""
    return min(map(free_bytes, _data_folders()))


def require_space(what: str, *folders: Path) -> None:
    """Raise StorageFull while disk space is short for the data or in one of the folders.

    ``what`` is the subject of the error's sentence, made by ``domain.messages.say``.
    """
    free = min(data_free_bytes(), *map(free_bytes, folders)) if folders else data_free_bytes()
    if free < min_free_bytes():
        raise StorageFull(
            "The server's disk is nearly full (%(free)s MiB free). %(what)s must wait "
            "until %(needed)s MiB are free.",
            free=free // MIB,
            what=what,
            needed=settings.LOOM.min_free_mib,
        )


def _data_folders() -> list[Path]:
    folders = [Path(settings.LOOM.data_dir)]
    if connection.vendor == "sqlite":
        folders.append(Path(connection.settings_dict["NAME"]).parent)
    return folders


def probe_writes() -> None:
    """Write to the data folder and to the database. Raise OSError or DatabaseError on failure.

    The database write is committed, because a write that is rolled back never reaches the disk.
    That write alone does not detect a full disk while SQLite's write-ahead log has room for a page,
    so a file is written too.
    """
    for folder in _data_folders():
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(PROBE_BYTES))  # some file systems do not store zeros
            os.fsync(file.fileno())
    with connection.cursor() as cursor:
        if connection.vendor != "sqlite":
            _touch_row()
            return
        [timeout_ms] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {PROBE_WAIT_MS}")
        try:
            _touch_row()
        except OperationalError as error:
            if "locked" not in str(error):
                raise
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def _touch_row() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_content_type SET model = model"
            " WHERE id = (SELECT MIN(id) FROM django_content_type)"
        )


class DiskMonitor:
    """The state of the disk as this process knows it. Changes are logged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_low = False
        self._problem: Exception | None = None
        self._next_probe_at = 0.0

    def is_low(self) -> bool:
        """Return whether disk space is short now. This is cheap."""
        free, needed = data_free_bytes(), min_free_bytes()
        fields = {"free_mib": free // MIB, "min_free_mib": needed // MIB}
        with self._lock:
            if free < needed and not self._is_low:
                logger.warning("disk_space_low", extra={"fields": fields})
                self._is_low = True
            elif self._is_low and free >= needed * RECOVERY_FACTOR:
                logger.info("disk_space_recovered", extra={"fields": fields})
                self._is_low = False
        return free < needed

    def find_problem(self) -> Exception | None:
        """Return why data cannot be written, or None if they can. See :func:`probe_writes`."""
        with self._lock:
            if time.monotonic() >= self._next_probe_at:
                before, self._problem = self._problem, None
                try:
                    probe_writes()
                except Exception as error:
                    self._problem = error
                self._next_probe_at = time.monotonic() + PROBE_INTERVAL_SECONDS
                if self._problem is not None and before is None:
                    reason = {"error_class": type(self._problem).__name__, "reason": self._problem}
                    logger.error("write_probe_failed", extra={"fields": reason})
            return self._problem


MONITOR = DiskMonitor()
