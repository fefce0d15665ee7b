"""Keeping the text of running answers on disk, a few times a second.

One clock for all runs of the process: whatever came in since the last beat goes
into one transaction, so a hundred answers cost as many commits as one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from conversations.archive.drafts import Chunk, append_draft_chunks

from .database import Writer


class DraftKeeper:
    """``interval`` in seconds bounds what a crash can lose of an answer's text. ``kept``
    is given what is on disk now."""

    def __init__(
        self, writer: Writer, *, interval: float, kept: Callable[[Sequence[Chunk]], None]
    ) -> None:
        self._kept = kept
        self._writer = writer
        self._interval = interval
        self._pending: dict[int, list[tuple[int, str, list[str]]]] = {}
        self._ordinals: dict[int, int] = {}
        self._wake = asyncio.Event()

    def add(self, run_pk: int, *, part: int, kind: str, text: str) -> None:
        pieces = self._pending.setdefault(run_pk, [])
        if pieces and pieces[-1][0] == part:
            pieces[-1][2].append(text)
        else:
            pieces.append((part, kind, [text]))
        self._wake.set()

    def take(self, run_pk: int) -> list[Chunk]:
        """What is not on disk yet, for a transaction that ends the run's draft."""
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
        self._ordinals.pop(run_pk, None)

    async def keep(self) -> None:
        """Write what is pending, for ever; to be run as a task."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            started = asyncio.get_running_loop().time()
            await self._flush()
            elapsed = asyncio.get_running_loop().time() - started
            await asyncio.sleep(max(0.0, self._interval - elapsed))

    async def _flush(self) -> None:
        chunks = [chunk for run_pk in list(self._pending) for chunk in self.take(run_pk)]
        if chunks:
            await self._write(chunks)

    async def _write(self, chunks: Sequence[Chunk]) -> None:
        # A failed write is logged by the writer; the turn itself is written later.
        with contextlib.suppress(Exception):
            await self._writer.write(append_draft_chunks, chunks)
            self._kept(chunks)
