"""The built-in scheduler: runs ``conversations.features.retention`` every so often.

A run is no piece of an answer's work: it has a thread and a connection of its own. Of
the processes on one data folder one runs at a time, by a lock that the kernel lets go of
when the process ends.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from django.db import connection
from django.utils import timezone

from .service import run_retention

if TYPE_CHECKING:
    from conversations.runtime.ownership import only_one
from conversations.runtime.engine import Runtime

logger = logging.getLogger(__name__)

FIRST_SECONDS = 60.0
"""After the start at the latest: a server that is restarted often gets to it too."""

LOCK = "retention"


class RetentionWorker:
    def __init__(self, runtime: "Runtime") -> None:
        self._folder = runtime.options.data_dir / "run"
        self._interval = 60.0 * runtime.options.expire_minutes

    async def keep(self) -> None:
        """Run for ever; to be run as a task."""
        await asyncio.sleep(min(FIRST_SECONDS, self._interval))
        while True:
            await self.run_once()
            await asyncio.sleep(self._interval)

    async def run_once(self) -> bool:
        """Do what is due. False: another process is doing it, or it failed."""
        return await asyncio.to_thread(self._run)

    def _run(self) -> bool:
        with only_one(self._folder / LOCK) as is_ours:
            if not is_ours:
                return False
            try:
                run_retention(now=timezone.now())
            except Exception:
                logger.exception("retention_not_run")
                return False
            finally:
                connection.close()
        return True
