"""The output of a program as HTML.

Escape sequences for colours and emphasis become classes. A line that overwrites itself (by carriage
returns, backspaces or erasing) shows its last state. All other sequences are dropped: cursor
movement, titles, links, modes. 256 colours and true colours become the nearest of
the sixteen, whose shades the style sheet chooses so that they are readable on light and dark pages.

Work and HTML are bounded by the limits of the caller, whatever the text holds.
"""

import colorsys
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from conversations.domain.text import TERMINAL_CODE, storable

from .source_text import show_hidden

_UNFINISHED = re.compile(r"(?:\x1b\[?|\x9b)[0-?]*[ -/]*\Z|\x1b\][^\x07\x1b\n]*\Z")
_RETURNS = re.compile(r"\r+\n")
_OVERWRITES = re.compile("[\r\b]")
_MOVES = re.compile("([\r\b])")
MAX_RAW_RATIO = 8  # Raw characters that are read for each character that may be shown.

# How many times the whole of a line may be erased and filled again. That is enough for a short line
# that shows progress, but not for erasing a long line at every character. Beyond it, erasing has no
# effect.
MAX_LINE_REFILLS = 20

type Style = tuple[int, int, int]  # Foreground and background (0 to 15, or -1 for none) and flags.

PLAIN: Style = (-1, -1, 0)
_FLAGS = {1: 1, 2: 2, 3: 4, 4: 8, 7: 16, 9: 32, 21: 8}
_FLAG_CLASSES = {1: "tb", 2: "td", 4: "ti", 8: "tu", 16: "tv", 32: "ts"}
_FLAGS_OFF = {22: 3, 23: 4, 24: 8, 27: 16, 29: 32}


class RenderedTerminal(NamedTuple):
    """HTML for use in ``<pre><code>``; ``is_cut`` is set if it ends before the text does."""

    html: str
    is_cut: bool


def render_terminal(
    text: str, *, most_lines: int, most_chars: int, style: Style = PLAIN, most_spans: int
) -> RenderedTerminal:
    """Render the beginning of the text; ``style`` is the style in force at its first character."""
    beginning = text[: most_chars * MAX_RAW_RATIO]
    runs: list[tuple[Style, str]] = []
    lines = chars = position = 0
    is_cut = len(text) > len(beginning)
    beginning = _RETURNS.sub("\n", beginning)
    while position < len(beginning) and lines < most_lines and chars < most_chars:
        end = beginning.find("\n", position) + 1 or len(beginning)
        style, line = _read_line(beginning[position:end], style)
        for run_style, piece in line:
            shown = piece[: most_chars - chars]
            chars += len(shown)
            is_cut = is_cut or len(shown) < len(piece)
            runs.append((run_style, shown))
        lines, position = lines + 1, end
    is_cut = is_cut or position < len(beginning)
    html = ""
    for classes, group in groupby(runs, lambda run: _classes(run[0])):
        piece = show_hidden(storable("".join(text for _, text in group)))
        if not classes or piece.isspace() or most_spans <= 0:
            html += piece
        else:
            most_spans -= 1
            html += f'<span class="{classes}">{piece}</span>'
    return RenderedTerminal(html, is_cut)


def style_at(text: str, offset: int) -> Style:
    """Return the style in force at an offset of a text, for a page that begins there."""
    start = max(text.rfind(reset, 0, offset) for reset in ("\x1b[0m", "\x1b[m"))
    style = PLAIN
    for match in TERMINAL_CODE.finditer(text, max(start, 0, offset - 200_000), offset):
        if match["sgr"] is not None:
            style = _apply_sgr(style, match["sgr"])
    return style


def page_end(text: str, start: int, *, most_lines: int, most_chars: int) -> int:
    """Return the end of the page that begins at ``start``.

    A page ends after a line if it holds a whole one, and never inside an escape sequence."""
    limit, end = start + most_chars, start
    for _ in range(most_lines):
        line_end = text.find("\n", end, limit) + 1
        if not line_end:
            break
        end = line_end
    else:
        return end
    if len(text) <= limit:
        return len(text)
    if end > start:
        return end
    unfinished = _UNFINISHED.search(text, max(start + 1, limit - 100), limit)
    return unfinished.start() if unfinished else limit


