"""Keeping the text of running answers on disk, a few times a second.

One clock for all runs of the process: whatever came in since the last beat goes
into one transaction, so a hundred answers cost as many commits as one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from conversations.archive.journal import Chunk, append_draft_chunks
from conversations.archive.storage import is_storage_error
from conversations.domain.errors import Unavailable

from .database import Writer

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Before what could not be written is tried again."""


class DraftWorker:
    """``interval`` in seconds bounds what a crash can lose of an answer's text. ``on_saved``
    is given what is on disk now."""

    def __init__(
        self, writer: Writer, *, interval: float, on_saved: Callable[[Sequence[Chunk]], None]
    ) -> None:
        self._on_saved = on_saved
        self._writer = writer
        self._interval = interval
        self._pending: dict[int, list[tuple[int, str, list[str]]]] = {}
        self._ordinals: dict[int, int] = {}
        self._unwritten: dict[int, list[Chunk]] = {}
        self._handed_over: set[int] = set()
        self._wake = asyncio.Event()

    def add(self, run_pk: int, *, part: int, kind: str, text: str) -> None:
        pieces = self._pending.setdefault(run_pk, [])
        if pieces and pieces[-1][0] == part:
            pieces[-1][2].append(text)
        else:
            pieces.append((part, kind, [text]))
        self._wake.set()

    def may_be_on_disk(self, run_pk: int) -> bool:
        """Whether some of the run's draft was handed to the database here."""
        return run_pk in self._handed_over

    @contextmanager
    def taken(self, run_pk: int) -> Iterator[list[Chunk]]:
        """What may not be on disk yet, for a transaction that ends the run's draft. Where
        that fails the draft goes on."""
        chunks = self._unwritten.pop(run_pk, []) + self._take_pending(run_pk)
        try:
            yield chunks
        except Exception as error:
            # If it may have been committed, the turn may have the text, which would be said
            # twice: then at most what came in since the last beat is lost.
            if chunks and not (isinstance(error, Unavailable) and error.may_be_done):
                self._unwritten[run_pk] = [*chunks, *self._unwritten.get(run_pk, [])]
                self._wake.set()
            raise

    def _take_pending(self, run_pk: int) -> list[Chunk]:
        chunks = []
        for part, kind, texts in self._pending.pop(run_pk, []):
            ordinal = self._ordinals.get(run_pk, 0)
            self._ordinals[run_pk] = ordinal + 1
            chunks.append(
                Chunk(run_pk=run_pk, ordinal=ordinal, part=part, kind=kind, text="".join(texts))
            )
        return chunks

    def forget(self, run_pk: int) -> None:
        """The run has ended."""
        self._pending.pop(run_pk, None)
        self._unwritten.pop(run_pk, None)
        self._ordinals.pop(run_pk, None)
        self._handed_over.discard(run_pk)

    async def run(self) -> None:
        """Write what is pending, for ever; to be run as a task."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            started = asyncio.get_running_loop().time()
            await self._flush()
            elapsed = asyncio.get_running_loop().time() - started
            await asyncio.sleep(max(0.0, self._interval - elapsed))

    async def _flush(self) -> None:
        for run_pk in list(self._pending):
            self._unwritten.setdefault(run_pk, []).extend(self._take_pending(run_pk))
        chunks = [chunk for some in self._unwritten.values() for chunk in some]
        if not chunks:
            return
        self._handed_over |= self._unwritten.keys()
        try:
            await self._writer.write(append_draft_chunks, chunks)
        except Exception as error:
            fields = {"error_class": type(error).__name__}
            logger.warning("draft_not_kept", extra={"fields": fields})
            if not is_storage_error(error):
                self._unwritten.clear()  # the turn itself is written later
                return
            # They stay where the run's end finds them, and are tried again until then.
            await asyncio.sleep(RETRY_SECONDS)
            self._wake.set()
            return
        written = {(chunk.run_pk, chunk.ordinal) for chunk in chunks}
        for run_pk, some in list(self._unwritten.items()):
            left = [chunk for chunk in some if (chunk.run_pk, chunk.ordinal) not in written]
            if left:
                self._unwritten[run_pk] = left
            else:
                del self._unwritten[run_pk]
        self._on_saved(chunks)
