"""What a program printed, as HTML.

Of all that a terminal does with escape sequences, colours and emphasis are kept, as
classes; a line that overwrites itself (by carriage returns, backspaces, erasing) shows
what it said last. Everything else is dropped: cursor movement, titles, links, modes.
256 and true colours become the nearest of the sixteen, whose shades the style sheet
chooses so that they can be read on a light and on a dark page.

Work and HTML are bounded by what is asked for, whatever the text holds.
"""

import colorsys
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from conversations.domain.text import storable

from .source_text import show_hidden

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<sgr>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)(?P<erase>[0-2]?)K"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # the others of CSI: the cursor, modes
    # OSC, DCS and their like with what they hold: titles, links, the clipboard
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
"""Escape sequences as in ECMA-48, 5.4 and 5.6. Those without an end lose their head."""

_UNFINISHED = re.compile(r"(?:\x1b\[?|\x9b)[0-?]*[ -/]*\Z|\x1b\][^\x07\x1b\n]*\Z")
_RETURNS = re.compile(r"\r+\n")
_OVERWRITES = re.compile("[\r\b]")

MAX_RAW_RATIO = 8
"""Raw characters that are looked at for each one that may be shown."""

MAX_CELLS_AGAIN = 20
"""How often all of a line may be erased and filled again: as often as a short line that
shows progress, not once for each sign of a long one. Then nothing more is erased."""

type Style = tuple[int, int, int]
"""Foreground and background (0 to 15, -1: none) and flags."""

