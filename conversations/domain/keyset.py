"""Cursors: texts that say where the next page of a list begins.

A cursor names a row and not an offset, so no row is skipped or shown twice if rows are added
meanwhile.

==================  =============================================  ======================
form                the row                                        lists
==================  =============================================  ======================
``seq:123``         the journal's row 123                          transcript
``turn:45.2``       the third row synthesised from turn 45         transcript
``2026-…~17``       its time of last activity and its primary key  sessions, queue, feed
``17~beans``        its primary key and its title as sorted        sessions by title
``best.1f.2a``      the numbers of a hit, in hexadecimal           search
``123``             its number or primary key                      audit log, holds, …
base64              ``next`` or ``previous`` and one of the above  the API
==================  =============================================  ======================

A text that is not a cursor raises Rejected with the code ``bad_cursor``.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime

from .errors import Rejected
from .messages import say
from .text import storable

_TRANSCRIPT = re.compile(r"(?:seq:(\d{1,18})|turn:(\d{1,18})(?:\.(\d{1,6}))?)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
NO_CURSOR = say("This is not a cursor of this list.")

_HIT = re.compile(r"([a-z]+)((?:\.[0-9a-f]{1,20}){1,7})")


def bad_cursor(message: str = NO_CURSOR) -> Rejected:
    return Rejected(message, code="bad_cursor")


@dataclass(frozen=True, slots=True)
class TranscriptCursor:
    """A place in the transcript.

    ``source`` is ``seq`` or ``turn``. ``part`` is the index of a row of a turn, from 0. ``seq:0``
    is the place before the first row.
    """

    source: str
    number: int
    part: int = 0

    def __str__(self) -> str:
        return f"seq:{self.number}" if self.source == "seq" else f"turn:{self.number}.{self.part}"


def parse_cursor(text: str) -> TranscriptCursor:
    """Parse a transcript cursor. Raises Rejected, whose message describes the form of a cursor."""
    match = _TRANSCRIPT.fullmatch(text)
    if match is None:
        raise bad_cursor(say("A cursor must look like seq:123 or turn:45."))
    seq, turn, part = match.groups()
    if seq is None:
        return TranscriptCursor("turn", int(turn), int(part or 0))
    return TranscriptCursor("seq", int(seq))


@dataclass(frozen=True, slots=True)
class SessionListCursor:
    """A place in a list of sessions that is sorted by last activity."""

    moment: datetime
    pk: int

    def __str__(self) -> str:
        return f"{self.moment.isoformat()}~{self.pk}"


def parse_list_cursor(text: str) -> SessionListCursor:
    moment, _, pk = text.partition("~")
    try:
        parsed = datetime.fromisoformat(moment)
        if parsed.tzinfo is None:
            raise ValueError("a moment without a zone")
        return SessionListCursor(parsed.astimezone(UTC), parse_number(pk))
    except (ValueError, OverflowError, Rejected) as error:
        raise bad_cursor(say("This is not a cursor of the session list.")) from error


def parse_title_cursor(text: str) -> tuple[int, str]:
    """Return the primary key and the title, as sorted, from a cursor of a list by title.

    The cursor holds the title, so the place is known even if the session has another title now or
    no longer exists.
    """
    pk, separator, title = text.partition("~")
    if not separator:
        raise bad_cursor()
    return parse_number(pk), storable(title)


def parse_number(text: str) -> int:
    """Return the number or primary key of a row."""
    if not _NUMBER.fullmatch(text):
        raise bad_cursor()
    return int(text)


def parse_optional_number(text: str | None) -> int | None:
    """Parse as :func:`parse_number`, or return None for the first page, which has no cursor."""
    return parse_number(text) if text else None


def search_cursor(kind: str, *numbers: int) -> str:
    """Return a cursor with whole numbers of a page's last hit, for one kind of search."""
    return ".".join([kind, *(f"{number:x}" for number in numbers)])


def parse_search_cursor(text: str, kind: str, *, count: int) -> tuple[int, ...] | None:
    """Return the numbers of a search cursor, or None if it is not a cursor of this search.

    A search with a cursor of another search begins with the first page.
    """
    match = _HIT.fullmatch(text)
    if match is None or match[1] != kind:
        return None
    numbers = tuple(int(part, 16) for part in match[2].split(".")[1:])
    is_sane = len(numbers) == count and all(number < 1 << 63 for number in numbers)
    return numbers if is_sane else None


@dataclass(frozen=True, slots=True)
class PageCursor:
    """A page of a list in the API: the row at which it begins, and the direction."""

    place: str
    is_back: bool = False

    def __str__(self) -> str:
        way = "previous" if self.is_back else "next"
        return urlsafe_b64encode(f"{way} {self.place}".encode()).decode().rstrip("=")


def parse_page_cursor(text: str) -> PageCursor:
    try:
        way, place = urlsafe_b64decode(text.encode() + b"==").decode().split(" ", 1)
    except ValueError as error:
        raise bad_cursor() from error
    if way not in ("next", "previous") or not place or not place.isascii():
        raise bad_cursor()
    return PageCursor(place, way == "previous")
