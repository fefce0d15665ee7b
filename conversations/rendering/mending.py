"""Markdown cut off in mid-word, made whole enough to look at.

While an answer streams, the block being written ends anywhere: inside ``**bold``,
a code span, half an address, or with a lone ``-`` that may become a list, a rule
or a heading. ``mend`` closes what is half open and hides what does not say yet
what it will be. The guess need not be right, it is replaced by the next one; it
must not make the page jump, and must cost little.
"""

import re
from collections import Counter
from dataclasses import dataclass

from markdown_it.rules_block.table import escapedSplit

INLINE_LIMIT = 4_000
"""Characters of one paragraph up to which its marks are mended."""

_FENCE = re.compile(
    r"^[ \t>]*+(?:(?:[-+*]|\d{1,9}[.)])[ \t]++)*+(`{3,}+|~{3,}+)([^\n]*+)", re.MULTILINE
)
_LONE_MARKERS = re.compile(r"[ \t>]*+(?:\d{1,9}+[.)]?[ \t]*+)?[-+*_=#|:`~> \t]*+")
_HALF_CLOSING_FENCE = re.compile(r"[ \t>]*+(?:`+|~+)")
_HALF_CHECKBOX = re.compile(r"\[[ xX]?\]?[ \t]*")
_TABLE_ROW = re.compile(r" {0,3}\|")
_RUN_START = re.compile(
    r"^[ \t>]*+(?:\n|(?:(?:[-+*]|\d{1,9}[.)])[ \t]++)++|#{1,6}[ \t]++|(?=\|))", re.MULTILINE
)
_MARK = re.compile(
    r"\\.?|`+|\*+|_+|~~+|!?\[|\]\(?|<[A-Za-z][^\s<>]*+(?!>)|https?://[^\s*<>\[\]`]*+", re.DOTALL
)
_BACKTICKS = re.compile("`+")
_WHOLE_TARGET = re.compile(
    r"\s*+(?:<[^<>\n]*>|[^\s()<>]*+(?:\([^\s()]*\)[^\s()]*+)*+)"
    r"(?:\s++(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*+\)"
)
_HALF_TARGET = re.compile(r"\s*+(?:<[^<>\n]*+|[^\s<>]*+(?:\s++(?:[\"'(][^\"'()]*+)?)?)\Z")


def mend(source: str) -> str:
    """Return the open end of a Markdown text so that it renders as if it were whole."""
    cut = source.rfind("\n") + 1
    before, last_line = source[:cut], source[cut:]
    if _is_in_fence(source):
        return before if _HALF_CLOSING_FENCE.fullmatch(last_line) else source
    if _LONE_MARKERS.fullmatch(last_line) or _opens_fence(_FENCE.match(last_line)):
        source = before
    # Marks pair up within the last paragraph, item, heading or cell.
    start = max((match.end() for match in _RUN_START.finditer(source)), default=0)
    if source.startswith("|", start):
        start = source.rfind("|") + 1
    return _complete_table(source[:start] + mend_inline(source[start:])[0])


def _opens_fence(fence: re.Match[str] | None) -> bool:
    return fence is not None and not (fence[1][0] == "`" and "`" in fence[2])


def _is_in_fence(source: str) -> bool:
    """Whether the text ends inside a code fence, its opening line being complete."""
    opening = ""
    for fence in _FENCE.finditer(source):
        if not opening and fence.end() < len(source) and _opens_fence(fence):
            opening = fence[1]
        elif opening and fence[1].startswith(opening) and not fence[2].strip(" \t"):
            opening = ""
    return bool(opening)


def _complete_table(source: str) -> str:
    """Show a table's header as a table before the line below it has come."""
    lines = source.rstrip("\n").rsplit("\n", 2)
    if not _TABLE_ROW.match(lines[-1]) or (len(lines) > 1 and _TABLE_ROW.match(lines[-2])):
        return source
    cells = escapedSplit(lines[-1].strip())
    columns = len(cells) - (not cells[0]) - (len(cells) > 1 and not cells[-1])
    return "\n".join([*lines, "|" + "---|" * columns]) if columns else source


@dataclass(slots=True)
class _Opener:
    """Marks of emphasis that have not been closed: how many, and where they start."""

    mark: str
    length: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.length