PLAIN: Style = (-1, -1, 0)
_FLAGS = {1: 1, 2: 2, 3: 4, 4: 8, 7: 16, 9: 32, 21: 8}
_FLAG_CLASSES = {1: "tb", 2: "td", 4: "ti", 8: "tu", 16: "tv", 32: "ts"}
_FLAGS_OFF = {22: 3, 23: 4, 24: 8, 27: 16, 29: 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """HTML for use in ``<pre><code>``. ``is_cut``: there is more."""

    html: str
    is_cut: bool = False


def render_terminal(
    text: str, *, most_lines: int, most_chars: int, style: Style = PLAIN, most_spans: int
) -> Shown:
    """The beginning of the text. ``style`` is what is in force where it begins."""
    beginning = text[: most_chars * MAX_RAW_RATIO]
    runs: list[tuple[Style, str]] = []
    lines, chars, at, is_cut = 0, 0, 0, len(text) > len(beginning)
    beginning = _RETURNS.sub("\n", beginning)
    while at < len(beginning) and lines < most_lines and chars < most_chars:
        end = beginning.find("\n", at) + 1 or len(beginning)
        style, line = _read_line(beginning[at:end], style)
        for one_style, piece in line:
            shown = piece[: most_chars - chars]
            chars += len(shown)
            is_cut = is_cut or len(shown) < len(piece)
            runs.append((one_style, shown))
        lines, at = lines + 1, end
    is_cut = is_cut or at < len(beginning)
    return Shown(html=_as_html(runs, most_spans), is_cut=is_cut)


def style_at(text: str, place: int) -> Style:
    """What is in force at that place of a text, for a page that begins there."""
    start = max(text.rfind(reset, 0, place) for reset in ("\x1b[0m", "\x1b[m"))
    style = PLAIN
    for found in _SEQUENCE.finditer(text, max(start, 0, place - 200_000), place):
        if found["sgr"] is not None:
            style = _change(style, found["sgr"])
    return style


def page_end(text: str, start: int, *, most_lines: int, most_chars: int) -> int:
    """Where a page of the text that begins at ``start`` ends: behind a line if it holds
    one, never inside an escape sequence."""
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
    """The line in pieces of one style each, and the style behind it."""
    if _OVERWRITES.search(line):
        return _overwrite(line, style)
    runs, at = [], 0
    for found in _SEQUENCE.finditer(line):
        if found.start() > at:
            runs.append((style, line[at : found.start()]))
        at = found.end()
        if found["sgr"] is not None:
            style = _change(style, found["sgr"])
    if at < len(line):
        runs.append((style, line[at:]))
    return style, runs


def _overwrite(line: str, style: Style) -> tuple[Style, list[tuple[Style, str]]]:
    """A line on which the cursor goes back: what is written last stands."""
    cells: list[tuple[Style, str]] = []
    column = 0
    now = style
    left = MAX_CELLS_AGAIN * len(line)
    for now, piece, erase in _pieces(line.removesuffix("\n"), style):
        if erase is not None:
            left -= max(column, len(cells))
            if left > 0:
                _erase(cells, column, erase)
        elif piece == "\r":
            column = 0
        elif piece == "\b":
            column = max(0, column - 1)
        elif piece:
            cells += [(PLAIN, " ")] * (column - len(cells))
            cells[column : column + len(piece)] = [(now, char) for char in piece]
            column += len(piece)
    if line.endswith("\n"):
        cells.append((PLAIN, "\n"))
    grouped = groupby(cells, itemgetter(0))
    return now, [(key, "".join(char for _, char in group)) for key, group in grouped]


def _erase(cells: list[tuple[Style, str]], column: int, what: str) -> None:
    if what != "1":
        del cells[column if what != "2" else 0 :]
    else:
        cells[:column] = [(PLAIN, " ")] * min(column, len(cells))


def _pieces(line: str, style: Style) -> Iterator[tuple[Style, str, str | None]]:
    """Text between the moves of the cursor, each move, each erasing; with the style."""
    at = 0
    for found in [*_SEQUENCE.finditer(line), None]:
        text = line[at : found.start() if found else len(line)]
        for piece in re.split("([\r\b])", text):
            if piece:
                yield style, piece, None
        if found is None:
            break
        at = found.end()
        if found["sgr"] is not None:
            style = _change(style, found["sgr"])
        elif found["erase"] is not None:
            yield style, "", found["erase"]
    yield style, "", None


@lru_cache(maxsize=256)
def _change(style: Style, parameters: str) -> Style:
    """The style after an SGR sequence (ECMA-48, 8.3.117; 38 and 48 as in ISO 8613-6)."""
    front, back, flags = style
    codes = _numbers(parameters)
    while codes:
        code = codes.pop(0)
        if code == 0:
            front, back, flags = PLAIN
        elif code in _FLAGS:
            flags |= _FLAGS[code]
        elif code in _FLAGS_OFF:
            flags &= ~_FLAGS_OFF[code]
        elif code in (38, 48):
            colour = _take_colour(codes)
            front, back = (colour, back) if code == 38 else (front, colour)
        elif code == 39:
            front = -1
        elif code == 49:
            back = -1
        else:
            for first, shift in ((30, 0), (90, 8)):
                if first <= code < first + 8:
                    front = code - first + shift
                elif first + 10 <= code < first + 18:
                    back = code - first - 10 + shift
    return front, back, flags


def _numbers(parameters: str) -> list[int]:
    words = re.sub("(?<=[34]8:2):[0-9]*(?=:)", "", parameters).replace(":", ";").split(";")
    return [int(word[:4] or 0) for word in words[:32]]


def _take_colour(codes: list[int]) -> int:
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        return _of_256(codes.pop(0))
    if kind == 2 and len(codes) >= 3:
        red, green, blue = codes[:3]
        del codes[:3]
        return _nearest(red, green, blue)
    return -1


def _of_256(number: int) -> int:
    if number < 16:
        return number
    if number >= 232:
        level = 8 + 10 * (min(number, 255) - 232)
        return _nearest(level, level, level)
    red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
    return _nearest(*(0 if part == 0 else 55 + 40 * part for part in (red, green, blue)))


_HUES = ((15, 1), (75, 3), (165, 2), (200, 6), (265, 4), (345, 5), (361, 1))


def _nearest(red: int, green: int, blue: int) -> int:
    """The one of the sixteen that a person would call it."""
    parts = [min(255, part) / 255 for part in (red, green, blue)]
    hue, saturation, value = colorsys.rgb_to_hsv(*parts)
    if saturation < 0.2 or value < 0.15:
        return 0 if value < 0.25 else 8 if value < 0.65 else 7 if value < 0.9 else 15
    plain = next(number for end, number in _HUES if hue * 360 < end)
    return plain + 8 if value > 0.85 else plain


@lru_cache(maxsize=512)
def _classes(style: Style) -> str:
    front, back, flags = style
    names = [name for flag, name in _FLAG_CLASSES.items() if flags & flag]
    if flags & 16:
        return " ".join(names)
    if back >= 0:
        return " ".join([*names, f"b{back % 8}"])
    return " ".join([*names, f"f{front}"] if front >= 0 else names)


def _as_html(runs: list[tuple[Style, str]], most_spans: int) -> str:
    parts, left = [], most_spans
    for classes, group in groupby(runs, lambda run: _classes(run[0])):
        html = show_hidden(storable("".join(text for _, text in group)))
        if not classes or html.isspace() or left <= 0:
            parts.append(html)
        else:
            left -= 1
            parts.append(f'<span class="{classes}">{html}</span>')
    return "".join(parts)
