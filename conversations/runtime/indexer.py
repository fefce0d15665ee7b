"""Keeping the search index warm, when there is nothing better to do.

Entries are made on a reader's thread; storing a few at a time takes the writer's
thread for milliseconds, so no append waits for more than that. Processes that
share a database may do the same work twice, never wrongly.
"""

import asyncio

from conversations.search.indexing import (
    Progress,
    merge_index,
    prepare_batch,
    sessions_to_index,
    store_batch,
)

from .database import Database

LOOK_SECONDS = 2.0
"""Between two looks for turns without entries. A search does not wait for it."""

TURNS_AT_ONCE, PAUSE_SECONDS = 10, 0.02
"""What one transaction stores, and how long others then have the database."""

MERGES_AT_ONCE = 50

UNMERGED = 200
"""Batches after which merging no longer waits for a quiet moment. A step that meets
a very common word in a large index takes a tenth of a second instead of milliseconds."""


class IndexWorker:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._unmerged = 0

    async def run(self) -> None:
        """Index what comes in, for ever; to be run as a task."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not await self.catch_up() and self._unmerged:
                await self._merge()

    async def catch_up(self) -> bool:
        """Index what is waiting. False: nothing was."""
        waiting = await self._database.readers.read(sessions_to_index)
        for progress in waiting:
            await self._index(progress)
        return bool(waiting)

    async def _index(self, progress: Progress) -> None:
        at: Progress | None = progress
        while at is not None and at.waiting > 0:
            batch = await self._database.readers.read(prepare_batch, at, size=TURNS_AT_ONCE)
            at = await self._database.writer.write(store_batch, batch)
            self._unmerged += 1
            await asyncio.sleep(PAUSE_SECONDS)
            if self._unmerged >= UNMERGED:
                await self._merge()

    async def _merge(self) -> None:
        self._unmerged = 0
        for _ in range(MERGES_AT_ONCE):
            if not await self._database.writer.write(merge_index):
                return
            await asyncio.sleep(PAUSE_SECONDS)
        self._unmerged = 1  # there is more to do
