"""How much room the disks have, and what is refused before they are full.

Messages are small and have to be kept whatever happens. What takes much room (imports,
attachments, copies of files, commands, exports) is refused while less than
``LOOM_MIN_FREE_MIB`` is free, so that the rest is left for messages.
"""

import logging
import os
import tempfile
import threading
import time
from pathlib import Path

from django.conf import settings
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection, transaction
from django.db.models import F

from conversations.domain.errors import StorageFull

logger = logging.getLogger(__name__)

MIB = 2**20

# A write of this size finds out whether there is room: more than what is left over in blocks
# that files have already, and in SQLite's log.
PROBE_BYTES = 64 * 1024

# For so long an answer of :func:`can_write` holds: whoever asks often writes no more.
PROBE_SECONDS = 1.0

# How long a probe waits for SQLite's one writer. Somebody who writes is a good sign.
PROBE_WAIT_MS = 500

# Times the threshold has to be free before the shortage counts as over, so that a disk around
# it does not fill the log.
ENOUGH_AGAIN = 1.1


def min_free_mib() -> int:
    return int(settings.LOOM.min_free_mib)


def min_free_bytes() -> int:
    return min_free_mib() * MIB


def free_bytes(folder: Path) -> int:
    """Bytes that the server's user can still write on the file system of a folder, or of
    the nearest folder above it that exists."""
    while True:
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            if folder == folder.parent:
                raise
            folder = folder.parent
        else:
            return found.f_bavail * found.f_frsize


def data_free_bytes() -> int:
    """On the file systems of the data folder and of a SQLite database, the least."""
    return min(map(free_bytes, _data_folders()))


def require_space(what: str, *folders: Path) -> None:
    """Raises StorageFull while room is short where the data are or in one of the folders.
    ``what`` is the subject of a sentence."""
    free = min(data_free_bytes(), *map(free_bytes, folders)) if folders else data_free_bytes()
    if free < min_free_bytes():
        raise StorageFull(
            f"The server's disk is nearly full ({free // MIB} MiB are free). {what} have to "
            f"wait until {min_free_mib()} MiB are free."
        )


def _data_folders() -> list[Path]:
    folders = [Path(settings.LOOM.data_dir)]
    if connection.vendor == "sqlite":
        folders.append(Path(connection.settings_dict["NAME"]).parent)
    return folders


def probe_writes() -> None:
    """Write to the data folder and to the database. Raises OSError or DatabaseError.

    The write to the database is committed: one that is rolled back never reaches the
    disk. It alone does not find a full disk either, as long as SQLite's log has room for
    a page; the file does."""
    for folder in _data_folders():
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(PROBE_BYTES))  # not zeros, which some file systems leave out
            os.fsync(file.fileno())
    with connection.cursor() as cursor:
        if connection.vendor != "sqlite":
            _touch_row()
            return
        [usual] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {PROBE_WAIT_MS}")
        try:
            _touch_row()
        except OperationalError as error:
            if "locked" not in str(error):
                raise
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {usual}")


def _touch_row() -> None:
    with transaction.atomic():
        first = ContentType.objects.order_by("pk").values("pk")[:1]
        ContentType.objects.filter(pk__in=list(first.values_list("pk", flat=True))).update(
            model=F("model")
        )


class DiskMonitor:
    """What is known of the disk in this process; says in the log when that changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_low = False
        self._problem: Exception | None = None
        self._until = 0.0

    def is_low(self) -> bool:
        """Whether room is short now; costs next to nothing."""
        free, wanted = data_free_bytes(), min_free_bytes()
        fields = {"free_mib": free // MIB, "min_free_mib": wanted // MIB}
        with self._lock:
            if free < wanted and not self._is_low:
                logger.warning("disk_space_low", extra={"fields": fields})
                self._is_low = True
            elif self._is_low and free >= wanted * ENOUGH_AGAIN:
                logger.info("disk_space_recovered", extra={"fields": fields})
                self._is_low = False
        return free < wanted

    def find_problem(self) -> Exception | None:
        """Why nothing can be written, None: it can. See :func:`probe_writes`."""
        with self._lock:
            if time.monotonic() >= self._until:
                before, self._problem = self._problem, None
                try:
                    probe_writes()
                except Exception as error:
                    self._problem = error
                self._until = time.monotonic() + PROBE_SECONDS
                if self._problem is not None and before is None:
                    reason = {"error_class": type(self._problem).__name__, "reason": self._problem}
                    logger.error("write_probe_failed", extra={"fields": reason})
            return self._problem


MONITOR = DiskMonitor()
