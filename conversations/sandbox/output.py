"""What a command writes: kept in part, shown while it comes."""

import codecs
from collections import deque
from collections.abc import Callable

from conversations.domain.text import storable

REPORT_SECONDS = 0.05


class CommandOutput:
    """Keeps the first and the last half of ``limit`` bytes. ``report`` is handed what is
    new, at most every 50 ms, and no more than ``limit`` bytes in all."""

    def __init__(self, limit: int, report: Callable[[str], None] | None) -> None:
        self.count = 0
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unsaid: list[str] = []
        self._said_at = 0.0
        self._limit = limit

    @property
    def left_out(self) -> int:
        return self.count - len(self._head) - self._tail_size

    def add(self, data: bytes, *, now: float) -> None:
        if self._report is not None and self.count < self._limit:
            self._unsaid.append(self._decoder.decode(data))
            self.say(now=now)
        self.count += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._keep_end(data)

    def _keep_end(self, data: bytes) -> None:
        self._tail.append(data[-self._half :])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())
        if (over := self._tail_size - self._half) > 0:
            self._tail[0] = self._tail[0][over:]
            self._tail_size -= over

    def say(self, *, now: float, at_once: bool = False) -> None:
        """Report what is new, unless that was done just now."""
        if self._report is None or not self._unsaid:
            return
        if at_once or now - self._said_at >= REPORT_SECONDS:
            text = storable("".join(self._unsaid))
            self._unsaid.clear()
            self._said_at = now
            if text:
                self._report(text)

    def text(self) -> str:
        """What was kept, with a line where something is left out."""
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self.left_out:
            return storable((head + tail).decode(errors="replace"))
        # A character may be cut in two at either side.
        start, end = (
            head.decode(errors="ignore"),
            tail.lstrip(_CONTINUATION).decode(errors="replace"),
        )
        return storable(f"{start}\n[… {self.left_out:,} bytes left out …]\n{end}")


_CONTINUATION = bytes(range(0x80, 0xC0))
