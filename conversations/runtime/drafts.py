"""Saving the text of running answers to disk, a few times a second.

One timer serves all runs of the process. The text that has arrived since the last save goes into
one transaction, so a hundred answers need as many commits as one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from conversations.archive.journal import append_draft_chunks
from conversations.archive.storage import translate_storage_error
from conversations.domain.errors import StorageFull, Unavailable
from conversations.domain.messages import Message
from conversations.domain.text import storable
from conversations.domain.tool_calls import RUNNING, STARTED
from conversations.models import DraftChunk
from conversations.rendering.messages import mark
from conversations.rendering.streaming import BlockStream
from conversations.rendering.tool_rows import tool_word

from .database import Writer

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # Pause before chunks that could not be written are tried again


class DraftWorker:
    """A task that saves the drafts of this process's runs.

    ``interval`` in seconds limits how much of an answer's text a crash can lose. ``on_saved`` is
    called with the chunks that have just been saved. ``on_wait`` is called with a run and 1 when
    its chunks begin to wait for room on the disk, and with -1 when they no longer do.
    ``handed_over`` holds the runs of which some chunks may be on disk.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        interval: float,
        on_saved: Callable[[Sequence[DraftChunk]], None],
        on_wait: Callable[[int, int], None],
    ) -> None:
        self._on_saved = on_saved
        self._on_wait = on_wait
        self._waiting: set[int] = set()
        self._writer = writer
        self._interval = interval
        self._pending: dict[int, list[tuple[int, str, list[str]]]] = {}
        self._ordinals: dict[int, int] = {}
        self._unwritten: dict[int, list[DraftChunk]] = {}
        self.handed_over: set[int] = set()
        self._wake = asyncio.Event()

    def add(self, run_pk: int, *, part: int, kind: str, text: str) -> None:
        pieces = self._pending.setdefault(run_pk, [])
        if pieces and pieces[-1][0] == part:
            pieces[-1][2].append(text)
        else:
            pieces.append((part, kind, [text]))
        self._wake.set()

    @contextmanager
    def pending_chunks(self, run_pk: int) -> Iterator[list[DraftChunk]]:
        """Yield the chunks that may not be on disk, for a transaction that ends the run's draft.

        If the block raises an error, the chunks wait for the next save, because the draft goes on.
        """
        chunks = self._unwritten.pop(run_pk, []) + self._take_pending(run_pk)
        try:
            yield chunks
        except Exception as error:
            # If the transaction may have been committed, the turn may already have the text, and
            # keeping the chunks would repeat it. Dropping them loses at most the text since the
            # last save.
            if chunks and not (isinstance(error, Unavailable) and error.may_be_done):
                self._unwritten[run_pk] = [*chunks, *self._unwritten.get(run_pk, [])]
                self._wake.set()
            raise

    def _take_pending(self, run_pk: int) -> list[DraftChunk]:
        chunks = []
        for part, kind, texts in self._pending.pop(run_pk, []):
            ordinal = self._ordinals.get(run_pk, 0)
            self._ordinals[run_pk] = ordinal + 1
            text = "".join(texts)
            chunk = DraftChunk(run_id=run_pk, ordinal=ordinal, part=part, kind=kind, text=text)
            chunks.append(chunk)
        return chunks

    def forget(self, run_pk: int) -> None:
        """Drop all data of a run that has ended."""
        self._pending.pop(run_pk, None)
        self._unwritten.pop(run_pk, None)
        self._ordinals.pop(run_pk, None)
        self._waiting.discard(run_pk)
        self.handed_over.discard(run_pk)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            started = monotonic()
            await self._flush()
            await asyncio.sleep(max(0.0, self._interval - (monotonic() - started)))

    async def _flush(self) -> None:
        for run_pk in list(self._pending):
            self._unwritten.setdefault(run_pk, []).extend(self._take_pending(run_pk))
        chunks = [chunk for run_chunks in self._unwritten.values() for chunk in run_chunks]
        if not chunks:
            self._set_waiting(())
            return
        self.handed_over |= self._unwritten.keys()
        try:
            await self._writer.write(append_draft_chunks, chunks)
        except Exception as error:
            if not self._waiting:  # said once while the disk is full
                fields = {"error_class": type(error).__name__}
                logger.warning("draft_not_kept", extra={"fields": fields})
            storage_error = translate_storage_error(error)
            self._set_waiting(self._unwritten if isinstance(storage_error, StorageFull) else ())
            if storage_error is None:
                self._unwritten.clear()  # the turn is written later and has the text
                return
            # The chunks stay in ``_unwritten``, where the end of the run finds them, and are
            # retried until then.
            await asyncio.sleep(RETRY_SECONDS)
            self._wake.set()
            return
        self._set_waiting(())
        written = {(chunk.run_id, chunk.ordinal) for chunk in chunks}
        for run_pk, run_chunks in list(self._unwritten.items()):
            unwritten = [c for c in run_chunks if (c.run_id, c.ordinal) not in written]
            if unwritten:
                self._unwritten[run_pk] = unwritten
            else:
                del self._unwritten[run_pk]
        self._on_saved(chunks)

    def _set_waiting(self, run_pks: Iterable[int]) -> None:
        """Report the runs that have begun or ceased to wait for room on the disk."""
        before, self._waiting = self._waiting, set(run_pks)
        for run_pk in self._waiting - before:
            self._on_wait(run_pk, 1)
        for run_pk in before - self._waiting:
            self._on_wait(run_pk, -1)


