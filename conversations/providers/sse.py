"""A parser of server-sent events in a byte stream that may be cut anywhere.

Follows the WHATWG HTML standard, 9.2.6 "Interpreting an event stream". Lines end with LF, CRLF or
CR, and with nothing else (U+2028 is text). Several ``data`` lines are joined by LF. A blank line
ends the event. An event that the end of the stream cuts off is dropped. ``retry`` is ignored.
"""

from typing import NamedTuple

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DEFAULT_EVENT = "message"


class SseEvent(NamedTuple):
    """An event of the stream.

    ``name`` is the ``event`` field, or ``message`` if it is missing. ``last_id`` is the last id so
    far."""

    name: str
    data: str
    last_id: str = ""


class SseParser:
    """Parses chunks as they come; each call of ``feed`` returns the events that it completes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._skip_line_feed = False
        self._at_start = True
        self._name = self._last_id = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._skip_line_feed and chunk:
            # The previous chunk ended in CR, so a LF belongs to the end of that line.
            chunk = chunk.removeprefix(b"\n")
            self._skip_line_feed = False
        if b"\r" in chunk:
            self._skip_line_feed = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            # The pieces are kept apart, so a long line in many chunks is joined only once.
            self._pieces.append(chunk)
            return []
        *lines, unfinished = b"".join([*self._pieces, chunk]).split(b"\n")
        self._pieces = [unfinished]
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        return [event for line in lines if (event := self._feed_line(line))]

    def _feed_line(self, line: bytes) -> SseEvent | None:
        if not line:
            name, data = self._name or DEFAULT_EVENT, self._data
            self._name, self._data = "", []
            return SseEvent(name, "\n".join(data), self._last_id) if data else None
        field, _, content = line.partition(b":")
        value = content.removeprefix(b" ").decode(errors="replace")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"id" and "\0" not in value:
            self._last_id = value
        return None