def _read_line(line: str, style: Style) -> tuple[Style, list[tuple[Style, str]]]:
    """Return the style after a line, and the line as pieces of one style each."""
    current_style = style
    if not _OVERWRITES.search(line):
        runs = []
        for current_style, piece, _ in _split_pieces(line, style):
            if piece:
                runs.append((current_style, piece))
        return current_style, runs
    # The cursor moves back, so the characters that are written last are the ones that stay.
    cells: list[tuple[Style, str]] = []
    column, refills = 0, MAX_LINE_REFILLS * len(line)
    for current_style, piece, erase in _split_pieces(line.removesuffix("\n"), style):
        if erase:
            refills -= max(column, len(cells))
            if refills > 0 and erase == "1":
                cells[:column] = [(PLAIN, " ")] * min(column, len(cells))
            elif refills > 0:
                del cells[0 if erase == "2" else column :]
        elif piece in ("\r", "\b"):
            column = max(0, column - 1) if piece == "\b" else 0
        elif piece:
            cells += [(PLAIN, " ")] * (column - len(cells))
            cells[column : column + len(piece)] = [(current_style, char) for char in piece]
            column += len(piece)
    if line.endswith("\n"):
        cells.append((PLAIN, "\n"))
    grouped = groupby(cells, itemgetter(0))
    return current_style, [(key, "".join(char for _, char in group)) for key, group in grouped]


def _split_pieces(line: str, style: Style) -> Iterator[tuple[Style, str, str]]:
    """Yield the text between cursor moves, each move, and each erasing, with its style.

    The last piece is empty and has the style after the line."""
    position = 0
    for match in TERMINAL_CODE.finditer(line):
        for piece in _MOVES.split(line[position : match.start()]):
            yield style, piece, ""
        position = match.end()
        if match["sgr"] is not None:
            style = _apply_sgr(style, match["sgr"])
        elif match["erase"] is not None:
            yield style, "", match["erase"] or "0"
    for piece in _MOVES.split(line[position:]):
        yield style, piece, ""
    yield style, "", ""


@lru_cache(maxsize=256)
def _apply_sgr(style: Style, parameters: str) -> Style:
    """Return the style after an SGR sequence (ECMA-48, 8.3.117; 38 and 48 as in ISO 8613-6)."""
    front, back, flags = style
    # The colour space of ``38:2:<space>:r:g:b`` has no visible effect.
    words = re.sub("(?<=[34]8:2):[0-9]*(?=:)", "", parameters).replace(":", ";").split(";")
    codes = [int(word[:4] or 0) for word in words[:32]]
    while codes:
        code = codes.pop(0)
        bright = 8 if code >= 90 else 0
        if code == 0:
            front, back, flags = PLAIN
        elif code in _FLAGS:
            flags |= _FLAGS[code]
        elif code in _FLAGS_OFF:
            flags &= ~_FLAGS_OFF[code]
        elif code == 38:
            front = _parse_colour(codes)
        elif code == 48:
            back = _parse_colour(codes)
        elif code in (39, *range(30, 38), *range(90, 98)):
            front = -1 if code == 39 else code % 10 + bright
        elif code in (49, *range(40, 48), *range(100, 108)):
            back = -1 if code == 49 else code % 10 + bright
    return front, back, flags


def _parse_colour(codes: list[int]) -> int:
    """Return the nearest of the sixteen colours to the one that these codes begin with, or -1.

    The codes of the colour are removed from the list."""
    kind = codes.pop(0) if codes else 0
    if kind == 2 and len(codes) >= 3:
        red, green, blue = codes[:3]
        del codes[:3]
        return _nearest(red, green, blue)
    if kind != 5 or not codes:
        return -1
    number = codes.pop(0)
    if number < 16:
        return number
    if number >= 232:
        level = 8 + 10 * (min(number, 255) - 232)
        return _nearest(level, level, level)
    parts = ((number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6)
    return _nearest(*(0 if part == 0 else 55 + 40 * part for part in parts))


_GREYS = ((0.25, 0), (0.65, 8), (0.9, 7), (2.0, 15))
_HUES = ((15, 1), (75, 3), (165, 2), (200, 6), (265, 4), (345, 5), (361, 1))


def _nearest(red: int, green: int, blue: int) -> int:
    """Return which of the sixteen colours a person would call this colour."""
    parts = [min(255, part) / 255 for part in (red, green, blue)]
    hue, saturation, value = colorsys.rgb_to_hsv(*parts)
    if saturation < 0.2 or value < 0.15:
        # Shades of grey, from black to white.
        return next(number for end, number in _GREYS if value < end)
    plain = next(number for end, number in _HUES if hue * 360 < end)
    return plain + 8 if value > 0.85 else plain


@lru_cache(maxsize=512)
def _classes(style: Style) -> str:
    front, back, flags = style
    names = [name for flag, name in _FLAG_CLASSES.items() if flags & flag]
    # Reversed text (16) has colours of its own. A background is enough without a foreground.
    if not flags & 16 and back >= 0:
        names.append(f"b{back % 8}")
    elif not flags & 16 and front >= 0:
        names.append(f"f{front}")
    return " ".join(names)