# A streaming answer: its parts, rendered block by block.

TEXT = "text"


@dataclass(slots=True, kw_only=True)
class LiveBlock:
    """One content block. ``sent`` counts the characters that frames have carried."""

    number: int
    kind: str
    name: str = ""
    text: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    sent: int = 0
    blocks: BlockStream | None

    def feed(self, delta: str) -> None:
        self.text.append(delta)
        self.unsent.append(delta)

    def frame(self, run: str) -> dict[str, Any]:
        """Return a frame with the text that pages do not have yet.

        A page gets about one frame for each word, so a frame repeats nothing that the page has.
        """
        delta = "".join(self.unsent)
        frame = self._head() | ({} if self.sent else {"run": run})
        frame |= {"offset": self.sent, "text": delta}
        self.unsent = []
        self.sent += len(delta)
        if self.blocks is not None:
            if blocks := self.blocks.feed(delta):
                frame["blocks"] = blocks
            frame["drop"], frame["open"] = self.blocks.patch()
        return frame

    def snapshot(self, run: str) -> dict[str, Any]:
        """Return a frame with the whole part so far. The next frame continues after it.

        The caller must take (and publish) the pending frame first.
        """
        text = "".join(self.text)
        frame = self._head() | {"run": run, "reset": True, "offset": 0, "text": text}
        if self.blocks is not None:
            open_html = self.blocks.open_html()
            frame |= {"blocks": list(self.blocks.blocks), "drop": 0, "open": open_html}
        return frame

    def _head(self) -> dict[str, Any]:
        head = {"type": "draft", "part": self.number, "kind": self.kind}
        if not self.name:
            return head
        word, _ = tool_word(self.name)
        # Pages show the word as text, so a word that is not one of the product's messages needs no
        # escaping.
        return head | {"name": self.name, "word": mark(word) if isinstance(word, Message) else word}


