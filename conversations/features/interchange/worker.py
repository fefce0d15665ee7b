"""The worker that executes imports that were started on the page or by the API.

Imports run in a thread of their own with their own database connection, apart from runs. A file
lock lets only one of the processes on a data folder import at a time. The kernel releases the lock
when the process ends; the next process starts the interrupted import again.
"""

import asyncio
import logging
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection

from conversations.archive.rights import WRITE, rights_in
from conversations.archive.storage import require_space, translate_storage_error
from conversations.domain.errors import StorageFull, Unavailable
from conversations.domain.messages import say
from conversations.domain.text import dump_json
from conversations.runtime.ownership import try_lock

from . import service
from .import_rows import ImportedRowSource
from .import_sessions import ImportCounts
from .import_targets import ImportTarget
from .models import DONE, FAILED, RUNNING, Import
from .pipeline import ImportRun
from .reports import as_note, write_report
from .sources import UnreadableSource

if TYPE_CHECKING:
    from conversations.runtime.service import Runtime

logger = logging.getLogger(__name__)

LOCK = "imports"

INTERVAL_SECONDS = 1.0  # Between two checks for waiting imports, and between two progress updates.

MAX_ATTEMPTS = 3
MAX_REPORT_NOTES = 500

# The files of an archive may together be this many times as large as an upload may be.
MAX_GROWTH_FACTOR = 10

# An older file that belongs to no open import was left by a failed upload and is deleted.
MIN_ORPHAN_AGE_SECONDS = 24 * 3600.0


class ImportStopped(Exception):
    """A person has stopped the import, or the server is shutting down."""


class ImportWorker:
    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._data_dir = runtime.options.data_dir
        self._stopping = threading.Event()

    async def run(self) -> None:
        """Execute waiting imports until the task is cancelled."""
        self._stopping.clear()  # the worker is restarted after a failure
        try:
            while True:
                if await self._runtime.readers.read(service.open_imports().exists):
                    await asyncio.to_thread(self.run_waiting)
                await asyncio.sleep(INTERVAL_SECONDS)
        finally:
            self._stopping.set()

    def run_waiting(self) -> bool:
        """Execute all waiting imports. Return False if another process is doing that."""
        with try_lock(self._data_dir / "run" / LOCK) as is_ours:
            if not is_ours:
                return False
            try:
                while not self._stopping.is_set():
                    next_import = service.begin_next_import()
                    if next_import is None:
                        break
                    self._run(next_import)
                # Delete files that failed uploads left behind.
                needed = {
                    str(uuid) for uuid in service.open_imports().values_list("uuid", flat=True)
                }
                folder = self._data_dir / service.FOLDER
                for path in folder.iterdir() if folder.is_dir() else ():
                    is_old = time.time() - path.stat().st_mtime > MIN_ORPHAN_AGE_SECONDS
                    if path.name not in needed and is_old:
                        path.unlink(missing_ok=True)
            finally:
                connection.close()
        return True

    def _run(self, row: Import) -> None:
        path = service.import_path(self._data_dir, row.uuid)
        watch = _ImportProgress(row, self._stopping)
        try:
            error = self._import(row, path, watch)
        except ImportStopped:
            if self._stopping.is_set():
                return  # the next server process starts it again
            error = ""
        except Exception as exception:
            failure = translate_storage_error(exception)
            if isinstance(failure, Unavailable):
                raise  # the import stays open and is started again
            if isinstance(failure, StorageFull):
                error = say(
                    "%(reason)s Everything imported so far stays. Import the file again later.",
                    reason=failure.message,
                )
            else:
                logger.exception("import_failed")
                error = say("A server error ended the import. Everything imported so far stays.")
        watch.save(error)
        service.end_import(row, FAILED if error else DONE, error=error)

    def _import(self, row: Import, path: Path, watch: "_ImportProgress") -> str:
        if row.attempts > MAX_ATTEMPTS:
            return say("The server stopped %(count)s times during this import.", count=MAX_ATTEMPTS)
        if not row.user.is_active or WRITE not in rights_in(row.workspace, row.user).allowed:
            return say("You can no longer write in this workspace.")
        require_space(say("Imports"))
        try:
            watch.running.run(
                path, name=row.name, max_bytes=MAX_GROWTH_FACTOR * settings.LOOM.max_import_bytes
            )
        except UnreadableSource as error:
            return error.message
        except FileNotFoundError:
            return say("The uploaded file no longer exists. Upload it again.")
        counts = watch.counts
        has_sessions = (
            counts.sessions_added or counts.sessions_extended or counts.sessions_unchanged
        )
        return (
            "" if has_sessions or not counts.skipped else say("Nothing in the file could be read.")
        )


class _ImportProgress:
    def __init__(self, row: Import, stopping: threading.Event) -> None:
        self.counts = ImportCounts()
        target = ImportTarget(
            default_owner=row.user,
            owner=row.user,
            workspace=row.workspace,
            root=Path(row.workspace.root),
            is_confined=True,
        )
        self.running = ImportRun(target, self.counts, self.report, self.progress, row.format)
        self._pk = row.pk
        self._stopping = stopping
        self._notes: list[dict[str, Any]] = []
        self._dropped_count = 0
        self._next = time.monotonic()

    def report(self, line: ImportedRowSource, text: str) -> None:
        if len(self._notes) < MAX_REPORT_NOTES:
            place = line.place or say("line %(number)s", number=line.number)
            self._notes.append(as_note(place, text))
        else:
            self._dropped_count += 1

    def progress(self) -> None:
        """Save the progress from time to time.

        Raise ImportStopped, and StorageFull if storage space is low."""
        if self._stopping.is_set():
            raise ImportStopped
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + INTERVAL_SECONDS
            require_space(say("Imports"))
            if not self.save():
                raise ImportStopped

    def save(self, error: str = "") -> bool:
        """Save the progress and ``error``. Return False if the import is no longer running."""
        is_told = Import.objects.filter(pk=self._pk, state=RUNNING).update(
            counts=dump_json(asdict(self.counts)),
            report=write_report(self._notes, error),
            report_left=self._dropped_count,
            format=self.running.format,
        )
        return bool(is_told)
