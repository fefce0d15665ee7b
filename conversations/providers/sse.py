"""Server-sent events out of a byte stream that is cut anywhere.

Follows the WHATWG HTML standard, 9.2.6 "Interpreting an event stream": lines end
with LF, CRLF or CR and with nothing else (U+2028 is text); several ``data``
lines are joined by LF; a blank line ends the event; an event that the end of the
stream cuts is dropped. ``id`` and ``retry`` only serve reconnecting and are
ignored.
"""

from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DEFAULT_EVENT = "message"


class SseEvent(NamedTuple):
    """``name`` is the ``event`` field, ``message`` where there was none."""

    name: str
    data: str


class SseParser:
    """Feed it chunks as they come; each call returns the events they complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._skip_line_feed = False
        self._at_start = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in self._complete_lines(chunk):
            self._take_line(line, events)
        return events

    def _complete_lines(self, chunk: bytes) -> list[bytes]:
        if self._skip_line_feed and chunk:
            # The chunk before ended in CR: a LF now belongs to that line's end.
            chunk = chunk.removeprefix(b"\n")
            self._skip_line_feed = False
        if b"\r" in chunk:
            self._skip_line_feed = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._pieces.append(chunk)
            return []
        *lines, rest = b"".join([*self._pieces, chunk]).split(b"\n")
        self._pieces = [rest]
        return self._without_mark(lines)

    def _without_mark(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        return lines

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            self._end_event(events)
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")

    def _end_event(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._name or DEFAULT_EVENT, "\n".join(self._data)))
            self._data = []
        self._name = ""