class LiveAnswer:
    """The parts of a run's answer that are not rows yet. Part numbers grow over the whole run."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.parts: dict[int, LiveBlock] = {}
        self._next_number = 0

    def start_part(self, kind: str, *, name: str = "", number: int | None = None) -> LiveBlock:
        number = self._next_number if number is None else number
        self._next_number = number + 1
        blocks = BlockStream() if kind == TEXT else None
        part = self.parts[number] = LiveBlock(number=number, kind=kind, name=name, blocks=blocks)
        return part

    def take_frames(self) -> list[dict[str, Any]]:
        return [part.frame(self.run) for part in self.parts.values() if part.unsent]

    def snapshots(self) -> list[dict[str, Any]]:
        """Return a snapshot of each part. The caller must take (and publish) the frames first."""
        return [part.snapshot(self.run) for part in self.parts.values()]

    def clear(self) -> None:
        """Remove the parts, which have become rows."""
        self.parts = {}


# Output of running tool calls. Its size is limited, whatever a tool writes.

MAX_SHOWN_CHARS = 20_000  # Length of the end of an output that a page shows

MAX_KEPT_CHARS = 100_000  # Length of the end of an output that a stopped call has as its result

MAX_CHARS_PER_SECOND = 64_000  # Limit on the output of one call in frames to pages


@dataclass(slots=True)
class LiveCall:
    """One tool call: ``total`` counts the characters reported, ``sent`` those covered by frames."""

    call: str
    call_id: str
    state: str = STARTED
    began: float = field(default_factory=monotonic)
    pieces: list[str] = field(default_factory=list)
    kept_chars: int = 0
    total: int = 0
    sent: int = 0
    budget: float = MAX_CHARS_PER_SECOND
    counted_at: float = field(default_factory=monotonic)

    def report(self, text: str) -> None:
        self.pieces.append(text)
        self.total += len(text)
        self.kept_chars += len(text)
        if self.kept_chars > 2 * MAX_KEPT_CHARS:
            self._join()

    def _join(self) -> str:
        tail = "".join(self.pieces)[-MAX_KEPT_CHARS:]
        self.pieces, self.kept_chars = [tail], len(tail)
        return tail

    @property
    def output(self) -> str:
        """The reported output. If its start was dropped, the first line says so."""
        tail = self._join()
        left_out = self.total - len(tail)
        head = f"[{left_out:,} characters before this were dropped]\n" if left_out else ""
        return head + tail

    def frame(self, run: str, *, at_once: bool) -> dict[str, Any] | None:
        """Return a frame with the output since the last one, or None if it would flood pages."""
        unsent = self.total - self.sent
        size, now = min(unsent, MAX_SHOWN_CHARS), monotonic()
        self.budget = min(
            MAX_CHARS_PER_SECOND, self.budget + (now - self.counted_at) * MAX_CHARS_PER_SECOND
        )
        self.counted_at = now
        if not at_once and size > self.budget:
            return None
        self.budget -= size
        if unsent > MAX_SHOWN_CHARS:
            return self.snapshot(run)
        text = self._tail(unsent)
        frame = self._head(run) | ({"offset": self.sent, "text": text} if text else {})
        self.sent = self.total
        return frame

    def snapshot(self, run: str) -> dict[str, Any]:
        """Return a frame with the end of the output so far. The next frame continues after it."""
        text = self._tail(MAX_SHOWN_CHARS)
        self.sent = self.total
        return self._head(run) | {"reset": True, "offset": self.total - len(text), "text": text}

    def _tail(self, characters: int) -> str:
        """Return the last characters of the output, joining only the pieces that are needed."""
        tail: list[str] = []
        for piece in reversed(self.pieces):
            if characters <= 0:
                break
            tail.append(piece[-characters:])
            characters -= len(piece)
        return "".join(reversed(tail))

    def _head(self, run: str) -> dict[str, Any]:
        elapsed = monotonic() - self.began if self.state == RUNNING else 0
        return {
            "type": "call",
            "run": run,
            "call": self.call,
            "call_id": self.call_id,
            "state": self.state,
            "elapsed_ms": int(elapsed * 1000),
        }


class LiveCalls:
    """The tool calls of a run's last answer that have not ended yet.

    ``dirty`` holds the calls with changes that pages do not have.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._calls: dict[int, LiveCall] = {}
        self.dirty: dict[int, LiveCall] = {}

    def add(self, pk: int, call: LiveCall) -> None:
        self._calls[pk] = call

    def change_state(self, pk: int, state: str) -> None:
        call = self._calls[pk]
        call.state, call.began = state, monotonic()
        self.dirty[pk] = call

    def report(self, pk: int, text: str) -> None:
        call = self._calls.get(pk)
        if call is not None and text:
            call.report(storable(text))
            self.dirty[pk] = call

    def remove(self, pk: int) -> None:
        self._calls.pop(pk, None)
        self.dirty.pop(pk, None)

    def output(self, pk: int) -> str:
        call = self._calls.get(pk)
        return call.output if call is not None else ""

    def outputs(self) -> dict[int, str]:
        """Return the output of the calls that have not ended, by primary key."""
        return {pk: call.output for pk, call in self._calls.items() if call.total}

    def take_frames(self, *, at_once: bool = True) -> list[dict[str, Any]]:
        """Return the frames that are due. With ``at_once``, no call has to wait."""
        frames = []
        for pk, call in list(self.dirty.items()):
            frame = call.frame(self.run, at_once=at_once)
            if frame is not None:
                del self.dirty[pk]
                frames.append(frame)
        return frames

    def snapshots(self) -> list[dict[str, Any]]:
        """Return a snapshot of each call that runs or waits.

        The caller must take (and publish) the frames first.
        """
        return [call.snapshot(self.run) for call in self._calls.values() if call.state != STARTED]
