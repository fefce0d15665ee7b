"""How text fills the columns of a terminal: the width of characters, and lines that
break between words while the text is still arriving."""

import re
from unicodedata import category, combining, east_asian_width

_PIECES = re.compile(r"\n|[^\S\n]+|\S")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_AS_IT_IS = re.compile(r" {0,3}(?:```|~~~|\|)| {4}|\t")
_JOINER = "\u200d"
_ZERO_WIDTH = ("Mn", "Me", "Cf")


def char_width(char: str) -> int:
    """Columns that a character takes: 0 for one that joins the one before it, 2 for the
    wide ones of East Asian scripts and emoji, as UAX #11 has them."""
    if char.isascii():
        return 1
    if combining(char) or category(char) in _ZERO_WIDTH:
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def text_width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(char_width, text))


def fit(text: str, width: int) -> str:
    """The beginning of a line that takes at most ``width`` columns, with an ellipsis
    where something is missing."""
    if text_width(text) <= width:
        return text
    taken, left = [], width - 1
    for char in text:
        left -= char_width(char)
        if left < 0:
            break
        taken.append(char)
    return "".join(taken).rstrip() + "…" if width > 0 else ""


class Wrapper:
    """Breaks lines between words, piece by piece as the text comes in.

    Nothing but line ends is put in, each in the place of the blanks there or between two
    wide characters. Lines of code and of tables stay as they are, so that they can be
    copied. A word is held back until it is known to fit.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._blank = ""
        self._word = ""
        self._line = ""
        self._in_fence = False

    def feed(self, text: str) -> str:
        return "".join(map(self._take, _PIECES.findall(text)))

    def flush(self) -> str:
        """What was held back."""
        return self._place_word()

    def begin_line(self) -> None:
        """Something else has ended the line."""
        self._column, self._blank = 0, ""

    def _take(self, piece: str) -> str:
        if piece == "\n":
            return self._end_line()
        self._line += piece[: max(0, 8 - len(self._line))]
        if piece.isspace():
            placed = self._place_word()
            self._blank += piece
            return placed
        placed = self._place_word() if self._may_break_before(piece) else ""
        self._word += piece
        return placed

    def _may_break_before(self, char: str) -> bool:
        """Inside of a word: on both sides of a wide character, but for what joins it."""
        last = self._word[-1:]
        if not last or last == _JOINER or char_width(char) == 0:
            return False
        return char_width(char) == 2 or char_width(self._base()) == 2

    def _base(self) -> str:
        """The last character of the word that takes columns."""
        return next((char for char in reversed(self._word) if char_width(char)), " ")

    def _end_line(self) -> str:
        placed = self._place_word() + self._blank + "\n"
        if _FENCE.match(self._line):
            self._in_fence = not self._in_fence
        self._line = self._blank = ""
        self._column = 0
        return placed

    def _place_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        blank, self._blank = self._blank, ""
        width = text_width(word)
        stays = self._in_fence or _AS_IT_IS.match(self._line)
        if self._column and not stays and self._column + len(blank) + width > self._width:
            self._column = width
            return "\n" + word
        self._column += len(blank) + width
        return blank + word
