"""The transcript of a run as a sequence of events, which is the same for every reader.

The events are the run's rows, and before the rows of an answer, the pieces of its text. The end of
a piece depends only on the text and not on the times at which its parts arrived. So a client that
resumes at a place gets the same events as a client that was connected all the time. This holds
while the answer is streaming, afterwards, and in another process.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import Rejected
from .text import an_object, load_json, storable

TEXT, THINKING = "text", "thinking"
# The kinds of parts that are sent piece by piece. (A tool call is sent as a row when its arguments
# are complete.)
SPOKEN = (TEXT, THINKING)
# The kinds of events in the stream of a run.
RUN, DELTA, ROW, END = "run", "delta", "row", "end"
# The kinds of events in the stream of a session, besides rows.
SESSION, REWOUND = "session", "rewound"
_PLACE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9})\.([0-9]{1,9}))?")

# A piece is white space, and then text up to the first end of a line, up to the first white space
# after the twelfth character, or forty characters. It does not depend on the text after it.
_PIECE = re.compile(r"\s*(?=\S)(?:[^\n]{0,11}\n|[^\n]{12,39}?\s|[^\n]{40})")
SEPARATOR = "\n\n"  # Between parts of one kind in the stored texts of an answer that was cut off.


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """A place in a stream: after the row ``row`` of the session, or before all rows if it is 0.

    ``part`` and ``offset`` are a part of the answer that follows the row, and the number of its
    characters before the place.
    """

    row: int = 0
    part: int = 0
    offset: int = 0

    def __str__(self) -> str:
        if self.part or self.offset:
            return f"{self.row}.{self.part}.{self.offset}"
        return str(self.row)


def parse_stream_cursor(text: str) -> StreamCursor:
    """Return the place that the id of an event names. Raises Rejected if the id is invalid."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise Rejected("This is not a valid event ID of this stream.", code="bad_event_id")
    return StreamCursor(*(int(number or 0) for number in match.groups()))


class AnswerPart(NamedTuple):
    """A text or a thinking of an answer. It may be only its beginning while it is streaming."""

    kind: str
    text: str


class StreamRow(NamedTuple):
    """A row of a run. The first row of an answer has the parts of the answer in ``answer``."""

    seq: int
    data: dict[str, Any]
    answer: tuple[AnswerPart, ...] = ()


class StreamEvent(NamedTuple):
    id: str
    kind: str
    data: dict[str, Any]


class RunTranscriptReader:
    """A reader that yields the events of a run. ``place`` is the place after the last event."""

    def __init__(self, place: StreamCursor) -> None:
        self.place = place

    def events_of_rows(self, rows: Iterable[StreamRow]) -> Iterator[StreamEvent]:
        for row in rows:
            yield from self.events_of_answer(row.answer, is_whole=True)
            self.place = StreamCursor(row.seq)
            yield StreamEvent(str(self.place), ROW, row.data)

    def events_of_answer(
        self, parts: Sequence[AnswerPart], *, is_whole: bool
    ) -> Iterator[StreamEvent]:
        """Yield the pieces of an answer that is not a row yet.

        ``is_whole`` means that the answer is complete. Otherwise text that may be the beginning of
        a piece is held back until the rest of the piece arrives.
        """
        for number, part in enumerate(parts[self.place.part :], self.place.part):
            offset = self.place.offset if number == self.place.part else 0
            has_ended = is_whole or number < len(parts) - 1
            for piece in cut_pieces(part.text, offset, is_whole=has_ended):
                data = {"kind": part.kind, "part": number, "offset": offset, "text": piece}
                offset += len(piece)
                self.place = StreamCursor(self.place.row, number, offset)
                yield StreamEvent(str(self.place), DELTA, data)


def cut_pieces(text: str, offset: int, *, is_whole: bool) -> Iterator[str]:
    """Yield the pieces of a text from an offset on. A text of only white space has none."""
    while match := _PIECE.match(text, offset):
        offset = match.end()
        yield match.group()
    rest = text[offset:]
    if is_whole and rest and (rest.strip() or offset):
        yield rest


def parts_of_turn(turn: Any) -> tuple[AnswerPart, ...]:
    """Return the parts of an assistant's turn in the order in which they arrived.

    The turn needs ``content``, ``blocks``, ``complete`` and ``metadata``.
    """
    try:
        stored = load_json(turn.blocks if turn.complete else turn.metadata, default=None)
    except ValueError:
        stored = None
    parts: list[tuple[Any, str]] = []
    if turn.complete:
        for block in stored if isinstance(stored, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in SPOKEN:
                parts.append((kind, str(block.get(kind, ""))))
    else:
        metadata = an_object(stored)
        whole = {TEXT: turn.content, THINKING: str(metadata.get("thinking", ""))}
        starts = dict.fromkeys(SPOKEN, 0)
        for kind, length in metadata.get("parts") or [(k, len(whole[k])) for k in (THINKING, TEXT)]:
            start = starts[kind]
            starts[kind] += length + len(SEPARATOR)
            parts.append((kind, whole[kind][start : start + length]))
    return tuple(AnswerPart(kind, storable(text)) for kind, text in parts if text)
