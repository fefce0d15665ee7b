"""What a run says, as a sequence of events that is the same however it is read.

A run says rows, and before the rows of an answer the pieces of its text. Where a piece
ends depends on the text alone and not on when its parts came, so that whoever reads from
a place on gets what somebody got who had read all the time: while the answer is written,
afterwards, and in another process.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import Rejected
from .text import an_object, load_json, storable

TEXT, THINKING = "text", "thinking"
# The kinds of parts that are told piece by piece. (A call of a tool is told as a row, when
# its arguments are complete.)
SPOKEN = (TEXT, THINKING)
RUN, DELTA, ROW, END = "run", "delta", "row", "end"
# The kinds of events: of a run; what a session has beside rows.
SESSION, REWOUND = "session", "rewound"
_PLACE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9})\.([0-9]{1,9}))?")

# White space, then up to the first end of a line, to the white space after the twelfth
# character, or forty characters. None of it depends on what comes after.
_PIECE = re.compile(r"\s*(?=\S)(?:[^\n]{0,11}\n|[^\n]{12,39}?\s|[^\n]{40})")
SEPARATOR = "\n\n"  # Between the parts of one kind in the content of an answer that was cut off.


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """After the row ``row`` of the session (0: before any), and ``offset`` characters of
    the part ``part`` of the answer that follows it."""

    row: int = 0
    part: int = 0
    offset: int = 0

    def __str__(self) -> str:
        if self.part or self.offset:
            return f"{self.row}.{self.part}.{self.offset}"
        return str(self.row)


def parse_stream_cursor(text: str) -> StreamCursor:
    """The place of an event's id. Raises Rejected for what is none."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Rejected("This is not a valid event ID of this stream.", code="bad_event_id")
    return StreamCursor(*(int(number or 0) for number in found.groups()))


class AnswerPart(NamedTuple):
    """A text or a thinking of an answer, or its beginning."""

    kind: str
    text: str


class StreamRow(NamedTuple):
    """A row of a run. ``answer`` are the parts of the answer whose first row it is."""

    seq: int
    data: dict[str, Any]
    answer: tuple[AnswerPart, ...] = ()


class StreamEvent(NamedTuple):
    id: str
    kind: str
    data: dict[str, Any]


class RunTranscriptReader:
    """Tells a run from a place on. ``place`` is where the telling has got to."""

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
        """The pieces of an answer that is not a row yet. ``is_whole``: nothing of it is
        still to come. What may be the beginning of a piece waits for the rest of it."""
        for number, part in enumerate(parts[self.place.part :], self.place.part):
            offset = self.place.offset if number == self.place.part else 0
            has_ended = is_whole or number < len(parts) - 1
            for piece in cut_pieces(part.text, offset, is_whole=has_ended):
                data = {"kind": part.kind, "part": number, "offset": offset, "text": piece}
                offset += len(piece)
                self.place = StreamCursor(self.place.row, number, offset)
                yield StreamEvent(str(self.place), DELTA, data)


def cut_pieces(text: str, offset: int, *, is_whole: bool) -> Iterator[str]:
    """The pieces from a place on. A text of white space alone has none."""
    while found := _PIECE.match(text, offset):
        offset = found.end()
        yield found.group()
    rest = text[offset:]
    if is_whole and rest and (rest.strip() or offset):
        yield rest


def parts_of_turn(turn: Any) -> tuple[AnswerPart, ...]:
    """What an assistant's turn (with ``content``, ``blocks``, ``complete`` and
    ``metadata``) said, part by part, as it came."""
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
