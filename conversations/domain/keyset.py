"""Cursors name a place in the transcript, and the source it comes from.

``seq:123`` is the journal's row 123; ``turn:45.2`` is the third row synthesised
from turn 45. ``seq:0`` is the place before everything.
"""

import re
from dataclasses import dataclass

from .errors import Rejected

_FORM = re.compile(r"(?:seq:(\d{1,18})|turn:(\d{1,18})(?:\.(\d{1,6}))?)")


@dataclass(frozen=True, slots=True)
class Cursor:
    """``source`` is ``seq`` or ``turn``; ``part`` counts a turn's rows from 0."""

    source: str
    number: int
    part: int = 0

    def __str__(self) -> str:
        return f"seq:{self.number}" if self.source == "seq" else f"turn:{self.number}.{self.part}"


def parse_cursor(text: str) -> Cursor:
    """Raises Rejected with what a cursor looks like."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Rejected("A cursor looks like seq:123 or turn:45.", code="bad_cursor")
    seq, turn, part = match.groups()
    if seq is not None:
        return Cursor("seq", int(seq))
    return Cursor("turn", int(turn), int(part or 0))