def mend_inline(text: str) -> tuple[str, int]:
    """Mend the text of one paragraph, and say up to where it need not be read again.

    Up to there, behind a space, every mark is closed and the text as it was.
    """
    if len(text) > INLINE_LIMIT:
        return text, 0
    text = text.rstrip()
    if _HALF_CHECKBOX.fullmatch(text):
        return "", 0
    mender = _Mender(text)
    return mender.mend(), mender.settled


class _Mender:
    """One pass over the text of a paragraph, remembering what is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.settled = 0
        self.emphasis: list[_Opener] = []
        self.open_marks: Counter[str] = Counter()
        self.brackets: list[int] = []
        self.is_cut = False

    def mend(self) -> str:
        position = 0
        while (match := _MARK.search(self.text, position)) is not None:
            self._settle(position, match.start())
            position = self._take(match)
        self._settle(position, len(self.text))
        # A half link is shown as its label, and emphasis of nothing not at all.
        for start in reversed(self.brackets):
            opening = 2 if self.text.startswith("!", start) else 1
            self.text = self.text[:start] + self.text[start + opening :]
        while self.emphasis and self.emphasis[-1].end >= len(self.text):
            self.text = self.text[: self.emphasis.pop().start]
        closers = "".join(opener.mark * opener.length for opener in reversed(self.emphasis))
        return self.text.rstrip() + closers

    def _settle(self, start: int, end: int) -> None:
        """Note that there are no marks from ``start`` to ``end``."""
        if not (self.emphasis or self.brackets or self.is_cut):
            self.settled = max(self.settled, self.text.rfind(" ", start, end) + 1)

    def _take(self, match: re.Match[str]) -> int:
        """Note one mark, or change the text if it is half of one; where to go on.

        An address is matched too, so that what is in it is no mark.
        """
        match match[0][0]:
            case "\\" if len(match[0]) == 1:
                self._cut(match.start())
            case "`":
                return self._take_backticks(match)
            case "<" if match.end() == len(self.text):
                self._complete(">" if "://" in match[0] else "")
                return len(self.text)
            case "[" | "!":
                self.brackets.append(match.start())
            case "]":
                return self._take_closing_bracket(match)
            case "*" | "_" | "~":
                self._take_emphasis(match)
        return match.end()

    def _take_backticks(self, match: re.Match[str]) -> int:
        """Skip a code span; close it if it is open, drop it if it is empty."""
        length = len(match[0])
        position = match.end()
        for run in _BACKTICKS.finditer(self.text, position):
            if len(run[0]) == length:
                return run.end()
        code = self.text[position:]
        if code:
            self._complete("`" * (length - (len(code) - len(code.rstrip("`")))))
        else:
            self._cut(match.start())
        return len(self.text)

    def _take_closing_bracket(self, match: re.Match[str]) -> int:
        """Skip a whole link; cut a half one down to ``[label``."""
        if not self.brackets:
            return match.end()
        end = match.end()
        has_target = match[0] == "]("
        if has_target and (whole := _WHOLE_TARGET.match(self.text, end)):
            self.brackets.pop()
            return whole.end()
        if end == len(self.text) or (has_target and _HALF_TARGET.match(self.text, end)):
            self._cut(match.start())
        else:
            self.brackets.pop()
        return end

    def _take_emphasis(self, match: re.Match[str]) -> None:
        mark, length = match[0][0], len(match[0])
        before = self.text[match.start() - 1] if match.start() else " "
        after = self.text[match.end()] if match.end() < len(self.text) else " "
        # Close what these marks can close, the innermost of their kind first.
        while not before.isspace() and length and self.open_marks[mark]:
            while self.emphasis[-1].mark != mark:
                self.open_marks[self.emphasis.pop().mark] -= 1
            closed = min(length, self.emphasis[-1].length)
            length -= closed
            self.emphasis[-1].length -= closed
            if not self.emphasis[-1].length:
                self.emphasis.pop()
                self.open_marks[mark] -= 1
        if not length:
            return
        if match.end() == len(self.text):
            self._cut(len(self.text) - length)
        elif not after.isspace() and not before.isalnum() and (mark != "~" or length == 2):
            self.emphasis.append(_Opener(mark, length, match.start()))
            self.open_marks[mark] += 1

    def _cut(self, start: int) -> None:
        self.text, self.is_cut = self.text[:start], True

    def _complete(self, ending: str) -> None:
        self.text, self.is_cut = self.text + ending, True
