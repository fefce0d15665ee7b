"""Splitting a long Markdown text into messages of limited size.

A text is split between paragraphs if possible, else between lines, else between words. A fenced
code block stays whole if one message can hold it. A longer block is split between lines: it is
closed there and opened again, with its language, in the next message.

The end of a part depends only on the text that could fit into the part, not on later text. While a
text grows, only its last part changes.
"""

import re
import unicodedata
from dataclasses import dataclass

# Discord's limit. It is counted in UTF-16 code units here, which are never fewer than Discord's
# count.
MAX_MESSAGE_UNITS = 2_000
MIN_MESSAGE_UNITS = 100
RESERVED_UNITS = 8  # For the closing fence of a code block, reserved in every message.

_OPENING = re.compile(r"[ \t]*(`{3,7}|~{3,7})(?![`~])([^`\n]*)\n?")
_LANGUAGE = re.compile(r"[\w+#.-]{1,32}", re.ASCII)
_SENTENCE = re.compile(r"[.!?…。！？]\s")
_SPACE = re.compile(r"\s")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_JOINERS = {"\u200d", "\ufe0f"}


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code block. ``at`` is the position of its first line."""

    marker: str
    language: str
    at: int

    @property
    def opening(self) -> str:
        return f"{self.marker}{self.language}\n"

    def is_closed_by(self, line: str) -> bool:
        bare = line.strip()
        return len(bare) >= len(self.marker) and set(bare) == {self.marker[0]}


def size_of(text: str) -> int:
    """Return the length in UTF-16 code units."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def split_message(text: str, *, limit: int = MAX_MESSAGE_UNITS) -> list[str]:
    """Split the text into messages that are not blank and not larger than the limit.

    Only white space between messages is dropped, and the closing line of a code block that ends
    at the end of a message."""
    assert limit >= MIN_MESSAGE_UNITS
    parts: list[str] = []
    start = 0
    fence: Fence | None = None
    while text[start:].strip():
        blanks = None if fence else _BLANK_LINES.match(text, start)
        start = blanks.end() if blanks else start
        if fence is not None and fence.is_closed_by(line := _line_at(text, start)):
            start += len(line)
            fence = None
            continue
        head = fence.opening if fence else ""
        room = limit - RESERVED_UNITS - len(head)
        # ``reach`` is the furthest end of the part that fits into ``room``.
        reach = min(len(text), start + room)
        excess = size_of(text[start:reach]) - room
        while excess > 0:
            reach -= 1
            excess -= size_of(text[reach])
        cut, fence = _find_cut(text, start, reach, fence)
        piece = text[start:cut]
        parts.append(
            f"{head}{piece.removesuffix('\n')}\n{fence.marker}" if fence else head + piece.rstrip()
        )
        start = cut
    return parts


def _line_at(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[start:] if end < 0 else text[start : end + 1]


def _fence_after(line: str, start: int, fence: Fence | None) -> Fence | None:
    """Return the fence that is open after the line, if ``fence`` is open before it."""
    if fence is not None:
        return None if fence.is_closed_by(line) else fence
    opening = _OPENING.fullmatch(line)
    if opening is None:
        return None
    language = _LANGUAGE.search(opening[2])
    return Fence(opening[1], language[0] if language else "", start)


def _find_cut(text: str, start: int, reach: int, fence: Fence | None) -> tuple[int, Fence | None]:
    """Return where to split, and the fence that is open there."""
    paragraphs: list[int] = []
    breaks: list[int] = []
    position = start
    while position < reach:
        newline = text.find("\n", position, reach)
        if newline < 0 and reach < len(text):
            break  # this line ends beyond ``reach``
        line_start = position
        position = reach if newline < 0 else newline + 1
        line = text[line_start:position]
        fence = _fence_after(line, line_start, fence)
        if fence is None:
            places = breaks if line.strip() else paragraphs
            places.append(position)
    if reach == len(text):
        return reach, fence
    if fence is None:  # there may be a fence on the line that is split
        fence = _fence_after(text[position:reach], position, None)
    if fence is not None and fence.at > start:
        return fence.at, None
    if fence is not None:
        # Split between two lines of the code block.
        first = start + len(_line_at(text, start)) if fence.at == start else start
        cut = text.rfind("\n", start, reach) + 1
        return cut if cut > first else _cut_anywhere(text, start, reach), fence
    min_cut = start + (reach - start) // 3
    for places in (paragraphs, breaks):
        if places and places[-1] > min_cut:
            return places[-1], None
    for ending in (_SENTENCE, _SPACE):
        matches = ending.finditer(text, max(position, min_cut), reach)
        if ends := [match.end() for match in matches]:
            return ends[-1], None
    return _cut_anywhere(text, start, reach), None


def _cut_anywhere(text: str, start: int, reach: int) -> int:
    """Return a position between two visible characters, if there is one nearby, else ``reach``."""
    for cut in range(reach, max(start + 1, reach - 16), -1):
        if not unicodedata.combining(text[cut]) and not {text[cut], text[cut - 1]} & _JOINERS:
            return cut
    return reach
